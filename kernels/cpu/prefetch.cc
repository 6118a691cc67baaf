#include "kernels/cpu/prefetch.h"

#include <algorithm>
#include <cstdlib>

namespace sparsed::cpu {

bool ShouldPrefetch(const CsrView& s, int64_t row_bytes) {
  constexpr int64_t kPrivateCache = 1 << 20;
  constexpr int64_t kFollowed = 2048;  // hardware prefetchers stay within a page of 4096 bytes
  constexpr int64_t kSamples = 1024;
  if (s.nnz() < 2 || s.cols * row_bytes <= kPrivateCache) return false;
  const int64_t step = std::max<int64_t>(s.nnz() / kSamples, 1);
  int64_t samples = 0;
  int64_t far_jumps = 0;
  for (int64_t p = 0; p + 1 < s.nnz(); p += step) {
    const int64_t jump = int64_t{s.column_indices[p + 1]} - s.column_indices[p];
    far_jumps += std::abs(jump) * row_bytes >= kFollowed;
    ++samples;
  }
  return 4 * far_jumps >= samples;
}

}  // namespace sparsed::cpu
