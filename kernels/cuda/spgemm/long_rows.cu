// Rows of C of more entries, a block each: a bitmap of the columns gives every value its place.
#include <cstdint>

#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/spgemm/binned_rows.cuh"

namespace sparsed::cuda {
namespace {

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
template <typename Semiring, int kLanes, bool kNumeric>
__global__ void __launch_bounds__(kLanes, kLanes == 512 ? 3 : 10)
    BlockRows(const Rows<typename Semiring::Element> rows, const Bins bins, int bin, int last_bin,
              const BlockMemory memory) {
  using T = typename Semiring::Element;
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
          for (int i = threadIdx.x; i < to - from; i += kLanes) sums[i] = Semiring::Nothing();
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
          VisitTaken<kLanes, kNumeric, Semiring>(rows.pair, state.batch, all,
                                                 [&](int32_t column, T product) {
                                                   mark(column);
                                                   Semiring::Add(sums + (column - from), product);
                                                 });
        } else {
          VisitTaken<kLanes, false, Semiring>(rows.pair, state.batch, all,
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
          T* const begun = in_place ? rows.values + out + nnz : sums;
          for (int i = threadIdx.x; i < here; i += kLanes) begun[i] = Semiring::Nothing();
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
              VisitTaken<kLanes, true, Semiring>(
                  rows.pair, state.batch, all, [&](int32_t column, T product) {
                    Semiring::Add(rows.values + out + nnz + place_of(column), product);
                  });
            } else {
              VisitTaken<kLanes, true, Semiring>(rows.pair, state.batch, all,
                                                 [&](int32_t column, T product) {
                                                   Semiring::Add(sums + place_of(column), product);
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

template <typename Semiring, int kLanes, bool kNumeric>
cudaError_t LaunchBlocks(cudaStream_t stream, const Rows<typename Semiring::Element>& rows,
                         unsigned blocks, const Bins& bins, int bin, int last_bin,
                         const BlockMemory& memory) {
  const size_t bytes = BytesOf<typename Semiring::Element, kLanes, kNumeric>(memory);
  const auto kernel = BlockRows<Semiring, kLanes, kNumeric>;
  if (bytes > size_t{48} << 10) {
    // The same for every launch: it is the function's, and others may be launching it.
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MostSharedBytes());
    if (error != cudaSuccess) return error;
  }
  kernel<<<blocks, kLanes, bytes, stream>>>(rows, bins, bin, last_bin, memory);
  return cudaGetLastError();
}

}  // namespace

template <typename Semiring, bool kNumeric>
cudaError_t LaunchLongRows(cudaStream_t stream, const Rows<typename Semiring::Element>& rows,
                           int64_t count, const Bins& bins, int bin, int last_bin) {
  const BlockMemory memory = {
      BitmapColumns(rows.pair.cols, kNumeric ? 1 << 17 : 1 << 18),
      kNumeric ? (32 << 10) / static_cast<int>(sizeof(typename Semiring::Element)) : 0};
  // Few rows are spare, if any, and each block has spare memory of its own.
  const unsigned blocks = bin == kSpareBin
                              ? static_cast<unsigned>(std::min<int64_t>(count, Multiprocessors()))
                              : BlocksForRows(count, 4, 1);
  return LaunchBlocks<Semiring, 512, kNumeric>(stream, rows, blocks, bins, bin, last_bin, memory);
}

template <typename Semiring, bool kNumeric>
cudaError_t LaunchMiddleRows(cudaStream_t stream, const Rows<typename Semiring::Element>& rows,
                             int64_t count, const Bins& bins) {
  const BlockMemory memory = {BitmapColumns(rows.pair.cols, 1 << 17), kNumeric ? kMiddleRow : 0};
  return LaunchBlocks<Semiring, 128, kNumeric>(stream, rows, BlocksForRows(count, 12, 1), bins,
                                               kMiddleBin, kMiddleBin, memory);
}

template cudaError_t LaunchLongRows<SumProduct<float>, false>(cudaStream_t, const Rows<float>&,
                                                              int64_t, const Bins&, int, int);
template cudaError_t LaunchMiddleRows<SumProduct<float>, false>(cudaStream_t, const Rows<float>&,
                                                                int64_t, const Bins&);
template cudaError_t LaunchLongRows<SumProduct<float>, true>(cudaStream_t, const Rows<float>&,
                                                             int64_t, const Bins&, int, int);
template cudaError_t LaunchMiddleRows<SumProduct<float>, true>(cudaStream_t, const Rows<float>&,
                                                               int64_t, const Bins&);
template cudaError_t LaunchLongRows<SumProduct<double>, true>(cudaStream_t, const Rows<double>&,
                                                              int64_t, const Bins&, int, int);
template cudaError_t LaunchMiddleRows<SumProduct<double>, true>(cudaStream_t, const Rows<double>&,
                                                                int64_t, const Bins&);
template cudaError_t LaunchLongRows<MinPlus<float>, true>(cudaStream_t, const Rows<float>&, int64_t,
                                                          const Bins&, int, int);
template cudaError_t LaunchMiddleRows<MinPlus<float>, true>(cudaStream_t, const Rows<float>&,
                                                            int64_t, const Bins&);
template cudaError_t LaunchLongRows<MinPlus<double>, true>(cudaStream_t, const Rows<double>&,
                                                           int64_t, const Bins&, int, int);
template cudaError_t LaunchMiddleRows<MinPlus<double>, true>(cudaStream_t, const Rows<double>&,
                                                             int64_t, const Bins&);

}  // namespace sparsed::cuda
