#include "server/rpc/unreadable_requests.h"

#include <grpcpp/support/status.h>

namespace sparsed::server {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

class NamesUnreadable final : public Interceptor {
 public:
  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      const bool from_grpc = status.error_code() == grpc::StatusCode::UNIMPLEMENTED ||
                             status.error_code() == grpc::StatusCode::INTERNAL;
      // What we end with has a sentence.
      if (from_grpc && status.error_message().empty()) {
        methods->ModifySendStatus(
            {grpc::StatusCode::INVALID_ARGUMENT,
             "the bytes are not a request of this method: cut short, or a text in them is no "
             "UTF-8"});
      }
    }
    methods->Proceed();
  }
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    const bool one_request = info->type() == ServerRpcInfo::Type::UNARY ||
                             info->type() == ServerRpcInfo::Type::SERVER_STREAMING;
    return one_request ? new NamesUnreadable : nullptr;  // gRPC owns it
  }
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> NameUnreadableRequests() {
  return std::make_unique<Factory>();
}

}  // namespace sparsed::server
