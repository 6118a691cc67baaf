// Latencies, counted in buckets: quantiles without keeping each of them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace sparsed::server {

/// From 10 us to about two minutes, each bucket a quarter wider than the one before. `Count` is a
/// number of what is counted, or a weight. Not thread-safe.
template <typename Count>
class Latencies {
 public:
  static constexpr size_t kBuckets = 74;
  static constexpr double kLeast = 10e-6, kFactor = 1.25;

  void Add(double seconds) {
    counts_[BucketOf(seconds)] += 1;
    most_ = std::max(most_, seconds);
  }
  void Add(const Latencies& others) {
    for (size_t i = 0; i < kBuckets; ++i) counts_[i] += others.counts_[i];
    most_ = std::max(most_, others.most_);
  }
  void Scale(Count factor) {
    for (Count& count : counts_) count *= factor;
  }
  /// Seconds below which so large a share of them is, within a quarter, and no more than any took;
  /// 0 if there are none.
  double Quantile(double share) const { return std::min(InBuckets(share), most_); }

 private:
  double InBuckets(double share) const {
    double all = 0;
    for (const Count count : counts_) all += static_cast<double>(count);
    double wanted = share * all;
    if (all <= 0) return 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      const auto here = static_cast<double>(counts_[i]);
      if (here > 0 && wanted <= here) {
        return kLeast * std::pow(kFactor, static_cast<double>(i) - 1 + wanted / here);
      }
      wanted -= here;
    }
    return kLeast * std::pow(kFactor, static_cast<double>(kBuckets - 1));
  }

  /// Bucket i ends at kLeast * kFactor^i; the last one has no end.
  static size_t BucketOf(double seconds) {
    if (!(seconds > kLeast)) return 0;
    static const double inverse = 1 / std::log(kFactor);
    const double bucket = std::ceil(std::log(seconds / kLeast) * inverse);
    return static_cast<size_t>(std::min(bucket, static_cast<double>(kBuckets - 1)));
  }

  std::array<Count, kBuckets> counts_{};
  double most_ = 0;  ///< seconds
};

}  // namespace sparsed::server
