// What trials on a pattern found: measurements, and what became of pipelines and kernels.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/catalog/plan.h"
#include "engine/store/pattern_pair.h"
#include "kernels/features/features.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// All that was measured on a pattern.
struct PatternMeasurements {
  std::string pattern_hash;
  std::shared_ptr<const Features> features;  ///< null: not known
  std::vector<Measurement> measurements;
  bool past = false;  ///< no matrix has the pattern any more
};

/// Thread-safe.
class TrialLog {
 public:
  std::vector<Measurement> measurements() const;
  /// Replaces one of the same signature, K, pipeline, kernel, device and pair.
  void Add(Measurement measurement);
  /// Replaces all; of each signature, K, pipeline, kernel, device and pair there is one.
  void SetMeasurements(std::vector<Measurement> measurements);
  /// Forgets the measurements of the signature; where `pair` is given, those of that pair alone.
  void Forget(const ProblemSignature& signature,
              const std::optional<PatternPair>& pair = std::nullopt);

  /// What became of pipelines, signature by signature.
  std::vector<Decision> decisions() const;
  /// Replaces those about the signature, which all of `decisions` are about; where `pair` is given,
  /// those about that pair alone.
  void SetDecisions(const ProblemSignature& signature, std::vector<Decision> decisions,
                    const std::optional<PatternPair>& pair = std::nullopt);

 private:
  mutable Mutex mutex_;
  std::vector<Measurement> measurements_ ABSL_GUARDED_BY(mutex_);
  std::vector<Decision> decisions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::engine
