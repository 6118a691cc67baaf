// Parts of an "aspt" layout with about equal work, and the panels' pieces in them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/partition.h"
#include "kernels/formats/aspt.h"
#include "kernels/problem.h"

namespace sparsed::cpu {

/// Dense entries whose indices are turned into columns at a time, and rows that they are from.
inline constexpr int64_t kTranslatedEntries = 4096;
inline constexpr int64_t kTranslatedRows = 256;

/// Room for a panel's rows of B in a core's own cache.
inline constexpr int64_t kTileBytes = 1 << 19;

/// Rows of the layout, with the remainder's rows of the same numbers if `fused`, cut into parts.
/// Cuts are between panels, or between rows of a panel that is a part's work or more: a row is
/// never shared.
class AsptParts {
 public:
  AsptParts(const AsptView& s, bool fused, int64_t k)
      : s_(s), fused_(fused), count_(PartCount(s.rows, Work(s.rows) - s.rows, k)) {}

  int64_t count() const { return count_; }
  /// First row of `part`; rows for part = count().
  int64_t Begin(int64_t part) const {
    if (part >= count_) return s_.rows;
    const int64_t all = Work(s_.rows);
    const int64_t target = all / count_ * part + all % count_ * part / count_;
    int64_t row = 0;
    for (int64_t end = s_.rows; end - row > 1;) {
      const int64_t middle = row + (end - row) / 2;
      (Work(middle) <= target ? row : end) = middle;
    }
    const int64_t begin = row - row % s_.panel;
    const int64_t end = std::min(begin + s_.panel, s_.rows);
    return Work(end) - Work(begin) <= all / count_ ? begin : row;
  }

 private:
  /// Of the rows before `row`: entries and rows.
  int64_t Work(int64_t row) const {
    return row + s_.dense_row_offsets[row] + (fused_ ? s_.remainder_row_offsets[row] : 0);
  }

  const AsptView& s_;
  bool fused_;
  int64_t count_;
};

/// The rows of `rows` that are in the panel of the first of them.
inline RowRange FirstPanel(const AsptView& s, RowRange rows) {
  return {rows.begin, std::min(rows.begin - rows.begin % s.panel + s.panel, rows.end)};
}

}  // namespace sparsed::cpu
