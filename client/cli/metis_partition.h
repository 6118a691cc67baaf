// Partitions of graphs, by METIS.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace sparsed::cli {

/// A square pattern in CSR, each row's columns ascending.
struct GraphPattern {
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const int64_t> row_offsets;
  std::span<const int32_t> column_indices;
};

/// Which of [0, parts) each row belongs to: of the graph of S + S^T by METIS (k-way, the total
/// volume of communication as its objective, rows weighted by their nonzeros; G. Karypis and V.
/// Kumar, Multilevel k-way partitioning scheme for irregular graphs, 1998). A part may be empty.
/// INVALID_ARGUMENT: S is not square, has fewer rows, or is larger than METIS's indices allow;
/// UNIMPLEMENTED where the program was built without METIS; RESOURCE_EXHAUSTED.
absl::StatusOr<std::vector<int32_t>> MetisPartition(const GraphPattern& pattern, int parts);

}  // namespace sparsed::cli
