// Requests that are no messages.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace sparsed::server {

/// Of a call whose one request it cannot read, gRPC says UNIMPLEMENTED without a word; with this,
/// INVALID_ARGUMENT with a sentence. Costs calls that stream their requests nothing: they read them
/// themselves.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NameUnreadableRequests();

}  // namespace sparsed::server
