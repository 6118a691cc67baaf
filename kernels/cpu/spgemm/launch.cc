#include "kernels/cpu/spgemm/launch.h"

#include <omp.h>

#include <algorithm>
#include <atomic>

#include "kernels/cpu/parts.h"
#include "kernels/cpu/prefetch.h"

namespace sparsed::cpu {
namespace {

absl::Status Cancelled() { return absl::CancelledError("the product was cancelled"); }

template <typename T>
size_t SpaceBytes(const Capacity& capacity) {
  return Space<T>(BumpAllocator(nullptr), capacity).bytes;
}

/// Whether T's rows, of an average length, are worth fetching ahead of their use.
bool ReadsAhead(const SpgemmArguments& arguments, size_t value_bytes) {
  const CsrView& t = arguments.right;
  if (t.rows == 0) return false;
  return ShouldPrefetch(arguments.left,
                        t.nnz() * static_cast<int64_t>(sizeof(int32_t) + value_bytes) / t.rows);
}

/// Every thread of the team takes rows, with a workspace of its own.
template <typename T, typename Job>
absl::Status RunTeam(const Context& context, const Job& job, std::span<const int64_t> positions) {
  if (job.range.begin >= job.range.end) return absl::OkStatus();
  const size_t space = SpaceBytes<T>(job.capacity);
  PieceQueue pieces(context, job.range, positions);
#pragma omp parallel num_threads(context.threads) if (context.threads > 1)
  RunRows(job, context.workspace.data() + space * static_cast<size_t>(omp_get_thread_num()),
          pieces);
  return context.stopped() ? Cancelled() : absl::OkStatus();
}

template <typename T>
absl::Status RunNumericOf(const SpgemmMethod& method, const Context& context, Semiring semiring,
                          const SpgemmArguments& arguments, RowRange range,
                          std::span<const int64_t> row_begin, int32_t* column_indices, void* values,
                          std::span<int64_t> row_nnz) {
  const NumericJob<T> job = {.policy = method.policy,
                             .capacity = method.capacity,
                             .semiring = semiring,
                             .reads_ahead = ReadsAhead(arguments, sizeof(T)),
                             .s = arguments.left,
                             .s_values = static_cast<const T*>(arguments.left_values),
                             .t = arguments.right,
                             .t_values = static_cast<const T*>(arguments.right_values),
                             .range = range,
                             .row_begin = row_begin.data(),
                             .columns = column_indices,
                             .values = static_cast<T*>(values),
                             .row_nnz = row_nnz.data()};
  return RunTeam<T>(context, job, row_begin);
}

}  // namespace

bool SupportsSpgemm(const Problem& problem) {
  return SupportsSemirings(problem) && problem.semiring == Semiring::kSumProduct;
}

bool SupportsSemirings(const Problem& problem) {
  return problem.operation == Operation::kSpgemm && problem.device == DeviceKind::kCpu &&
         IsFloat(problem.type) && !IsHalf(problem.type) && !problem.masked;
}

absl::Status AnalyseProducts(const Context& context, const SpgemmArguments& arguments,
                             std::span<int64_t> row_bounds, int64_t* products) {
  const CsrView& s = arguments.left;
  const int64_t* const t_offsets = arguments.right.row_offsets.data();
  const auto largest = [&arguments](int64_t row) {
    if (!arguments.mask) return arguments.right.cols;
    return arguments.mask->row_offsets[row + 1] - arguments.mask->row_offsets[row];
  };
  constexpr int64_t kPartRows = 512;
  const int64_t parts = (s.rows + kPartRows - 1) / kPartRows;
  PartLoop loop(context);
  if (parts == 0 || loop.BeginsPhase(parts)) *products = 0;
  std::atomic<int64_t> total = 0;
  const bool all = loop.Run(parts, [&](int64_t part) {
    const int64_t end = std::min((part + 1) * kPartRows, s.rows);
    int64_t part_products = 0;
    for (int64_t row = part * kPartRows; row < end; ++row) {
      int64_t row_products = 0;
      for (int64_t p = s.row_offsets[row]; p < s.row_offsets[row + 1]; ++p) {
        const int32_t k = s.column_indices[p];
        row_products += t_offsets[k + 1] - t_offsets[k];
      }
      row_bounds[row] = std::min(row_products, largest(row));
      part_products += row_products;
    }
    total += part_products;
  });
  *products += total;
  return all ? loop.Finish() : loop.Cut();
}

size_t WorkspaceOf(const SpgemmMethod& method, const Problem& problem, int threads) {
  const size_t space = problem.type == ElementType::kF32 ? SpaceBytes<float>(method.capacity)
                                                         : SpaceBytes<double>(method.capacity);
  return space * static_cast<size_t>(threads);
}

absl::Status RunSymbolic(const SpgemmMethod& method, const Context& context,
                         const SpgemmArguments& arguments, RowRange range,
                         std::span<int64_t> row_nnz) {
  const SymbolicJob job = {.policy = method.policy,
                           .capacity = method.capacity,
                           .reads_ahead = ReadsAhead(arguments, 0),
                           .s = arguments.left,
                           .t = arguments.right,
                           .range = range,
                           .row_nnz = row_nnz.data()};
  // Without bounds at hand, S's entries stand for the work.
  const auto positions = arguments.left.row_offsets.subspan(
      static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin) + 1);
  return RunTeam<uint8_t>(context, job, positions);
}

absl::Status RunNumeric(const SpgemmMethod& method, const Context& context, const Problem& problem,
                        const SpgemmArguments& arguments, RowRange range,
                        std::span<const int64_t> row_begin, int32_t* column_indices, void* values,
                        std::span<int64_t> row_nnz) {
  return problem.type == ElementType::kF32
             ? RunNumericOf<float>(method, context, problem.semiring, arguments, range, row_begin,
                                   column_indices, values, row_nnz)
             : RunNumericOf<double>(method, context, problem.semiring, arguments, range, row_begin,
                                    column_indices, values, row_nnz);
}

int64_t LongestRow(const CsrView& csr, RowRange range) {
  int64_t longest = 0;
  for (int64_t row = range.begin; row < range.end; ++row) {
    longest = std::max(longest, csr.row_offsets[row + 1] - csr.row_offsets[row]);
  }
  return longest;
}

int64_t LargestBound(const SpgemmArguments& arguments) {
  const int64_t t_longest = LongestRow(arguments.right, {0, arguments.right.rows});
  const int64_t s_longest = LongestRow(arguments.left, {0, arguments.left.rows});
  // Both are below 2^31.
  return std::min(s_longest * t_longest, arguments.right.cols);
}

}  // namespace sparsed::cpu
