// What builders that move rows share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/pipeline.h"
#include "kernels/problem.h"

namespace sparsed {

/// Calls `use` with the array as a span of its own index type.
template <typename Use>
void WithSource(Array& source, Use use) {
  if (source.type == ElementType::kI32) {
    use(source.MutableAs<int32_t>());
  } else {
    use(source.MutableAs<int64_t>());
  }
}

/// Calls `visit(row)` for every row of [0, rows) from the context's threads until it is stopped.
template <typename Visit>
void ForEachRow(int64_t rows, const BuildContext& context, Visit visit) {
  constexpr int64_t kBlock = 1 << 10;
#pragma omp parallel for num_threads(context.TeamFor(rows)) schedule(dynamic, 1)
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    if (context.stopped()) continue;
    for (int64_t row = begin; row < std::min(begin + kBlock, rows); ++row) visit(row);
  }
}

/// Row offsets when row r is the one that was at order[r].
inline absl::StatusOr<Array> PermuteOffsets(std::span<const int64_t> offsets,
                                            std::span<const int32_t> order,
                                            const BuildContext& context) {
  const int64_t rows = static_cast<int64_t>(order.size());
  auto result = AllocateArray(*context.memory, "row_offsets", ElementType::kI64, rows + 1);
  if (!result.ok()) return result.status();
  const auto permuted = result->MutableAs<int64_t>();
  permuted[0] = 0;
  for (int64_t r = 0; r < rows; ++r) {
    permuted[r + 1] = permuted[r] + offsets[order[r] + 1] - offsets[order[r]];
  }
  return result;
}

/// Rows of part `part` of `parts`, each with about as many nonzeros.
inline RowRange PartOfRows(std::span<const int64_t> offsets, int part, int parts) {
  const int64_t rows = static_cast<int64_t>(offsets.size()) - 1;
  auto row_at = [&](int p) {
    const int64_t nonzero = offsets[rows] * p / parts;
    return std::lower_bound(offsets.begin(), offsets.end() - 1, nonzero) - offsets.begin();
  };
  return {row_at(part), part + 1 == parts ? rows : row_at(part + 1)};
}

}  // namespace sparsed
