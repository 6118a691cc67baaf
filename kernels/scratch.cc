#include "kernels/scratch.h"

#include <sys/mman.h>

namespace sparsed {

void PreferHugePages(const Buffer& buffer) {
  constexpr size_t kLarge = size_t{8} << 20;
  constexpr uintptr_t kPage = 4096;
  if (buffer.size() < kLarge) return;
  const auto begin = reinterpret_cast<uintptr_t>(buffer.data());
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t end = (begin + buffer.size()) / kPage * kPage;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

}  // namespace sparsed
