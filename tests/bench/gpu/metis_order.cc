// Orders the vertices of square matrices by a partition of METIS, as Jiang, Hong, Agrawal
// (PPoPP'20, section 5.2) do for comparison: rows and columns alike, part by part. The graph has an
// edge where S or its transpose has a nonzero; a part is to have as many rows as a panel of their
// tiles.
//
//   bench_metis_order matrices.xz ordered.xz && sparsed_bench spmm --pack matrices.xz ordered.xz
#include <metis.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "tests/generate.h"
#include "tests/matrix_pack.h"

namespace sparsed::test {
namespace {

/// Rows in the order in which METIS's parts have them.
std::vector<int32_t> OrderByParts(const Pattern& s, int64_t rows_of_part) {
  const Pattern transposed = Transpose(s, nullptr);
  std::vector<idx_t> begins = {0}, neighbours;
  for (int64_t row = 0; row < s.rows; ++row) {
    std::vector<int32_t> both(s.column_indices.begin() + s.row_offsets[row],
                              s.column_indices.begin() + s.row_offsets[row + 1]);
    both.insert(both.end(), transposed.column_indices.begin() + transposed.row_offsets[row],
                transposed.column_indices.begin() + transposed.row_offsets[row + 1]);
    std::sort(both.begin(), both.end());
    both.erase(std::unique(both.begin(), both.end()), both.end());
    for (const int32_t column : both) {
      if (column != row) neighbours.push_back(column);
    }
    begins.push_back(static_cast<idx_t>(neighbours.size()));
  }
  auto vertices = static_cast<idx_t>(s.rows);
  idx_t constraints = 1, cut = 0;
  auto parts = static_cast<idx_t>((s.rows + rows_of_part - 1) / rows_of_part);
  std::vector<idx_t> part(s.rows, 0);
  if (parts > 1) {
    idx_t options[METIS_NOPTIONS];
    METIS_SetDefaultOptions(options);
    options[METIS_OPTION_SEED] = 1;
    if (METIS_PartGraphKway(&vertices, &constraints, begins.data(), neighbours.data(), nullptr,
                            nullptr, nullptr, &parts, nullptr, nullptr, options, &cut,
                            part.data()) != METIS_OK) {
      std::fprintf(stderr, "bench_metis_order: METIS failed\n");
      std::exit(1);
    }
  }
  std::vector<int32_t> order(s.rows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return part[a] < part[b]; });
  return order;
}

Pattern Reordered(const Pattern& s, const std::vector<int32_t>& order) {
  std::vector<int32_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int32_t>(i);
  Pattern ordered{s.rows, s.cols, {0}, {}};
  for (const int32_t row : order) {
    const auto begin = ordered.column_indices.size();
    for (int64_t p = s.row_offsets[row]; p < s.row_offsets[row + 1]; ++p) {
      ordered.column_indices.push_back(place[s.column_indices[p]]);
    }
    std::sort(ordered.column_indices.begin() + static_cast<int64_t>(begin),
              ordered.column_indices.end());
    ordered.row_offsets.push_back(ordered.nnz());
  }
  return ordered;
}

int Main(int argc, char** argv) {
  CLI::App app("Orders the vertices of square matrices by METIS");
  std::string from, to;
  int64_t rows_of_part = 64;
  app.add_option("from", from, "a file of `sparsed_bench pack`")->required();
  app.add_option("to", to, "the file to write; names end in +metis")->required();
  app.add_option("--rows", rows_of_part, "rows of a part")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  auto matrices = ReadMatrixPack(from);
  if (!matrices.ok()) {
    std::fprintf(stderr, "%s: %s\n", from.c_str(),
                 std::string(matrices.status().message()).c_str());
    return 1;
  }
  std::vector<NamedPattern> ordered;
  for (const NamedPattern& matrix : *matrices) {
    if (matrix.pattern.rows != matrix.pattern.cols) continue;
    ordered.push_back({matrix.name + "+metis",
                       Reordered(matrix.pattern, OrderByParts(matrix.pattern, rows_of_part))});
  }
  const absl::Status written = WriteMatrixPack(to, ordered);
  if (!written.ok()) std::fprintf(stderr, "%s\n", std::string(written.message()).c_str());
  return written.ok() ? 0 : 1;
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) { return sparsed::test::Main(argc, argv); }
