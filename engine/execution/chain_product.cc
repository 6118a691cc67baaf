// Products of chains: one kernel each, on the CPU cut where they are long, and what a chain costs.
#include <algorithm>
#include <memory>
#include <utility>

#include "engine/execution/chain_call.h"
#include "engine/execution/dense_product.h"

namespace sparsed::engine {

double ChainCall::Work() const {
  double work = 0;
  for (const Step& step : steps_) {
    if (step.matrix == nullptr) continue;
    const auto k = static_cast<double>(step.product ? std::max<int64_t>(step.problem.k, 1) : 1);
    work += static_cast<double>(step.matrix->pattern()->nnz()) * k;
  }
  return work;
}

uint64_t ChainCall::Kind() const {
  uint64_t kind = steps_.size();
  for (const Step& step : steps_) {
    if (step.matrix == nullptr) continue;
    kind = MixKind(kind, reinterpret_cast<uintptr_t>(step.matrix->pattern().get()));
    kind = MixKind(kind, static_cast<uint64_t>(step.problem.k));
  }
  return kind;
}

Job::Cost ChainCall::Predict() const {
  const Forecast all = scheduler().costs(device()).Of(Kind(), Operation::kSpmm, Work());
  Cost cost;
  double work = Work();
  // A GPU takes a while for the least step.
  constexpr double kLeastSeconds = 10e-6;
  const double long_work = LongWork(scheduler().options().threads_per_lane, device().kind);
  if (device().kind != DeviceKind::kCpu) {
    work += kLeastSeconds / kShortOnGpuSeconds * static_cast<double>(steps_.size()) * long_work;
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
                                 const PlacedDense& result, double alpha, double beta, Lane& lane) {
  Backend& backend = *lane.backend;
  const BoundRun run = BindProduct(plan, s, first, second, result, alpha, beta);
  step.kernel = run.kernel();
  step.done.plan = plan.text;
  const double work =
      static_cast<double>(step.matrix->pattern()->nnz()) * static_cast<double>(step.problem.k);
  if (device().kind == DeviceKind::kCpu && run.resumes() &&
      work >= LongWork(scheduler().options().threads_per_lane, device().kind)) {
    step.cut = std::make_unique<CutProduct>(CutProduct{
        .run = run,
        .first = first,
        .second = second == nullptr ? PlacedDense() : *second,
        .result = result,
        .used = used_,
        .pieces = PieceRun(wanted()),
    });
    return GoOn(step, lane);
  }
  const RunOptions options{lane.workspace, backend.memory(MemoryUse::kRequests), token().flag()};
  double milliseconds = 0;
  if (absl::Status status = backend.Run(lane, run, options, &milliseconds); !status.ok()) {
    return status;
  }
  return backend.ClearPadding(result, lane);
}

absl::Status ChainCall::GoOn(Step& step, Lane& lane) {
  double milliseconds = 0;
  absl::Status status = step.cut->pieces.Run(
      lane, step.cut->run, lane.backend->MemoryFor(MemoryUse::kRequests, owner_), token().flag(),
      [this] { return GivesWay(); }, &milliseconds);
  if (status.ok() && !step.cut->pieces.finished()) return status;  // others' turn
  const std::unique_ptr<CutProduct> cut = std::move(step.cut);
  return status.ok() ? lane.backend->ClearPadding(cut->result, lane) : status;
}

}  // namespace sparsed::engine
