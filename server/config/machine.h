// What the machine lets this process use.
#pragma once

#include <cstdint>

namespace sparsed::server {

/// The smaller of the machine's memory and the limits of the control groups that we are in.
int64_t UsableMemoryBytes();
/// CPUs that we may run on: affinity and the control groups' quota, at least 1.
int UsableCpus();

}  // namespace sparsed::server
