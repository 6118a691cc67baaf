// The inner loops of "cpu.csr.scatter": C = alpha * S^T * B + beta * C from the rows of S.
//
// A row of B, times alpha, stays in registers while it is added, times each value, to the rows of C
// (of sums, where C is of a type that is only stored) that the row's nonzeros name. Nothing waits
// for a sum but one to the same row of C, so there is no latency to hide; rows of C are fetched
// ahead instead.
#include "kernels/cpu/spmm/csr_scatter.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/spmm/csr_scatter.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/stored-inl.h"
#include "kernels/cpu/tail-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kMaxVectors = 8;
/// Nonzeros ahead that prefetching looks.
constexpr int64_t kAhead = 8;

/// `kVectors` vectors of C's columns from `column` on; the last one may be masked.
template <class D, int kVectors, bool kMasked, typename T>
void ScatterSlab(const CsrProduct<T>& product, RowRange rows, const Tile& tile, int64_t column,
                 Tail<D> tail) {
  using V = hn::Vec<D>;
  using Sum = hn::TFromD<D>;
  const D d;
  const V alpha = hn::Set(d, product.alpha);
  Sum* const sums = product.sums + column;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int32_t* first = product.column_indices + product.row_offsets[row];
    const int32_t* last = product.column_indices + product.row_offsets[row + 1];
    if (first == last || *first >= tile.last_column || last[-1] < tile.first_column) continue;
    if (*first < tile.first_column) first = std::lower_bound(first, last, tile.first_column);
    if (*first >= tile.last_column) continue;
    const int64_t b_row = product.row_order == nullptr ? row : product.row_order[row];
    const T* const b = product.b + b_row * product.ldb + column;
    V scaled[kVectors];
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      const T* const at = b + v * hn::Lanes(d);
      scaled[v] = hn::Mul(alpha, kMasked && v + 1 == kVectors ? tail.Load(at) : LoadStored(d, at));
    }
    const T* value = product.values + (first - product.column_indices);
    const int32_t* const end = product.column_indices + product.nnz;
    for (; first < last && *first < tile.last_column; ++first, ++value) {
      if (product.prefetch && end - first > kAhead) {
        // In pairs of lines, as the adjacent-line prefetcher does.
        const char* const ahead =
            reinterpret_cast<const char*>(sums + first[kAhead] * product.ld_sums);
        for (size_t byte = 0; byte < kVectors * hn::MaxLanes(d) * sizeof(Sum); byte += 128) {
          hwy::Prefetch(ahead + byte);
        }
      }
      Sum* const sums_row = sums + *first * product.ld_sums;
      const V scale = hn::Set(d, static_cast<Sum>(*value));
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) {
        Sum* const at = sums_row + v * hn::Lanes(d);
        if (kMasked && v + 1 == kVectors) {
          tail.Store(hn::MulAdd(scale, scaled[v], tail.Load(at)), at);
        } else {
          hn::StoreU(hn::MulAdd(scale, scaled[v], hn::LoadU(d, at)), d, at);
        }
      }
    }
  }
}

/// Calls ScatterSlab for a number of vectors that is known at run time only.
template <class D, bool kMasked, int kVectors = kMaxVectors, typename T>
void ScatterSlabOf(int64_t vectors, const CsrProduct<T>& product, RowRange rows, const Tile& tile,
                   int64_t column, Tail<D> tail) {
  if (vectors == kVectors) {
    ScatterSlab<D, kVectors, kMasked>(product, rows, tile, column, tail);
  } else if constexpr (kVectors > 1) {
    ScatterSlabOf<D, kMasked, kVectors - 1>(vectors, product, rows, tile, column, tail);
  }
}

template <typename T>
void ScatterRowsOf(const CsrProduct<T>& product, RowRange rows, const Tile& tile) {
  using D = hn::ScalableTag<SumOf<T>>;
  constexpr int64_t kLanes = hn::MaxLanes(D());
  int64_t column = 0;
  for (int64_t left; (left = product.k - column) > 0;) {
    const int64_t whole = std::min<int64_t>(left / kLanes, kMaxVectors);
    if (product.k == 1) {
      // A vector would be stored and loaded again, masked, for each nonzero.
      using One = hn::CappedTag<SumOf<T>, 1>;
      ScatterSlab<One, 1, false>(product, rows, tile, 0, Tail<One>(0));
      column = 1;
    } else if (whole > 0) {
      ScatterSlabOf<D, false>(whole, product, rows, tile, column, Tail<D>(0));
      column += whole * kLanes;
    } else if (kNativeMasks) {
      ScatterSlab<D, 1, true>(product, rows, tile, column, Tail<D>(left));
      column += left;
    } else {
      using One = hn::CappedTag<SumOf<T>, 1>;
      ScatterSlabOf<One, false>(left, product, rows, tile, column, Tail<One>(0));
      column += left;
    }
  }
}

