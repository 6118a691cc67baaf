// Memory of a GPU that this process allocated itself (cudaMalloc), for a server to use where it is
// (OpenCallerMemory in proto/sparsed/v1/local.proto).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/src/local_socket.h"
#include "client/src/shared_memory.h"

namespace sparsed {
inline namespace client {

/// Of one GPU. An allocation is handed over when it is first used, unless the operator of the
/// server does not allow it. The server is told to forget those that were freed, soon after, and
/// those that were not used for a minute. Thread-safe.
class CallerMemory final : public SharedMemory::Foreign {
 public:
  /// `shared` outlives it. `gpu` as this process counts them, which the server knows by its uuid.
  CallerMemory(SharedMemory& shared, int gpu, std::string uuid);
  CallerMemory(const CallerMemory&) = delete;
  CallerMemory& operator=(const CallerMemory&) = delete;
  /// The server is told to forget all of it.
  ~CallerMemory() override;

  bool OnGpu(const void* data) override;
  std::optional<SharedMemory::Place> Find(const void* data, size_t bytes,
                                          size_t alignment) override;
  void GivenUp(const SharedMemory::Place& place) override;

 private:
  using Clock = std::chrono::steady_clock;
  /// As cuda::Allocation of kernels/cuda/ipc_memory.h.
  struct Allocation {
    std::byte* begin = nullptr;
    size_t bytes = 0;
    uint64_t id = 0;
  };
  struct Known {
    Allocation allocation;
    std::shared_ptr<SharedBlock> block;   ///< who uses it for a request has a copy
    std::shared_ptr<LocalSocket> socket;  ///< over which the server named it
    std::string region;                   ///< empty: the server does not know it
    bool asking = false;
    Clock::time_point used{}, not_before{};
  };
  using KnownMap = std::map<std::byte*, Known>;

  /// What the driver says, none if it is none that others can open.
  std::optional<Allocation> AllocationOf(const void* data) const;
  /// Hands it over. Blocks.
  absl::StatusOr<LocalSocket::Reply> Ask(LocalSocket& socket, const Allocation& allocation) const;
  /// The server does not want any over the connection that there is.
  bool RefusedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Where it begins for the server, which is asked if need be; what it is to forget goes to
  /// `gone`.
  std::optional<SharedMemory::Place> PlaceOf(const Allocation& allocation, KnownMap& gone);
  /// Makes room for one more.
  void LimitLocked(KnownMap& gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Forget(const KnownMap& gone);
  /// Lets go of what was freed, or is not used.
  void Tidy();
  void Keep();

  SharedMemory& shared_;
  const int gpu_;
  const std::string uuid_;
  Mutex mutex_;  ///< never held while server or driver are asked
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  KnownMap known_ ABSL_GUARDED_BY(mutex_);  ///< by where they begin
  std::weak_ptr<LocalSocket> refused_over_ ABSL_GUARDED_BY(mutex_);
  std::thread keeper_;  ///< since the first was handed over
};

}  // namespace client
}  // namespace sparsed
