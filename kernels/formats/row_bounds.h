// Where consecutive rows of a matrix are cut into parts of as many nonzeros.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/formats/csr.h"

namespace sparsed {

/// Part i has rows [bounds[i], bounds[i + 1]): cut where the nonzeros before are nearest to a
/// part's equal share. Each has a row at least, if there are as many rows as parts. `parts` >= 1.
std::vector<int64_t> RowBoundsByNonzeros(const CsrView& csr, int64_t parts);

}  // namespace sparsed
