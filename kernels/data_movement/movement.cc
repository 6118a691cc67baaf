#include "kernels/data_movement/movement.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/data_movement/lru_cache.h"
#include "kernels/scratch.h"

namespace sparsed {
namespace {

constexpr int64_t kIndexBytes = sizeof(int32_t);
constexpr int64_t kOffsetBytes = sizeof(int64_t);
/// Windows that sampled rows come in: few, since each begins with a cold cache.
constexpr int64_t kWindows = 8;
/// Steps between two looks at context.stopped().
constexpr int64_t kStopSteps = 1 << 16;

double AsDouble(int64_t count) { return static_cast<double>(count); }

/// One pass over the rows of a pattern.
class Walk {
 public:
  Walk(const CsrView& csr, const MovementSpec& spec, const BuildContext& context)
      : csr_(csr),
        spec_(spec),
        context_(context),
        spgemm_(spec.operation == Operation::kSpgemm),
        entry_bytes_(kIndexBytes + spec.value_bytes),
        dense_row_bytes_(spec.k * spec.value_bytes) {}

  absl::StatusOr<Movement> Run() {
    if (spgemm_ && csr_.rows != csr_.cols) {
      return absl::InvalidArgumentError(
          fmt::format("S * S needs as many rows as columns, not {} x {}", csr_.rows, csr_.cols));
    }
    if (absl::Status status = Open(); !status.ok()) return status;
    if (!CountTouched()) return absl::CancelledError("stopped");
    SetSampling();
    for (int64_t position = 0; position < csr_.rows; ++position) {
      if (position / window_rows_ % keep_every_ != keep_every_ / 2) continue;
      Row(csr_.row_order.empty() ? position : csr_.row_order[position]);
      if (unchecked_ >= kStopSteps) {
        unchecked_ = 0;
        if (context_.stopped()) return absl::CancelledError("stopped");
      }
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

  absl::Status Open() {
    MemorySource& memory = *context_.memory;
    int64_t units = 0, unit_bytes = 0;
    if (spgemm_) {
      // A line of column indices and the values that belong to them.
      unit_entries_ = std::max<int64_t>(spec_.line_bytes / kIndexBytes, 1);
      unit_bytes = unit_entries_ * entry_bytes_;
      units = csr_.nnz() / unit_entries_ + 1;
    } else if (dense_row_bytes_ >= spec_.line_bytes) {
      unit_bytes = (dense_row_bytes_ + spec_.line_bytes - 1) / spec_.line_bytes * spec_.line_bytes;
      units = csr_.cols;
    } else {
      unit_bytes = spec_.line_bytes;
      units = csr_.cols * dense_row_bytes_ / spec_.line_bytes + 1;
    }
    fetch_bytes_ = unit_bytes;
    if (absl::Status status = cache_.Open(memory, units, unit_bytes, spec_.cache_bytes);
        !status.ok()) {
      return status;
    }
    if (absl::Status status = part_of_.Allocate(memory, csr_.cols); !status.ok()) return status;
    std::fill_n(part_of_.data(), csr_.cols, -1);
    if (!spgemm_) return absl::OkStatus();
    if (absl::Status status = row_of_.Allocate(memory, csr_.cols); !status.ok()) return status;
    std::fill_n(row_of_.data(), csr_.cols, -1);
    return absl::OkStatus();
  }

  /// Steps, and what of the other operand is touched at all: exact, of all rows. False: stopped.
  bool CountTouched() {
    Scratch<int32_t>& touched = part_of_;
    for (int64_t row = 0; row < csr_.rows; ++row) {
      int64_t steps = 0;
      for (int64_t i = Begin(row); i < Begin(row + 1); ++i) {
        const int32_t column = csr_.column_indices[i];
        steps += spgemm_ ? Length(column) : 1;
        if (touched[column] == 0) continue;
        touched[column] = 0;
        touched_bytes_ += OperandBytes(column);
      }
      steps_ += steps;
      most_steps_ = std::max(most_steps_, steps);
      if (row % kStopSteps == 0 && context_.stopped()) return false;
    }
    std::fill_n(touched.data(), csr_.cols, -1);
    return true;
  }

  void SetSampling() {
    window_rows_ = std::max<int64_t>(csr_.rows, 1);
    if (steps_ <= spec_.max_steps) return;
    keep_every_ = (steps_ + spec_.max_steps - 1) / spec_.max_steps;
    window_rows_ = std::max<int64_t>(csr_.rows / (kWindows * keep_every_), 1);
  }

  void Row(int64_t row) {
    int64_t steps = 0, result_entries = 0;
    for (int64_t i = Begin(row); i < Begin(row + 1); ++i) {
      const int32_t column = csr_.column_indices[i];
      if (!spgemm_) {
        TouchDense(column);
        continue;
      }
      steps += Length(column);
      TouchSparse(column);
      for (int64_t j = Begin(column); j < Begin(column + 1); ++j) {
        const int32_t result_column = csr_.column_indices[j];
        result_entries += row_of_[result_column] != row ? 1 : 0;
        row_of_[result_column] = static_cast<int32_t>(row);
      }
    }
    const int64_t streamed =
        Length(row) * entry_bytes_ + kOffsetBytes +
        (spgemm_ ? result_entries * entry_bytes_ + 2 * kOffsetBytes : dense_row_bytes_);
    cache_.Pass(streamed);
    if (!spgemm_) steps = Length(row);
    seen_steps_ += steps;
    unchecked_ += steps + 1;
    result_entries_ += result_entries;
    AddToPart(row, streamed, steps, result_entries);
  }

  void TouchDense(int64_t column) {
    if (dense_row_bytes_ >= spec_.line_bytes) {
      fetched_ += cache_.Touch(column) ? 1 : 0;
      return;
    }
    const int64_t begin = column * dense_row_bytes_;
    for (int64_t line = begin / spec_.line_bytes;
         line * spec_.line_bytes < begin + dense_row_bytes_; ++line) {
      fetched_ += cache_.Touch(line) ? 1 : 0;
    }
  }

  void TouchSparse(int64_t operand_row) {
    if (Length(operand_row) == 0) return;
    const int64_t last = (Begin(operand_row + 1) - 1) / unit_entries_;
    for (int64_t unit = Begin(operand_row) / unit_entries_; unit <= last; ++unit) {
      fetched_ += cache_.Touch(unit) ? 1 : 0;
    }
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
    const double scale = seen_steps_ == 0 ? 1.0 : AsDouble(steps_) / AsDouble(seen_steps_);
    Movement movement;
    movement.estimate = keep_every_ > 1;
    movement.flops = 2.0 * AsDouble(steps_) * (spgemm_ ? 1.0 : AsDouble(spec_.k));
    movement.result_nnz = spgemm_ ? AsDouble(result_entries_) * scale : 0;
    movement.largest_row = steps_ == 0 ? 0 : AsDouble(most_steps_) / AsDouble(steps_);
    const double offsets = AsDouble(csr_.rows + 1) * kOffsetBytes;
    const double streamed = AsDouble(csr_.nnz()) * AsDouble(entry_bytes_) + offsets +
                            (spgemm_ ? movement.result_nnz * AsDouble(entry_bytes_) + 2 * offsets
                                     : AsDouble(csr_.rows) * AsDouble(dense_row_bytes_));
    movement.operand_footprint_bytes = AsDouble(touched_bytes_);
    movement.operand_moved_bytes = std::max(movement.operand_footprint_bytes,
                                            AsDouble(fetched_) * AsDouble(fetch_bytes_) * scale);
    movement.footprint_bytes = streamed + movement.operand_footprint_bytes;
    movement.moved_bytes = streamed + movement.operand_moved_bytes;
    movement.partition_bytes =
        streamed + split_bytes_ * scale +
        std::max(movement.operand_footprint_bytes, AsDouble(part_operand_bytes_) * scale);
    movement.parts = part_ + 1 + split_parts_;
    return movement;
  }

  const CsrView& csr_;
  const MovementSpec& spec_;
  const BuildContext& context_;
  const bool spgemm_;
  const int64_t entry_bytes_, dense_row_bytes_;

  LruCache cache_;
  int64_t unit_entries_ = 0;  ///< SpGEMM: nonzeros that are fetched at once
  int64_t fetch_bytes_ = 0;
  Scratch<int32_t> part_of_;  ///< of each row of the other operand: the last part that had it
  Scratch<int32_t> row_of_;   ///< of each column of C: the last row that had it

  int64_t steps_ = 0, most_steps_ = 0, touched_bytes_ = 0;
  int64_t keep_every_ = 1, window_rows_ = 1;  ///< of so many windows of so many rows, one is seen
  int64_t seen_steps_ = 0, unchecked_ = 0, fetched_ = 0, result_entries_ = 0;
  int32_t part_ = 0;
  int64_t part_bytes_ = 0, part_operand_bytes_ = 0, split_parts_ = 0;
  double split_bytes_ = 0;
};

}  // namespace

absl::StatusOr<Movement> ModelMovement(const CsrView& csr, const MovementSpec& spec,
                                       const BuildContext& context) {
  return Walk(csr, spec, context).Run();
}

}  // namespace sparsed
