// Arrays that are brought into host memory when they are first needed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/array.h"

namespace sparsed::engine {

/// An array that is in memory, or elsewhere (on disk, on a device) and brought here when it is
/// first needed. Thread-safe.
class LazyArray {
 public:
  using Stop = const std::atomic<bool>*;
  /// Ends soon with CANCELLED when the flag becomes true; it may be null.
  using Loader = std::function<absl::StatusOr<Array>(Stop)>;
  explicit LazyArray(Array array) : array_(std::move(array)), resident_(true) {}
  enum class Where : uint8_t { kDisk, kDevice };
  explicit LazyArray(Loader loader, Where where = Where::kDisk)
      : loader_(std::move(loader)), where_(where) {}

  /// Loads the first time: never on a reactor's thread. DATA_LOSS if it is damaged,
  /// RESOURCE_EXHAUSTED without memory; a failed read is tried again by the next caller. CANCELLED
  /// soon after `stop` became true; whoever else waits for the array goes on, and one of them reads
  /// it.
  absl::StatusOr<Array> Get(Stop stop = nullptr);
  /// It would be read from the disk.
  bool on_disk() const { return where_ == Where::kDisk && !resident(); }
  bool resident() const { return resident_.load(std::memory_order_acquire); }

 private:
  std::mutex mutex_;
  std::condition_variable loaded_;
  bool loading_ = false;  ///< by the one thread that may touch loader_ and array_
  Loader loader_;
  const Where where_ = Where::kDisk;
  Array array_;
  std::atomic<bool> resident_ = false;  ///< readable while another thread reads the disk
};

}  // namespace sparsed::engine
