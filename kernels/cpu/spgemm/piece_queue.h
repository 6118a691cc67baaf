// Shares a range of rows out to threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "kernels/problem.h"

namespace sparsed::cpu {

/// Contiguous pieces that cover a range of rows; threads take one after the other. Thread-safe.
class PieceQueue {
 public:
  /// `positions[i - range.begin]`, ascending, says how much work lies before row i, for each row of
  /// the range and its end. Pieces hold about equal shares of it, a few dozen for each thread, so
  /// that an expensive one does not leave the others idle. The context and the positions must
  /// outlive the queue.
  PieceQueue(const Context& context, RowRange range, std::span<const int64_t> positions)
      : context_(context),
        range_(range),
        positions_(positions.first(static_cast<size_t>(range.end - range.begin))),
        pieces_(context.threads == 1
                    ? 1
                    : std::min(range.end - range.begin, kPiecesOfThread * context.threads)),
        first_position_(positions.front()),
        work_(positions.back() - positions.front()) {}

  /// False if there is none left, or everyone is to stop.
  bool Next(RowRange* piece) {
    while (!stopped()) {
      const int64_t taken = taken_.fetch_add(1, std::memory_order_relaxed);
      if (taken >= pieces_) return false;
      *piece = {PieceBegin(taken), PieceBegin(taken + 1)};
      if (piece->begin < piece->end) return true;
    }
    return false;
  }

  /// To be asked within a piece too, every few microseconds.
  bool stopped() const { return context_.stopped(); }

 private:
  static constexpr int64_t kPiecesOfThread = 32;

  int64_t PieceBegin(int64_t piece) const {
    if (piece == 0) return range_.begin;
    if (piece == pieces_) return range_.end;
    const double share = static_cast<double>(work_) * static_cast<double>(piece) / pieces_;
    const auto at = std::lower_bound(positions_.begin(), positions_.end(),
                                     first_position_ + static_cast<int64_t>(share));
    return range_.begin + (at - positions_.begin());
  }

  const Context& context_;
  RowRange range_;
  std::span<const int64_t> positions_;
  int64_t pieces_;
  int64_t first_position_;
  int64_t work_;
  std::atomic<int64_t> taken_ = 0;
};

}  // namespace sparsed::cpu
