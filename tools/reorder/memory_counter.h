// The CPU's own count of what came from memory.
#pragma once

#include <optional>

namespace sparsed::tools {

/// Misses of the last level cache by this thread and those that it starts, if the machine lets us
/// count them (perf_event_open; virtual machines and containers often do not).
class MemoryCounter {
 public:
  MemoryCounter();
  ~MemoryCounter();
  MemoryCounter(const MemoryCounter&) = delete;
  MemoryCounter& operator=(const MemoryCounter&) = delete;

  /// Lines fetched since the beginning; none if they are not counted.
  std::optional<double> misses() const;

 private:
  int file_;
};

}  // namespace sparsed::tools
