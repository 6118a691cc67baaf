// Blocks of a row's nonzeros, heads side by side: dot products, scores, exponentials, weighted
// sums. Numbers of a block are kept head by head, kBlock apart. Included once for every instruction
// set, after hwy/highway.h.

#if defined(SPARSED_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSED_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_
#undef SPARSED_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_
#else
#define SPARSED_KERNELS_CPU_ATTENTION_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hwy/aligned_allocator.h"
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/add_lanes-inl.h"
#include "kernels/cpu/attention/rows.h"
#include "kernels/cpu/stored-inl.h"
#include "kernels/cpu/tail-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Nonzeros of a block: what is gathered for it stays in the second cache, what is computed of it
/// in the first.
constexpr int64_t kBlock = 64;
/// Nonzeros ahead that prefetching looks.
constexpr int64_t kNonzerosAhead = 8;

/// The number of vectors of D that a head has, the last one masked if `kMasked`.
template <class D>
constexpr int64_t VectorsOf(int64_t width) {
  constexpr int64_t kLanes = hn::MaxLanes(D());
  return (width + kLanes - 1) / kLanes;
}

/// Calls f(d, masked) with the narrowest vector that holds a head, or the widest, and whether the
/// last one of a head is masked (std::bool_constant). Without masks the vector divides the head.
template <typename Wide, size_t kLanes = hn::MaxLanes(hn::ScalableTag<Wide>()), typename F>
HWY_INLINE void WithVector(int64_t width, F&& f) {
  constexpr bool kHalves = kLanes * sizeof(Wide) > 16;
  if constexpr (kNativeMasks) {
    if constexpr (kHalves) {
      if (width <= static_cast<int64_t>(kLanes / 2)) {
        return WithVector<Wide, kLanes / 2>(width, f);
      }
    }
    if (width % kLanes != 0) return f(hn::CappedTag<Wide, kLanes>(), std::true_type());
  } else if constexpr (kLanes > 1) {
    if (width % kLanes != 0) return WithVector < Wide, kHalves ? kLanes / 2 : 1 > (width, f);
  }
  f(hn::CappedTag<Wide, kLanes>(), std::false_type());
}

/// A row of sums or factors, each head from the beginning of a vector on. Aligned.
template <typename Wide>
class WideRow {
 public:
  WideRow(int64_t heads, int64_t width)
      : size_(static_cast<size_t>(heads * (width + hn::MaxLanes(hn::ScalableTag<Wide>())))),
        data_(hwy::AllocateAligned<Wide>(size_ + 1)) {}
  Wide* data() { return data_.get(); }
  const Wide* data() const { return data_.get(); }
  void Clear() { std::fill_n(data_.get(), size_, Wide(0)); }

 private:
  size_t size_;
  hwy::AlignedFreeUniquePtr<Wide[]> data_;
};

template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadPart(D d, const T* from, bool is_last, const Tail<D>& tail) {
  return is_last ? tail.Load(from) : LoadStored(d, from);
}

/// The row's heads, widened, with zeros behind them.
template <typename T>
void Widen(const HeadRows<T>& rows, int64_t row, int64_t heads, SumOf<T>* to) {
  WithVector<SumOf<T>>(rows.width, [&]<class D, bool kMasked>(D d, std::bool_constant<kMasked>) {
    constexpr int64_t kLanes = hn::MaxLanes(d);
    const int64_t vectors = VectorsOf<D>(rows.width);
    const Tail<D> tail(rows.width - (vectors - 1) * kLanes);
    const T* from = rows.data + row * rows.stride;
    for (int64_t head = 0; head < heads; ++head, from += rows.width) {
      for (int64_t v = 0; v < vectors; ++v, to += kLanes) {
        hn::Store(LoadPart(d, from + v * kLanes, kMasked && v + 1 == vectors, tail), d, to);
      }
    }
  });
}

/// The other way around: each head's `factors` times its sums, zeros where that is 0; rounded.
template <typename T, typename Wide>
void StoreRow(const Wide* sums, const Wide* factors, int64_t heads, int64_t width, T* to) {
  WithVector<Wide>(width, [&]<class D, bool kMasked>(D d, std::bool_constant<kMasked>) {
    constexpr int64_t kLanes = hn::MaxLanes(d);
    const int64_t vectors = VectorsOf<D>(width);
    const Tail<D> tail(width - (vectors - 1) * kLanes);
    for (int64_t head = 0; head < heads; ++head, to += width) {
      const auto factor = hn::Set(d, factors == nullptr ? Wide(1) : factors[head]);
      const auto is_zero = hn::Eq(factor, hn::Zero(d));
      for (int64_t v = 0; v < vectors; ++v, sums += kLanes) {
        const auto product = hn::IfThenZeroElse(is_zero, hn::Mul(hn::Load(d, sums), factor));
        if (kMasked && v + 1 == vectors) {
          tail.Store(product, to + v * kLanes);
        } else {
          StoreRounded(product, d, to + v * kLanes);
        }
      }
    }
  });
}

