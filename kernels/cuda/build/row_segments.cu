// Row segments built on the GPU (Hong et al., HPDC'18, section 5.2).
//
// Idea: a thread for each nonzero, in the order of the layout's rows. The nonzeros of a row in one
// panel are a group; whether a nonzero's group is a heavy segment, a search in its row of at most a
// panel's width tells. What is light keeps its order, so that its place is the number of light
// nonzeros before it: a bit for each nonzero, and for each 32 of them a running sum. Segments are
// numbered likewise and then sorted by panel, which leaves those of a panel in the rows' order.
#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>

#include "kernels/cuda/build/build.h"
#include "kernels/cuda/build/launch.cuh"
#include "kernels/cuda/build/parts.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/running_sum.h"
#include "kernels/cuda/sort_pairs.h"
#include "kernels/formats/csr_build.h"

namespace sparsed::cuda {
namespace {

constexpr unsigned kWarp = 0xffffffffu;

using Counter = unsigned long long;  // what atomicAdd knows

/// What is counted over all nonzeros.
struct Totals {
  Counter near;      // nonzeros that are near the one before them
  Counter segments;  // of panels that pay
  Counter heavy;     // nonzeros in them
  Counter chunks;
};

/// The pattern in the order of the layout's rows, and what is known of it.
struct Pattern {
  const int64_t* csr_offsets;
  const int32_t* columns;
  const int32_t* row_order;  // null: identity
  const int64_t* offsets;    // of the layout's rows
  const int32_t* row_of;     // the layout row of each nonzero
  const Totals* totals;
  int64_t* panel_segments;  // none: it does not pay
  int64_t rows, cols, nnz, panels;
  int64_t width, min_heavy;

  __device__ int64_t MatrixRow(int64_t r) const { return row_order == nullptr ? r : row_order[r]; }
  __device__ int64_t LeastHeavy() const {
    if (min_heavy != 0) return min_heavy;
    return row_segments::LeastHeavy(static_cast<int64_t>(totals->near), nnz);
  }
};

/// A nonzero and the group that it is in.
struct Nonzero {
  const int32_t* columns;  // its row's
  int64_t row;             // in the layout
  int64_t csr_begin;       // of the row, among the pattern's nonzeros
  int64_t at, length;      // its place in the row, the row's length
  int64_t panel;
  int64_t panel_begin, panel_end;  // columns

  __device__ Nonzero(const Pattern& s, int64_t q) {
    row = s.row_of[q];
    const int64_t begin = s.offsets[row];
    csr_begin = s.csr_offsets[s.MatrixRow(row)];
    columns = s.columns + csr_begin;
    at = q - begin;
    length = s.offsets[row + 1] - begin;
    panel = static_cast<uint32_t>(columns[at]) / static_cast<uint32_t>(s.width);
    panel_begin = panel * s.width;
    panel_end = panel_begin + s.width;
  }
  __device__ int64_t source() const { return csr_begin + at; }
  __device__ bool IsHead() const { return at == 0 || columns[at - 1] < panel_begin; }
  __device__ bool IsHeavyFrom(int64_t head, int64_t least) const {
    return head + least <= length && columns[head + least - 1] < panel_end;
  }
  /// The first place of the row in [low, high) whose column is not below `column`, or high.
  __device__ int64_t Find(int64_t low, int64_t high, int64_t column) const {
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (columns[middle] < column) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  __device__ int64_t Head() const {
    return Find(max(at - (panel_end - panel_begin) + 1, int64_t{0}), at, panel_begin);
  }
  __device__ int64_t End() const {
    return Find(at + 1, min(at + (panel_end - panel_begin), length), panel_end);
  }
};

/// Light nonzeros, or the first ones of heavy segments.
struct Marks {
  uint32_t* bits;  // of 32 nonzeros each
  int64_t* counts;
  int64_t* before;  // how many are in those before

