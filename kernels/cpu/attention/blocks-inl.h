// Blocks of nonzeros, of one row or of several short ones, heads side by side: dot products,
// scores, exponentials, weighted sums. Numbers of a block are kept head by head, kApart apart.
// Included once for every instruction set, after hwy/highway.h.

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
constexpr int64_t kBlock = 512;
/// With room for a vector that begins in the block.
constexpr int64_t kApart = kBlock + 16;
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

/// The same in `buffer`, or the row itself where that says as much.
template <typename T>
HWY_INLINE const SumOf<T>* Widened(const HeadRows<T>& rows, int64_t row, int64_t heads,
                                   SumOf<T>* buffer) {
  if constexpr (!kIsHalf<T>) {
    if (rows.width % hn::MaxLanes(hn::ScalableTag<T>()) == 0) return rows.data + row * rows.stride;
  }
  Widen(rows, row, heads, buffer);
  return buffer;
}

/// sums = sums * factors, both as Widen leaves them.
template <typename Wide>
void MultiplyParts(const Wide* factors, int64_t heads, int64_t width, Wide* sums) {
  WithVector<Wide>(width, [&]<class D, bool kMasked>(D d, std::bool_constant<kMasked>) {
    constexpr int64_t kLanes = hn::MaxLanes(d);
    const int64_t count = heads * VectorsOf<D>(width) * kLanes;
    for (int64_t i = 0; i < count; i += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, sums + i), hn::Load(d, factors + i)), d, sums + i);
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

/// Nonzeros of which rows are gathered.
struct Gathered {
  const int32_t* columns = nullptr;
  int64_t count = 0;
  /// So many there are from `columns` on of which rows may be fetched ahead of their use; 0: none.
  int64_t fetchable = 0;
};
template <typename T>
Gathered GatheredAt(const ScoreJob<T>& job, int64_t first, int64_t count) {
  return {job.columns + first, count, job.prefetch ? job.nnz - first : 0};
}

/// Fetches `elements` of a row.
template <typename T>
HWY_INLINE void Prefetch(const T* row, int64_t elements) {
  // The processor's adjacent-line prefetcher fetches lines in pairs; the end of a very long row is
  // left to its streaming prefetcher.
  const int64_t bytes = std::min<int64_t>(elements * static_cast<int64_t>(sizeof(T)), 2048);
  for (int64_t byte = 0; byte < bytes; byte += 128) {
    hwy::Prefetch(reinterpret_cast<const char*>(row) + byte);
  }
}

/// Of GATv2's scores: att (Widen's), and the slope of LeakyReLU below 0.
template <typename Wide>
struct Gatv2 {
  const Wide* att;
  Wide slope;
};
/// Products as they are.
struct Plain {};

/// `sum` and what element `own[j]` and the other row's add to it: their product; or att[j] times
/// LeakyReLU of their sum.
template <class D, class V = hn::Vec<D>, typename Wide = hn::TFromD<D>>
HWY_INLINE V AddTerm(D /*d*/, const Plain& /*plain*/, int64_t /*j*/, V own, V other, V sum) {
  return hn::MulAdd(own, other, sum);
}
template <class D, class V = hn::Vec<D>, typename Wide = hn::TFromD<D>>
HWY_INLINE V AddTerm(D d, const Gatv2<Wide>& gatv2, int64_t j, V own, V other, V sum) {
  const V z = hn::Add(own, other);
  const V slope = hn::Set(d, gatv2.slope);
  const V activated = hn::IfThenElse(hn::Gt(z, hn::Zero(d)), z, hn::Mul(slope, z));
  return hn::MulAdd(hn::LoadU(d, gatv2.att + j), activated, sum);
}

/// dots[head][i] = the sum of AddTerm's over the head of `own` (Widen's) and of row columns[i].
/// Writes up to the next multiple of kSumsAtOnce.
template <typename T, typename Terms = Plain>
void DotBlock(const SumOf<T>* own, const HeadRows<T>& rows, const Gathered& gathered, int64_t heads,
              SumOf<T>* dots, const Terms& terms = {}) {
  const int64_t width = rows.width;
  WithVector<SumOf<T>>(width, [&]<class D, bool kMasked>(D d, std::bool_constant<kMasked>) {
    constexpr int64_t kLanes = hn::MaxLanes(d);
    const int64_t whole = width / kLanes * kLanes;
    const Tail<D> tail(width - whole);
    for (int64_t i = 0; i < gathered.count; i += kSumsAtOnce) {
      const int64_t last = std::min<int64_t>(kSumsAtOnce, gathered.count - i) - 1;
      const int64_t fetches = std::min(last + 1, gathered.fetchable - kNonzerosAhead - i);
      for (int64_t k = 0; k < fetches; ++k) {
        Prefetch(rows.data + gathered.columns[i + kNonzerosAhead + k] * rows.stride, heads * width);
      }
      const T* b[kSumsAtOnce];
      for (int64_t k = 0; k < kSumsAtOnce; ++k) {
        b[k] = rows.data + gathered.columns[i + std::min(k, last)] * rows.stride;
      }
      const SumOf<T>* a = own;
      for (int64_t head = 0; head < heads; ++head) {
        hn::Vec<D> sums[kSumsAtOnce];
        for (auto& sum : sums) sum = hn::Zero(d);
        for (int64_t j = 0; j < whole; j += kLanes, a += kLanes) {
          const auto factor = hn::LoadU(d, a);
          HWY_UNROLL(4)
          for (int k = 0; k < kSumsAtOnce; ++k) {
            sums[k] = AddTerm(d, terms, a - own, factor, LoadStored(d, b[k] + j), sums[k]);
          }
        }
        if constexpr (kMasked) {
          const auto factor = hn::LoadU(d, a);
          HWY_UNROLL(4)
          for (int k = 0; k < kSumsAtOnce; ++k) {
            sums[k] = AddTerm(d, terms, a - own, factor, tail.Load(b[k] + whole), sums[k]);
          }
          a += kLanes;
        }
        SumOf<T>* const to = dots + head * kApart + i;
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

/// What weights are multiplied by, element by element: that of the gathered row; or the slope of
/// LeakyReLU at its sum with `own` (Widen's), where to `of_att` the same times that sum is added.
struct Elements {
  static constexpr bool kSlopes = false;
};
template <typename Wide>
struct Slopes {
  static constexpr bool kSlopes = true;
  const Wide* own;
  Wide slope;
  Wide* of_att;
};

/// kVectors vectors of sums, number `first` of the row and on.
template <int kVectors, bool kMasked, class D, typename T, typename Of,
          typename Wide = hn::TFromD<D>>
HWY_INLINE void SumSlab(D d, const HeadRows<T>& rows, const Gathered& gathered, const Wide* weights,
                        const Wide* factors, int64_t first, Wide* sums, const Of& summands) {
  constexpr int64_t kLanes = hn::MaxLanes(D());
  const int64_t vectors = VectorsOf<D>(rows.width);
  // Divisions take longer than short rows.
  int64_t head = first == 0 ? 0 : first / vectors, in_head = first - head * vectors;
  const Tail<D> tail(rows.width - (vectors - 1) * kLanes);
  hn::Vec<D> of[kVectors], of_att[kVectors];
  const Wide* weight[kVectors];
  int64_t at[kVectors];
  bool is_last[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    weight[v] = weights + head * kApart;
    at[v] = kMasked ? head * rows.width + in_head * kLanes : v * kLanes;
    is_last[v] = kMasked && in_head + 1 == vectors;
    of[v] = factors == nullptr
                ? hn::Zero(d)
                : hn::Mul(hn::Set(d, factors[head]), hn::Load(d, sums + (first + v) * kLanes));
    if constexpr (Of::kSlopes) of_att[v] = hn::Load(d, summands.of_att + (first + v) * kLanes);
    if (++in_head == vectors) {
      in_head = 0;
      ++head;
    }
  }
  const T* const data = rows.data + (kMasked ? 0 : first * kLanes);
  for (int64_t i = 0; i < gathered.count; ++i) {
    const T* const row = data + gathered.columns[i] * rows.stride;
    if (i + kNonzerosAhead < gathered.fetchable) {
      Prefetch(data + gathered.columns[i + kNonzerosAhead] * rows.stride + at[0],
               kVectors * kLanes);
    }
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      const auto element = LoadPart(d, row + at[v], kMasked && is_last[v], tail);
      const auto factor = hn::Set(d, weight[v][i]);
      if constexpr (Of::kSlopes) {
        const auto z = hn::Add(hn::LoadU(d, summands.own + (first + v) * kLanes), element);
        const auto below = hn::Mul(hn::Set(d, summands.slope), factor);
        const auto share = hn::IfThenElse(hn::Gt(z, hn::Zero(d)), factor, below);
        of[v] = hn::Add(of[v], share);
        of_att[v] = hn::MulAdd(share, z, of_att[v]);
      } else {
        of[v] = hn::MulAdd(factor, element, of[v]);
      }
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    hn::Store(of[v], d, sums + (first + v) * kLanes);
    if constexpr (Of::kSlopes) hn::Store(of_att[v], d, summands.of_att + (first + v) * kLanes);
  }
}

/// sums = factors * sums (nothing, if `factors` is null) + the sum over the block of
/// weights[head][i] times the head of row columns[i], or of what `summands` says. `sums` as in
/// WideRow, and the summands' `of_att`.
template <typename T, typename Of = Elements>
void SumBlock(const HeadRows<T>& rows, const Gathered& gathered, int64_t heads,
              const SumOf<T>* weights, const SumOf<T>* factors, SumOf<T>* sums,
              const Of& summands = {}) {
  constexpr int kMost = Of::kSlopes ? 4 : 8;  // of which the sums fit the registers
  WithVector<SumOf<T>>(rows.width, [&]<class D, bool kMasked>(D d, std::bool_constant<kMasked>) {
    const int64_t vectors = heads * VectorsOf<D>(rows.width);
    int64_t first = 0;
    for (; first + kMost <= vectors; first += kMost) {
      SumSlab<kMost, kMasked>(d, rows, gathered, weights, factors, first, sums, summands);
    }
    if (kMost > 4 && first + 4 <= vectors) {
      SumSlab<4, kMasked>(d, rows, gathered, weights, factors, first, sums, summands);
      first += 4;
    }
    if (first + 2 <= vectors) {
      SumSlab<2, kMasked>(d, rows, gathered, weights, factors, first, sums, summands);
      first += 2;
    }
    if (first < vectors) {
      SumSlab<1, kMasked>(d, rows, gathered, weights, factors, first, sums, summands);
    }
  });
}

/// e to the power of x, which is not much above 0; of NaN NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOf(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

/// The logarithm of x, which is 0 (no matter what), at least about 1, or NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogOf(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Log(d, x));
}

/// Nonzeros [first, first + count) of a row, which are numbers `at` and on of a block.
template <typename Wide>
struct Segment {
  int64_t row = 0;
  int64_t first = 0, count = 0;
  int64_t at = 0;
  bool begins = false, ends = false;  ///< the row, or the piece of it
  Wide* piece = nullptr;              ///< of a row that is cut; null: whole
};
template <typename Wide>
struct Block {
  int64_t count = 0;  ///< nonzeros, one after the other
  int64_t segment_count = 0;
  Segment<Wide> segments[kBlock];

  int64_t first() const { return segments[0].first; }
};

/// Goes over the rows from `begin` to `end`: work.Add(segment) for each segment, work.Run(block)
/// when its segments are there, work.RunEmpty(row) for rows of nothing, whatever is under way. Of a
/// row that began before the piece is `head`, of one that does not end here `tail`.
template <typename Wide, typename Work>
void RunBlocks(const int64_t* row_offsets, Cut begin, Cut end, Wide* head, Wide* tail, Work& work) {
  Block<Wide> block;
  const auto run = [&] {
    if (block.count > 0) work.Run(block);
    block.count = block.segment_count = 0;
  };
  const auto add = [&](int64_t row, int64_t first, int64_t last, Wide* piece) {
    if (first == last) return work.RunEmpty(row);
    if (last - first > kBlock - block.count) run();
    for (int64_t p = first; p < last;) {
      if (block.count == kBlock) run();
      const int64_t count = std::min(last - p, kBlock - block.count);
      const Segment<Wide> segment = {row,  p, count, block.count, p == first, p + count == last,
                                     piece};
      work.Add(segment);
      block.segments[block.segment_count++] = segment;
      block.count += count;
      p += count;
    }
  };
  int64_t row = begin.row;
  if (begin.nonzero > row_offsets[row]) {
    add(row, begin.nonzero, std::min(end.nonzero, row_offsets[row + 1]), head);
    ++row;
  }
  for (; row < end.row; ++row) add(row, row_offsets[row], row_offsets[row + 1], nullptr);
  if (row == end.row && end.nonzero > row_offsets[row]) {
    add(row, row_offsets[row], end.nonzero, tail);
  }
  run();
}

/// The scores of a block.
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
        att_(job.heads, job.own.width),
        sums_(job.heads, kApart),
        bias_(job.bias_cols, kApart) {
    if (job.att == nullptr) return;
    Widen(HeadRows<T>{job.att, 0, job.own.width}, 0, job.heads, att_.data());
  }

  /// Part for part as vectors have them: GATv2's att, and the own operand of a row until the next
  /// call of this or of Add.
  const WideRow<Wide>& att() const { return att_; }
  const Wide* OwnOf(int64_t row) { return Widened(job_.own, row, job_.heads, own_.data()); }

  void Add(const Segment<Wide>& segment) {
    Wide* const sums = sums_.data() + segment.at;
    const Gathered gathered = GatheredAt(job_, segment.first, segment.count);
    if (job_.kind == EdgeScores::Kind::kDot) {
      DotBlock(OwnOf(segment.row), job_.other, gathered, job_.heads, sums);
    } else if (job_.kind == EdgeScores::Kind::kGatv2) {
      DotBlock(OwnOf(segment.row), job_.other, gathered, job_.heads, sums,
               Gatv2<Wide>{att_.data(), job_.slope});
    } else {
      const T* const own = job_.own.data + segment.row * job_.own.stride;
      for (int64_t i = 0; i < segment.count; ++i) {
        const T* const other =
            job_.other.data + job_.columns[segment.first + i] * job_.other.stride;
        for (int64_t h = 0; h < job_.heads; ++h) {
          sums[h * kApart + i] = static_cast<Wide>(own[h]) + static_cast<Wide>(other[h]);
        }
      }
    }
    if (job_.bias == nullptr) return;
    for (int64_t i = 0; i < segment.count; ++i) {
      const T* const from = job_.bias + job_.source[segment.first + i] * job_.bias_stride;
      for (int64_t h = 0; h < job_.bias_cols; ++h) {
        bias_.data()[h * kApart + segment.at + i] = static_cast<Wide>(from[h]);
      }
    }
  }

  /// The scores of nonzeros [i, i + kLanes) of the block, and what a change of what is summed up of
  /// the two rows changes them by. Nothing sensible beyond the block.
  HWY_INLINE V At(int64_t head, int64_t i, V& slope) const {
    const D d;
    const V sum = hn::Load(d, sums_.data() + head * kApart + i);
    slope = hn::Set(d, job_.kind == EdgeScores::Kind::kDot ? job_.scale : Wide(1));
    if (job_.kind == EdgeScores::Kind::kSum) {
      slope = hn::IfThenElse(hn::Gt(sum, hn::Zero(d)), slope, hn::Set(d, job_.slope));
    }
    if (job_.bias == nullptr) return hn::Mul(sum, slope);
    const int64_t of_head = job_.bias_cols > 1 ? head * kApart : 0;
    return hn::MulAdd(sum, slope, hn::Load(d, bias_.data() + of_head + i));
  }

 private:
  const ScoreJob<T>& job_;
  WideRow<Wide> own_, att_;
  WideRow<Wide> sums_, bias_;  ///< of a block
};

/// The sum of `count` numbers of a block, no alignment.
template <typename Wide>
HWY_INLINE Wide SumOfSegment(const Wide* from, int64_t count) {
  const hn::ScalableTag<Wide> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes < count; i += kLanes) sum = hn::Add(sum, hn::LoadU(d, from + i));
  const auto inside = hn::FirstN(d, static_cast<size_t>(count - i));
  sum = hn::Add(sum, hn::IfThenElseZero(inside, hn::LoadU(d, from + i)));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}
/// The greatest of them and of `least`; without regard to NaN.
template <typename Wide>
HWY_INLINE Wide GreatestOfSegment(Wide least, const Wide* from, int64_t count) {
  const hn::ScalableTag<Wide> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const auto nothing = hn::Set(d, least);
  auto greatest = nothing;
  int64_t i = 0;
  for (; i + kLanes < count; i += kLanes) greatest = hn::Max(greatest, hn::LoadU(d, from + i));
  const auto inside = hn::FirstN(d, static_cast<size_t>(count - i));
  greatest = hn::Max(greatest, hn::IfThenElse(inside, hn::LoadU(d, from + i), nothing));
  return hn::GetLane(hn::MaxOfLanes(d, greatest));
}
/// `count` times the same, and up to a vector more.
template <typename Wide>
HWY_INLINE void FillSegment(Wide value, int64_t count, Wide* to) {
  const hn::ScalableTag<Wide> d;
  for (int64_t i = 0; i < count; i += hn::MaxLanes(d)) hn::StoreU(hn::Set(d, value), d, to + i);
}

}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
