// How unary calls end.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/service.h"
#include "server/rpc/worker_pool.h"
#include "server/security/tenant.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {

/// Answers a call with what `work(tenant)` returns, at once.
template <typename Work>
grpc::ServerUnaryReactor* Answer(Op op, const ServiceContext& service,
                                 grpc::CallbackServerContext* context, std::string subject,
                                 const Work& work) {
  StageRecord record = service.telemetry.Begin(op, TenantOf(*context), std::move(subject));
  record.status = work(record.tenant);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const grpc::Status status = ToGrpc(record.status);
  service.telemetry.End(std::move(record));
  reactor->Finish(status);
  return reactor;
}

/// Likewise, for work that blocks: on a worker.
template <typename Work>
grpc::ServerUnaryReactor* AnswerOnWorker(Op op, const ServiceContext& service,
                                         grpc::CallbackServerContext* context, std::string subject,
                                         Work work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const StageRecord record = service.telemetry.Begin(op, TenantOf(*context), std::move(subject));
  const auto end = [&service, reactor](StageRecord ended, absl::Status status) {
    ended.status = status;
    service.telemetry.End(std::move(ended));
    reactor->Finish(ToGrpc(status));
  };
  absl::Status queued = service.live_streams.TakesNew();
  if (queued.ok()) {
    queued = service.workers.Run(
        [record, end, work = std::move(work)] { end(record, work(record.tenant)); });
  }
  if (!queued.ok()) end(record, std::move(queued));
  return reactor;
}

}  // namespace sparsed::server
