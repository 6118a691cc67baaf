// What the machine lets this process use.
#pragma once

#include <cstdint>
#include <string>

namespace sparsed::server {

struct UsableMemory {
  int64_t bytes = 0;
  std::string
      limited_by;  ///< the file of the control group's limit; empty: the machine has no more
};

/// The smaller of the machine's memory and the limits of the control groups that we are in.
UsableMemory MemoryOfThisMachine();
/// What of so much memory is for arrays (--host-memory) unless somebody says so: all but a fifth,
/// or but 1 GiB if that is more, for what is not counted; at least half.
int64_t DefaultHostMemory(int64_t usable_bytes);
/// CPUs that we may run on: affinity and the control groups' quota, at least 1.
int UsableCpus();

}  // namespace sparsed::server
