#include "kernels/reorder/sort_rows.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "kernels/formats/permute.h"
#include "kernels/reorder/nearest_rows.h"
#include "kernels/reorder/radix_sort.h"
#include "kernels/scratch.h"

namespace sparsed {
namespace {

absl::Status Stopped() { return absl::CancelledError("the reordering was stopped"); }

/// The rows by load, descending; those of equal load ascending.
absl::Status SortByLoad(std::span<const int32_t> loads, const BuildContext& context,
                        std::span<int32_t> sequence) {
  const int64_t rows = static_cast<int64_t>(loads.size());
  Scratch<uint64_t> items, scratch;
  absl::Status status = items.Allocate(*context.memory, rows);
  if (status.ok()) status = scratch.Allocate(*context.memory, rows);
  if (!status.ok()) return status;
  int32_t largest = 0;
  for (const int32_t load : loads) largest = std::max(largest, load);
  for (int64_t row = 0; row < rows; ++row) {
    items[row] = static_cast<uint64_t>(largest - loads[row]) << 32 | static_cast<uint32_t>(row);
  }
  RadixSort(items.span(), scratch.span(), 32,
            32 + static_cast<int>(std::bit_width(static_cast<uint32_t>(largest))), context.threads);
  for (int64_t i = 0; i < rows; ++i) sequence[i] = static_cast<int32_t>(items[i] & 0xffffffffU);
  return absl::OkStatus();
}

void Flip(int64_t warps, std::span<int32_t> sequence) {
  const int64_t rows = static_cast<int64_t>(sequence.size());
  for (int64_t begin = warps; begin < rows; begin += 2 * warps) {
    std::reverse(sequence.begin() + begin,
                 sequence.begin() + begin + std::min(warps, rows - begin));
  }
}

/// A warp to which LPT may still give rows.
struct WarpLoad {
  int64_t load;
  int64_t warp;
  int64_t count;  ///< of its rows

  bool operator>(const WarpLoad& other) const {
    return std::pair(load, warp) > std::pair(other.load, other.warp);
  }
};

/// Gives the rows of `sequence` to warps; `order` is the permutation.
absl::Status AssignLongestFirst(std::span<const int32_t> loads, const RowPolicy& policy,
                                std::span<const int32_t> sequence, const BuildContext& context,
                                std::span<int32_t> order) {
  const int64_t rows = static_cast<int64_t>(sequence.size());
  const int64_t block = policy.warps * policy.run;
  int64_t open = std::min(policy.warps, (rows + policy.run - 1) / policy.run);
  Scratch<WarpLoad> heap;
  if (absl::Status status = heap.Allocate(*context.memory, open); !status.ok()) return status;
  for (int64_t warp = 0; warp < open; ++warp) heap[warp] = {0, warp, 0};  // ascending: a heap
  const auto position = [&](const WarpLoad& to) {
    return to.count / policy.run * block + to.warp * policy.run + to.count % policy.run;
  };
  for (int64_t i = 0; i < rows; ++i) {
    if (i % (1 << 14) == 0 && context.stopped()) return Stopped();
    std::pop_heap(heap.data(), heap.data() + open, std::greater<>());
    WarpLoad& least = heap[open - 1];
    order[position(least)] = sequence[i];
    least.load += loads[sequence[i]];
    ++least.count;
    if (position(least) < rows) {
      std::push_heap(heap.data(), heap.data() + open, std::greater<>());
    } else {
      --open;
    }
  }
  return absl::OkStatus();
}

/// From the order in which rows are worked on to that in which they lie.
void Deal(std::span<const int32_t> sequence, const RowPolicy& policy, std::span<int32_t> order) {
  const int64_t rows = static_cast<int64_t>(sequence.size());
  int64_t next = 0;
  for (int64_t begin = 0; begin < rows; begin += policy.warps * policy.run) {
    const int64_t end = std::min(begin + policy.warps * policy.run, rows);
    for (int64_t step = 0; step < std::min(policy.run, end - begin); ++step) {
      for (int64_t at = begin + step; at < end; at += policy.run) order[at] = sequence[next++];
    }
  }
}

/// The columns of a matrix whose column c stands for columns [c * width, (c + 1) * width).
class Masks {
 public:
  /// The view lives as long as this and `csr`.
  absl::StatusOr<CsrView> Build(const CsrView& csr, int64_t width, const BuildContext& context) {
    if (width == 1) return csr;
    absl::Status status = offsets_.Allocate(*context.memory, csr.rows + 1);
    if (!status.ok()) return status;
    ForEachRow(csr.rows, context,
               [&](int64_t row) { offsets_[row + 1] = Visit(csr, row, width, [](int32_t) {}); });
    if (context.stopped()) return Stopped();
    offsets_[0] = 0;
    for (int64_t row = 0; row < csr.rows; ++row) offsets_[row + 1] += offsets_[row];
    status = columns_.Allocate(*context.memory, offsets_[csr.rows]);
    if (!status.ok()) return status;
    ForEachRow(csr.rows, context, [&](int64_t row) {
      int64_t at = offsets_[row];
      Visit(csr, row, width, [&](int32_t column) { columns_[at++] = column; });
    });
    if (context.stopped()) return Stopped();
    return CsrView{csr.rows,
                   (csr.cols + width - 1) / width,
                   std::as_const(offsets_).span(),
                   std::as_const(columns_).span(),
                   {}};
  }

