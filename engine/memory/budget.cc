#include "engine/memory/budget.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <new>
#include <utility>

namespace sparsed::engine {
namespace {

constexpr size_t kSmallestKept = 64 << 10;  ///< smaller blocks are the heap's business
constexpr size_t kHugePage = 2 << 20;

/// Four sizes an octave: a block that comes back fits the next request of about its size.
size_t Capacity(size_t bytes) {
  if (bytes < kSmallestKept) return bytes;
  const int shift = std::bit_width(bytes) - 3;
  const size_t step = size_t{1} << shift;
  return (bytes + step - 1) >> shift << shift;
}

size_t Alignment(size_t capacity) {
  return capacity >= 2 * kHugePage ? kHugePage : Buffer::kAlignment;
}

std::byte* NewBlock(size_t capacity) {
  const size_t alignment = Alignment(capacity);
  void* block = ::operator new (capacity, std::align_val_t{alignment}, std::nothrow);
  if (block != nullptr && alignment == kHugePage) {
    madvise(block, capacity, MADV_HUGEPAGE);  // advice only: it works without
  }
  return static_cast<std::byte*>(block);
}

void DeleteBlock(std::byte* block, size_t capacity) {
  ::operator delete (block, std::align_val_t{Alignment(capacity)});
}

}  // namespace

std::string_view NameInSentence(MemoryUse use) {
  return use == MemoryUse::kPreparation ? "preparations" : Name(use);
}

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
  }
  return "unknown";
}

/// Shared by the budget and every buffer that came from it.
class Budget::State : public std::enable_shared_from_this<State> {
 public:
  class UseSource final : public MemorySource {
   public:
    absl::StatusOr<Buffer> Allocate(size_t bytes) override {
      absl::StatusOr<Buffer> buffer = state->Allocate(bytes, use);
      while (absl::IsResourceExhausted(buffer.status()) && state->Short(bytes, use) &&
             state->Reclaim()) {
        buffer = state->Allocate(bytes, use);
      }
      return buffer;
    }
    State* state = nullptr;
    MemoryUse use = MemoryUse::kRequests;
  };

  State(int64_t limit, int64_t preparation_limit)
      : limit_(limit), keep_limit_(limit / 8), preparation_limit_(preparation_limit) {
    for (int i = 0; i < kMemoryUses; ++i) {
      sources_[i].state = this;
      sources_[i].use = static_cast<MemoryUse>(i);
    }
  }

  ~State() { DropKept(0); }

