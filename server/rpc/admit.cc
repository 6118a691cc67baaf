#include "server/rpc/admit.h"

#include <grpc/grpc_security_constants.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "server/security/access.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {
namespace {

struct Rule {
  Role least;
  std::string_view what;
};

/// No default: whoever adds an operation says who may do it.
Rule RuleOf(Op op) {
  switch (op) {
    case Op::kSpmm:
    case Op::kSddmm:
    case Op::kSpgemm:
    case Op::kChain:
      return {Role::kReadOnly, "computing"};
    case Op::kDownload:
    case Op::kGet:
    case Op::kList:
    case Op::kWatch:
    case Op::kListMeasurements:
    case Op::kGetBuffer:
    case Op::kListBuffers:
    case Op::kGetServerInfo:
    case Op::kListTenants:
    case Op::kListSlow:
    case Op::kWatchRequests:
    case Op::kExplain:
      return {Role::kReadOnly, "looking"};
    case Op::kUpload:
    case Op::kMakeSharded:
      return {Role::kUser, "uploading a matrix"};
    case Op::kUpdateValues:
      return {Role::kUser, "replacing values"};
    case Op::kRename:
      return {Role::kUser, "renaming a matrix"};
    case Op::kCopy:
      return {Role::kUser, "copying a matrix"};
    case Op::kDelete:
      return {Role::kUser, "deleting a matrix"};
    case Op::kPutBuffer:
      return {Role::kUser, "putting a buffer"};
    case Op::kDeleteBuffer:
      return {Role::kUser, "deleting a buffer"};
    case Op::kRenewBuffer:
      return {Role::kUser, "renewing a buffer"};
    case Op::kShare:
      return {Role::kUser, "sharing a matrix"};
    case Op::kPrepare:
      return {Role::kUser, "preparing a matrix"};
    case Op::kGetStats:
      return {Role::kOperator, "the statistics of the whole server"};
    case Op::kSaveSnapshot:
      return {Role::kOperator, "a snapshot of what all tenants have"};
    case Op::kListModels:
      return {Role::kOperator, "the list of models"};
    case Op::kPutModel:
    case Op::kActivateModel:
    case Op::kRollbackModel:
    case Op::kRemoveModel:
      return {Role::kOperator, "changing what models there are, and which chooses"};
    case Op::kListNodes:
      return {Role::kOperator, "the list of the cluster's nodes"};
    case Op::kDrainNode:
      return {Role::kOperator, "draining a node"};
    case Op::kForgetNode:
      return {Role::kOperator, "forgetting a node"};
    case Op::kCopyHere:
    case Op::kFetch:
    case Op::kFetchRows:
      return {Role::kOperator, "what nodes do for each other"};
    case Op::kCalibrate:
      return {Role::kOperator, "calibrating devices"};
  }
  return {Role::kOperator, "this"};
}

/// Whether nobody between the machines reads what is said. `peer`: as grpc has it.
bool StaysHere(std::string_view peer) {
  return peer.starts_with("unix") || peer.starts_with("ipv4:127.") ||
         peer.starts_with("ipv6:[::1]:") || peer.starts_with("ipv6:%5B::1%5D:");
}

std::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

/// Whether it stays open for as long as its client likes.
bool IsStream(Op op) {
  switch (op) {
    case Op::kSpmm:
    case Op::kSddmm:
    case Op::kSpgemm:
    case Op::kChain:
    case Op::kWatch:
    case Op::kWatchRequests:
      return true;
    default:
      return false;
  }
}

/// The only value of that name; empty: there is none, or there are several.
std::string_view Metadata(const grpc::ServerContextBase& context, const char* name) {
  const auto [begin, end] = context.client_metadata().equal_range(name);
  return begin != end && std::next(begin) == end ? View(begin->second) : std::string_view();
}

/// What the call is known by, which its caller is told at once and, with an error, at the end.
std::shared_ptr<const CallOrigin> OriginOf(grpc::ServerContextBase& context) {
  auto origin = std::make_shared<CallOrigin>();
  const std::string_view id = Metadata(context, kRequestIdKey);
  origin->request_id = IsRequestId(id) ? std::string(id) : NewRequestId();
  const std::string_view parent = Metadata(context, "traceparent");
  if (!parent.empty()) {
    origin->trace =
        ParseTraceContext(parent, Metadata(context, "tracestate")).value_or(TraceContext());
  }
  context.AddInitialMetadata(kRequestIdKey, origin->request_id);
  context.AddTrailingMetadata(kRequestIdKey, origin->request_id);
  return origin;
}

absl::StatusOr<Caller> Identify(const ServiceContext& service,
                                const grpc::ServerContextBase& context) {
  const std::string peer = context.peer();
  Evidence evidence;
  const auto& metadata = context.client_metadata();
  if (const auto [begin, end] = metadata.equal_range("authorization"); begin != end) {
    // Of two nobody knows which is meant.
    evidence.token = std::next(begin) == end ? TokenIn(View(begin->second)) : "";
  }
  evidence.private_way = StaysHere(peer);
  if (peer.starts_with("unix")) {
    evidence.process = service.process_of(peer);
  } else if (const auto auth = context.auth_context(); auth != nullptr) {
    const auto type = auth->FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
    const bool tls = !type.empty() && View(type.front()) == GRPC_TLS_TRANSPORT_SECURITY_TYPE;
    evidence.private_way = evidence.private_way || tls;
    if (tls && !evidence.token.has_value()) {
      for (const auto& uri : auth->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
        evidence.uris.emplace_back(View(uri));
      }
      const auto names = auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
      if (!names.empty()) evidence.common_name = View(names.front());
    }
  }
  return service.access.Identify(evidence);
}

/// What a call is to its tenant's quotas.
enum class Kind { kRequest, kStatusCall, kStream, kCarrier };

/// None: of a call that is part of another.
Kind KindOf(std::optional<Op> op) {
  if (!op.has_value()) return Kind::kCarrier;
  if (IsStream(*op)) return Kind::kStream;
  return IsStatusCall(*op) ? Kind::kStatusCall : Kind::kRequest;
}

/// The rate that is meant for tenants holds up neither who looks after the server nor its nodes.
absl::Status CountRate(Kind kind, engine::Tenant& tenant, const Caller& caller) {
  if (caller.role == Role::kOperator) return absl::OkStatus();
  switch (kind) {
    case Kind::kRequest:
      return tenant.TakeRequest();
    case Kind::kStatusCall:
    case Kind::kStream:
      return tenant.TakeStatusCall();
    case Kind::kCarrier:
      return tenant.TakeCarrier();
  }
  return absl::OkStatus();
}

absl::StatusOr<engine::TenantHold> Hold(Kind kind, engine::Tenant& tenant) {
  switch (kind) {
    case Kind::kRequest:
      return tenant.Hold(engine::Quota::kRequests);
    case Kind::kStatusCall:
      return tenant.HoldStatusCall();
    case Kind::kStream:
    case Kind::kCarrier:
      break;
  }
  return tenant.Hold(engine::Quota::kStreams);
}

absl::Status Count(Kind kind, const ServiceContext& service, const grpc::ServerContextBase& context,
                   Caller& caller) {
  engine::Tenant& tenant = service.engine.tenants().Of(caller.tenant);
  if (absl::Status s = service.count_connection(context.peer(), tenant); !s.ok()) return s;
  if (absl::Status s = CountRate(kind, tenant, caller); !s.ok()) return s;
  absl::StatusOr<engine::TenantHold> hold = Hold(kind, tenant);
  if (hold.ok()) caller.counted = *std::move(hold);
  return hold.status();
}

absl::Status MayDo(Op op, const ServiceContext& service, const Caller& caller) {
  const Rule rule = RuleOf(op);
  return service.access.Require(caller, rule.least, rule.what);
}

/// Every call that does not begin is in the log and, if that is known, counted for who called.
absl::StatusOr<Caller> AdmitAs(std::optional<Op> op, const ServiceContext& service,
                               grpc::ServerContextBase& context,
                               const std::function<std::string()>& subject) {
  const std::shared_ptr<const CallOrigin> origin = OriginOf(context);
  absl::StatusOr<Caller> caller = Identify(service, context);
  if (caller.ok()) caller->origin = origin;
  absl::Status status = caller.status();
  if (status.ok() && op.has_value()) status = MayDo(*op, service, *caller);
  if (status.ok()) status = Count(KindOf(op), service, context, *caller);
  if (status.ok()) return caller;
  service.telemetry.Refused(op, caller.ok() ? &*caller : nullptr, context.peer(),
                            origin->request_id, status, caller.ok() && subject ? subject() : "");
  return status;
}

}  // namespace

absl::StatusOr<Caller> Admit(const ServiceContext& service, grpc::ServerContextBase& context) {
  return AdmitAs(std::nullopt, service, context, nullptr);
}

absl::StatusOr<Caller> Admit(Op op, const ServiceContext& service, grpc::ServerContextBase& context,
                             const std::function<std::string()>& subject) {
  return AdmitAs(op, service, context, subject);
}

absl::Status CountRequest(engine::Tenant& tenant, const Caller& caller) {
  return CountRate(Kind::kRequest, tenant, caller);
}

absl::Status MayKeepResults(const ServiceContext& service, const Caller& caller) {
  return service.access.Require(caller, Role::kUser, "keeping a result on the server");
}

}  // namespace sparsed::server
