#include "tools/reorder/square.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <utility>

#include "kernels/kernel_table.h"

namespace sparsed::tools {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The CPU's first kernel for f64.
const SpgemmKernel& KernelFor(const Problem& problem) {
  return *std::find_if(SpgemmKernels().begin(), SpgemmKernels().end(),
                       [&problem](const SpgemmKernel& kernel) {
                         return kernel.device == DeviceKind::kCpu && kernel.supports(problem);
                       });
}

absl::StatusOr<SparseMatrix> Multiply(const SparseMatrix& matrix, int threads) {
  const Problem problem = {.operation = Operation::kSpgemm, .type = ElementType::kF64};
  const SpgemmKernel& kernel = KernelFor(problem);
  const CsrView csr = ViewOf(matrix);
  const SpgemmArguments arguments = {csr, matrix.values.data(), csr, matrix.values.data()};
  absl::StatusOr<Buffer> workspace =
      HeapMemory().Allocate(kernel.workspace(problem, arguments, threads));
  if (!workspace.ok()) return workspace.status();
  const Context context = {.threads = threads,
                           .workspace = {workspace->mutable_data(), workspace->size()}};
  const RowRange all = {0, matrix.rows};
  std::vector<int64_t> row_nnz(static_cast<size_t>(matrix.rows));
  int64_t products = 0;
  SparseMatrix result{matrix.rows, matrix.cols, std::vector<int64_t>(row_nnz.size() + 1), {}, {}};
  absl::Status status = kernel.analyse(context, arguments, row_nnz, &products);
  if (status.ok()) status = kernel.symbolic(context, arguments, all, row_nnz);
  if (!status.ok()) return status;
  std::partial_sum(row_nnz.begin(), row_nnz.end(), result.row_offsets.begin() + 1);
  result.column_indices.resize(static_cast<size_t>(result.row_offsets.back()));
  result.values.resize(result.column_indices.size());
  status = kernel.numeric(context, problem, arguments, all, result.row_offsets,
                          result.column_indices.data(), result.values.data(), row_nnz);
  if (!status.ok()) return status;
  return result;
}

/// Row `to` of `result` is a row of `from`, its columns renamed by `name_of` and sorted.
void PutRow(const SparseMatrix& from, int64_t row, const std::vector<int32_t>& name_of, int64_t to,
            std::vector<std::pair<int32_t, double>>& scratch, SparseMatrix& result) {
  scratch.clear();
  for (int64_t i = from.row_offsets[row]; i < from.row_offsets[row + 1]; ++i) {
    scratch.emplace_back(name_of[from.column_indices[i]], from.values[i]);
  }
  std::sort(scratch.begin(), scratch.end());
  int64_t out = result.row_offsets[to];
  for (const auto& [column, value] : scratch) {
    result.column_indices[out] = column;
    result.values[out++] = value;
  }
}

/// Row r of the result is row row_from[r] of `matrix`, column c of which is called name_of[c].
SparseMatrix Rename(const SparseMatrix& matrix, const std::vector<int32_t>& row_from,
                    const std::vector<int32_t>& name_of, int threads) {
  SparseMatrix result{matrix.rows, matrix.cols, std::vector<int64_t>(row_from.size() + 1),
                      std::vector<int32_t>(matrix.column_indices.size()),
                      std::vector<double>(matrix.values.size())};
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const int32_t from = row_from[row];
    result.row_offsets[row + 1] =
        result.row_offsets[row] + matrix.row_offsets[from + 1] - matrix.row_offsets[from];
  }
#pragma omp parallel num_threads(threads)
  {
    std::vector<std::pair<int32_t, double>> scratch;
#pragma omp for schedule(dynamic, 256)
    for (int64_t row = 0; row < matrix.rows; ++row) {
      PutRow(matrix, row_from[row], name_of, row, scratch, result);
    }
  }
  return result;
}

std::vector<int32_t> Inverse(const std::vector<int32_t>& order) {
  std::vector<int32_t> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<int32_t>(i);
  return inverse;
}

}  // namespace

CsrView ViewOf(const SparseMatrix& matrix) {
  return {matrix.rows, matrix.cols, matrix.row_offsets, matrix.column_indices, {}};
}

SparseMatrix PermuteSymmetrically(const SparseMatrix& matrix, const std::vector<int32_t>& order) {
  return Rename(matrix, order, Inverse(order), 1);
}

absl::StatusOr<Square> MultiplyBySelf(const SparseMatrix& matrix, int threads) {
  const Clock::time_point begin = Clock::now();
  absl::StatusOr<SparseMatrix> result = Multiply(matrix, threads);
  if (!result.ok()) return result.status();
  return Square{*std::move(result), SecondsSince(begin)};
}

Square PutBack(const SparseMatrix& square, const std::vector<int32_t>& order, int threads) {
  const Clock::time_point begin = Clock::now();
  Square back{Rename(square, Inverse(order), order, threads), 0};
  back.seconds = SecondsSince(begin);
  return back;
}

}  // namespace sparsed::tools
