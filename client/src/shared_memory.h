// Memory that this process shares with a server on its machine (proto/sparsed/v1/local.proto).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/src/local_socket.h"

namespace sparsed {
inline namespace client {

class SharedMemory;

/// A memory file, mapped. Its pages go with it, and with the server's last request that uses it.
class SharedBlock {
 public:
  /// RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<SharedBlock>> Make(size_t bytes);
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;
  ~SharedBlock();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int file() const { return file_; }

 private:
  SharedBlock(int file, std::byte* data, size_t size) : file_(file), data_(data), size_(size) {}

  const int file_;
  std::byte* const data_;
  const size_t size_;
};

/// The blocks of one connection to a server, and the server's names for them. Blocks are shared
/// when they are first used, over a socket of the server's that is opened then. Thread-safe.
class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  /// What the server wants offsets of operands and results to be multiples of.
  static constexpr size_t kAlignment = 64;

  /// `find` says where the server's local socket is, and may block.
  explicit SharedMemory(std::function<absl::StatusOr<LocalAddress>()> find)
      : find_(std::move(find)) {}

  /// Forgotten by the server with its last copy.
  absl::StatusOr<std::shared_ptr<SharedBlock>> Allocate(size_t bytes);

  /// Where bytes of the caller's lie for the server.
  struct Place {
    std::shared_ptr<SharedBlock> block;  ///< to be kept until the server has answered
    std::string region;
    uint64_t offset = 0;
  };
  /// None: they are of no block, or begin at no multiple of `alignment` of it, or the server shares
  /// no memory. May block: it is asked to map the block.
  std::optional<Place> Find(const void* data, size_t bytes, size_t alignment = kAlignment);

 private:
  struct Known {
    std::weak_ptr<SharedBlock> block;
    std::string region;  ///< empty: the server does not know it
  };

  void Forget(std::unique_ptr<SharedBlock> block);
  /// Has a connection to the server, or says why not.
  absl::Status ConnectLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DisconnectLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<absl::StatusOr<LocalAddress>()> find_;
  Mutex mutex_;  ///< held while the server is asked
  std::unique_ptr<LocalSocket> socket_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point not_before_ ABSL_GUARDED_BY(mutex_);
  std::map<const std::byte*, Known> blocks_ ABSL_GUARDED_BY(mutex_);  ///< by where they begin
};

}  // namespace client
}  // namespace sparsed
