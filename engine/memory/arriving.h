// Memory for bytes that are on their way.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "engine/memory/budget.h"
#include "kernels/array.h"

namespace sparsed::engine {

/// One block that counts against its budget once bytes come, so that who announces gigabytes and
/// sends nothing holds nothing. Not thread-safe.
class ArrivingMemory {
 public:
  virtual ~ArrivingMemory() = default;
  /// Bytes [offset, offset + size) may be written from now on, and count. RESOURCE_EXHAUSTED if
  /// they are not to be had.
  virtual absl::Status Reach(size_t offset, size_t size) = 0;
  /// The whole, of which only what was reached may be touched; it stays where it is. Empty before
  /// that. What counts does so until this and the last copy are gone.
  virtual Buffer buffer() const = 0;
  /// Bytes that count.
  virtual size_t counted() const = 0;
};

/// `bytes` of `memory`, all with the first one that is reached.
std::unique_ptr<ArrivingMemory> ArriveWhole(MemorySource& memory, size_t bytes);

/// RESOURCE_EXHAUSTED, as `budget` says it, if so many bytes are neither free now nor evictable, or
/// more than the owner ever may have. Takes nothing: for who announces bytes that are yet to come.
absl::Status CheckRoom(Budget& budget, MemoryUse use, size_t bytes,
                       const MemoryOwner* owner = nullptr);

}  // namespace sparsed::engine
