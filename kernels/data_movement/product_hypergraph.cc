#include "kernels/data_movement/product_hypergraph.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace sparsed {
namespace {

constexpr int64_t kIndexBytes = sizeof(int32_t);

/// Products of each row of `left`.
std::vector<int64_t> RowProducts(const CsrView& left, const CsrView& right) {
  std::vector<int64_t> products(static_cast<size_t>(left.rows));
  for (int64_t row = 0; row < left.rows; ++row) {
    for (int64_t i = left.row_offsets[row]; i < left.row_offsets[row + 1]; ++i) {
      const int32_t inner = left.column_indices[i];
      products[row] += right.row_offsets[inner + 1] - right.row_offsets[inner];
    }
  }
  return products;
}

int64_t ProductsOfEvery(const std::vector<int64_t>& row_products, size_t stride) {
  int64_t sum = 0;
  for (size_t row = 0; row < row_products.size(); row += stride) sum += row_products[row];
  return sum;
}

/// Of so many rows one is taken for the products to be at most `most`.
size_t StrideFor(const std::vector<int64_t>& row_products, int64_t most) {
  size_t stride = 1;
  while (stride < row_products.size()) {
    const int64_t products = ProductsOfEvery(row_products, stride);
    if (products <= most) break;
    // At the least what the average row would need.
    const double over =
        static_cast<double>(products) / static_cast<double>(std::max<int64_t>(most, 1));
    stride = std::max(stride + 1, static_cast<size_t>(static_cast<double>(stride) * over));
  }
  return stride;
}

/// Which part has most of the votes; the lowest of them.
class Tally {
 public:
  explicit Tally(int parts) : votes_(static_cast<size_t>(parts)) {}
  void Vote(int32_t part) {
    if (votes_[part]++ == 0) seen_.push_back(part);
  }
  /// Forgets the votes; -1 if there were none.
  int32_t Winner() {
    int32_t winner = -1;
    int64_t most = 0;
    std::sort(seen_.begin(), seen_.end());
    for (const int32_t part : seen_) {
      if (votes_[part] > most) {
        most = votes_[part];
        winner = part;
      }
      votes_[part] = 0;
    }
    seen_.clear();
    return winner;
  }

 private:
  std::vector<int64_t> votes_;
  std::vector<int32_t> seen_;
};

/// Lines 2 to 7 of Algorithm 4; -1 for a row without a vote.
std::vector<int32_t> VotedParts(const ProductHypergraph& graph, int64_t rows,
                                std::span<const int32_t> part_of, int parts) {
  // The votes of row u: of its products as a row, and as a column.
  std::vector<int64_t> begin(static_cast<size_t>(rows) + 2);
  for (const auto& product : graph.products) {
    ++begin[product.row + 2];
    ++begin[product.column + 2];
  }
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<int32_t> votes(2 * graph.products.size());
  for (size_t vertex = 0; vertex < graph.products.size(); ++vertex) {
    votes[begin[graph.products[vertex].row + 1]++] = part_of[vertex];
    votes[begin[graph.products[vertex].column + 1]++] = part_of[vertex];
  }
  std::vector<int32_t> part(static_cast<size_t>(rows));
  Tally tally(parts);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = begin[row]; i < begin[row + 1]; ++i) tally.Vote(votes[i]);
    part[row] = tally.Winner();
  }
  return part;
}

}  // namespace

absl::StatusOr<ProductHypergraph> BuildSpgemmGraph(const CsrView& left, const CsrView& right,
                                                   int64_t max_products) {
  if (left.cols != right.rows) {
    return absl::InvalidArgumentError(fmt::format("{} x {} cannot be multiplied with {} x {}",
                                                  left.rows, left.cols, right.rows, right.cols));
  }
  const std::vector<int64_t> row_products = RowProducts(left, right);
  ProductHypergraph graph;
  graph.left = left.nnz();
  graph.right = right.nnz();
  graph.all_products = std::accumulate(row_products.begin(), row_products.end(), 0.0);
  const size_t stride = StrideFor(row_products, max_products);
  graph.sampled = stride > 1;
  graph.products.reserve(static_cast<size_t>(ProductsOfEvery(row_products, stride)));
  std::vector<int64_t> result_of(static_cast<size_t>(right.cols));
  std::vector<int64_t> seen_in(static_cast<size_t>(right.cols), -1);
  for (int64_t row = 0; row < left.rows; row += static_cast<int64_t>(stride)) {
    for (int64_t i = left.row_offsets[row]; i < left.row_offsets[row + 1]; ++i) {
      const int32_t inner = left.column_indices[i];
      for (int64_t j = right.row_offsets[inner]; j < right.row_offsets[inner + 1]; ++j) {
        const int32_t column = right.column_indices[j];
        if (seen_in[column] != row) {
          seen_in[column] = row;
          result_of[column] = graph.result++;
        }
        graph.products.push_back(
            {static_cast<int32_t>(row),
             column,
             {i, graph.left + j, graph.left + graph.right + result_of[column]}});
      }
    }
  }
  return graph;
}

