// A lane's part of a dense row: 16 bytes' worth of elements, read and written at once where rows
// are aligned; elsewhere element by element, neighbouring lanes taking neighbouring elements.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "kernels/cuda/lanes.cuh"

namespace sparsed::cuda {

/// Rows cut into column blocks of kColumns columns, kGroup lanes and kPieces times 16 bytes a lane
/// for each. Elements stay as they are stored until they are multiplied.
template <typename T, bool kAligned, int kGroup, int kPieces = 1>
struct Slice {
  using Element = T;
  static constexpr bool kIsAligned = kAligned;
  /// Apart from one another, elements take a register each.
  static constexpr int kWidth = kPieces * kWidest<std::conditional_t<kAligned, T, SumOf<T>>>;
  static constexpr int kColumns = kGroup * kWidth;

  T at[kWidth] = {};

  /// Column of a lane's first element in its column block.
  __device__ static int64_t First(int slab, int lane) {
    return static_cast<int64_t>(slab) * kColumns + (kAligned ? lane * kWidest<T> : lane);
  }
  /// From the first element to element j.
  __device__ static constexpr int Offset(int j) {
    if constexpr (!kAligned) return j * kGroup;
    return j / kWidest<T> * kWidest<T> * kGroup + j % kWidest<T>;
  }
  /// How many of a lane's elements, from column `first` on, a row of k columns has.
  __device__ static int Count(int64_t k, int64_t first) {
    if constexpr (kAligned && kPieces == 1) return first < k ? kWidth : 0;
    int count = 0;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) count += first + Offset(j) < k;
    return count;
  }

  /// Through the read-only path; `row` points at the lane's first element. The others are 0.
  __device__ static Slice Load(const T* row, int count) {
    Slice slice;
    if constexpr (kAligned) {
#pragma unroll
      for (int j = 0; j < kWidth; j += kWidest<T>) {
        if (kPieces > 1 && j >= count) break;
        if constexpr (sizeof(T) == 4) {
          const float4 loaded = __ldg(reinterpret_cast<const float4*>(row + Offset(j)));
          slice.at[j] = loaded.x, slice.at[j + 1] = loaded.y;
          slice.at[j + 2] = loaded.z, slice.at[j + 3] = loaded.w;
        } else if constexpr (sizeof(T) == 8) {
          const double2 loaded = __ldg(reinterpret_cast<const double2*>(row + Offset(j)));
          slice.at[j] = loaded.x, slice.at[j + 1] = loaded.y;
        } else {
          const uint4 loaded = __ldg(reinterpret_cast<const uint4*>(row + Offset(j)));
          __builtin_memcpy(slice.at + j, &loaded, sizeof(loaded));
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (j < count) slice.at[j] = ReadOnly(row + Offset(j));
      }
    }
    return slice;
  }
};

/// The sums of a lane's part of a row of C.
template <typename Slice>
struct SliceSum {
  using T = typename Slice::Element;
  using Sum = SumOf<T>;
  static constexpr int kWidth = Slice::kWidth;

  Sum at[kWidth] = {};

  __device__ void Add(Sum scale, const Slice& other) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) at[j] += scale * Widen(other.at[j]);
  }
  __device__ void Add(const SliceSum& other) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) at[j] += other.at[j];
  }
  /// What the lane has that is `distance` away, as this has its: of all lanes of the warp.
  __device__ void AddFrom(int distance) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) at[j] += __shfl_xor_sync(0xffffffffu, at[j], distance);
  }
  __device__ void Clear() {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) at[j] = 0;
  }
  template <typename Out>
  __device__ void AddRow(const Out* row, int count) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (j < count) at[j] += Widen(row[Slice::Offset(j)]);
    }
  }
  /// By how many there are, if any.
  __device__ void Divide(int64_t length) {
    const Sum divisor = static_cast<Sum>(max(length, int64_t{1}));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) at[j] /= divisor;
  }
  /// row = alpha * this + beta * row; with beta == 0 the row is not read. Out: T or Sum.
  template <typename Out>
  __device__ void Emit(Out* row, int count, Sum alpha, Sum beta) const {
    Sum scaled[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) scaled[j] = alpha * at[j];
    if (beta != Sum(0)) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (j < count) scaled[j] += beta * Widen(row[Slice::Offset(j)]);
      }
    }
    Store(scaled, row, count);
  }

 private:
  /// Without staying in the caches for long: results are not read again soon.
  template <typename Out>
  __device__ static void Store(const Sum (&sums)[kWidth], Out* row, int count) {
    if constexpr (Slice::kIsAligned) {
#pragma unroll
      for (int j = 0; j < kWidth; j += kWidest<Out>) {
        if (j >= count) break;
        Out* const to = row + Slice::Offset(j);
        if constexpr (sizeof(Out) == 4) {
          __stcs(reinterpret_cast<float4*>(to),
                 make_float4(sums[j], sums[j + 1], sums[j + 2], sums[j + 3]));
        } else if constexpr (sizeof(Out) == 8) {
          __stcs(reinterpret_cast<double2*>(to), make_double2(sums[j], sums[j + 1]));
        } else {
          Vector<Out, kWidest<Out>> narrow;
#pragma unroll
          for (int i = 0; i < kWidest<Out>; ++i) narrow.at[i] = Narrow<Out>(sums[j + i]);
          uint4 stored;
          __builtin_memcpy(&stored, &narrow, sizeof(stored));
          __stcs(reinterpret_cast<uint4*>(to), stored);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (j < count) WriteOnce(row + Slice::Offset(j), Narrow<Out>(sums[j]));
      }
    }
  }
};

