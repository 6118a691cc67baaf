// Gradients of attention along edges, one side at a time (Dao et al., 2022, appendix B): over the
// rows of S those of the left operand and of the bias, over the rows of S^T those of the right
// operand and of the values. Scores and their softmax are made again on both.
#include <limits>

#include "kernels/cpu/attention/rows.h"
#include "kernels/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/gradient.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/attention/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sparsed::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
class Gradient {
 public:
  using Wide = SumOf<T>;
  /// From one head of a single column to the next in a WideRow.
  static constexpr int64_t kLanesOfOne =
      kNativeMasks ? std::min<int64_t>(16 / sizeof(Wide), BlockScores<T>::kLanes) : 1;

  explicit Gradient(const GradientJob<T>& job)
      : job_(job),
        heads_(job.scores.heads),
        kind_(job.scores.kind),
        needs_scores_(job.of_scores != nullptr || job.of_bias != nullptr || job.of_att != nullptr),
        scores_(job.scores),
        own_(heads_, job.own.width),
        shares_(heads_, kApart),
        of_shares_(heads_, kApart),
        weights_(heads_, kApart),
        terms_(2 * heads_, kApart),
        ones_(heads_, 1),
        of_scores_(heads_, job.scores.own.width),
        of_values_(heads_, job.own.width),
        of_att_(heads_, job.scores.own.width) {
    std::fill_n(ones_.data(), heads_, Wide(1));
    of_att_.Clear();
  }

  /// After the last block.
  void StoreOfAtt() { Store(of_att_, job_.scores.own.width, job_.of_att); }

  void Add(const Segment<Wide>& segment) {
    scores_.Add(segment);
    if (needs_scores_) {
      DotBlock(Widened(job_.own, segment.row, heads_, own_.data()), job_.other,
               GatheredAt(job_.scores, segment.first, segment.count), heads_,
               of_shares_.data() + segment.at);
    }
    AddTerms(segment);
  }

  void Run(const Block<Wide>& block) {
    for (int64_t head = 0; head < heads_; ++head) Weights(head, block.count);
    if (job_.of_bias != nullptr) StoreBias(block.first(), block.count);
    for (int64_t s = 0; s < block.segment_count; ++s) RunSegment(block.segments[s]);
  }

  void RunEmpty(int64_t row) const {
    if (job_.of_scores != nullptr) {
      std::fill_n(job_.of_scores + row * job_.of_scores_stride, heads_ * job_.scores.own.width,
                  T());
    }
    if (job_.of_values != nullptr) {
      std::fill_n(job_.of_values + row * job_.of_values_stride, heads_ * job_.own.width, T());
    }
  }

 private:
  void AddTerms(const Segment<Wide>& segment) {
    Wide* const terms = terms_.data() + segment.at;
    if (job_.terms_of_own) {
      const Wide* const from = job_.terms + 2 * heads_ * segment.row;
      for (int64_t k = 0; k < 2 * heads_; ++k) {
        std::fill_n(terms + k * kApart, segment.count, from[k]);
      }
      return;
    }
    for (int64_t i = 0; i < segment.count; ++i) {
      const Wide* const from = job_.terms + 2 * heads_ * job_.scores.columns[segment.first + i];
      for (int64_t k = 0; k < 2 * heads_; ++k) terms[k * kApart + i] = from[k];
    }
  }

