// Puts chunks that arrive in any order together into one array.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/coverage.h"
#include "engine/memory/arriving.h"
#include "kernels/array.h"

namespace sparsed::engine {

/// Receives the bytes of one array. Overlaps and bytes beyond the end are refused, gaps are found
/// at the end. Not thread-safe: one stream feeds it.
class ArrayAssembler {
 public:
  /// Separate ranges that are remembered, and what each takes but the first.
  static constexpr size_t kMaxRanges = 4096, kRangeBytes = 64;

  ArrayAssembler() = default;
  /// `array` has no buffer yet, its name appears in errors; `memory` is for at least its bytes.
  ArrayAssembler(Array array, std::unique_ptr<ArrivingMemory> memory)
      : array_(std::move(array)), memory_(std::move(memory)), received_(array_.bytes()) {}

  /// Where `size` bytes at `offset` may be written; INVALID_ARGUMENT on overlap or overrun, or if
  /// that makes more than kMaxRanges of what arrived, RESOURCE_EXHAUSTED if there is no memory for
  /// it. The range counts as received.
  absl::StatusOr<std::byte*> Claim(uint64_t offset, uint64_t size);
  bool complete() const { return received_.complete(); }
  uint64_t received() const { return received_.covered(); }
  /// The whole array, with all the memory that was asked for; INVALID_ARGUMENT names the first gap.
  /// The assembler is empty afterwards.
  absl::StatusOr<Array> Finish();
  /// With its buffer once bytes came.
  const Array& array() const { return array_; }
  /// Bytes of memory that count, those of separate ranges among them.
  size_t counted() const {
    const size_t more = received_.intervals() == 0 ? 0 : received_.intervals() - 1;
    return (memory_ == nullptr ? 0 : memory_->counted()) + more * kRangeBytes;
  }

 private:
  Array array_;
  std::unique_ptr<ArrivingMemory> memory_;
  Coverage received_;
};

}  // namespace sparsed::engine
