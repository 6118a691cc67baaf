// What the SDDMM kernels share. A warp knows 32 nonzeros, one a lane, in an order in which
// neighbours often share the row of one operand, the lead: A where the nonzeros go row by row, B
// where they go column by column. Groups of 2 to 32 lanes, 16 bytes each, cover K or as much of it
// as they can. A group has up to eight dot products in flight at once; they are reduced together by
// a transposing butterfly, and leave each lane with the sum of one nonzero.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/sddmm/row_search.cuh"
#include "kernels/kernel_table.h"

namespace sparsed::cuda {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 4;  // 32 warps: at most 64 registers a thread
/// Rows, K and the like are counted in 32 bits.
constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - 256;

template <typename T>
struct Operand {
  const T* data;
  int64_t stride;  // elements from row to row
};

/// O = S .* (A * B^T); where the layout is of S^T, A and B have changed places.
template <typename T>
struct SddmmOperands {
  Operand<T> a, b;
  const T* values;          // by slot; null: 1
  const int32_t* source32;  // the result of each slot; at most one of the two is there, none: the
  const int64_t* source64;  // slots are in CSR's order
  T* out;
  int k;
  bool small;  // 32 bits hold the offset of any byte of A or B
  bool add;    // to what the results are

  explicit SddmmOperands(const SddmmArguments& arguments)
      : values(static_cast<const T*>(arguments.values)),
        source32(nullptr),
        source64(nullptr),
        out(static_cast<T*>(arguments.out)),
        k(static_cast<int>(arguments.a.cols)),
        add(false) {
    const bool swapped = arguments.layout.transposed;
    const ConstDense& left = swapped ? arguments.b : arguments.a;
    const ConstDense& right = swapped ? arguments.a : arguments.b;
    a = {static_cast<const T*>(left.data), left.leading_dimension};
    b = {static_cast<const T*>(right.data), right.leading_dimension};
    small = std::max(left.rows * left.leading_dimension, right.rows * right.leading_dimension) <=
            std::numeric_limits<uint32_t>::max() / static_cast<int64_t>(sizeof(T));
    if (const Array* source = arguments.layout.Find(kValueSource); source != nullptr) {
      if (source->type == ElementType::kI32) {
        source32 = source->As<int32_t>().data();
      } else {
        source64 = source->As<int64_t>().data();
      }
    }
  }

  int64_t row_bytes() const { return k * static_cast<int64_t>(sizeof(T)); }
  bool wide() const {
    return RowsAreWide<T>(a.data, a.stride, k) && RowsAreWide<T>(b.data, b.stride, k);
  }

  /// Of the slots from `first` on, counted from 0; the layout has a value source.
  SddmmOperands From(int64_t first) const {
    SddmmOperands from = *this;
    if (values != nullptr) from.values += first;
    if (source32 != nullptr) from.source32 += first;
    if (source64 != nullptr) from.source64 += first;
    return from;
  }

  /// Puts a dot product where it belongs, or nowhere if its slot is padding. Values and results go
  /// by once: they leave the cache to the operands.
  __device__ void Store(int64_t slot, SumOf<T> dot) const {
    const int64_t target = source32 != nullptr   ? __ldcs(source32 + slot)
                           : source64 != nullptr ? __ldcs(source64 + slot)
                                                 : slot;
    if (values != nullptr) dot *= Widen(ReadOnce(values + slot));
    if (target < 0) return;
    if (add) dot += Widen(out[target]);
    WriteOnce(out + target, Narrow<T>(dot));
  }
};

/// Sums each of `sums` over a group of kGroup lanes, kCount <= kGroup: of lane l the result is
/// that of number l / (kGroup / kCount). Each step halves the sums that a lane still holds.
template <int kGroup, int kCount, typename T>
__device__ inline T ReduceTogether(T (&sums)[kCount]) {
  static_assert(kCount <= kGroup);
  const int lane = threadIdx.x % kGroup;
#pragma unroll
  for (int count = kCount / 2, offset = kGroup / 2; count > 0; count /= 2, offset /= 2) {
    const bool upper = (lane & offset) != 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const T mine = upper ? sums[i + count] : sums[i];
      const T theirs = upper ? sums[i] : sums[i + count];
      sums[i] = mine + __shfl_xor_sync(kWarp, theirs, offset);
    }
  }
#pragma unroll
  for (int offset = kGroup / kCount / 2; offset > 0; offset /= 2) {
    sums[0] += __shfl_xor_sync(kWarp, sums[0], offset);
  }
  return sums[0];
}

