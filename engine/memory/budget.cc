#include "engine/memory/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/memory/blocks.h"
#include "engine/retry.h"

namespace sparsed::engine {
namespace {

void DeleteBlocks(const std::vector<Block>& blocks) {
  for (const Block& block : blocks) DeleteBlock(block);
}

}  // namespace

std::string_view Name(MemoryUse use) {
  switch (use) {
    case MemoryUse::kMatrices:
      return "matrices";
    case MemoryUse::kLayouts:
      return "layouts";
    case MemoryUse::kBuffers:
      return "buffers";
    case MemoryUse::kRequests:
      return "requests";
    case MemoryUse::kPreparation:
      return "preparation";
    case MemoryUse::kShared:
      return "shared";
  }
  return "unknown";
}

std::string_view Subject(MemoryUse use) {
  switch (use) {
    case MemoryUse::kMatrices:
      return "the matrix";
    case MemoryUse::kLayouts:
      return "the layout";
    case MemoryUse::kBuffers:
      return "the buffer";
    case MemoryUse::kRequests:
      return "the request";
    case MemoryUse::kPreparation:
      return "the preparation";
    case MemoryUse::kShared:
      return "the shared memory";
  }
  return "it";
}

namespace {

thread_local int spare_only = 0;  ///< how many SpareOnly the thread has

/// Where memory of one use comes from. A budget's, for one owner or for none.
class UseSource final : public MemorySource {
 public:
  absl::StatusOr<Buffer> Allocate(size_t bytes) override;

  Budget::State* state = nullptr;
  MemoryUse use = MemoryUse::kRequests;
  MemoryOwner* owner = nullptr;
};
using UseSources = std::array<UseSource, kMemoryUses>;

UseSources SourcesOf(Budget::State* state, MemoryOwner* owner) {
  UseSources sources;
  for (int i = 0; i < kMemoryUses; ++i) {
    sources[i].state = state;
    sources[i].use = static_cast<MemoryUse>(i);
    sources[i].owner = owner;
  }
  return sources;
}

}  // namespace

/// Its bytes are guarded by the budget's mutex; the tenant counts them all.
class MemoryOwner {
 public:
  MemoryOwner(Budget::State* state, Tenant& tenant)
      : tenant(tenant), sources(SourcesOf(state, this)) {}

  int64_t bytes() const { return tenant.used(Quota::kHostBytes); }

  Tenant& tenant;
  UseSources sources;
  int64_t request_bytes = 0;  ///< of requests: they go by themselves
};

std::string_view NameOf(const MemoryOwner& owner) { return owner.tenant.name(); }
Tenant& TenantOf(const MemoryOwner& owner) { return owner.tenant; }

/// Shared by the budget and every buffer that came from it.
class Budget::State : public std::enable_shared_from_this<State> {
 public:
  State(int64_t limit, int64_t preparation_limit)
      : limit_(limit), preparation_limit_(preparation_limit), keep_limit_(limit / 8) {}
  ~State() { DeleteBlocks(kept_.TakeDownTo(0)); }

  /// Calls `take` again as long as it is refused and something can be evicted for it.
  template <typename T, typename Take>
  absl::StatusOr<T> Reclaiming(size_t bytes, MemoryUse use, const MemoryOwner* owner,
                               const Take& take) {
    absl::StatusOr<T> taken = take();
    bool came_free = false;
    const MemoryOwner* evicted_of = nullptr;  // whose, or anybody's: the first time it is looked
    bool evicted = false;
    while (spare_only == 0 && absl::IsResourceExhausted(taken.status())) {
      const std::optional<Lack> lack = LackOf(bytes, use, owner);
      if (!lack) break;
      if (lack->bytes == 0) {
        // Somebody let go of it since, unless it is refused for another reason.
        if (std::exchange(came_free, true)) break;
      } else {
        // Nothing goes for what would be refused all the same.
        const bool looked = evicted && evicted_of == lack->of;
        if (!looked && !evictions_->HasIdle(lack->bytes, lack->of)) break;
        if (!Evict(lack->of)) break;
        evicted = true;
        evicted_of = lack->of;
      }
      taken = take();
    }
    if (absl::IsResourceExhausted(taken.status()) && owner != nullptr &&
        owner->bytes() + static_cast<int64_t>(BlockBytes(bytes)) >
            owner->tenant.limit(Quota::kHostBytes).hard) {
      owner->tenant.CountRefusal(Quota::kHostBytes);
    }
    return taken;
  }

