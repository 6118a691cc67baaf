// SDDMM from row panels on tensor cores, through shared memory: O = S .* (A * B^T).
//
// Idea: as row_panels.cu, with rows of B in whole cache lines. What a lane multiplies of a row lies
// in pieces of lines, which L2 serves at half its rate; so lines are copied to shared memory as
// they are, and read from there as tiles. A row of B is fetched once for 8 or 16 dot products. f32
// is split into TF32 parts (mma.cuh); a dot product that overflows on that way is computed once
// more without splitting. f64 has tensor cores of its own.
// Layout in: "row_panels" of 8 or 16 rows; one of S^T has the operands' parts swapped.
// Threads: as many blocks as run at once share the slots equally, or more, if there are many. A
// block of two warps takes its share in pieces of up to 96 slots of one panel, and goes over K a
// line at a time: while a line of each row is multiplied, the next one is on its way, across
// pieces, too. The warps take turns at tiles of 16 slots. A's lines, which are not needed again,
// leave L2 first.
// Needs: no workspace; fewer than 2^31 nonzeros; values aligned to 16 bytes; for f32, K >= 16,
// below which the parts' error may exceed that of plain sums.
//
// Wins: where the rows of a panel share columns and panels are long: bands, FEM, clusters. Loses
// where panels have few slots, since every piece is waited for once. Device memory limits it at
// large K; at K = 128, instructions and the waits at the ends of pieces do.
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/sddmm/dots.cuh"
#include "kernels/cuda/sddmm/row_search.cuh"
#include "kernels/cuda/sddmm/sddmm.h"
#include "kernels/cuda/spmm/slice.cuh"
#include "kernels/formats/row_panels.h"

namespace sparsed::cuda {
namespace {

constexpr int kWarps = 2;                     // of a block
constexpr int kTiles = 3;                     // of 16 slots, of a warp
constexpr int kSlots = kWarps * kTiles * 16;  // of a piece, at most
constexpr int kBlocks = 6;                    // of a multiprocessor: 168 registers a thread
constexpr int kLeastFloatK = 16;

struct Panels {
  RowOffsets slots;
  const int32_t* columns;
  const int32_t* masks;
  const int32_t* order;  // null: identity
  int rows;
  uint32_t a_stride, b_stride;  // bytes
  int64_t share;                // slots of a block
};

/// Elements of a cache line.
template <typename T>
constexpr int kLine = static_cast<int>(128 / sizeof(T));

/// A line of each row that a piece needs, its parts of 16 bytes in another order in each, so that
/// lanes which read the same part of neighbouring rows do not meet in a bank.
template <typename T, int kRows>
struct Stage {
  alignas(128) T rows[kRows][kLine<T>];
  alignas(128) T slots[kSlots][kLine<T>];

  /// f64 is read by lanes with four parts of two rows each, the others with one part of eight rows.
  __device__ static unsigned PlaceOf(unsigned row, unsigned part) {
    return part ^ (sizeof(T) == 8 ? row % 2 * 4 : row % 8);
  }
};

/// A block's shared memory.
template <typename T, int kRows>
struct Shared {
  static constexpr int kCopied = kWarps * 4;  // rows of which a block copies a line at once

  Stage<T, kRows> stages[2];
  /// Of two pieces in turn, which rows of B and A they need; together what one thread copies.
  alignas(16) int columns[2][kCopied][kSlots / kCopied];
  int rows[2][kCopied][kRows / kCopied];
};

/// A line of a piece.
struct Task {
  int panel;
  int64_t begin;  // the piece's first slot
  int count;      // of its slots; 0: there is nothing left to do
  bool first, last;
};

/// The lines that a block needs, one after another. Eight neighbouring threads copy one of each
/// row.
template <bool kWide, typename T, int kRows>
class Lines {
 public:
  __device__ Lines(const Panels& s, const SddmmOperands<T>& operands, Shared<T, kRows>& shared,
                   int64_t begin)
      : s_(s),
        operands_(operands),
        shared_(shared),
        end_(min(begin + s.share, s.slots.items)),
        begin_(begin),
        panel_(FindRow(s.slots, begin, threadIdx.x % 32)) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(once_));
    next_ = Look(panel_, begin_);
    List();
  }

