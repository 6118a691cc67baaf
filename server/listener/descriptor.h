// File descriptors, and how many there may be.
#pragma once

#include <cstdint>

#include "base/descriptor.h"

namespace sparsed::server {

using sparsed::Descriptor;

/// Raises the soft limit of descriptors to the hard one, and returns how many there may be now.
int64_t RaiseDescriptorLimit();

}  // namespace sparsed::server
