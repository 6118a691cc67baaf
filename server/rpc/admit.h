// Every call begins here: who calls, whether he may, and whether his tenant's quotas let him.
#pragma once

#include <grpcpp/server_context.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/memory/tenants.h"
#include "server/rpc/convert.h"
#include "server/rpc/service.h"
#include "server/security/caller.h"
#include "server/telemetry/stage_record.h"

namespace sparsed::server {

/// The caller of a call that is to do `op`, which counts as long as it is there. UNAUTHENTICATED,
/// PERMISSION_DENIED; RESOURCE_EXHAUSTED.
/// Its request id goes into its metadata, whatever comes of it.
/// `subject` says what it is about, for log and audit log, if a known caller is refused; null where
/// a call has not said it yet.
absl::StatusOr<Caller> Admit(Op op, const ServiceContext& service, grpc::ServerContextBase& context,
                             const std::function<std::string()>& subject = nullptr);
/// Likewise, of a call that is part of another.
absl::StatusOr<Caller> Admit(const ServiceContext& service, grpc::ServerContextBase& context);
/// A request begins on a stream of his: RESOURCE_EXHAUSTED if that is more than his tenant may
/// begin within a second.
absl::Status CountRequest(engine::Tenant& tenant, const Caller& caller);
/// PERMISSION_DENIED if results of his must not stay on the server.
absl::Status MayKeepResults(const ServiceContext& service, const Caller& caller);

/// A call that ends at once. Deletes itself.
template <typename Reactor>
class RefusedCall final : public Reactor {
 public:
  explicit RefusedCall(const absl::Status& why) { this->Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

/// What `start(caller)` makes, or a call that is refused.
template <typename Reactor, typename Start>
Reactor* ForCaller(Op op, const ServiceContext& service, grpc::ServerContextBase& context,
                   const Start& start, const std::function<std::string()>& subject = nullptr) {
  absl::StatusOr<Caller> caller = Admit(op, service, context, subject);
  if (!caller.ok()) return new RefusedCall<Reactor>(caller.status());
  return start(*std::move(caller));
}

}  // namespace sparsed::server
