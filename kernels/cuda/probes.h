// Work whose amount is known, and that one part of a GPU bounds: whoever times it knows that part's
// rate. kernels/cpu/memory_reads.h and kernels/cpu/multiply_add.h are the CPU's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"

namespace sparsed::cuda {

enum class Probe : uint8_t {
  kEmpty,        ///< nothing: one kernel, as often as `repeats` says
  kMemoryReads,  ///< all of `memory`, once; larger than any cache
  kCacheReads,   ///< all of `memory`, `repeats` times, past the first-level caches
  kSharedReads,  ///< shared memory, by every multiprocessor; `memory` takes what is not to be
                 ///< left out
  kAtomicAdds,   ///< f32 sums to `memory`, of neighbours by neighbours, `repeats` times
  kMultiplyF32,  ///< multiplications and additions in registers
  kMultiplyF64,
};

/// Queues it. Returns what it does: bytes, additions (kAtomicAdds), operations (kMultiply..., two
/// for a multiplication and an addition) or kernels (kEmpty). `memory` is the device's, at least
/// kLeastProbeBytes, of a multiple of 16 bytes; its contents change. Of the calling thread's GPU.
absl::StatusOr<double> QueueProbe(Stream& stream, Probe probe, std::span<std::byte> memory,
                                  int repeats);
inline constexpr size_t kLeastProbeBytes = size_t{1} << 20;

}  // namespace sparsed::cuda
