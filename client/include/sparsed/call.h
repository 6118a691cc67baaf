// A call under way.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsed {
inline namespace client {

/// What a call that brings a T ends with.
template <typename T>
using Result = std::conditional_t<std::is_void_v<T>, absl::Status, absl::StatusOr<T>>;

/// Shared by a Call and the transport. Thread-safe.
template <typename T>
class CallState {
 public:
  /// Runs in the thread that waits, before the result is handed out. Dropped if nobody waits.
  void Post(std::function<void()> event) {
    const std::lock_guard lock(mutex_);
    if (discarding_) return;
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  void Complete(Result<T> result) {
    const std::lock_guard lock(mutex_);
    result_.emplace(std::move(result));
    changed_.notify_all();
  }

  /// For events: the call ends with `error` even if its result is there already.
  void Overrule(absl::Status error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_.emplace(std::move(error));
  }

  /// Who waits, or asks whether the call is done, first calls `wait` in its own thread, which may
  /// bring the end about. It returns when it can do no more for the call, or when `end` has come
  /// (none: it never does). Set before anybody waits.
  void WaitWith(
      std::function<void(std::optional<std::chrono::steady_clock::time_point> end)> wait) {
    wait_ = std::move(wait);
  }

  bool Overruled() const {
    const std::lock_guard lock(mutex_);
    return error_.has_value();
  }

  bool Done() const {
    if (wait_) wait_(std::chrono::steady_clock::time_point::min());
    const std::lock_guard lock(mutex_);
    return result_.has_value() && events_.empty();
  }

  /// Runs events until the call is done or the time is over; whether it is done.
  bool WaitUntil(std::optional<std::chrono::steady_clock::time_point> end) {
    if (wait_) wait_(end);
    std::unique_lock lock(mutex_);
    const auto something = [this] { return result_.has_value() || !events_.empty(); };
    while (true) {
      if (!end) {
        changed_.wait(lock, something);
      } else if (!changed_.wait_until(lock, *end, something)) {
        return false;
      }
      if (events_.empty()) return true;
      const std::function<void()> event = std::move(events_.front());
      events_.pop_front();
      lock.unlock();
      event();
      lock.lock();
    }
  }

  Result<T> Take() {
    const std::lock_guard lock(mutex_);
    if (error_) return *std::move(error_);
    return *std::move(result_);
  }

  void DiscardEvents() {
    const std::lock_guard lock(mutex_);
    discarding_ = true;
    events_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(std::optional<std::chrono::steady_clock::time_point>)> wait_;
  std::deque<std::function<void()>> events_;
  bool discarding_ = false;
  std::optional<Result<T>> result_;
  std::optional<absl::Status> error_;
};

/// A call under way that brings a T (or, for void, a status alone). Callbacks given to the call run
/// inside Wait() and WaitFor(), in the waiting thread. The memory that was given to the call must
/// stay until the call is done; destroying a Call cancels it and waits until that memory is free.
template <typename T>
class [[nodiscard]] Call {
 public:
  Call(std::shared_ptr<CallState<T>> state, std::function<void()> cancel)
      : state_(std::move(state)), cancel_(std::move(cancel)) {}
  Call(Call&&) noexcept = default;
  Call& operator=(Call&& other) noexcept {
    if (this != &other) {
      Abandon();
      state_ = std::move(other.state_);
      cancel_ = std::move(other.cancel_);
    }
    return *this;
  }
  ~Call() { Abandon(); }

  /// Waits until the call is done and takes its result. Once only.
  Result<T> Wait() {
    if (!state_) return absl::FailedPreconditionError("the result of this call was taken already");
    state_->WaitUntil(std::nullopt);
    Result<T> result = state_->Take();
    state_.reset();
    return result;
  }

  /// Waits no longer than that; whether the call is done.
  bool WaitFor(std::chrono::nanoseconds timeout) {
    return !state_ || state_->WaitUntil(std::chrono::steady_clock::now() + timeout);
  }

  /// Whether Wait() would return at once.
  bool Done() const { return !state_ || state_->Done(); }

  /// Asks the call to end early with CANCELLED; it may still end otherwise if it was faster.
  void Cancel() {
    if (state_) cancel_();
  }

 private:
  void Abandon() {
    if (!state_) return;
    cancel_();
    state_->DiscardEvents();
    state_->WaitUntil(std::nullopt);
    state_.reset();
  }

  std::shared_ptr<CallState<T>> state_;
  // Also keeps the connection until the call has ended.
  std::function<void()> cancel_;
};

}  // namespace client
}  // namespace sparsed
