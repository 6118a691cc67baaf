// The products that SpGEMM's kernels are chosen for.
#pragma once

#include <compare>
#include <string>

namespace sparsed::engine {

/// What a pattern, the left one, is multiplied with, and which of both are transposed.
struct PatternPair {
  std::string right;  ///< the other pattern's hash
  bool transpose_left = false, transpose_right = false;

  friend auto operator<=>(const PatternPair&, const PatternPair&) = default;
};

}  // namespace sparsed::engine
