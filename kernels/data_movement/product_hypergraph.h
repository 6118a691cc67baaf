// The hypergraph of a product: a vertex for each multiplication, a net for each element of the
// operands and of the result, which joins the multiplications that use it. What a partition of it
// moves, and the order of rows that a partition stands for.
//
// Paper: Kurt et al., "Characterization of data movement requirements for sparse matrix
// computations on GPUs" (HiPC 2017), sections IV.B and V, Algorithms 3 and 4; the hypergraph is a
// modification of Ballard et al.'s.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"

namespace sparsed {

struct ProductHypergraph {
  struct Product {
    /// The row and the column of S, if it is square, whose place in an order it has a say in: of
    /// s_ik * t_kj i and j, of s_ij * b_j i and j.
    int32_t row = 0, column = 0;
    /// Its nets: elements of the left operand are numbered from 0, those of the right one from
    /// `left`, those of the result from `left + right`.
    std::array<int64_t, 3> nets{};
  };
  std::vector<Product> products;  ///< the vertices, row by row
  int64_t left = 0;               ///< nonzeros of the left operand
  int64_t right = 0;              ///< nonzeros of the right one; rows, if it is dense
  int64_t result = 0;             ///< nonzeros (rows) of the result that the vertices add up to
  double all_products = 0;        ///< vertices without sampling
  bool sampled = false;           ///< rows were left out

  int64_t nets() const { return left + right + result; }
};

/// C = S * T, both sparse. At most `max_products` vertices: with more products, every n-th row of S
/// has its products in the hypergraph, n as small as it can be (with one row's alone if that is not
/// small enough). INVALID_ARGUMENT if the sizes do not fit; 32 bytes a vertex.
absl::StatusOr<ProductHypergraph> BuildSpgemmGraph(const CsrView& left, const CsrView& right,
                                                   int64_t max_products);

/// C = S * B, B dense and of any width: a vertex for each nonzero, which uses a row of B and a row
/// of C (SpMV: an element each). Sampled likewise.
ProductHypergraph BuildSpmmGraph(const CsrView& csr, int64_t max_products);

/// Bytes of one net of each kind.
struct NetBytes {
  double left = 0, right = 0;  ///< read by each part that uses it
  double result = 0;           ///< written by the first part that adds to it
  double result_again = 0;     ///< read and written by each other one
};
/// Two words a nonzero, its column and its value; the column is written once.
NetBytes SpgemmNetBytes(int64_t value_bytes);
/// `k`: the width of B.
NetBytes SpmmNetBytes(int64_t k, int64_t value_bytes);

/// What a partition of the vertices moves, in bytes.
struct PartitionCost {
  double footprint_bytes = 0;     ///< lower bound: each net of a vertex once
  double upper_bound_bytes = 0;   ///< part by part, the cache empty in between
  double largest_part_bytes = 0;  ///< of one part's footprint
};

/// Algorithm 3, lines 6 to 23, for one partition: part_of[v] in [0, parts).
PartitionCost CostOf(const ProductHypergraph& graph, std::span<const int32_t> part_of, int parts,
                     const NetBytes& bytes);

/// Puts each vertex into one of so many parts of about equal size, few nets across.
using Partitioner =
    std::function<absl::StatusOr<std::vector<int32_t>>(const ProductHypergraph& graph, int parts)>;

struct FittingPartition {
  std::vector<int32_t> part_of;
  int parts = 1;
  PartitionCost cost;
};

/// Algorithm 3: twice as many parts until each one's footprint fits the cache. It begins with the
/// power of two that could be enough; `max_parts` parts are tried at last, fitting or not.
absl::StatusOr<FittingPartition> PartitionForCache(const ProductHypergraph& graph,
                                                   int64_t cache_bytes, const NetBytes& bytes,
                                                   int max_parts, const Partitioner& partition);

/// Algorithm 4, for a square S (and S * S): every row and column goes to the part that holds most
/// of its products (the lowest of them, if they are several), rows of a part follow each other in
/// their old order. Position r of the result is the row that becomes row r. A row none of whose
/// products are there goes where most of its nonzeros' columns went, else to part 0.
std::vector<int32_t> MajorityOrder(const ProductHypergraph& graph, const CsrView& csr,
                                   std::span<const int32_t> part_of, int parts);

}  // namespace sparsed
