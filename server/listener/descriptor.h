// How many file descriptors there may be.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/descriptor.h"

namespace sparsed::server {

/// Raises the soft limit of descriptors to the hard one, and returns how many there may be now.
int64_t RaiseDescriptorLimit();

/// RESOURCE_EXHAUSTED, with what to raise, unless so many more can be opened now. For a start: gRPC
/// aborts the process where it gets none.
absl::Status CheckDescriptorsLeft(int count);

}  // namespace sparsed::server
