// Reading or copying, and nothing else: whoever times it knows the rate of what the memory lies in.
#pragma once

#include <cstddef>
#include <span>

namespace sparsed::cpu {

/// Reads `memory` `repeats` times, each of `threads` threads a part of its own, the same one every
/// time. Returns the bytes.
double ReadMemory(std::span<const std::byte> memory, int repeats, int threads);

/// Copies `from` to `to`, which is as large, likewise. Returns the bytes, read and written both
/// counted.
double CopyMemory(std::span<const std::byte> from, std::span<std::byte> to, int repeats,
                  int threads);

/// Has a team of so many threads begin and end, `repeats` times.
void StartTeams(int repeats, int threads);

}  // namespace sparsed::cpu
