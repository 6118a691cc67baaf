// Memory that this process shares with a server on its machine (proto/sparsed/v1/local.proto).
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/src/local_socket.h"

namespace sparsed {
inline namespace client {

class SharedMemory;

/// A memory file, mapped; or memory of a GPU, which only the GPU reads and writes. Its pages go
/// with it, and with the server's last request that uses it.
class SharedBlock {
 public:
  /// Takes every page of it. RESOURCE_EXHAUSTED if there is not as much.
  static absl::StatusOr<std::unique_ptr<SharedBlock>> Make(size_t bytes);
  /// What `there` keeps, of a GPU.
  static std::unique_ptr<SharedBlock> OfGpu(std::byte* data, size_t size,
                                            std::shared_ptr<void> there);
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;
  ~SharedBlock();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int file() const { return file_; }
  bool on_gpu() const { return there_ != nullptr; }

 private:
  SharedBlock(int file, std::byte* data, size_t size, std::shared_ptr<void> there = nullptr)
      : file_(file), data_(data), size_(size), there_(std::move(there)) {}

  const int file_;
  std::byte* const data_;
  const size_t size_;
  const std::shared_ptr<void> there_;  ///< null: it is a file's
};

/// The blocks of one connection to a server, and the server's names for them. Blocks are shared
/// when they are first used, over a socket of the server's that is opened then. Thread-safe.
/// Belongs to the process that made it: in a child (fork) nothing is shared, and what the child
/// inherited of the parent's blocks is memory like any other.
class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  /// What the server wants offsets of operands and results to be multiples of.
  static constexpr size_t kAlignment = 64;

  /// `find` says where the server's local socket is, and may block.
  explicit SharedMemory(std::function<absl::StatusOr<LocalAddress>()> find)
      : find_(std::move(find)) {}

  /// Forgotten by the server with its last copy.
  absl::StatusOr<std::shared_ptr<SharedBlock>> Allocate(size_t bytes);
  /// Likewise, of memory that the server shares with this process, by the name that it has over
  /// `socket`. It cannot be shared anew.
  std::shared_ptr<SharedBlock> Adopt(std::unique_ptr<SharedBlock> block,
                                     std::shared_ptr<LocalSocket> socket, std::string region);
  /// Whether bytes of the caller's are a GPU's, and therefore to be touched by nobody but the
  /// server.
  bool OnGpu(const void* data);
  /// The connection to the server's local socket; opened, unless that failed a short while ago.
  /// UNAVAILABLE. May block.
  absl::StatusOr<std::shared_ptr<LocalSocket>> Socket();

  /// Where bytes of the caller's lie for the server.
  struct Place {
    std::shared_ptr<SharedBlock> block;   ///< to be kept until the server has answered
    std::shared_ptr<LocalSocket> socket;  ///< over which the region was shared
    std::string region;
    uint64_t offset = 0;
    bool foreign = false;  ///< what a Foreign found
  };

  /// Memory of this process's that nobody allocated here, but the server may use. Thread-safe.
  class Foreign {
   public:
    virtual ~Foreign() = default;
    /// As those of SharedMemory.
    virtual bool OnGpu(const void* data) = 0;
    virtual std::optional<Place> Find(const void* data, size_t bytes, size_t alignment) = 0;
    /// The server has been told to forget it; what `Find` finds later has another name.
    virtual void GivenUp(const Place& place) = 0;
  };
  /// From now on it is asked, as long as it lives, for what is of no block.
  void Ask(std::weak_ptr<Foreign> foreign);

  /// None: they are of no block, or begin at no multiple of `alignment` of it, or the server shares
  /// no memory, or has refused this block a short while ago; or of a GPU, and forgotten. May block:
  /// the server is asked to map the block; who wants the same one waits for that, others do not.
  std::optional<Place> Find(const void* data, size_t bytes, size_t alignment = kAlignment);

  /// For a request whose end never came, so that the server may still read and write `places`: it
  /// is told to forget them, and `done` is called when it answers, which it does when no request
  /// uses them any more; or when its local socket ends, as it does with the server; or after half a
  /// minute, when they may still be overwritten. On another thread, or this one. Calls that come
  /// later share the blocks anew, under other names.
  void GiveUp(const std::vector<Place>& places, std::function<void()> done);

 private:
  using Clock = std::chrono::steady_clock;
  struct Known {
    std::weak_ptr<SharedBlock> block;
    std::shared_ptr<LocalSocket> socket;  ///< over which the server named it
    std::string region;                   ///< empty: the server does not know it
    bool asking = false;
    Clock::time_point not_before{};
  };

  void Forget(std::unique_ptr<SharedBlock> block);
  bool OfThisProcess() const;
  /// Those that live.
  std::vector<std::shared_ptr<Foreign>> Foreigners();
  /// The block that these bytes begin in; end() if there is none.
  std::map<const std::byte*, Known>::iterator BlockOf(const std::byte* begin)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<absl::StatusOr<LocalAddress>()> find_;
  const int process_ = getpid();
  Mutex mutex_;  ///< never held while the server is asked
  CondVar changed_;
  std::shared_ptr<LocalSocket> socket_ ABSL_GUARDED_BY(mutex_);
  bool connecting_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::time_point not_before_ ABSL_GUARDED_BY(mutex_);
  std::map<const std::byte*, Known> blocks_ ABSL_GUARDED_BY(mutex_);  ///< by where they begin
  std::vector<std::weak_ptr<Foreign>> foreigners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace client
}  // namespace sparsed
