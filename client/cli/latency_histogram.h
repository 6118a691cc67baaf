// How long many things took, in bounded memory.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace sparsed::cli {

/// Buckets of 1/64 of a power of two: what it says of a percentile is at most 1.6 % too much, and
/// never more than the greatest that was added. Not thread-safe.
class LatencyHistogram {
 public:
  /// One below zero counts as zero.
  void Add(std::chrono::nanoseconds time);
  void Add(const LatencyHistogram& other);

  int64_t count() const { return count_; }
  std::chrono::nanoseconds max() const { return std::chrono::nanoseconds(max_); }
  std::chrono::nanoseconds mean() const;
  /// The time that this share of all, in (0, 1], took at most; 0 of none.
  std::chrono::nanoseconds Quantile(double share) const;

 private:
  static constexpr int kBits = 6;  ///< of a bucket's number within its power of two
  static constexpr int kBuckets = (64 - kBits) << kBits;

  static int BucketOf(uint64_t nanoseconds);
  /// The greatest time that falls in it.
  static uint64_t EndOf(int bucket);

  std::array<int64_t, kBuckets> counts_ = {};
  int64_t count_ = 0;
  int64_t max_ = 0;
  double sum_ = 0;
};

}  // namespace sparsed::cli
