// What a file of a model holds, trees or a network: it gives numbers for a pattern and a problem.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/features/density_map.h"

namespace sparsed::engine {

/// Thread-safe.
class Predictor {
 public:
  Predictor() = default;
  virtual ~Predictor() = default;
  Predictor(const Predictor&) = delete;
  Predictor& operator=(const Predictor&) = delete;

  /// One number, finite, for each of the outputs that it was loaded for. `row`: the model's inputs,
  /// as many as it was loaded for; `map`: of the pattern. INTERNAL.
  virtual absl::StatusOr<std::vector<double>> Predict(std::span<const float> row,
                                                      const DensityMap& map) const = 0;
};

}  // namespace sparsed::engine
