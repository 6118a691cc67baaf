#include "engine/execution/dense_product.h"

#include <utility>

namespace sparsed::engine {

absl::StatusOr<PlacedSparse> PlaceWithValues(Executor::Impl& impl, const Matrix& matrix,
                                             const std::shared_ptr<const Layout>& layout,
                                             WorkerSlot& slot, MemorySource& host) {
  absl::StatusOr<Array> values = slot.backend->ValuesFor(
      matrix, *layout, impl.budget.Source(MemoryUse::kLayouts), slot.threads);
  if (!values.ok()) return values.status();
  return slot.backend->Place(layout, &*values, host);
}

BoundRun BindProduct(const Resolved& plan, const PlacedSparse& s, const PlacedDense& first,
                     const PlacedDense* second, const PlacedDense& result, double alpha,
                     double beta, Reduction reduction) {
  const bool sddmm = plan.problem.operation == Operation::kSddmm;
  // A width that vectors divide is faster; what is behind the K columns are zeros.
  Problem problem = plan.problem;
  problem.k = CommonWidth(first, sddmm ? *second : result);
  if (!plan.kernel->Serves(problem, *s.layout)) problem.k = plan.problem.k;
  RunArguments arguments;
  arguments.values = s.values == nullptr ? nullptr : s.values->buffer.data();
  arguments.dense[0] = first.View(problem.k);
  if (sddmm) arguments.dense[1] = second->View(problem.k);
  arguments.result = result.MutableView(sddmm ? 1 : problem.k);
  arguments.alpha = alpha;
  arguments.beta = beta;
  arguments.reduction = reduction;
  return {*plan.kernel, problem, s.layout, arguments};
}

void RecordProduct(Executor::Impl& impl, DeviceId device, const Pattern& pattern,
                   const Problem& problem, bool reads_result, std::string_view kernel,
                   uint64_t nanoseconds, int64_t heads) {
  const auto nnz = static_cast<double>(pattern.nnz());
  const auto k = static_cast<double>(problem.k);
  double bytes = CompulsoryBytes(problem, pattern.rows(), pattern.cols(), pattern.nnz());
  bytes += nnz * static_cast<double>(heads - 1) * static_cast<double>(SizeOf(problem.type));
  if (reads_result) {
    const int64_t rows = problem.transposed ? pattern.cols() : pattern.rows();
    bytes += static_cast<double>(rows) * k * static_cast<double>(SizeOf(problem.type));
  }
  const double flops = problem.operation == Operation::kSddmm ? nnz * (2.0 * k + 1) : 2.0 * nnz * k;
  impl.RecordRun(device, problem.operation, kernel, nanoseconds, flops, bytes);
}

}  // namespace sparsed::engine
