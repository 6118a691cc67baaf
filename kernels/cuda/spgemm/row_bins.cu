// SpGEMM from CSR: C = S * T, rows of C in bins by how many entries they may have.
//
// Idea: a row's products are shared evenly among the lanes of a team (products.cuh), whatever the
// lengths of T's rows. Short rows of C are added up in hash tables in shared memory, several rows
// to a block, and put in order by counting the smaller columns (binning and tables as in NSPARSE,
// Nagasaka et al., ICPP 2017, and spECK, Parger et al., PPoPP 2020); if the row's columns are close
// to each other, each has its own slot of the table. Longer rows mark their columns in a bitmap
// over the columns that they span: its bits in order are the row in order, so that nothing is
// sorted. Values are added up in shared memory, either at the place that the bits before a column
// give it, after a first pass over the products for the bits alone, or one for each column of a
// window of some thousand, in one pass. A row that spans more goes window by window; windows in
// which it has nothing are left out, and every row ends whatever its size.
// Layout in: plain CSR of both.
// Threads: 8 lanes for a row of up to 32 entries, 16 up to 64, a warp up to 128, blocks of 128
// threads up to 1,024 (of 4,096 where nothing is added up yet) and of 512 beyond. Blocks stay, and
// take the next row when they are done with one, those of the longest rows first.
// Needs: a list of rows for each bin. Of boolean products and of counts of pairs, which multiply
// ones, values of ones.
// Wins: over cuSPARSE on all that was measured, most where rows have many products and columns
// meet; a little behind the fastest of others on plane grids (docs/kernels-cuda.md). Sums depend on
// the order in which lanes come.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/products.cuh"
#include "kernels/cuda/spgemm/spgemm.h"

namespace sparsed::cuda {
namespace {

constexpr int kBins = 7, kLists = (kBins + 1) / 2;
// The most entries of a row in each bin but the last.
constexpr int kTinyRow = 16, kSmallRow = 32, kShortRow = 64, kFairRow = 128, kMiddleRow = 1024,
              kLongRow = 8192;
// In the symbolic phase nothing is added up, and what is known of a row is a bound.
constexpr int kMiddleBound = 4096;

// Lest few threads walk through many rows of T, rows of many nonzeros in S are with longer ones.
constexpr int kFairNonzeros = 32, kMiddleNonzeros = 256;

__device__ int BinOf(int64_t entries, int64_t middle, int64_t nonzeros) {
  int bin = entries <= kTinyRow    ? 0
            : entries <= kSmallRow ? 1
            : entries <= kShortRow ? 2
            : entries <= kFairRow  ? 3
            : entries <= middle    ? 4
            : entries <= kLongRow  ? 5
                                   : 6;
  if (nonzeros > kFairNonzeros) bin = max(bin, 4);
  if (nonzeros > kMiddleNonzeros) bin = max(bin, 5);
  return bin;
}

// Rows of a range by bin; row numbers count from the range's first.
struct Bins {
  int32_t* sizes;  // kBins
  int32_t* next;   // of each bin: the place of the next row that nobody has taken
  int32_t* lists;  // two bins in each, from its beginning and from its end
  int64_t capacity;

