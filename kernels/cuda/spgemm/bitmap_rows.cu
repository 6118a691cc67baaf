// A team marks in a bitmap which words of 32 columns its row has, gives each a place, adds up its
// mask there and counts bits: then each product finds its entry by two counts of bits, and entries
// leave in order. Words and products are shared evenly among the lanes, whatever the lengths of T's
// rows: of 32 places in a row a warp finds the owners by the bits of those that begin there.
// Threads: a warp for a row of up to 512 entries, 2 warps up to 1,024, and 4 up to 4,096, 2,048 of
// them at a time. Rows of up to 32 entries, longer ones and those that find no room go to the
// kernels of row bins.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/cuda/side_streams.h"
#include "kernels/cuda/spgemm/bitmap_rows.cuh"

namespace sparsed::cuda {
namespace {

constexpr int kTopColumns = 32 * kWordColumns;

// 32 bits of a bitmap, and how many there are before them.
struct alignas(8) Bits {
  uint32_t set;
  uint32_t before;
};

// The place of bit `at` % 32, which is set or would be.
__device__ inline uint32_t PlaceOf(const Bits& bits, uint32_t at) {
  return bits.before + __popc(bits.set & Below(at));
}

// 32 nonzeros of S, one for each lane, whose rows of T are not empty: these come one after the
// other. In shared memory, as each warp of a team looks them up.
template <typename T>
struct NonzerosOfS {
  int32_t words[32];     // where word p of the batch is in T's: words[owner] + p
  int32_t products[32];  // where product p is in T: products[owner] + p; numeric only
  T scales[32];
};

// What a lane knows of its nonzero.
struct Nonzero {
  bool any;
  int32_t words_before, products_before;  // of the lanes before this one
};

// Of place from + lane, the owner: the last nonzero that begins at or before it.
__device__ inline int OwnerOf(bool any, int32_t before, int32_t from) {
  constexpr unsigned kWarp = 0xffffffffu;
  const auto at = static_cast<uint32_t>(before - from);
  const unsigned firsts = __reduce_or_sync(kWarp, any && at < 32 ? 1u << at : 0);
  return __popc(__ballot_sync(kWarp, any && before < from)) +
         __popc(firsts & (2u << (threadIdx.x % 32)) - 1) - 1;
}

// The nonzeros of S from `first` on become the warp's batch. In *words and *products, how many they
// have.
template <bool kNumeric, typename Source, typename T>
__device__ inline Nonzero Take(const SparsePair<T>& p, const Source& t, int64_t first, int64_t end,
                               NonzerosOfS<T>& batch, int32_t* words, int32_t* products,
                               int32_t* least, int32_t* most) {
  constexpr unsigned kWarp = 0xffffffffu;
  constexpr bool kOfWords = std::is_same_v<Source, RowWords>;
  const int lane = threadIdx.x % 32;
  int32_t start = 0, count = 0, begin = 0, length = 0;
  T scale = 0;
  if (first + lane < end) {
    const int32_t row = __ldg(p.s_columns + first + lane);
    start = static_cast<int32_t>(__ldg(t.offsets + row));
    count = static_cast<int32_t>(__ldg(t.offsets + row + 1)) - start;
    if constexpr (kNumeric) {
      if constexpr (kOfWords) {
        begin = static_cast<int32_t>(__ldg(p.t_offsets + row));
        length = static_cast<int32_t>(__ldg(p.t_offsets + row + 1)) - begin;
      }
      scale = __ldg(p.s_values + first + lane);
    }
    if (least != nullptr && count > 0) {
      *least = min(*least, t.IndexOf(start));
      *most = max(*most, t.IndexOf(start + count - 1));
    }
  }
  Nonzero mine = {count > 0, 0, 0};
  const int32_t words_through = SumThrough<32>(count);
  mine.words_before = words_through - count;
  *words = __shfl_sync(kWarp, words_through, 31);
  if constexpr (kNumeric && kOfWords) {
    const int32_t products_through = SumThrough<32>(length);
    mine.products_before = products_through - length;
    *products = __shfl_sync(kWarp, products_through, 31);
  } else {
    mine.products_before = mine.words_before;
    *products = *words;
  }
  const int owner = __popc(__ballot_sync(kWarp, mine.any) & Below(lane));
  __syncwarp();
  if (mine.any) {
    batch.words[owner] = start - mine.words_before;
    if constexpr (kNumeric) {
      if (kOfWords) batch.products[owner] = begin - mine.products_before;
      batch.scales[owner] = scale;
    }
  }
  __syncwarp();
  return mine;
}

// A team's shared memory for kMost entries at a time; 0: they are only counted. The bits of a row's
// words follow it.
template <typename T, int kWarps, int kMost, typename Source>
struct alignas(16) Team {
  static constexpr int kLanes = 32 * kWarps;
  static constexpr int kOfBlock = kWarps == 1 ? 4 : 1;
  static constexpr bool kOfWords = std::is_same_v<Source, RowWords>;
  // Words of several columns each, as a rule.
  static constexpr int kWords = kMost == 0                ? 256 * kWarps
                                : kOfWords && kMost > 256 ? std::max(256, kMost / 2)
                                                          : kMost;

