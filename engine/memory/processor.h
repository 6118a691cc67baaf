// The processor: its name, and the rate of its memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace sparsed::engine {

/// As /proc/cpuinfo has it, what is not ASCII as '?'; "CPU" where that says nothing. Read once.
const std::string& ProcessorName();

/// Processor time that the clock (CLOCK_THREAD_CPUTIME_ID: of the calling thread) has counted.
double ProcessorSeconds(clockid_t clock);

/// Of the last level cache; what is usual where the machine does not say.
int64_t LastLevelCacheBytes();
/// Likewise of the cache before it, which each processor has for itself.
int64_t InnerCacheBytes();

/// One try at copying.
struct CopyTry {
  double bytes_per_second = 0;
  /// Processor time of the threads that copy over the time of all of them: below 1, others ran on
  /// their processors.
  double processor_share = 1;
  /// The same with the time of the whole process: above 1, it had other work, too.
  double process_share = 1;
};

/// Bytes a second that all threads of a worker slot together copy (read and written both count):
/// the best of several short tries, over arrays larger than most caches. On a busy machine that may
/// be less than there is; so it says whether it was quiet, and is measured again (Executor). It is
/// never below what a kernel was seen to reach. Thread-safe.
class MemoryRate {
 public:
  static constexpr size_t kBytes = size_t{64} << 20;  ///< of each of the two arrays

  /// Measures for the first time, in arrays of its own. Takes some 50 ms.
  explicit MemoryRate(int threads);

  double bytes_per_second() const {
    return std::max(copied_.load(std::memory_order_relaxed), seen_.load(std::memory_order_relaxed));
  }
  /// The last tries agreed, and nobody else ran: another measurement would say the same.
  bool quiet() const { return quiet_.load(std::memory_order_relaxed); }
  /// It was not quiet, and that was a minute ago or more.
  bool due() const;
  /// Once more, in two arrays of kBytes.
  void Measure(std::span<std::byte> from, std::span<std::byte> to);
  /// Takes tries for a measurement: quiet ones replace what was known, others only raise it.
  void Take(std::vector<CopyTry> tries);
  /// A kernel moved that many bytes a second between memory and the caches.
  void Saw(double bytes_per_second);

 private:
  const int threads_;
  Mutex mutex_;  ///< one measurement at a time
  std::atomic<double> copied_{0}, seen_{0};
  std::atomic<bool> quiet_{false};
  std::atomic<std::chrono::steady_clock::time_point> taken_{};
};

}  // namespace sparsed::engine
