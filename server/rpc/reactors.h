// The reactors of calls that take their time; each is made here and deletes itself when its call is
// done.
//
// None of them blocks: what does is handed to the worker pool. Each has one terminal transition,
// after which only OnDone comes.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>

#include "server/rpc/service.h"
#include "server/telemetry/stage_record.h"

namespace sparsed::server {

using BytesBidiReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
using BytesReadReactor = grpc::ServerReadReactor<grpc::ByteBuffer>;
using BytesWriteReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

BytesBidiReactor* StartUpload(const ServiceContext& service, grpc::CallbackServerContext* context);
BytesReadReactor* StartUpdateValues(const ServiceContext& service,
                                    grpc::CallbackServerContext* context,
                                    grpc::ByteBuffer* response);
BytesWriteReactor* StartDownload(const ServiceContext& service,
                                 grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer& request);
BytesWriteReactor* StartFetch(const ServiceContext& service, grpc::CallbackServerContext* context,
                              const grpc::ByteBuffer& request);
BytesWriteReactor* StartFetchRows(const ServiceContext& service,
                                  grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer& request);
BytesWriteReactor* StartWatch(const ServiceContext& service, grpc::CallbackServerContext* context,
                              const grpc::ByteBuffer& request);
BytesWriteReactor* StartListMeasurements(const ServiceContext& service,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& request);
BytesReadReactor* StartPutBuffer(const ServiceContext& service,
                                 grpc::CallbackServerContext* context, grpc::ByteBuffer* response);
BytesWriteReactor* StartGetBuffer(const ServiceContext& service,
                                  grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer& request);
/// `under_way`: of all callers, for the limit.
grpc::ServerUnaryReactor* StartExplain(const ServiceContext& service,
                                       grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer& request, grpc::ByteBuffer& response,
                                       std::atomic<int>& under_way);
BytesWriteReactor* StartWatchRequests(const ServiceContext& service,
                                      grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer& request);
/// `under_way`: whether one is being taken.
BytesWriteReactor* StartSaveSnapshot(const ServiceContext& service,
                                     grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer& request, std::atomic<bool>& under_way);
BytesReadReactor* StartPutModel(const ServiceContext& service, grpc::CallbackServerContext* context,
                                grpc::ByteBuffer* response);
/// `op`: kSpmm, kSddmm, kSpgemm or kChain.
BytesBidiReactor* StartCompute(Op op, const ServiceContext& service,
                               grpc::CallbackServerContext* context);
BytesBidiReactor* StartCarry(const ServiceContext& service, grpc::CallbackServerContext* context);

}  // namespace sparsed::server