  absl::StatusOr<Charge> Count(size_t bytes, MemoryUse use, MemoryOwner* owner) {
    if (absl::Status s = CountIfItFits(bytes, use, owner, /*block=*/nullptr); !s.ok()) return s;
    return Charge(this,
                  [state = shared_from_this(), size = BlockBytes(bytes), use, owner](const void*) {
                    state->Uncount(static_cast<int64_t>(size), use, owner);
                  });
  }

  absl::StatusOr<Buffer> Allocate(size_t bytes, MemoryUse use, MemoryOwner* owner) {
    if (bytes == 0) return Buffer();
    const size_t size = BlockBytes(bytes);
    Block block;
    if (absl::Status s = CountIfItFits(bytes, use, owner, &block); !s.ok()) return s;
    if (block.data == nullptr) block = NewBlock(size);
    if (block.data == nullptr) {
      Uncount(static_cast<int64_t>(size), use, owner);
      return absl::ResourceExhaustedError(
          fmt::format("the operating system refused {} bytes of memory for {}", bytes, Name(use)));
    }
    if (block.bytes > size) block = CutBlock(block, size);
    return Buffer(
        std::shared_ptr<std::byte>(block.data,
                                   [state = shared_from_this(), size, use, owner](std::byte* p) {
                                     state->Return({p, size}, use, owner);
                                   }),
        bytes);
  }

  absl::Status MayFit(size_t bytes, MemoryUse use, const MemoryOwner* owner) const {
    if (NeverFits(bytes, use)) return RefusedForEver(bytes, use);
    const auto size = static_cast<int64_t>(BlockBytes(bytes));
    if (owner == nullptr || size <= owner->tenant.limit(Quota::kHostBytes).hard) {
      return absl::OkStatus();
    }
    return owner->tenant.CheckUse(Quota::kHostBytes, owner->bytes(), size);
  }

  const std::shared_ptr<Tenants>& tenants() const { return tenants_; }
  const std::shared_ptr<EvictionQueue>& evictions() const { return evictions_; }
  void SetRefuse(std::function<bool(size_t, MemoryUse)> refuse) {
    const MutexLock lock(mutex_);
    refuse_ = std::move(refuse);
  }

  void TrimKept() {
    std::vector<Block> idle;
    {
      const MutexLock lock(mutex_);
      idle = kept_.TakeIdle();
    }
    DeleteBlocks(idle);
  }

  MemorySource& source(MemoryUse use, MemoryOwner* owner) {
    return (owner == nullptr ? sources_ : owner->sources)[static_cast<int>(use)];
  }
  MemoryOwner& OwnerOf(std::string_view name) {
    const MutexLock lock(mutex_);
    const auto known = owners_.find(name);
    if (known != owners_.end()) return known->second;
    return owners_.try_emplace(std::string(name), this, tenants_->Of(name)).first->second;
  }
  std::map<std::string, int64_t> owned() const {
    const MutexLock lock(mutex_);
    std::map<std::string, int64_t> owned;
    for (const auto& [name, owner] : owners_) owned[name] = owner.bytes();
    return owned;
  }
  int64_t limit() const { return limit_; }
  int64_t used(MemoryUse use) const {
    const MutexLock lock(mutex_);
    return UsedLocked(use);
  }
  int64_t used() const {
    const MutexLock lock(mutex_);
    return total_;
  }
  int64_t kept() const {
    const MutexLock lock(mutex_);
    return kept_.bytes();
  }
  int64_t peak() const {
    const MutexLock lock(mutex_);
    return peak_;
  }
  /// No more blocks are kept: the budget is gone.
  void Close() {
    std::vector<Block> dropped;
    {
      const MutexLock lock(mutex_);
      keep_limit_ = 0;
      dropped = kept_.TakeDownTo(0);
    }
    DeleteBlocks(dropped);
  }

