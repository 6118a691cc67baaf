#include "engine/catalog/pattern.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sparsed::engine {
namespace {

std::shared_ptr<const Layout> WithoutElements(const Layout& layout) {
  auto description = std::make_shared<Layout>(layout);
  for (Array& array : description->arrays) array.buffer = Buffer();
  return description;
}

}  // namespace

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

Pattern::Pattern(std::string hash, int64_t rows, int64_t cols, int64_t nnz,
                 std::shared_ptr<LazyLayout> csr)
    : hash_(std::move(hash)), rows_(rows), cols_(cols), nnz_(nnz), csr_(std::move(csr)) {}

std::vector<Pattern::BuiltEntry> Pattern::Layouts() const {
  const MutexLock lock(mutex_);
  std::vector<BuiltEntry> entries;
  for (const auto& [recipe, entry] : layouts_) entries.push_back(entry);
  return entries;
}

std::shared_ptr<LazyLayout> Pattern::FindLayout(const std::string& recipe) const {
  const MutexLock lock(mutex_);
  const auto found = layouts_.find(recipe);
  return found == layouts_.end() ? nullptr : found->second.layout;
}

void Pattern::AddLayout(std::shared_ptr<const Layout> layout, double build_seconds) {
  auto description = WithoutElements(*layout);
  auto lazy = std::make_shared<LazyLayout>(std::move(layout));
  const MutexLock lock(mutex_);
  const std::string recipe = description->recipe;
  layouts_[recipe] = {std::move(description), std::move(lazy), build_seconds};
}

void Pattern::AddLayout(const Layout& description, LazyLayout::DiskCopy disk,
                        double build_seconds) {
  auto lazy = std::make_shared<LazyLayout>(std::move(disk));
  const MutexLock lock(mutex_);
  layouts_[description.recipe] = {WithoutElements(description), std::move(lazy), build_seconds};
}

void Pattern::DropLayout(const std::string& recipe) {
  const MutexLock lock(mutex_);
  layouts_.erase(recipe);
}

void Pattern::DropLayout(const std::shared_ptr<const LazyLayout>& layout) {
  const MutexLock lock(mutex_);
  std::erase_if(layouts_, [&](const auto& entry) { return entry.second.layout == layout; });
}

std::shared_ptr<const Features> Pattern::features() const {
  const MutexLock lock(mutex_);
  return features_;
}

void Pattern::SetFeatures(std::shared_ptr<const Features> features) {
  const MutexLock lock(mutex_);
  features_ = std::move(features);
}

PreparationStatus Pattern::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

std::vector<Measurement> Pattern::measurements() const {
  const MutexLock lock(mutex_);
  return measurements_;
}

void Pattern::AddMeasurement(Measurement measurement) {
  const MutexLock lock(mutex_);
  for (Measurement& known : measurements_) {
    if (known.problem_class == measurement.problem_class && known.recipe == measurement.recipe &&
        known.kernel == measurement.kernel && known.device == measurement.device &&
        known.k == measurement.k && known.pair == measurement.pair) {
      known = std::move(measurement);
      return;
    }
  }
  measurements_.push_back(std::move(measurement));
}

void Pattern::SetMeasurements(std::vector<Measurement> measurements) {
  const MutexLock lock(mutex_);
  measurements_ = std::move(measurements);
}

void Pattern::ForgetMeasurements(const ProblemClass& problem_class,
                                 const std::optional<PatternPair>& pair) {
  const MutexLock lock(mutex_);
  std::erase_if(measurements_, [&](const Measurement& m) {
    return m.problem_class == problem_class && (!pair || m.pair == pair);
  });
}

std::vector<Decision> Pattern::decisions() const {
  const MutexLock lock(mutex_);
  return decisions_;
}

void Pattern::SetDecisions(const ProblemClass& problem_class, std::vector<Decision> decisions,
                           const std::optional<PatternPair>& pair) {
  const MutexLock lock(mutex_);
  std::erase_if(decisions_, [&](const Decision& d) {
    return d.problem_class == problem_class && (!pair || d.pair == pair);
  });
  std::ranges::move(decisions, std::back_inserter(decisions_));
}

void Pattern::UpdateStatus(const std::function<void(PreparationStatus&)>& change) {
  const MutexLock order(watchers_mutex_);
  PreparationStatus now;
  {
    const MutexLock lock(mutex_);
    change(status_);
    now = status_;
  }
  for (const auto& [id, watcher] : watchers_) watcher(now);
}

int64_t Pattern::Watch(Watcher watcher) {
  const MutexLock order(watchers_mutex_);
  watcher(status());
  const int64_t id = next_watcher_++;
  watchers_.emplace(id, std::move(watcher));
  return id;
}

void Pattern::Unwatch(int64_t id) {
  const MutexLock order(watchers_mutex_);
  watchers_.erase(id);
}

}  // namespace sparsed::engine