ProductHypergraph BuildSpmmGraph(const CsrView& csr, int64_t max_products) {
  std::vector<int64_t> row_products(static_cast<size_t>(csr.rows));
  for (int64_t row = 0; row < csr.rows; ++row) {
    row_products[row] = csr.row_offsets[row + 1] - csr.row_offsets[row];
  }
  const size_t stride = StrideFor(row_products, max_products);
  ProductHypergraph graph;
  graph.left = csr.nnz();
  graph.right = csr.cols;
  graph.all_products = static_cast<double>(csr.nnz());
  graph.sampled = stride > 1;
  graph.products.reserve(static_cast<size_t>(ProductsOfEvery(row_products, stride)));
  for (int64_t row = 0; row < csr.rows; row += static_cast<int64_t>(stride)) {
    for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
      const int32_t column = csr.column_indices[i];
      graph.products.push_back({static_cast<int32_t>(row),
                                column,
                                {i, graph.left + column, graph.left + graph.right + graph.result}});
    }
    ++graph.result;
  }
  return graph;
}

NetBytes SpgemmNetBytes(int64_t value_bytes) {
  const auto entry = static_cast<double>(kIndexBytes + value_bytes);
  return {entry, entry, entry, static_cast<double>(kIndexBytes + 2 * value_bytes)};
}

NetBytes SpmmNetBytes(int64_t k, int64_t value_bytes) {
  const auto row = static_cast<double>(k * value_bytes);
  return {static_cast<double>(kIndexBytes + value_bytes), row, row, 2 * row};
}

PartitionCost CostOf(const ProductHypergraph& graph, std::span<const int32_t> part_of, int parts,
                     const NetBytes& bytes) {
  // Vertices by part, so that one stamp a net tells whether the part has it.
  std::vector<size_t> begin(static_cast<size_t>(parts) + 1);
  for (const int32_t part : part_of) ++begin[part + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<size_t> order(part_of.size()), next(begin.begin(), begin.end() - 1);
  for (size_t vertex = 0; vertex < part_of.size(); ++vertex)
    order[next[part_of[vertex]]++] = vertex;

  const std::array<double, 3> once = {bytes.left, bytes.right, bytes.result};
  const std::array<double, 3> again = {bytes.left, bytes.right, bytes.result_again};
  std::vector<int32_t> last_part(static_cast<size_t>(graph.nets()), -1);
  PartitionCost cost;
  for (int32_t part = 0; part < parts; ++part) {
    double footprint = 0;
    for (size_t i = begin[part]; i < begin[part + 1]; ++i) {
      const std::array<int64_t, 3>& nets = graph.products[order[i]].nets;
      for (size_t kind = 0; kind < nets.size(); ++kind) {
        int32_t& last = last_part[nets[kind]];
        if (last == part) continue;
        footprint += once[kind];
        cost.footprint_bytes += last < 0 ? once[kind] : 0;
        cost.upper_bound_bytes += last < 0 ? once[kind] : again[kind];
        last = part;
      }
    }
    cost.largest_part_bytes = std::max(cost.largest_part_bytes, footprint);
  }
  return cost;
}

absl::StatusOr<FittingPartition> PartitionForCache(const ProductHypergraph& graph,
                                                   int64_t cache_bytes, const NetBytes& bytes,
                                                   int max_parts, const Partitioner& partition) {
  FittingPartition found;
  found.part_of.assign(graph.products.size(), 0);
  found.cost = CostOf(graph, found.part_of, 1, bytes);
  const auto cache = static_cast<double>(cache_bytes);
  const double footprint = found.cost.footprint_bytes;
  while (found.cost.largest_part_bytes > cache && found.parts < max_parts) {
    do {
      found.parts *= 2;
    } while (footprint > cache * found.parts && found.parts < max_parts);
    found.parts = std::min(found.parts, max_parts);
    auto part_of = partition(graph, found.parts);
    if (!part_of.ok()) return part_of.status();
    found.part_of = *std::move(part_of);
    found.cost = CostOf(graph, found.part_of, found.parts, bytes);
  }
  return found;
}

std::vector<int32_t> MajorityOrder(const ProductHypergraph& graph, const CsrView& csr,
                                   std::span<const int32_t> part_of, int parts) {
  std::vector<int32_t> part = VotedParts(graph, csr.rows, part_of, parts);
  const std::vector<int32_t> voted = part;
  Tally tally(parts);
  for (int64_t row = 0; row < csr.rows; ++row) {
    if (voted[row] >= 0) continue;
    for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
      if (voted[csr.column_indices[i]] >= 0) tally.Vote(voted[csr.column_indices[i]]);
    }
    part[row] = std::max(tally.Winner(), 0);
  }
  // Lines 8 to 15.
  std::vector<int64_t> next(static_cast<size_t>(parts) + 1);
  for (const int32_t p : part) ++next[p + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<int32_t> order(static_cast<size_t>(csr.rows));
  for (int64_t row = 0; row < csr.rows; ++row) {
    order[next[part[row]]++] = static_cast<int32_t>(row);
  }
  return order;
}

}  // namespace sparsed
