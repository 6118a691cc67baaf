#include "kernels/reorder/breadth_first.h"

#include <algorithm>

#include "kernels/formats/csr_build.h"
#include "kernels/scratch.h"

namespace sparsed {

absl::StatusOr<Array> BreadthFirst(const CsrView& csr, const BuildContext& context) {
  constexpr int64_t kReport = 1 << 14;
  const auto transposed = TransposeCsr(csr, context);
  if (!transposed.ok()) return transposed.status();
  const CsrView columns = ViewCsr(*transposed);
  auto array = AllocateArray(*context.memory, "row_order", ElementType::kI32, csr.rows);
  if (!array.ok()) return array.status();
  Scratch<bool> placed, crossed;
  absl::Status status = placed.Allocate(*context.memory, csr.rows);
  if (status.ok()) status = crossed.Allocate(*context.memory, csr.cols);
  if (!status.ok()) return status;
  std::fill_n(placed.data(), csr.rows, false);
  std::fill_n(crossed.data(), csr.cols, false);

  const int64_t mean = csr.nnz() / std::max<int64_t>(csr.cols, 1);
  const int64_t most_rows = std::max<int64_t>(16 * mean, 256);
  const std::span<int32_t> order = array->MutableAs<int32_t>();
  int64_t count = 0, next_root = 0;
  for (int64_t at = 0; at < csr.rows; ++at) {
    if (at % kReport == 0) {
      if (context.stopped()) return absl::CancelledError("the reordering was stopped");
      if (context.progress) context.progress("breadth_first", at, csr.rows);
    }
    if (at == count) {
      while (placed[next_root]) ++next_root;
      placed[next_root] = true;
      order[count++] = static_cast<int32_t>(next_root);
    }
    const int32_t row = order[at];
    for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
      const int32_t column = csr.column_indices[i];
      const int64_t begin = columns.row_offsets[column], end = columns.row_offsets[column + 1];
      if (crossed[column] || end - begin > most_rows) continue;
      crossed[column] = true;
      for (int64_t j = begin; j < end; ++j) {
        const int32_t neighbour = columns.column_indices[j];
        if (placed[neighbour]) continue;
        placed[neighbour] = true;
        order[count++] = neighbour;
      }
    }
  }
  return array;
}

}  // namespace sparsed
