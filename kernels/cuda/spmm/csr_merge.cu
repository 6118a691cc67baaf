// SpMM from CSR, plain or with permuted rows: C = alpha * S * B + beta * C; or the mean of a row's
// products, or the greatest or least of them.
//
// Idea: merge-path balance (Merrill and Garland, SC 2016): rows and nonzeros together are cut into
// segments of equal length, so that long rows are split and empty ones cost their share. Loads of
// several nonzeros are in flight whatever rows they belong to, which is what short rows need. Where
// segments begin depends on the pattern alone, so it is found once for many runs.
// Layout in: "csr".
// Threads: a group of 2 to 32 lanes takes a segment and a column block, 16 bytes a lane; column
// blocks are gridDim.y. A segment that begins inside a row leaves its sum of that row to the
// segment where the row began: in shared memory within a block; between blocks in memory, where the
// last block of the row to finish adds all up, in their order.
// Needs: a row number for each segment, and for each block a column block's row and what it is a
// part of.
// Wins: at small K on power-law graphs.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/spmm/slice.cuh"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 3;
constexpr int kInFlight = 8;  // nonzeros of a group whose operand rows are loaded at once

/// How the path of rows and nonzeros is cut.
struct Cut {
  int group;  // lanes
  int items;  // rows and nonzeros of a segment
  int blocks, slabs;
  int columns;  // of a column block

  int segments_per_block() const { return kThreads / group; }
  int block_items() const { return items * segments_per_block(); }
};

/// What is found once. The arrays lie one after another.
struct Segments {
  int* first_rows;  // for each segment, and one more: rows that end before it
  int* owners;      // for each block: where the row began that it begins inside of, or -1
  int* followers;   // for each block: how many more the row reaches that goes on behind it
  int* arrived;     // for each column block and block: parts of that row; 0 between runs
  void* carries;    // for each column block and block: its part of the row that it begins inside of

  Segments(std::byte* memory, const Cut& cut) {
    first_rows = reinterpret_cast<int*>(memory);
    owners = first_rows + FirstRows(cut);
    followers = owners + cut.blocks;
    arrived = followers + cut.blocks;
    carries = memory + CarriesAt(cut);
  }
  static size_t Bytes(const Cut& cut, size_t element) {
    return CarriesAt(cut) + static_cast<size_t>(cut.slabs) * cut.blocks * cut.columns * element;
  }

 private:
  static size_t FirstRows(const Cut& cut) {
    return static_cast<size_t>(cut.blocks) * cut.segments_per_block() + 1;
  }
  static size_t CarriesAt(const Cut& cut) {
    const size_t numbers = FirstRows(cut) + (2 + static_cast<size_t>(cut.slabs)) * cut.blocks;
    return (numbers * sizeof(int) + 255) / 256 * 256;
  }
};

