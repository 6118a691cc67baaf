// Attention along edges, forward: block by block of a row, with a running maximum and sum for each
// head (Milakov and Gimelshein, 2018), so that scores stay in the first cache.
#include <cmath>
#include <limits>

#include "kernels/cpu/attention/rows.h"
#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/forward.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/attention/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
class Forward {
 public:
  using Wide = SumOf<T>;

  explicit Forward(const AttentionJob<T>& job)
      : job_(job),
        heads_(job.scores.heads),
        scores_(job.scores),
        fetcher_(job.scores),
        shares_(heads_, kBlock),
        out_(heads_, job.values.width),
        greatest_(heads_, 1),
        sums_(heads_, 1),
        factors_(heads_, 1) {}

  /// Nonzeros [first, last) of a row, all of them if `piece` is null.
  void Run(int64_t row, int64_t first, int64_t last, Wide* piece) {
    if (first < last) scores_.SetRow(row);
    // The least finite number: minus infinity from minus infinity would be NaN. Where nothing is
    // above it in the end, the sum is 0.
    std::fill_n(greatest_.data(), heads_, std::numeric_limits<Wide>::lowest());
    std::fill_n(sums_.data(), heads_, Wide(0));
    if (first == last) out_.Clear();
    for (int64_t begin = first; begin < last; begin += kBlock) {
      const int64_t count = std::min(kBlock, last - begin);
      fetcher_.Fetch(begin, count, job_.values);
      scores_.SetBlock(begin, count);
      for (int64_t head = 0; head < heads_; ++head) Exponentials(head, count);
      SumBlock(job_.values, job_.scores.columns + begin, count, heads_, shares_.data(),
               begin == first ? nullptr : factors_.data(), out_.data());
    }
    piece == nullptr ? Finish(row) : Keep(piece);
  }

 private:
  /// Scores become exponentials in shares_; the maximum, the sum and factors_ move on.
  HWY_INLINE void Exponentials(int64_t head, int64_t count) {
    const typename BlockScores<T>::D d;
    constexpr int64_t kLanes = BlockScores<T>::kLanes;
    Wide* const shares = shares_.data() + head * kBlock;
    const Wide before = greatest_.data()[head];
    auto greatest = hn::Set(d, before), slope = greatest;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const auto score = scores_.At(head, i, slope);
      hn::Store(score, d, shares + i);
      greatest = hn::Max(greatest, score);
    }
    if (i < count) {
      const auto nothing = hn::Set(d, -std::numeric_limits<Wide>::infinity());
      const auto score = hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(count - i)),
                                        scores_.At(head, i, slope), nothing);
      hn::Store(score, d, shares + i);
      greatest = hn::Max(greatest, score);
    }
    greatest = hn::MaxOfLanes(d, greatest);
    auto sum = hn::Zero(d);
    for (i = 0; i < count; i += kLanes) {
      const auto share = ExpOf(d, hn::Sub(hn::Load(d, shares + i), greatest));
      hn::Store(share, d, shares + i);
      sum = hn::Add(sum, share);
    }
    const Wide now = hn::GetLane(greatest);
    constexpr Wide kLowest = std::numeric_limits<Wide>::lowest();
    const Wide factor = now == before       ? Wide(1)
                        : before == kLowest ? Wide(0)
                                            : std::exp(before - now);
    greatest_.data()[head] = now;
    factors_.data()[head] = factor;
    sums_.data()[head] = sums_.data()[head] * factor + hn::GetLane(hn::SumOfLanes(d, sum));
  }

  void Finish(int64_t row) {
    for (int64_t head = 0; head < heads_; ++head) {
      const Wide sum = sums_.data()[head];
      factors_.data()[head] = sum == 0 ? Wide(0) : 1 / sum;
      if (job_.log_sums == nullptr) continue;
      job_.log_sums[row * job_.log_sums_stride + head] =
          sum == 0 ? -std::numeric_limits<Wide>::infinity()
                   : greatest_.data()[head] + std::log(sum);
    }
    StoreRow(out_.data(), factors_.data(), heads_, job_.values.width,
             job_.out + row * job_.out_stride);
  }
  void Keep(Wide* piece) {
    std::copy_n(greatest_.data(), heads_, piece);
    std::copy_n(sums_.data(), heads_, piece + heads_);
    StoreRow<Wide, Wide>(out_.data(), nullptr, heads_, job_.values.width, piece + 2 * heads_);
  }

  const AttentionJob<T>& job_;
  const int64_t heads_;
  BlockScores<T> scores_;
  Fetcher<T> fetcher_;
  WideRow<Wide> shares_;  ///< of a block
  WideRow<Wide> out_, greatest_, sums_, factors_;
};

template <typename T>
void AttendRowsOf(const AttentionJob<T>& job, Cut begin, Cut end, SumOf<T>* head, SumOf<T>* tail) {
  Forward<T> forward(job);
  ForEachRow(job.scores.row_offsets, begin, end, head, tail,
             [&](int64_t row, int64_t first, int64_t last, SumOf<T>* piece) {
               forward.Run(row, first, last, piece);
             });
}

void AttendRowsF32(const AttentionJob<float>& job, Cut begin, Cut end, float* head, float* tail) {
  AttendRowsOf(job, begin, end, head, tail);
}
void AttendRowsF64(const AttentionJob<double>& job, Cut begin, Cut end, double* head,
                   double* tail) {
  AttendRowsOf(job, begin, end, head, tail);
}
void AttendRowsF16(const AttentionJob<Float16>& job, Cut begin, Cut end, float* head, float* tail) {
  AttendRowsOf(job, begin, end, head, tail);
}
void AttendRowsBF16(const AttentionJob<BFloat16>& job, Cut begin, Cut end, float* head,
                    float* tail) {
  AttendRowsOf(job, begin, end, head, tail);
}

}  // namespace
}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {

HWY_EXPORT(AttendRowsF32);
HWY_EXPORT(AttendRowsF64);
HWY_EXPORT(AttendRowsF16);
HWY_EXPORT(AttendRowsBF16);

void AttendRows(const AttentionJob<float>& job, Cut begin, Cut end, float* head, float* tail) {
  HWY_DYNAMIC_DISPATCH(AttendRowsF32)(job, begin, end, head, tail);
}
void AttendRows(const AttentionJob<double>& job, Cut begin, Cut end, double* head, double* tail) {
  HWY_DYNAMIC_DISPATCH(AttendRowsF64)(job, begin, end, head, tail);
}
void AttendRows(const AttentionJob<Float16>& job, Cut begin, Cut end, float* head, float* tail) {
  HWY_DYNAMIC_DISPATCH(AttendRowsF16)(job, begin, end, head, tail);
}
void AttendRows(const AttentionJob<BFloat16>& job, Cut begin, Cut end, float* head, float* tail) {
  HWY_DYNAMIC_DISPATCH(AttendRowsBF16)(job, begin, end, head, tail);
}

}  // namespace sparsed::cpu
#endif  // HWY_ONCE
