#include "kernels/cpu/memory_reads.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace sparsed::cpu {

double ReadMemory(std::span<const std::byte> memory, int repeats, int threads) {
  constexpr size_t kAtOnce = 16;  // numbers that are added up side by side
  const auto* const words = reinterpret_cast<const uint64_t*>(memory.data());
  const size_t part =
      memory.size() / sizeof(uint64_t) / static_cast<size_t>(threads) / kAtOnce * kAtOnce;
  uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    const uint64_t* const own = words + static_cast<size_t>(thread) * part;
    uint64_t sums[kAtOnce] = {};
    for (int repeat = 0; repeat < repeats; ++repeat) {
      for (size_t i = 0; i < part; i += kAtOnce) {
        for (size_t j = 0; j < kAtOnce; ++j) sums[j] += own[i + j];
      }
      // The next time is not to be left out.
      asm volatile("" : : "r"(sums) : "memory");
    }
    for (const uint64_t one : sums) sum += one;
  }
  asm volatile("" : : "r"(sum));
  return static_cast<double>(part * sizeof(uint64_t)) * threads * repeats;
}

double CopyMemory(std::span<const std::byte> from, std::span<std::byte> to, int repeats,
                  int threads) {
  const size_t part = from.size() / static_cast<size_t>(threads);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    const size_t first = static_cast<size_t>(thread) * part;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      std::memcpy(to.data() + first, from.data() + first, part);
    }
  }
  return 2.0 * static_cast<double>(part) * threads * repeats;
}

void StartTeams(int repeats, int threads) {
  for (int repeat = 0; repeat < repeats; ++repeat) {
#pragma omp parallel num_threads(threads)
    asm volatile("" : : : "memory");
  }
}

}  // namespace sparsed::cpu