  __device__ int64_t Before(int64_t q, int64_t nnz) const {
    const int64_t word = q / 32;
    if (q == nnz && q % 32 == 0) return before[word];
    return before[word] + __popc(bits[word] & ((1u << (q % 32)) - 1));
  }
};

/// Heavy segments in the order of the layout's rows.
struct Segments {
  uint32_t* panels;
  uint32_t* numbers;
  int32_t* layout_rows;
  int32_t* lengths;
  int64_t* begins;  // among the pattern's nonzeros
};

__global__ void LengthsInOrder(const int64_t* offsets, const int32_t* order, int64_t rows,
                               int64_t* lengths) {
  const int64_t r = ThreadIndex();
  if (r < rows) lengths[r] = offsets[order[r] + 1] - offsets[order[r]];
}

/// A warp for each row.
__global__ void NumberRows(const int64_t* offsets, int64_t rows, int32_t* row_of) {
  const int64_t r = ThreadIndex() / 32;
  if (r >= rows) return;
  for (int64_t q = offsets[r] + threadIdx.x % 32; q < offsets[r + 1]; q += 32) {
    row_of[q] = static_cast<int32_t>(r);
  }
}

__global__ void CountNear(const Pattern s, Totals* totals) {
  const int64_t q = ThreadIndex();
  bool near = false;
  if (q < s.nnz) {
    const Nonzero x(s, q);
    near = x.at > 0 && x.columns[x.at] - x.columns[x.at - 1] < row_segments::kNear;
  }
  const int count = __syncthreads_count(near);
  if (threadIdx.x == 0) atomicAdd(&totals->near, static_cast<Counter>(count));
}

__global__ void CountInPanels(const Pattern s, Counter* panel_entries) {
  const int64_t q = ThreadIndex();
  if (q >= s.nnz) return;
  const Nonzero x(s, q);
  if (!x.IsHead() || !x.IsHeavyFrom(x.at, s.LeastHeavy())) return;
  atomicAdd(panel_entries + x.panel, static_cast<Counter>(x.End() - x.at));
  atomicAdd(reinterpret_cast<Counter*>(s.panel_segments) + x.panel, Counter{1});
}

__global__ void KeepPanelsThatPay(const Pattern s, const Counter* panel_entries, Totals* totals) {
  const int64_t panel = ThreadIndex();
  if (panel >= s.panels) return;
  const auto entries = static_cast<int64_t>(panel_entries[panel]);
  if (entries >= row_segments::kLeastUses * min(s.width, s.cols - panel * s.width)) {
    atomicAdd(&totals->segments, static_cast<Counter>(s.panel_segments[panel]));
    atomicAdd(&totals->heavy, static_cast<Counter>(entries));
  } else {
    s.panel_segments[panel] = 0;
  }
}

__global__ void MarkEach(const Pattern s, const Marks light, const Marks heads) {
  const int64_t q = ThreadIndex();
  bool is_light = false, is_head = false;
  if (q < s.nnz) {
    const Nonzero x(s, q);
    is_light = true;
    if (s.panel_segments[x.panel] > 0) {
      const int64_t head = x.Head();
      is_light = !x.IsHeavyFrom(head, s.LeastHeavy());
      is_head = !is_light && head == x.at;
    }
  }
  const unsigned light_bits = __ballot_sync(kWarp, is_light);
  const unsigned head_bits = __ballot_sync(kWarp, is_head);
  if (threadIdx.x % 32 != 0 || q >= s.nnz) return;
  light.bits[q / 32] = light_bits;
  light.counts[q / 32] = __popc(light_bits);
  heads.bits[q / 32] = head_bits;
  heads.counts[q / 32] = __popc(head_bits);
}

__global__ void PlaceRows(const Pattern s, const Marks light, int64_t* light_row_offsets) {
  const int64_t r = ThreadIndex();
  if (r <= s.rows) light_row_offsets[r] = light.Before(s.offsets[r], s.nnz);
}

template <typename Source>
__global__ void MoveLight(const Pattern s, const Marks light, const Marks heads,
                          const Segments segments, int32_t* light_columns, Source* light_source) {
  const int64_t q = ThreadIndex();
  if (q >= s.nnz) return;
  const uint32_t bit = 1u << (q % 32);
  const bool is_light = (light.bits[q / 32] & bit) != 0;
  const bool is_head = (heads.bits[q / 32] & bit) != 0;
  if (!is_light && !is_head) return;
  const Nonzero x(s, q);
  if (is_light) {
    const int64_t to = light.Before(q, s.nnz);
    light_columns[to] = x.columns[x.at];
    light_source[to] = static_cast<Source>(x.source());
    return;
  }
  const int64_t to = heads.Before(q, s.nnz);
  segments.panels[to] = static_cast<uint32_t>(x.panel);
  segments.numbers[to] = static_cast<uint32_t>(to);
  segments.layout_rows[to] = static_cast<int32_t>(x.row);
  segments.lengths[to] = static_cast<int32_t>(x.End() - x.at);
  segments.begins[to] = x.source();
}

__global__ void PlaceSegments(const Pattern s, const Segments segments, const uint32_t* order,
                              int64_t count, int32_t* rows, int32_t* layout_rows,
                              int64_t* lengths) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const int32_t row = segments.layout_rows[order[i]];
  rows[i] = static_cast<int32_t>(s.MatrixRow(row));
  if (layout_rows != nullptr) layout_rows[i] = row;
  lengths[i] = segments.lengths[order[i]];
}

/// Eight lanes for each segment.
template <typename Source>
__global__ void MoveHeavy(const Pattern s, const Segments segments, const SortedPairs sorted,
                          int64_t count, const int64_t* segment_offsets, int32_t* heavy_columns,
                          Source* source) {
  constexpr int kLanes = 8;
  const int64_t i = ThreadIndex() / kLanes;
  if (i >= count) return;
  const uint32_t number = sorted.values[i];
  const int64_t begin = segments.begins[number];
  const auto panel_begin = static_cast<int32_t>(sorted.keys[i] * s.width);
  const int length = segments.lengths[number];
  const int64_t to = segment_offsets[i];
  for (int j = static_cast<int>(threadIdx.x) % kLanes; j < length; j += kLanes) {
    heavy_columns[to + j] = s.columns[begin + j] - panel_begin;
    source[to + j] = static_cast<Source>(begin + j);
  }
}

struct Chunks {
  const int64_t* panel_offsets;    // of segments
  const int64_t* segment_offsets;  // of nonzeros
  int64_t panels, segments;
  int64_t chunk_work;

