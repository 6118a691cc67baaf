// The hypergraph of C = S * T, sparse times sparse: a vertex for each product, a net for each
// nonzero of S, T and C, which joins the products that use it. What a partition of it moves, and
// the order of rows that a partition stands for.
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

struct SpgemmHypergraph {
  struct Product {
    int32_t row = 0;     ///< i of s_ik * t_kj
    int32_t inner = 0;   ///< k
    int32_t column = 0;  ///< j
    /// Its nets: nonzeros of S are numbered from 0, those of T from `left`, those of C from
    /// `left + right`.
    std::array<int64_t, 3> nets{};
  };
  std::vector<Product> products;  ///< the vertices, row by row
  int64_t left = 0;               ///< nonzeros of S
  int64_t right = 0;              ///< nonzeros of T
  int64_t result = 0;             ///< nonzeros of C that the vertices add up to
  double all_products = 0;        ///< of S * T
  bool sampled = false;           ///< rows were left out

  int64_t nets() const { return left + right + result; }
};

/// At most `max_products` vertices: with more products, every n-th row of S has its products in the
/// hypergraph, n as small as it can be (with one row's alone if that is not small enough).
/// INVALID_ARGUMENT if the sizes do not fit; 48 bytes a vertex.
absl::StatusOr<SpgemmHypergraph> BuildSpgemmHypergraph(const CsrView& left, const CsrView& right,
                                                       int64_t max_products);

/// What a partition of the vertices moves, in bytes.
struct PartitionCost {
  double footprint_bytes = 0;     ///< lower bound: each net of a vertex once
  double upper_bound_bytes = 0;   ///< part by part, the cache empty in between
  double largest_part_bytes = 0;  ///< of one part's footprint
};

/// Algorithm 3, lines 6 to 23, for one partition: part_of[v] in [0, parts). A nonzero of S or T is
/// 4 + value_bytes for each part that uses it. One of C is read (column and value) and written
/// (value) by each part that adds to it, but for the value that the first one does not read.
PartitionCost CostOf(const SpgemmHypergraph& graph, std::span<const int32_t> part_of, int parts,
                     int64_t value_bytes);

/// Puts each vertex into one of so many parts of about equal size, few nets across.
using Partitioner =
    std::function<absl::StatusOr<std::vector<int32_t>>(const SpgemmHypergraph& graph, int parts)>;

struct FittingPartition {
  std::vector<int32_t> part_of;
  int parts = 1;
  PartitionCost cost;
};

/// Algorithm 3: twice as many parts until each one's footprint fits the cache. It begins with the
/// power of two that could be enough; `max_parts` parts are tried at last, fitting or not.
absl::StatusOr<FittingPartition> PartitionForCache(const SpgemmHypergraph& graph,
                                                   int64_t cache_bytes, int64_t value_bytes,
                                                   int max_parts, const Partitioner& partition);

/// Algorithm 4, for S * S, N x N: every row and column goes to the part that holds most of its
/// products (the lowest of them, if they are several), rows of a part follow each other in their
/// old order. Position r of the result is the row that becomes row r. A row none of whose products
/// are there goes where most of its nonzeros' columns went, else to part 0.
std::vector<int32_t> MajorityOrder(const SpgemmHypergraph& graph, const CsrView& csr,
                                   std::span<const int32_t> part_of, int parts);

}  // namespace sparsed
