// The inner loops of "cpu.csr.dot": O = S .* (A * B^T) over consecutive nonzeros of CSR.
//
// Four nonzeros of a row at once: their products with A's row are independent sums, which hides the
// latency of the multiply-add, and A is loaded once for the four. The four vectors of sums are then
// added up together, by adding interleaved halves, for about the cost of one (the transposing
// reduction of a 4 x 4 block). A width that is no multiple of the vector ends in a masked vector;
// where masked memory access is not native, in a scalar loop.
#include "kernels/cpu/sddmm/csr_dots.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sddmm/csr_dots.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/add_lanes-inl.h"
#include "kernels/cpu/stored-inl.h"
#include "kernels/cpu/tail-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Nonzeros at once.
constexpr int kGroup = kSumsAtOnce;
/// Nonzeros ahead that prefetching looks.
constexpr int64_t kAhead = 8;

/// Fetches a row of A or B.
template <typename T>
HWY_INLINE void Prefetch(const T* row, int64_t k) {
  // The processor's adjacent-line prefetcher fetches lines in pairs; the end of a very long row is
  // left to its streaming prefetcher.
  const int64_t bytes = std::min<int64_t>(k * static_cast<int64_t>(sizeof(T)), 2048);
  for (int64_t byte = 0; byte < bytes; byte += 128) {
    hwy::Prefetch(reinterpret_cast<const char*>(row) + byte);
  }
}

/// out[i] = dot(a, B[columns[i]]) for i < kCount, += if kAdd; out has room for kGroup.
template <int kCount, bool kAdd, typename T>
HWY_INLINE void DotGroup(const CsrDots<T>& dots, const T* HWY_RESTRICT a, const int32_t* columns,
                         SumOf<T>* HWY_RESTRICT out) {
  const hn::ScalableTag<SumOf<T>> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const T* b[kCount];
  HWY_UNROLL(4)
  for (int i = 0; i < kCount; ++i) b[i] = dots.b + columns[i] * dots.ldb;
  V sums[kGroup];
  HWY_UNROLL(4)
  for (int i = 0; i < kGroup; ++i) sums[i] = hn::Zero(d);
  int64_t j = 0;
  for (; j + kLanes <= dots.k; j += kLanes) {
    const V a_vector = LoadStored(d, a + j);
    HWY_UNROLL(4)
    for (int i = 0; i < kCount; ++i) {
      sums[i] = hn::MulAdd(a_vector, LoadStored(d, b[i] + j), sums[i]);
    }
  }
  if (kNativeMasks && j < dots.k) {
    const Tail<decltype(d)> tail(dots.k - j);
    const V a_vector = tail.Load(a + j);
    HWY_UNROLL(4)
    for (int i = 0; i < kCount; ++i) {
      sums[i] = hn::MulAdd(a_vector, tail.Load(b[i] + j), sums[i]);
    }
    j = dots.k;
  }
  AddLanes<kAdd>(d, sums, out);
  for (; j < dots.k; ++j) {
    const auto a_element = static_cast<SumOf<T>>(a[j]);
    for (int i = 0; i < kCount; ++i) out[i] += a_element * static_cast<SumOf<T>>(b[i][j]);
  }
}

/// As DotGroup for a count that is known at run time only; touches no more than `count`.
template <bool kAdd, typename T>
HWY_INLINE void DotRest(const CsrDots<T>& dots, const T* a, const int32_t* columns, int64_t count,
                        SumOf<T>* out) {
  SumOf<T> group[kGroup];
  if (count == 1) {
    DotGroup<1, false>(dots, a, columns, group);
  } else if (count == 2) {
    DotGroup<2, false>(dots, a, columns, group);
  } else {
    DotGroup<3, false>(dots, a, columns, group);
  }
  for (int64_t i = 0; i < count; ++i) out[i] = kAdd ? out[i] + group[i] : group[i];
}