/// Rows that end before position `at` of the path.
__device__ inline int RowsBefore(const int64_t* row_offsets, int rows, int nnz, int at) {
  int low = max(0, at - nnz), high = min(rows, at);
  while (low < high) {
    const int middle = static_cast<int>((static_cast<unsigned>(low) + high) / 2);
    if (row_offsets[middle + 1] <= at - middle - 1) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void FindFirstRows(const int64_t* row_offsets, int rows, int nnz, int items,
                              int* first_rows, int count) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t at = min(static_cast<int64_t>(i) * items, static_cast<int64_t>(rows) + nnz);
  first_rows[i] = RowsBefore(row_offsets, rows, nnz, static_cast<int>(at));
}

__global__ void FindChains(const int64_t* row_offsets, int rows, int nnz, const Cut cut,
                           int block_items, const Segments segments) {
  const int block = blockIdx.x * kThreads + threadIdx.x;
  if (block >= cut.blocks) return;
  const int per_block = block_items / cut.items;
  const int64_t path = static_cast<int64_t>(rows) + nnz;
  // The row that the path is inside of at the block's begin or end: where it begins and ends.
  const auto row_at = [&](int64_t boundary, int64_t* begin, int64_t* end) {
    const int row = segments.first_rows[boundary * per_block];
    const int64_t at = boundary * block_items;
    if (row >= rows || at >= path || at - row <= row_offsets[row]) return false;
    *begin = row_offsets[row] + row;
    *end = row_offsets[row + 1] + row;
    return true;
  };
  int64_t begin = 0, end = 0;
  segments.owners[block] = row_at(block, &begin, &end) ? static_cast<int>(begin / block_items) : -1;
  const bool goes_on = row_at(block + 1, &begin, &end) && begin / block_items == block;
  segments.followers[block] = goes_on ? static_cast<int>(end / block_items) - block : 0;
  for (int slab = 0; slab < cut.slabs; ++slab)
    segments.arrived[static_cast<int64_t>(slab) * cut.blocks + block] = 0;
}

template <typename T>
struct Product {
  const int64_t* row_offsets;
  const int32_t* columns;
  const int32_t* row_order;  // null: identity
  const T* values;
  const T* b;
  T* c;
  int64_t ldc, k;
  uint32_t b_stride;  // bytes from one row of B to the next
  int rows, nnz, items;
  T alpha, beta;
  bool mean;
  T sign;  // -1: the least, of the negated the greatest
  Segments segments;

  __device__ T* RowOfC(int row) const {
    return c + static_cast<int64_t>(row_order == nullptr ? row : row_order[row]) * ldc;
  }
  __device__ T LengthOf(int row) const {
    return static_cast<T>(__ldg(row_offsets + row + 1) - __ldg(row_offsets + row));
  }
};

/// All blocks of the row that began in block `owner` have left their parts: adds them to C.
template <typename T, int kColumns, bool kBest>
__device__ inline void AddChain(const Product<T>& p, int owner, T (&sums)[kThreads]) {
  constexpr int kParts = kThreads / kColumns;
  const int column = threadIdx.x % kColumns, part = threadIdx.x / kColumns;
  const int64_t slab = static_cast<int64_t>(blockIdx.y) * gridDim.x;
  const T* const carries = static_cast<const T*>(p.segments.carries) + slab * kColumns;
  const int last = owner + p.segments.followers[owner];
  const auto add = [](T& mine, T other) { mine = kBest ? Greater(other, mine) : mine + other; };
  T sum = kBest ? -static_cast<T>(INFINITY) : T(0);
#pragma unroll 4
  for (int block = owner + 1 + part; block <= last; block += kParts) {
    add(sum, __ldcg(carries + static_cast<int64_t>(block) * kColumns + column));
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  const int64_t at = static_cast<int64_t>(blockIdx.y) * kColumns + column;
  if (part == 0 && at < p.k) {
    for (int i = 1; i < kParts; ++i) add(sum, sums[i * kColumns + column]);
    const int per_block = kThreads / (kColumns / kWidest<T>);
    const int row = p.segments.first_rows[(owner + 1) * per_block];
    T* const c = p.RowOfC(row) + at;
    if constexpr (kBest) {
      *c = p.sign * Greater(p.sign * __ldcg(c), sum);
    } else {
      sum = __ldcg(c) + p.alpha * sum;
      *c = p.mean ? sum / p.LengthOf(row) : sum;
    }
  }
  if (threadIdx.x == 0) p.segments.arrived[slab + owner] = 0;
  __syncthreads();
}

template <typename T, bool kAligned, int kGroup, bool kBest>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    MergeRows(const Product<T> p) {
  using Part = Slice<T, kAligned, kGroup>;
  using Total = std::conditional_t<kBest, SliceBest<Part>, SliceSum<Part>>;
  constexpr unsigned kWarp = 0xffffffffu;
  constexpr int kSegments = kThreads / kGroup;
  __shared__ int head_rows[kSegments];
  __shared__ SliceSum<Part> heads[kThreads];
  __shared__ T sums[kThreads];
  __shared__ bool complete[2];
  const int segment = threadIdx.x / kGroup, lane = threadIdx.x % kGroup;
  const int64_t first = Part::First(blockIdx.y, lane);
  const int elements = Part::Count(p.k, first);
  // Lanes without columns read those of the first one.
  const T* const b = p.b + (elements > 0 ? first : Part::First(blockIdx.y, 0));

  // The row that began in an earlier block, and the one that goes on in a later one.
  const auto owner_of = [&](int chain) {
    return chain == 0 ? __ldg(p.segments.owners + blockIdx.x) : static_cast<int>(blockIdx.x);
  };
  int owner = -1, followers = 0;
  if (threadIdx.x < 2) owner = owner_of(threadIdx.x);
  if (owner >= 0) followers = __ldg(p.segments.followers + owner);

  const int64_t index = static_cast<int64_t>(blockIdx.x) * kSegments + segment;
  const int64_t path = static_cast<int64_t>(p.rows) + p.nnz;
  const auto begin = static_cast<int>(min(path, index * p.items));
  const auto end = static_cast<int>(min(path, (index + 1) * p.items));
  int row = __ldg(p.segments.first_rows + index);
  const int end_row = __ldg(p.segments.first_rows + index + 1);
  int position = begin - row;
  const int end_position = end - end_row;

  const auto end_of = [&](int r) {
    return r < p.rows ? static_cast<int>(__ldg(p.row_offsets + r + 1)) : p.nnz;
  };
  const auto begin_of = [&](int r) { return static_cast<int>(__ldg(p.row_offsets + r)); };
  bool in_head = row < p.rows && begin < end && position > begin_of(row);
  const int head_row = in_head ? row : -1;
  heads[threadIdx.x] = Total();
  Total sum;
  int row_begin = row < p.rows ? begin_of(row) : p.nnz;
  int row_end = end_of(row), next_end = end_of(row + 1);
  // The row, or what there is of it: means are divided when all of it is there.
  const auto emit = [&](bool whole) {
    if constexpr (kBest) {
      if (row_begin == row_end) sum.Clear();
      sum.Emit(p.RowOfC(row) + first, elements, p.sign, T(0));
    } else {
      if (whole && p.mean) sum.Divide(row_end - row_begin);
      sum.Emit(p.RowOfC(row) + first, elements, p.alpha, p.beta);
    }
  };
  const auto finish_row = [&] {
    if (in_head) {
      heads[threadIdx.x] = sum;
      in_head = false;
    } else if (elements > 0) {
      emit(true);
    }
    sum = Total();
    ++row;
    row_begin = row_end;
    row_end = next_end;
    next_end = end_of(row + 1);
  };

  constexpr int kChunk = kGroup < kInFlight ? kInFlight : kGroup;
  constexpr int kHeld = kChunk / kGroup;
  // The groups of a warp stay together.
  const int most = __reduce_max_sync(kWarp, end_position - position);
  int32_t next_columns[kHeld];
  T next_values[kHeld];
  const auto load_next = [&](int from) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int at = from + i * kGroup + lane;
      next_columns[i] = at < end_position ? __ldg(p.columns + at) : 0;
      next_values[i] = at < end_position && p.values != nullptr ? __ldg(p.values + at) : T(1);
      if constexpr (kBest) next_values[i] *= p.sign;
    }
  };
  load_next(position);
#pragma unroll 1
  for (int done = 0; done < most; done += kChunk) {
    int32_t held_columns[kHeld];
    T held_values[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held_columns[i] = next_columns[i];
      held_values[i] = next_values[i];
    }
    load_next(position + kChunk);
#pragma unroll 1
    for (int batch = 0; batch < kChunk && done + batch < most; batch += kInFlight) {
      Part rows[kInFlight];
      T values[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int from = kHeld == 1 ? batch + i : i % kGroup;
        const int held = kHeld == 1 ? 0 : i / kGroup;
        const int32_t column = __shfl_sync(kWarp, held_columns[held], from, kGroup);
        values[i] = __shfl_sync(kWarp, held_values[held], from, kGroup);
        if (position + i < end_position) {
          rows[i] = Part::Load(RowAt(b, column, p.b_stride), elements);
        }
      }
      const int count = min(kInFlight, end_position - position);
      int added = 0;
      while (added < count) {
        const int upto = min(count, row_end - position);
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          if (i >= added && i < upto) sum.Add(values[i], rows[i]);
        }
        added = upto;
        if (added < count) finish_row();
      }
      position += max(count, 0);
      __syncwarp();
    }
  }
  while (row < end_row) finish_row();
  // What was begun of a row that ends in a later segment.
  if (in_head) {
    heads[threadIdx.x] = sum;
  } else if (elements > 0 && row < p.rows && begin < end && end_position > row_begin) {
    emit(false);
  }

  if (lane == 0) head_rows[segment] = head_row;
  __syncthreads();
  if (head_row >= 0 && (segment == 0 || head_rows[segment - 1] != head_row)) {
    Total head;
    head.Add(heads[threadIdx.x]);
    for (int other = segment + 1; other < kSegments && head_rows[other] == head_row; ++other) {
      head.Add(heads[other * kGroup + lane]);
    }
    if (elements > 0 && segment > 0) {  // the row began in this block
      if constexpr (kBest) {
        head.AddRow(p.RowOfC(head_row) + first, elements, p.sign);
        head.Emit(p.RowOfC(head_row) + first, elements, p.sign, T(0));
      } else {
        T* const c = p.RowOfC(head_row) + first;
        const int64_t row_ends = __ldg(p.row_offsets + head_row + 1) + head_row;
        const int64_t block_ends = (static_cast<int64_t>(blockIdx.x) + 1) * kSegments * p.items;
        if (p.mean && row_ends < block_ends) {  // all of it is there now
          head.AddRow(c, elements);
          head.Divide(static_cast<int64_t>(p.LengthOf(head_row)));
          head.Emit(c, elements, T(1), T(0));
        } else {
          head.Emit(c, elements, p.alpha, T(1));
        }
      }
    } else if (elements > 0) {
      const int64_t block = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
      head.Emit(static_cast<T*>(p.segments.carries) + block * Part::kColumns + Part::First(0, lane),
                elements, T(1), T(0));
    }
  }

  __threadfence();
  __syncthreads();
  if (threadIdx.x < 2) {
    complete[threadIdx.x] =
        followers > 0 &&
        atomicAdd(p.segments.arrived + static_cast<int64_t>(blockIdx.y) * gridDim.x + owner, 1) ==
            followers;
  }
  __syncthreads();
  for (int chain = 0; chain < 2; ++chain) {
    if (!complete[chain]) continue;
    __threadfence();
    AddChain<T, Part::kColumns, kBest>(p, owner_of(chain), sums);
  }
}

