#include "tools/reorder/memory_counter.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace sparsed::tools {

MemoryCounter::MemoryCounter() {
  perf_event_attr attributes = {};
  attributes.size = sizeof attributes;
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.config = PERF_COUNT_HW_CACHE_MISSES;
  attributes.inherit = 1;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  file_ = static_cast<int>(syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0));
}

MemoryCounter::~MemoryCounter() {
  if (file_ >= 0) close(file_);
}

std::optional<double> MemoryCounter::misses() const {
  uint64_t count = 0;
  if (file_ < 0 || read(file_, &count, sizeof count) != sizeof count) return std::nullopt;
  return static_cast<double>(count);
}

}  // namespace sparsed::tools
