// Sleeping in a thread that may be told to stop meanwhile.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>

namespace sparsed {

/// Sleeps for so long, or until it is told to stop: then it returns false.
inline bool SleepFor(std::chrono::duration<double> time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  return !stopped.wait_for(lock, stop, time, [&stop] { return stop.stop_requested(); });
}

}  // namespace sparsed
