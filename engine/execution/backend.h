// A device as calls and trials use it: where operands, results and workspaces of its kernels are,
// its worker slots, and how a kernel is run and timed there. The CPU is one of them, a GPU another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/catalog/matrix.h"
#include "engine/execution/placed_dense.h"
#include "engine/memory/budget.h"
#include "engine/memory/lazy_array.h"
#include "engine/planning/calibration.h"
#include "kernels/array.h"
#include "kernels/attention.h"
#include "kernels/bound_run.h"
#include "kernels/device_id.h"
#include "kernels/elementwise.h"
#include "kernels/layout.h"
#include "kernels/nonzero_passes.h"
#include "kernels/problem.h"
#include "kernels/row_products.h"

namespace sparsed::engine {

class Backend;
struct DeviceSlot;

/// A thread's own part of a device, and what belongs to it. OpenMP keeps one team for each thread
/// that opens parallel regions, so request threads never grow teams.
struct WorkerSlot {
  Backend* backend = nullptr;
  int threads = 1;            ///< OpenMP team; 1 on a GPU
  DeviceSlot* gpu = nullptr;  ///< a GPU's streams
  Buffer workspace = {};      ///< the backend's memory; grows to what a kernel asks for
  /// On a GPU, kernels and copies within the device are queued and nobody waits for them: whoever
  /// set this keeps all that they read and write until Backend::Settle.
  bool queues = false;
  /// Rows of other GPUs are on their way, beside what is queued: see Backend::AwaitFetched.
  bool fetches = false;
  /// Of several of a GPU: short jobs alone run on it, before what runs on the others.
  bool express = false;
};

/// A point in what a worker slot does, one thing after the other.
class Moment {
 public:
  virtual ~Moment() = default;
  /// Waits until all before it is done.
  virtual absl::Status Await() const = 0;
  /// Of two of one worker slot that were awaited.
  virtual absl::StatusOr<double> MillisecondsSince(const Moment& begin) const = 0;
};

/// A sparse matrix on a device.
struct PlacedSparse {
  std::shared_ptr<const Layout> layout;
  std::shared_ptr<const Array> values;  ///< in the layout's order; null: not asked for
};

/// What a run takes besides its worker slot.
struct RunOptions {
  Buffer& workspace;     ///< grown as needed
  MemorySource& memory;  ///< the workspace's
  const std::atomic<bool>* stop = nullptr;
  /// On a GPU, queued behind the kernel and not in its time.
  std::function<absl::Status()> behind = nullptr;
  /// Of a run that may be cut: on the CPU, of a kernel that knows it. The workspace is its own
  /// then.
  Progress* progress = nullptr;
};

/// Thread-safe, but for worker slots: a slot is used by one thread at a time. Errors of all:
/// RESOURCE_EXHAUSTED without room there, UNAVAILABLE once the device is lost, CANCELLED.
class Backend {
 public:
  /// `threads`: of a CPU's worker slot.
  Backend(DeviceId id, std::string model, int threads = 0)
      : id_(id),
        model_(std::move(model)),
        threads_(threads),
        constants_(DefaultConstants(id.kind, threads)) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  DeviceId id() const { return id_; }
  /// What plans, measurements and calibrations hold for: the device by name and driver, or the
  /// processor and the threads of a worker slot, and the kernels of this build.
  const std::string& model() const { return model_; }
  /// OK, or why it serves no more until a restart.
  virtual absl::Status status() const { return absl::OkStatus(); }
  /// Returns `status`; if it says that the device is lost, so it is from now on.
  virtual absl::Status Checked(absl::Status status) { return status; }
  /// Bytes that it copies, read and written both counted: the roofline's denominator.
  virtual double bytes_per_second() const = 0;
  virtual int64_t cache_bytes() const = 0;  ///< of its last level cache
  /// A kernel took `milliseconds` to move at least so many bytes: the rate is no less from now on,
  /// unless the cache may have held a good part of them.
  void SawMoved(double bytes, double milliseconds) {
    constexpr double kOfCache = 8;
    if (milliseconds <= 0 || bytes < kOfCache * static_cast<double>(cache_bytes())) return;
    RaiseRate(bytes / milliseconds * 1e3);
  }
  /// What decisions take for its rates and times: of its calibration, or built in.
  DeviceConstants constants() const {
    const MutexLock lock(constants_mutex_);
    return constants_;
  }
  /// None: its constants are those that are built in.
  std::optional<Calibration> calibration() const {
    const MutexLock lock(constants_mutex_);
    return calibration_;
  }
  /// From now on; of this model.
  void Use(Calibration calibration);
  /// Where its kernels read and write.
  virtual MemorySource& memory(MemoryUse use) = 0;
  /// The same, which `owner` pays for.
  virtual MemorySource& MemoryFor(MemoryUse use, MemoryOwner& owner) = 0;