  /// Begins to copy the next line to `stage`, where all are done with what was there. Between two
  /// calls there is a barrier. Behind K, and behind the piece's slots up to a multiple of 32,
  /// zeros.
  __device__ Task Copy(Stage<T, kRows>& stage) {
    Task task = {panel_, begin_, 0, k_ == 0, k_ + kLine<T> >= operands_.k};
    if (begin_ < end_) {
      task.count = static_cast<int>(piece_end_ - begin_);
      CopyRows<kRows / kCopied>(stage.rows, kRows, shared_.rows[list_][threadIdx.x / 8],
                                operands_.a.data, s_.a_stride, /*once=*/true);
      constexpr int kTogether = 4;
#pragma unroll
      for (int i = 0; i < kSlots / kCopied; i += kTogether) {
        if (i * kCopied >= task.count) break;
        CopyRows<kTogether>(stage.slots + i * kCopied, task.count - i * kCopied,
                            shared_.columns[list_][threadIdx.x / 8] + i, operands_.b.data,
                            s_.b_stride, /*once=*/false);
      }
      k_ += kLine<T>;
      if (task.last) Advance();
    }
    __pipeline_commit();
    return task;
  }

 private:
  static constexpr int kCopied = Shared<T, kRows>::kCopied;
  static_assert(kCopied % 8 == 0);  // so that a thread's rows have their parts in one order

  __device__ static unsigned PlaceOf(unsigned row, unsigned part) {
    return Stage<T, kRows>::PlaceOf(row, part);
  }

  /// What a thread finds out about a piece.
  struct Found {
    int64_t panel_end;
    int columns[2];
    int row;
  };
  static_assert(kSlots > kWarps * 32 && kSlots <= 2 * kWarps * 32 && kRows <= kWarps * 32);

  __device__ Found Look(int panel, int64_t begin) const {
    Found found;
    found.panel_end = __ldg(s_.slots.begins + min(panel + 1, s_.slots.rows));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t slot = begin + i * kWarps * 32 + threadIdx.x;
      found.columns[i] = __ldg(s_.columns + min(slot, s_.slots.items - 1));
    }
    found.row = min(panel * kRows + static_cast<int>(threadIdx.x % kRows), s_.rows - 1);
    if (s_.order != nullptr) found.row = __ldg(s_.order + found.row);
    return found;
  }

  /// Lists the piece from begin_ on, of which next_ tells, but for empty panels before it, and asks
  /// for the piece behind it.
  __device__ void List() {
    if (begin_ >= end_) return;
    // By a shuffle here: what all lanes share would be waited for where it is asked for.
    int64_t panel_end = __shfl_sync(kWarp, next_.panel_end, 0);
    if (panel_end == begin_) {
      panel_ = FindRow(s_.slots, begin_, threadIdx.x % 32);
      next_ = Look(panel_, begin_);
      panel_end = __shfl_sync(kWarp, next_.panel_end, 0);
    }
    list_ ^= 1;
    const auto put = [](auto& list, unsigned i, int row) { list[i % kCopied][i / kCopied] = row; };
    const unsigned own = threadIdx.x;
    if (own < kRows) put(shared_.rows[list_], own, next_.row);
    put(shared_.columns[list_], own, next_.columns[0]);
    if (own + kWarps * 32 < kSlots) {
      put(shared_.columns[list_], own + kWarps * 32, next_.columns[1]);
    }
    piece_end_ = min(min(panel_end, begin_ + kSlots), end_);
    panel_behind_ = panel_ + (piece_end_ == panel_end ? 1 : 0);
    next_ = Look(panel_behind_, piece_end_);
  }

  __device__ void Advance() {
    k_ = 0;
    begin_ = piece_end_;
    panel_ = panel_behind_;
    List();
  }

  /// This thread's parts of a line of rows number thread / 8, kCopied more, ... of `listed`, those
  /// before `count`. once: they are read this time only.
  template <int kMany>
  __device__ void CopyRows(T (*lines)[kLine<T>], int count, const int* listed, const T* from,
                           uint32_t stride, bool once) const {
    constexpr int kWidth = kWidest<T>;
    const unsigned own = threadIdx.x / 8, part = threadIdx.x % 8;
    int rows[kMany];
#pragma unroll
    for (int i = 0; i < kMany; ++i) rows[i] = listed[i];
    if constexpr (kWide) {
      const int k = k_ + static_cast<int>(part) * kWidth;
      const bool inside = k < operands_.k;
      const auto to =
          static_cast<uint32_t>(__cvta_generic_to_shared(&lines[own][PlaceOf(own, part) * kWidth]));
#pragma unroll
      for (int i = 0; i < kMany; ++i) {
        const bool wanted = inside && static_cast<int>(own) + i * kCopied < count;
        CopyPart(to + i * kCopied * 128, RowAt(from + k, rows[i], stride), wanted, once);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kMany; ++i) {
        const T* const row = RowAt(from, rows[i], stride);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {  // neighbouring threads take neighbouring elements
          const unsigned element = j * 8 + part;
          const int k = k_ + static_cast<int>(element);
          const bool wanted = k < operands_.k && static_cast<int>(own) + i * kCopied < count;
          T& to =
              lines[own + i * kCopied][PlaceOf(own, element / kWidth) * kWidth + element % kWidth];
          if constexpr (sizeof(T) >= 4) {
            __pipeline_memcpy_async(&to, row + (wanted ? k : 0), sizeof(T), wanted ? 0 : sizeof(T));
          } else {
            to = wanted ? row[k] : T{};
          }
        }
      }
    }
  }

  /// 16 bytes, or zeros.
  __device__ void CopyPart(uint32_t to, const T* from, bool wanted, bool once) const {
    const int bytes = wanted ? 16 : 0;
    if (once) {
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                   "l"(from), "r"(bytes), "l"(once_)
                   : "memory");
    } else {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                   : "memory");
    }
  }

  const Panels& s_;
  const SddmmOperands<T>& operands_;
  Shared<T, kRows>& shared_;
  const int64_t end_;  // no piece goes beyond it
  int64_t begin_, piece_end_ = 0;
  int panel_, panel_behind_ = 0;
  int list_ = 0, k_ = 0;
  Found next_;
  uint64_t once_;  // how L2 is to treat what is not read again
};