template <typename T>
HWY_INLINE void PrefetchRow(const HeadRows<T>& rows, int64_t row, int64_t heads) {
  // The processor's adjacent-line prefetcher fetches lines in pairs; the end of a very long row is
  // left to its streaming prefetcher.
  const int64_t bytes =
      std::min<int64_t>(heads * rows.width * static_cast<int64_t>(sizeof(T)), 2048);
  const char* const begin = reinterpret_cast<const char*>(rows.data + row * rows.stride);
  for (int64_t byte = 0; byte < bytes; byte += 128) hwy::Prefetch(begin + byte);
}

/// dots[head][i] = the dot product of the head of `own` (Widen's) and of row columns[i]. Writes up
/// to the next multiple of kSumsAtOnce.
template <typename T>
void DotBlock(const SumOf<T>* own, const HeadRows<T>& rows, const int32_t* columns, int64_t count,
              int64_t heads, SumOf<T>* dots) {
  const int64_t width = rows.width;
  WithVector<SumOf<T>>(width, [&]<class D, bool kMasked>(D d, std::bool_constant<kMasked>) {
    constexpr int64_t kLanes = hn::MaxLanes(d);
    const int64_t whole = width / kLanes * kLanes;
    const Tail<D> tail(width - whole);
    for (int64_t i = 0; i < count; i += kSumsAtOnce) {
      const T* b[kSumsAtOnce];
      for (int64_t k = 0; k < kSumsAtOnce; ++k) {
        b[k] = rows.data + columns[std::min(i + k, count - 1)] * rows.stride;
      }
      const SumOf<T>* a = own;
      for (int64_t head = 0; head < heads; ++head) {
        hn::Vec<D> sums[kSumsAtOnce];
        for (auto& sum : sums) sum = hn::Zero(d);
        for (int64_t j = 0; j < whole; j += kLanes, a += kLanes) {
          const auto factor = hn::Load(d, a);
          HWY_UNROLL(4)
          for (int k = 0; k < kSumsAtOnce; ++k) {
            sums[k] = hn::MulAdd(factor, LoadStored(d, b[k] + j), sums[k]);
          }
        }
        if constexpr (kMasked) {
          const auto factor = hn::Load(d, a);
          HWY_UNROLL(4)
          for (int k = 0; k < kSumsAtOnce; ++k) {
            sums[k] = hn::MulAdd(factor, tail.Load(b[k] + whole), sums[k]);
          }
          a += kLanes;
        }
        SumOf<T>* const to = dots + head * kBlock + i;
        if constexpr (kLanes == 1) {
          for (int k = 0; k < kSumsAtOnce; ++k) to[k] = hn::GetLane(sums[k]);
        } else {
          AddLanes<false>(d, sums, to);
        }
        for (auto& row : b) row += width;
      }
    }
  });
}