  /// The i-th row of a bin.
  __device__ int32_t& Row(int bin, int32_t i) const {
    return lists[bin / 2 * capacity + (bin % 2 == 0 ? i : capacity - 1 - i)];
  }
};

constexpr size_t kCounterBytes = 256;

Bins BinsIn(std::span<std::byte> workspace, int64_t rows) {
  auto* const counters = reinterpret_cast<int32_t*>(workspace.data());
  return {counters, counters + 16, reinterpret_cast<int32_t*>(workspace.data() + kCounterBytes),
          rows};
}

// What rows are computed and where they go.
template <typename T>
struct Rows {
  SparsePair<T> pair;
  int64_t first;             // row 0 of the lists
  const int64_t* row_begin;  // where rows go; numeric only
  int32_t* columns;
  T* values;
  int64_t* row_nnz;
};

constexpr int kThreads = 256;

// ---- Analysis: products of each row

// The first and the last column that a row of C may have; none: INT32_MAX and -1.
struct ColumnRange {
  int32_t least, most;
};

// Of the row whose nonzeros are [begin, end), for teams that fill their warp.
template <int kLanes>
__device__ ColumnRange RangeOf(const int32_t* s_columns, const int64_t* t_offsets,
                               const int32_t* t_columns, int64_t begin, int64_t end) {
  ColumnRange range = {INT32_MAX, -1};
  for (int64_t j = begin + threadIdx.x % kLanes; j < end; j += kLanes) {
    const int32_t k = __ldg(s_columns + j);
    const int64_t start = __ldg(t_offsets + k), stop = __ldg(t_offsets + k + 1);
    if (start == stop) continue;
    range.least = min(range.least, __ldg(t_columns + start));
    range.most = max(range.most, __ldg(t_columns + stop - 1));
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    range.least = min(range.least, __shfl_xor_sync(0xffffffffu, range.least, distance, kLanes));
    range.most = max(range.most, __shfl_xor_sync(0xffffffffu, range.most, distance, kLanes));
  }
  return range;
}

constexpr int kAnalysisLanes = 8;
constexpr int kAnalysisBlocks = 8;       // for each multiprocessor, at most
constexpr int64_t kManyNonzeros = 1024;  // the whole block counts a row of more

// Blocks take kThreads / kAnalysisLanes rows at a time.
__global__ void __launch_bounds__(kThreads)
    CountProducts(const int64_t* s_offsets, const int32_t* s_columns, const int64_t* t_offsets,
                  const int32_t* t_columns, int64_t rows, int64_t cols, int64_t* bounds,
                  int64_t* products) {
  constexpr int kRows = kThreads / kAnalysisLanes;
  using Count = unsigned long long;
  __shared__ Count of_block, of_row;
  if (threadIdx.x == 0) of_block = of_row = 0;
  const int lane = threadIdx.x % kAnalysisLanes;
  const auto count = [&](int64_t begin, int64_t end, int first, int stride) {
    Count sum = 0;
    for (int64_t j = begin + first; j < end; j += stride) {
      const int32_t k = __ldg(s_columns + j);
      sum += __ldg(t_offsets + k + 1) - __ldg(t_offsets + k);
    }
    return sum;
  };
  Count mine = 0;  // products that this thread knows of
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kRows;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kRows; first < rows; first += stride) {
    const int64_t row = first + threadIdx.x / kAnalysisLanes;
    int64_t begin = 0, end = 0;
    if (row < rows) {
      begin = __ldg(s_offsets + row);
      end = __ldg(s_offsets + row + 1);
    }
    const bool is_long = end - begin > kManyNonzeros;
    Count sum = is_long ? 0 : count(begin, end, lane, kAnalysisLanes);
#pragma unroll
    for (int distance = kAnalysisLanes / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, distance, kAnalysisLanes);
    }
    int64_t bound = min(static_cast<int64_t>(sum), cols);
    // Rows of bands and blocks have many products in few columns: those between the first and the
    // last one.
    const bool is_fair = sum > kFairRow;
    if (__any_sync(0xffffffffu, is_fair)) {
      const ColumnRange range =
          RangeOf<kAnalysisLanes>(s_columns, t_offsets, t_columns, is_fair ? begin : end, end);
      if (is_fair) bound = min(bound, static_cast<int64_t>(range.most) - range.least + 1);
    }
    if (lane == 0 && row < rows && !is_long) {
      bounds[row] = bound;
      mine += sum;
    }
    if (__syncthreads_or(is_long)) {
      for (int64_t other = first; other < min(first + kRows, rows); ++other) {
        const int64_t other_begin = __ldg(s_offsets + other),
                      other_end = __ldg(s_offsets + other + 1);
        if (other_end - other_begin <= kManyNonzeros) continue;
        atomicAdd(&of_row, count(other_begin, other_end, threadIdx.x, kThreads));
        __syncthreads();
        if (threadIdx.x == 0) {
          bounds[other] = min(static_cast<int64_t>(of_row), cols);
          mine += of_row;
          of_row = 0;
        }
        __syncthreads();
      }
    }
  }
  __syncthreads();
  if (mine > 0) atomicAdd(&of_block, mine);
  __syncthreads();
  if (threadIdx.x == 0 && of_block > 0) atomicAdd(reinterpret_cast<Count*>(products), of_block);
}

// ---- Bins

// Entries of row i: row_begin[i + 1] - row_begin[i], or without it row_nnz[i]. Rows without any are
// done by this.
__global__ void __launch_bounds__(kThreads)
    FillBins(const int64_t* s_offsets, const int64_t* row_begin, int64_t* row_nnz, int64_t rows,
             const Bins bins) {
  __shared__ int32_t sizes[kBins], places[kBins];
  if (threadIdx.x < kBins) sizes[threadIdx.x] = 0;
  __syncthreads();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  int64_t entries = 0;
  if (row < rows) {
    entries = row_begin == nullptr ? row_nnz[row] : row_begin[row + 1] - row_begin[row];
    if (entries == 0) row_nnz[row] = 0;
  }
  int bin = 0;
  if (entries > 0) {
    bin = BinOf(entries, row_begin == nullptr ? kMiddleBound : kMiddleRow,
                s_offsets[row + 1] - s_offsets[row]);
  }
  int32_t place = 0;
  if (entries > 0) place = atomicAdd(sizes + bin, 1);
  __syncthreads();
  if (threadIdx.x < kBins && sizes[threadIdx.x] > 0) {
    places[threadIdx.x] = atomicAdd(bins.sizes + threadIdx.x, sizes[threadIdx.x]);
  }
  __syncthreads();
  if (entries > 0) bins.Row(bin, places[bin] + place) = static_cast<int32_t>(row);
}

// ---- Short rows

