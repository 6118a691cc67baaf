// Counts how often each column occurs in one panel of rows: the first step of adaptive sparse
// tiling and of its dense ratio.
#pragma once

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"
#include "kernels/problem.h"
#include "kernels/scratch.h"

namespace sparsed {

/// Panels of `height` consecutive rows of a pattern, in its row_order.
struct Panels {
  const CsrView& csr;
  int64_t height;

  int64_t count() const { return (csr.rows + height - 1) / height; }
  /// Layout rows of a panel.
  RowRange Rows(int64_t panel) const {
    return {panel * height, std::min((panel + 1) * height, csr.rows)};
  }
  /// The row of the matrix at layout row r.
  int64_t MatrixRow(int64_t r) const { return csr.row_order.empty() ? r : csr.row_order[r]; }
  /// The columns of the matrix row at layout row r.
  std::span<const int32_t> Columns(int64_t r) const {
    const int64_t row = MatrixRow(r);
    const int64_t begin = csr.row_offsets[row];
    return csr.column_indices.subspan(begin, csr.row_offsets[row + 1] - begin);
  }
  /// A bound of the distinct columns of a panel: its nonzeros, or all columns.
  int64_t ColumnBound(int64_t panel) const {
    int64_t nonzeros = 0;
    for (int64_t r = Rows(panel).begin; r < Rows(panel).end; ++r) {
      nonzeros += static_cast<int64_t>(Columns(r).size());
    }
    return std::min(nonzeros, csr.cols);
  }
};

/// A map from column to a number for one panel at a time: an open-addressed table, so that its size
/// follows the panel and not the matrix.
class PanelColumns {
 public:
  struct Entry {
    int32_t column;  ///< -1: free
    int32_t number;
  };

  /// For panels of at most `bound` distinct columns.
  absl::Status Allocate(MemorySource& memory, int64_t bound) {
    absl::Status status = table_.Allocate(memory, static_cast<int64_t>(SlotsFor(bound)));
    return status.ok() ? used_.Allocate(memory, bound) : status;
  }
  /// What `Allocate` takes.
  static int64_t Bytes(int64_t bound) {
    return static_cast<int64_t>(SlotsFor(bound) * sizeof(Entry) + bound * sizeof(uint32_t));
  }

  void Count(const Panels& panels, int64_t panel) {
    mask_ = static_cast<uint32_t>(SlotsFor(panels.ColumnBound(panel)) - 1);
    std::fill(table_.data(), table_.data() + mask_ + 1, Entry{-1, 0});
    distinct_ = 0;
    const RowRange rows = panels.Rows(panel);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      for (int32_t column : panels.Columns(r)) {
        const uint32_t slot = Slot(column);
        if (table_[slot].column < 0) {
          table_[slot].column = column;
          used_[distinct_++] = slot;
        }
        ++table_[slot].number;
      }
    }
  }

  /// Columns of the panel that was counted, in the order of their first nonzero.
  int64_t distinct() const { return distinct_; }
  Entry& Distinct(int64_t i) { return table_[used_[i]]; }
  /// The number of a column that the panel has.
  int32_t& operator[](int32_t column) { return table_[Slot(column)].number; }

 private:
  static uint64_t SlotsFor(int64_t bound) {
    return std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(2 * bound, 16)));
  }
  uint32_t Slot(int32_t column) const {
    auto slot = static_cast<uint32_t>(static_cast<uint32_t>(column) * 0x9e3779b97f4a7c15U >> 32);
    for (slot &= mask_; table_[slot].column != column && table_[slot].column >= 0;) {
      slot = (slot + 1) & mask_;
    }
    return slot;
  }

  Scratch<Entry> table_;
  Scratch<uint32_t> used_;  ///< slots
  uint32_t mask_ = 0;
  int64_t distinct_ = 0;
};

/// Calls `visit(panel, columns)` for every panel, its columns counted, from a team of
/// threads (fewer than allowed if their tables would outgrow the pattern). No panel is visited
/// twice. Errors: RESOURCE_EXHAUSTED, CANCELLED.
template <typename Visit>
absl::Status ForEachPanel(const Panels& panels, const BuildContext& context, Visit visit) {
  int64_t largest = 0;
#pragma omp parallel for num_threads(context.TeamFor(panels.csr.rows)) reduction(max : largest)
  for (int64_t panel = 0; panel < panels.count(); ++panel) {
    largest = std::max(largest, panels.ColumnBound(panel));
  }
  const int threads = TeamWithScratch(context.TeamFor(panels.csr.rows),
                                      PanelColumns::Bytes(largest), 12 * panels.csr.nnz());
  std::vector<PanelColumns> tables(threads);
  for (PanelColumns& table : tables) {
    if (absl::Status status = table.Allocate(*context.memory, largest); !status.ok()) return status;
  }
#pragma omp parallel num_threads(threads)
  {
    PanelColumns& columns = tables[omp_get_thread_num()];
#pragma omp for schedule(dynamic, 16)
    for (int64_t panel = 0; panel < panels.count(); ++panel) {
      if (context.stopped()) continue;
      columns.Count(panels, panel);
      visit(panel, columns);
    }
  }
  return context.stopped() ? absl::CancelledError("the build was stopped") : absl::OkStatus();
}

}  // namespace sparsed
