#include <cmath>
#include <map>

#include "kernels/reference/reference.h"

namespace sparsed::reference {

SparseResult Spgemm(const CsrView& s, const double* s_values, const CsrView& t,
                    const double* t_values) {
  struct Entry {
    double value = 0;
    double magnitude = 0;
  };
  SparseResult c;
  c.row_offsets.push_back(0);
  for (int64_t row = 0; row < s.rows; ++row) {
    std::map<int32_t, Entry> entries;
    for (int64_t p = s.row_offsets[row]; p < s.row_offsets[row + 1]; ++p) {
      const int32_t k = s.column_indices[p];
      for (int64_t q = t.row_offsets[k]; q < t.row_offsets[k + 1]; ++q) {
        const double product = s_values[p] * t_values[q];
        Entry& entry = entries[t.column_indices[q]];
        entry.value += product;
        entry.magnitude += std::abs(product);
      }
    }
    for (const auto& [column, entry] : entries) {
      c.column_indices.push_back(column);
      c.values.push_back(entry.value);
      c.magnitudes.push_back(entry.magnitude);
    }
    c.row_offsets.push_back(static_cast<int64_t>(c.column_indices.size()));
  }
  return c;
}

}  // namespace sparsed::reference