// Adds a column to a table of kSize (a power of two) that never fills. Its slot; *is_new if it was
// not there.
template <int kSize>
__device__ inline int Insert(volatile int32_t* keys, int32_t column, bool* is_new) {
  uint32_t slot = (static_cast<uint32_t>(column) * 0x9e3779b1u) >> (32 - __builtin_ctz(kSize));
  while (true) {
    int32_t seen = keys[slot];
    if (seen < 0) {
      seen = atomicCAS(const_cast<int32_t*>(keys) + slot, -1, column);
      *is_new = seen < 0;
      if (seen < 0) break;
    }
    if (seen == column) break;
    slot = (slot + 1) % kSize;
  }
  return static_cast<int>(slot);
}

constexpr int kHashThreads = 128;

// Tables for rows of up to kMost entries, each for a team of kLanes.
template <typename T, int kLanes, int kMost, bool kNumeric>
struct Tables {
  static constexpr int kTeams = kHashThreads / kLanes;
  static constexpr int kSize = 2 * kMost;
  int32_t keys[kTeams][kSize + 8];  // teams of a warp begin at different banks
  T sums[kNumeric ? kTeams : 1][kNumeric ? kSize : 1];
  int32_t found[kNumeric ? kTeams : 1][kNumeric ? kMost : 1];
  uint16_t slots[kNumeric ? kTeams : 1][kNumeric ? kMost : 1];
  Batch<T, kLanes> batches[kTeams];
};

// Block number `block` of `blocks` that have to do with the bin.
template <typename T, int kLanes, int kMost, bool kNumeric>
__device__ void HashRowsOf(const Rows<T>& rows, const Bins& bins, int bin, int32_t block,
                           int32_t blocks, unsigned char* shared) {
  auto& tables = *reinterpret_cast<Tables<T, kLanes, kMost, kNumeric>*>(shared);
  constexpr int kTeams = kHashThreads / kLanes;
  constexpr int kTable = 2 * kMost;
  constexpr int kMine = kMost / kLanes;  // entries of a lane
  constexpr int kWarpTeams = 32 / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int team = threadIdx.x / kLanes;
  int32_t* const keys = tables.keys[team];
  T* const sums = tables.sums[kNumeric ? team : 0];
  // Unsigned: the last step may go beyond 2^31.
  const uint32_t count = bins.sizes[bin], stride = blocks * kTeams;
  // The teams of a warp stay together.
  for (uint32_t i = block * kTeams + team; i - team % kWarpTeams < count; i += stride) {
    const bool active = i < count;
    const int32_t row = active ? bins.Row(bin, i) : 0;
    const int64_t begin = active ? rows.pair.s_offsets[rows.first + row] : 0;
    const int64_t end = active ? rows.pair.s_offsets[rows.first + row + 1] : 0;
    // Of a row whose columns are close to each other, each has its own slot, in order. Looking for
    // them pays where there are many products.
    ColumnRange range = {};
    bool direct = false;
    if (kLanes > 8 && __any_sync(0xffffffffu, end - begin >= kLanes)) {
      range = RangeOf<kLanes>(rows.pair.s_columns, rows.pair.t_offsets, rows.pair.t_columns, begin,
                              end);
      direct = range.most - range.least < kTable;
    }
    for (int slot = lane; slot < kTable; slot += kLanes) {
      keys[slot] = -1;
      if (kNumeric) sums[slot] = 0;
    }
    __syncwarp();
    int32_t found = 0;
    VisitProducts<kLanes, kNumeric>(rows.pair, begin, end, tables.batches[team],
                                    [&](int32_t column, T product) {
                                      int slot = column - range.least;
                                      if (direct) {
                                        keys[slot] = column;
                                      } else {
                                        bool is_new = false;
                                        slot = Insert<kTable>(keys, column, &is_new);
                                        found += is_new;
                                      }
                                      if (kNumeric) atomicAdd(sums + slot, product);
                                    });
    __syncwarp();
    if (direct) {
      for (int slot = lane; slot < kTable; slot += kLanes) found += keys[slot] >= 0;
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      found += __shfl_xor_sync(0xffffffffu, found, distance, kLanes);
    }
    if (active && lane == 0) rows.row_nnz[row] = found;
    if constexpr (kNumeric) {
      int32_t* const columns = tables.found[team];
      uint16_t* const slots = tables.slots[team];
      int32_t listed = 0;
#pragma unroll
      for (int first = 0; first < kTable; first += kLanes) {
        const int32_t key = keys[first + lane];
        const unsigned used = (__ballot_sync(0xffffffffu, key >= 0) & GroupMask<kLanes>()) >>
                              (threadIdx.x % 32 - lane);
        if (key >= 0) {
          const int place = listed + __popc(used & ((1u << lane) - 1));
          columns[place] = key;
          slots[place] = static_cast<uint16_t>(first + lane);
        }
        listed += __popc(used);
      }
      __syncwarp();
      int32_t mine[kMine];
      int place[kMine];
#pragma unroll
      for (int j = 0; j < kMine; ++j) {
        mine[j] = lane + j * kLanes < listed ? columns[lane + j * kLanes] : -1;
        place[j] = direct ? lane + j * kLanes : 0;
      }
      for (int other = 0; other < listed && !direct; ++other) {
        const int32_t column = columns[other];
#pragma unroll
        for (int j = 0; j < kMine; ++j) place[j] += column < mine[j];
      }
      const int64_t out = active ? rows.row_begin[row] : 0;
#pragma unroll
      for (int j = 0; j < kMine; ++j) {
        if (mine[j] >= 0) {
          rows.columns[out + place[j]] = mine[j];
          rows.values[out + place[j]] = sums[slots[lane + j * kLanes]];
        }
      }
      __syncwarp();
    }
  }
}

