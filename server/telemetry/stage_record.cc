#include "server/telemetry/stage_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "proto/wire/status_details.h"

namespace sparsed::server {
namespace {

constexpr std::array<std::string_view, kOps> kNames = {
    "spmm",
    "sddmm",
    "spgemm",
    "chain",
    "upload",
    "update_values",
    "download",
    "get",
    "list",
    "watch",
    "list_measurements",
    "delete",
    "put_buffer",
    "get_buffer",
    "delete_buffer",
    "list_buffers",
    "renew_buffer",
    "get_server_info",
    "get_stats",
    "explain",
    "prepare",
    "share",
    "list_tenants",
    "rename",
    "copy",
    "list_slow",
    "save_snapshot",
    "watch_requests",
    "list_models",
    "put_model",
    "activate_model",
    "rollback_model",
    "remove_model",
    "calibrate",
    "list_nodes",
    "drain_node",
    "forget_node",
    "copy_here",
    "fetch",
    "fetch_rows",
    "make_sharded",
};

}  // namespace

std::string_view Name(Op op) { return kNames[static_cast<size_t>(op)]; }

std::optional<Op> ParseOp(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Op>(found - kNames.begin());
}

std::string OpNames() { return fmt::format("{}", fmt::join(kNames, ", ")); }

bool IsStatusCall(Op op) {
  switch (op) {
    case Op::kGet:
    case Op::kList:
    case Op::kWatch:
    case Op::kListMeasurements:
    case Op::kListBuffers:
    case Op::kGetServerInfo:
    case Op::kGetStats:
    case Op::kListTenants:
    case Op::kListSlow:
    case Op::kWatchRequests:
    case Op::kListModels:
    case Op::kListNodes:
      return true;
    default:
      return false;
  }
}

std::string_view KindOf(Op op) { return IsStatusCall(op) ? "status" : "work"; }

std::string_view Name(Phase phase) {
  constexpr std::array<std::string_view, kPhases> kPhaseNames = {
      "queue", "receive", "setup", "to_device", "kernel", "from_device", "send"};
  return kPhaseNames[static_cast<size_t>(phase)];
}

std::string CodeOf(const absl::Status& status) {
  return wire::IsElsewhere(status) ? "REDIRECTED" : absl::StatusCodeToString(status.code());
}

ErrorCause CauseOf(const absl::Status& status) {
  if (wire::IsElsewhere(status)) return ErrorCause::kNone;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ErrorCause::kNone;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
      return ErrorCause::kCapacity;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return ErrorCause::kServer;
    default:
      return ErrorCause::kCaller;
  }
}

std::string_view Name(ErrorCause cause) {
  constexpr std::array<std::string_view, 4> kCauses = {"", "caller", "capacity", "server"};
  return kCauses[static_cast<size_t>(cause)];
}

uint64_t BytesIn(const StageRecord& record) {
  return record.stream_bytes_in + record.held_bytes_in + record.shared_bytes_in +
         record.gpu_bytes_in;
}

uint64_t BytesOut(const StageRecord& record) {
  return record.stream_bytes_out + record.held_bytes_out + record.shared_bytes_out +
         record.gpu_bytes_out;
}

std::string_view TransportOf(const StageRecord& record) {
  if (record.ring) return "ring";
  if (record.gpu_bytes_in + record.gpu_bytes_out > 0) return "shared_device";
  if (record.shared_bytes_in + record.shared_bytes_out > 0) return "shared_host";
  if (record.stream_bytes_in + record.stream_bytes_out > 0) return "stream";
  if (record.held_bytes_in + record.held_bytes_out > 0) return "held";
  return "";
}

}  // namespace sparsed::server
