#include "kernels/data_movement/movement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/data_movement/lru_cache.h"
#include "kernels/scratch.h"

namespace sparsed {
namespace {

constexpr int64_t kIndexBytes = sizeof(int32_t);
constexpr int64_t kOffsetBytes = sizeof(int64_t);
/// Of the lines that are touched and of the rows, so many at the least are in a sample.
constexpr int64_t kLeastLines = 1024, kLeastRows = 16;
/// Steps between two looks at context.stopped().
constexpr int64_t kStopSteps = 1 << 16;

double AsDouble(int64_t count) { return static_cast<double>(count); }

/// What one pass over the rows of a pattern moves.
class MovementModel {
 public:
  MovementModel(const CsrView& csr, const MovementSpec& spec, const BuildContext& context)
      : csr_(csr),
        spec_(spec),
        context_(context),
        spgemm_(spec.operation == Operation::kSpgemm),
        entry_bytes_(kIndexBytes + spec.value_bytes),
        dense_row_bytes_(spec.k * spec.value_bytes),
        unit_entries_(std::max<int64_t>(spec.line_bytes / kIndexBytes, 1)) {}

  absl::StatusOr<Movement> Run() {
    if (spgemm_ && csr_.rows != csr_.cols) {
      return absl::InvalidArgumentError(
          fmt::format("S * S needs as many rows as columns, not {} x {}", csr_.rows, csr_.cols));
    }
    absl::Status status = AllocateColumns();
    if (!status.ok()) return status;
    if (!CountTouched()) return absl::CancelledError("stopped");
    SetSampling();
    std::fill_n(part_of_.data(), csr_.cols, -1);
    if (spgemm_ && keep_rows_ > 1 && !SampleResult()) return absl::CancelledError("stopped");
    if (status = OpenCache(); !status.ok()) return status;
    for (int64_t position = 0; position < csr_.rows; ++position) {
      Row(csr_.row_order.empty() ? position : csr_.row_order[position]);
      if (Stopped()) return absl::CancelledError("stopped");
    }
    return Sum();
  }

 private:
  int64_t Begin(int64_t row) const { return csr_.row_offsets[row]; }
  int64_t Length(int64_t row) const { return csr_.row_offsets[row + 1] - csr_.row_offsets[row]; }
  /// Of the row of the other operand that a nonzero in `column` asks for.
  int64_t OperandBytes(int64_t column) const {
    return spgemm_ ? Length(column) * entry_bytes_ : dense_row_bytes_;
  }

  /// Now and then, by what was done since.
  bool Stopped() {
    if (unchecked_ < kStopSteps) return false;
    unchecked_ = 0;
    return context_.stopped();
  }

  /// What is fetched at once: lines of B or, if its rows are longer, these; of a sparse operand, a
  /// line of column indices and the values that belong to them.
  struct Units {
    int64_t first, end;
  };
  Units UnitsOf(int64_t column) const {
    if (spgemm_) {
      if (Length(column) == 0) return {0, 0};
      return {Begin(column) / unit_entries_, (Begin(column + 1) - 1) / unit_entries_ + 1};
    }
    if (dense_row_bytes_ >= spec_.line_bytes) return {column, column + 1};
    const int64_t begin = column * dense_row_bytes_;
    return {begin / spec_.line_bytes, (begin + dense_row_bytes_ - 1) / spec_.line_bytes + 1};
  }
  int64_t UnitBytes() const {
    if (spgemm_) return unit_entries_ * entry_bytes_;
    return std::max((dense_row_bytes_ + spec_.line_bytes - 1) / spec_.line_bytes, int64_t{1}) *
           spec_.line_bytes;
  }
  /// In the sample are those whose numbers are multiples of keep_every_. The first one from
  /// `unit` on, in the sample's own numbers:
  int64_t FirstSeen(int64_t unit) const { return (unit + keep_every_ - 1) / keep_every_; }

  absl::Status AllocateColumns() {
    absl::Status status = part_of_.Allocate(*context_.memory, csr_.cols);
    if (status.ok()) std::fill_n(part_of_.data(), csr_.cols, -1);
    if (!status.ok() || !spgemm_) return status;
    status = row_of_.Allocate(*context_.memory, csr_.cols);
    if (status.ok()) std::fill_n(row_of_.data(), csr_.cols, -1);
    return status;
  }

  /// Steps, and what of the other operand is touched at all, which part_of_ has as 0. False:
  /// stopped.
  bool CountTouched() {
    for (int64_t row = 0; row < csr_.rows; ++row) {
      const int64_t steps = Steps(row);
      for (int64_t i = Begin(row); i < Begin(row + 1); ++i) {
        const int32_t column = csr_.column_indices[i];
        if (part_of_[column] == 0) continue;
        part_of_[column] = 0;
        touched_bytes_ += OperandBytes(column);
      }
      steps_ += steps;
      most_steps_ = std::max(most_steps_, steps);
      if (row % kStopSteps == 0 && context_.stopped()) return false;
    }
    return true;
  }

