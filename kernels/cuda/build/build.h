// Preparation on the GPU: the parts of builders that pay there. Each gives bit by bit what the
// builder on the CPU gives. Without CUDA in the build they answer UNAVAILABLE.
//
// Errors: RESOURCE_EXHAUSTED for memory on either side; UNAVAILABLE, INTERNAL as in device.h. When
// they return, nothing that they queued still runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/cuda/device.h"
#include "kernels/formats/csr.h"
#include "kernels/formats/row_segments.h"
#include "kernels/layout.h"
#include "kernels/recipe.h"

namespace sparsed::cuda {

/// What builders may use of the GPU. Used by one thread at a time.
struct Workbench {
  Stream& stream;
  MemorySource& memory;  ///< of the device
  int64_t steps = 0;     ///< of recipes that were done with it
};

/// A pattern's arrays, copied to the device; the view is valid as long as this lives.
class PatternCopy {
 public:
  static absl::StatusOr<PatternCopy> Make(Workbench& workbench, const CsrView& csr);
  const CsrView& view() const { return view_; }

 private:
  CsrView view_;
  Buffer offsets_, columns_, order_;
};

/// BuildRowSegments (kernels/formats/row_segments.h) of a pattern on the device; the layout's
/// arrays are there too. Scratch: 6 bytes a nonzero, 40 a segment and a
/// panel, 16 a row that is permuted.
absl::StatusOr<Layout> BuildRowSegmentsThere(Workbench& workbench, const CsrView& csr,
                                             const RowSegmentsOptions& options);
/// The same of a pattern on the host, and back to the context's memory there.
absl::StatusOr<Layout> BuildRowSegments(Workbench& workbench, const CsrView& csr,
                                        const RowSegmentsOptions& options,
                                        const BuildContext& context);

/// Rows in buckets by MinHash keys (kernels/reorder/minhash.h), for one band of them after another.
/// Scratch: the pattern, and 28 bytes and a group's keys a row. Thread-safe.
class MinHashBuckets {
 public:
  /// `rows`, ascending, of the pattern on the host; bands of `bsize` hashes.
  static absl::StatusOr<std::unique_ptr<MinHashBuckets>> Make(Workbench& workbench,
                                                              const CsrView& csr,
                                                              std::span<const int32_t> rows,
                                                              int bsize, int bands);
  ~MinHashBuckets();
  /// items, as many as rows, on the host = key << 32 | row, ascending. Each band once, those of one
  /// group of kMinHashLanes / bsize bands before the next group.
  absl::Status Sort(int band, std::span<uint64_t> items);

 private:
  struct State;
  explicit MinHashBuckets(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sparsed::cuda
