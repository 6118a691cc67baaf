// Deadline and cancellation are one token, looked at on every stage's threshold and inside every
// long stage.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace sparsed::engine {

/// Thread-safe. The first reason to stop stays.
class Token {
 public:
  /// `on_stop` is called once, by whoever stops it; it does not block.
  explicit Token(std::function<void()> on_stop) : on_stop_(std::move(on_stop)) {}

  /// Stops with `reason` (not OK).
  void Stop(absl::Status reason);
  bool stopped() const { return stop_.load(std::memory_order_acquire); }
  /// What kernels look at.
  const std::atomic<bool>* flag() const { return &stop_; }
  /// OK, or the reason.
  absl::Status status() const;

 private:
  const std::function<void()> on_stop_;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  absl::Status reason_;
};

/// One thread that stops tokens with DEADLINE_EXCEEDED when their time has come.
class DeadlineTimer {
 public:
  using Clock = std::chrono::steady_clock;

  DeadlineTimer();
  ~DeadlineTimer();
  /// Stops `token` at `deadline`, unless nobody holds it any more by then.
  void Watch(std::weak_ptr<Token> token, Clock::time_point deadline);

 private:
  struct Entry {
    Clock::time_point deadline;
    std::weak_ptr<Token> token;
    bool operator>(const Entry& other) const { return deadline > other.deadline; }
  };
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> entries_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace sparsed::engine
