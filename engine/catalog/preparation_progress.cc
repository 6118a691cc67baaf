#include "engine/catalog/preparation_progress.h"

#include <utility>

namespace sparsed::engine {

std::string_view Name(PreparationState state) {
  switch (state) {
    case PreparationState::kQueued:
      return "QUEUED";
    case PreparationState::kPreparing:
      return "PREPARING";
    case PreparationState::kReady:
      return "READY";
    case PreparationState::kFailed:
      return "FAILED";
  }
  return "UNKNOWN";
}

PreparationStatus PreparationProgress::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

void PreparationProgress::Update(const std::function<void(PreparationStatus&)>& change) {
  const MutexLock order(watchers_mutex_);
  PreparationStatus now;
  {
    const MutexLock lock(mutex_);
    change(status_);
    now = status_;
  }
  for (const auto& [id, watcher] : watchers_) watcher(now);
}

int64_t PreparationProgress::Watch(Watcher watcher) {
  const MutexLock order(watchers_mutex_);
  watcher(status());
  const int64_t id = next_watcher_++;
  watchers_.emplace(id, std::move(watcher));
  return id;
}

void PreparationProgress::Unwatch(int64_t id) {
  const MutexLock order(watchers_mutex_);
  watchers_.erase(id);
}

}  // namespace sparsed::engine
