// What a model's boosters read: features of a pattern, what the problem says, and quotients and
// products of them, which trees, that compare one number at a time, cannot make themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/features/features.h"
#include "kernels/problem.h"

namespace sparsed::engine {

class ModelInput {
 public:
  /// One of kFeatureFields' names, "distance_N" (the share of the distances that are in bin N), "k"
  /// (0 of SpGEMM), "value_bytes" or "tf32" (1: allowed), or several of them with '*' and '/'
  /// between them, from left to right: "cols*k*value_bytes". None if it names what there is not.
  static std::optional<ModelInput> Parse(std::string_view text);

  /// 0 where something is divided by 0.
  double Of(const ProblemSignature& signature, const Features& features) const;

 private:
  enum class Said : uint8_t { kK, kValueBytes, kTf32 };
  struct DistanceBin {
    int number = 0;
  };
  struct Factor {
    bool divides = false;
    std::variant<Said, DistanceBin, double Features::*> number;
  };

  static std::optional<Factor> ParseFactor(std::string_view name);
  static double Of(const Factor& factor, const ProblemSignature& signature,
                   const Features& features);

  std::vector<Factor> factors_;
};

}  // namespace sparsed::engine