/// kVectors vectors of sums, number `first` of the row and on.
template <int kVectors, bool kMasked, class D, typename T, typename Wide = hn::TFromD<D>>
HWY_INLINE void SumSlab(D d, const HeadRows<T>& rows, const int32_t* columns, int64_t count,
                        const Wide* weights, const Wide* factors, int64_t first, Wide* sums) {
  constexpr int64_t kLanes = hn::MaxLanes(D());
  const int64_t vectors = VectorsOf<D>(rows.width);
  const Tail<D> tail(rows.width - (vectors - 1) * kLanes);
  hn::Vec<D> of[kVectors];
  const Wide* weight[kVectors];
  int64_t at[kVectors];
  bool is_last[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const int64_t head = (first + v) / vectors, in_head = (first + v) % vectors;
    weight[v] = weights + head * kBlock;
    at[v] = kMasked ? head * rows.width + in_head * kLanes : (first + v) * kLanes;
    is_last[v] = kMasked && in_head + 1 == vectors;
    of[v] = factors == nullptr
                ? hn::Zero(d)
                : hn::Mul(hn::Set(d, factors[head]), hn::Load(d, sums + (first + v) * kLanes));
  }
  const T* const data = rows.data + (kMasked ? 0 : first * kLanes);
  for (int64_t i = 0; i < count; ++i) {
    const T* const row = data + columns[i] * rows.stride;
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      const auto element =
          kMasked ? LoadPart(d, row + at[v], is_last[v], tail) : LoadStored(d, row + v * kLanes);
      of[v] = hn::MulAdd(hn::Set(d, weight[v][i]), element, of[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) hn::Store(of[v], d, sums + (first + v) * kLanes);
}

/// sums = factors * sums (nothing, if `factors` is null) + the sum over the block of
/// weights[head][i] times the head of row columns[i]. `sums` as in WideRow.
template <typename T>
void SumBlock(const HeadRows<T>& rows, const int32_t* columns, int64_t count, int64_t heads,
              const SumOf<T>* weights, const SumOf<T>* factors, SumOf<T>* sums) {
  WithVector<SumOf<T>>(rows.width, [&]<class D, bool kMasked>(D d, std::bool_constant<kMasked>) {
    const int64_t vectors = heads * VectorsOf<D>(rows.width);
    int64_t first = 0;
    for (; first + 8 <= vectors; first += 8) {
      SumSlab<8, kMasked>(d, rows, columns, count, weights, factors, first, sums);
    }
    if (first + 4 <= vectors) {
      SumSlab<4, kMasked>(d, rows, columns, count, weights, factors, first, sums);
      first += 4;
    }
    if (first + 2 <= vectors) {
      SumSlab<2, kMasked>(d, rows, columns, count, weights, factors, first, sums);
      first += 2;
    }
    if (first < vectors) {
      SumSlab<1, kMasked>(d, rows, columns, count, weights, factors, first, sums);
    }
  });
}

/// e to the power of x, which is not much above 0; of NaN NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOf(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

/// The scores of blocks of a row.
template <typename T>
class BlockScores {
 public:
  using Wide = SumOf<T>;
  using D = hn::ScalableTag<Wide>;
  using V = hn::Vec<D>;
  static constexpr int64_t kLanes = hn::MaxLanes(D());

  explicit BlockScores(const ScoreJob<T>& job)
      : job_(job),
        own_(job.heads, job.own.width),
        sums_(job.heads, kBlock),
        bias_(job.bias_cols, kBlock) {}

  /// The rows that the next blocks are of.
  void SetRow(int64_t row) {
    if (job_.kind == EdgeScores::Kind::kDot) {
      Widen(job_.own, row, job_.heads, own_.data());
    } else {
      const T* const from = job_.own.data + row * job_.own.stride;
      for (int64_t h = 0; h < job_.heads; ++h) own_.data()[h] = static_cast<Wide>(from[h]);
    }
  }
  /// Nonzeros [first, first + count) of the row.
  void SetBlock(int64_t first, int64_t count) {
    const int32_t* const columns = job_.columns + first;
    if (job_.kind == EdgeScores::Kind::kDot) {
      DotBlock(own_.data(), job_.other, columns, count, job_.heads, sums_.data());
    } else {
      for (int64_t i = 0; i < count; ++i) {
        const T* const from = job_.other.data + columns[i] * job_.other.stride;
        for (int64_t h = 0; h < job_.heads; ++h) {
          sums_.data()[h * kBlock + i] = static_cast<Wide>(from[h]);
        }
      }
    }
    if (job_.bias == nullptr) return;
    for (int64_t i = 0; i < count; ++i) {
      const T* const from = job_.bias + job_.source[first + i] * job_.bias_stride;
      for (int64_t h = 0; h < job_.bias_cols; ++h) {
        bias_.data()[h * kBlock + i] = static_cast<Wide>(from[h]);
      }
    }
  }

  /// The scores of nonzeros [i, i + kLanes) of the block, and what a change of the sum or the dot
  /// product changes them by. Nothing sensible beyond the block.
  HWY_INLINE V At(int64_t head, int64_t i, V& slope) const {
    const D d;
    V score = hn::Load(d, sums_.data() + head * kBlock + i);
    if (job_.kind == EdgeScores::Kind::kDot) {
      slope = hn::Set(d, job_.scale);
    } else {
      score = hn::Add(score, hn::Set(d, own_.data()[head]));
      slope =
          hn::IfThenElse(hn::Gt(score, hn::Zero(d)), hn::Set(d, Wide(1)), hn::Set(d, job_.slope));
    }
    if (job_.bias == nullptr) return hn::Mul(score, slope);
    const int64_t of_head = job_.bias_cols > 1 ? head * kBlock : 0;
    return hn::MulAdd(score, slope, hn::Load(d, bias_.data() + of_head + i));
  }

 private:
  const ScoreJob<T>& job_;
  WideRow<Wide> own_;
  WideRow<Wide> sums_, bias_;  ///< of a block
};

/// Fetches rows of what is gathered for the block and a few nonzeros after it.
template <typename T>
class Fetcher {
 public:
  explicit Fetcher(const ScoreJob<T>& job) : job_(job) {}
  HWY_INLINE void Fetch(int64_t first, int64_t count, const HeadRows<T>& values) {
    if (!job_.prefetch) return;
    const int64_t end = std::min(first + count + kNonzerosAhead, job_.nnz);
    for (fetched_ = std::max(fetched_, first); fetched_ < end; ++fetched_) {
      PrefetchRow(job_.other, job_.columns[fetched_], job_.heads);
      PrefetchRow(values, job_.columns[fetched_], job_.heads);
    }
  }

 private:
  const ScoreJob<T>& job_;
  int64_t fetched_ = 0;
};

/// Calls run(row, first, last, piece) for the pieces of rows from `begin` to `end`; `piece` is null
/// for whole rows.
template <typename Wide, typename Run>
HWY_INLINE void ForEachRow(const int64_t* row_offsets, Cut begin, Cut end, Wide* head, Wide* tail,
                           Run&& run) {
  int64_t row = begin.row;
  if (begin.nonzero > row_offsets[row]) {
    run(row, begin.nonzero, std::min(end.nonzero, row_offsets[row + 1]), head);
    ++row;
  }
  for (; row < end.row; ++row) run(row, row_offsets[row], row_offsets[row + 1], nullptr);
  if (row == end.row && end.nonzero > row_offsets[row]) {
    run(row, row_offsets[row], end.nonzero, tail);
  }
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
