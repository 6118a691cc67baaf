#include "client/examples/breadth_first.h"

#include <algorithm>
#include <utility>

namespace sparsed::examples {
namespace {

/// The vertices that were reached last, a column a source: a tall boolean matrix.
class Frontier {
 public:
  Frontier(int64_t vertices, int64_t sources) {
    matrix_.rows = vertices;
    matrix_.cols = sources;
    matrix_.row_offsets = {0};
  }

  /// Vertices ascend, and for each of them sources do.
  void Add(int64_t vertex, int32_t source) {
    FillRows(vertex);
    matrix_.column_indices.push_back(source);
  }

  bool empty() const { return matrix_.column_indices.empty(); }

  const CsrMatrix& Finish() {
    FillRows(matrix_.rows);
    matrix_.values = std::vector<float>(matrix_.column_indices.size(), 1);
    return matrix_;
  }

 private:
  void FillRows(int64_t row) {
    while (std::cmp_less_equal(matrix_.row_offsets.size(), row)) {
      matrix_.row_offsets.push_back(matrix_.nnz());
    }
  }

  CsrMatrix matrix_;
};

}  // namespace

// The next frontier is A^T * F over booleans, less what was reached before: an entry (v, i) says
// that some vertex of source i's frontier has an edge to v.
absl::StatusOr<std::vector<int32_t>> BreadthFirstLevels(const Client& client, const Matrix& graph,
                                                        std::span<const int32_t> sources,
                                                        const std::string& scratch) {
  const absl::StatusOr<MatrixInfo> info = graph.Info();
  if (!info.ok()) return info.status();
  const int64_t vertices = info->rows;
  const auto width = static_cast<int64_t>(sources.size());
  std::vector<int32_t> levels(static_cast<size_t>(vertices * width), -1);

  std::vector<std::pair<int32_t, int32_t>> first;  // vertex, source
  for (int32_t i = 0; i < width; ++i) {
    if (sources[i] < 0 || sources[i] >= vertices) {
      return absl::InvalidArgumentError("a source is no vertex of the graph");
    }
    first.emplace_back(sources[i], i);
  }
  std::ranges::sort(first);
  Frontier frontier(vertices, width);
  for (const auto& [vertex, source] : first) {
    frontier.Add(vertex, source);
    levels[vertex * width + source] = 0;
  }
  absl::Status status;
  for (int32_t level = 1; status.ok() && !frontier.empty(); ++level) {
    const absl::StatusOr<Matrix> reached =
        client.Upload(scratch, frontier.Finish().View(), {.replace = true});
    if (!reached.ok()) return reached.status();
    Frontier next(vertices, width);
    const auto add = [&](const RowBlock& block) {
      for (int64_t row = 0; row < block.rows; ++row) {
        const int64_t begin = block.row_offsets[row] - block.row_offsets[0];
        const int64_t end = block.row_offsets[row + 1] - block.row_offsets[0];
        for (int64_t p = begin; p < end; ++p) {
          const int32_t source = block.column_indices[p];
          int32_t& reached_at = levels[(block.row_begin + row) * width + source];
          if (reached_at >= 0) continue;
          reached_at = level;
          next.Add(block.row_begin + row, source);
        }
      }
      return absl::OkStatus();
    };
    status = graph.Spgemm(*reached, add, {.transpose_left = true, .semiring = Semiring::kBoolean})
                 .status();
    frontier = std::move(next);
  }
  if (!sources.empty()) status.Update(client.MatrixNamed(scratch).Delete());
  if (!status.ok()) return status;
  return levels;
}

}  // namespace sparsed::examples
