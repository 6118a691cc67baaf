// How long rows are.
#pragma once

#include <cstdint>

#include "kernels/formats/csr.h"

namespace sparsed {

struct RowLengths {
  int64_t shortest = 0;
  int64_t longest = 0;
  double mean = 0;
  double deviation = 0;  ///< standard deviation
  int64_t empty = 0;     ///< rows without a nonzero
  int64_t single = 0;    ///< rows of one nonzero
};

RowLengths MeasureRowLengths(const CsrView& csr);

}  // namespace sparsed
