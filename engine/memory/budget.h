// Host memory under a limit: every buffer that the engine holds is counted here.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/memory/eviction_queue.h"
#include "engine/memory/tenants.h"
#include "kernels/array.h"
#include "kernels/layout.h"

namespace sparsed::engine {

enum class MemoryUse : uint8_t { kMatrices, kLayouts, kBuffers, kRequests, kPreparation, kShared };
inline constexpr int kMemoryUses = 6;
/// "matrices", "layouts", "buffers", "requests", "preparation", "shared".
std::string_view Name(MemoryUse use);
/// Of the sentence that it needs memory: "the matrix", "the request", ...
std::string_view Subject(MemoryUse use);

/// Who pays for memory: a tenant, of one budget (Budget::OwnerOf).
class MemoryOwner;
std::string_view NameOf(const MemoryOwner& owner);
Tenant& TenantOf(const MemoryOwner& owner);

/// Counts bytes by use, and by who pays for them, and refuses what would exceed the limit. A buffer
/// counts with what it takes: from 128 KiB on whole pages, which go back to the operating system
/// with it. Some are kept for the next caller instead (see KeptBlocks), within the limit, and given
/// up when somebody needs the memory or nobody took them for a while. Where that is not enough, and
/// would be with it, what can be had again is evicted before anybody is refused: first what belongs
/// to tenants that are above their soft limit. Whoever is at his hard limit (Quota::kHostBytes) has
/// what is his evicted, and is refused if that is not enough. Thread-safe.
/// Buffers may outlive the budget.
class Budget {
 public:
  /// `limit_bytes` for all uses together; `preparation_bytes` for kPreparation alone. kShared has
  /// three quarters of the limit, as it lasts for as long as other processes like.
  Budget(int64_t limit_bytes, int64_t preparation_bytes);
  ~Budget();

  /// Buffers counted under `use` until their last copy is gone.
  /// RESOURCE_EXHAUSTED: "the request needs 8589934592 bytes of host memory, 1073741824 of
  /// 4294967296 are free; ..."; with a RetryDelay if it would fit once requests and preparations
  /// have ended.
  /// What belongs to all, such as plans, caches and preparations, has no owner (null).
  MemorySource& Source(MemoryUse use, MemoryOwner* owner = nullptr);
  /// While one lives, nothing is evicted for what its thread allocates, on a GPU either, or reads
  /// from the disk: it gets what is free.
  class SpareOnly {
   public:
    SpareOnly();
    ~SpareOnly();
    /// Whether the calling thread has one.
    static bool Holds();
    SpareOnly(const SpareOnly&) = delete;
    SpareOnly& operator=(const SpareOnly&) = delete;
  };

  /// Of that tenant; made the first time, and there as long as the budget: tenants are few. Takes a
  /// lock: to be asked for once a request, not once a buffer.
  MemoryOwner& OwnerOf(std::string_view name);
  /// Whose limits hold.
  Tenants& tenants() const;
  /// Bytes that each owner's buffers count with, by name.
  std::map<std::string, int64_t> owned() const;

  /// Counts until its last copy is gone.
  using Charge = std::shared_ptr<const void>;
  /// Counts `bytes` that are allocated elsewhere, for small objects of which there may be millions.
  /// RESOURCE_EXHAUSTED as from Source.
  absl::StatusOr<Charge> Count(size_t bytes, MemoryUse use, MemoryOwner* owner = nullptr);

  /// RESOURCE_EXHAUSTED, as from Source, if so many bytes at once are more than the limit ever has,
  /// or the owner's. For those who need several buffers: each alone might be refused as if waiting
  /// helped.
  absl::Status MayFit(size_t bytes, MemoryUse use, const MemoryOwner* owner = nullptr) const;

  /// What is in memory only as long as nobody needs the room.
  const std::shared_ptr<EvictionQueue>& evictions() const;

  /// For tests: what `refuse` says true to is refused as if there were no room for it. Asked for
  /// every buffer and every Count, under the budget's lock.
  void SetRefuse(std::function<bool(size_t bytes, MemoryUse use)> refuse);

  /// Gives up the blocks that were kept, untouched, since before the last call. For a thread that
  /// calls it every few seconds.
  void TrimKept();

  int64_t limit() const;
  int64_t used(MemoryUse use) const;
  int64_t used() const;
  /// Bytes kept for the next caller; not in used(), and never more than used() leaves of the limit.
  int64_t kept() const;
  /// Highest used() since the start.
  int64_t peak() const;

  class State;

 private:
  std::shared_ptr<State> state_;
};

/// What memory that came from a budget counts with.
int64_t CountedBytes(const Array& array);
int64_t CountedBytes(const Layout& layout);

/// Makes `buffer` at least `bytes` large if it is smaller; what was in it is gone then. For
/// workspaces: the smaller one goes first, so that both need not fit.
absl::Status Grow(Buffer& buffer, size_t bytes, MemorySource& memory);

}  // namespace sparsed::engine
