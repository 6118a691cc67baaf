// Which chains several GPUs can compute, each with its columns of every value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/execution/call.h"

namespace sparsed::engine {

/// A chain that is computed column by column.
struct ColumnChain {
  /// For each operand: each part takes its columns, in the place of all.
  std::vector<bool> by_columns;
  /// Of one part: with its heads.
  std::vector<ChainStep> steps;
};

/// `columns` are those of the chain's operands, `parts` the number of blocks that they come in.
/// Without heads any columns will do; with them, as many for each part: where their number does not
/// allow that, and where a step needs whole rows, there is none. Of shapes no more is looked at
/// than parts could not find wrong.
std::optional<ColumnChain> ByColumns(const ChainSpec& spec, std::span<const int64_t> columns,
                                     int64_t parts);

/// The matrix that a step names; null: none.
const std::string* MatrixOf(const ChainStep& step);

}  // namespace sparsed::engine
