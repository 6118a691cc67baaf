#include "kernels/reorder/radix_sort.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace sparsed {
namespace {

constexpr int kDigitBits = 8;
constexpr int kBuckets = 1 << kDigitBits;
/// Below this many items for each, more threads cost more than they bring.
constexpr int64_t kItemsPerThread = 1 << 14;

using Histogram = std::array<int64_t, kBuckets>;

/// One stable pass; counts[part] becomes, for each digit, where the part's items begin.
void SortByDigit(const uint64_t* from, uint64_t* to, int64_t count, int shift, uint64_t mask,
                 std::vector<Histogram>& counts) {
  const int parts = static_cast<int>(counts.size());
#pragma omp parallel num_threads(parts)
  {
#pragma omp for schedule(static, 1)
    for (int part = 0; part < parts; ++part) {
      counts[part].fill(0);
      for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
        ++counts[part][(from[i] >> shift) & mask];
      }
    }
#pragma omp single
    {
      int64_t begin = 0;
      for (int digit = 0; digit < kBuckets; ++digit) {
        for (Histogram& histogram : counts) begin += std::exchange(histogram[digit], begin);
      }
    }
#pragma omp for schedule(static, 1)
    for (int part = 0; part < parts; ++part) {
      for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
        to[counts[part][(from[i] >> shift) & mask]++] = from[i];
      }
    }
  }
}

}  // namespace

void RadixSort(std::span<uint64_t> items, std::span<uint64_t> scratch, int low, int high,
               int threads) {
  const int64_t count = static_cast<int64_t>(items.size());
  const int parts =
      static_cast<int>(std::clamp<int64_t>(count / kItemsPerThread, 1, std::max(threads, 1)));
  std::vector<Histogram> counts(parts);
  uint64_t* from = items.data();
  uint64_t* to = scratch.data();
  for (int shift = low; shift < high; shift += kDigitBits) {
    const int bits = std::min(kDigitBits, high - shift);
    SortByDigit(from, to, count, shift, (uint64_t{1} << bits) - 1, counts);
    std::swap(from, to);
  }
  if (from != items.data()) std::copy(from, from + count, items.data());
}

}  // namespace sparsed
