// Stable parallel radix sort of 64-bit items by some of their bits.
#pragma once

#include <cstdint>
#include <span>

namespace sparsed {

/// Sorts `items` ascending by their bits [low, high), least significant digit first, with `scratch`
/// of the same length. The order is the same for every number of threads.
void RadixSort(std::span<uint64_t> items, std::span<uint64_t> scratch, int low, int high,
               int threads);

}  // namespace sparsed
