// Where a preparation stands: stages into the pattern's status and the observer.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/catalog/pattern.h"
#include "engine/observer.h"

namespace sparsed::engine {

/// Times stages and tells whoever watches the pattern, a few times a second at most. Used by one
/// thread.
class Progress {
 public:
  Progress(Pattern& pattern, Observer& observer);
  /// Ends the stage under way.
  ~Progress() { Leave(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Begins a stage, unless it is the one under way, and says how far it is.
  void At(std::string_view stage, int64_t done, int64_t total);
  /// Ends the stage under way.
  void Leave();
  /// A layout was built, in `seconds`.
  void Built(std::string_view kind, std::string_view device, double seconds) {
    observer_.OnLayoutBuilt(kind, device, seconds);
  }
  /// For people: what just happened.
  void Say(std::string message);
  /// Since the beginning, and those of earlier preparations of the pattern.
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  Pattern& pattern_;
  Observer& observer_;
  const double earlier_seconds_;
  const Clock::time_point begin_ = Clock::now();
  std::string stage_;
  Clock::time_point stage_begin_;
  Clock::time_point told_;
};

}  // namespace sparsed::engine
