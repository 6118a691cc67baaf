// Gradient-boosted trees of XGBoost (Chen and Guestrin, KDD 2016), by the library's C interface,
// which is opened at run time: a machine without it has no models.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/planning/predictor.h"

namespace sparsed::engine {

/// Trees that give for a row of inputs one number for each output.
class Booster : public Predictor {
 public:
  /// From the bytes of a stored one. UNIMPLEMENTED: the library is not installed, or is none that
  /// we know; INVALID_ARGUMENT: these are none of its bytes, or not of so many inputs and outputs.
  static absl::StatusOr<std::unique_ptr<Booster>> Load(std::string_view bytes, int inputs,
                                                       int outputs);
  ~Booster() override;

  /// What the trees add up to; they do not read the map.
  absl::StatusOr<std::vector<double>> Predict(std::span<const float> row,
                                              const DensityMap& map) const override;

 private:
  Booster(void* handle, int inputs, int outputs)
      : handle_(handle), inputs_(inputs), outputs_(outputs) {}

  void* const handle_;
  const int inputs_, outputs_;
  /// What is predicted lies in the booster until the next prediction.
  mutable Mutex mutex_;
};

}  // namespace sparsed::engine
