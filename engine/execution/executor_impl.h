// What calls share: the rooms around them, and the way from a problem to a kernel.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/execution/derived_patterns.h"
#include "engine/execution/executor.h"
#include "engine/execution/scheduler.h"
#include "engine/memory/processor.h"
#include "kernels/kernel_table.h"

namespace sparsed::engine {

class Executor::Impl {
 public:
  Impl(const ExecutorOptions& options, Catalog& catalog, DenseCatalog& dense, Budget& budget,
       Observer& observer, const std::vector<Device*>& gpus,
       const std::function<void(const MatrixLease&, const Problem&)>& on_unknown_class,
       const std::function<void(const PatternProduct&, const Problem&)>& on_unknown_pair);

  Catalog& catalog;
  DenseCatalog& dense;
  Budget& budget;
  Observer& observer;
  const std::shared_ptr<DerivedPatterns> derived;
  const std::vector<Device*> gpus;
  const std::string cpu_model, gpu_model;
  /// Where calls run if there is room.
  DeviceKind first_choice() const { return gpus.empty() ? DeviceKind::kCpu : DeviceKind::kCuda; }
  /// The GPU for a call on `pattern` with these held operands: the one that alone has most of
  /// them, else one that has copies of what is needed unless others have fewer calls. Null: there
  /// are no GPUs. UNAVAILABLE if all are lost.
  absl::StatusOr<Device*> Place(const Pattern& pattern,
                                std::span<const std::shared_ptr<LazyArray>> held) const;
  const std::function<void(const MatrixLease&, const Problem&)>& on_unknown_class;
  const std::function<void(const PatternProduct&, const Problem&)>& on_unknown_pair;
  const std::shared_ptr<Scheduler> scheduler;
  MemoryRate memory_rate;  ///< the CPU's

  /// What was stored of `damaged`'s layout is damaged: plain CSR serves in its place, and requests
  /// ask for new trials.
  void LayoutIsDamaged(Pattern& pattern, const ActivePlan& damaged, const absl::Status& status);

  /// Tells the observer. `bytes` is the least that the kernel had to move.
  void Ran(DeviceId device, Operation operation, std::string_view kernel, uint64_t nanoseconds,
           double flops, double bytes);
  double bytes_per_second(DeviceId device) const;

  /// Where the next call or preparation goes if nothing else counts.
  mutable std::atomic<size_t> next_gpu = 0;
};

/// The plan of a problem on a matrix, looked up once: what runs and on what.
template <typename Kernel>
struct Resolved {
  const Kernel* kernel = nullptr;
  std::shared_ptr<const Layout> layout;
  Problem problem;   ///< as the kernel sees it: a transposed layout turns the transposition around
  std::string text;  ///< "<recipe> / <kernel>"
};

/// Takes the plan if there is one whose layout is to be had and whose kernel serves this very
/// problem, else plain CSR with the first kernel that does. Reads the disk if they are not in
/// memory.
template <typename Kernel>
absl::StatusOr<Resolved<Kernel>> Resolve(Executor::Impl& impl, const MatrixLease& matrix,
                                         const Problem& problem, std::span<const Kernel> kernels) {
  Resolved<Kernel> resolved;
  const PlanTable::Found found = matrix->pattern()->plans().Find(ClassOf(problem));
  if (found.plan != nullptr && found.plan->layout != nullptr) {
    absl::StatusOr<std::shared_ptr<const Layout>> layout = found.plan->layout->Get();
    if (absl::IsDataLoss(layout.status())) {
      impl.LayoutIsDamaged(*matrix->pattern(), *found.plan, layout.status());
    }
    if (layout.ok()) resolved.layout = *std::move(layout);
  }
  if (resolved.layout == nullptr) {
    absl::StatusOr<std::shared_ptr<const Layout>> csr = matrix->pattern()->Csr();
    if (!csr.ok()) return csr.status();
    resolved.layout = *std::move(csr);
  }
  const auto serves = [&](const Kernel& kernel, const Layout& layout) {
    resolved.problem = SeenThrough(layout, problem);
    return kernel.layout_kind == layout.kind && kernel.device == problem.device &&
           kernel.supports(resolved.problem, layout);
  };
  const auto choose = [&](std::string_view name) {
    for (const Kernel& kernel : kernels) {
      if ((name.empty() || kernel.name == name) && serves(kernel, *resolved.layout)) {
        resolved.kernel = &kernel;
        return true;
      }
    }
    return false;
  };
  if (found.plan == nullptr || !choose(found.plan->plan.kernel)) {
    if (resolved.layout->recipe != kCsr) {
      absl::StatusOr<std::shared_ptr<const Layout>> csr = matrix->pattern()->Csr();
      if (!csr.ok()) return csr.status();
      resolved.layout = *std::move(csr);
    }
    if (!choose("")) {
      return absl::UnimplementedError(
          fmt::format("no kernel serves {}", ToString(ClassOf(problem))));
    }
  }
  resolved.text = fmt::format("{} / {}", resolved.layout->recipe, resolved.kernel->name);
  if (found.due() && impl.on_unknown_class) impl.on_unknown_class(matrix, problem);
  return resolved;
}

// What reads from the disk what is not in memory; null if nothing is to be read.
/// Of a matrix, plain CSR and values.
Job::Loader LoaderOf(const MatrixLease& matrix);
/// Of a matrix, what the plan of the problem needs.
Job::Loader LoaderOf(const MatrixLease& matrix, const Problem& problem);
Job::Loader LoaderOf(const std::shared_ptr<LazyArray>& array);
/// All of them, of which some may be null.
Job::Loader LoaderOf(std::vector<Job::Loader> loaders);

absl::StatusOr<std::shared_ptr<Call>> BeginSpmm(std::shared_ptr<Executor::Impl> impl, SpmmSpec spec,
                                                std::shared_ptr<ResultSink> sink);
absl::StatusOr<std::shared_ptr<Call>> BeginSddmm(std::shared_ptr<Executor::Impl> impl,
                                                 SddmmSpec spec, std::shared_ptr<ResultSink> sink);
absl::StatusOr<std::shared_ptr<Call>> BeginSpgemm(std::shared_ptr<Executor::Impl> impl,
                                                  SpgemmSpec spec,
                                                  std::shared_ptr<ResultSink> sink);

}  // namespace sparsed::engine
