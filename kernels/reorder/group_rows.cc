#include "kernels/reorder/group_rows.h"

#include <algorithm>

#include "kernels/formats/csr_build.h"
#include "kernels/scratch.h"

namespace sparsed {
namespace {

class Grouper {
 public:
  Grouper(const CsrView& csr, const CsrView& transposed) : csr_(csr), transposed_(transposed) {
    // Columns that very many rows have say little about which of them belong together.
    const int64_t mean = csr.nnz() / std::max<int64_t>(csr.cols, 1);
    most_rows_ = std::clamp<int64_t>(2 * mean, 32, 128);
  }

  absl::Status Allocate(MemorySource& memory) {
    absl::Status status = placed_.Allocate(memory, csr_.rows);
    if (status.ok()) status = overlap_.Allocate(memory, csr_.rows);
    if (status.ok()) status = near_.Allocate(memory, csr_.rows);
    if (status.ok()) status = group_of_column_.Allocate(memory, csr_.cols);
    if (!status.ok()) return status;
    std::fill(placed_.data(), placed_.data() + csr_.rows, false);
    std::fill(overlap_.data(), overlap_.data() + csr_.rows, 0);
    std::fill(group_of_column_.data(), group_of_column_.data() + csr_.cols, -1);
    return absl::OkStatus();
  }

  absl::Status Order(int64_t size, std::span<int32_t> order, const BuildContext& context) {
    constexpr int32_t kReport = 1 << 14;
    int64_t count = 0;
    for (int32_t group = 0;; ++group) {
      if (context.stopped()) return absl::CancelledError("the reordering was stopped");
      if (group % kReport == 0 && context.progress) {
        context.progress("group_rows", count, csr_.rows);
      }
      int32_t row = NearestRow();
      Forget();
      for (int64_t i = 0; i < size; ++i) {
        if (row < 0) row = NextRow();
        if (row < 0) break;
        placed_[row] = true;
        order[count++] = row;
        Include(row, group);
        if (i + 1 < size) row = NearestRow();
      }
      if (row < 0) break;
    }
    for (int64_t row = 0; row < csr_.rows; ++row) {
      if (!placed_[row]) order[count++] = static_cast<int32_t>(row);
    }
    return absl::OkStatus();
  }

 private:
  int64_t Length(int64_t row) const { return csr_.row_offsets[row + 1] - csr_.row_offsets[row]; }

  /// The row with the largest part of its columns in the group, of several the first; or -1.
  int32_t NearestRow() {
    int32_t best = -1;
    double best_part = 0;
    int64_t kept = 0;
    for (int64_t i = 0; i < near_count_; ++i) {
      const int32_t row = near_[i];
      if (placed_[row]) continue;
      near_[kept++] = row;
      const double part = static_cast<double>(overlap_[row]) / static_cast<double>(Length(row));
      if (part > best_part || (part == best_part && row < best)) {
        best = row;
        best_part = part;
      }
    }
    near_count_ = kept;
    return best;
  }

  /// The first row that is not placed and has nonzeros; or -1.
  int32_t NextRow() {
    while (next_ < csr_.rows && (placed_[next_] || Length(next_) == 0)) ++next_;
    return next_ < csr_.rows ? static_cast<int32_t>(next_) : -1;
  }

  void Forget() {
    for (int64_t i = 0; i < near_count_; ++i) overlap_[near_[i]] = 0;
    near_count_ = 0;
  }

  /// Counts the row's columns that are new to the group for the rows that have them, too.
  void Include(int64_t row, int32_t group) {
    for (int64_t p = csr_.row_offsets[row]; p < csr_.row_offsets[row + 1]; ++p) {
      const int32_t column = csr_.column_indices[p];
      if (group_of_column_[column] == group) continue;
      group_of_column_[column] = group;
      const int64_t begin = transposed_.row_offsets[column];
      const int64_t end = transposed_.row_offsets[column + 1];
      if (end - begin > most_rows_) continue;
      for (int64_t q = begin; q < end; ++q) {
        const int32_t other = transposed_.column_indices[q];
        if (placed_[other]) continue;
        if (overlap_[other]++ == 0) near_[near_count_++] = other;
      }
    }
  }

  const CsrView& csr_;
  const CsrView& transposed_;
  int64_t most_rows_;
  Scratch<bool> placed_;
  Scratch<int32_t> overlap_;  ///< for each row: its columns in the group
  Scratch<int32_t> near_;     ///< rows with some
  Scratch<int32_t> group_of_column_;
  int64_t near_count_ = 0;
  int64_t next_ = 0;
};

}  // namespace

absl::StatusOr<Array> GroupRows(const CsrView& csr, int64_t size, const BuildContext& context) {
  const auto transposed = TransposeCsr(csr, context);
  if (!transposed.ok()) return transposed.status();
  const CsrView columns = ViewCsr(*transposed);
  auto order = AllocateArray(*context.memory, "row_order", ElementType::kI32, csr.rows);
  if (!order.ok()) return order.status();
  Grouper grouper(csr, columns);
  absl::Status status = grouper.Allocate(*context.memory);
  if (status.ok()) status = grouper.Order(size, order->MutableAs<int32_t>(), context);
  if (!status.ok()) return status;
  return order;
}

}  // namespace sparsed