  __device__ int64_t Work(int64_t segment) const {
    return segment_offsets[segment] + row_segments::kSegmentWork * segment;
  }
  /// The first segment of [low, high) before which there is so much work, or high.
  __device__ int64_t Find(int64_t low, int64_t high, int64_t work) const {
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (Work(middle) < work) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  /// A warp calls visit(i, segment) for the chunks of a panel, a lane for each; returns how many
  /// there are. A chunk ends where its piece of the work does, but has a segment at least: chunk
  /// i begins with segment max over j <= i of (end of piece j - 1) + (i - j).
  template <typename Visit>
  __device__ int64_t ForEach(int64_t panel, Visit visit) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t begin = panel_offsets[panel], end = panel_offsets[panel + 1];
    if (begin == end) return 0;
    const int64_t first = Work(begin), all = Work(end) - first;
    const int64_t pieces = row_segments::Pieces(all, chunk_work);
    int64_t count = 0, carry = begin;
    for (int64_t base = 0; base < pieces; base += 32) {
      const int64_t i = base + lane;
      int64_t shifted = begin;
      if (i > 0 && i < pieces) {
        shifted = Find(begin, end, first + row_segments::PieceEnd(all, pieces, i - 1)) - i;
      }
      shifted = max(shifted, carry);
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int64_t other = __shfl_up_sync(kWarp, shifted, step);
        if (lane >= step) shifted = max(shifted, other);
      }
      const bool is_there = i < pieces && shifted + i < end;
      if (is_there) visit(i, shifted + i);
      count += __popc(__ballot_sync(kWarp, is_there));
      carry = __shfl_sync(kWarp, shifted, 31);
    }
    return count;
  }
};

__global__ void CountChunks(const Chunks chunks, int64_t* counts, Totals* totals) {
  const int64_t panel = ThreadIndex() / 32;
  if (panel >= chunks.panels) return;
  const int64_t count = chunks.ForEach(panel, [](int64_t, int64_t) {});
  if (threadIdx.x % 32 != 0) return;
  counts[panel] = count;
  if (count > 0) atomicAdd(&totals->chunks, static_cast<Counter>(count));
}

__global__ void PlaceChunks(const Chunks chunks, const int64_t* before, int32_t* chunk_panels,
                            int64_t* chunk_offsets) {
  const int64_t panel = ThreadIndex() / 32;
  if (panel >= chunks.panels) return;
  const int64_t count = chunks.ForEach(panel, [&](int64_t i, int64_t segment) {
    chunk_panels[before[panel] + i] = static_cast<int32_t>(panel);
    chunk_offsets[before[panel] + i] = segment;
  });
  if (panel == chunks.panels - 1 && threadIdx.x % 32 == 0) {
    chunk_offsets[before[panel] + count] = chunks.segments;
  }
}

class Builder {
 public:
  Builder(Stream& queue, MemorySource& memory, const CsrView& csr,
          const RowSegmentsOptions& options)
      : queue_(queue),
        stream_(static_cast<cudaStream_t>(queue.handle())),
        memory_(memory),
        csr_(csr),
        options_(options),
        permuted_(!csr.row_order.empty()),
        panels_((csr.cols + options.panel - 1) / options.panel),
        words_((csr.nnz() + 31) / 32) {}