/// As many blocks as run at once, or a multiple of it: a few blocks more would take as long as
/// twice as many.
Cut CutOf(const Layout& layout, const Problem& problem, bool aligned) {
  constexpr int64_t kLeastItems = 8;
  // Each end of a row is waited for: where there are many, more segments hide it.
  const int64_t most_items = layout.nnz >= 10 * layout.rows ? 256 : 64;
  const auto element = static_cast<int64_t>(SizeOf(problem.type));
  const int64_t bytes = std::max<int64_t>(problem.k, 1) * element;
  Cut cut = {};
  cut.group = aligned ? 2 : 8;
  while (cut.group < 32 && cut.group * 16 < bytes) cut.group *= aligned ? 2 : 4;
  cut.columns = static_cast<int>(cut.group * 16 / element);
  cut.slabs = static_cast<int>((problem.k + cut.columns - 1) / cut.columns);
  const int64_t path = layout.rows + layout.nnz;
  const int64_t segments =
      int64_t{kBlocksPerMultiprocessor} * Multiprocessors() * cut.segments_per_block();
  const int64_t waves = (path + segments * most_items - 1) / (segments * most_items);
  const int64_t items = (path + waves * segments - 1) / std::max<int64_t>(waves * segments, 1);
  cut.items = static_cast<int>(std::max(items, kLeastItems));
  cut.blocks = static_cast<int>((path + cut.block_items() - 1) / cut.block_items());
  return cut;
}

