// Admission, queues and worker slots: runs calls on the devices.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/catalog/catalog.h"
#include "engine/catalog/dense_catalog.h"
#include "engine/execution/call.h"
#include "engine/execution/fair_queue.h"
#include "engine/execution/tenant_seconds.h"
#include "engine/memory/budget.h"
#include "engine/observer.h"
#include "kernels/device_id.h"

namespace sparsed::engine {

class Attachment;
class Backend;
class DerivedPatterns;
class Device;
class GpuBackend;
struct WorkerSlot;
struct PatternProduct;

inline constexpr auto kNever = std::chrono::steady_clock::time_point::max();

struct ExecutorOptions {
  int slots = 1;             ///< calls that run at once
  int threads_per_slot = 1;  ///< OpenMP team of each
  int max_queued = 4096;     ///< calls waiting; more is RESOURCE_EXHAUSTED
  /// For which a narrow SpMM that a worker slot has taken may wait for others that are arriving, to
  /// be run as one with them; 0: each runs by itself, whoever waits.
  std::chrono::microseconds batch_wait{0};
  int64_t block_credit_bytes =
      32 << 20;  ///< unreleased block bytes after which a streamed SpGEMM pauses
};

/// How requests came to the worker slots of a device: first short ones, then long ones.
struct SlotWaits {
  std::array<int64_t, 2> turns{};   ///< a long one has one for each piece, block of rows and so on
  std::array<double, 2> seconds{};  ///< that they waited before
  /// Of those, for trials of autotuning, and for other tenants' requests: by what the worker slots
  /// did meanwhile.
  double for_trials = 0, for_others = 0;
  int64_t beside = 0;  ///< turns of short ones that began while a long one had another worker slot
};

/// Worker slots: owner threads with a fixed OpenMP team each. Tenants have device seconds by their
/// weights; within a tenant the highest priority goes first, then who came first, but that short
/// calls pass long ones and calls which can be joined run with the first of them (FairQueue). Long
/// calls give way: on the CPU products after some milliseconds, SpGEMM after each row block, chains
/// between steps. On a GPU short calls have a worker slot and a priority of their own (Scheduler).
/// Thread-safe.
class Executor {
 public:
  /// The GPUs, if there are any, take every product that they have a kernel and room for.
  Executor(const ExecutorOptions& options, Catalog& catalog, DenseCatalog& dense, Budget& budget,
           Observer& observer, const std::vector<Device*>& gpus = {});
  ~Executor();
  /// Ends what waits with UNAVAILABLE, waits for what runs, refuses what comes. Idempotent.
  void Close();

  /// Look up, check, reserve; none of them blocks. If one fails the sink is not used.
  absl::StatusOr<std::shared_ptr<Call>> Begin(SpmmSpec spec, std::shared_ptr<ResultSink> sink);
  absl::StatusOr<std::shared_ptr<Call>> Begin(SddmmSpec spec, std::shared_ptr<ResultSink> sink);
  absl::StatusOr<std::shared_ptr<Call>> Begin(SpgemmSpec spec, std::shared_ptr<ResultSink> sink);
  absl::StatusOr<std::shared_ptr<Call>> Begin(ChainSpec spec, std::shared_ptr<ResultSink> sink);

  /// For a caller that maps what serves a matrix, and runs it itself: on the GPU with that uuid
  /// (cuda::DeviceUuid), or on the CPU, if it is empty. NOT_FOUND; FAILED_PRECONDITION if the GPU
  /// is not one of these; RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<Attachment>> Attach(std::string_view tenant,
                                                     std::string_view matrix,
                                                     std::string_view gpu = {});
  /// Tells those attached that the name stands for something else now.
  void MatrixChanged(std::string_view tenant, std::string_view matrix);
  int64_t attachments() const;

  /// Runs `work` on a worker slot of the device once no call waits (and, on the GPU, none runs),
  /// and blocks until it has run. For trials: one kernel run a time, so that a request waits for
  /// one kernel at most; on a GPU a short one waits a millisecond, and goes beside it then. Where
  /// calls never end it takes a turn from them, after a moment and so that such turns are a
  /// twentieth of the worker slots' time at most (Turns). CANCELLED if `stop` becomes true first,
  /// or the executor is closing; DEADLINE_EXCEEDED if it has not begun by `until`.
  absl::Status RunIdle(DeviceId device, const std::function<void(WorkerSlot&)>& work,
                       const std::atomic<bool>* stop,
                       std::chrono::steady_clock::time_point until = kNever);
  /// The same of work in pieces: calls `piece` until it returns true, each time as RunIdle does,
  /// after calls that came meanwhile. CANCELLED and DEADLINE_EXCEEDED between two pieces, too.
  absl::Status RunIdlePieces(DeviceId device, const std::function<bool(WorkerSlot&)>& piece,
                             const std::atomic<bool>* stop,
                             std::chrono::steady_clock::time_point until = kNever);
  /// True while somebody waits for a worker slot of the device: a piece had better end soon. Lives
  /// as long as this.
  const std::atomic<bool>* wanted(DeviceId device) const;

  /// Called, outside any lock, when a request's signature had no plan of its own. Set before the
  /// first call.
  std::function<void(const MatrixLease&, const Problem&)> on_unknown_signature;
  /// Likewise when a matrix is first multiplied with rows that so lie on several GPUs, whose parts
  /// want a layout. True: it will be built in the background, and plain CSR serves until then.
  std::function<bool(const MatrixLease&, const Problem&, const std::vector<int64_t>& bounds)>
      on_new_rows;
  /// Likewise when a pair of patterns that were to be multiplied, without a mask, had none.
  std::function<void(const PatternProduct&, const Problem&)> on_unknown_pair;

  /// Tenants' parts of each device, in the place of those before; all equal until this is called.
  /// For what runs and waits, too.
  void SetWeights(const TenantWeights& weights);
  /// Worker slots' seconds by tenant, for metrics.
  TenantSeconds tenant_seconds(DeviceId device) const;

  int64_t in_flight() const;                   ///< begun and not ended
  int running(DeviceId device) const;          ///< on worker slots just now, trials included
  int64_t queue_depth(DeviceId device) const;  ///< waiting for a worker slot
  SlotWaits slot_waits(DeviceId device) const;
  double busy_seconds(DeviceId device) const;  ///< worker slots in kernels, trials included
  /// Of a device that there is.
  Backend& backend(DeviceId device) const;
  /// What plans and measurements hold for: the processor or the cards, which are alike, by name and
  /// driver, and the kernels of this build. Empty: there is no such device here.
  const std::string& model(DeviceKind kind) const;
  /// Measures the CPU's rate again, on an idle worker slot, if others computed when it was
  /// measured, a minute ago or more. Errors as RunIdle's; without free memory for it, another time.
  absl::Status SettleMemoryRate(const std::atomic<bool>* stop,
                                std::chrono::steady_clock::time_point until = kNever);
  /// The CPU's rate was measured while nobody else computed, or a calibration says it.
  bool memory_rate_is_sure() const;
  DerivedPatterns& derived() const;  ///< what SpGEMM keeps for its next requests
  const std::deque<GpuBackend>& gpus() const;
  /// The GPU that serves and has the fewest calls; null: none does.
  GpuBackend* IdlestGpu() const;
  /// The GPU with that uuid. FAILED_PRECONDITION if it is none of these; UNAVAILABLE if it is lost.
  absl::StatusOr<GpuBackend*> GpuOf(std::string_view uuid) const;
  DeviceKind first_choice() const;  ///< where calls run that find room there
  const ExecutorOptions& options() const;

  class Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace sparsed::engine
