// Where METIS is installed; without_metis.cc takes this file's place elsewhere.
#include "client/cli/metis_partition.h"

#include <fmt/format.h>
#include <metis.h>

#include <algorithm>
#include <iterator>
#include <limits>

namespace sparsed::cli {
namespace {

/// Of a square pattern.
struct Graph {
  std::vector<idx_t> begins = {0}, neighbours;
  std::vector<idx_t> weights;
};

/// The columns of each row of S^T, one after the other.
void Transpose(const GraphPattern& csr, std::vector<int64_t>& offsets,
               std::vector<int32_t>& columns) {
  offsets.assign(static_cast<size_t>(csr.cols) + 1, 0);
  columns.resize(csr.column_indices.size());
  for (const int32_t column : csr.column_indices) ++offsets[column + 1];
  for (int64_t i = 0; i < csr.cols; ++i) offsets[i + 1] += offsets[i];
  std::vector<int64_t> next(offsets.begin(), offsets.end() - 1);
  for (int64_t row = 0; row < csr.rows; ++row) {
    for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
      columns[next[csr.column_indices[i]]++] = static_cast<int32_t>(row);
    }
  }
}

Graph GraphOf(const GraphPattern& csr) {
  std::vector<int64_t> offsets;
  std::vector<int32_t> columns, both;
  Transpose(csr, offsets, columns);
  Graph graph;
  for (int64_t row = 0; row < csr.rows; ++row) {
    const int64_t begin = csr.row_offsets[row], end = csr.row_offsets[row + 1];
    both.clear();
    std::set_union(csr.column_indices.begin() + begin, csr.column_indices.begin() + end,
                   columns.begin() + offsets[row], columns.begin() + offsets[row + 1],
                   std::back_inserter(both));
    for (const int32_t neighbour : both) {
      if (neighbour != row) graph.neighbours.push_back(neighbour);
    }
    graph.begins.push_back(static_cast<idx_t>(graph.neighbours.size()));
    graph.weights.push_back(static_cast<idx_t>(std::max<int64_t>(end - begin, 1)));
  }
  return graph;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> MetisPartition(const GraphPattern& csr, int parts) {
  if (csr.rows != csr.cols) {
    return absl::InvalidArgumentError(
        fmt::format("METIS partitions graphs: the matrix is {} x {}", csr.rows, csr.cols));
  }
  const auto nnz = static_cast<int64_t>(csr.column_indices.size());
  if (nnz > std::numeric_limits<idx_t>::max() / 2) {
    return absl::InvalidArgumentError(fmt::format(
        "METIS takes {} nonzeros at most, not {}: partition elsewhere, and name the file",
        std::numeric_limits<idx_t>::max() / 2, nnz));
  }
  if (parts < 1 || parts > std::max<int64_t>(csr.rows, 1)) {
    return absl::InvalidArgumentError(
        fmt::format("{} parts of {} rows: each needs one at least", parts, csr.rows));
  }
  std::vector<int32_t> part_of_row(static_cast<size_t>(csr.rows), 0);
  if (parts == 1) return part_of_row;
  Graph graph = GraphOf(csr);
  idx_t options[METIS_NOPTIONS];
  METIS_SetDefaultOptions(options);
  options[METIS_OPTION_SEED] = 1;
  options[METIS_OPTION_OBJTYPE] = METIS_OBJTYPE_VOL;
  auto vertices = static_cast<idx_t>(csr.rows);
  idx_t constraints = 1, count = parts, volume = 0;
  std::vector<idx_t> part(static_cast<size_t>(csr.rows));
  const int code = METIS_PartGraphKway(
      &vertices, &constraints, graph.begins.data(), graph.neighbours.data(), graph.weights.data(),
      nullptr, nullptr, &count, nullptr, nullptr, options, &volume, part.data());
  if (code == METIS_ERROR_MEMORY) return absl::ResourceExhaustedError("METIS lacks memory");
  if (code != METIS_OK) {
    return absl::InternalError(fmt::format("METIS's partitioner failed with code {}", code));
  }
  std::ranges::transform(part, part_of_row.begin(),
                         [](idx_t p) { return static_cast<int32_t>(p); });
  return part_of_row;
}

}  // namespace sparsed::cli
