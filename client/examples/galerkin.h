// The coarse operator of a multigrid method.
#pragma once

#include <string>

#include "sparsed/client.h"

namespace sparsed::examples {

/// P^T * A * P: what an operator A (n x n) is on a coarser grid, P (n x m) being the interpolation
/// from it. Both are on the server. `scratch` is the name of a matrix that is made and deleted on
/// the way.
absl::StatusOr<CsrMatrix> GalerkinProduct(const Client& client, const Matrix& a, const Matrix& p,
                                          const std::string& scratch);

}  // namespace sparsed::examples
