// Zoltan's hypergraph partitioner (Debian: libtrilinos-zoltan-dev), on one MPI process.
#pragma once

#include "kernels/data_movement/product_hypergraph.h"

namespace sparsed::tools {

/// MPI and Zoltan, from construction to the end of the program.
class Zoltan {
 public:
  Zoltan();
  ~Zoltan();
  Zoltan(const Zoltan&) = delete;
  Zoltan& operator=(const Zoltan&) = delete;
};

/// Multilevel recursive bisection, parts within a tenth of equal size; the same partition for the
/// same hypergraph. INTERNAL if Zoltan fails, INVALID_ARGUMENT if it cannot number so many nets.
absl::StatusOr<std::vector<int32_t>> ZoltanPartition(const ProductHypergraph& graph, int parts);

}  // namespace sparsed::tools
