#include "engine/catalog/trial_log.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sparsed::engine {

std::vector<Measurement> TrialLog::measurements() const {
  const MutexLock lock(mutex_);
  return measurements_;
}

void TrialLog::Add(Measurement measurement) {
  const MutexLock lock(mutex_);
  for (Measurement& known : measurements_) {
    if (known.signature == measurement.signature && known.pipeline == measurement.pipeline &&
        known.kernel == measurement.kernel && known.device == measurement.device &&
        known.k == measurement.k && known.pair == measurement.pair) {
      known = std::move(measurement);
      return;
    }
  }
  measurements_.push_back(std::move(measurement));
}

void TrialLog::SetMeasurements(std::vector<Measurement> measurements) {
  const MutexLock lock(mutex_);
  measurements_ = std::move(measurements);
}

void TrialLog::Forget(const ProblemSignature& signature, const std::optional<PatternPair>& pair) {
  const MutexLock lock(mutex_);
  std::erase_if(measurements_, [&](const Measurement& m) {
    return m.signature == signature && (!pair || m.pair == pair);
  });
}

std::vector<Decision> TrialLog::decisions() const {
  const MutexLock lock(mutex_);
  return decisions_;
}

void TrialLog::SetDecisions(const ProblemSignature& signature, std::vector<Decision> decisions,
                            const std::optional<PatternPair>& pair) {
  const MutexLock lock(mutex_);
  std::erase_if(decisions_, [&](const Decision& d) {
    return d.signature == signature && (!pair || d.pair == pair);
  });
  std::ranges::move(decisions, std::back_inserter(decisions_));
}

}  // namespace sparsed::engine
