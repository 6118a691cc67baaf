// Words of host memory by which streams of two processes follow one another: one writes, the other
// waits. Unlike an event of another process's, whose waiters wait for ever when that process dies,
// a word can be written by whoever maps it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device.h"

namespace sparsed::cuda {

/// Queues that `*word`, which is in memory that PinHost returned, becomes `value`: when all that
/// was queued before is done, and can be seen by who sees the word. UNIMPLEMENTED where streams
/// write no words.
absl::Status QueueWrite(const Stream& stream, uint32_t* word, uint32_t value);

/// What is queued in `stream` from now on waits until `*word`, in memory that PinHost returned, is
/// `value` or has passed it, the words going round: int32_t(*word - value) >= 0. While a stream
/// waits, this process may be held up wherever CUDA waits for the whole device, as it does to load
/// a kernel.
absl::Status QueueWait(const Stream& stream, const uint32_t* word, uint32_t value);

}  // namespace sparsed::cuda
