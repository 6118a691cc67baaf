#include "engine/preparation/progress.h"

#include <utility>

namespace sparsed::engine {
namespace {

constexpr std::chrono::milliseconds kBetweenUpdates(100);

}  // namespace

Progress::Progress(Pattern& pattern, Observer& observer)
    : pattern_(pattern),
      observer_(observer),
      earlier_seconds_(pattern.progress().status().seconds) {}

void Progress::At(std::string_view stage, int64_t done, int64_t total) {
  const Clock::time_point now = Clock::now();
  if (stage != stage_) {
    Leave();
    stage_ = stage;
    stage_begin_ = now;
  } else if (now - told_ < kBetweenUpdates) {
    return;
  }
  told_ = now;
  pattern_.progress().Update([&](PreparationStatus& status) {
    status.stage = stage_;
    status.done = done;
    status.total = total;
    status.seconds = seconds();
  });
}

void Progress::Leave() {
  if (stage_.empty()) return;
  const std::chrono::duration<double> spent = Clock::now() - stage_begin_;
  observer_.OnPreparationStage(stage_, spent.count());
  stage_.clear();
  pattern_.progress().Update([&](PreparationStatus& status) {
    status.stage.clear();
    status.done = status.total = 0;
    status.seconds = seconds();
  });
}

void Progress::Say(std::string message) {
  pattern_.progress().Update([&](PreparationStatus& status) {
    status.message = std::move(message);
    status.seconds = seconds();
  });
}

double Progress::seconds() const {
  return earlier_seconds_ + std::chrono::duration<double>(Clock::now() - begin_).count();
}

}  // namespace sparsed::engine
