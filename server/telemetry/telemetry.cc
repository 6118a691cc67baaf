#include "server/telemetry/telemetry.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "engine/catalog/shares.h"
#include "proto/wire/status_details.h"
#include "server/log/log.h"
#include "server/log/refusal.h"

namespace sparsed::server {
namespace {

/// Of what clients chose, records keep no more, in bytes. No name that is accepted is longer.
constexpr size_t kMaxSubject = 255;
constexpr size_t kMaxMessage = 1024;

/// At most `bytes`, and no part of a UTF-8 character at the end.
void Cut(std::string& text, size_t bytes) {
  if (text.size() <= bytes) return;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  text.resize(bytes);
}

/// Whether it changes what the server keeps, or takes all of it away: operators are told of it.
bool IsNotable(Op op) {
  switch (op) {
    case Op::kUpload:
    case Op::kUpdateValues:
    case Op::kDelete:
    case Op::kPutBuffer:
    case Op::kDeleteBuffer:
    case Op::kPrepare:
    case Op::kShare:
    case Op::kRename:
    case Op::kCopy:
    case Op::kSaveSnapshot:
    case Op::kPutModel:
    case Op::kActivateModel:
    case Op::kRollbackModel:
    case Op::kRemoveModel:
    case Op::kCalibrate:
    case Op::kDrainNode:
    case Op::kForgetNode:
    case Op::kCopyHere:
    case Op::kMakeSharded:
      return true;
    default:
      return false;
  }
}

/// A product that is kept as a matrix, which is notable, too; results in buffers are not, of which
/// there may be thousands a second.
bool MakesMatrix(const StageRecord& record) {
  return record.op == Op::kSpgemm && !record.keeps.empty();
}

/// The server's own failures are worth a look. What a caller did wrong is the caller's to see, but
/// who was told of an error by its id finds it in the log; who cancels was told of none.
LogLevel LevelOf(const StageRecord& record) {
  // Of a node's "ask that one" nobody is told but the library, which does.
  if (wire::IsElsewhere(record.status)) return LogLevel::kDebug;
  switch (record.status.code()) {
    case absl::StatusCode::kOk:
      return IsNotable(record.op) || MakesMatrix(record) ? LogLevel::kInfo : LogLevel::kDebug;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnavailable:
    // Of those who call, who may not.
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return LogLevel::kWarn;
    case absl::StatusCode::kCancelled:
      return LogLevel::kDebug;
    default:
      return LogLevel::kInfo;
  }
}

/// `suppressed`: requests like it that were not logged.
void LogRequest(LogLevel level, std::string_view event, const StageRecord& record,
                int64_t suppressed) {
  std::vector<Field> fields = {
      {"op", std::string(Name(record.op))},
      {"tenant", record.tenant},
      {"caller", record.caller},
      {"request_id", record.id},
      {"subject", record.subject},
      {"code", absl::StatusCodeToString(record.status.code())},
      {"total_ms", static_cast<double>(record.total_ns) * 1e-6},
  };
  const auto text = [&fields](std::string_view key, std::string_view value) {
    if (!value.empty()) fields.push_back({key, std::string(value)});
  };
  text("trace_id", record.trace.trace_id);
  text("result", record.keeps);
  if (record.k > 0) fields.push_back({"k", record.k});
  text("parameters", record.parameters);
  text("plan", record.plan);
  text("transport", TransportOf(record));
  for (size_t phase = 0; phase < kPhases; ++phase) {
    if (record.phase_ns[phase] == 0) continue;
    static constexpr std::array<std::string_view, kPhases> kKeys = {
        "queue_ms",  "receive_ms",     "setup_ms", "to_device_ms",
        "kernel_ms", "from_device_ms", "send_ms"};
    fields.push_back({kKeys[phase], static_cast<double>(record.phase_ns[phase]) * 1e-6});
  }
  const auto part = [&fields](std::string_view key, uint64_t ns) {
    if (ns > 0) fields.push_back({key, static_cast<double>(ns) * 1e-6});
  };
  part("queue_trials_ms", record.queue_trials_ns);
  part("queue_others_ms", record.queue_others_ns);
  const auto bytes = [&fields](std::string_view key, uint64_t count) {
    if (count > 0) fields.push_back({key, static_cast<int64_t>(count)});
  };
  bytes("stream_bytes_in", record.stream_bytes_in);
  bytes("stream_bytes_out", record.stream_bytes_out);
  bytes("carried_bytes_in", record.carried_bytes_in);
  bytes("carried_bytes_out", record.carried_bytes_out);
  bytes("held_bytes_in", record.held_bytes_in);
  bytes("held_bytes_out", record.held_bytes_out);
  bytes("shared_bytes_in", record.shared_bytes_in);
  bytes("shared_bytes_out", record.shared_bytes_out);
  bytes("shared_gpu_bytes_in", record.gpu_bytes_in);
  bytes("shared_gpu_bytes_out", record.gpu_bytes_out);
  if (!record.status.ok()) fields.push_back({"message", std::string(record.status.message())});
  if (suppressed > 0) fields.push_back({"not_logged", suppressed});
  Log(level, event, fields);
}

}  // namespace

StageRecord Telemetry::Begin(Op op, const Caller& caller, std::string subject) {
  StageRecord record;
  record.op = op;
  record.tenant = caller.tenant;
  record.caller = caller.name;
  record.by_operator = caller.role == Role::kOperator;
  if (caller.origin != nullptr) {
    record.id = caller.origin->request_id;
    record.trace = caller.origin->trace;
  } else {
    record.id = NewRequestId();
  }
  if (exporter_ != nullptr && !record.trace.traced()) {
    record.trace = {.trace_id = NewTraceId(), .parent_id = "", .state = "", .sampled = true};
  }
  Cut(subject, kMaxSubject);
  record.subject = std::move(subject);
  ++in_flight_;
  metrics_.Begin(op);
  return record;
}

void Telemetry::End(StageRecord record) {
  Cut(record.subject, kMaxSubject);
  Cut(record.keeps, kMaxSubject);
  Cut(record.plan, kMaxSubject);
  Cut(record.parameters, kMaxMessage);
  if (record.status.message().size() > kMaxMessage) {
    std::string message(record.status.message());
    Cut(message, kMaxMessage);
    record.status = absl::Status(record.status.code(), message);
  }
  if (record.total_ns == 0) record.total_ns = NanosecondsSince(record.begun);
  --in_flight_;
  metrics_.End(record);
  const absl::Status told = record.status;
  record.status = WhatHappened(record);
  // One line a request; but whoever asked for debugging gets the same line of each.
  if (!LogSlow(record) || LogEnabled(LogLevel::kDebug)) LogEnd(record);
  Audit(record);
  record.status = told;
  if (exporter_ != nullptr) exporter_->Add(record);
  // The node that does it shows it.
  if (wire::IsElsewhere(record.status)) return;
  slow_.Add(record);
  feed_.Tell(record);
  live_.End(std::move(record));
}

absl::Status Telemetry::WhatHappened(const StageRecord& record) const {
  const absl::Status& told = record.status;
  if (!record.by_operator || !absl::IsNotFound(told) || is_hidden_ == nullptr) return told;
  const auto [owner, name] = engine::Named(record.tenant, record.subject);
  if (!is_hidden_(record.tenant, owner, name)) return told;
  return absl::PermissionDeniedError(
      fmt::format("matrix '{}' of tenant '{}' is not shared with tenant '{}', who was told that "
                  "there is none",
                  name, owner, record.tenant));
}

void Telemetry::Audit(const StageRecord& record) {
  if (audit_ == nullptr || (!IsNotable(record.op) && record.keeps.empty())) return;
  audit_->Write({.tenant = record.tenant,
                 .caller = record.caller,
                 .operation = std::string(Name(record.op)),
                 .name = record.subject,
                 .result = record.keeps,
                 .status = record.status,
                 .request_id = record.id});
}

void Telemetry::Refused(std::optional<Op> op, const Caller* caller, std::string from,
                        const std::string& id, const absl::Status& why, std::string subject) {
  Cut(subject, kMaxSubject);
  RefusalLine refusal = {.request_id = id, .subject = subject, .from = from, .why = why};
  if (op.has_value()) refusal.op = Name(*op);
  if (caller != nullptr) {
    refusal.tenant = caller->tenant;
    refusal.caller = caller->name;
  }
  LogRefusal(refusal, IsDenied(why) ? denied_limit_ : over_quota_limit_);
  if (!op.has_value()) return;
  if (caller != nullptr) metrics_.CountEnd(*op, caller->tenant, why);
  if (audit_ == nullptr || !IsNotable(*op)) return;
  AuditEntry entry;
  if (caller != nullptr) {
    entry.tenant = caller->tenant;
    entry.caller = caller->name;
  }
  entry.operation = std::string(Name(*op));
  entry.name = std::move(subject);
  entry.status = why;
  entry.request_id = id;
  entry.from = std::move(from);
  audit_->Write(std::move(entry));
}

Telemetry::~Telemetry() {
  for (int code = 0; code < kCodes; ++code) {
    int64_t suppressed = 0;
    for (const CodeLimit& limit : limits_[static_cast<size_t>(code)]) {
      suppressed += limit.suppressed();
    }
    if (suppressed == 0) continue;
    Log(LogLevel::kInfo, "requests not logged",
        {{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))},
         {"count", suppressed}});
  }
  for (int op = 0; op < kOps; ++op) {
    const int64_t suppressed = change_limits_[static_cast<size_t>(op)].suppressed();
    if (suppressed == 0) continue;
    Log(LogLevel::kInfo, "requests not logged",
        {{"op", std::string(Name(static_cast<Op>(op)))}, {"code", "OK"}, {"count", suppressed}});
  }
}