 private:
  /// What is not free, and whose evictions help: a tenant's, or (null) anybody's.
  struct Lack {
    int64_t bytes = 0;
    const MemoryOwner* of = nullptr;
  };
  /// None if evictions do not help.
  std::optional<Lack> LackOf(size_t bytes, MemoryUse use, const MemoryOwner* owner) const {
    if (NeverFits(bytes, use)) return std::nullopt;
    const auto size = static_cast<int64_t>(BlockBytes(bytes));
    const MutexLock lock(mutex_);
    // Evictions free nothing of a use that has a limit of its own.
    if (LimitOf(use) < limit_ && UsedLocked(use) + size > LimitOf(use)) return std::nullopt;
    if (owner != nullptr) {
      const int64_t hard = owner->tenant.limit(Quota::kHostBytes).hard;
      if (size > hard) return std::nullopt;
      if (const int64_t lacks = owner->bytes() - (hard - size); lacks > 0)
        return Lack{lacks, owner};
    }
    return Lack{std::max<int64_t>(0, total_ + size - limit_), nullptr};
  }

  bool Evict(const MemoryOwner* of) {
    if (of != nullptr) return evictions_->EvictOne(of);
    for (const MemoryOwner* greedy : AboveSoftLimit()) {
      if (evictions_->EvictOne(greedy)) return true;
    }
    return evictions_->EvictOne();
  }
  std::vector<const MemoryOwner*> AboveSoftLimit() const {
    std::vector<const MemoryOwner*> above;
    const MutexLock lock(mutex_);
    for (const auto& [name, owner] : owners_) {
      if (owner.tenant.above_soft(Quota::kHostBytes)) above.push_back(&owner);
    }
    return above;
  }

  /// Refuses what is more than the owner may have; else counts it there.
  absl::Status CountOwnedLocked(int64_t size, MemoryOwner* owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (owner == nullptr) return absl::OkStatus();
    absl::Status taken = owner->tenant.TryToTake(Quota::kHostBytes, size);
    const int64_t lasting = owner->bytes() - owner->request_bytes;
    const bool waiting_helps = size <= owner->tenant.limit(Quota::kHostBytes).hard - lasting;
    return taken.ok() || !waiting_helps ? taken : RetryLater(std::move(taken));
  }

  int64_t UsedLocked(MemoryUse use) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return used_[static_cast<int>(use)];
  }

