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
  explicit CsrBuilder(bool pattern) : pattern_(pattern) {}

  /// Both counted from 0, below what Build() will say.
  void Add(int32_t row, int32_t col, double value) {
    const int64_t place = int64_t{row} << 32 | col;
    canonical_ = canonical_ && place > last_;
    last_ = place;
    row_.push_back(row);
    col_.push_back(col);
    if (!pattern_) value_.push_back(value);
  }
  int64_t entries() const { return static_cast<int64_t>(row_.size()); }

  /// Rows sorted by column, duplicates summed in the order they came. Once. INVALID_ARGUMENT, with
  /// row and column counted from `first_index`, if a finite value is beyond the type's range;
  /// RESOURCE_EXHAUSTED if this machine's memory could not hold so many rows.
  absl::StatusOr<CsrMatrix> Build(int64_t rows, int64_t cols, ValueType type, int first_index);

 private:
  struct Entry {
    int32_t col;
    double value;
  };
  /// Entries that came in canonical order stay where they are.
  void TakeCanonical(CsrMatrix& matrix, std::vector<double>& values);
  void SortAndSum(CsrMatrix& matrix, std::vector<double>& values);

  bool pattern_;
  bool canonical_ = true;
  int64_t last_ = -1;
  std::vector<int32_t> row_;
  std::vector<int32_t> col_;
  std::vector<double> value_;
};

}  // namespace sparsed::cli
