#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/reference/reference.h"

namespace sparsed::reference {
namespace {

struct Entry {
  double value = 0;
  double magnitude = 0;
  int64_t products = 0;
};

void AddProduct(Semiring semiring, double s, double t, Entry& entry) {
  ++entry.products;
  switch (semiring) {
    case Semiring::kSumProduct:
      entry.value += s * t;
      entry.magnitude += std::abs(s * t);
      break;
    case Semiring::kBoolean:
      entry.value = entry.magnitude = 1;
      break;
    case Semiring::kMinPlus:
      entry.value = entry.products == 1 ? s + t : std::fmin(entry.value, s + t);
      entry.magnitude = std::max(entry.magnitude, std::abs(s) + std::abs(t));
      break;
    case Semiring::kPlusPair:
      entry.value = entry.magnitude = static_cast<double>(entry.products);
      break;
  }
}

bool Has(const CsrView& mask, int64_t row, int32_t column) {
  const auto begin = mask.column_indices.begin();
  return std::find(begin + mask.row_offsets[row], begin + mask.row_offsets[row + 1], column) !=
         begin + mask.row_offsets[row + 1];
}

}  // namespace

SparseResult Spgemm(const CsrView& s, const double* s_values, const CsrView& t,
                    const double* t_values, Semiring semiring, const CsrView* mask) {
  SparseResult c;
  c.row_offsets.push_back(0);
  for (int64_t row = 0; row < s.rows; ++row) {
    std::map<int32_t, Entry> entries;
    for (int64_t p = s.row_offsets[row]; p < s.row_offsets[row + 1]; ++p) {
      const int32_t k = s.column_indices[p];
      for (int64_t q = t.row_offsets[k]; q < t.row_offsets[k + 1]; ++q) {
        AddProduct(semiring, s_values[p], t_values[q], entries[t.column_indices[q]]);
      }
    }
    for (const auto& [column, entry] : entries) {
      if (mask != nullptr && !Has(*mask, row, column)) continue;
      c.column_indices.push_back(column);
      c.values.push_back(entry.value);
      c.magnitudes.push_back(entry.magnitude);
    }
    c.row_offsets.push_back(static_cast<int64_t>(c.column_indices.size()));
  }
  return c;
}

}  // namespace sparsed::reference