/// Of the slots of a piece, number SlotOf(i, half) is this thread's with tile i, for the rows
/// 8 * n + lane % 4 * 2 + r.
__device__ inline int SlotOf(int i, int half) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return static_cast<int>((i * kWarps + warp) * 16 + half * 8 + lane / 4);
}

/// Matrices of 8 rows of 16 bytes: lane l says where row l % 8 of number l / 8 is, and gets word
/// l % 4 of row l / 4 of each.
__device__ inline void LoadMatrices(uint32_t (&words)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}
__device__ inline void LoadMatrices(uint32_t (&words)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(row)
               : "memory");
}

/// The sums of slots SlotOf(i, half) with rows 8 * n + lane % 4 * 2 + r, at [i][n][half][r].
template <typename T, int kRows>
struct Sums {
  SumOf<T> at[kTiles][kRows / 8][2][2];

  /// The products of a line of `count` slots.
  __device__ void Add(const Stage<T, kRows>& stage, int count) {
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int kSteps = 4;  // tiles along a line
    // Lane l says where row l % 8 of a matrix is: of slots two with their first part of a step,
    // then with their second one, of rows of A one with each.
    const uint32_t first_slot = AddressOf(stage.slots[warp * 16 + lane % 16]);
    const uint32_t first_row = AddressOf(stage.rows[lane % 8]);
    uint32_t rows[kRows / 8][kSteps][2];
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const unsigned place = stage.PlaceOf(lane, 2 * k + lane / 8 % 2);
        LoadMatrices(rows[n][k], first_row + n * 8 * 128 + place * 16);
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if ((i * kWarps + static_cast<int>(warp)) * 16 >= count) break;
      // Tensor cores cut what they add instead of rounding it: over all of K the cuts would add up.
      float parts[kRows / 8][2][2] = {}, rests[kRows / 8][2][2] = {};
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const unsigned place = stage.PlaceOf(lane, 2 * k + lane / 16);
        uint32_t slots[4];
        LoadMatrices(slots, first_slot + i * kWarps * 16 * 128 + place * 16);
#pragma unroll
        for (int n = 0; n < kRows / 8; ++n) Multiply(parts[n], rests[n], slots, rows[n][k]);
      }
      AddParts(i, parts);
      if constexpr (std::is_same_v<T, float>) AddParts(i, rests);
    }
  }

 private:
  __device__ static uint32_t AddressOf(const T (&line)[kLine<T>]) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(line));
  }
  __device__ void AddParts(int i, const float (&parts)[kRows / 8][2][2]) {
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int r = 0; r < 2; ++r) at[i][n][half][r] += parts[n][half][r];
      }
    }
  }
  /// f32 as the instruction cuts it and what is left of it; of products of two rests nothing is
  /// taken. 2^-20 of a product can be lost.
  __device__ static void Multiply(float (&sums)[2][2], float (&rests)[2][2],
                                  const uint32_t (&slots)[4], const uint32_t (&row)[2]) {
    if constexpr (std::is_same_v<T, float>) {
      float upper[4], rest[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        upper[i] = __uint_as_float(slots[i]);
        rest[i] = upper[i] - __uint_as_float(slots[i] & 0xffffe000u);
      }
      const Tf32Parts<2> b({__uint_as_float(row[0]), __uint_as_float(row[1])});
      MultiplyTile(rests[0][0], rests[0][1], rests[1][0], rests[1][1], rest, b.upper);
      MultiplyTile(sums[0][0], sums[0][1], sums[1][0], sums[1][1], upper, b.upper);
      MultiplyTile(rests[0][0], rests[0][1], rests[1][0], rests[1][1], upper, b.rest);
    } else {
      MultiplyTile<T>(sums[0][0], sums[0][1], sums[1][0], sums[1][1], slots, row);
    }
  }
};