size_t Bytes(const Cut& cut, const Problem& problem) {
  return Segments::Bytes(cut, SizeOf(problem.type));
}

bool Aligned(const Problem& problem, const SpmmArguments& arguments) {
  const auto wide = [&](const void* data, int64_t leading_dimension) {
    return problem.type == ElementType::kF32
               ? RowsAreWide<float>(data, leading_dimension, problem.k)
               : RowsAreWide<double>(data, leading_dimension, problem.k);
  };
  return wide(arguments.b.data, arguments.b.leading_dimension) &&
         wide(arguments.c.data, arguments.c.leading_dimension);
}

absl::Status Find(cudaStream_t stream, const Layout& layout, const Cut& cut,
                  const Segments& segments) {
  const int64_t* const row_offsets = ViewCsr(layout).row_offsets.data();
  const auto rows = static_cast<int>(layout.rows), nnz = static_cast<int>(layout.nnz);
  const int count = cut.blocks * cut.segments_per_block() + 1;
  const auto blocks_of = [](int threads) {
    return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  };
  FindFirstRows<<<blocks_of(count), kThreads, 0, stream>>>(row_offsets, rows, nnz, cut.items,
                                                           segments.first_rows, count);
  FindChains<<<blocks_of(cut.blocks), kThreads, 0, stream>>>(row_offsets, rows, nnz, cut,
                                                             cut.block_items(), segments);
  return ToStatus(cudaGetLastError(), "cutting rows into segments");
}

// Whatever the alignment of the operands turns out to be.
size_t Workspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  return std::max(Bytes(CutOf(layout, problem, true), problem),
                  Bytes(CutOf(layout, problem, false), problem));
}

struct Prepared {
  Cut cut;  // whose segments are in `memory`
  Buffer memory;
};