  int64_t LimitOf(MemoryUse use) const {
    switch (use) {
      case MemoryUse::kPreparation:
        return std::min(preparation_limit_, limit_);
      case MemoryUse::kShared:
        return limit_ / 4 * 3;
      default:
        return limit_;
    }
  }
  bool NeverFits(size_t bytes, MemoryUse use) const {
    const auto limit = static_cast<size_t>(LimitOf(use));
    return bytes > limit || BlockBytes(bytes) > limit;
  }
  bool FitsLocked(size_t size, MemoryUse use) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto more = static_cast<int64_t>(size);
    return UsedLocked(use) + more <= LimitOf(use) && total_ + more <= limit_;
  }

  static const char* FlagOf(MemoryUse use) {
    return use == MemoryUse::kPreparation ? "--preparation-memory" : "--host-memory";
  }
  /// Of the sentence that it allows so much. What the wire has of --host-memory is not counted
  /// here.
  static std::string BoundOf(MemoryUse use) {
    switch (use) {
      case MemoryUse::kPreparation:
        return "--preparation-memory allows";
      case MemoryUse::kShared:
        return "three quarters of --host-memory less --wire-memory allow";
      default:
        return "--host-memory less --wire-memory allows";
    }
  }
  absl::Status RefusedForEver(size_t bytes, MemoryUse use) const {
    return absl::ResourceExhaustedError(
        fmt::format("{} needs {} bytes of host memory, more than the {} that {} in all",
                    Subject(use), std::max(bytes, BlockBytes(bytes)), LimitOf(use), BoundOf(use)));
  }
  absl::Status RefusedNowLocked(size_t bytes, MemoryUse use) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto size = static_cast<int64_t>(BlockBytes(bytes));
    if (UsedLocked(use) + size > LimitOf(use) && use == MemoryUse::kShared) {
      // For as long as whoever shares it likes.
      return absl::ResourceExhaustedError(fmt::format(
          "{} needs {} bytes of host memory, {} of the {} that {} for it in all are free; let go "
          "of some, or raise {}",
          Subject(use), size, LimitOf(use) - UsedLocked(use), LimitOf(use), BoundOf(use),
          FlagOf(use)));
    }
    const bool preparation_full =
        use == MemoryUse::kPreparation && UsedLocked(use) + size > LimitOf(use);
    const int64_t limit = preparation_full ? preparation_limit_ : limit_;
    const int64_t used = preparation_full ? UsedLocked(use) : total_;
    // What is in use now and can be evicted later does not last.
    const int64_t lasting =
        preparation_full ? 0
                         : UsedLocked(MemoryUse::kMatrices) + UsedLocked(MemoryUse::kLayouts) +
                               UsedLocked(MemoryUse::kBuffers) + UsedLocked(MemoryUse::kShared) -
                               evictions_->bytes();
    const bool waiting_helps = size <= limit - lasting;
    absl::Status refused = absl::ResourceExhaustedError(fmt::format(
        "{} needs {} bytes of host memory, {} of {} are free{}; {}delete matrices or buffers, or "
        "raise {}",
        Subject(use), size, limit - used, limit,
        preparation_full ? "" : " (--host-memory less --wire-memory)",
        waiting_helps ? "retry later, " : "",
        preparation_full ? FlagOf(use) : FlagOf(MemoryUse::kRequests)));
    return waiting_helps ? RetryLater(std::move(refused)) : refused;
  }

  /// A block for `bytes`: one that was kept, if there is one, is in `block` (may be null).
  absl::Status CountIfItFits(size_t bytes, MemoryUse use, MemoryOwner* owner, Block* block) {
    if (NeverFits(bytes, use)) return RefusedForEver(bytes, use);
    const size_t size = BlockBytes(bytes);
    std::vector<Block> dropped;
    {
      const MutexLock lock(mutex_);
      if (refuse_ != nullptr && refuse_(bytes, use)) return RefusedNowLocked(bytes, use);
      if (!FitsLocked(size, use)) return RefusedNowLocked(bytes, use);
      absl::Status owned = CountOwnedLocked(static_cast<int64_t>(size), owner);
      if (!owned.ok()) return owned;
      if (block != nullptr && size >= Block::kSmallestMapped) *block = kept_.Take(size);
      CountLocked(static_cast<int64_t>(size), use, owner);
      dropped = kept_.TakeDownTo(limit_ - total_);
    }
    // Outside the lock, and before there is more.
    DeleteBlocks(dropped);
    return absl::OkStatus();
  }
  /// All but what the tenant counts.
  void CountLocked(int64_t size, MemoryUse use, MemoryOwner* owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (owner != nullptr && use == MemoryUse::kRequests) owner->request_bytes += size;
    total_ += size;
    used_[static_cast<int>(use)] += size;
    peak_ = std::max(peak_, total_);
  }
  void Uncount(int64_t size, MemoryUse use, MemoryOwner* owner) {
    const MutexLock lock(mutex_);
    UncountLocked(size, use, owner);
  }
  void UncountLocked(int64_t size, MemoryUse use, MemoryOwner* owner)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    CountLocked(-size, use, owner);
    if (owner != nullptr) owner->tenant.Give(Quota::kHostBytes, size);
  }

  void Return(const Block& block, MemoryUse use, MemoryOwner* owner) {
    std::vector<Block> dropped;
    {
      const MutexLock lock(mutex_);
      const auto size = static_cast<int64_t>(block.bytes);
      UncountLocked(size, use, owner);
      const int64_t room = std::min(keep_limit_, limit_ - total_);
      if (block.mapped() && size <= room) {
        dropped = kept_.TakeDownTo(room - size);
        kept_.Keep(block);
      } else {
        dropped = {block};
      }
    }
    DeleteBlocks(dropped);
  }

  const int64_t limit_;
  const int64_t preparation_limit_;
  const std::shared_ptr<Tenants> tenants_ = std::make_shared<Tenants>();
  UseSources sources_ = SourcesOf(this, /*owner=*/nullptr);
  const std::shared_ptr<EvictionQueue> evictions_ = std::make_shared<EvictionQueue>();

  mutable Mutex mutex_;  ///< blocks are deleted without it
  int64_t keep_limit_ ABSL_GUARDED_BY(mutex_);
  std::function<bool(size_t, MemoryUse)> refuse_ ABSL_GUARDED_BY(mutex_);
  std::array<int64_t, kMemoryUses> used_ ABSL_GUARDED_BY(mutex_) = {};
  std::map<std::string, MemoryOwner, std::less<>> owners_ ABSL_GUARDED_BY(mutex_);
  int64_t total_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
  KeptBlocks kept_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<Buffer> UseSource::Allocate(size_t bytes) {
  return state->Reclaiming<Buffer>(bytes, use, owner,
                                   [&] { return state->Allocate(bytes, use, owner); });
}