template <int kRows>
struct Sums<double, kRows> {
  double at[kTiles][kRows / 8][2][2];

  __device__ void Add(const Stage<double, kRows>& stage, int count) {
    const unsigned warp = threadIdx.x / 32, own = threadIdx.x % 32 / 4;
    LinePart rows[kRows / 8];
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) rows[n] = Read(stage.rows[n * 8 + own]);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if ((i * kWarps + static_cast<int>(warp)) * 16 >= count) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const LinePart slot = Read(stage.slots[SlotOf(i, half)]);
#pragma unroll
        for (int n = 0; n < kRows / 8; ++n) {
          auto& sums = at[i][n][half];
#pragma unroll
          for (int k = 0; k < 4; ++k) MultiplyTile(sums[0], sums[1], slot.at[k], rows[n].at[k]);
        }
      }
    }
  }

 private:
  /// Which elements of a line a lane takes does not matter, as long as A and B agree.
  struct LinePart {
    double at[4];
  };
  __device__ static LinePart Read(const double (&line)[kLine<double>]) {
    LinePart part;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned place =
          Stage<double, kRows>::PlaceOf(threadIdx.x / 4, threadIdx.x % 4 + 4 * i);
      const auto two = LoadVector<double, 2>(line + place * 2);
      part.at[2 * i] = two.at[0];
      part.at[2 * i + 1] = two.at[1];
    }
    return part;
  }
};

/// Computes once more, without splitting, those of a thread's results of a piece that are not
/// finite: splitting may have made them so.
template <int kRows>
__device__ inline void Mend(const Panels& s, const SddmmOperands<float>& operands,
                            const Task& task) {
#pragma unroll 1
  for (int j = 0; j < kTiles * 2; ++j) {
    const int i = SlotOf(j / 2, j % 2);
    if (i >= task.count) break;
    const int64_t slot = task.begin + i;
    const float* const b = operands.b.data + s.columns[slot] * operands.b.stride;
#pragma unroll 1
    for (int n = 0; n < kRows / 4; ++n) {
      const int r = n / 2 * 8 + static_cast<int>(threadIdx.x % 4 * 2) + n % 2;
      if ((s.masks[slot] >> r & 1) == 0) continue;
      if (isfinite(operands.out[operands.source32[slot * kRows + r]])) continue;
      const int row = task.panel * kRows + r;
      const float* const a =
          operands.a.data + (s.order == nullptr ? row : s.order[row]) * operands.a.stride;
      float dot = 0;
      for (int k = 0; k < operands.k; ++k) dot += a[k] * b[k];
      operands.Store(slot * kRows + r, dot);
    }
  }
}

/// Two neighbours that are read once, or anything unless `wanted`: without a branch, which would
/// keep the loads behind it waiting.
template <typename T>
__device__ inline Vector<T, 2> LoadPairIf(int wanted, const T* from) {
  Vector<T, 2> pair;
  if constexpr (sizeof(pair) == 4) {
    uint32_t bits;
    asm("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.cs.b32 %0, [%1]; }"
        : "=r"(bits)
        : "l"(from), "r"(wanted));
    __builtin_memcpy(&pair, &bits, sizeof(pair));
  } else if constexpr (sizeof(pair) == 8) {
    uint2 bits;
    asm("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p ld.global.cs.v2.b32 {%0, %1}, [%2]; }"
        : "=r"(bits.x), "=r"(bits.y)
        : "l"(from), "r"(wanted));
    __builtin_memcpy(&pair, &bits, sizeof(pair));
  } else {
    double2 bits;
    asm("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p ld.global.cs.v2.f64 {%0, %1}, [%2]; }"
        : "=d"(bits.x), "=d"(bits.y)
        : "l"(from), "r"(wanted));
    __builtin_memcpy(&pair, &bits, sizeof(pair));
  }
  return pair;
}

