// C = S * T with a hash table for every row, sorted when it is complete (hash_accumulator-inl.h).
//
// Layout in: plain CSR of both. A row of C belongs to one thread; threads take pieces of about
// equal numbers of entries. Workspace: for each thread a table for the largest row that S and T can
// have together. Wins where few products are lost in millions of columns.
#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/spgemm.h"

namespace sparsed::cpu {
namespace {

SpgemmMethod Method(const SpgemmArguments& arguments) {
  return {.policy = {.ranked_products = 0,
                     .narrow_width = 0,
                     .cached_width = -1,
                     .columns_of_product = 0},
          .capacity = {.window_columns = 0, .hash_entries = LargestBound(arguments)}};
}

absl::Status Symbolic(const Context& context, const SpgemmArguments& arguments, RowRange range,
                      std::span<int64_t> row_nnz) {
  return RunSymbolic(Method(arguments), context, arguments, range, row_nnz);
}

absl::Status Numeric(const Context& context, const Problem& problem,
                     const SpgemmArguments& arguments, RowRange range,
                     std::span<const int64_t> row_begin, int32_t* column_indices, void* values,
                     std::span<int64_t> row_nnz) {
  return RunNumeric(Method(arguments), context, problem, arguments, range, row_begin,
                    column_indices, values, row_nnz);
}

size_t Workspace(const Problem& problem, const SpgemmArguments& arguments, int threads) {
  return WorkspaceOf(Method(arguments), problem, threads);
}

}  // namespace

SpgemmKernel HashSpgemm() {
  return {.name = "cpu.csr.hash",
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = SupportsSpgemm,
          .workspace = Workspace,
          .analyse = AnalyseProducts,
          .symbolic = Symbolic,
          .numeric = Numeric};
}

}  // namespace sparsed::cpu
