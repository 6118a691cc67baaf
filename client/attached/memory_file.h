// Memory files between a server and its callers (proto/sparsed/v1/local.proto), as the caller has
// them mapped.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/descriptor.h"

namespace sparsed {
inline namespace client {

/// Memory of the server's, for reading, where the kernels of a device read it. It stays as long as
/// it is mapped, also after the server has gone.
class MappedMemory {
 public:
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  virtual ~MappedMemory() = default;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 protected:
  MappedMemory(const std::byte* data, size_t size) : data_(data), size_(size) {}

 private:
  const std::byte* const data_;
  const size_t size_;
};

/// Of the host: a write through it is a signal.
class MappedFile final : public MappedMemory {
 public:
  /// All of the file, which has `bytes` at least, in pages that are there when this returns.
  /// INVALID_ARGUMENT for a file that is smaller, or could become so; RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Map(const Descriptor& file,
                                                               size_t bytes);
  ~MappedFile() override;

 private:
  using MappedMemory::MappedMemory;
};

/// A page in which this process counts what it ran, and which the server reads. Thread-safe.
class UsagePage {
 public:
  static constexpr size_t kOperations = 3;
  /// Of one operation.
  struct Counters {
    std::atomic<uint64_t> calls, nanoseconds, bytes_in, bytes_out;
  };
  /// RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<UsagePage>> Make();
  UsagePage(const UsagePage&) = delete;
  UsagePage& operator=(const UsagePage&) = delete;
  ~UsagePage();

  Counters& spmm() { return page_[0]; }
  Counters& sddmm() { return page_[1]; }
  Counters& chain() { return page_[2]; }
  int file() const { return file_.fd(); }

 private:
  UsagePage(Descriptor file, Counters* page) : file_(std::move(file)), page_(page) {}

  const Descriptor file_;
  Counters* const page_;
};

}  // namespace client
}  // namespace sparsed