int64_t CountedBytes(const Array& array) {
  return static_cast<int64_t>(BlockBytes(array.buffer.size()));
}

int64_t CountedBytes(const Layout& layout) {
  int64_t bytes = 0;
  for (const Array& array : layout.arrays) bytes += CountedBytes(array);
  return bytes;
}

absl::Status Grow(Buffer& buffer, size_t bytes, MemorySource& memory) {
  if (buffer.size() >= bytes) return absl::OkStatus();
  buffer = Buffer();
  absl::StatusOr<Buffer> larger = memory.Allocate(bytes);
  if (!larger.ok()) return larger.status();
  buffer = *std::move(larger);
  return absl::OkStatus();
}

Budget::Budget(int64_t limit_bytes, int64_t preparation_bytes)
    : state_(std::make_shared<State>(limit_bytes, preparation_bytes)) {}
Budget::~Budget() { state_->Close(); }
MemorySource& Budget::Source(MemoryUse use, MemoryOwner* owner) {
  return state_->source(use, owner);
}
Budget::SpareOnly::SpareOnly() { ++spare_only; }
Budget::SpareOnly::~SpareOnly() { --spare_only; }
bool Budget::SpareOnly::Holds() { return spare_only > 0; }
MemoryOwner& Budget::OwnerOf(std::string_view name) { return state_->OwnerOf(name); }
std::map<std::string, int64_t> Budget::owned() const { return state_->owned(); }
absl::StatusOr<Budget::Charge> Budget::Count(size_t bytes, MemoryUse use, MemoryOwner* owner) {
  return state_->Reclaiming<Charge>(bytes, use, owner,
                                    [&] { return state_->Count(bytes, use, owner); });
}
const std::shared_ptr<EvictionQueue>& Budget::evictions() const { return state_->evictions(); }
void Budget::SetRefuse(std::function<bool(size_t, MemoryUse)> refuse) {
  state_->SetRefuse(std::move(refuse));
}
absl::Status Budget::MayFit(size_t bytes, MemoryUse use, const MemoryOwner* owner) const {
  return state_->MayFit(bytes, use, owner);
}
Tenants& Budget::tenants() const { return *state_->tenants(); }
void Budget::TrimKept() { state_->TrimKept(); }
int64_t Budget::limit() const { return state_->limit(); }
int64_t Budget::used(MemoryUse use) const { return state_->used(use); }
int64_t Budget::used() const { return state_->used(); }
int64_t Budget::kept() const { return state_->kept(); }
int64_t Budget::peak() const { return state_->peak(); }

}  // namespace sparsed::engine