// The four bins of shorter rows, which blocks take in turn.
template <typename T, bool kNumeric>
__global__ void __launch_bounds__(kHashThreads, 12) HashRows(const Rows<T> rows, const Bins bins) {
  using Tiny = Tables<T, 8, kTinyRow, kNumeric>;
  using Small = Tables<T, 8, kSmallRow, kNumeric>;
  using Short = Tables<T, 16, kShortRow, kNumeric>;
  using Fair = Tables<T, 32, kFairRow, kNumeric>;
  constexpr size_t kBytes = std::max({sizeof(Tiny), sizeof(Small), sizeof(Short), sizeof(Fair)});
  __shared__ __align__(16) unsigned char shared[kBytes];
  const auto block = static_cast<int32_t>(blockIdx.x / 4);
  const auto blocks = static_cast<int32_t>(gridDim.x / 4);
  const int bin = 3 - static_cast<int>(blockIdx.x % 4);
  if (bin == 3) {
    HashRowsOf<T, 32, kFairRow, kNumeric>(rows, bins, bin, block, blocks, shared);
  } else if (bin == 2) {
    HashRowsOf<T, 16, kShortRow, kNumeric>(rows, bins, bin, block, blocks, shared);
  } else if (bin == 1) {
    HashRowsOf<T, 8, kSmallRow, kNumeric>(rows, bins, bin, block, blocks, shared);
  } else {
    HashRowsOf<T, 8, kTinyRow, kNumeric>(rows, bins, bin, block, blocks, shared);
  }
}

// ---- Longer rows

constexpr int kQuad = 128;            // columns in 16 bytes of a bitmap
constexpr int kMostPlaces = 1 << 16;  // that 16 bits tell apart

// What a block keeps in shared memory besides its batch; sizes in elements.
struct BlockMemory {
  int32_t bitmap_columns;  // of a window of bits, a multiple of kQuad
  int32_t sums;            // numeric only
};

template <typename T, int kLanes>
struct alignas(16) BlockState {
  Batch<T, kLanes> batch;
  int32_t totals[2][kLanes / 32];
  uint32_t
      tops[kLanes == 128 ? kLanes : 1];  // a bit for each word of the bitmap, whether it has bits
  int32_t least[kLanes / 32], most[kLanes / 32];
  int64_t products[kLanes / 32];
  int32_t taken;
  int32_t behind;
};

template <typename T, int kLanes, bool kNumeric>
size_t BytesOf(const BlockMemory& memory) {
  const size_t words = static_cast<size_t>(memory.bitmap_columns) / 32;
  size_t bytes = sizeof(BlockState<T, kLanes>) + words * sizeof(uint32_t);
  if (kNumeric) {
    bytes += static_cast<size_t>(memory.sums) * sizeof(T) + words * sizeof(uint16_t);
  }
  return bytes;
}

// Columns and products of a row; the same for every thread.
struct RowFacts {
  int32_t least, most;
  int64_t products;
};

template <int kLanes, bool kScales, typename T>
__device__ RowFacts LookAt(const SparsePair<T>& p, int64_t begin, int64_t end,
                           BlockState<T, kLanes>& state, HeldNonzero<T>& mine) {
  constexpr unsigned kWarp = 0xffffffffu;
  RowFacts facts = {INT32_MAX, -1, 0};
  mine = {end - begin <= kLanes, 0, 0, 0};
  for (int64_t j = begin + threadIdx.x; j < end; j += kLanes) {
    const int32_t row = __ldg(p.s_columns + j);
    const int64_t start = __ldg(p.t_offsets + row), stop = __ldg(p.t_offsets + row + 1);
    if (start == stop) continue;
    if (mine.held) {
      mine.start = start;
      mine.stop = stop;
      if (kScales) mine.scale = __ldg(p.s_values + j);
    }
    facts.least = min(facts.least, __ldg(p.t_columns + start));
    facts.most = max(facts.most, __ldg(p.t_columns + stop - 1));
    facts.products += stop - start;
  }
  facts.least = __reduce_min_sync(kWarp, facts.least);
  facts.most = __reduce_max_sync(kWarp, facts.most);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    facts.products += __shfl_xor_sync(kWarp, facts.products, distance);
  }
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) {
    state.least[warp] = facts.least;
    state.most[warp] = facts.most;
    state.products[warp] = facts.products;
  }
  __syncthreads();
  facts = {INT32_MAX, -1, 0};
