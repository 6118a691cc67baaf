// Graphs that are too large to be made: one of the same kind that is not, in which each card has
// its share of the rows and nonzeros, and what each counts is a share of all rows.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/corpus/pattern.h"

namespace sparsed::tools {

/// Nonzeros of the largest pattern that is generated.
inline constexpr int64_t kMostGenerated = int64_t{1} << 27;

struct SyntheticGraph {
  int64_t rows = 0, nonzeros = 0;  ///< square
  /// Of tools/corpus/graphs.h: "power_law" (ChungLu: no part of it is apart from the rest), "rmat",
  /// "blocks" (StochasticBlocks: communities that follow each other); or "uniform".
  std::string generator = "power_law";
  double exponent = 0.75;  ///< of power_law: popularity falls as rank^-exponent; 0.5, 0.75 or 1
  int inside = 900;        ///< of blocks: edges that stay in their community, in a thousand
  int64_t blocks = 1024;   ///< communities
  uint64_t seed = 1;
};

/// With `rows` rows (of rmat: the power of two below) and as many nonzeros a row, within 1 %.
/// INVALID_ARGUMENT: no such generator or exponent; too dense, or too large, to be generated.
absl::StatusOr<corpus::Pattern> Generate(const SyntheticGraph& graph, int64_t rows);

}  // namespace sparsed::tools
