// How a dense matrix lies on the GPUs of a server that has several.
#pragma once

#include <cstdint>
#include <string_view>

namespace sparsed::engine {

enum class Distribution : uint8_t {
  kWhole,    ///< on the one that computed it; copied to others that use it
  kColumns,  ///< each has as many of its columns, side by side
  kRows,     ///< each has rows of it, one after the other
  kAuto,     ///< as is best for a matrix that it is multiplied with: of a Put alone
};
/// "whole", "columns", "rows", "auto".
constexpr std::string_view Name(Distribution distribution) {
  switch (distribution) {
    case Distribution::kWhole:
      return "whole";
    case Distribution::kColumns:
      return "columns";
    case Distribution::kRows:
      return "rows";
    case Distribution::kAuto:
      return "auto";
  }
  return "";
}

/// What was tried of one signature of a matrix.
struct TriedDistribution {
  Distribution best = Distribution::kWhole;
  int gpus = 0;         ///< that there were
  double whole_ms = 0;  ///< a request whose operand and result lie on one of them, ...
  double best_ms = 0;   ///< ... and one whose lie as is best

  friend bool operator==(const TriedDistribution&, const TriedDistribution&) = default;
};

}  // namespace sparsed::engine
