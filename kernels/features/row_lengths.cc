#include "kernels/features/row_lengths.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sparsed {

RowLengths MeasureRowLengths(const CsrView& csr) {
  RowLengths result;
  if (csr.rows == 0) return result;
  result.shortest = std::numeric_limits<int64_t>::max();
  double squares = 0;
  for (int64_t row = 0; row < csr.rows; ++row) {
    const int64_t length = csr.row_offsets[row + 1] - csr.row_offsets[row];
    result.shortest = std::min(result.shortest, length);
    result.longest = std::max(result.longest, length);
    result.empty += length == 0;
    result.single += length == 1;
    squares += static_cast<double>(length) * static_cast<double>(length);
  }
  const auto rows = static_cast<double>(csr.rows);
  result.mean = static_cast<double>(csr.nnz()) / rows;
  result.deviation = std::sqrt(std::max(0.0, squares / rows - result.mean * result.mean));
  return result;
}

}  // namespace sparsed