absl::StatusOr<std::shared_ptr<void>> PrepareRuns(const Context& context, const Problem& problem,
                                                  const SpmmArguments& arguments,
                                                  MemorySource& memory) {
  const Layout& layout = arguments.layout;
  auto prepared = std::make_shared<Prepared>();
  if (layout.rows == 0) return prepared;
  prepared->cut = CutOf(layout, problem, Aligned(problem, arguments));
  absl::StatusOr<Buffer> buffer = memory.Allocate(Workspace(problem, layout, context.threads));
  if (!buffer.ok()) return buffer.status();
  prepared->memory = *std::move(buffer);
  const absl::Status status = Find(static_cast<cudaStream_t>(context.stream), layout, prepared->cut,
                                   Segments(prepared->memory.mutable_data(), prepared->cut));
  if (!status.ok()) return Settled(context.stream, status);
  return prepared;
}

template <typename T, bool kAligned, int kGroup>
void Launch(cudaStream_t stream, const Cut& cut, const Product<T>& product, bool best) {
  const dim3 grid(static_cast<unsigned>(cut.blocks), static_cast<unsigned>(cut.slabs));
  if (best) {
    MergeRows<T, kAligned, kGroup, true><<<grid, kThreads, 0, stream>>>(product);
  } else {
    MergeRows<T, kAligned, kGroup, false><<<grid, kThreads, 0, stream>>>(product);
  }
}

template <typename T>
absl::Status RunOf(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  if (layout.rows == 0 || arguments.c.cols == 0) return absl::OkStatus();
  const absl::StatusOr<uint32_t> stride = RowStride<T>(arguments.b);
  if (!stride.ok()) return stride.status();
  const bool aligned = Aligned(problem, arguments);
  const Cut cut = CutOf(layout, problem, aligned);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  auto* const prepared = static_cast<Prepared*>(context.prepared);
  const Segments segments(
      prepared != nullptr ? prepared->memory.mutable_data() : context.workspace.data(), cut);
  // Operands that are aligned otherwise than those before are cut otherwise.
  if (prepared == nullptr || prepared->cut.group != cut.group) {
    const absl::Status status = Find(stream, layout, cut, segments);
    if (!status.ok()) return status;
    if (prepared != nullptr) prepared->cut = cut;
  }
  const CsrView s = ViewCsr(layout);
  const Product<T> product = {.row_offsets = s.row_offsets.data(),
                              .columns = s.column_indices.data(),
                              .row_order = s.row_order.empty() ? nullptr : s.row_order.data(),
                              .values = static_cast<const T*>(arguments.values),
                              .b = static_cast<const T*>(arguments.b.data),
                              .c = static_cast<T*>(arguments.c.data),
                              .ldc = arguments.c.leading_dimension,
                              .k = arguments.c.cols,
                              .b_stride = *stride,
                              .rows = static_cast<int>(layout.rows),
                              .nnz = static_cast<int>(layout.nnz),
                              .items = cut.items,
                              .alpha = static_cast<T>(arguments.alpha),
                              .beta = static_cast<T>(arguments.beta),
                              .mean = arguments.reduction == Reduction::kMean,
                              .sign = arguments.reduction == Reduction::kMin ? T(-1) : T(1),
                              .segments = segments};
  const bool best = IsBest(arguments.reduction);
  if (!aligned) {
    cut.group == 8 ? Launch<T, false, 8>(stream, cut, product, best)
                   : Launch<T, false, 32>(stream, cut, product, best);
  } else if (cut.group == 2) {
    Launch<T, true, 2>(stream, cut, product, best);
  } else if (cut.group == 4) {
    Launch<T, true, 4>(stream, cut, product, best);
  } else if (cut.group == 8) {
    Launch<T, true, 8>(stream, cut, product, best);
  } else if (cut.group == 16) {
    Launch<T, true, 16>(stream, cut, product, best);
  } else {
    Launch<T, true, 32>(stream, cut, product, best);
  }
  return ToStatus(cudaGetLastError(), "starting SpMM");
}

absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? RunOf<float>(context, problem, arguments)
                                           : RunOf<double>(context, problem, arguments);
}

// The path is counted in 32 bits.
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && !IsHalf(problem.type) &&
         problem.operation == Operation::kSpmm && problem.k <= kMostSpmmWidth &&
         !problem.transposed && layout.kind == kCsr &&
         layout.rows + layout.nnz < std::numeric_limits<int32_t>::max() - (1 << 20);
}

}  // namespace

SpmmKernel CsrMergeSpmm() {
  return {.name = "cuda.csr.merge",
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports,
          .workspace = Workspace,
          .run = Run,
          .prepare = PrepareRuns,
          .reduces = true};
}

}  // namespace sparsed::cuda
