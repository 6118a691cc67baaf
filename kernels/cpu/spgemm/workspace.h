// How the SpGEMM kernels cut up a thread's workspace.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/bump_allocator.h"

namespace sparsed::cpu {

constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Of a thread's workspace, in whole cache lines.
using BumpAllocator = sparsed::BumpAllocator<64>;

/// Of a dense accumulator whose window has up to `columns` columns.
template <typename T>
struct DenseSpace {
  static constexpr int64_t kColumnsOfLine = 64 / sizeof(T);
  /// Marks are read 64 at once.
  static constexpr int64_t kColumnsOfBlock = 64 * kColumnsOfLine;

  DenseSpace(BumpAllocator& allocator, int64_t columns)
      : sums(allocator.Take<T>(RoundUp(columns, kColumnsOfBlock))),
        marks(allocator.Take<uint8_t>(RoundUp(columns, kColumnsOfBlock) / kColumnsOfLine)),
        lines(allocator.Take<uint32_t>(RoundUp(columns, kColumnsOfBlock) / kColumnsOfLine + 4)) {}

  T* sums;          ///< one for each column of the window
  uint8_t* marks;   ///< one for each line of 64 bytes of sums: has it an entry
  uint32_t* lines;  ///< room to list the lines with entries
};

/// A slot of a hash table.
template <typename T>
struct HashSlot {
  int32_t column;  ///< -1: empty
  T sum;
};

/// Of a hash accumulator for rows of up to `entries` entries.
template <typename T>
struct HashSpace {
  /// At least twice as many slots as entries, so that probes are short.
  static int64_t SlotsFor(int64_t entries) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(entries) * 2 + 16));
  }

  HashSpace(BumpAllocator& allocator, int64_t entries)
      : slots(allocator.Take<HashSlot<T>>(SlotsFor(entries))),
        keys(allocator.Take<uint64_t>(entries + 1)),
        sorted_keys(allocator.Take<uint64_t>(entries)) {}

  HashSlot<T>* slots;
  uint64_t* keys;         ///< column << 32 | slot of each entry, and one to spare
  uint64_t* sorted_keys;  ///< room to sort them
};

}  // namespace sparsed::cpu
