// One record a request; metrics, the reply's timings and the log all read this.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/telemetry/call_origin.h"

namespace sparsed::server {

/// Every RPC.
enum class Op : uint8_t {
  kSpmm,
  kSddmm,
  kSpgemm,
  kChain,
  kUpload,
  kUpdateValues,
  kDownload,
  kGet,
  kList,
  kWatch,
  kListMeasurements,
  kDelete,
  kPutBuffer,
  kGetBuffer,
  kDeleteBuffer,
  kListBuffers,
  kRenewBuffer,
  kGetServerInfo,
  kGetStats,
  kExplain,
  kPrepare,
  kShare,
  kListTenants,
  kRename,
  kCopy,
  kListSlow,
  kSaveSnapshot,
  kWatchRequests,
  kListModels,
  kPutModel,
  kActivateModel,
  kRollbackModel,
  kRemoveModel,
  kCalibrate,
  kListNodes,
  kDrainNode,
  kForgetNode,
  kCopyHere,
  kFetch,
  kFetchRows,
  kMakeSharded,
};
inline constexpr int kOps = 41;
/// "spmm", "upload", ...: the metrics' label `op`.
std::string_view Name(Op op);
/// None of that name: nothing.
std::optional<Op> ParseOp(std::string_view name);
/// "spmm, sddmm, spgemm, ...": all of them.
std::string OpNames();
/// Whether it only asks what the server knows, as `sparsectl` and dashboards do all the time. The
/// one list of these: what shows requests and their times shows them apart, or not at all.
bool IsStatusCall(Op op);
/// "status" of these, "work" of all others: the metrics' label `kind`.
std::string_view KindOf(Op op);

enum class Phase : uint8_t { kQueue, kReceive, kSetup, kToDevice, kKernel, kFromDevice, kSend };
inline constexpr int kPhases = 7;
/// "queue", "receive", "to_device", ...: the metrics' label `phase`.
std::string_view Name(Phase phase);

struct StageRecord {
  using Clock = std::chrono::steady_clock;

  Op op = Op::kSpmm;
  std::string tenant;
  std::string caller;  ///< as Caller::name; for logs only
  bool by_operator = false;
  /// What its caller knows it by: CallOrigin's, of a compute stream's with "/" and its own id.
  std::string id;
  TraceContext trace;
  std::string keeps;        ///< what its result is called, if that stays on the server
  std::string subject;      ///< the matrix or buffer that it is about; for log and status page only
  std::string plan;         ///< of a product: "<pipeline> / <kernel>"
  int64_t k = 0;            ///< columns of the dense operand; 0: it has none
  int64_t batch = 1;        ///< requests that ran as one with it, itself counted
  bool transposed = false;  ///< SpMM with the transposed matrix
  /// What else tells it from others of its operation: "transpose beta=1", "right=T", "7 steps".
  std::string parameters;
  Clock::time_point begun = Clock::now();
  std::array<uint64_t, kPhases> phase_ns = {};
  /// Of its queue phase, for trials of autotuning, and for other tenants' requests.
  uint64_t queue_trials_ns = 0, queue_others_ns = 0;
  uint64_t total_ns = 0;
  uint64_t received_bytes = 0;                           ///< array bytes that chunks brought
  uint64_t stream_bytes_in = 0, stream_bytes_out = 0;    ///< array bytes on the wire
  uint64_t carried_bytes_in = 0, carried_bytes_out = 0;  ///< of these, on carriers
  uint64_t held_bytes_in = 0, held_bytes_out = 0;        ///< of buffers, into held results
  uint64_t shared_bytes_in = 0, shared_bytes_out = 0;    ///< in host memory shared with the caller
  uint64_t gpu_bytes_in = 0, gpu_bytes_out = 0;          ///< in a GPU's, shared likewise
  bool ring = false;                                     ///< its messages came and went through one
  absl::Status status;

  uint64_t& operator[](Phase phase) { return phase_ns[static_cast<size_t>(phase)]; }
  uint64_t operator[](Phase phase) const { return phase_ns[static_cast<size_t>(phase)]; }
};

/// Whose doing it is that a request failed.
enum class ErrorCause : uint8_t {
  kNone,      ///< it did not
  kCaller,    ///< it asked for what is not there, not allowed or malformed, or left
  kCapacity,  ///< there was no room, or not enough time
  kServer,
};
/// Who is only told whom to ask instead met no error.
ErrorCause CauseOf(const absl::Status& status);
/// The metrics' label `code`: google.rpc's name, or "REDIRECTED" of those.
std::string CodeOf(const absl::Status& status);
/// "caller", "capacity", "server": the metrics' label `cause`; "" of none.
std::string_view Name(ErrorCause cause);

inline constexpr int kTransports = 5;
inline constexpr std::array<std::string_view, kTransports> kTransportNames = {
    "ring", "shared_device", "shared_host", "stream", "held"};
/// How most of its bytes came and went, one of these; empty: it had none.
std::string_view TransportOf(const StageRecord& record);
/// Bytes of arrays, by whatever way.
uint64_t BytesIn(const StageRecord& record);
uint64_t BytesOut(const StageRecord& record);

/// Nanoseconds since `begin`.
inline uint64_t NanosecondsSince(StageRecord::Clock::time_point begin) {
  const auto elapsed = StageRecord::Clock::now() - begin;
  return static_cast<uint64_t>(std::chrono::nanoseconds(elapsed).count());
}

}  // namespace sparsed::server