#pragma unroll
  for (int other = 0; other < kLanes / 32; ++other) {
    facts.least = min(facts.least, state.least[other]);
    facts.most = max(facts.most, state.most[other]);
    facts.products += state.products[other];
  }
  return facts;
}

// The bits of a window, counted by warps, each of which has a share of them. With kPlaces,
// places[word] = the bits before it. Returns all of them. Begins and ends with nothing that other
// threads still use.
template <int kLanes, bool kPlaces>
__device__ int32_t CountBits(const uint32_t* bits, int quads, int32_t* totals, uint16_t* places) {
  constexpr unsigned kWarp = 0xffffffffu;
  constexpr int kWarps = kLanes / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int share = (quads + kLanes - 1) / kLanes * 32;
  const int begin = min(warp * share, quads), end = min(begin + share, quads);
  const auto* const all_bits = reinterpret_cast<const uint4*>(bits);
  int32_t mine = 0;
  for (int quad = begin + lane; quad < end; quad += 32) {
    const uint4 set = all_bits[quad];
    mine += __popc(set.x) + __popc(set.y) + __popc(set.z) + __popc(set.w);
  }
  mine = __reduce_add_sync(kWarp, mine);
  if (lane == 0) totals[warp] = mine;
  __syncthreads();
  int32_t all = 0;
  int32_t before = SumBefore<kWarps>(totals, &all);
  if constexpr (kPlaces) {
    for (int first = begin; first < end; first += 32) {
      const uint4 set = first + lane < end ? all_bits[first + lane] : uint4{0, 0, 0, 0};
      const int x = __popc(set.x), y = __popc(set.y), z = __popc(set.z);
      const int32_t here = x + y + z + __popc(set.w);
      const int32_t through = SumThrough<32>(here);
      const int32_t place = before + through - here;
      if (first + lane < end) {
        reinterpret_cast<ushort4*>(places)[first + lane] = make_ushort4(
            static_cast<uint16_t>(place), static_cast<uint16_t>(place + x),
            static_cast<uint16_t>(place + x + y), static_cast<uint16_t>(place + x + y + z));
      }
      before += __shfl_sync(kWarp, through, 31);
    }
  }
  __syncthreads();
  return all;
}

// The same, for a bitmap of at most kLanes * 1,024 columns of which few words have bits: `tops` say
// which. Only these words have places. Calls visit(word, its bits, its place) for them. `list` has
// room for as many words as have bits.
template <typename T, int kLanes, typename Visit>
__device__ int32_t PlaceFewBits(BlockState<T, kLanes>& state, const uint32_t* bits, uint16_t* list,
                                uint16_t* places, Visit visit) {
  constexpr int kWarps = kLanes / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t top = state.tops[threadIdx.x];
  int32_t through = SumThrough<32>(__popc(top));
  if (lane == 31) state.totals[1][warp] = through;
  __syncthreads();
  int32_t listed = 0;
  int32_t place = SumBefore<kWarps>(state.totals[1], &listed) + through - __popc(top);
  for (; top != 0; top &= top - 1) {
    list[place++] = static_cast<uint16_t>(threadIdx.x * 32 + __ffs(static_cast<int>(top)) - 1);
  }
  __syncthreads();
  int32_t all = 0;
  for (int first = 0, turn = 0; first < listed; first += kLanes, turn = 1 - turn) {
    const int at = first + static_cast<int>(threadIdx.x);
    const int word = at < listed ? list[at] : 0;
    const uint32_t set = at < listed ? bits[word] : 0;
    through = SumThrough<32>(__popc(set));
    if (lane == 31) state.totals[turn][warp] = through;
    __syncthreads();
    int32_t here = 0;
    place = all + SumBefore<kWarps>(state.totals[turn], &here) + through - __popc(set);
    if (set != 0) {
      places[word] = static_cast<uint16_t>(place);
      visit(word, set, place);
    }
    all += here;
  }
  __syncthreads();
  return all;
}

