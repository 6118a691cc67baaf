// Device memory under a limit, on a card that others use too.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "engine/memory/budget.h"
#include "kernels/array.h"

namespace sparsed::engine {

/// Where device memory comes from, and what the card has left. Thread-safe.
class DevicePool {
 public:
  virtual ~DevicePool() = default;
  /// What an allocation of `bytes` takes of the card that other processes may map; as Allocate's,
  /// unless the card has no such memory: then it is memory like any other.
  virtual size_t ExportableBytes(size_t bytes) const { return bytes; }
  virtual absl::StatusOr<Buffer> AllocateExportable(size_t bytes) { return Allocate(bytes); }
  /// May be used by any stream at once. Its last reference is dropped when nothing queued uses it
  /// any more.
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes) = 0;
  /// Bytes that the card could still give to anybody, beyond what `bytes` more would take from it;
  /// negative if it has less.
  virtual absl::StatusOr<int64_t> LeftAfter(size_t bytes) = 0;
  virtual absl::StatusOr<int64_t> LeftAfterExportable(size_t bytes) { return LeftAfter(bytes); }
  /// What was freed counts as free again. Does not wait for the card.
  virtual void Settle() = 0;
  /// Gives unused memory back to the card, which may take a while.
  virtual void Trim() = 0;
};

/// Counts bytes by use, and by who pays for them, and refuses what would exceed the limit, or leave
/// less than `spare` bytes of the card to others; kShared, which only callers let go, has three
/// quarters of the limit. Before it refuses it asks to evict. Thread-safe.
/// Buffers may outlive it.
class DeviceBudget {
 public:
  DeviceBudget(std::shared_ptr<DevicePool> pool, int64_t limit_bytes, int64_t spare_bytes);

  /// RESOURCE_EXHAUSTED: "the request needs 8589934592 bytes of device memory, 1073741824 of
  /// 4294967296 are free ..."; with a RetryDelay unless it is more than the limit; or the owner's
  /// quota says so (Quota::kDeviceBytes). Copies of what
  /// the host has, which go when others need the room, have no owner (null). Nothing is evicted for
  /// a thread that has a Budget::SpareOnly.
  MemorySource& Source(MemoryUse use, const MemoryOwner* owner = nullptr);
  /// Likewise, but nothing is copied to the host to make room, nor given back to the card: for
  /// threads that must not block.
  MemorySource& SourceAtOnce(MemoryUse use, const MemoryOwner* owner = nullptr);
  /// Likewise, but nothing is evicted: for what others can do without.
  MemorySource& SpareSource(MemoryUse use);
  /// As Source, of memory that other processes can be given to map (cuda::Export), where the card
  /// has such memory: whole multiples of some megabytes, which count.
  MemorySource& ExportableSource(MemoryUse use, const MemoryOwner* owner = nullptr);
  /// What `bytes` of it count with.
  size_t ExportableBytes(size_t bytes) const;
  /// Called without locks when `bytes` more are needed; true if anything was let go. `at_once`:
  /// without copying anything. Set before the first allocation.
  std::function<bool(int64_t bytes, bool at_once)> evict;

  /// Gives what is kept for the next buffers, and used by none, back to the card.
  void Trim();
  /// From now on nothing is allocated, with `why` as the error.
  void Close(absl::Status why);

  int64_t limit() const;
  int64_t used(MemoryUse use) const;
  int64_t used() const;
  int64_t peak() const;
  /// Bytes that each owner's buffers count with, by name.
  std::map<std::string, int64_t> owned() const;
  int64_t owned_by(const std::string& owner) const;

 private:
  class State;
  /// What one owner has, guarded by the state.
  struct Owned {
    Tenant* tenant = nullptr;
    int64_t bytes = 0;
    int64_t request_bytes = 0;  ///< of these: they go by themselves
  };
  class UseSource final : public MemorySource {
   public:
    absl::StatusOr<Buffer> Allocate(size_t bytes) override;
    DeviceBudget* budget = nullptr;
    MemoryUse use = MemoryUse::kRequests;
    Owned* owned = nullptr;  ///< null: nobody pays
    bool evicts = true;
    bool at_once = false;
    bool exportable = false;
  };

  /// Of one owner, or of none.
  struct Sources {
    Sources(DeviceBudget* budget, Owned* owned);
    std::array<UseSource, kMemoryUses> source, at_once, exportable;
  };
  Sources& SourcesOf(const MemoryOwner* owner);

  std::shared_ptr<State> state_;
  Sources unowned_{this, nullptr};
  std::array<UseSource, kMemoryUses> spare_;
  Mutex owners_mutex_;
  std::map<std::string, Sources, std::less<>> owners_ ABSL_GUARDED_BY(owners_mutex_);
};

}  // namespace sparsed::engine