/// The same for one result.
template <typename T>
__device__ inline void StoreIf(int wanted, T* to, T element) {
  if constexpr (sizeof(T) == 2) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.cs.b16 [%1], %2; }" ::"r"(wanted),
        "l"(to), "h"(element.bits)
        : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.cs.f32 [%1], %2; }" ::"r"(wanted),
        "l"(to), "f"(element)
        : "memory");
  } else {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.cs.f64 [%1], %2; }" ::"r"(wanted),
        "l"(to), "d"(element)
        : "memory");
  }
}

/// What is known of a thread's slots, SlotOf(i, half), and of pairs of their places: those of rows
/// 8 * n + lane % 4 * 2 and the next.
template <typename T, int kRows>
class Places {
 public:
  /// Asks for what the slots' rows are.
  __device__ void Begin(const Panels& s, const Task& task) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        masks_[i][half] = __ldcs(s.masks + task.begin + min(SlotOf(i, half), task.count - 1));
      }
    }
  }

  /// Asks for values, and where results belong.
  __device__ void Fetch(const SddmmOperands<T>& operands, const Task& task) {
    const int first_row = static_cast<int>(threadIdx.x % 4 * 2);
    const int64_t first = (task.begin + SlotOf(0, 0)) * kRows + first_row;
    const int32_t* const first_target = operands.source32 + first;
    const T* const first_value = operands.values + first;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        masks_[i][half] = SlotOf(i, half) < task.count ? masks_[i][half] >> first_row : 0;
#pragma unroll
        for (int n = 0; n < kRows / 8; ++n) {
          const int place = (i * kWarps * 16 + half * 8) * kRows + 8 * n;
          const int wanted = masks_[i][half] & 3 << 8 * n;
          targets_[i][half][n] = LoadPairIf(wanted, first_target + place);
          if (operands.values != nullptr) {
            values_[i][half][n] = LoadPairIf(wanted, first_value + place);
          }
        }
      }
    }
  }

  /// Puts results where they belong.
  __device__ void Emit(const Panels& s, const SddmmOperands<T>& operands, const Task& task,
                       const Sums<T, kRows>& sums) const {
    SumOf<T> zero = 0;  // or NaN
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < kRows / 8; ++n) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            SumOf<T> result = sums.at[i][n][half][r];
            if constexpr (std::is_same_v<T, float>) zero = fmaf(result, 0.0F, zero);
            if (operands.values != nullptr) result *= Widen(values_[i][half][n].at[r]);
            StoreIf(masks_[i][half] & 1 << (8 * n + r), operands.out + targets_[i][half][n].at[r],
                    Narrow<T>(result));
          }
        }
      }
    }
    if constexpr (std::is_same_v<T, float>) {
      if (zero != 0) Mend<kRows>(s, operands, task);
    }
  }

 private:
  int masks_[kTiles][2];
  Vector<int32_t, 2> targets_[kTiles][2][kRows / 8];
  Vector<T, 2> values_[kTiles][2][kRows / 8];
};

template <bool kWide, typename T, int kRows>
__global__ void __launch_bounds__(kWarps * 32, kBlocks)
    PanelDots(const Panels s, const SddmmOperands<T> operands) {
  extern __shared__ int4 memory[];
  auto& shared = *reinterpret_cast<Shared<T, kRows>*>(memory);
  const int64_t begin = blockIdx.x * s.share;
  if (begin >= s.slots.items) return;
  Lines<kWide, T, kRows> lines(s, operands, shared, begin);
  __syncthreads();
  Task task = lines.Copy(shared.stages[0]);
  __syncthreads();
  Task next = lines.Copy(shared.stages[1]);
  Sums<T, kRows> sums;
  Places<T, kRows> places;
  for (int stage = 0; task.count > 0; stage ^= 1) {
    if (task.first) {
      sums = {};
      places.Begin(s, task);
    }
    __pipeline_wait_prior(1);
    __syncthreads();
    sums.Add(shared.stages[stage], task.count);
    if (task.last) places.Fetch(operands, task);
    __syncthreads();
    const Task after_next = lines.Copy(shared.stages[stage]);
    if (task.last) places.Emit(s, operands, task, sums);
    task = next;
    next = after_next;
  }
}