// Rows of the bin, then of the one before it, down to `last_bin`.
template <typename T, int kLanes, bool kNumeric>
__global__ void __launch_bounds__(kLanes, kLanes == 512 ? 3 : 10)
    BlockRows(const Rows<T> rows, const Bins bins, int bin, int last_bin,
              const BlockMemory memory) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& state = *reinterpret_cast<BlockState<T, kLanes>*>(shared);
  auto* const bits = reinterpret_cast<uint32_t*>(shared + sizeof(BlockState<T, kLanes>));
  T* const sums = reinterpret_cast<T*>(bits + memory.bitmap_columns / 32);
  auto* const places = reinterpret_cast<uint16_t*>(sums + (kNumeric ? memory.sums : 0));
  int32_t size = bins.sizes[bin];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  while (true) {
    if (threadIdx.x == 0) state.taken = atomicAdd(bins.next + bin, 1);
    __syncthreads();
    const int32_t taken = state.taken;
    if (taken >= size) {
      if (bin == last_bin) return;
      size = bins.sizes[--bin];
      __syncthreads();
      continue;
    }
    const int32_t row = bins.Row(bin, taken);
    const int64_t begin = rows.pair.s_offsets[rows.first + row];
    const int64_t end = rows.pair.s_offsets[rows.first + row + 1];
    HeldNonzero<T> mine;
    const RowFacts facts = LookAt<kLanes, kNumeric>(rows.pair, begin, end, state, mine);
    const int64_t span = static_cast<int64_t>(facts.most) - facts.least + 1;
    int64_t out = 0, room = 0;
    int32_t width = memory.bitmap_columns;
    // One sum for each column of the window, or one for each entry.
    bool by_column = false;
    // Entries that shared memory has no room for are added up where they belong.
    bool in_place = false;
    if constexpr (kNumeric) {
      out = rows.row_begin[row];
      room = rows.row_begin[row + 1] - out;
      const int64_t windows = (span + memory.sums - 1) / memory.sums;
      // Of a window, in products.
      const int64_t looks = ((end - begin) + kLanes) * 16;
      by_column = windows == 1 || windows * looks + span / 4 <= facts.products;
      if (!by_column && room > memory.sums) {
        // An addition in global memory takes as long as several here.
        in_place = (windows - 2) * looks > 6 * facts.products;
        by_column = !in_place;
      }
      if (by_column) width = memory.sums;
      if (in_place) width = min(width, kMostPlaces);
    }
    int64_t nnz = 0;
    int32_t from = facts.least;
    while (from != INT32_MAX) {
      const auto to = static_cast<int32_t>(
          min(static_cast<int64_t>(from) + width, static_cast<int64_t>(facts.most) + 1));
      const ColumnWindow window = {from, to, from == facts.least && to > facts.most};
      const int quads = (to - from + kQuad - 1) / kQuad;
      const int words = (to - from + 31) / 32;
      for (int quad = threadIdx.x; quad < quads; quad += kLanes) {
        reinterpret_cast<uint4*>(bits)[quad] = {0, 0, 0, 0};
      }
      if constexpr (kNumeric) {
        if (by_column) {
          for (int i = threadIdx.x; i < to - from; i += kLanes) sums[i] = 0;
        }
      }
      if (threadIdx.x == 0) state.behind = INT32_MAX;
      // Most words would be looked at in vain.
      const bool few = kNumeric && kLanes == 128 && !by_column && facts.products < words;
      if (few) state.tops[threadIdx.x] = 0;
      const auto mark = [&](int32_t column) {
        const auto at = static_cast<uint32_t>(column - from);
        const uint32_t bit = 1u << (at % 32);
        if ((bits[at / 32] & bit) != 0) return;
        const uint32_t before = atomicOr(bits + at / 32, bit);
        if (few && before == 0) atomicOr(state.tops + at / 1024, 1u << (at / 32 % 32));
      };
      int32_t behind = INT32_MAX;
      int32_t all = 0;  // products of the nonzeros taken last
      for (int64_t first = begin; first < end; first += kLanes) {
        all = TakeNonzeros<kLanes, kNumeric>(rows.pair, first, end, mine, window, state.batch,
                                             state.totals[0], &behind);
        if (kNumeric && by_column) {
          VisitTaken<kLanes, kNumeric>(rows.pair, state.batch, all, [&](int32_t column, T product) {
            mark(column);
            atomicAdd(sums + (column - from), product);
          });
        } else {
          VisitTaken<kLanes, false>(rows.pair, state.batch, all,
                                    [&](int32_t column, T) { mark(column); });
        }
      }
      __syncthreads();
      behind = __reduce_min_sync(0xffffffffu, behind);
      if (lane == 0 && behind != INT32_MAX) atomicMin(&state.behind, behind);
      const auto write_columns = [&](int word, uint32_t set, int32_t place) {
        for (int64_t at = out + nnz + place; set != 0; set &= set - 1) {
          rows.columns[at++] = from + word * 32 + __ffs(static_cast<int>(set)) - 1;
        }
      };
      // The list lies where the sums will be.
      const int32_t here =
          few ? PlaceFewBits(state, bits, reinterpret_cast<uint16_t*>(sums), places, write_columns)
              : CountBits<kLanes, kNumeric>(bits, quads, state.totals[0], places);
      if constexpr (kNumeric) {
        if (by_column) {
          // A word for a warp, a column for a lane: neighbours write to neighbouring places.
          for (int word = warp; word < words; word += kLanes / 32) {
            const uint32_t set = bits[word];
            if ((set >> lane & 1) == 0) continue;
            const int64_t at = out + nnz + places[word] + __popc(set & ((1u << lane) - 1));
            rows.columns[at] = from + word * 32 + lane;
            rows.values[at] = sums[word * 32 + lane];
          }
        } else {
          T* const zeros = in_place ? rows.values + out + nnz : sums;
          for (int i = threadIdx.x; i < here; i += kLanes) zeros[i] = 0;
          __syncthreads();
          for (int64_t first = begin; first < end; first += kLanes) {
            // A single batch is still there.
            if (!mine.held) {
              all = TakeNonzeros<kLanes, kNumeric>(rows.pair, first, end, mine, window, state.batch,
                                                   state.totals[0], &behind);
            }
            const auto place_of = [&](int32_t column) {
              const auto at = static_cast<uint32_t>(column - from);
              return places[at / 32] + __popc(bits[at / 32] & ((1u << (at % 32)) - 1));
            };
            if (in_place) {
              VisitTaken<kLanes, true>(rows.pair, state.batch, all, [&](int32_t column, T product) {
                atomicAdd(rows.values + out + nnz + place_of(column), product);
              });
            } else {
              VisitTaken<kLanes, true>(rows.pair, state.batch, all, [&](int32_t column, T product) {
                atomicAdd(sums + place_of(column), product);
              });
            }
          }
          __syncthreads();
          for (int i = threadIdx.x; i < here && !in_place; i += kLanes) {
            rows.values[out + nnz + i] = sums[i];
          }
          for (int word = threadIdx.x; word < words && !few; word += kLanes) {
            write_columns(word, bits[word], places[word]);
          }
        }
      }
      nnz += here;
      from = state.behind;
      __syncthreads();
    }
    if (threadIdx.x == 0) rows.row_nnz[row] = nnz;
  }
}

