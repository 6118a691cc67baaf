#include "kernels/formats/row_bounds.h"

#include <algorithm>

namespace sparsed {

std::vector<int64_t> RowBoundsByNonzeros(const CsrView& csr, int64_t parts) {
  const int64_t least = csr.rows >= parts ? 1 : 0;
  std::vector<int64_t> bounds = {0};
  for (int64_t part = 1; part < parts; ++part) {
    const int64_t share = csr.nnz() / parts * part + csr.nnz() % parts * part / parts;
    const auto found = std::ranges::lower_bound(csr.row_offsets, share);
    int64_t end = found - csr.row_offsets.begin();
    if (end > 0 && share - csr.row_offsets[end - 1] < *found - share) --end;
    bounds.push_back(std::clamp(end, bounds.back() + least, csr.rows - least * (parts - part)));
  }
  bounds.push_back(csr.rows);
  return bounds;
}

}  // namespace sparsed