  int64_t Steps(int64_t row) const {
    if (!spgemm_) return Length(row);
    int64_t steps = 0;
    for (int64_t i = Begin(row); i < Begin(row + 1); ++i) steps += Length(csr_.column_indices[i]);
    return steps;
  }

  /// The sample depends on the pattern alone, not on the order of its rows: of products, those with
  /// some of the other operand's lines, whose share of the cache they have to themselves; of C,
  /// some rows. Estimates for two orders then differ by what the orders do.
  void SetSampling() {
    CountUnits();
    if (steps_ <= spec_.max_steps) return;
    const int64_t wanted = (steps_ + spec_.max_steps - 1) / spec_.max_steps;
    // Odd: what repeats in a matrix often does so every power of two.
    keep_rows_ = (std::clamp<int64_t>(csr_.rows / kLeastRows, 1, wanted + 1) - 1) | 1;
    keep_every_ = std::max<int64_t>((std::min(wanted + 1, units_ / kLeastLines) - 1) | 1, 1);
    CountUnits();
    if (seen_units_ > 0) return;
    keep_every_ = 1;
    CountUnits();
  }

  /// Of those touched: all, and those in the sample.
  void CountUnits() {
    units_ = seen_units_ = 0;
    int64_t counted = 0;  // up to this one
    for (int64_t column = 0; column < csr_.cols; ++column) {
      if (part_of_[column] != 0) continue;
      const Units units = UnitsOf(column);
      const int64_t first = std::max(units.first, counted);
      if (first >= units.end) continue;
      units_ += units.end - first;
      seen_units_ += FirstSeen(units.end) - FirstSeen(first);
      counted = units.end;
    }
  }

  absl::Status OpenCache() {
    const int64_t all = spgemm_          ? csr_.nnz() / unit_entries_ + 1
                        : csr_.cols == 0 ? 0
                                         : UnitsOf(csr_.cols - 1).end;
    seen_part_ = units_ == 0 ? 1.0 : AsDouble(seen_units_) / AsDouble(units_);
    return cache_.Open(*context_.memory, FirstSeen(all), UnitBytes(),
                       static_cast<int64_t>(AsDouble(spec_.cache_bytes) * seen_part_));
  }

  /// Nonzeros of C for each product. False: stopped.
  bool SampleResult() {
    int64_t steps = 0, entries = 0;
    for (int64_t row = keep_rows_ / 2; row < csr_.rows; row += keep_rows_) {
      steps += Steps(row);
      entries += CountResult(row);
      if (Stopped()) return false;
    }
    if (steps == 0 && keep_rows_ > 1) {  // they have none
      keep_rows_ = 1;
      return SampleResult();
    }
    entries_per_step_ = steps == 0 ? 0 : AsDouble(entries) / AsDouble(steps);
    return true;
  }

  int64_t CountResult(int64_t row) {
    int64_t entries = 0;
    for (int64_t i = Begin(row); i < Begin(row + 1); ++i) {
      const int32_t column = csr_.column_indices[i];
      unchecked_ += Length(column);
      for (int64_t j = Begin(column); j < Begin(column + 1); ++j) {
        const int32_t result_column = csr_.column_indices[j];
        entries += row_of_[result_column] != row ? 1 : 0;
        row_of_[result_column] = static_cast<int32_t>(row);
      }
    }
    return entries;
  }

  void Row(int64_t row) {
    for (int64_t i = Begin(row); i < Begin(row + 1); ++i) {
      const Units units = UnitsOf(csr_.column_indices[i]);
      const int64_t end = FirstSeen(units.end);
      for (int64_t unit = FirstSeen(units.first); unit < end; ++unit) {
        fetched_ += cache_.Touch(unit) ? 1 : 0;
        ++unchecked_;
      }
    }
    const int64_t steps = Steps(row);
    int64_t entries = 0;
    if (spgemm_) {
      entries =
          keep_rows_ > 1 ? std::llround(AsDouble(steps) * entries_per_step_) : CountResult(row);
    }
    const int64_t streamed =
        Length(row) * entry_bytes_ + kOffsetBytes +
        (spgemm_ ? entries * entry_bytes_ + 2 * kOffsetBytes : dense_row_bytes_);
    passed_ += AsDouble(streamed) * seen_part_;
    const auto whole = static_cast<int64_t>(passed_);
    cache_.Pass(whole);
    passed_ -= AsDouble(whole);
    unchecked_ += Length(row) + 1;
    result_entries_ += entries;
    AddToPart(row, streamed, steps, entries);
  }