// ---- Launches

// Columns of a bitmap that is no larger than it must be.
int32_t BitmapColumns(int64_t cols, int32_t most) {
  return static_cast<int32_t>(std::min<int64_t>((cols + kQuad - 1) / kQuad * kQuad, most));
}

template <typename T, int kLanes, bool kNumeric>
cudaError_t LaunchBlocks(cudaStream_t stream, const Rows<T>& rows, int64_t blocks, const Bins& bins,
                         int bin, int last_bin, const BlockMemory& memory) {
  const size_t bytes = BytesOf<T, kLanes, kNumeric>(memory);
  const auto kernel = BlockRows<T, kLanes, kNumeric>;
  if (bytes > size_t{48} << 10) {
    // The same for every launch: it is the function's, and others may be launching it.
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MostSharedBytes());
    if (error != cudaSuccess) return error;
  }
  kernel<<<static_cast<unsigned>(blocks), kLanes, bytes, stream>>>(rows, bins, bin, last_bin,
                                                                   memory);
  return cudaGetLastError();
}

// Fills the bins by entries and computes each bin's rows, those of the largest first.
template <typename T, bool kNumeric>
absl::Status LaunchRows(const Context& context, const Rows<T>& rows, int64_t count) {
  if (count == 0) return absl::OkStatus();
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const Bins bins = BinsIn(context.workspace, count);
  cudaError_t error = cudaMemsetAsync(context.workspace.data(), 0, kCounterBytes, stream);
  if (error == cudaSuccess) {
    FillBins<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
        rows.pair.s_offsets + rows.first, kNumeric ? rows.row_begin : nullptr, rows.row_nnz, count,
        bins);
    error = cudaGetLastError();
  }
  const auto blocks = [&](int64_t for_each_multiprocessor, int64_t rows_of_block) {
    return std::min(Multiprocessors() * for_each_multiprocessor,
                    (count + rows_of_block - 1) / rows_of_block);
  };
  const int64_t cols = rows.pair.cols;
  if (error == cudaSuccess) {
    const BlockMemory memory = {BitmapColumns(cols, kNumeric ? 1 << 17 : 1 << 18),
                                kNumeric ? (32 << 10) / static_cast<int>(sizeof(T)) : 0};
    error = LaunchBlocks<T, 512, kNumeric>(stream, rows, blocks(4, 1), bins, 6, 5, memory);
  }
  if (error == cudaSuccess) {
    const BlockMemory memory = {BitmapColumns(cols, 1 << 17), kNumeric ? kMiddleRow : 0};
    error = LaunchBlocks<T, 128, kNumeric>(stream, rows, blocks(12, 1), bins, 4, 4, memory);
  }
  if (error == cudaSuccess) {
    // A quarter of the blocks for each bin; most bins are empty, and their blocks end at once.
    const auto each = blocks(16, kHashThreads / 32);
    HashRows<T, kNumeric><<<static_cast<unsigned>(4 * each), kHashThreads, 0, stream>>>(rows, bins);
    error = cudaGetLastError();
  }
  return ToStatus(error, "starting SpGEMM");
}

template <typename T>
Rows<T> RowsOf(const SpgemmArguments& arguments, RowRange range) {
  Rows<T> rows = {};
  rows.pair = PairOf<T>(arguments);
  rows.first = range.begin;
  return rows;
}

bool Supports(const Problem& problem) {
  return IsFloatSpgemm(problem) && problem.semiring != Semiring::kMinPlus && !problem.masked;
}

// What counts pairs multiplies ones.
struct Ones {
  Buffer values;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) FillWithOnes(T* values, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) values[i] = 1;
}