  T sums[std::max(kMost, 1)];
  Bits words[kWords];
  int32_t columns[std::max(kMost, 1)];
  NonzerosOfS<T> batches[kWarps];
  int32_t totals[kWarps];
  int32_t taken;
};

template <int kWarps>
__device__ inline void Sync() {
  if constexpr (kWarps == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// Sets `before` of each, and returns how many bits are set in all. An odd number for each lane:
// lanes read different banks.
template <int kWarps>
__device__ inline int32_t Count(Bits* bits, int count, int32_t* totals) {
  constexpr int kLanes = 32 * kWarps;
  const int share = (count + kLanes - 1) / kLanes | 1;
  const int begin = min(static_cast<int>(threadIdx.x % kLanes) * share, count);
  const int end = min(begin + share, count);
  int32_t mine = 0;
  for (int i = begin; i < end; ++i) mine += __popc(bits[i].set);
  const int32_t through = SumThrough<32>(mine);
  int32_t before = through - mine, all = 0;
  if constexpr (kWarps == 1) {
    all = __shfl_sync(0xffffffffu, through, 31);
  } else {
    if (threadIdx.x % 32 == 31) totals[threadIdx.x / 32] = through;
    __syncthreads();
    before += SumBefore<kWarps>(totals, &all);
  }
  for (int i = begin; i < end; ++i) {
    bits[i].before = before;
    before += __popc(bits[i].set);
  }
  Sync<kWarps>();
  return all;
}

constexpr int kWordsAtOnce = 4, kProductsAtOnce = 2;  // of a lane

// Slots of a table of words by their index, which stands in `before`.
constexpr int kSlots = 256, kMostProbes = 24;
constexpr uint32_t kNoKey = 0xffffffffu;

// Adds the word's mask to a table of kSlots. False: there is no room near its slot.
__device__ inline bool Insert(Bits* table, const Word& word) {
  const auto key = static_cast<uint32_t>(word.index);
  uint32_t slot = (key * 0x9e3779b1u) >> (32 - __builtin_ctz(kSlots));
  for (int probe = 0; probe < kMostProbes; ++probe) {
    uint32_t seen = *const_cast<volatile uint32_t*>(&table[slot].before);
    if (seen == kNoKey) {
      seen = atomicCAS(&table[slot].before, kNoKey, key);
      if (seen == kNoKey) seen = key;
    }
    if (seen == key) {
      atomicOr(&table[slot].set, word.mask);
      return true;
    }
    slot = (slot + 1) % kSlots;
  }
  return false;
}

template <typename T, int kWarps, int kMost, typename Source>
__global__ void __launch_bounds__(kWarps == 1 ? 128 : 32 * kWarps,
                                  kMost > 0 ? 32 / (kWarps == 1 ? 4 : kWarps) : 12)
    BitmapRows(const Rows<T> rows, const Source t, const Bins bins, int bin, int team_bytes) {
  using Mine = Team<T, kWarps, kMost, Source>;
  constexpr bool kNumeric = kMost > 0, kOfWords = std::is_same_v<Source, RowWords>;
  constexpr unsigned kWarp = 0xffffffffu;
  constexpr int kLanes = Mine::kLanes;
  extern __shared__ __align__(16) unsigned char shared[];
  unsigned char* const memory = shared + threadIdx.x / kLanes * team_bytes;
  auto& team = *reinterpret_cast<Mine*>(memory);
  auto* const tops = reinterpret_cast<Bits*>(memory + sizeof(Mine));
  const int lane = threadIdx.x % kLanes, warp_lane = threadIdx.x % 32, warp = lane / 32;
  NonzerosOfS<T>& batch = team.batches[warp];
  const int32_t size = bins.sizes[bin];
  int32_t next_taken = lane == 0 ? atomicAdd(bins.next + bin, 1) : 0;
  while (true) {
    int32_t taken = 0;
    if constexpr (kWarps == 1) {
      taken = __shfl_sync(kWarp, next_taken, 0);
    } else {
      __syncthreads();
      if (lane == 0) team.taken = next_taken;
      __syncthreads();
      taken = team.taken;
    }
    if (taken >= size) return;
    if (lane == 0) next_taken = atomicAdd(bins.next + bin, 1);
    const int32_t row = bins.Row(bin, taken);
    const int64_t begin = rows.pair.s_offsets[rows.first + row];
    const int64_t end = rows.pair.s_offsets[rows.first + row + 1];
    const bool held = end - begin <= 32;  // the batch stays
    Nonzero mine;
    int32_t all_words = 0, all_products = 0, least = INT32_MAX, most = -1;
    const auto take = [&](int64_t first, int32_t* from, int32_t* to) {
      mine = Take<kNumeric>(rows.pair, t, first, end, batch, &all_words, &all_products, from, to);
    };
    if (kNumeric || held) {
      for (int64_t first = begin; first < end; first += 32) take(first, &least, &most);
    }

    Word words[kWordsAtOnce];
    const bool kept = held && all_words <= kWordsAtOnce * kLanes;  // words stay in registers
    const auto visit_words = [&](bool again, auto visit) {
      for (int64_t first = begin; first < end; first += 32) {
        if (!held) take(first, nullptr, nullptr);
        for (int32_t done = warp * 32; done < all_words; done += kWordsAtOnce * kLanes) {
#pragma unroll
          for (int i = 0; i < kWordsAtOnce && (!again || !kept); ++i) {
            const int32_t from = done + i * kLanes;
            if (i > 0 && from >= all_words) break;
            const int owner = OwnerOf(mine.any, mine.words_before, from);
            const int32_t place = min(from + warp_lane, all_words - 1);
            words[i] = t.Load(batch.words[owner] + place);
          }
#pragma unroll
          for (int i = 0; i < kWordsAtOnce; ++i) {
            const int32_t from = done + i * kLanes;
            if (i > 0 && from >= all_words) break;
            if (from + warp_lane < all_words) visit(words[i]);
          }
        }
      }
      Sync<kWarps>();
    };
    if constexpr (!kNumeric && kWarps == 1) {
      // Only their number is asked for, in no order: a table is enough if it has room.
      static_assert(Mine::kWords >= kSlots);
      for (int i = lane; i < kSlots; i += 32) team.words[i] = {0, kNoKey};
      __syncwarp();
      bool fits = true;
      visit_words(false, [&](const Word& word) { fits = Insert(team.words, word) && fits; });
      if (__all_sync(kWarp, fits)) {
        int nnz = 0;
        for (int i = lane; i < kSlots; i += 32) nnz += __popc(team.words[i].set);
        nnz = __reduce_add_sync(kWarp, nnz);
        if (lane == 0) rows.row_nnz[row] = nnz;
        continue;
      }
    }
    if (!kNumeric && !held) {
      for (int64_t first = begin; first < end; first += 32) take(first, &least, &most);
    }
    least = __reduce_min_sync(kWarp, least);
    most = __reduce_max_sync(kWarp, most);

    if (most < 0) {  // room for entries, but no products
      if (lane == 0) rows.row_nnz[row] = 0;
      continue;
    }

    // Which words the row has.
    const uint32_t base = static_cast<uint32_t>(least) / 32;
    const int count = static_cast<int>(static_cast<uint32_t>(most) / 32 - base) + 1;
    for (int i = lane; i < count; i += kLanes) tops[i] = {0, 0};
    Sync<kWarps>();
    visit_words(false, [&](const Word& word) {
      const auto index = static_cast<uint32_t>(word.index);
      atomicOr(&tops[index / 32 - base].set, 1u << (index % 32));
    });
    const int32_t word_count = Count<kWarps>(tops, count, team.totals);
    if (word_count > Mine::kWords) {
      if (lane == 0) bins.Row(kSpareBin, atomicAdd(bins.sizes + kSpareBin, 1)) = row;
      continue;
    }

    // Their masks.
    for (int i = lane; i < word_count; i += kLanes) team.words[i] = {0, 0};
    Sync<kWarps>();
    visit_words(true, [&](const Word& word) {
      const auto index = static_cast<uint32_t>(word.index);
      atomicOr(&team.words[PlaceOf(tops[index / 32 - base], index)].set, word.mask);
    });
    const int32_t nnz = Count<kWarps>(team.words, word_count, team.totals);
    if (lane == 0) rows.row_nnz[row] = nnz;

    if constexpr (kNumeric) {
      for (int32_t done = 0; done < nnz; done += kMost) {
        const int here = min(nnz - done, kMost);
        for (int i = lane; i < here; i += kLanes) team.sums[i] = 0;
        Sync<kWarps>();
        struct Product {
          int32_t column;
          T scale, value;
        };
        // From `from` + lane on, kLanes apart. Those behind the last one are not added.
        const auto load = [&](int32_t from, Product products[kProductsAtOnce]) {
#pragma unroll
          for (int i = 0; i < kProductsAtOnce; ++i) {
            const int32_t at = from + i * kLanes;
            const int owner = OwnerOf(mine.any, mine.products_before, at);
            const int32_t begin = kOfWords ? batch.products[owner] : batch.words[owner];
            const int64_t position =
                static_cast<uint32_t>(begin + min(at + warp_lane, all_products - 1));
            products[i] = {__ldg(rows.pair.t_columns + position), batch.scales[owner],
                           __ldg(rows.pair.t_values + position)};
          }
        };
        const auto add = [&](const Product& product) {
          const auto at = static_cast<uint32_t>(product.column);
          const Bits top = tops[at / kTopColumns - base];
          const Bits word = team.words[PlaceOf(top, at / kWordColumns)];
          const uint32_t place = PlaceOf(word, at) - static_cast<uint32_t>(done);
          // Others have room for all of their bin's rows.
          if (kWarps > 2 && place >= kMost) return;
          team.columns[place] = product.column;
          atomicAdd(team.sums + place, product.scale * product.value);
        };
        for (int64_t first = begin; first < end; first += 32) {
          if (!held) take(first, nullptr, nullptr);
          Product next[kProductsAtOnce];
          int32_t from = warp * 32;
          if (from < all_products) load(from, next);
          while (from < all_products) {
            Product products[kProductsAtOnce];
#pragma unroll
            for (int i = 0; i < kProductsAtOnce; ++i) products[i] = next[i];
            const int32_t here_from = from;
            from += kProductsAtOnce * kLanes;
            if (from < all_products) load(from, next);
#pragma unroll
            for (int i = 0; i < kProductsAtOnce; ++i) {
              if (here_from + i * kLanes + warp_lane < all_products) add(products[i]);
            }
          }
        }
        Sync<kWarps>();
        const int64_t out = rows.row_begin[row] + done;
        for (int i = lane; i < here; i += kLanes) {
          rows.columns[out + i] = team.columns[i];
          rows.values[out + i] = team.sums[i];
        }
        Sync<kWarps>();
      }
    }
  }
}

// ---- Launches

template <typename T, int kWarps, int kMost, typename Source>
cudaError_t Launch(cudaStream_t stream, const Rows<T>& rows, int64_t count, const Source& t,
                   const Bins& bins, int bin) {
  using Mine = Team<T, kWarps, kMost, Source>;
  const int64_t tops = (rows.pair.cols + kTopColumns - 1) / kTopColumns;
  const size_t team_bytes =
      (sizeof(Mine) + static_cast<size_t>(tops) * sizeof(Bits) + 15) / 16 * 16;
  const size_t bytes = team_bytes * Mine::kOfBlock;
  const auto kernel = BitmapRows<T, kWarps, kMost, Source>;
  if (bytes > size_t{48} << 10) {
    // The same for every launch: it is the function's, and others may be launching it.
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MostSharedBytes());
    if (error != cudaSuccess) return error;
  }
  kernel<<<BlocksForRows(count, 64 / kWarps / Mine::kOfBlock, Mine::kOfBlock),
           Mine::kLanes * Mine::kOfBlock, bytes, stream>>>(rows, t, bins, bin,
                                                           static_cast<int>(team_bytes));
  return cudaGetLastError();
}

// Before kWarpBin are the bins of short rows.
constexpr int kShortBins = 2, kWarpBin = 2, kLongWarpBin = 3;

// Puts rows into bins, and has `start(stream, sides, bins)` start the kernels over bitmaps beside
// those over the shortest and the longest rows: when one is left with a few rows, others fill the
// device.
template <bool kNumeric, typename T, typename Start>
absl::Status StartRows(const Context& context, const Rows<T>& rows, int64_t count,
                       const BinLimits& limits, Start start) {
  if (count == 0) return absl::OkStatus();
  const auto stream = static_cast<cudaStream_t>(context.stream);
  absl::StatusOr<SideStreams::Lease> lease = SideStreams::Borrow(stream);
  if (!lease.ok()) return lease.status();
  SideStreams& sides = **lease;
  Bins bins;
  cudaError_t error = FillBins(context, rows, count, limits, &bins);
  if (error == cudaSuccess) error = sides.Fork(stream, kNumeric ? 4 : 3);
  if (error == cudaSuccess) {
    error =
        LaunchLongRows<SumProduct<T>, kNumeric>(sides[0], rows, count, bins, kLastBin, kLastBin);
  }
  if (error == cudaSuccess) error = start(stream, sides, bins);
  if (error == cudaSuccess) {
    error = LaunchShortRows<SumProduct<T>, kNumeric>(sides[2], rows, count, bins, kShortBins);
  }
  const cudaError_t joined = sides.Join(stream);
  if (error == cudaSuccess) error = joined;
  if (error == cudaSuccess) {
    error =
        LaunchLongRows<SumProduct<T>, kNumeric>(stream, rows, count, bins, kSpareBin, kSpareBin);
  }
  return ToStatus(error, "starting SpGEMM by bitmaps");
}

}  // namespace

absl::Status CheckBitmapRows(const CsrView& t) {
  constexpr int64_t kMostColumns = int64_t{1} << 20, kMostNonzeros = (int64_t{1} << 31) - 1;
  if (t.cols <= kMostColumns && t.nnz() <= kMostNonzeros) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("bitmaps of rows are for up to ", kMostColumns, " columns and ", kMostNonzeros,
                   " nonzeros of the right matrix, which has ", t.cols, " and ", t.nnz()));
}

template <typename T, typename Source>
absl::Status AddRowsByBitmaps(const Context& context, const Rows<T>& rows, int64_t count,
                              const Source& t) {
  constexpr BinLimits kLimits = {{kTinyRow, kSmallRow, 256, 512, 1024, 4096},
                                 {32, 32, 128, 128, 512, 1024}};
  return StartRows<true>(
      context, rows, count, kLimits,
      [&](cudaStream_t stream, SideStreams& sides, const Bins& bins) -> cudaError_t {
        cudaError_t error = Launch<T, 4, 2048>(sides[1], rows, count, t, bins, kLongBin);
        if (error == cudaSuccess) {
          error = Launch<T, 2, 1024>(sides[2], rows, count, t, bins, kMiddleBin);
        }
        if (error == cudaSuccess) {
          error = Launch<T, 1, 512>(sides[3], rows, count, t, bins, kLongWarpBin);
        }
        if (error == cudaSuccess) {
          error = Launch<T, 1, 256>(stream, rows, count, t, bins, kWarpBin);
        }
        return error;
      });
}

absl::Status CountRowsByBitmaps(const Context& context, const Rows<float>& rows, int64_t count,
                                const RowWords& t) {
  // Nothing is added up: a warp has room for many bits.
  constexpr BinLimits kLimits = {{kTinyRow, kSmallRow, 4096, 4096, INT32_MAX, INT32_MAX},
                                 {32, 32, 256, 256, 512, 512}};
  return StartRows<false>(
      context, rows, count, kLimits,
      [&](cudaStream_t stream, SideStreams& sides, const Bins& bins) -> cudaError_t {
        const cudaError_t error = Launch<float, 4, 0>(sides[1], rows, count, t, bins, kMiddleBin);
        if (error != cudaSuccess) return error;
        return Launch<float, 1, 0>(stream, rows, count, t, bins, kWarpBin);
      });
}

template absl::Status AddRowsByBitmaps(const Context&, const Rows<float>&, int64_t,
                                       const RowWords&);
template absl::Status AddRowsByBitmaps(const Context&, const Rows<double>&, int64_t,
                                       const RowWords&);
template absl::Status AddRowsByBitmaps(const Context&, const Rows<float>&, int64_t,
                                       const RowColumns&);
template absl::Status AddRowsByBitmaps(const Context&, const Rows<double>&, int64_t,
                                       const RowColumns&);

}  // namespace sparsed::cuda