template <typename T>
void BeginTileOf(const CsrProduct<T>& product, const Tile& tile) {
  for (int64_t row = tile.first_column; row < tile.last_column; ++row) {
    SumOf<T>* const sums = product.sums + row * product.ld_sums;
    if (kIsHalf<T> || product.beta == 0) {
      std::fill(sums, sums + product.k, SumOf<T>{0});
    } else {
      for (int64_t j = 0; j < product.k; ++j) sums[j] *= product.beta;
    }
  }
}

template <typename T>
void EndTileOf(const CsrProduct<T>& product, const Tile& tile) {
  const hn::ScalableTag<float> d;
  const auto beta = hn::Set(d, product.beta);
  constexpr int64_t kLanes = hn::MaxLanes(d);
  for (int64_t row = tile.first_column; row < tile.last_column; ++row) {
    const float* const sums = product.sums + row * product.ld_sums;
    T* const c = product.c + row * product.ldc;
    int64_t j = 0;
    for (; j + kLanes <= product.k; j += kLanes) {
      auto result = hn::LoadU(d, sums + j);
      if (product.beta != 0) result = hn::MulAdd(beta, LoadStored(d, c + j), result);
      StoreRounded(result, d, c + j);
    }
    for (; j < product.k; ++j) {
      const float old = product.beta == 0 ? 0 : product.beta * static_cast<float>(c[j]);
      c[j] = T(sums[j] + old);
    }
  }
}

void ScatterRowsF32(const CsrProduct<float>& product, RowRange rows, const Tile& tile) {
  ScatterRowsOf(product, rows, tile);
}
void ScatterRowsF64(const CsrProduct<double>& product, RowRange rows, const Tile& tile) {
  ScatterRowsOf(product, rows, tile);
}
void ScatterRowsF16(const CsrProduct<Float16>& product, RowRange rows, const Tile& tile) {
  ScatterRowsOf(product, rows, tile);
}
void ScatterRowsBF16(const CsrProduct<BFloat16>& product, RowRange rows, const Tile& tile) {
  ScatterRowsOf(product, rows, tile);
}
void BeginTileF32(const CsrProduct<float>& product, const Tile& tile) {
  BeginTileOf(product, tile);
}
void BeginTileF64(const CsrProduct<double>& product, const Tile& tile) {
  BeginTileOf(product, tile);
}
void BeginTileF16(const CsrProduct<Float16>& product, const Tile& tile) {
  BeginTileOf(product, tile);
}
void BeginTileBF16(const CsrProduct<BFloat16>& product, const Tile& tile) {
  BeginTileOf(product, tile);
}
void EndTileF16(const CsrProduct<Float16>& product, const Tile& tile) { EndTileOf(product, tile); }
void EndTileBF16(const CsrProduct<BFloat16>& product, const Tile& tile) {
  EndTileOf(product, tile);
}

}  // namespace
}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {

HWY_EXPORT(BeginTileF32);
HWY_EXPORT(ScatterRowsF32);
HWY_EXPORT(BeginTileF64);
HWY_EXPORT(ScatterRowsF64);
HWY_EXPORT(BeginTileF16);
HWY_EXPORT(ScatterRowsF16);
HWY_EXPORT(BeginTileBF16);
HWY_EXPORT(ScatterRowsBF16);
HWY_EXPORT(EndTileF16);
HWY_EXPORT(EndTileBF16);

void BeginTile(const CsrProduct<float>& product, const Tile& tile) {
  HWY_DYNAMIC_DISPATCH(BeginTileF32)(product, tile);
}
void BeginTile(const CsrProduct<double>& product, const Tile& tile) {
  HWY_DYNAMIC_DISPATCH(BeginTileF64)(product, tile);
}
void BeginTile(const CsrProduct<Float16>& product, const Tile& tile) {
  HWY_DYNAMIC_DISPATCH(BeginTileF16)(product, tile);
}
void BeginTile(const CsrProduct<BFloat16>& product, const Tile& tile) {
  HWY_DYNAMIC_DISPATCH(BeginTileBF16)(product, tile);
}
void ScatterRows(const CsrProduct<float>& product, RowRange rows, const Tile& tile) {
  HWY_DYNAMIC_DISPATCH(ScatterRowsF32)(product, rows, tile);
}
void ScatterRows(const CsrProduct<double>& product, RowRange rows, const Tile& tile) {
  HWY_DYNAMIC_DISPATCH(ScatterRowsF64)(product, rows, tile);
}
void ScatterRows(const CsrProduct<Float16>& product, RowRange rows, const Tile& tile) {
  HWY_DYNAMIC_DISPATCH(ScatterRowsF16)(product, rows, tile);
}
void ScatterRows(const CsrProduct<BFloat16>& product, RowRange rows, const Tile& tile) {
  HWY_DYNAMIC_DISPATCH(ScatterRowsBF16)(product, rows, tile);
}
void EndTile(const CsrProduct<Float16>& product, const Tile& tile) {
  HWY_DYNAMIC_DISPATCH(EndTileF16)(product, tile);
}
void EndTile(const CsrProduct<BFloat16>& product, const Tile& tile) {
  HWY_DYNAMIC_DISPATCH(EndTileBF16)(product, tile);
}

}  // namespace sparsed::cpu
#endif  // HWY_ONCE