/// Returns the row that the last nonzero is in.
template <bool kAdd, typename T>
int64_t Dots(const CsrDots<T>& dots, int64_t row, int64_t first, int64_t last, SumOf<T>* out) {
  const int32_t* const columns = dots.column_indices;
  int64_t fetched = first;
  for (int64_t p = first; p < last; ++row) {
    const T* const a = dots.a + (dots.row_order == nullptr ? row : dots.row_order[row]) * dots.lda;
    const int64_t end = std::min(dots.row_offsets[row + 1], last);
    if (dots.prefetch && end < last) {
      const int64_t next = dots.row_order == nullptr ? row + 1 : dots.row_order[row + 1];
      Prefetch(dots.a + next * dots.lda, dots.k);
    }
    while (p < end) {
      const int64_t count = std::min<int64_t>(end - p, kGroup);
      if (dots.prefetch) {
        const int64_t fetch_end = std::min(p + count + kAhead, dots.nnz);
        for (; fetched < fetch_end; ++fetched) {
          Prefetch(dots.b + columns[fetched] * dots.ldb, dots.k);
        }
      }
      if (count == kGroup) {
        DotGroup<kGroup, kAdd>(dots, a, columns + p, out + (p - first));
      } else {
        DotRest<kAdd>(dots, a, columns + p, count, out + (p - first));
      }
      p += count;
    }
  }
  return row - 1;
}

/// out = sums, scaled if `values` is not null, rounded.
template <typename T>
void StoreScaled(const float* sums, const T* values, int64_t count, T* out) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    auto sum = hn::LoadU(d, sums + i);
    if (values != nullptr) sum = hn::Mul(sum, LoadStored(d, values + i));
    StoreRounded(sum, d, out + i);
  }
  for (; i < count; ++i) {
    out[i] = T(values == nullptr ? sums[i] : sums[i] * static_cast<float>(values[i]));
  }
}

template <typename T>
void DotNonzerosOf(const CsrDots<T>& dots, int64_t row, int64_t first, int64_t last, T* out) {
  if constexpr (kIsHalf<T>) {
    constexpr int64_t kAtOnce = 256;
    float sums[kAtOnce];
    for (int64_t p = first; p < last; p += kAtOnce) {
      const int64_t end = std::min(p + kAtOnce, last);
      row = Dots<false>(dots, row, p, end, sums);
      StoreScaled(sums, dots.values == nullptr ? nullptr : dots.values + p, end - p,
                  out + (p - first));
    }
  } else {
    if (dots.add) {
      Dots<true>(dots, row, first, last, out);
    } else {
      Dots<false>(dots, row, first, last, out);
    }
    if (dots.values == nullptr) return;
    for (int64_t p = first; p < last; ++p) out[p - first] *= dots.values[p];
  }
}

void DotNonzerosF32(const CsrDots<float>& dots, int64_t row, int64_t first, int64_t last,
                    float* out) {
  DotNonzerosOf(dots, row, first, last, out);
}
void DotNonzerosF64(const CsrDots<double>& dots, int64_t row, int64_t first, int64_t last,
                    double* out) {
  DotNonzerosOf(dots, row, first, last, out);
}
void DotNonzerosF16(const CsrDots<Float16>& dots, int64_t row, int64_t first, int64_t last,
                    Float16* out) {
  DotNonzerosOf(dots, row, first, last, out);
}
void DotNonzerosBF16(const CsrDots<BFloat16>& dots, int64_t row, int64_t first, int64_t last,
                     BFloat16* out) {
  DotNonzerosOf(dots, row, first, last, out);
}

}  // namespace
}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {

HWY_EXPORT(DotNonzerosF32);
HWY_EXPORT(DotNonzerosF64);
HWY_EXPORT(DotNonzerosF16);
HWY_EXPORT(DotNonzerosBF16);

void DotNonzeros(const CsrDots<float>& dots, int64_t row, int64_t first, int64_t last, float* out) {
  HWY_DYNAMIC_DISPATCH(DotNonzerosF32)(dots, row, first, last, out);
}

void DotNonzeros(const CsrDots<double>& dots, int64_t row, int64_t first, int64_t last,
                 double* out) {
  HWY_DYNAMIC_DISPATCH(DotNonzerosF64)(dots, row, first, last, out);
}

void DotNonzeros(const CsrDots<Float16>& dots, int64_t row, int64_t first, int64_t last,
                 Float16* out) {
  HWY_DYNAMIC_DISPATCH(DotNonzerosF16)(dots, row, first, last, out);
}

void DotNonzeros(const CsrDots<BFloat16>& dots, int64_t row, int64_t first, int64_t last,
                 BFloat16* out) {
  HWY_DYNAMIC_DISPATCH(DotNonzerosBF16)(dots, row, first, last, out);
}

}  // namespace sparsed::cpu
#endif  // HWY_ONCE
