// Products of chains, one kernel each; how long passes are cut on the CPU, and what a chain costs.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/execution/chain_call.h"
#include "engine/execution/dense_product.h"

namespace sparsed::engine {

double ChainCall::Work() const {
  double work = 0;
  for (const Step& step : steps_) work += step.Work();
  return work;
}

double ChainCall::Step::Work() const {
  if (matrix == nullptr) return 0;
  return static_cast<double>(matrix->pattern()->nnz()) *
         static_cast<double>(std::max<int64_t>(width, 1));
}

uint64_t ChainCall::Kind() const {
  uint64_t kind = steps_.size();
  for (const Step& step : steps_) {
    if (step.matrix == nullptr) continue;
    kind = MixKind(kind, reinterpret_cast<uintptr_t>(step.matrix->pattern().get()));
    kind = MixKind(kind, static_cast<uint64_t>(step.width));
  }
  return kind;
}

Job::Cost ChainCall::Predict() const {
  const Forecast all = scheduler().costs(device()).Of(Kind(), Operation::kSpmm, Work());
  Cost cost;
  double work = Work();
  const DeviceConstants constants = impl_->backend(device()).constants();
  const double long_work = LongWork(constants, device().kind);
  // A GPU takes a while for the least step.
  if (device().kind != DeviceKind::kCpu) {
    work += constants.launch_seconds / kShortOnGpuSeconds * static_cast<double>(steps_.size()) *
            long_work;
  }
  cost.is_long = work >= long_work;
  cost.next_seconds = cost.is_long ? std::min(all.seconds, kTurnSeconds) : all.seconds;
  if (all.measured) {
    const double taken = 1e-9 * static_cast<double>(end_.timings.kernel_ns);
    cost.rest_seconds = std::max(0.0, all.seconds - taken);
  }
  return cost;
}

absl::Status ChainCall::Multiply(Step& step, const Resolved& plan, const PlacedSparse& s,
                                 const PlacedDense& first, const PlacedDense* second,
                                 const PlacedDense& result, double alpha, double beta,
                                 Reduction reduction, WorkerSlot& slot) {
  const BoundRun run = BindProduct(plan, s, first, second, result, alpha, beta, reduction);
  step.kernel = run.kernel();
  step.done.plan = plan.text;
  if (reduction != Reduction::kSum) {
    step.done.plan = fmt::format("{}, {}", Name(reduction), plan.text);
  }
  const Pass pass = [run](WorkerSlot& on, const RunOptions& options) {
    double unused = 0;
    return on.backend->Run(on, run, options, &unused);
  };
  return Compute(step, pass, run.resumes(), {result}, slot);
}

absl::Status ChainCall::Compute(Step& step, const Pass& pass, bool resumes,
                                std::vector<PlacedDense> results, WorkerSlot& slot) {
  if (device().kind == DeviceKind::kCpu && resumes &&
      step.Work() >= LongWork(slot.backend->constants(), device().kind)) {
    step.cut = std::make_unique<CutPass>(CutPass{
        .pass = pass, .results = std::move(results), .used = used_, .pieces = PieceRun(wanted())});
    return GoOn(step, slot);
  }
  MemorySource& memory = slot.backend->memory(MemoryUse::kRequests);
  const absl::Status done = pass(slot, {slot.workspace, memory, token().flag()});
  return done.ok() ? ClearPadding(results, slot) : done;
}

absl::Status ChainCall::ClearPadding(std::span<const PlacedDense> results, WorkerSlot& slot) {
  absl::Status status;
  for (const PlacedDense& result : results) {
    if (status.ok()) status = slot.backend->ClearPadding(result, slot);
  }
  return status;
}

absl::Status ChainCall::GoOn(Step& step, WorkerSlot& slot) {
  CutPass& cut = *step.cut;
  RunOptions options{cut.workspace, slot.backend->MemoryFor(MemoryUse::kRequests, owner_),
                     token().flag()};
  double unused = 0;  // RunSteps measures it
  absl::Status status = cut.pieces.Run(
      [&](Progress& progress) {
        options.progress = &progress;
        return cut.pass(slot, options);
      },
      [this] { return GivesWay(); }, &unused);
  if (status.ok() && !cut.pieces.finished()) return status;  // others' turn
  const std::unique_ptr<CutPass> ended = std::move(step.cut);
  return status.ok() ? ClearPadding(ended->results, slot) : status;
}

}  // namespace sparsed::engine