  absl::StatusOr<Buffer> Allocate(size_t bytes, MemoryUse use) {
    if (bytes == 0) return Buffer();
    const auto refused = [&](int64_t used, int64_t limit) {
      return absl::ResourceExhaustedError(fmt::format(
          "{} need {} bytes of host memory, {} of {} are free; retry later, delete matrices or "
          "buffers, or raise {}",
          NameInSentence(use), bytes, std::max<int64_t>(0, limit - used), limit,
          use == MemoryUse::kPreparation ? "--preparation-memory" : "--host-memory"));
    };
    if (bytes > static_cast<size_t>(limit_)) return refused(used(), limit_);
    const size_t capacity = Capacity(bytes);
    const auto size = static_cast<int64_t>(capacity);
    std::byte* block = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (use == MemoryUse::kPreparation && Used(use) + size > preparation_limit_) {
        return refused(Used(use), preparation_limit_);
      }
      if (total_ + size > limit_) return refused(total_, limit_);
      block = TakeKeptLocked(capacity);
      total_ += size;
      used_[static_cast<int>(use)] += size;
      peak_ = std::max(peak_, total_);
      if (total_ + kept_bytes_ > limit_) DropKeptLocked(limit_ - total_);
    }
    if (block == nullptr) block = NewBlock(capacity);
    if (block == nullptr) {
      Uncount(size, use);
      return absl::ResourceExhaustedError(
          fmt::format("the operating system refused {} bytes of memory for {}", bytes, Name(use)));
    }
    return Buffer(
        std::shared_ptr<std::byte>(block, [state = shared_from_this(), capacity,
                                           use](std::byte* p) { state->Return(p, capacity, use); }),
        bytes);
  }

  /// There would be room if enough was let go.
  bool Short(size_t bytes, MemoryUse use) const {
    if (bytes > static_cast<size_t>(limit_)) return false;
    const auto size = static_cast<int64_t>(Capacity(bytes));
    std::lock_guard lock(mutex_);
    if (use == MemoryUse::kPreparation && Used(use) + size > preparation_limit_) return false;
    return total_ + size > limit_;
  }
  bool Reclaim() const {
    std::function<bool()> reclaim;
    {
      std::lock_guard lock(mutex_);
      reclaim = reclaim_;
    }
    return reclaim != nullptr && reclaim();
  }
  void SetReclaim(std::function<bool()> reclaim) {
    std::lock_guard lock(mutex_);
    reclaim_ = std::move(reclaim);
  }

  MemorySource& source(MemoryUse use) { return sources_[static_cast<int>(use)]; }
  int64_t limit() const { return limit_; }
  int64_t used(MemoryUse use) const {
    std::lock_guard lock(mutex_);
    return Used(use);
  }
  int64_t used() const {
    std::lock_guard lock(mutex_);
    return total_;
  }
  int64_t peak() const {
    std::lock_guard lock(mutex_);
    return peak_;
  }
  /// No more blocks are kept: the budget is gone.
  void Close() {
    std::lock_guard lock(mutex_);
    keep_limit_ = 0;
    DropKeptLocked(0);
  }

 private:
  int64_t Used(MemoryUse use) const { return used_[static_cast<int>(use)]; }

  void Uncount(int64_t size, MemoryUse use) {
    std::lock_guard lock(mutex_);
    total_ -= size;
    used_[static_cast<int>(use)] -= size;
  }

  void Return(std::byte* block, size_t capacity, MemoryUse use) {
    const auto size = static_cast<int64_t>(capacity);
    {
      std::lock_guard lock(mutex_);
      total_ -= size;
      used_[static_cast<int>(use)] -= size;
      const int64_t room = std::min(keep_limit_, limit_ - total_);
      if (capacity >= kSmallestKept && size <= room) {
        DropKeptLocked(room - size);
        kept_ages_.emplace(++age_, capacity);
        kept_.emplace(std::pair(capacity, age_), block);
        kept_bytes_ += size;
        return;
      }
    }
    DeleteBlock(block, capacity);
  }

  void DropKept(int64_t down_to) {
    std::lock_guard lock(mutex_);
    DropKeptLocked(down_to);
  }

  /// The kept block of this capacity that came back last; null if there is none.
  std::byte* TakeKeptLocked(size_t capacity) {
    auto kept = kept_.upper_bound(std::pair(capacity, age_));
    if (kept == kept_.begin() || (--kept)->first.first != capacity) return nullptr;
    std::byte* const block = kept->second;
    kept_ages_.erase(kept->first.second);
    kept_.erase(kept);
    kept_bytes_ -= static_cast<int64_t>(capacity);
    return block;
  }

  /// Frees kept blocks, those that came back longest ago first, until at most `down_to` bytes are
  /// kept: what serves the requests of now stays.
  void DropKeptLocked(int64_t down_to) {
    while (kept_bytes_ > down_to && !kept_ages_.empty()) {
      const auto [age, capacity] = *kept_ages_.begin();
      const auto kept = kept_.find(std::pair(capacity, age));
      DeleteBlock(kept->second, capacity);
      kept_bytes_ -= static_cast<int64_t>(capacity);
      kept_.erase(kept);
      kept_ages_.erase(kept_ages_.begin());
    }
  }

  const int64_t limit_;
  int64_t keep_limit_;
  const int64_t preparation_limit_;
  std::array<UseSource, kMemoryUses> sources_;

  mutable std::mutex mutex_;
  std::function<bool()> reclaim_;
  std::array<int64_t, kMemoryUses> used_ = {};
  int64_t total_ = 0;
  int64_t peak_ = 0;
  std::map<std::pair<size_t, uint64_t>, std::byte*> kept_;  ///< by capacity and age
  std::map<uint64_t, size_t> kept_ages_;                    ///< capacities, the oldest first
  uint64_t age_ = 0;
  int64_t kept_bytes_ = 0;
};

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
MemorySource& Budget::Source(MemoryUse use) { return state_->source(use); }
void Budget::SetReclaim(std::function<bool()> reclaim) { state_->SetReclaim(std::move(reclaim)); }
int64_t Budget::limit() const { return state_->limit(); }
int64_t Budget::used(MemoryUse use) const { return state_->used(use); }
int64_t Budget::used() const { return state_->used(); }
int64_t Budget::peak() const { return state_->peak(); }

}  // namespace sparsed::engine
