// What a device may do for the builders of layouts, faster than the CPU and with the same results,
// bit by bit. BuildContext (pipeline.h) may have one; kernels/cuda/build implements it.
//
// Errors: RESOURCE_EXHAUSTED for memory on either side; UNAVAILABLE, INTERNAL: the device fails.
// After any of them the CPU can do it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/formats/row_segments.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed {

/// Rows in buckets by MinHash keys (kernels/reorder/minhash.h), for one band of them after another.
/// Thread-safe.
class MinHashBuckets {
 public:
  virtual ~MinHashBuckets() = default;
  /// items, as many as rows, on the host = key << 32 | row, ascending. Each band once, those of one
  /// group of kMinHashLanes / bsize bands before the next group.
  virtual absl::Status Sort(int band, std::span<uint64_t> items) = 0;
};

/// Used by one thread at a time; what it makes must not outlive it.
class BuildAccelerator {
 public:
  virtual ~BuildAccelerator() = default;
  /// For `rows`, ascending, of the pattern on the host, and `bands` bands of `bsize` hashes. Both
  /// may be let go afterwards.
  virtual absl::StatusOr<std::unique_ptr<MinHashBuckets>> MakeMinHashBuckets(
      const CsrView& csr, std::span<const int32_t> rows, int bsize, int bands) = 0;
  /// BuildRowSegments (kernels/formats/row_segments.h), from a pattern on the host to a layout in
  /// the context's memory there.
  virtual absl::StatusOr<Layout> BuildRowSegments(const CsrView& csr,
                                                  const RowSegmentsOptions& options,
                                                  const BuildContext& context) = 0;
  /// How many of these calls succeeded so far.
  virtual int64_t calls() const = 0;
};

}  // namespace sparsed
