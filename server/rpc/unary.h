// Unary calls: one request, one reply, and a client that may not take it.
#pragma once

#include <fmt/format.h>
#include <google/protobuf/message_lite.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/store/store.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/admit.h"
#include "server/rpc/client_wait.h"
#include "server/rpc/connection_share.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/routes.h"
#include "server/rpc/service.h"
#include "server/rpc/worker_pool.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {

/// Ends once, with End, after which only OnDone comes; a reply that nobody takes ends after
/// --send-idle. Deletes itself.
class UnaryReactor : public grpc::ServerUnaryReactor, public LiveStream {
 public:
  UnaryReactor(Op op, const ServiceContext& service, grpc::CallbackServerContext& context,
               Caller caller, std::string subject, grpc::ByteBuffer& response);

  const std::string& tenant() const { return tenant_; }
  /// Until it ends.
  const TraceContext& trace() const { return record_.trace; }
  /// From now on its client's patience is looked after. UNAVAILABLE if the server is shutting down;
  /// what is answered from memory at once goes on even so.
  absl::Status Join();
  /// What the call turned out to be about, where its request does not say.
  void set_subject(std::string subject) { record_.subject = std::move(subject); }
  /// What comes of it is called so.
  void set_result(std::string name) { record_.keeps = std::move(name); }
  /// Ends the call; `this` may be gone afterwards.
  void End(absl::Status status, const google::protobuf::MessageLite& reply);

  /// True once nobody waits for the reply any more.
  const std::atomic<bool>& stop() const { return stop_; }

  void OnCancel() override { stop_ = true; }
  void OnTick(const Patience& patience) override;
  void Count(InFlightTable& table) override;
  void OnDone() override;

 protected:
  const ServiceContext& service() const { return service_; }

 private:
  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& response_;
  ShareHold hold_;  ///< for the reply
  const Op op_;
  StageRecord record_;
  const StageRecord::Clock::time_point begun_ = record_.begun;
  const std::string tenant_ = record_.tenant;
  Delivery delivery_;
  std::atomic<int64_t> sending_ = 0;
  std::atomic<bool> stop_ = false;
};

/// What a request is about, for logs and statistics.
template <typename Request>
std::string SubjectOf(const Request& request) {
  if constexpr (requires {
                  request.watch();
                  request.device();
                }) {
    return fmt::format("{}{}{}{}", request.watch() ? "watch " : "", request.name(),
                       request.device().empty() ? "" : " for ", request.device());
  } else if constexpr (requires { request.name(); }) {
    return request.name();
  } else if constexpr (requires { request.prefix(); }) {
    return request.prefix();
  } else {
    return {};
  }
}

/// Of a request that nobody has read yet, for Admit; empty if it is malformed.
template <typename Request>
std::function<std::string()> SubjectIn(const grpc::ByteBuffer& bytes) {
  return [&bytes] {
    Request request;
    return wire::ParseRequest(bytes, request).ok() ? SubjectOf(request) : "";
  };
}

/// What it is to make, as a copy's name; empty: nothing.
template <typename Request>
std::string ResultOf(const Request& request) {
  if constexpr (requires { request.new_name(); }) return request.new_name();
  return {};
}

/// Whether what a request asks for is to take its time.
template <typename Request>
bool IsThrottled(const Request& request) {
  if constexpr (requires { request.bytes_per_second(); }) return request.bytes_per_second() > 0;
  return false;
}

/// What a call came to, for the same, where its request names nothing but its reply does.
template <typename Request, typename Reply>
void AddSubject(const Request& request, const Reply& reply, UnaryReactor& call) {
  if constexpr (
      requires {
        reply.name();
        request.device();
      } &&
      !requires { request.name(); }) {
    call.set_subject(fmt::format("{}{}{}", reply.name(), request.device().empty() ? "" : " for ",
                                 request.device()));
  }
}

/// Answers a call with what `work(request, caller, reply)` makes, at once.
template <typename Request, typename Reply, typename Work>
grpc::ServerUnaryReactor* Answer(Op op, const ServiceContext& service,
                                 grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                 const Work& work) {
  absl::StatusOr<Caller> caller = Admit(op, service, *context, SubjectIn<Request>(*bytes));
  if (!caller.ok()) return new RefusedCall<grpc::ServerUnaryReactor>(caller.status());
  Request request;
  Reply reply;
  absl::Status status = wire::ParseRequest(*bytes, request);
  auto* const call =
      new UnaryReactor(op, service, *context, *std::move(caller), SubjectOf(request), *response);
  call->set_result(ResultOf(request));
  call->Join().IgnoreError();
  if (status.ok()) status = work(request, *call->caller(), reply);
  call->End(std::move(status), reply);
  return call;
}

/// Likewise, for work that blocks: on a worker. `work` may take `stop` as well, to end early.
template <typename Request, typename Reply, typename Work>
grpc::ServerUnaryReactor* AnswerOnWorker(Op op, const ServiceContext& service,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                         Work work) {
  absl::StatusOr<Caller> caller = Admit(op, service, *context, SubjectIn<Request>(*bytes));
  if (!caller.ok()) return new RefusedCall<grpc::ServerUnaryReactor>(caller.status());
  Request request;
  absl::Status status = wire::ParseRequest(*bytes, request);
  auto* const call =
      new UnaryReactor(op, service, *context, *std::move(caller), SubjectOf(request), *response);
  call->set_result(ResultOf(request));
  if (status.ok()) status = call->Join();
  if (status.ok()) {
    const std::string tenant = call->tenant();
    status = WorkersFor(op, service, IsThrottled(request))
                 .Run(tenant, [call, request = std::move(request), work = std::move(work)] {
                   const TraceScope trace(call->trace());
                   Reply reply;
                   const Caller& caller = *call->caller();
                   absl::Status done;
                   if constexpr (std::is_invocable_v<Work, const Request&, const Caller&, Reply&,
                                                     engine::Store::Stop>) {
                     done = work(request, caller, reply, &call->stop());
                   } else {
                     done = work(request, caller, reply);
                   }
                   if (done.ok()) AddSubject(request, reply, *call);
                   call->End(std::move(done), reply);
                 });
  }
  if (!status.ok()) call->End(std::move(status), Reply());
  return call;
}

}  // namespace sparsed::server
