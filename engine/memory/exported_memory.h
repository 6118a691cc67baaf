// Memory that processes of this machine map and read: layouts and values for those who run kernels
// on them themselves.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "engine/memory/budget.h"

namespace sparsed::engine {

/// A memory file that nobody writes any more, nor makes larger or smaller, or memory of a GPU: who
/// maps it keeps it, whatever becomes of this process. Thread-safe.
class ExportedMemory {
 public:
  /// `fill` writes all `bytes` (> 0) of it. Counts with them, as shared memory of `owner`, for as
  /// long as it lives. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::shared_ptr<const ExportedMemory>> Make(
      size_t bytes, Budget& budget, MemoryOwner& owner,
      const std::function<void(std::byte*)>& fill);

  /// Memory of a GPU, `bytes` of it, that `file` stands for (cuda::Export). `kept` holds it, and
  /// makes it count.
  static std::shared_ptr<const ExportedMemory> OfGpu(Descriptor file, size_t bytes,
                                                     std::shared_ptr<const void> kept);

  /// No other of this process has the same.
  uint64_t id() const { return id_; }
  size_t bytes() const { return bytes_; }
  int file() const { return file_.fd(); }

 private:
  ExportedMemory(Descriptor file, size_t bytes, std::shared_ptr<const void> kept);

  const uint64_t id_;
  const Descriptor file_;
  const size_t bytes_;
  const std::shared_ptr<const void> kept_;  ///< what counts it
};

/// Two numbers (u64) in memory that this process alone writes, and others map and read: the first
/// grows with every change, the second with changes of contents alone. Thread-safe.
class ExportedSequence {
 public:
  /// Both begin with 1. RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<ExportedSequence>> Make();
  ExportedSequence(const ExportedSequence&) = delete;
  ExportedSequence& operator=(const ExportedSequence&) = delete;
  ~ExportedSequence();

  uint64_t value() const { return numbers_->value.load(std::memory_order_acquire); }
  uint64_t contents() const { return numbers_->contents.load(std::memory_order_acquire); }
  void Increment() { numbers_->value.fetch_add(1, std::memory_order_release); }
  void IncrementContents() {
    numbers_->contents.fetch_add(1, std::memory_order_release);
    Increment();
  }
  int file() const { return file_.fd(); }

 private:
  struct Numbers {
    std::atomic<uint64_t> value = 1, contents = 1;
  };
  ExportedSequence(Descriptor file, Numbers* numbers) : file_(std::move(file)), numbers_(numbers) {}

  const Descriptor file_;
  Numbers* const numbers_;
};

}  // namespace sparsed::engine