  /// What of the other operand the part does not have yet.
  int64_t NewBytes(int64_t row) const {
    int64_t bytes = 0;
    for (int64_t i = Begin(row); i < Begin(row + 1); ++i) {
      const int32_t column = csr_.column_indices[i];
      if (part_of_[column] != part_) bytes += OperandBytes(column);
    }
    return bytes;
  }

  void AddToPart(int64_t row, int64_t streamed, int64_t steps, int64_t result_entries) {
    int64_t fresh = NewBytes(row);
    if (part_bytes_ > 0 && part_bytes_ + streamed + fresh > spec_.cache_bytes) {
      ++part_;
      part_bytes_ = 0;
      fresh = NewBytes(row);
    }
    for (int64_t i = Begin(row); i < Begin(row + 1); ++i) part_of_[csr_.column_indices[i]] = part_;
    part_bytes_ += streamed + fresh;
    part_operand_bytes_ += fresh;
    // Each further part reads and writes again what it adds to.
    const int64_t further = (part_bytes_ - 1) / std::max<int64_t>(spec_.cache_bytes, 1);
    if (further <= 0) return;
    split_bytes_ += spgemm_ ? AsDouble(std::min(further * result_entries, steps)) *
                                  AsDouble(kIndexBytes + 2 * spec_.value_bytes)
                            : 2.0 * AsDouble(std::min(further, steps)) * AsDouble(dense_row_bytes_);
    split_parts_ += further;
  }

  Movement Sum() const {
    Movement movement;
    movement.estimate = keep_every_ > 1 || (spgemm_ && keep_rows_ > 1);
    movement.flops = 2.0 * AsDouble(steps_) * (spgemm_ ? 1.0 : AsDouble(spec_.k));
    if (spgemm_) {
      movement.result_nnz =
          keep_rows_ > 1 ? AsDouble(steps_) * entries_per_step_ : AsDouble(result_entries_);
    }
    movement.largest_row = steps_ == 0 ? 0 : AsDouble(most_steps_) / AsDouble(steps_);
    const double offsets = AsDouble(csr_.rows + 1) * kOffsetBytes;
    const double streamed = AsDouble(csr_.nnz()) * AsDouble(entry_bytes_) + offsets +
                            (spgemm_ ? movement.result_nnz * AsDouble(entry_bytes_) + 2 * offsets
                                     : AsDouble(csr_.rows) * AsDouble(dense_row_bytes_));
    movement.operand_footprint_bytes = AsDouble(touched_bytes_);
    const double fetched_of_all =
        seen_units_ == 0 ? 0 : AsDouble(fetched_) / AsDouble(seen_units_) * AsDouble(units_);
    movement.operand_moved_bytes =
        std::max(movement.operand_footprint_bytes, fetched_of_all * AsDouble(UnitBytes()));
    movement.footprint_bytes = streamed + movement.operand_footprint_bytes;
    movement.moved_bytes = streamed + movement.operand_moved_bytes;
    movement.partition_bytes = streamed + split_bytes_ + AsDouble(part_operand_bytes_);
    movement.parts = part_ + 1 + split_parts_;
    return movement;
  }

  const CsrView& csr_;
  const MovementSpec& spec_;
  const BuildContext& context_;
  const bool spgemm_;
  const int64_t entry_bytes_, dense_row_bytes_;

  LruCache cache_;
  const int64_t unit_entries_;  ///< SpGEMM: nonzeros that are fetched at once
  Scratch<int32_t> part_of_;    ///< of each row of the other operand: the last part that had it
  Scratch<int32_t> row_of_;     ///< of each column of C: the last row that had it

  int64_t steps_ = 0, most_steps_ = 0, touched_bytes_ = 0;
  int64_t keep_every_ = 1;  ///< of so many of the other operand's lines, one is in the sample
  int64_t keep_rows_ = 1;   ///< of so many rows of C
  int64_t units_ = 0, seen_units_ = 0;
  double seen_part_ = 1, entries_per_step_ = 0;
  double passed_ = 0;  ///< what of a byte has not passed the cache yet
  int64_t unchecked_ = 0, fetched_ = 0, result_entries_ = 0;
  int32_t part_ = 0;
  int64_t part_bytes_ = 0, part_operand_bytes_ = 0, split_parts_ = 0;
  double split_bytes_ = 0;
};

}  // namespace

absl::StatusOr<Movement> ModelMovement(const CsrView& csr, const MovementSpec& spec,
                                       const BuildContext& context) {
  return MovementModel(csr, spec, context).Run();
}

}  // namespace sparsed
