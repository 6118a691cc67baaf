// Rows of C of up to 128 entries: tables of slots in shared memory, put in order by counting the
// smaller columns.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/spgemm/binned_rows.cuh"

namespace sparsed::cuda {
namespace {

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
template <typename Semiring, int kLanes, int kMost, bool kNumeric>
__device__ void HashRowsOf(const Rows<typename Semiring::Element>& rows, const Bins& bins, int bin,
                           int32_t block, int32_t blocks, unsigned char* shared) {
  using T = typename Semiring::Element;
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
      if (kNumeric) sums[slot] = Semiring::Nothing();
    }
    __syncwarp();
    int32_t found = 0;
    VisitProducts<kLanes, kNumeric, Semiring>(rows.pair, begin, end, tables.batches[team],
                                              [&](int32_t column, T product) {
                                                int slot = column - range.least;
                                                if (direct) {
                                                  keys[slot] = column;
                                                } else {
                                                  bool is_new = false;
                                                  slot = Insert<kTable>(keys, column, &is_new);
                                                  found += is_new;
                                                }
                                                if (kNumeric) Semiring::Add(sums + slot, product);
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

// The first bins, which blocks take in turn.
template <typename Semiring, bool kNumeric>
__global__ void __launch_bounds__(kHashThreads, 12)
    HashRows(const Rows<typename Semiring::Element> rows, const Bins bins, int bin_count) {
  using T = typename Semiring::Element;
  using Tiny = Tables<T, 8, kTinyRow, kNumeric>;
  using Small = Tables<T, 8, kSmallRow, kNumeric>;
  using Short = Tables<T, 16, kShortRow, kNumeric>;
  using Fair = Tables<T, 32, kFairRow, kNumeric>;
  constexpr size_t kBytes = std::max({sizeof(Tiny), sizeof(Small), sizeof(Short), sizeof(Fair)});
  __shared__ __align__(16) unsigned char shared[kBytes];
  const auto block = static_cast<int32_t>(blockIdx.x / bin_count);
  const auto blocks = static_cast<int32_t>(gridDim.x / bin_count);
  const int bin = bin_count - 1 - static_cast<int>(blockIdx.x % bin_count);
  if (bin == 3) {
    HashRowsOf<Semiring, 32, kFairRow, kNumeric>(rows, bins, bin, block, blocks, shared);
  } else if (bin == 2) {
    HashRowsOf<Semiring, 16, kShortRow, kNumeric>(rows, bins, bin, block, blocks, shared);
  } else if (bin == 1) {
    HashRowsOf<Semiring, 8, kSmallRow, kNumeric>(rows, bins, bin, block, blocks, shared);
  } else {
    HashRowsOf<Semiring, 8, kTinyRow, kNumeric>(rows, bins, bin, block, blocks, shared);
  }
}

}  // namespace

template <typename Semiring, bool kNumeric>
cudaError_t LaunchShortRows(cudaStream_t stream, const Rows<typename Semiring::Element>& rows,
                            int64_t count, const Bins& bins, int end_bin) {
  // The same number of blocks for each bin; most bins are empty, and their blocks end at once.
  const unsigned each = BlocksForRows(count, 16, kHashThreads / 32);
  HashRows<Semiring, kNumeric><<<end_bin * each, kHashThreads, 0, stream>>>(rows, bins, end_bin);
  return cudaGetLastError();
}

template cudaError_t LaunchShortRows<SumProduct<float>, false>(cudaStream_t, const Rows<float>&,
                                                               int64_t, const Bins&, int);
template cudaError_t LaunchShortRows<SumProduct<float>, true>(cudaStream_t, const Rows<float>&,
                                                              int64_t, const Bins&, int);
template cudaError_t LaunchShortRows<SumProduct<double>, true>(cudaStream_t, const Rows<double>&,
                                                               int64_t, const Bins&, int);
template cudaError_t LaunchShortRows<MinPlus<float>, true>(cudaStream_t, const Rows<float>&,
                                                           int64_t, const Bins&, int);
template cudaError_t LaunchShortRows<MinPlus<double>, true>(cudaStream_t, const Rows<double>&,
                                                            int64_t, const Bins&, int);

}  // namespace sparsed::cuda