// Of each row, kAnalysisLanes at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    FillRowsWithOnes(const int64_t* row_begin, const int64_t* row_nnz, int64_t rows, T* values) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kAnalysisLanes;
  if (row >= rows) return;
  const int64_t begin = row_begin[row], end = begin + row_nnz[row];
  for (int64_t i = begin + threadIdx.x % kAnalysisLanes; i < end; i += kAnalysisLanes) {
    values[i] = 1;
  }
}

template <typename T>
absl::StatusOr<std::shared_ptr<void>> MakeOnes(cudaStream_t stream, int64_t count,
                                               MemorySource& memory) {
  absl::StatusOr<Buffer> values = memory.Allocate(static_cast<size_t>(count) * sizeof(T));
  if (!values.ok()) return values.status();
  auto ones = std::make_shared<Ones>();
  ones->values = *std::move(values);
  if (count > 0) {
    FillWithOnes<<<BlocksFor(count, kThreads), kThreads, 0, stream>>>(
        reinterpret_cast<T*>(ones->values.mutable_data()), count);
  }
  const absl::Status status = ToStatus(cudaGetLastError(), "preparing SpGEMM");
  if (!status.ok()) return Settled(stream, status);
  return std::static_pointer_cast<void>(ones);
}

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& problem,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  if (problem.semiring == Semiring::kSumProduct) return std::shared_ptr<void>();
  const auto make = problem.type == ElementType::kF64 ? MakeOnes<double> : MakeOnes<float>;
  return make(static_cast<cudaStream_t>(context.stream),
              std::max(arguments.left.nnz(), arguments.right.nnz()), memory);
}

size_t Workspace(const Problem& /*problem*/, const SpgemmArguments& arguments, int /*threads*/) {
  return kCounterBytes + static_cast<size_t>(arguments.left.rows) * kLists * sizeof(int32_t);
}

absl::Status Analyse(const Context& context, const SpgemmArguments& arguments,
                     std::span<int64_t> row_bounds, int64_t* products) {
  const int64_t rows = arguments.left.rows;
  if (rows > std::numeric_limits<int32_t>::max()) {
    return absl::UnimplementedError("SpGEMM on the GPU takes up to 2^31 - 1 rows");
  }
  const auto stream = static_cast<cudaStream_t>(context.stream);
  cudaError_t error = cudaMemsetAsync(products, 0, sizeof(*products), stream);
  if (error == cudaSuccess && rows > 0) {
    constexpr int64_t kRows = kThreads / kAnalysisLanes;
    const int64_t blocks =
        std::min<int64_t>((rows + kRows - 1) / kRows, Multiprocessors() * kAnalysisBlocks);
    CountProducts<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        arguments.left.row_offsets.data(), arguments.left.column_indices.data(),
        arguments.right.row_offsets.data(), arguments.right.column_indices.data(), rows,
        arguments.right.cols, row_bounds.data(), products);
    error = cudaGetLastError();
  }
  return ToStatus(error, "analysing SpGEMM");
}

absl::Status Symbolic(const Context& context, const SpgemmArguments& arguments, RowRange range,
                      std::span<int64_t> row_nnz) {
  Rows<float> rows = RowsOf<float>(arguments, range);
  rows.row_nnz = row_nnz.data();
  return LaunchRows<float, false>(context, rows, range.end - range.begin);
}

template <typename T>
absl::Status Compute(const RowsCall& call) {
  Rows<T> rows = RowsOf<T>(call.arguments, call.range);
  if (call.semiring != Semiring::kSumProduct) {
    const auto& ones = *static_cast<const Ones*>(call.context.prepared);
    rows.pair.s_values = rows.pair.t_values = reinterpret_cast<const T*>(ones.values.data());
  }
  rows.row_begin = call.row_begin.data();
  rows.columns = call.column_indices;
  rows.values = static_cast<T*>(call.values);
  rows.row_nnz = call.row_nnz.data();
  const int64_t count = call.range.end - call.range.begin;
  absl::Status status = LaunchRows<T, true>(call.context, rows, count);
  if (!status.ok() || call.semiring != Semiring::kBoolean || count == 0) return status;
  FillRowsWithOnes<<<BlocksFor(count * kAnalysisLanes, kThreads), kThreads, 0,
                     static_cast<cudaStream_t>(call.context.stream)>>>(rows.row_begin, rows.row_nnz,
                                                                       count, rows.values);
  return ToStatus(cudaGetLastError(), "starting SpGEMM");
}

}  // namespace

SpgemmKernel RowBinsSpgemm() {
  return {.name = "cuda.csr.row_bins",
          .device = DeviceKind::kCuda,
          .deterministic = false,
          .supports = Supports,
          .workspace = Workspace,
          .analyse = Analyse,
          .symbolic = Symbolic,
          .numeric = NumericByType<Compute<float>, Compute<double>>,
          .prepare = Prepare};
}

}  // namespace sparsed::cuda
