// Canonical CSR out of entries in any order.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// Largest number of rows or columns that the service takes.
inline constexpr int64_t kMaxDimension = (int64_t{1} << 31) - 2;

/// Memory grows with the entries that came, not with what was announced, until Build().
class CsrBuilder {
 public:
  /// `pattern`: every entry's value is 1.
  CsrBuilder(int64_t rows, int64_t cols, bool pattern)
      : rows_(rows), cols_(cols), pattern_(pattern) {}

  void Add(int32_t row, int32_t col, double value) {
    row_.push_back(row);
    col_.push_back(col);
    if (!pattern_) value_.push_back(value);
  }

  /// Rows sorted by column, duplicates summed in the order they came. Once. INVALID_ARGUMENT, with
  /// row and column counted from 1, if a finite value is beyond the type's range.
  absl::StatusOr<CsrMatrix> Build(ValueType type);

 private:
  int64_t rows_;
  int64_t cols_;
  bool pattern_;
  std::vector<int32_t> row_;
  std::vector<int32_t> col_;
  std::vector<double> value_;
};

}  // namespace sparsed::cli
