// A lane's part of a dense row: 16 bytes' worth of elements, read and written at once where rows
// are aligned; elsewhere element by element, neighbouring lanes taking neighbouring elements.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/lanes.cuh"

namespace sparsed::cuda {

/// Rows cut into slabs of kColumns columns, kGroup lanes and kPieces times 16 bytes a lane for
/// each.
template <typename T, bool kAlignedOf, int kGroup, int kPieces = 1>
struct Slice {
  using Element = T;
  static constexpr bool kAligned = kAlignedOf;
  static constexpr int kWidth = kPieces * kWidest<T>;
  static constexpr int kColumns = kGroup * kWidth;

  T at[kWidth] = {};

  /// Column of a lane's first element in its slab.
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
        } else {
          const double2 loaded = __ldg(reinterpret_cast<const double2*>(row + Offset(j)));
          slice.at[j] = loaded.x, slice.at[j + 1] = loaded.y;
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (j < count) slice.at[j] = __ldg(row + Offset(j));
      }
    }
    return slice;
  }
  /// Without staying in the caches for long: results are not read again soon.
  __device__ void Store(T* row, int count) const {
    if constexpr (kAligned) {
#pragma unroll
      for (int j = 0; j < kWidth; j += kWidest<T>) {
        if (j >= count) break;
        if constexpr (sizeof(T) == 4) {
          __stcs(reinterpret_cast<float4*>(row + Offset(j)),
                 make_float4(at[j], at[j + 1], at[j + 2], at[j + 3]));
        } else {
          __stcs(reinterpret_cast<double2*>(row + Offset(j)), make_double2(at[j], at[j + 1]));
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (j < count) __stcs(row + Offset(j), at[j]);
      }
    }
  }
  __device__ void Add(T scale, const Slice& other) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) at[j] += scale * other.at[j];
  }
  /// row = alpha * this + beta * row; with beta == 0 the row is not read.
  __device__ void Emit(T* row, int count, T alpha, T beta) const {
    Slice result;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) result.at[j] = alpha * at[j];
    if (beta != T(0)) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if (j < count) result.at[j] += beta * row[Offset(j)];
      }
    }
    result.Store(row, count);
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

/// sum += the products of `count` nonzeros, of which the next is kStep further on; `b` points at
/// the lane's first column.
template <int kInFlight, int kStep, typename Slice>
__device__ inline void AddNonzeros(const typename Slice::Element* b, uint32_t b_stride,
                                   const int32_t* columns, const typename Slice::Element* values,
                                   int count, int elements, Slice& sum) {
  using T = typename Slice::Element;
#pragma unroll 1
  for (; count >= kInFlight; count -= kInFlight) {
    Slice rows[kInFlight];
    T scales[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      rows[i] = Slice::Load(RowAt(b, __ldg(columns + i * kStep), b_stride), elements);
      scales[i] = __ldg(values + i * kStep);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) sum.Add(scales[i], rows[i]);
    columns += kInFlight * kStep;
    values += kInFlight * kStep;
  }
  if (count <= 0) return;
  Slice rows[kInFlight];
  T scales[kInFlight];
#pragma unroll
  for (int i = 0; i + 1 < kInFlight; ++i) {
    scales[i] = T(0);
    if (i < count) {
      rows[i] = Slice::Load(RowAt(b, __ldg(columns + i * kStep), b_stride), elements);
      scales[i] = __ldg(values + i * kStep);
    }
  }
#pragma unroll
  for (int i = 0; i + 1 < kInFlight; ++i) sum.Add(scales[i], rows[i]);
}

}  // namespace sparsed::cuda
