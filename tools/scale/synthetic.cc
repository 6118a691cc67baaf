#include "tools/scale/synthetic.h"

#include <fmt/format.h>

#include <bit>

#include "tools/corpus/assemble.h"
#include "tools/corpus/graphs.h"
#include "tools/corpus/random.h"

namespace sparsed::tools {
namespace {

using corpus::Pattern;

/// About `draws` nonzeros in `rows` rows, fewer where some are drawn twice.
Pattern Draw(const SyntheticGraph& graph, int64_t rows, int64_t draws) {
  if (graph.generator == "rmat") {
    return corpus::Rmat(static_cast<int>(std::bit_width(static_cast<uint64_t>(rows))) - 1, draws,
                        {}, graph.seed);
  }
  if (graph.generator == "blocks") {
    return corpus::StochasticBlocks(rows, draws / rows + 1,
                                    {.blocks = graph.blocks, .inside = graph.inside}, graph.seed);
  }
  if (graph.generator == "power_law") {
    const auto falloff = graph.exponent == 0.5    ? corpus::Falloff::kHalf
                         : graph.exponent == 0.75 ? corpus::Falloff::kThreeQuarters
                                                  : corpus::Falloff::kOne;
    return corpus::ChungLu(rows, draws, falloff, graph.seed);
  }
  const corpus::Dice dice(graph.seed);
  return corpus::FromEdges(rows, rows, draws, [&](int64_t i) {
    return corpus::Edge{dice.Below(rows, 2 * i), dice.Below(rows, 2 * i + 1)};
  });
}

/// Each nonzero is kept with this chance.
void Thin(Pattern& pattern, double chance, uint64_t seed) {
  const corpus::Dice dice(seed);
  int64_t from = 0, to = 0;
  for (int64_t row = 0; row < pattern.rows; ++row) {
    for (const int64_t end = pattern.row_offsets[row + 1]; from < end; ++from) {
      if (dice.Unit(from) < chance) pattern.column_indices[to++] = pattern.column_indices[from];
    }
    pattern.row_offsets[row + 1] = to;
  }
  pattern.column_indices.resize(to);
}

absl::Status Check(const SyntheticGraph& graph, double wanted) {
  const std::string& name = graph.generator;
  if (name != "power_law" && name != "rmat" && name != "blocks" && name != "uniform") {
    return absl::InvalidArgumentError(fmt::format(
        "no generator is called {}: known are power_law, rmat, blocks and uniform", name));
  }
  if (name == "power_law" && graph.exponent != 0.5 && graph.exponent != 0.75 &&
      graph.exponent != 1) {
    return absl::InvalidArgumentError(
        fmt::format("the exponent is 0.5, 0.75 or 1, not {}", graph.exponent));
  }
  if (wanted > static_cast<double>(kMostGenerated)) {
    return absl::InvalidArgumentError(fmt::format(
        "{:.0f} nonzeros would be generated, {} at most: take fewer rows (--generated-rows)",
        wanted, kMostGenerated));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Pattern> Generate(const SyntheticGraph& graph, int64_t rows) {
  if (graph.generator == "rmat")
    rows = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows)));
  const double wanted = static_cast<double>(graph.nonzeros) / static_cast<double>(graph.rows) *
                        static_cast<double>(rows);
  if (absl::Status status = Check(graph, wanted); !status.ok()) return status;
  // Some are drawn twice; what is too much goes.
  double draws = 1.1 * wanted + 10;
  for (int attempt = 0; attempt < 4; ++attempt, draws *= 1.5) {
    Pattern pattern = Draw(graph, rows, static_cast<int64_t>(draws));
    const auto nnz = static_cast<double>(pattern.nnz());
    if (nnz < 0.99 * wanted) continue;
    if (nnz > wanted) Thin(pattern, wanted / nnz, graph.seed + 2);
    return pattern;
  }
  return absl::InvalidArgumentError(fmt::format(
      "{:.0f} nonzeros a row are too many for {} of {} rows: take more rows (--generated-rows)",
      wanted / static_cast<double>(rows), graph.generator, rows));
}

}  // namespace sparsed::tools
