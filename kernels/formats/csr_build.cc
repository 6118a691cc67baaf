#include "kernels/formats/csr_build.h"

#include <algorithm>
#include <utility>

#include "kernels/formats/permute.h"
#include "kernels/problem.h"
#include "kernels/scratch.h"

namespace sparsed {
namespace {

/// Counts of each column's nonzeros in a thread's part of the rows; then where they go.
class ColumnCounters {
 public:
  ColumnCounters(const CsrView& csr, int threads) : cols_(csr.cols) {
    const int64_t room = 2 * csr.nnz() / std::max<int64_t>(csr.cols, 1);
    parts_ = static_cast<int>(std::clamp<int64_t>(room, 1, std::max(threads, 1)));
  }

  absl::Status Allocate(MemorySource& memory) {
    if (absl::Status status = counts_.Allocate(memory, parts_ * cols_); !status.ok()) return status;
    std::fill(counts_.data(), counts_.data() + counts_.size(), 0);
    return absl::OkStatus();
  }
  int parts() const { return parts_; }
  int64_t* Of(int part) { return counts_.data() + part * cols_; }

  /// Turns counts into positions and writes the transposed row offsets.
  void Accumulate(std::span<int64_t> offsets) {
    int64_t position = 0;
    for (int64_t column = 0; column < cols_; ++column) {
      offsets[column] = position;
      for (int part = 0; part < parts_; ++part) {
        position += std::exchange(Of(part)[column], position);
      }
    }
    offsets[cols_] = position;
  }

 private:
  int64_t cols_;
  int parts_;
  Scratch<int64_t> counts_;
};

}  // namespace

absl::StatusOr<Layout> CopyCsr(const CsrView& csr, const BuildContext& context) {
  auto offsets = AllocateArray(*context.memory, "row_offsets", ElementType::kI64, csr.rows + 1);
  if (!offsets.ok()) return offsets.status();
  auto columns = AllocateArray(*context.memory, "column_indices", ElementType::kI32, csr.nnz());
  if (!columns.ok()) return columns.status();
  std::copy(csr.row_offsets.begin(), csr.row_offsets.end(), offsets->MutableAs<int64_t>().begin());
  std::copy(csr.column_indices.begin(), csr.column_indices.end(),
            columns->MutableAs<int32_t>().begin());
  return MakeHostCsrLayout(csr.rows, csr.cols, *std::move(offsets), *std::move(columns));
}

absl::StatusOr<Layout> PermuteRows(const CsrView& csr, Array row_order,
                                   const BuildContext& context) {
  row_order.name = "row_order";
  const auto order = row_order.As<int32_t>();
  auto offsets = PermuteOffsets(csr.row_offsets, order, context);
  if (!offsets.ok()) return offsets.status();
  auto columns = AllocateArray(*context.memory, "column_indices", ElementType::kI32, csr.nnz());
  if (!columns.ok()) return columns.status();
  auto source = AllocateArray(*context.memory, kValueSource, SourceType(csr.nnz()), csr.nnz());
  if (!source.ok()) return source.status();

  const auto to = offsets->As<int64_t>();
  const auto column_slots = columns->MutableAs<int32_t>();
  WithSource(*source, [&](auto source_slots) {
    ForEachRow(csr.rows, context, [&](int64_t r) {
      int64_t slot = to[r];
      const int64_t row = order[r];
      for (int64_t p = csr.row_offsets[row]; p < csr.row_offsets[row + 1]; ++p, ++slot) {
        column_slots[slot] = csr.column_indices[p];
        source_slots[slot] = static_cast<typename decltype(source_slots)::value_type>(p);
      }
    });
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");
  Layout layout = MakeHostCsrLayout(csr.rows, csr.cols, *std::move(offsets), *std::move(columns));
  layout.arrays.push_back(std::move(row_order));
  layout.arrays.push_back(*std::move(source));
  return layout;
}

absl::StatusOr<Layout> TransposeCsr(const CsrView& csr, const BuildContext& context) {
  auto offsets = AllocateArray(*context.memory, "row_offsets", ElementType::kI64, csr.cols + 1);
  if (!offsets.ok()) return offsets.status();
  auto columns = AllocateArray(*context.memory, "column_indices", ElementType::kI32, csr.nnz());
  if (!columns.ok()) return columns.status();
  auto source = AllocateArray(*context.memory, kValueSource, SourceType(csr.nnz()), csr.nnz());
  if (!source.ok()) return source.status();

  ColumnCounters counters(csr, context.TeamFor(csr.rows));
  if (absl::Status status = counters.Allocate(*context.memory); !status.ok()) return status;
  const int parts = counters.parts();
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int part = 0; part < parts; ++part) {
    const RowRange range = PartOfRows(csr.row_offsets, part, parts);
    int64_t* const counts = counters.Of(part);
    for (int64_t p = csr.row_offsets[range.begin]; p < csr.row_offsets[range.end]; ++p) {
      ++counts[csr.column_indices[p]];
    }
  }
  counters.Accumulate(offsets->MutableAs<int64_t>());
  const auto row_slots = columns->MutableAs<int32_t>();
  WithSource(*source, [&](auto source_slots) {
#pragma omp parallel for num_threads(parts) schedule(static, 1)
    for (int part = 0; part < parts; ++part) {
      const RowRange range = PartOfRows(csr.row_offsets, part, parts);
      int64_t* const next = counters.Of(part);
      for (int64_t row = range.begin; row < range.end; ++row) {
        if (context.stopped()) break;
        for (int64_t p = csr.row_offsets[row]; p < csr.row_offsets[row + 1]; ++p) {
          const int64_t slot = next[csr.column_indices[p]]++;
          row_slots[slot] = static_cast<int32_t>(row);
          source_slots[slot] = static_cast<typename decltype(source_slots)::value_type>(p);
        }
      }
    }
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");
  Layout layout = MakeHostCsrLayout(csr.cols, csr.rows, *std::move(offsets), *std::move(columns));
  layout.transposed = true;
  layout.arrays.push_back(*std::move(source));
  return layout;
}

}  // namespace sparsed
