// A trained model: for a problem signature on a pattern, how long each candidate takes over the
// default, and how long its layout takes to build. A directory of a manifest and of boosted trees
// (booster.h) or networks (network.h), made by tools/train. It is trusted as a program is:
// checksums find damage, not malice.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/planning/estimate.h"
#include "engine/planning/model_input.h"
#include "engine/planning/predictor.h"
#include "kernels/device_id.h"
#include "kernels/features/features.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// Files of a model, with its manifest.
inline constexpr size_t kMostModelFiles = 32;

/// Whether a model, or a file of one, can be called so: letters, digits, '-', '_' and '.', not in
/// front; at most 64.
bool IsModelName(std::string_view text);

/// Immutable. Thread-safe.
class Model {
 public:
  /// File names and their bytes: "manifest.json" and what it names.
  using Files = std::map<std::string, std::string>;

  /// Reads the directory's manifest and the files that it names. NOT_FOUND: the manifest, or a file
  /// that it names, is not there; INVALID_ARGUMENT: a file is too large, or what FromFiles says.
  static absl::StatusOr<std::shared_ptr<const Model>> Load(const std::string& directory);
  /// INVALID_ARGUMENT: something is damaged, or is not as the manifest says; FAILED_PRECONDITION:
  /// it was trained for other kernels or features than there are here; UNIMPLEMENTED: there is no
  /// library to run it.
  static absl::StatusOr<std::shared_ptr<const Model>> FromFiles(const Files& files);
  static absl::StatusOr<Files> ReadFiles(const std::string& directory);

  const std::string& name() const { return name_; }
  DeviceKind device() const { return device_; }
  /// What it was measured on, for people: "NVIDIA H100 80GB HBM3".
  const std::string& device_model() const { return device_model_; }
  const std::string& created() const { return created_; }
  /// How many patterns it was trained on.
  int64_t patterns() const { return patterns_; }

  /// It was trained for such a signature. Of products it knows squares alone.
  bool Covers(const ProblemSignature& signature) const;
  /// Whether it was trained on measurements of the pipeline for such a signature: if it has no
  /// estimate of that, the pipeline was hardly ever among the fastest. Pipelines that came later it
  /// has not seen; that is told of models that say what was measured.
  bool HasSeen(const ProblemSignature& signature, const std::string& pipeline) const;
  /// Of the error that its estimates for such a signature have in common; 0 of one that it does not
  /// cover.
  double SharedDeviation(const ProblemSignature& signature) const;
  /// Of every candidate that it knows, for a signature that it covers. INTERNAL.
  absl::StatusOr<std::vector<Estimate>> EstimateTimes(const ProblemSignature& signature,
                                                      const Features& features) const;
  /// Seconds to build each pipeline that it knows; of patterns larger than any that it was trained
  /// on in proportion. INTERNAL.
  absl::StatusOr<std::map<std::string, double>> EstimateBuilding(const ProblemSignature& signature,
                                                                 const Features& features) const;

 private:
  struct Group {
    Operation operation = Operation::kSpmm;
    bool transposed = false;
    std::vector<std::string> types;  ///< "f32", "tf32", ...
    int64_t least_k = 0, most_k = 0;
    std::vector<Estimate> candidates;  ///< without a ratio
    /// Pipelines that it was trained on measurements of; not given: all that there are.
    std::optional<std::vector<std::string>> measured;
    double shared_deviation = 0;
    std::unique_ptr<const Predictor> times;
  };

  Model() = default;
  const Group* GroupOf(const ProblemSignature& signature) const;
  std::vector<float> InputsOf(const ProblemSignature& signature, const Features& features) const;

  std::string name_, device_model_, created_;
  DeviceKind device_ = DeviceKind::kCpu;
  int64_t patterns_ = 0;
  double most_nonzeros_ = 0;  ///< of a pattern that it was trained on; 0: not known
  std::vector<ModelInput> inputs_;
  std::vector<Group> groups_;
  std::vector<std::string> built_;  ///< pipelines
  std::unique_ptr<const Predictor> building_;
};

}  // namespace sparsed::engine
