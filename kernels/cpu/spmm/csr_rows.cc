// The inner loops of "cpu.csr.row_balanced": rows of C = alpha * S * B + beta * C.
//
// A row's column block of up to 8 vectors of C stays in registers across the row's nonzeros: each
// nonzero costs a broadcast and a multiply-add with a vector of B for each vector of the column
// block, and C is touched once (register blocking of the output row, as in FusedMM, Rahman et al.,
// IPDPS 2021). Wider products take several column blocks of nearly equal width over the same rows,
// whose indices and values stay in the L1 cache. Narrow column blocks sum alternate nonzeros apart,
// to hide the latency of the multiply-add. A width that is no multiple of the vector ends in a
// masked vector; where masked memory access is not native, in single columns.
#include "kernels/cpu/spmm/csr_rows.h"

#include <algorithm>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/spmm/csr_vector.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/spmm/csr_rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/spmm/store-inl.h"
#include "kernels/cpu/stored-inl.h"
#include "kernels/cpu/tail-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kMaxVectors = 8;

/// Vectors of one column block; the last one may be masked. T is the type of what is stored.
template <class D, int kVectors, bool kMasked, typename T>
struct Slab {
  using V = hn::Vec<D>;
  using Sum = hn::TFromD<D>;
  static constexpr size_t kBytes = kVectors * hn::MaxLanes(D()) * sizeof(T);
  /// Nonzeros ahead: enough to cover the latency of memory, not so many that rows are evicted
  /// before they are used.
  static constexpr int64_t kAhead = kBytes <= 256 ? 16 : 8;
  /// Sums kept apart, so that about 8 multiply-adds are in flight.
  static constexpr int kChains = kVectors == 1 ? 4 : kVectors == 2 ? 2 : 1;

  static HWY_INLINE void Prefetch(const T* b) {
    // The processor's adjacent-line prefetcher fetches lines in pairs.
    for (size_t byte = 0; byte < kBytes; byte += 128) {
      hwy::Prefetch(reinterpret_cast<const char*>(b) + byte);
    }
  }

  static HWY_INLINE void Add(T value, const T* HWY_RESTRICT b, Tail<D> tail, V (&sum)[kVectors]) {
    const D d;
    const V scale = hn::Set(d, static_cast<Sum>(value));
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      const T* const at = b + v * hn::Lanes(d);
      const bool masked = kMasked && v + 1 == kVectors;
      sum[v] = hn::MulAdd(scale, masked ? tail.Load(at) : LoadStored(d, at), sum[v]);
    }
  }

  static HWY_INLINE void StoreSums(Sum* HWY_RESTRICT to, Tail<D> tail, const V (&sum)[kVectors]) {
    const D d;
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      if (kMasked && v + 1 == kVectors) {
        tail.Store(sum[v], to + v * hn::Lanes(d));
      } else {
        hn::StoreU(sum[v], d, to + v * hn::Lanes(d));
      }
    }
  }

  template <bool kPrefetch>
  static HWY_INLINE void Nonzero(const CsrProduct<T>& product, const T* b, int64_t p, Tail<D> tail,
                                 V (&sum)[kVectors]) {
    if constexpr (kPrefetch) {
      Prefetch(b + product.column_indices[std::min(p + kAhead, product.nnz - 1)] * product.ldb);
    }
    Add(product.values[p], b + product.column_indices[p] * product.ldb, tail, sum);
  }

  /// Columns from `column` on of rows of C.
  template <bool kPrefetch>
  static void Rows(const CsrProduct<T>& product, RowRange rows, int64_t first, int64_t last,
                   int64_t column, Tail<D> tail) {
    const D d;
    const T* const b = product.b + column;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      V sums[kChains][kVectors];
      HWY_UNROLL(4)
      for (int chain = 0; chain < kChains; ++chain) {
        HWY_UNROLL(8)
        for (int v = 0; v < kVectors; ++v) sums[chain][v] = hn::Zero(d);
      }
      int64_t p = std::max(product.row_offsets[row], first);
      const int64_t end = std::min(product.row_offsets[row + 1], last);
      for (; p + kChains <= end; p += kChains) {
        HWY_UNROLL(4)
        for (int chain = 0; chain < kChains; ++chain) {
          Nonzero<kPrefetch>(product, b, p + chain, tail, sums[chain]);
        }
      }
      for (; p < end; ++p) Nonzero<kPrefetch>(product, b, p, tail, sums[0]);
      HWY_UNROLL(4)
      for (int chain = 1; chain < kChains; ++chain) {
        HWY_UNROLL(8)
        for (int v = 0; v < kVectors; ++v) sums[0][v] = hn::Add(sums[0][v], sums[chain][v]);
      }
      if constexpr (kIsHalf<T>) {
        if (product.sums != nullptr) {
          StoreSums(product.sums + column, tail, sums[0]);
          continue;
        }
      }
      const int64_t c_row = product.row_order == nullptr ? row : product.row_order[row];
      StoreScaled<kMasked>(D(), product, product.c + c_row * product.ldc + column, tail, sums[0]);
    }
  }
};

template <class D, int kVectors, bool kMasked, typename T>
void RunSlab(const CsrProduct<T>& product, RowRange rows, int64_t first, int64_t last,
             int64_t column, Tail<D> tail) {
  using S = Slab<D, kVectors, kMasked, T>;
  if (product.prefetch) {
    S::template Rows<true>(product, rows, first, last, column, tail);
  } else {
    S::template Rows<false>(product, rows, first, last, column, tail);
  }
}