  /// What a scheduler runs jobs on; those of a GPU exist once.
  virtual std::vector<WorkerSlot> NewWorkerSlots() = 0;
  /// What trials run on, whichever worker slot's thread that is; none: on the thread's own.
  virtual std::optional<WorkerSlot> TrialSlot() { return std::nullopt; }
  /// What a worker slot keeps of its workspace when a job has ended.
  virtual size_t kept_workspace() const = 0;
  /// Runs the loop of a worker slot's thread with the device as the thread's own.
  virtual void OnThread(const std::function<void()>& loop) { loop(); }
  /// Called now and then: what was on its way here may go. `rests`: nobody used the device since
  /// the last time.
  virtual void Tidy(bool /*rests*/) {}

  /// S's values as Place takes them, in host memory: in the layout's order on the CPU, in CSR's for
  /// a GPU, which orders them there. `memory` for those that the matrix does not keep.
  virtual absl::StatusOr<Array> ValuesFor(const Matrix& matrix, const Layout& layout,
                                          MemorySource& memory, int threads) = 0;
  /// `values` may be null: the pattern alone. `host`: memory to order values in where the device
  /// has no room for that.
  virtual absl::StatusOr<PlacedSparse> Place(const std::shared_ptr<const Layout>& layout,
                                             const Array* values, MemorySource& host) = 0;

  /// One value a nonzero, in CSR's order and one after the other, in that of a placed layout, which
  /// the worker slot's kernels may use from then on; new ones take the device's `memory`.
  virtual absl::StatusOr<std::shared_ptr<const Array>> OrderValues(const PlacedDense& csr_values,
                                                                   const Layout& layout,
                                                                   MemorySource& memory,
                                                                   WorkerSlot& slot) = 0;

  /// A dense matrix that is held by name: stays there for the next call, if there is room.
  virtual absl::StatusOr<PlacedDense> PlaceHeld(const std::shared_ptr<LazyArray>& held,
                                                const DenseShape& shape) = 0;
  /// One that is in host memory.
  virtual absl::StatusOr<PlacedDense> Bring(Array host, const DenseShape& shape,
                                            WorkerSlot& slot) = 0;
  /// Memory for one, from the device's `memory`; gaps between its rows, which nobody asked for, are
  /// zeros.
  virtual absl::StatusOr<PlacedDense> NewDense(std::string_view name, const DenseShape& shape,
                                               MemorySource& memory, WorkerSlot& slot) = 0;
  /// Elements of each into another that is of as many rows and columns.
  virtual absl::Status CopyDense(std::span<const DenseCopy> copies, WorkerSlot& slot) = 0;
  absl::Status CopyDense(const PlacedDense& from, const PlacedDense& to, WorkerSlot& slot) {
    const DenseCopy copy{from, to};
    return CopyDense({&copy, 1}, slot);
  }
  /// Indices that belong to a matrix: stay there for the next call, if there is room.
  virtual absl::StatusOr<std::shared_ptr<const Array>> PlaceIndices(
      const std::shared_ptr<LazyArray>& indices) = 0;
  /// Row order[i] of `to` is row i of `from`; `order` (i64, placed) may be null: row i.
  virtual absl::Status Scatter(const PlacedDense& from, const Array* order, const PlacedDense& to,
                               WorkerSlot& slot) = 0;
  /// Row order[i] of `from` for each i; `order` (i64) is placed. The new one takes the device's
  /// `memory`.
  virtual absl::StatusOr<PlacedDense> Gather(const PlacedDense& from, const Array& order,
                                             MemorySource& memory, WorkerSlot& slot) = 0;
  /// As WeightedSum; terms and the result are placed.
  virtual absl::Status Sum(std::span<const WeightedTerm> terms, const PlacedDense& to,
                           WorkerSlot& slot) = 0;
  /// As RowSoftmax (`gradient` null) and RowSoftmaxGradient (y and its gradient), of nonzeros of a
  /// placed CSR, in its order.
  virtual absl::Status Softmax(const Layout& csr, double scale, const PlacedDense& from,
                               const PlacedDense* gradient, const PlacedDense& to,
                               WorkerSlot& slot) = 0;
  // As the functions of these names (kernels/row_products.h, kernels/nonzero_passes.h,
  // kernels/attention.h); all that they read and write is placed. UNIMPLEMENTED of what a GPU has
  // no kernel for. Who gives options may cut it, on the CPU.
  virtual absl::Status ComputeRowProducts(const RowProducts& products, ElementType type,
                                          WorkerSlot& slot) = 0;
  virtual absl::Status ComputeHeadDots(const HeadDots& dots, ElementType type,
                                       WorkerSlot& slot) = 0;
  virtual absl::Status ScaleNonzeros(const NonzeroScaling& scaling, ElementType type,
                                     WorkerSlot& slot) = 0;
  virtual absl::Status TotalNonzeros(const NonzeroTotals& totals, ElementType type,
                                     WorkerSlot& slot) = 0;
  virtual absl::Status ComputeEdgeAttention(const EdgeAttention& attention, ElementType type,
                                            WorkerSlot& slot, const RunOptions& options) = 0;
  virtual absl::Status ComputeEdgeAttentionGradient(const EdgeAttentionGradient& gradient,
                                                    ElementType type, WorkerSlot& slot,
                                                    const RunOptions& options) = 0;
  /// Fills `to`, there, with `period` (host memory, at most as long) over and over.
  virtual absl::Status Repeat(const Array& period, Array& to, WorkerSlot& slot) = 0;
  /// Queues zeros behind the rows of a padded one: what kernels left there, of infinities say, is
  /// in no later product.
  virtual absl::Status ClearPadding(const PlacedDense& /*dense*/, WorkerSlot& /*slot*/) {
    return absl::OkStatus();
  }
  /// A result as a buffer of `shape`, which stays here until somebody needs it elsewhere: then
  /// it takes `memory` of the host, which outlives it.
  virtual std::shared_ptr<LazyArray> Hold(PlacedDense result, const DenseShape& shape,
                                          MemorySource& memory) = 0;
  /// A result to the host, in `shape` and `memory` of the host: `arrived` is told, in order, how
  /// many bytes of `host` there are.
  using Arrived = std::function<void(const Array& host, size_t bytes)>;
  virtual absl::Status Fetch(const PlacedDense& result, const DenseShape& shape,
                             MemorySource& memory, WorkerSlot& slot, const Arrived& arrived) = 0;
  /// Likewise, into an array of `shape`, whose gaps stay as they are.
  virtual absl::Status FetchInto(const PlacedDense& result, const DenseShape& shape, Array& into,
                                 WorkerSlot& slot) = 0;