/// How the lanes of a warp share K and the nonzeros of a step: a group of kGroup lanes, 16 bytes
/// each, covers K or goes over it. Offset: uint32_t where it holds that of any byte.
template <typename T, int kGroupOf, bool kAlignedIs, typename OffsetOf>
struct Shape {
  using Offset = OffsetOf;
  static constexpr bool kAligned = kAlignedIs;  // rows to 16 bytes
  /// Apart from one another, elements take a register each.
  static constexpr int kWidth = kWidest<std::conditional_t<kAligned, T, SumOf<T>>>;
  static constexpr int kGroup = kGroupOf;
  static constexpr int kTogether = kGroup < 8 ? kGroup : 8;  // nonzeros of a group in a batch
  static constexpr int kBatch = kTogether * (32 / kGroup);   // nonzeros of the warp in a batch
  static constexpr int kBatches = kStep / kBatch;
  static constexpr int kSharers = kGroup / kTogether;  // lanes that get one sum
  // Rows of `other` loaded at once, and of each operand where the lead changes: as many as 64
  // registers take.
  static constexpr int kLoads = kTogether > 4 && sizeof(T) == 8 ? 4 : kTogether;
  static constexpr int kPairs = (kTogether + 1) / 2;

  /// The batch whose sum this lane keeps, and the nonzero of the step that it is of.
  __device__ static int BatchKept() { return threadIdx.x % kSharers; }
  __device__ static int Kept() {
    const int lane = threadIdx.x % 32;
    return BatchKept() * kBatch + lane / kGroup * kTogether + lane % kGroup / kSharers;
  }
};

/// The elements of a row that a lane takes in one step of K: kWidth in sequence in one load, or,
/// where rows are not aligned, each in a load of its own, a group's lanes in sequence.
template <typename S, typename T>
struct Elements {
  using Part = Vector<T, S::kWidth>;
  typename S::Offset first;  // bytes from the beginning of the row
  int own_k, k_end;
  bool inside;  // or loads zeros for what is not

  __device__ Elements(int k, int k_end)
      : own_k(k + static_cast<int>(threadIdx.x) % S::kGroup * (S::kAligned ? S::kWidth : 1)),
        k_end(k_end),
        inside(!S::kAligned || own_k < k_end) {
    // Behind the end, an aligned lane loads what others load, and adds nothing.
    first = static_cast<typename S::Offset>((inside ? own_k : k) * sizeof(T));
  }
  __device__ Part Load(const T* data, typename S::Offset row) const {
    const char* const from = reinterpret_cast<const char*>(data) + (row + first);
    if constexpr (S::kAligned) {
      return LoadVector<T, S::kWidth>(reinterpret_cast<const T*>(from));
    } else {
      Part part;
#pragma unroll
      for (int j = 0; j < S::kWidth; ++j) {
        part.at[j] =
            own_k + j * S::kGroup < k_end ? reinterpret_cast<const T*>(from)[j * S::kGroup] : T{};
      }
      return part;
    }
  }
  __device__ void AddProducts(SumOf<T>& sum, const Part& a, const Part& b) const {
#pragma unroll
    for (int j = 0; j < S::kWidth; ++j) sum += Widen(a.at[j]) * Widen(b.at[j]);
  }
};

/// Dot products of batches `part`, `part` + `parts`, ... of the 32 nonzeros of a warp, `count` of
/// them real: returns that of nonzero S::Kept(). `lead_row` and `other_row` are of this lane's
/// nonzero, also behind `count`; bit i of `starts` says that nonzero i has another lead row than
/// the one before.
template <typename S, typename T>
__device__ inline SumOf<T> DotsOfStep(const Operand<T>& lead, const Operand<T>& other, int k_end,
                                      uint32_t lead_row, uint32_t other_row, unsigned starts,
                                      int count, int part, int parts) {
  using Offset = typename S::Offset;
  using Part = Vector<T, S::kWidth>;
  const Offset own_lead = lead_row * static_cast<Offset>(lead.stride * sizeof(T));
  const Offset own_other = other_row * static_cast<Offset>(other.stride * sizeof(T));
  const int lane = threadIdx.x % 32;
  SumOf<T> kept = 0;
#pragma unroll 1
  for (int batch = part; batch < S::kBatches; batch += parts) {
    if (batch * S::kBatch >= count) break;
    const int first = batch * S::kBatch + lane / S::kGroup * S::kTogether;
    const bool shared = __all_sync(kWarp, (starts >> first & ((1u << S::kTogether) - 2)) == 0);
    SumOf<T> sums[S::kTogether] = {};
#pragma unroll 1
    for (int k = 0; k < k_end; k += S::kGroup * S::kWidth) {
      const Elements<S, T> elements(k, k_end);
      const auto load_lead = [&](int i) {
        return elements.Load(lead.data, __shfl_sync(kWarp, own_lead, first + i));
      };
      const auto load_other = [&](int i) {
        return elements.Load(other.data, __shfl_sync(kWarp, own_other, first + i));
      };
      if (shared) {
        const Part a = load_lead(0);
#pragma unroll
        for (int j = 0; j < S::kTogether; j += S::kLoads) {
          Part b[S::kLoads];
#pragma unroll
          for (int i = 0; i < S::kLoads; ++i) b[i] = load_other(j + i);
          if (elements.inside) {
#pragma unroll
            for (int i = 0; i < S::kLoads; ++i) elements.AddProducts(sums[j + i], a, b[i]);
          }
        }
      } else {
#pragma unroll
        for (int j = 0; j < S::kTogether; j += S::kPairs) {
          Part a[S::kPairs], b[S::kPairs];
#pragma unroll
          for (int i = 0; i < S::kPairs; ++i) {
            b[i] = load_other(j + i);
            a[i] = load_lead(j + i);
          }
          if (elements.inside) {
#pragma unroll
            for (int i = 0; i < S::kPairs; ++i) elements.AddProducts(sums[j + i], a[i], b[i]);
          }
        }
      }
    }
    const SumOf<T> sum = ReduceTogether<S::kGroup>(sums);
    if (batch == S::BatchKept()) kept = sum;
  }
  return kept;
}