/// How many blocks of this kernel the device runs at once.
template <typename Kernel>
int ResidentBlocks(Kernel kernel, size_t shared_bytes) {
  int device = 0, multiprocessors = 0, blocks = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                                            device) == cudaSuccess &&
                     cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kWarps * 32,
                                                                   shared_bytes) == cudaSuccess;
  return known ? std::max(multiprocessors * blocks, 1) : 1;
}

template <bool kWide, typename T, int kRows>
absl::Status Launch(cudaStream_t stream, Panels s, const SddmmOperands<T>& operands) {
  constexpr int kBytes = sizeof(Shared<T, kRows>);
  constexpr int64_t kLeastShare = kWarps * 16;
  const auto kernel = PanelDots<kWide, T, kRows>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  }
  if (error != cudaSuccess) return ToStatus(error, "reserving shared memory");
  static const int resident = ResidentBlocks(kernel, kBytes);
  s.share = std::max((s.slots.items + resident - 1) / resident, kLeastShare);
  // Of a large product more blocks than run at once, each of some 0.2 ms: what has a higher
  // priority starts when blocks end.
  constexpr int64_t kShareBytes = int64_t{1} << 20, kEnoughPieces = 8 * kSlots;
  const int64_t row_bytes = std::max<int64_t>(operands.k, 1) * static_cast<int64_t>(sizeof(T));
  s.share = std::min(s.share, std::max(kShareBytes / row_bytes, kEnoughPieces));
  const auto blocks = static_cast<unsigned>((s.slots.items + s.share - 1) / s.share);
  kernel<<<blocks, kWarps * 32, kBytes, stream>>>(s, operands);
  return ToStatus(cudaGetLastError(), "starting SDDMM");
}

template <typename T, int kRows>
absl::Status RunOf(const Context& context, const SddmmArguments& arguments) {
  if (arguments.layout.nnz == 0) return absl::OkStatus();
  const RowPanelsView view = ViewRowPanels(arguments.layout);
  const bool swapped = arguments.layout.transposed;
  const absl::StatusOr<uint32_t> a_stride = RowStride<T>(swapped ? arguments.b : arguments.a);
  if (!a_stride.ok()) return a_stride.status();
  const absl::StatusOr<uint32_t> b_stride = RowStride<T>(swapped ? arguments.a : arguments.b);
  if (!b_stride.ok()) return b_stride.status();
  const Panels s = {
      .slots = {view.panel_offsets.data(), static_cast<int>(view.panels()), view.slots()},
      .columns = view.panel_columns.data(),
      .masks = view.row_masks.data(),
      .order = view.row_order.empty() ? nullptr : view.row_order.data(),
      .rows = static_cast<int>(view.rows),
      .a_stride = *a_stride,
      .b_stride = *b_stride,
      .share = 0};
  const SddmmOperands<T> operands(arguments);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  return operands.wide() ? Launch<true, T, kRows>(stream, s, operands)
                         : Launch<false, T, kRows>(stream, s, operands);
}

absl::Status Run(const Context& context, const Problem& problem, const SddmmArguments& arguments) {
  const bool high = arguments.layout.Parameter("rows") == 16;
  return VisitFloat(problem.type, [&]<typename T>(T) {
    return high ? RunOf<T, 16>(context, arguments) : RunOf<T, 8>(context, arguments);
  });
}

bool Supports(const Problem& problem, const Layout& layout) {
  if (layout.kind != kRowPanels) return false;
  const int64_t rows = layout.Parameter("rows");
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSddmm &&
         (rows == 8 || rows == 16) && layout.rows <= kMost && layout.nnz <= kMost &&
         problem.k <= kMost && (problem.type != ElementType::kF32 || problem.k >= kLeastFloatK);
}

}  // namespace

SddmmKernel RowPanelsStagedSddmm() {
  return {.name = "cuda.row_panels.staged_dots",
          .layout_kind = kRowPanels,
          .device = DeviceKind::kCuda,
          .deterministic = true,
          .supports = Supports,
          .workspace = NoWorkspace,
          .run = Run,
          .accuracy = TensorCoreAccuracy};
}

}  // namespace sparsed::cuda