 private:
  /// Calls `visit` with each bit of the row; returns their number.
  template <typename Bit>
  static int64_t Visit(const CsrView& csr, int64_t row, int64_t width, Bit visit) {
    int64_t count = 0;
    int64_t last = -1;
    for (int64_t p = csr.row_offsets[row]; p < csr.row_offsets[row + 1]; ++p) {
      const int64_t bit = csr.column_indices[p] / width;
      if (bit == last) continue;
      visit(static_cast<int32_t>(bit));
      last = bit;
      ++count;
    }
    return count;
  }

  Scratch<int64_t> offsets_;
  Scratch<int32_t> columns_;
};

NearestOptions NearestOptionsOf(RowSort sort, const RowPolicy& policy) {
  NearestOptions options;
  options.warps = policy.warps;
  if (sort == RowSort::kWarpAware || sort == RowSort::kHybrid23) options.stride = policy.warps;
  if (sort == RowSort::kHybrid21 || sort == RowSort::kHybrid23) options.tie = NearestTie::kLoad;
  if (sort == RowSort::kHybrid22) options.tie = NearestTie::kWarp;
  options.by_load = sort == RowSort::kHybrid1;
  return options;
}

}  // namespace

absl::StatusOr<Array> SortRows(const CsrView& csr, RowSort sort, const RowPolicy& policy,
                               const BuildContext& context) {
  auto order = AllocateArray(*context.memory, "row_order", ElementType::kI32, csr.rows);
  if (!order.ok()) return order.status();
  Scratch<int32_t> loads, sequence;
  absl::Status status = loads.Allocate(*context.memory, csr.rows);
  if (status.ok()) status = sequence.Allocate(*context.memory, csr.rows);
  if (!status.ok()) return status;
  for (int64_t row = 0; row < csr.rows; ++row) {
    const int64_t nonzeros = csr.row_offsets[row + 1] - csr.row_offsets[row];
    loads[row] = static_cast<int32_t>((nonzeros + policy.lanes - 1) / policy.lanes);
  }
  const auto positions = order->MutableAs<int32_t>();
  if (sort == RowSort::kPlain || sort == RowSort::kFlipped || sort == RowSort::kLpt) {
    status = SortByLoad(loads.span(), context, sequence.span());
    if (!status.ok()) return status;
    if (context.stopped()) return Stopped();
    if (sort == RowSort::kLpt) {
      status = AssignLongestFirst(loads.span(), policy, sequence.span(), context, positions);
      if (!status.ok()) return status;
      return order;
    }
    if (sort == RowSort::kFlipped) Flip(policy.warps, sequence.span());
  } else {
    Masks masks;
    const auto view = masks.Build(csr, policy.mask_columns, context);
    if (!view.ok()) return view.status();
    status = ChainNearestRows(*view, loads.span(), NearestOptionsOf(sort, policy), context,
                              sequence.span());
    if (!status.ok()) return status;
  }
  Deal(sequence.span(), policy, positions);
  return order;
}

}  // namespace sparsed
