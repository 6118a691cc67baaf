// C = S * T, each row by the method that its products and its width call for:
//
//   one term            the row of T, copied and scaled
//   few products        gathered, ranked and summed in registers (ranks-inl.h)
//   products crowd      dense window over the columns between the row's first and last, all of it
//                       looked at (dense_accumulator-inl.h)
//   products spread     the same, with marks for the 64-byte lines that have entries
//   lost in the width   hash table, then sort (hash_accumulator-inl.h)
//
// Grouping rows by the upper bound of their products, each group with a method of its own, is Liu
// and Vinter's bhSPARSE ("An efficient GPU general sparse matrix-matrix multiplication for
// irregular data", 2014); heap, bitonic sort and merge there are these methods here.
// Serves every semiring.
//
// Layout in: plain CSR of both. A row of C belongs to one thread; threads take pieces of about
// equal numbers of entries. Workspace: for each thread a dense window of T's columns and, if T is
// wide, a small hash table. Wins nearly everywhere; the default.
#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/spgemm.h"

namespace sparsed::cpu {

SpgemmMethod RowGroupsMethod(const SpgemmArguments& arguments) {
  // A window of so many sums stays in the second-level cache.
  constexpr int64_t kCachedWidth = 1 << 19;
  // Looking at 256 columns' marks costs less than sorting an entry.
  constexpr int64_t kColumnsOfProduct = 256;
  const int64_t cols = arguments.right.cols;
  return {.policy = {.ranked_products = 32,
                     .narrow_width = 256,
                     .cached_width = kCachedWidth,
                     .columns_of_product = kColumnsOfProduct},
          .capacity = {.window_columns = cols,
                       .hash_entries = cols <= kCachedWidth ? 0 : cols / kColumnsOfProduct}};
}

SpgemmKernel RowGroupsSpgemm() {
  return MakeSpgemmKernel<RowGroupsMethod>("cpu.csr.row_groups", SupportsSemirings);
}

}  // namespace sparsed::cpu