  void RunSegment(const Segment<Wide>& segment) {
    const Gathered gathered = GatheredAt(job_.scores, segment.first, segment.count);
    // What dot products were made of is near.
    const Gathered fetched = {gathered.columns, gathered.count};
    const Wide* const factors = segment.begins ? nullptr : ones_.data();
    if (job_.of_scores != nullptr && kind_ == EdgeScores::Kind::kDot) {
      SumBlock(job_.scores.other, fetched, heads_, weights_.data() + segment.at, factors,
               of_scores_.data());
    } else if (kind_ == EdgeScores::Kind::kGatv2 &&
               (job_.of_scores != nullptr || job_.of_att != nullptr)) {
      SumBlock(job_.scores.other, fetched, heads_, weights_.data() + segment.at, factors,
               of_scores_.data(),
               Slopes<Wide>{scores_.OwnOf(segment.row), job_.scores.slope, of_att_.data()});
      if (segment.ends) {
        MultiplyParts(scores_.att().data(), heads_, job_.scores.own.width, of_scores_.data());
      }
    } else if (job_.of_scores != nullptr) {
      if (segment.begins) of_scores_.Clear();
      for (int64_t head = 0; head < heads_; ++head) {
        of_scores_.data()[head * kLanesOfOne] +=
            SumOfSegment(weights_.data() + head * kApart + segment.at, segment.count);
      }
    }
    if (job_.of_values != nullptr) {
      SumBlock(job_.other, needs_scores_ ? fetched : gathered, heads_, shares_.data() + segment.at,
               factors, of_values_.data());
    }
    if (segment.ends) Finish(segment);
  }

  void Finish(const Segment<Wide>& segment) {
    const int64_t width = job_.scores.own.width, row = segment.row;
    if (job_.of_scores != nullptr) {
      segment.piece != nullptr
          ? Store(of_scores_, width, segment.piece)
          : Store(of_scores_, width, job_.of_scores + row * job_.of_scores_stride);
    }
    if (job_.of_values != nullptr) {
      segment.piece != nullptr
          ? Store(of_values_, job_.own.width, segment.piece + heads_ * width)
          : Store(of_values_, job_.own.width, job_.of_values + row * job_.of_values_stride);
    }
  }

  /// Shares, the gradients of the scores (in place of those of the shares), and those times what
  /// the dot products or sums change the scores by.
  HWY_INLINE void Weights(int64_t head, int64_t count) {
    const typename BlockScores<T>::D d;
    constexpr int64_t kLanes = BlockScores<T>::kLanes;
    const int64_t at = head * kApart;
    const Wide* const logs = terms_.data() + at;
    const Wide* const means = terms_.data() + heads_ * kApart + at;
    auto slope = hn::Zero(d);
    for (int64_t i = 0; i < count; i += kLanes) {
      const auto score = scores_.At(head, i, slope);
      const auto share = ExpOf(d, hn::Sub(score, hn::Load(d, logs + i)));
      hn::Store(share, d, shares_.data() + at + i);
      if (!needs_scores_) continue;
      Wide* const of_share = of_shares_.data() + at + i;
      const auto of_score = hn::Mul(share, hn::Sub(hn::Load(d, of_share), hn::Load(d, means + i)));
      hn::Store(of_score, d, of_share);
      hn::Store(hn::Mul(of_score, slope), d, weights_.data() + at + i);
    }
  }

  void StoreBias(int64_t begin, int64_t count) {
    const int64_t columns = job_.scores.bias_cols;
    for (int64_t i = 0; i < count; ++i) {
      T* const to = job_.of_bias + (begin + i) * job_.of_bias_stride;
      const Wide* const from = of_shares_.data() + i;
      if (columns == 1) {
        Wide sum = 0;
        for (int64_t head = 0; head < heads_; ++head) sum += from[head * kApart];
        to[0] = static_cast<T>(sum);
      } else {
        for (int64_t head = 0; head < heads_; ++head)
          to[head] = static_cast<T>(from[head * kApart]);
      }
    }
  }
  template <typename To>
  void Store(const WideRow<Wide>& sums, int64_t width, To* to) {
    StoreRow<To, Wide>(sums.data(), nullptr, heads_, width, to);
  }

  const GradientJob<T>& job_;
  const int64_t heads_;
  const EdgeScores::Kind kind_;
  const bool needs_scores_;
  BlockScores<T> scores_;
  WideRow<Wide> own_;
  WideRow<Wide> shares_, of_shares_, weights_, terms_;  ///< of a block
  WideRow<Wide> ones_, of_scores_, of_values_;
  WideRow<Wide> of_att_;  ///< of all rows
};

template <typename T>
void GradientRowsOf(const GradientJob<T>& job, Cut begin, Cut end, SumOf<T>* head, SumOf<T>* tail) {
  Gradient<T> gradient(job);
  RunBlocks(job.scores.row_offsets, begin, end, head, tail, gradient);
  if (job.of_att != nullptr) gradient.StoreOfAtt();
}