/// Calls RunSlab for a number of vectors that is known at run time only.
template <class D, bool kMasked, int kVectors = kMaxVectors, typename T>
void RunSlabOf(int64_t vectors, const CsrProduct<T>& product, RowRange rows, int64_t first,
               int64_t last, int64_t column, Tail<D> tail) {
  if (vectors == kVectors) {
    RunSlab<D, kVectors, kMasked>(product, rows, first, last, column, tail);
  } else if constexpr (kVectors > 1) {
    RunSlabOf<D, kMasked, kVectors - 1>(vectors, product, rows, first, last, column, tail);
  }
}

/// Products narrower than a vector, in the narrowest vector that holds a row.
template <size_t kLanes, typename T>
void MultiplyNarrow(const CsrProduct<T>& product, RowRange rows, int64_t first, int64_t last) {
  using D = hn::CappedTag<SumOf<T>, kLanes>;
  if constexpr (kLanes > 1) {
    if (product.k <= static_cast<int64_t>(kLanes / 2)) {
      return MultiplyNarrow<kLanes / 2>(product, rows, first, last);
    }
  }
  if (product.k == static_cast<int64_t>(kLanes)) {
    RunSlab<D, 1, false>(product, rows, first, last, 0, Tail<D>(0));
  } else if constexpr (kLanes > 2) {
    RunSlab<D, 1, true>(product, rows, first, last, 0, Tail<D>(product.k));
  }
}

template <typename T>
void MultiplyRowsOf(const CsrProduct<T>& product, RowRange rows, int64_t first, int64_t last) {
  using D = hn::ScalableTag<SumOf<T>>;
  constexpr int64_t kLanes = hn::MaxLanes(D());
  if (kNativeMasks && product.k < kLanes) {
    MultiplyNarrow<kLanes>(product, rows, first, last);
    return;
  }
  const int64_t whole = product.k / kLanes;
  const int64_t rest = product.k % kLanes;
  const int64_t vectors = whole + (kNativeMasks && rest != 0);
  const int64_t slabs = (vectors + kMaxVectors - 1) / kMaxVectors;
  int64_t column = 0;
  for (int64_t slab = 0; slab < slabs; ++slab) {
    const int64_t width = vectors / slabs + (slab < vectors % slabs);
    if (kNativeMasks && rest != 0 && slab + 1 == slabs) {
      RunSlabOf<D, true>(width, product, rows, first, last, column, Tail<D>(rest));
    } else {
      RunSlabOf<D, false>(width, product, rows, first, last, column, Tail<D>(0));
    }
    column += width * kLanes;
  }
  if (!kNativeMasks && rest != 0) {
    using One = hn::CappedTag<SumOf<T>, 1>;
    RunSlabOf<One, false>(rest, product, rows, first, last, column, Tail<One>(0));
  }
}

void MultiplyRowsF32(const CsrProduct<float>& product, RowRange rows, int64_t first, int64_t last) {
  MultiplyRowsOf(product, rows, first, last);
}
void MultiplyRowsF64(const CsrProduct<double>& product, RowRange rows, int64_t first,
                     int64_t last) {
  MultiplyRowsOf(product, rows, first, last);
}
void MultiplyRowsF16(const CsrProduct<Float16>& product, RowRange rows, int64_t first,
                     int64_t last) {
  MultiplyRowsOf(product, rows, first, last);
}
void MultiplyRowsBF16(const CsrProduct<BFloat16>& product, RowRange rows, int64_t first,
                      int64_t last) {
  MultiplyRowsOf(product, rows, first, last);
}

}  // namespace
}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {

HWY_EXPORT(MultiplyRowsF32);
HWY_EXPORT(MultiplyRowsF64);
HWY_EXPORT(MultiplyRowsF16);
HWY_EXPORT(MultiplyRowsBF16);

void MultiplyRows(const CsrProduct<float>& product, RowRange rows, int64_t first, int64_t last) {
  if (product.k == 1) return MultiplyVector(product, rows, first, last);
  HWY_DYNAMIC_DISPATCH(MultiplyRowsF32)(product, rows, first, last);
  // Streamed stores are ordered with nothing else.
  if (product.stream) hwy::FlushStream();
}

void MultiplyRows(const CsrProduct<double>& product, RowRange rows, int64_t first, int64_t last) {
  if (product.k == 1) return MultiplyVector(product, rows, first, last);
  HWY_DYNAMIC_DISPATCH(MultiplyRowsF64)(product, rows, first, last);
  if (product.stream) hwy::FlushStream();
}

void MultiplyRows(const CsrProduct<Float16>& product, RowRange rows, int64_t first, int64_t last) {
  if (product.k == 1) return MultiplyVector(product, rows, first, last);
  HWY_DYNAMIC_DISPATCH(MultiplyRowsF16)(product, rows, first, last);
}

void MultiplyRows(const CsrProduct<BFloat16>& product, RowRange rows, int64_t first, int64_t last) {
  if (product.k == 1) return MultiplyVector(product, rows, first, last);
  HWY_DYNAMIC_DISPATCH(MultiplyRowsBF16)(product, rows, first, last);
}

}  // namespace sparsed::cpu
#endif  // HWY_ONCE
