// Operands of which a buffer is the middle: the rows that lie around its own are other nodes'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/memory/lazy_array.h"
#include "kernels/array.h"

namespace sparsed::engine {

struct DenseShape;

/// How many rows of an operand lie above and below those that a node has itself.
struct Halo {
  int64_t above = 0, below = 0;

  int64_t rows() const { return above + below; }
  bool operator==(const Halo&) const = default;
};

/// Memory of one version of a buffer, with room for its halo: a product multiplies with all of it
/// when the halo was filled, and none of the buffer's own rows is copied. Thread-safe.
class HaloedDense {
 public:
  /// Uninitialised, for a buffer of that shape, which has no gaps between its rows.
  /// RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::shared_ptr<HaloedDense>> Allocate(std::string_view name,
                                                               const DenseShape& shape, Halo halo,
                                                               MemorySource& memory);

  const Halo& halo() const { return halo_; }
  /// The buffer's elements; it is written once, before anything else reads it.
  const Array& own() const { return own_; }

  /// Writes the rows of the halo into the operand that begins there.
  using Fill = std::function<absl::Status(std::byte* operand)>;
  /// The operand: the halo above, the buffer's own rows and the halo below. The first caller fills
  /// it while the others wait, and have its error; where that was CANCELLED, which is the first
  /// one's alone, another one fills it. CANCELLED soon after `stopped` says so to one that waits.
  absl::StatusOr<std::shared_ptr<LazyArray>> Filled(const Fill& fill,
                                                    const std::function<bool()>& stopped);
  /// Somebody has the operand.
  bool in_use() const;

 private:
  HaloedDense(Halo halo, Array own, Array operand)
      : halo_(halo), own_(std::move(own)), operand_(std::move(operand)) {}

  const Halo halo_;
  const Array own_;
  Array operand_;
  mutable Mutex mutex_;
  CondVar ended_;
  bool filling_ ABSL_GUARDED_BY(mutex_) = false;  ///< by one thread, without the lock
  uint64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);               ///< the last one
  std::shared_ptr<LazyArray> filled_ ABSL_GUARDED_BY(mutex_);  ///< null: not yet
};

}  // namespace sparsed::engine
