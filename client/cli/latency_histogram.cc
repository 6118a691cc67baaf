#include "client/cli/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sparsed::cli {

int LatencyHistogram::BucketOf(uint64_t nanoseconds) {
  // The first 2^(kBits + 1) have a bucket each.
  const int power = std::bit_width(nanoseconds);
  if (power <= kBits + 1) return static_cast<int>(nanoseconds);
  const int shift = power - (kBits + 1);
  return (shift << kBits) + static_cast<int>(nanoseconds >> shift);
}

uint64_t LatencyHistogram::EndOf(int bucket) {
  constexpr int kFirst = 1 << (kBits + 1);
  if (bucket < kFirst) return static_cast<uint64_t>(bucket);
  const int shift = (bucket >> kBits) - 1;
  const uint64_t top = static_cast<uint64_t>(bucket - (shift << kBits));
  return ((top + 1) << shift) - 1;
}

void LatencyHistogram::Add(std::chrono::nanoseconds time) {
  const int64_t nanoseconds = std::max<int64_t>(0, time.count());
  ++counts_[static_cast<size_t>(BucketOf(static_cast<uint64_t>(nanoseconds)))];
  ++count_;
  max_ = std::max(max_, nanoseconds);
  sum_ += static_cast<double>(nanoseconds);
}

void LatencyHistogram::Add(const LatencyHistogram& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
}

std::chrono::nanoseconds LatencyHistogram::mean() const {
  if (count_ == 0) return {};
  return std::chrono::nanoseconds(static_cast<int64_t>(sum_ / static_cast<double>(count_)));
}

std::chrono::nanoseconds LatencyHistogram::Quantile(double share) const {
  const auto wanted = static_cast<int64_t>(std::ceil(share * static_cast<double>(count_)));
  int64_t seen = 0;
  for (int bucket = 0; bucket < kBuckets && count_ > 0; ++bucket) {
    seen += counts_[static_cast<size_t>(bucket)];
    if (seen < wanted || seen == 0) continue;
    return std::chrono::nanoseconds(std::min<int64_t>(max_, static_cast<int64_t>(EndOf(bucket))));
  }
  return std::chrono::nanoseconds(0);
}

}  // namespace sparsed::cli
