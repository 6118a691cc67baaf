// A bounded set of row pairs and their similarities, filled by many threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/scratch.h"

namespace sparsed {

/// Two different rows in one number, the smaller one in the upper half.
struct RowPair {
  static uint64_t Make(int64_t a, int64_t b) {
    return a < b ? static_cast<uint64_t>(a) << 32 | static_cast<uint64_t>(b)
                 : static_cast<uint64_t>(b) << 32 | static_cast<uint64_t>(a);
  }
  static int32_t First(uint64_t pair) { return static_cast<int32_t>(pair >> 32); }
  static int32_t Second(uint64_t pair) { return static_cast<int32_t>(pair & 0xffffffffU); }
};

/// Pairs, each once, ascending, and their Jaccard similarities.
struct CandidatePairs {
  int64_t count = 0;
  Scratch<uint64_t> pairs;
  Scratch<float> similarities;
};

/// An open-addressed table. What it holds depends on what was inserted, not on the order.
class PairSet {
 public:
  /// For at most `capacity` pairs at a time.
  absl::Status Allocate(MemorySource& memory, int64_t capacity);

  /// Thread-safe, among themselves.
  bool Contains(uint64_t pair) const;
  void Insert(uint64_t pair, float similarity);
  /// Fetches what the two will look at.
  void Prefetch(uint64_t pair) const {
    const int64_t slot = Slot(pair);
    __builtin_prefetch(pairs_.data() + slot);
    __builtin_prefetch(similarities_.data() + slot);
  }

  int64_t count() const { return count_.load(std::memory_order_relaxed); }

  /// Drops the least similar pairs until at most `limit` are left: all below a similarity, and of
  /// those at it a part picked by their hash. Returns that similarity.
  absl::StatusOr<float> KeepBest(MemorySource& memory, int64_t limit);

  /// The pairs in ascending order; `rows` bounds them. The set is empty afterwards.
  absl::StatusOr<CandidatePairs> Take(MemorySource& memory, int64_t rows, int threads);

 private:
  int64_t Slot(uint64_t pair) const;

  Scratch<uint64_t> pairs_;  ///< 0: free (no pair is 0)
  Scratch<float> similarities_;
  std::atomic<int64_t> count_ = 0;
};

}  // namespace sparsed
