#include "engine/execution/token.h"

namespace sparsed::engine {

void Token::Stop(absl::Status reason) {
  {
    const MutexLock lock(mutex_);
    if (!reason_.ok()) return;
    reason_ = std::move(reason);
    stop_.store(true, std::memory_order_release);
  }
  on_stop_();
}

absl::Status Token::status() const {
  const MutexLock lock(mutex_);
  return reason_;
}

DeadlineTimer::DeadlineTimer() : thread_([this] { Run(); }) {}

DeadlineTimer::~DeadlineTimer() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

DeadlineTimer::Ticket DeadlineTimer::Watch(std::weak_ptr<Token> token, Clock::time_point deadline) {
  bool earliest = false;
  Ticket ticket;
  {
    const MutexLock lock(mutex_);
    ticket = {deadline, next_number_++};
    const auto entry = entries_.emplace(ticket, std::move(token)).first;
    earliest = entry == entries_.begin();
  }
  if (earliest) changed_.NotifyAll();
  return ticket;
}

void DeadlineTimer::Forget(const Ticket& ticket) {
  const MutexLock lock(mutex_);
  entries_.erase(ticket);
}

size_t DeadlineTimer::watched() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

void DeadlineTimer::Run() {
  MutexLock lock(mutex_);
  while (!closing_) {
    if (entries_.empty()) {
      changed_.Wait(mutex_);
      continue;
    }
    const Clock::time_point next = entries_.begin()->first.first;
    if (Clock::now() < next) {
      changed_.WaitUntil(mutex_, next);
      continue;
    }
    const std::weak_ptr<Token> token = std::move(entries_.extract(entries_.begin()).mapped());
    lock.Unlock();
    if (const std::shared_ptr<Token> alive = token.lock()) {
      alive->Stop(absl::DeadlineExceededError("the request's time was up before it ended"));
    }
    lock.Lock();
  }
}

}  // namespace sparsed::engine