  absl::StatusOr<Layout> Build() {
    absl::StatusOr<Layout> layout = csr_.nnz() <= std::numeric_limits<int32_t>::max()
                                        ? BuildWith<int32_t>()
                                        : BuildWith<int64_t>();
    if (!layout.ok()) return Settled(stream_, layout.status());
    return layout;
  }

 private:
  template <typename Source>
  absl::StatusOr<Layout> BuildWith();
  /// What does not depend on how many segments there will be; then it is known.
  absl::Status Mark();
  absl::Status FindTotals();
  absl::Status RunningSum(const int64_t* from, int64_t count, int64_t* to) {
    return ToStatus(
        cuda::RunningSum(stream_, from, count, to, scratch_[sum_workspace_], &sum_workspace_bytes_),
        "adding up");
  }
  static absl::Status Launched() { return ToStatus(cudaGetLastError(), "building row segments"); }

  Stream& queue_;
  const cudaStream_t stream_;  ///< queue_'s
  MemorySource& memory_;
  const CsrView& csr_;
  RowSegmentsOptions options_;
  const bool permuted_;
  const int64_t panels_, words_;
  Totals known_{};  ///< a copy

  Parts scratch_;
  Parts::Part<std::byte> sum_workspace_;
  size_t sum_workspace_bytes_ = 0;
  Parts::Part<Totals> totals_;
  Parts::Part<int64_t> panel_offsets_;
  Pattern s_{};
  Marks light_{}, heads_{};
};

absl::Status Builder::Mark() {
  const int64_t longest = std::max({csr_.rows, panels_, words_, csr_.nnz()});
  cudaError_t error =
      cuda::RunningSum(nullptr, nullptr, longest, nullptr, nullptr, &sum_workspace_bytes_);
  if (error != cudaSuccess) return ToStatus(error, "adding up");
  sum_workspace_ = scratch_.Ask<std::byte>(static_cast<int64_t>(sum_workspace_bytes_) + 1);
  // Those that start as zeros come first.
  totals_ = scratch_.Ask<Totals>(1);
  const auto panel_entries = scratch_.Ask<Counter>(panels_);
  const auto panel_segments = scratch_.Ask<int64_t>(panels_);
  panel_offsets_ = scratch_.Ask<int64_t>(panels_ + 1);
  const auto row_of = scratch_.Ask<int32_t>(csr_.nnz());
  const auto lengths = scratch_.Ask<int64_t>(permuted_ ? csr_.rows : 0);
  const auto offsets = scratch_.Ask<int64_t>(permuted_ ? csr_.rows + 1 : 0);
  const auto ask_marks = [&] {
    return std::tuple(scratch_.Ask<uint32_t>(words_), scratch_.Ask<int64_t>(words_),
                      scratch_.Ask<int64_t>(words_ + 1));
  };
  const auto light = ask_marks(), heads = ask_marks();
  absl::Status status = scratch_.Allocate(memory_);
  if (!status.ok()) return status;
  const auto marks = [&](const auto& parts) {
    return Marks{scratch_[std::get<0>(parts)], scratch_[std::get<1>(parts)],
                 scratch_[std::get<2>(parts)]};
  };
  light_ = marks(light);
  heads_ = marks(heads);
  Totals* const totals = scratch_[totals_];
  s_ = {.csr_offsets = csr_.row_offsets.data(),
        .columns = csr_.column_indices.data(),
        .row_order = permuted_ ? csr_.row_order.data() : nullptr,
        .offsets = permuted_ ? scratch_[offsets] : csr_.row_offsets.data(),
        .row_of = scratch_[row_of],
        .totals = totals,
        .panel_segments = scratch_[panel_segments],
        .rows = csr_.rows,
        .cols = csr_.cols,
        .nnz = csr_.nnz(),
        .panels = panels_,
        .width = options_.panel,
        .min_heavy = options_.min_heavy};
  status.Update(queue_.Fill(totals, 0, panel_offsets_.at - totals_.at));
  if (!status.ok()) return status;
  if (permuted_) {
    LengthsInOrder<<<Blocks(s_.rows), kThreads, 0, stream_>>>(s_.csr_offsets, s_.row_order, s_.rows,
                                                              scratch_[lengths]);
    status.Update(RunningSum(scratch_[lengths], s_.rows, scratch_[offsets]));
    if (!status.ok()) return status;
  }
  NumberRows<<<Blocks(32 * s_.rows), kThreads, 0, stream_>>>(s_.offsets, s_.rows, scratch_[row_of]);
  const unsigned blocks = Blocks(s_.nnz);
  if (s_.min_heavy == 0) CountNear<<<blocks, kThreads, 0, stream_>>>(s_, totals);
  CountInPanels<<<blocks, kThreads, 0, stream_>>>(s_, scratch_[panel_entries]);
  KeepPanelsThatPay<<<Blocks(panels_), kThreads, 0, stream_>>>(s_, scratch_[panel_entries], totals);
  MarkEach<<<blocks, kThreads, 0, stream_>>>(s_, light_, heads_);
  status.Update(Launched());
  if (status.ok()) status.Update(RunningSum(s_.panel_segments, panels_, scratch_[panel_offsets_]));
  if (status.ok()) status.Update(RunningSum(light_.counts, words_, light_.before));
  if (status.ok()) status.Update(RunningSum(heads_.counts, words_, heads_.before));
  return status.ok() ? FindTotals() : status;
}

absl::Status Builder::FindTotals() {
  absl::Status status = queue_.Copy(&known_, scratch_[totals_], sizeof(known_));
  return status.ok() ? queue_.Synchronize() : status;
}

template <typename Source>
absl::StatusOr<Layout> Builder::BuildWith() {
  absl::Status status = Mark();
  if (!status.ok()) return status;
  if (options_.min_heavy == 0) {
    options_.min_heavy = row_segments::LeastHeavy(static_cast<int64_t>(known_.near), s_.nnz);
  }
  const auto count = static_cast<int64_t>(known_.segments);
  const auto heavy = static_cast<int64_t>(known_.heavy);
  if (count > std::numeric_limits<int32_t>::max()) {
    return absl::ResourceExhaustedError("more segments than the GPU numbers");
  }
  const int64_t work = heavy + row_segments::kSegmentWork * count;
  const int64_t chunk_work = row_segments::ChunkWork(work);
  const int64_t most_chunks = work / chunk_work + std::min(panels_, count);

  Parts arrays;
  auto chunk_panels = arrays.Ask<int32_t>(most_chunks);
  auto chunk_offsets = arrays.Ask<int64_t>(most_chunks + 1);
  const auto segment_rows = arrays.Ask<int32_t>(count);
  const auto segment_offsets = arrays.Ask<int64_t>(count + 1);
  const auto heavy_columns = arrays.Ask<int32_t>(heavy);
  const auto light_row_offsets = arrays.Ask<int64_t>(s_.rows + 1);
  const auto light_columns = arrays.Ask<int32_t>(s_.nnz - heavy);
  const auto value_source = arrays.Ask<Source>(s_.nnz);
  const auto row_order = arrays.Ask<int32_t>(permuted_ ? s_.rows : 0);
  const auto layout_rows = arrays.Ask<int32_t>(permuted_ ? count : 0);
  if (absl::Status s = arrays.Allocate(memory_); !s.ok()) return s;

  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(panels_)));
  size_t sort_bytes = 0;
  SortedPairs sorted{};
  cudaError_t error = SortPairs(stream_, nullptr, nullptr, nullptr, nullptr,
                                static_cast<uint32_t>(count), bits, nullptr, &sort_bytes, &sorted);
  if (error != cudaSuccess) return ToStatus(error, "sorting");
  Parts more;
  const auto sort_workspace = more.Ask<std::byte>(static_cast<int64_t>(sort_bytes) + 1);
  const auto panels = more.Ask<uint32_t>(count), other_panels = more.Ask<uint32_t>(count);
  const auto numbers = more.Ask<uint32_t>(count), other_numbers = more.Ask<uint32_t>(count);
  const auto rows = more.Ask<int32_t>(count), lengths = more.Ask<int32_t>(count);
  const auto begins = more.Ask<int64_t>(count), sorted_lengths = more.Ask<int64_t>(count);
  const auto chunk_counts = more.Ask<int64_t>(panels_), before = more.Ask<int64_t>(panels_ + 1);
  if (absl::Status s = more.Allocate(memory_); !s.ok()) return s;
  const Segments segments = {more[panels], more[numbers], more[rows], more[lengths], more[begins]};

  Source* const source = arrays[value_source];
  PlaceRows<<<Blocks(s_.rows + 1), kThreads, 0, stream_>>>(s_, light_, arrays[light_row_offsets]);
  MoveLight<<<Blocks(s_.nnz), kThreads, 0, stream_>>>(s_, light_, heads_, segments,
                                                      arrays[light_columns], source + heavy);
  if (absl::Status s = Launched(); !s.ok()) return s;
  if (count > 0) {
    error =
        SortPairs(stream_, more[panels], more[numbers], more[other_panels], more[other_numbers],
                  static_cast<uint32_t>(count), bits, more[sort_workspace], &sort_bytes, &sorted);
    if (error != cudaSuccess) return ToStatus(error, "sorting");
  }
  PlaceSegments<<<Blocks(count), kThreads, 0, stream_>>>(
      s_, segments, sorted.values, count, arrays[segment_rows],
      permuted_ ? arrays[layout_rows] : nullptr, more[sorted_lengths]);
  status.Update(RunningSum(more[sorted_lengths], count, arrays[segment_offsets]));
  if (!status.ok()) return status;
  MoveHeavy<<<Blocks(8 * count), kThreads, 0, stream_>>>(
      s_, segments, sorted, count, arrays[segment_offsets], arrays[heavy_columns], source);
  const Chunks chunks = {scratch_[panel_offsets_], arrays[segment_offsets], panels_, count,
                         chunk_work};
  CountChunks<<<Blocks(32 * panels_), kThreads, 0, stream_>>>(chunks, more[chunk_counts],
                                                              scratch_[totals_]);
  if (absl::Status s = RunningSum(more[chunk_counts], panels_, more[before]); !s.ok()) return s;
  if (panels_ == 0) {
    status.Update(queue_.Fill(arrays[chunk_offsets], 0, sizeof(int64_t)));
    if (!status.ok()) return status;
  }
  PlaceChunks<<<Blocks(32 * panels_), kThreads, 0, stream_>>>(
      chunks, more[before], arrays[chunk_panels], arrays[chunk_offsets]);
  status.Update(Launched());
  if (status.ok() && permuted_) {
    status.Update(
        queue_.Copy(arrays[row_order], csr_.row_order.data(), csr_.row_order.size_bytes()));
  }
  if (status.ok()) status.Update(FindTotals());
  if (!status.ok()) return status;
  chunk_panels.length = static_cast<int64_t>(known_.chunks);
  chunk_offsets.length = chunk_panels.length + 1;

  Layout layout = RowSegmentsWithoutArrays(csr_, options_);
  layout.arrays = {arrays.AsArray("chunk_panels", chunk_panels),
                   arrays.AsArray("chunk_offsets", chunk_offsets),
                   arrays.AsArray("segment_rows", segment_rows),
                   arrays.AsArray("segment_offsets", segment_offsets),
                   arrays.AsArray("heavy_columns", heavy_columns),
                   arrays.AsArray("light_row_offsets", light_row_offsets),
                   arrays.AsArray("light_columns", light_columns),
                   arrays.AsArray(kValueSource, value_source)};
  if (permuted_) {
    layout.arrays.push_back(arrays.AsArray("row_order", row_order));
    layout.arrays.push_back(arrays.AsArray("segment_layout_rows", layout_rows));
  }
  return layout;
}

}  // namespace

absl::StatusOr<Layout> BuildRowSegmentsOnDevice(Stream& stream, MemorySource& memory,
                                                const CsrView& csr,
                                                const RowSegmentsOptions& options) {
  return Builder(stream, memory, csr, options).Build();
}

}  // namespace sparsed::cuda
