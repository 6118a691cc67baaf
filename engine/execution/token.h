// Deadline and cancellation are one token, looked at on every stage's threshold and inside every
// long stage.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"

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
  mutable Mutex mutex_;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

/// One thread that stops tokens with DEADLINE_EXCEEDED when their time has come.
class DeadlineTimer {
 public:
  using Clock = std::chrono::steady_clock;

  DeadlineTimer();
  ~DeadlineTimer();
  /// A deadline that is watched; the number tells equal deadlines apart.
  using Ticket = std::pair<Clock::time_point, uint64_t>;
  /// Stops `token` at `deadline`, unless nobody holds it any more by then.
  Ticket Watch(std::weak_ptr<Token> token, Clock::time_point deadline);
  /// Nothing is left to stop. Harmless if it came too late.
  void Forget(const Ticket& ticket);
  /// Deadlines that have neither come nor been forgotten.
  size_t watched() const;

 private:
  void Run();

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<Ticket, std::weak_ptr<Token>> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sparsed::engine
