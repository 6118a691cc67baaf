#include "engine/store/store_watcher.h"

#include <chrono>
#include <utility>

#include "base/sleep.h"

namespace sparsed::engine {

StoreWatcher::StoreWatcher(Store& store, std::function<void(const absl::Status&)> changed)
    : store_(store),
      changed_(std::move(changed)),
      thread_([this](const std::stop_token& end) { Watch(end); }) {}

void StoreWatcher::Watch(const std::stop_token& end) {
  constexpr std::chrono::seconds kBetweenLooks{1};
  do {
    const absl::Status status = store_.Available();
    // What else went wrong says nothing either way.
    if (status.ok() || absl::IsUnavailable(status)) {
      const bool was_gone = gone_.exchange(!status.ok());
      if (was_gone == status.ok()) changed_(status);
    }
  } while (SleepFor(kBetweenLooks, end));
}

}  // namespace sparsed::engine
