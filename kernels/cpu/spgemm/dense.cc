// C = S * T with a dense window of sums for every row (dense_accumulator-inl.h).
//
// Layout in: plain CSR of both. A row of C belongs to one thread; threads take pieces of about
// equal numbers of entries. Workspace: a dense window of T's columns for each thread. Wins where
// rows are long or narrow; loses where few products are lost in millions of columns.
#include <limits>

#include "kernels/cpu/spgemm/launch.h"
#include "kernels/cpu/spgemm/spgemm.h"

namespace sparsed::cpu {
namespace {

SpgemmMethod Method(const SpgemmArguments& arguments) {
  constexpr int64_t kAnyWidth = std::numeric_limits<int64_t>::max();
  return {.policy = {.ranked_products = 0,
                     .narrow_width = 0,
                     .cached_width = kAnyWidth,
                     .columns_of_product = 0},
          .capacity = {.window_columns = arguments.right.cols, .hash_entries = 0}};
}

}  // namespace

SpgemmKernel DenseSpgemm() { return MakeSpgemmKernel<Method>("cpu.csr.dense"); }

}  // namespace sparsed::cpu
