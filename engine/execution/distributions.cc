#include "engine/execution/distributions.h"

#include <algorithm>
#include <memory>

#include "engine/execution/derived_patterns.h"
#include "engine/execution/gpu_backend.h"
#include "kernels/formats/row_bounds.h"
#include "kernels/formats/row_split.h"

namespace sparsed::engine {
namespace {

bool AllServe(const std::deque<GpuBackend>& gpus) {
  return std::ranges::all_of(gpus, [](const GpuBackend& gpu) { return gpu.status().ok(); });
}

bool AllArePeers(const std::deque<GpuBackend>& gpus) {
  return std::ranges::all_of(gpus, [&](const GpuBackend& gpu) {
    return std::ranges::all_of(gpus, [&](const GpuBackend& other) {
      return &gpu == &other || gpu.device().Reads(other.device());
    });
  });
}

/// What a plan's trial took for just this problem; 0: nothing says.
double MeasuredMs(const Matrix& matrix, const PlanTable::Found& found, int64_t k) {
  if (found.plan == nullptr || !found.exact) return 0;
  const Plan& plan = found.plan->plan;
  const std::vector<Measurement> measurements = matrix.pattern()->trials().measurements();
  const bool measured = std::ranges::any_of(measurements, [&](const Measurement& m) {
    return m.signature == plan.signature && m.pipeline == plan.pipeline &&
           m.kernel == plan.kernel && m.k == k;
  });
  return measured ? plan.plan_ms : 0;
}

/// Adds what rows exchange.
absl::Status FindFetched(const Executor& executor, const Matrix& matrix, DistributedProblem& to,
                         const std::atomic<bool>* stop) {
  const std::shared_ptr<Pattern>& pattern = matrix.pattern();
  const absl::StatusOr<std::shared_ptr<const Layout>> stored = pattern->Csr(stop);
  if (!stored.ok()) return stored.status();
  const std::vector<int64_t> bounds =
      ChosenBounds(ViewCsr(**stored), to.problem.transposed, to.gpus);
  DerivedPatterns& derived = executor.derived();
  const auto count = [&](int64_t fetched, int64_t nonzeros) {
    to.fetched_rows += fetched;
    to.most_fetched_rows = std::max(to.most_fetched_rows, fetched);
    to.fetched_nonzeros += nonzeros;
  };
  if (const auto known = derived.FindRows(pattern, to.problem.transposed, bounds)) {
    for (const RowDistribution::Part& part : known->parts()) {
      count(part.fetched_rows, part.fetched == nullptr ? 0 : part.fetched->nnz());
    }
    return absl::OkStatus();
  }
  BuildContext context;
  context.stop = stop;
  const absl::StatusOr<std::shared_ptr<const Layout>> of =
      to.problem.transposed ? derived.Transposed(pattern, context) : stored;
  if (!of.ok()) return of.status();
  const CsrView csr = ViewCsr(**of);
  const std::vector<int64_t> rows =
      csr.rows == csr.cols ? bounds : RowBoundsByNonzeros(csr, to.gpus);
  context.memory = &HeapMemory();
  for (int i = 0; i < to.gpus; ++i) {
    const absl::StatusOr<FetchedCount> fetched =
        CountFetched(csr, {rows[i], rows[i + 1]}, {bounds[i], bounds[i + 1]}, context);
    if (!fetched.ok()) return fetched.status();
    count(fetched->rows, fetched->nonzeros);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int64_t> ChosenBounds(const CsrView& stored, bool transposed, int64_t parts) {
  const int64_t operand_rows = transposed ? stored.rows : stored.cols;
  if (stored.rows == operand_rows) return RowBoundsByNonzeros(stored, parts);
  return EvenBounds(operand_rows, parts);
}

absl::StatusOr<DistributionChoice> ChooseDistribution(const Executor& executor,
                                                      const Matrix& matrix, bool transposed,
                                                      int64_t k, const std::atomic<bool>* stop,
                                                      bool best_alone) {
  DistributionChoice choice;
  const std::deque<GpuBackend>& gpus = executor.gpus();
  const Pattern& pattern = *matrix.pattern();
  if (gpus.size() < 2 || !AllServe(gpus) || pattern.nnz() == 0) return choice;
  const GpuBackend& gpu = gpus.front();
  DistributedProblem of;
  of.problem = {.operation = Operation::kSpmm,
                .transposed = transposed,
                .type = matrix.type(),
                .k = k,
                .device = DeviceKind::kCuda};
  of.rows = pattern.rows();
  of.cols = pattern.cols();
  of.nnz = pattern.nnz();
  of.gpus = choice.gpus = static_cast<int>(gpus.size());
  of.bytes_per_second = gpu.bytes_per_second();
  const bool peers = AllArePeers(gpus);
  // Else over the host, once each way.
  const double by_host = gpu.constants().link_bytes_per_second / 2;
  of.peer_bytes_per_second = peers ? kPeerRowsBytesPerSecond : by_host;
  of.copy_bytes_per_second = peers ? kPeerCopyBytesPerSecond : by_host;
  const PlanTable::Found found = pattern.plans().Find(SignatureOf(of.problem));
  of.whole_ms = MeasuredMs(matrix, found, k);
  choice.estimates = EstimateDistributions(of);
  const bool is_tried = found.exact && found.plan->plan.distribution &&
                        found.plan->plan.distribution->gpus == of.gpus;
  if (is_tried) choice.tried = found.plan->plan.distribution;
  const bool is_known =
      is_tried && std::ranges::any_of(choice.estimates, [&](const auto& estimate) {
        return estimate.distribution == choice.tried->best;
      });
  if (std::min(of.rows, of.cols) >= of.gpus && !(is_known && best_alone)) {
    if (absl::Status s = FindFetched(executor, matrix, of, stop); !s.ok()) return s;
    choice.estimates = EstimateDistributions(of);
  }
  choice.spread_ms = SpreadMilliseconds(of);
  choice.best = is_known ? choice.tried->best : BestOf(choice.estimates);
  return choice;
}

}  // namespace sparsed::engine
