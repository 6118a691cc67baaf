#include "tools/reorder/dense_product.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <utility>

#include "kernels/kernel_table.h"

namespace sparsed::tools {
namespace {

double SecondsOf(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

template <typename T>
absl::StatusOr<Array> ToArray(std::string_view name, const std::vector<T>& values) {
  auto array =
      AllocateArray(HeapMemory(), name, ElementTypeOf<T>(), static_cast<int64_t>(values.size()));
  if (array.ok()) std::copy(values.begin(), values.end(), array->template MutableAs<T>().begin());
  return array;
}

/// Plain CSR with values of 1, and the kernel that multiplies with it.
class Multiplier {
 public:
  static absl::StatusOr<Multiplier> Of(const SparseMatrix& matrix, int64_t k, int threads) {
    absl::StatusOr<Array> offsets = ToArray("row_offsets", matrix.row_offsets);
    absl::StatusOr<Array> columns = ToArray("column_indices", matrix.column_indices);
    if (!offsets.ok()) return offsets.status();
    if (!columns.ok()) return columns.status();
    return Multiplier(
        MakeCsrLayout(matrix.rows, matrix.cols, *std::move(offsets), *std::move(columns)), k,
        threads);
  }

  absl::Status Run(const std::vector<float>& b, std::vector<float>& c) {
    const Context context = {.threads = threads_, .workspace = std::span(workspace_)};
    return kernel_->run(context, problem_,
                        {.layout = layout_,
                         .values = values_.data(),
                         .b = {b.data(), layout_.cols, problem_.k, problem_.k},
                         .c = {c.data(), layout_.rows, problem_.k, problem_.k}});
  }

 private:
  Multiplier(Layout layout, int64_t k, int threads)
      : layout_(std::move(layout)),
        problem_{.operation = Operation::kSpmm, .k = k},
        kernel_(&*std::find_if(SpmmKernels().begin(), SpmmKernels().end(),
                               [this](const SpmmKernel& kernel) {
                                 return kernel.device == DeviceKind::kCpu &&
                                        kernel.layout_kind == kCsr &&
                                        kernel.supports(problem_, layout_);
                               })),
        threads_(threads),
        workspace_(kernel_->workspace(problem_, layout_, threads)),
        values_(static_cast<size_t>(layout_.nnz), 1.0F) {}

  Layout layout_;
  Problem problem_;
  const SpmmKernel* kernel_;
  int threads_;
  std::vector<std::byte> workspace_;
  std::vector<float> values_;
};

/// Row r of `to` is row order[r] of `from`, or the other way round with `back`.
void MoveRows(const std::vector<float>& from, const std::vector<int32_t>& order, int64_t k,
              bool back, int threads, std::vector<float>& to) {
  const auto rows = static_cast<int64_t>(order.size());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t source = back ? r : order[r], target = back ? order[r] : r;
    std::copy_n(from.data() + source * k, k, to.data() + target * k);
  }
}

}  // namespace

absl::StatusOr<DenseTimes> TimeDenseProducts(const SparseMatrix& matrix,
                                             const SparseMatrix& reordered,
                                             const std::vector<int32_t>& order, int64_t k,
                                             int threads, int runs) {
  absl::StatusOr<Multiplier> plain = Multiplier::Of(matrix, k, threads);
  absl::StatusOr<Multiplier> ordered = Multiplier::Of(reordered, k, threads);
  if (!plain.ok()) return plain.status();
  if (!ordered.ok()) return ordered.status();
  // Small integers: their sums are exact in any order.
  std::vector<float> b(static_cast<size_t>(matrix.cols * k));
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i * 7 % 5);
  std::vector<float> ordered_b(b.size()), c(b.size()), ordered_c(b.size()), back(b.size());

  constexpr double kNever = std::numeric_limits<double>::infinity();
  DenseTimes times{kNever, kNever, kNever};
  absl::Status status;
  const auto run = [&status](Multiplier& multiplier, const auto& operand, auto& result,
                             double& best) {
    best = std::min(best, SecondsOf([&] { status.Update(multiplier.Run(operand, result)); }));
  };
  for (int i = 0; i < runs && status.ok(); ++i) {
    double permute = SecondsOf([&] { MoveRows(b, order, k, false, threads, ordered_b); });
    run(*plain, b, c, times.before);
    run(*ordered, ordered_b, ordered_c, times.after);
    permute += SecondsOf([&] { MoveRows(ordered_c, order, k, true, threads, back); });
    times.permute = std::min(times.permute, permute);
  }
  if (!status.ok()) return status;
  if (back != c) return absl::InternalError("the product of the reordered matrix is another one");
  return times;
}

}  // namespace sparsed::tools
