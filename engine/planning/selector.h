// Selectors: which candidates are worth building and trying, and in which order. A trained model
// estimates; where there is none for a signature, the rules of candidates.h serve. Trials judge.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/planning/candidates.h"
#include "engine/planning/model.h"
#include "kernels/features/features.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// What trying a candidate may gain and costs.
struct Stakes {
  double default_ms = 0;     ///< the default's time, as measured
  double best_ms = 0;        ///< the least that was measured so far, the default's included
  bool is_built = false;     ///< the layout is there
  double least_speedup = 1;  ///< with less the best stays
  double requests = 0;       ///< that are expected
  double shared_error = 0;   ///< of the model's estimates, as trials showed it (SharedError)
  double shared_variance = 0;
};

/// Milliseconds that a request is expected to take less with the candidate than with the best,
/// where it is at least `least_speedup` times as fast (else the best stays): the mean of best -
/// time over those times, the logarithm (base 2) of time over the default's normal.
double ExpectedGain(double log2_ratio, double deviation, double default_ms, double best_ms,
                    double least_speedup = 1);

/// Whether what the candidate is expected to gain over all requests is more than building and
/// trying it takes, with a sentence without a full stop.
struct Worth {
  bool worth_trying = false;
  double net_ms = 0;  ///< the one less the other
  std::string reason;
};
Worth Weigh(const Promise& promise, const Stakes& stakes);

/// How near a choice came to the best of what was measured.
struct Choice {
  std::string pipeline, kernel;
  double share = 0;  ///< the least time measured over the choice's
};

/// Thread-safe.
class Selector {
 public:
  /// For signatures of its kind of devices; null: rules.
  void Use(DeviceKind device, std::shared_ptr<const Model> model);
  /// Watches what it would have chosen; null: nobody does.
  void Watch(DeviceKind device, std::shared_ptr<const Model> model);
  std::shared_ptr<const Model> used(DeviceKind device) const;
  std::shared_ptr<const Model> watched(DeviceKind device) const;

  /// As engine::CandidatesFor; with a model each has its promise, and those that it leaves out are
  /// not worth trying.
  std::vector<Candidate> CandidatesFor(const ProblemSignature& signature, const Features& features,
                                       const DeviceConstants& measured = DeviceConstants()) const;
  /// As engine::SpgemmCandidatesFor, of a pattern's square if `square`.
  std::vector<Candidate> SpgemmCandidatesFor(const Problem& problem, bool square,
                                             const Features* left, const Features* right) const;

  /// What the model would choose first for the signature, judged by what was measured of it (of a
  /// pair, if it is one's); none if its choice was not measured, or nothing is to be chosen.
  static std::optional<Choice> ChoiceOf(const Model& model, const ProblemSignature& signature,
                                        const Features& features,
                                        const std::vector<Measurement>& measured);

 private:
  struct Models {
    std::shared_ptr<const Model> used, watched;
  };
  Models ModelsFor(DeviceKind device) const;

  mutable Mutex mutex_;
  Models cpu_ ABSL_GUARDED_BY(mutex_), cuda_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::engine