/// Bytes from one row to the next, if 32 bits hold them: addresses are then one instruction.
template <typename T>
absl::StatusOr<uint32_t> RowStride(const ConstDense& dense) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max() / sizeof(T);
  if (dense.leading_dimension > kMost) {
    return absl::InvalidArgumentError("the operand's leading dimension, " +
                                      std::to_string(dense.leading_dimension) +
                                      ", is too large for this kernel");
  }
  return static_cast<uint32_t>(dense.leading_dimension * sizeof(T));
}

template <typename T>
__device__ inline const T* RowAt(const T* base, int32_t row, uint32_t stride) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(base) +
                                    static_cast<uint64_t>(static_cast<uint32_t>(row)) * stride);
}

/// max, but of a NaN with anything NaN.
__device__ inline float Greater(float a, float b) {
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
}
__device__ inline double Greater(double a, double b) { return !(a <= b) && b == b ? a : b; }

/// The greatest products of a lane's part of a row of C.
template <typename Slice>
struct SliceBest : SliceSum<Slice> {
  using Sum = SumOf<typename Slice::Element>;
  using SliceSum<Slice>::at, SliceSum<Slice>::kWidth;

  __device__ SliceBest() {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) at[j] = -static_cast<Sum>(INFINITY);
  }
  __device__ void Add(Sum scale, const Slice& other) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) at[j] = Greater(scale * Widen(other.at[j]), at[j]);
  }
  __device__ void Add(const SliceSum<Slice>& other) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) at[j] = Greater(other.at[j], at[j]);
  }
  __device__ void AddFrom(int distance) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      at[j] = Greater(__shfl_xor_sync(0xffffffffu, at[j], distance), at[j]);
    }
  }
  template <typename Out>
  __device__ void AddRow(const Out* row, int count, Sum sign) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      if (j < count) at[j] = Greater(sign * Widen(row[Slice::Offset(j)]), at[j]);
    }
  }
};

/// S's values as they are.
template <typename T>
struct PlainValues {
  const T* at;
  __device__ SumOf<T> operator[](int i) const { return Widen(ReadOnly(at + i)); }
};
/// Or ones, times `sign`: the least is the greatest of what is negated.
template <typename T>
struct SignedValues {
  const T* at;
  SumOf<T> sign;
  bool ones;
  __device__ SumOf<T> operator[](int i) const {
    return ones ? sign : sign * Widen(ReadOnly(at + i));
  }
};

/// sum += the products of `count` nonzeros, of which the next is kStep further on; `b` points at
/// the lane's first column. Total: SliceSum or SliceBest; Values: PlainValues or SignedValues.
template <int kInFlight, int kStep, typename Slice, typename Values,
          template <typename> typename Total>
__device__ inline void AddNonzeros(const typename Slice::Element* b, uint32_t b_stride,
                                   const int32_t* columns, Values values, int count, int elements,
                                   Total<Slice>& sum) {
  using Sum = typename Total<Slice>::Sum;
#pragma unroll 1
  for (; count >= kInFlight; count -= kInFlight) {
    Slice rows[kInFlight];
    Sum scales[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      rows[i] = Slice::Load(RowAt(b, __ldg(columns + i * kStep), b_stride), elements);
      scales[i] = values[i * kStep];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) sum.Add(scales[i], rows[i]);
    columns += kInFlight * kStep;
    values.at += kInFlight * kStep;
  }
  if (count <= 0) return;
  Slice rows[kInFlight];
  Sum scales[kInFlight];
#pragma unroll
  for (int i = 0; i + 1 < kInFlight; ++i) {
    scales[i] = Sum(0);
    if (i < count) {
      rows[i] = Slice::Load(RowAt(b, __ldg(columns + i * kStep), b_stride), elements);
      scales[i] = values[i * kStep];
    }
  }
#pragma unroll
  for (int i = 0; i + 1 < kInFlight; ++i) {
    // Sums take the others along: there they are zeros.
    if (!std::is_same_v<Total<Slice>, SliceSum<Slice>> && i >= count) break;
    sum.Add(scales[i], rows[i]);
  }
}

}  // namespace sparsed::cuda
