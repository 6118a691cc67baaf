// Built in place of cuSPARSE's part where there is no CUDA compiler.
#include "tests/bench/gpu/cusparse_spgemm.h"

namespace sparsed::test {

absl::StatusOr<int64_t> CusparseSpgemm(Device&, const Problem&, const SpgemmArguments&,
                                       const int32_t*, const int32_t*) {
  return absl::UnavailableError("this build has no CUDA");
}

}  // namespace sparsed::test
