#include "client/examples/markov_clustering.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <variant>

namespace sparsed::examples {
namespace {

/// Appends a row to a matrix that has the rows before it: `weights` to the power, the small ones of
/// them left out, divided by their sum. The largest always stays.
void AppendRow(std::span<const int32_t> columns, std::span<const float> weights, double power,
               float least, CsrMatrix& matrix) {
  auto& values = std::get<std::vector<float>>(matrix.values);
  const size_t begin = values.size();
  double sum = 0;
  for (const float weight : weights) sum += std::pow(weight, power);
  const float largest = weights.empty() ? 0 : *std::ranges::max_element(weights);
  double kept = 0;
  for (size_t i = 0; i < columns.size(); ++i) {
    const auto chance = static_cast<float>(std::pow(weights[i], power) / sum);
    if (chance < least && weights[i] < largest) continue;
    matrix.column_indices.push_back(columns[i]);
    values.push_back(chance);
    kept += chance;
  }
  for (float& value : std::span(values).subspan(begin)) value = static_cast<float>(value / kept);
  matrix.row_offsets.push_back(matrix.nnz());
}

CsrMatrix Empty(int64_t rows) {
  CsrMatrix matrix;
  matrix.rows = matrix.cols = rows;
  matrix.row_offsets = {0};
  matrix.values = std::vector<float>();
  return matrix;
}

/// Rows [0, rows) of something compressed by rows, as AppendRow takes them.
void AppendRows(std::span<const int64_t> row_offsets, std::span<const int32_t> columns,
                std::span<const float> values, double power, float least, CsrMatrix& matrix) {
  for (size_t row = 0; row + 1 < row_offsets.size(); ++row) {
    const auto begin = static_cast<size_t>(row_offsets[row] - row_offsets[0]);
    const auto count = static_cast<size_t>(row_offsets[row + 1] - row_offsets[row]);
    AppendRow(columns.subspan(begin, count), values.subspan(begin, count), power, least, matrix);
  }
}

/// Nothing changed that would be seen again.
bool Settled(const CsrMatrix& before, const CsrMatrix& after) {
  if (before.column_indices != after.column_indices || before.row_offsets != after.row_offsets) {
    return false;
  }
  const auto& x = std::get<std::vector<float>>(before.values);
  const auto& y = std::get<std::vector<float>>(after.values);
  return std::ranges::equal(x, y, [](float a, float b) { return std::abs(a - b) < 1e-6F; });
}

}  // namespace

absl::StatusOr<CsrMatrix> MarkovStep(const Client& client, const CsrMatrix& chances,
                                     const MarkovOptions& options, const std::string& name) {
  const absl::StatusOr<Matrix> m = client.Upload(name, chances.View(), {.replace = true});
  if (!m.ok()) return m.status();
  CsrMatrix next = Empty(chances.rows);
  // Rows are inflated as they come: the whole of M * M, far fuller than what stays, is nowhere.
  const absl::StatusOr<SpgemmResult> done = m->Spgemm(*m, [&](const RowBlock& block) {
    AppendRows(block.row_offsets, block.column_indices,
               std::get<std::span<const float>>(block.values), options.inflation, options.least,
               next);
    return absl::OkStatus();
  });
  if (!done.ok()) return done.status();
  return next;
}

absl::StatusOr<std::vector<int32_t>> MarkovClusters(const Client& client, const CsrMatrix& graph,
                                                    const MarkovOptions& options,
                                                    const std::string& scratch) {
  CsrMatrix chances = Empty(graph.rows);
  AppendRows(graph.row_offsets, graph.column_indices, std::get<std::vector<float>>(graph.values),
             /*power=*/1, /*least=*/0, chances);
  for (int i = 0; i < options.iterations; ++i) {
    absl::StatusOr<CsrMatrix> next = MarkovStep(client, chances, options, scratch);
    if (!next.ok()) return next.status();
    const bool settled = Settled(chances, *next);
    chances = *std::move(next);
    if (settled) break;
  }
  if (options.iterations > 0) {
    if (absl::Status status = client.MatrixNamed(scratch).Delete(); !status.ok()) return status;
  }
  // Each vertex goes where its chance is best.
  std::vector<int32_t> clusters(static_cast<size_t>(graph.rows), -1);
  const auto& values = std::get<std::vector<float>>(chances.values);
  for (size_t row = 0; row < clusters.size(); ++row) {
    const auto begin = values.begin() + chances.row_offsets[row];
    const auto end = values.begin() + chances.row_offsets[row + 1];
    if (begin != end) {
      clusters[row] = chances.column_indices[std::max_element(begin, end) - values.begin()];
    }
  }
  return clusters;
}

}  // namespace sparsed::examples
