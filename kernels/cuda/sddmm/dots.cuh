// What the SDDMM kernels share: their arguments as the device sees them, rows fetched a vector a
// lane, and sums of several nonzeros reduced over the lanes together.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/lanes.cuh"
#include "kernels/kernel_table.h"

namespace sparsed::cuda {

constexpr unsigned kWarp = 0xffffffffu;  // all lanes

/// O = S .* (A * B^T); where the layout is of S^T, A and B have changed places.
template <typename T>
struct SddmmOperands {
  const T* values;          // by slot; null: 1
  const int32_t* source32;  // the result of each slot; at most one of the two is there, none: the
  const int64_t* source64;  // slots are in CSR's order
  const T* a;
  const T* b;
  T* out;
  int64_t a_stride, b_stride;  // bytes from row to row
  int64_t k;
  bool wide;   // rows can be read 16 bytes at a time
  bool small;  // 32 bits hold any byte's offset in A or B

  SddmmOperands(const SddmmArguments& arguments)
      : values(static_cast<const T*>(arguments.values)),
        source32(nullptr),
        source64(nullptr),
        out(static_cast<T*>(arguments.out)),
        k(arguments.a.cols) {
    const bool swapped = arguments.layout.transposed;
    const ConstDense& left = swapped ? arguments.b : arguments.a;
    const ConstDense& right = swapped ? arguments.a : arguments.b;
    a = static_cast<const T*>(left.data);
    b = static_cast<const T*>(right.data);
    a_stride = left.leading_dimension * static_cast<int64_t>(sizeof(T));
    b_stride = right.leading_dimension * static_cast<int64_t>(sizeof(T));
    wide = RowsAreWide<T>(left.data, left.leading_dimension, k) &&
           RowsAreWide<T>(right.data, right.leading_dimension, k);
    small = std::max(left.rows * a_stride, right.rows * b_stride) <= int64_t{0xffffffff};
    if (const Array* source = arguments.layout.Find(kValueSource); source != nullptr) {
      if (source->type == ElementType::kI32) {
        source32 = source->As<int32_t>().data();
      } else {
        source64 = source->As<int64_t>().data();
      }
    }
  }

  /// Puts a dot product where it belongs. Values and results go by once: they leave the cache to
  /// the operands.
  __device__ void Store(int64_t slot, T dot) const {
    if (values != nullptr) dot *= __ldcs(values + slot);
    const int64_t target = source32 != nullptr   ? __ldcs(source32 + slot)
                           : source64 != nullptr ? __ldcs(source64 + slot)
                                                 : slot;
    __stcs(out + target, dot);
  }
};

/// The vector at `offset` bytes. One base for all lanes and short offsets need no 64-bit
/// arithmetic.
template <typename T, int kWidth, typename Offset>
__device__ inline Vector<T, kWidth> Load(const T* base, Offset offset) {
  return *reinterpret_cast<const Vector<T, kWidth>*>(reinterpret_cast<const char*>(base) + offset);
}

template <typename T, int kWidth>
__device__ inline void AddProducts(T& sum, const Vector<T, kWidth>& a, const Vector<T, kWidth>& b) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sum += a.at[j] * b.at[j];
}

/// Sums each of `sums` over a group of kGroup lanes, kCount <= kGroup: of lane l the result is
/// that of number l / (kGroup / kCount). A transposing butterfly: each step halves the sums that a
/// lane still holds.
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

}  // namespace sparsed::cuda
