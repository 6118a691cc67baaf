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

}  // namespace

SpgemmKernel HashSpgemm() { return MakeSpgemmKernel<Method>("cpu.csr.hash"); }

}  // namespace sparsed::cpu