/// Whoever asked for debugging gets every request; else a client that is refused a thousand times a
/// second does not fill the disk, nor hide what else went wrong.
void Telemetry::LogEnd(const StageRecord& record) {
  const LogLevel level = LevelOf(record);
  if (!LogEnabled(level)) return;
  int64_t suppressed = 0;
  if (!LogEnabled(LogLevel::kDebug)) {
    const auto code = std::min(static_cast<int>(record.status.code()), kCodes - 1);
    const size_t tenant = std::hash<std::string>()(record.tenant) % kTenants;
    // Who replaces values a thousand times a second hides no upload, nor who fails so often
    // another tenant's failure.
    LogLimit& limit = record.status.ok() ? change_limits_[static_cast<size_t>(record.op)]
                                         : limits_[static_cast<size_t>(code)][tenant];
    const std::optional<int64_t> admitted = limit.Admit();
    if (!admitted.has_value()) return;
    suppressed = *admitted;
  }
  LogRequest(level, "request", record, suppressed);
}

bool Telemetry::LogSlow(const StageRecord& record) {
  if (slow_ns_ == 0 || record.total_ns < slow_ns_ || !LogEnabled(LogLevel::kWarn)) return false;
  if (IsStatusCall(record.op) || !SlowRequests::Counts(record.op)) return false;
  const std::optional<int64_t> admitted = slow_limit_.Admit();
  if (admitted.has_value()) LogRequest(LogLevel::kWarn, "slow request", record, *admitted);
  return admitted.has_value();
}

}  // namespace sparsed::server
