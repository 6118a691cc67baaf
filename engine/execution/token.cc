#include "engine/execution/token.h"

namespace sparsed::engine {

void Token::Stop(absl::Status reason) {
  {
    std::lock_guard lock(mutex_);
    if (!reason_.ok()) return;
    reason_ = std::move(reason);
    stop_.store(true, std::memory_order_release);
  }
  on_stop_();
}

absl::Status Token::status() const {
  std::lock_guard lock(mutex_);
  return reason_;
}

DeadlineTimer::DeadlineTimer() : thread_([this] { Run(); }) {}

DeadlineTimer::~DeadlineTimer() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

DeadlineTimer::Ticket DeadlineTimer::Watch(std::weak_ptr<Token> token, Clock::time_point deadline) {
  bool earliest = false;
  Ticket ticket;
  {
    std::lock_guard lock(mutex_);
    ticket = {deadline, next_number_++};
    const auto entry = entries_.emplace(ticket, std::move(token)).first;
    earliest = entry == entries_.begin();
  }
  if (earliest) changed_.notify_all();
  return ticket;
}

void DeadlineTimer::Forget(const Ticket& ticket) {
  std::lock_guard lock(mutex_);
  entries_.erase(ticket);
}

size_t DeadlineTimer::watched() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

void DeadlineTimer::Run() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (entries_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Clock::time_point next = entries_.begin()->first.first;
    if (Clock::now() < next) {
      changed_.wait_until(lock, next);
      continue;
    }
    const std::weak_ptr<Token> token = std::move(entries_.extract(entries_.begin()).mapped());
    lock.unlock();
    if (const std::shared_ptr<Token> alive = token.lock()) {
      alive->Stop(absl::DeadlineExceededError("the request's time was up before it ended"));
    }
    lock.lock();
  }
}

}  // namespace sparsed::engine
