// Attention along edges, forward: block by block, so that scores stay in the first cache; a row
// that is longer than a block has a running maximum and sum for each head (Milakov and Gimelshein,
// 2018).
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
        shares_(heads_, kApart),
        greatest_of_block_(heads_, kApart),
        out_(heads_, job.values.width),
        greatest_(heads_, 1),
        sums_(heads_, 1),
        factors_(heads_, 1) {}

  void Add(const Segment<Wide>& segment) { scores_.Add(segment); }

  void Run(const Block<Wide>& block) {
    for (int64_t head = 0; head < heads_; ++head) KeepScores(head, block.count);
    for (int64_t head = 0; head < heads_; ++head) FindGreatest(head, block);
    for (int64_t head = 0; head < heads_; ++head) Exponentials(head, block.count);
    for (int64_t s = 0; s < block.segment_count; ++s) RunSegment(block.segments[s]);
  }

  void RunEmpty(int64_t row) const {
    std::fill_n(job_.out + row * job_.out_stride, heads_ * job_.values.width, T());
    if (job_.log_sums == nullptr) return;
    std::fill_n(job_.log_sums + row * job_.log_sums_stride, heads_,
                -std::numeric_limits<Wide>::infinity());
  }

 private:
  /// Of a row: no scores yet. The least finite number instead of minus infinity, which minus minus
  /// infinity would be NaN; where nothing is above it in the end, the sum is 0.
  void Start() {
    std::fill_n(greatest_.data(), heads_, std::numeric_limits<Wide>::lowest());
    std::fill_n(sums_.data(), heads_, Wide(0));
  }

  HWY_INLINE void KeepScores(int64_t head, int64_t count) {
    const typename BlockScores<T>::D d;
    auto slope = hn::Zero(d);
    for (int64_t i = 0; i < count; i += BlockScores<T>::kLanes) {
      hn::Store(scores_.At(head, i, slope), d, shares_.data() + head * kApart + i);
    }
  }
  /// For each nonzero the greatest score of its row so far.
  HWY_INLINE void FindGreatest(int64_t head, const Block<Wide>& block) {
    for (int64_t s = 0; s < block.segment_count; ++s) {
      const Segment<Wide>& segment = block.segments[s];
      const int64_t at = head * kApart + segment.at;
      const Wide before =
          segment.begins ? std::numeric_limits<Wide>::lowest() : greatest_.data()[head];
      const Wide greatest = GreatestOfSegment(before, shares_.data() + at, segment.count);
      FillSegment(greatest, segment.count, greatest_of_block_.data() + at);
    }
  }
  /// Scores become their exponentials.
  HWY_INLINE void Exponentials(int64_t head, int64_t count) {
    const typename BlockScores<T>::D d;
    for (int64_t i = 0; i < count; i += BlockScores<T>::kLanes) {
      Wide* const share = shares_.data() + head * kApart + i;
      const auto greatest = hn::Load(d, greatest_of_block_.data() + head * kApart + i);
      hn::Store(ExpOf(d, hn::Sub(hn::Load(d, share), greatest)), d, share);
    }
  }

  void RunSegment(const Segment<Wide>& segment) {
    if (segment.begins) Start();
    for (int64_t head = 0; head < heads_; ++head) {
      const int64_t at = head * kApart + segment.at;
      const Wide before = greatest_.data()[head], now = greatest_of_block_.data()[at];
      const Wide sum = SumOfSegment(shares_.data() + at, segment.count);
      greatest_.data()[head] = now;
      if (segment.begins) {
        sums_.data()[head] = sum;
        continue;
      }
      factors_.data()[head] = now == before ? Wide(1) : std::exp(before - now);
      sums_.data()[head] = sums_.data()[head] * factors_.data()[head] + sum;
    }
    SumBlock(job_.values, GatheredAt(job_.scores, segment.first, segment.count), heads_,
             shares_.data() + segment.at, segment.begins ? nullptr : factors_.data(), out_.data());
    if (!segment.ends) return;
    segment.piece == nullptr ? Finish(segment.row) : Keep(segment.piece);
  }

  void Finish(int64_t row) {
    const typename BlockScores<T>::D d;
    const auto nothing = hn::Set(d, -std::numeric_limits<Wide>::infinity());
    for (int64_t head = 0; head < heads_; head += BlockScores<T>::kLanes) {
      const auto sum = hn::Load(d, sums_.data() + head);
      const auto is_zero = hn::Eq(sum, hn::Zero(d));
      hn::Store(hn::IfThenZeroElse(is_zero, hn::Div(hn::Set(d, Wide(1)), sum)), d,
                factors_.data() + head);
      if (job_.log_sums == nullptr) continue;
      const auto log_sum = hn::Add(hn::Load(d, greatest_.data() + head), LogOf(d, sum));
      hn::Store(hn::IfThenElse(is_zero, nothing, log_sum), d, sums_.data() + head);
    }
    if (job_.log_sums != nullptr) {
      std::copy_n(sums_.data(), heads_, job_.log_sums + row * job_.log_sums_stride);
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
  WideRow<Wide> shares_, greatest_of_block_;
  // Of a row.
  WideRow<Wide> out_, greatest_, sums_, factors_;
};

template <typename T>
void AttendRowsOf(const AttentionJob<T>& job, Cut begin, Cut end, SumOf<T>* head, SumOf<T>* tail) {
  Forward<T> forward(job);
  RunBlocks(job.scores.row_offsets, begin, end, head, tail, forward);
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