  /// Runs it on the worker slot and waits, unless that queues. `*milliseconds`: the kernel's, also
  /// of one that failed where that is known; of one that is queued, nothing.
  virtual absl::Status Run(WorkerSlot& slot, const BoundRun& run, const RunOptions& options,
                           double* milliseconds) = 0;
  /// Now, for who measures what the worker slot does next, or did.
  virtual absl::StatusOr<std::unique_ptr<Moment>> Now(WorkerSlot& slot) = 0;
  /// Waits for what is queued, or on its way from other GPUs.
  virtual absl::Status Settle(WorkerSlot& slot) = 0;
  /// What is queued from now on comes after all that is on its way from other GPUs.
  virtual absl::Status AwaitFetched(WorkerSlot& /*slot*/) { return absl::OkStatus(); }
  /// The same of any work. A context has the worker slot's threads or stream, and no workspace.
  virtual Context ContextOf(WorkerSlot& slot, const std::atomic<bool>* stop) const = 0;
  virtual absl::Status Timed(WorkerSlot& slot, const std::function<absl::Status()>& work,
                             double* milliseconds) = 0;
  /// Kernels read and write what is in host memory.
  virtual bool shares_host_memory() const = 0;
  /// Copies that are there when it returns; nothing needs them if memory is shared.
  virtual absl::Status CopyIn(WorkerSlot& slot, void* to, const void* from, size_t bytes) = 0;
  virtual absl::Status CopyOut(WorkerSlot& slot, void* to, const void* from, size_t bytes) = 0;

 private:
  /// bytes_per_second() is not below this any more.
  virtual void RaiseRate(double bytes_per_second) = 0;
  /// constants() changed.
  virtual void OnConstants(const DeviceConstants& /*constants*/) {}

  const DeviceId id_;
  const std::string model_;
  const int threads_;
  mutable Mutex constants_mutex_;
  DeviceConstants constants_ ABSL_GUARDED_BY(constants_mutex_);
  std::optional<Calibration> calibration_ ABSL_GUARDED_BY(constants_mutex_);
};

}  // namespace sparsed::engine