template <typename T>
void MakeTermsOf(const TermsJob<T>& job, RowRange rows) {
  using Wide = SumOf<T>;
  WideRow<Wide> gradient(job.heads, job.gradient.width), dots(job.heads, kApart);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    HeadRows<T> out = job.out;
    out.data += row * out.stride;
    constexpr int32_t kFirst = 0;
    DotBlock(Widened(job.gradient, row, job.heads, gradient.data()), out, {&kFirst, 1}, job.heads,
             dots.data());
    Wide* const terms = job.terms + 2 * job.heads * row;
    for (int64_t head = 0; head < job.heads; ++head) {
      const Wide log_sum = job.log_sums[row * job.log_sums_stride + head];
      // Scores that are all minus infinity are so from 0, too.
      const bool nothing = log_sum == -std::numeric_limits<Wide>::infinity();
      terms[head] = nothing ? Wide(0) : log_sum;
      terms[job.heads + head] = dots.data()[head * kApart];
    }
  }
}

void GradientRowsF32(const GradientJob<float>& job, Cut begin, Cut end, float* head, float* tail) {
  GradientRowsOf(job, begin, end, head, tail);
}
void GradientRowsF64(const GradientJob<double>& job, Cut begin, Cut end, double* head,
                     double* tail) {
  GradientRowsOf(job, begin, end, head, tail);
}
void GradientRowsF16(const GradientJob<Float16>& job, Cut begin, Cut end, float* head,
                     float* tail) {
  GradientRowsOf(job, begin, end, head, tail);
}
void GradientRowsBF16(const GradientJob<BFloat16>& job, Cut begin, Cut end, float* head,
                      float* tail) {
  GradientRowsOf(job, begin, end, head, tail);
}
void MakeTermsF32(const TermsJob<float>& job, RowRange rows) { MakeTermsOf(job, rows); }
void MakeTermsF64(const TermsJob<double>& job, RowRange rows) { MakeTermsOf(job, rows); }
void MakeTermsF16(const TermsJob<Float16>& job, RowRange rows) { MakeTermsOf(job, rows); }
void MakeTermsBF16(const TermsJob<BFloat16>& job, RowRange rows) { MakeTermsOf(job, rows); }

}  // namespace
}  // namespace sparsed::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sparsed::cpu {

HWY_EXPORT(GradientRowsF32);
HWY_EXPORT(GradientRowsF64);
HWY_EXPORT(GradientRowsF16);
HWY_EXPORT(GradientRowsBF16);
HWY_EXPORT(MakeTermsF32);
HWY_EXPORT(MakeTermsF64);
HWY_EXPORT(MakeTermsF16);
HWY_EXPORT(MakeTermsBF16);

void GradientRows(const GradientJob<float>& job, Cut begin, Cut end, float* head, float* tail) {
  HWY_DYNAMIC_DISPATCH(GradientRowsF32)(job, begin, end, head, tail);
}
void GradientRows(const GradientJob<double>& job, Cut begin, Cut end, double* head, double* tail) {
  HWY_DYNAMIC_DISPATCH(GradientRowsF64)(job, begin, end, head, tail);
}
void GradientRows(const GradientJob<Float16>& job, Cut begin, Cut end, float* head, float* tail) {
  HWY_DYNAMIC_DISPATCH(GradientRowsF16)(job, begin, end, head, tail);
}
void GradientRows(const GradientJob<BFloat16>& job, Cut begin, Cut end, float* head, float* tail) {
  HWY_DYNAMIC_DISPATCH(GradientRowsBF16)(job, begin, end, head, tail);
}
void MakeTerms(const TermsJob<float>& job, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(MakeTermsF32)(job, rows);
}
void MakeTerms(const TermsJob<double>& job, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(MakeTermsF64)(job, rows);
}
void MakeTerms(const TermsJob<Float16>& job, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(MakeTermsF16)(job, rows);
}
void MakeTerms(const TermsJob<BFloat16>& job, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(MakeTermsBF16)(job, rows);
}

}  // namespace sparsed::cpu
#endif  // HWY_ONCE
