// Host memory that a process of this machine maps, too: operands and results of its requests, which
// nobody copies.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/memory/budget.h"
#include "kernels/array.h"

namespace sparsed::engine {

/// Maps all of a memory file (memfd_create), whose descriptor stays the caller's, and which may
/// have `most_bytes`. Counts with its size for as long as a copy of the buffer lives, whoever
/// touched its pages first. The other process may write at any time: what must be checked is to be
/// copied before. INVALID_ARGUMENT if it is none, is empty, may be made smaller (it needs
/// F_SEAL_SHRINK: reading behind the end of a file is a signal) or may not be written;
/// RESOURCE_EXHAUSTED.
absl::StatusOr<Buffer> MapShared(int file, int64_t most_bytes, Budget& budget, MemoryOwner& owner);

}  // namespace sparsed::engine