/// Calls launch(shape) with the Shape for these operands.
template <typename T, typename Launch>
void WithShape(const SddmmOperands<T>& operands, Launch launch) {
  const auto with = [&]<bool kAligned>() {
    constexpr int kWidth = Shape<T, 32, kAligned, uint32_t>::kWidth;
    const int k = operands.k;
    if (!operands.small) return launch(Shape<T, 32, kAligned, uint64_t>());
    if (k <= 2 * kWidth) return launch(Shape<T, 2, kAligned, uint32_t>());
    if (k <= 4 * kWidth) return launch(Shape<T, 4, kAligned, uint32_t>());
    if (k <= 8 * kWidth) return launch(Shape<T, 8, kAligned, uint32_t>());
    if (k <= 16 * kWidth) return launch(Shape<T, 16, kAligned, uint32_t>());
    launch(Shape<T, 32, kAligned, uint32_t>());
  };
  if (operands.wide()) {
    with.template operator()<true>();
  } else {
    with.template operator()<false>();
  }
}

/// What is worked on at one time.
struct Schedule {
  int64_t warp_bytes;   // of the other operand that a warp is to fetch
  int most_steps;       // that a warp takes
  int64_t split_bytes;  // longer rows are shared out to several warps
  int slab;             // of K, one after another
};
/// Little, so that it is in L2 together with what is next: rows that share columns may be far
/// apart.
constexpr Schedule kFar = {32768, 4, 512, kMost};
/// More for each warp, which finds the columns that its last rows had in L1.
constexpr Schedule kNear = {98304, 8, kMost, kMost};
/// As kFar, for operands that are much larger than L2.
constexpr Schedule kSlabs = {32768, 4, 512, 128};

/// How the steps are shared out: 2^part_bits warps go over the same `nonzeros`, a multiple of
/// kStep, and share out the batches of each step.
struct Shares {
  int64_t count;  // nonzeros in all
  int nonzeros;
  int part_bits;

  int blocks() const {
    const int64_t warps = ((count + nonzeros - 1) / nonzeros) << part_bits;
    return static_cast<int>((warps + kThreads / 32 - 1) / (kThreads / 32));
  }
  __device__ int64_t begin() const { return (warp() >> part_bits) * nonzeros; }
  __device__ int steps() const {
    return static_cast<int>((min(int64_t{nonzeros}, count - begin()) + kStep - 1) / kStep);
  }
  __device__ int parts() const { return 1 << part_bits; }
  __device__ int part() const { return static_cast<int>(warp()) & (parts() - 1); }

 private:
  __device__ static int64_t warp() {
    return static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  }
};

template <typename S>
Shares SharesOf(const Schedule& schedule, int64_t nonzeros, int64_t row_bytes) {
  constexpr int64_t kWarps = 16384;  // fill a GPU several times over
  Shares shares = {nonzeros, kStep, 0};
  while ((schedule.split_bytes << shares.part_bits) < row_bytes &&
         (1 << shares.part_bits) < S::kBatches) {
    ++shares.part_bits;
  }
  const int64_t steps = std::min(nonzeros / (kWarps * kStep),
                                 schedule.warp_bytes / (std::max<int64_t>(row_bytes, 1) * kStep));
  shares.nonzeros *= static_cast<int>(std::clamp<int64_t>(steps, 1, schedule.most_steps));
  return shares;
}

/// Calls `run` with the operands' columns in column blocks of kSlab, one after another; each adds
/// to what the others left. Once if K is 0: it writes zeros.
template <int kSlab, typename T, typename Run>
void ForEachSlab(const SddmmOperands<T>& operands, Run run) {
  SddmmOperands<T> slab = operands;
  for (int k = 0; k == 0 || k < operands.k; k += kSlab) {
    slab.a.data = operands.a.data + k;
    slab.b.data = operands.b.data + k;
    slab.k = std::min(kSlab, operands.k - k);
    slab.add = k > 0;
    run(slab);
  }
}

}  // namespace sparsed::cuda
