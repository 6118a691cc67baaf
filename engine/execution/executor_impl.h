// What calls share: the modules around them, and how a kernel is found for a problem.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/execution/attachments.h"
#include "engine/execution/cpu_backend.h"
#include "engine/execution/derived_patterns.h"
#include "engine/execution/executor.h"
#include "engine/execution/gpu_backend.h"
#include "engine/execution/scheduler.h"
#include "engine/memory/no_room.h"
#include "kernels/bound_run.h"

namespace sparsed::engine {

class Executor::Impl {
 public:
  Impl(const ExecutorOptions& options, Catalog& catalog, DenseCatalog& dense, Budget& budget,
       Observer& observer, const std::vector<Device*>& devices,
       const std::function<void(const MatrixLease&, const Problem&)>& on_unknown_signature,
       const std::function<bool(const MatrixLease&, const Problem&, const std::vector<int64_t>&)>&
           on_new_rows,
       const std::function<void(const PatternProduct&, const Problem&)>& on_unknown_pair);

  Catalog& catalog;
  DenseCatalog& dense;
  Budget& budget;
  Observer& observer;
  const std::shared_ptr<DerivedPatterns> derived;
  Exports exports;
  Attachments attachments;
  CpuBackend cpu;
  /// One for each GPU.
  std::deque<GpuBackend> gpus;
  /// Where calls run if there is room.
  DeviceKind first_choice() const { return gpus.empty() ? DeviceKind::kCpu : DeviceKind::kCuda; }
  /// Of a device that there is.
  Backend& backend(DeviceId device);
  /// The GPU with that uuid; the CPU, if it is empty. FAILED_PRECONDITION.
  absl::StatusOr<DeviceId> DeviceOf(std::string_view uuid);
  /// Null if it is the CPU.
  GpuBackend* gpu(DeviceId device);
  /// Where a call on `layout` (null: it is not in memory) with these buffers begins: the GPU that
  /// is given, if it serves, else the one that alone has most of them, else one that has copies of
  /// what is needed unless others have fewer calls; the CPU, if there are no GPUs. UNAVAILABLE if
  /// all of them are lost.
  absl::StatusOr<Backend*> Place(const std::optional<DeviceId>& given,
                                 const std::shared_ptr<const Layout>& layout,
                                 std::span<const std::shared_ptr<LazyArray>> held);
  /// Layouts of plans, each on the device that a call was to run on.
  NoRoom no_room;
  const std::function<void(const MatrixLease&, const Problem&)>& on_unknown_signature;
  const std::function<bool(const MatrixLease&, const Problem&, const std::vector<int64_t>&)>&
      on_new_rows;
  const std::function<void(const PatternProduct&, const Problem&)>& on_unknown_pair;
  const std::shared_ptr<Scheduler> scheduler;
  /// The parts of a request wait on worker slots for each other: of one request at a time, lest two
  /// wait for each other's.
  std::atomic<bool> parts_meet = false;

  /// What was stored of `damaged`'s layout is damaged: plain CSR serves in its place, and requests
  /// ask for new trials.
  void LayoutIsDamaged(Pattern& pattern, const ActivePlan& damaged, const absl::Status& status);

  /// Tells the observer. `bytes` is the least that the kernel had to move.
  void RecordRun(DeviceId device, Operation operation, std::string_view kernel,
                 uint64_t nanoseconds, double flops, double bytes);
  /// The GPU that serves and has the fewest calls; null: none does.
  GpuBackend* IdlestGpu();

 private:
  std::vector<Backend*> backends();

  /// Where the next call or preparation goes if nothing else counts.
  std::atomic<size_t> next_gpu_ = 0;
};

/// Whose requests are that the preparation makes to time them. They are no use of a plan, and have
/// no signature tried. No tenant has such a name.
inline constexpr std::string_view kTrialTenant = "(trials)";
inline bool IsTrial(std::string_view tenant) { return tenant == kTrialTenant; }

/// What serves a problem on a matrix: what runs and on what.
struct Resolved {
  std::optional<LayoutKernel> kernel;
  std::shared_ptr<const Layout> layout;  ///< in host memory
  std::shared_ptr<LazyLayout> planned;   ///< what the plan has it from; null: plain CSR
  Problem problem;                       ///< of the matrix
  std::string text;                      ///< "<pipeline> / <kernel>"
};

/// Takes the plan that was found if its layout is to be had, and has not been without room on that
/// device just now, and its kernel serves this very problem, else plain CSR with the first kernel
/// that does. Reads the disk if they are not in memory. `is_trial`: it is for none of the callers.
absl::StatusOr<Resolved> Resolve(Executor::Impl& impl, DeviceId device, const MatrixLease& matrix,
                                 const Problem& problem, const PlanTable::Found& found,
                                 bool is_trial = false);
/// Where what was resolved found no room on the device: plain CSR, which later requests take at
/// once for a while. False if it was that, or there is none.
bool FallBackToPlain(Executor::Impl& impl, DeviceId device, const MatrixLease& matrix,
                     Resolved& resolved);
/// Plain CSR, whatever the plan.
absl::StatusOr<Resolved> ResolvePlain(const MatrixLease& matrix, const Problem& problem);

/// How a step of a call on `backend` ended; if it says that the device is lost, so it is from now
/// on. What stopped the call, or the disk, says nothing of the device.
absl::Status CheckedOn(Backend& backend, const Token& token, absl::Status status);

// What reads from the disk what is not in memory; null if nothing is to be read.
/// Of a matrix, plain CSR and values.
Job::Loader LoaderOf(const MatrixLease& matrix);
/// Of a matrix, what the plan that was found for a device needs, as Resolve takes it.
Job::Loader LoaderOf(const Executor::Impl& impl, DeviceId device, const MatrixLease& matrix,
                     const PlanTable::Found& found);
Job::Loader LoaderOf(const std::shared_ptr<LazyArray>& array);
/// All of them, of which some may be null.
Job::Loader LoaderOf(std::vector<Job::Loader> loaders);

}  // namespace sparsed::engine
