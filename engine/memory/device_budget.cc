#include "engine/memory/device_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/mutex.h"
#include "engine/retry.h"

namespace sparsed::engine {

/// Shared with every buffer.
class DeviceBudget::State : public std::enable_shared_from_this<State> {
 public:
  State(std::shared_ptr<DevicePool> pool, int64_t limit, int64_t spare)
      : limit_(limit), spare_(spare), pool_(std::move(pool)) {}

  absl::StatusOr<Buffer> Allocate(size_t bytes, MemoryUse use, Owned* owned, bool exportable) {
    const size_t taken = Taken(bytes, exportable);
    if (taken > static_cast<size_t>(limit_)) {
      return absl::ResourceExhaustedError(fmt::format(
          "{} needs {} bytes of device memory, more than the {} that --device-memory allows in all",
          Subject(use), taken, limit_));
    }
    const auto size = static_cast<int64_t>(taken);
    {
      const MutexLock lock(mutex_);
      if (!closed_.ok()) return closed_;
      if (!MayFitLocked(size, use)) {
        return RetryLater(absl::ResourceExhaustedError(fmt::format(
            "{} needs {} bytes of device memory, more than what is left of the three quarters of "
            "--device-memory that callers may have mapped; let some go",
            Subject(use), taken)));
      }
      if (total_ + size > limit_) {
        return RetryLater(absl::ResourceExhaustedError(fmt::format(
            "{} needs {} bytes of device memory, {} of {} are free; retry later, or raise "
            "--device-memory",
            Subject(use), taken, limit_ - total_, limit_)));
      }
      if (absl::Status s = CheckQuotaLocked(size, owned); !s.ok()) return s;
      total_ += size;
      used_[static_cast<int>(use)] += size;
      CountOwnedLocked(size, use, owned);
      peak_ = std::max(peak_, total_);
    }
    absl::StatusOr<Buffer> buffer = FromCard(bytes, use, exportable);
    if (!buffer.ok()) {
      Uncount(size, use, owned);
      return buffer.status();
    }
    auto* const data = buffer->mutable_data();
    return Buffer(std::shared_ptr<std::byte>(data,
                                             [state = shared_from_this(), size, use, owned,
                                              held = *std::move(buffer)](std::byte*) mutable {
                                               held = Buffer();
                                               state->Uncount(size, use, owned);
                                             }),
                  bytes);
  }

  /// What it counts with.
  size_t Taken(size_t bytes, bool exportable) const {
    return exportable ? pool_->ExportableBytes(bytes) : bytes;
  }
  /// Whether it may be allocated if enough else goes, of what is nobody's.
  bool MayFit(size_t taken, MemoryUse use, const Owned* owned) const {
    const MutexLock lock(mutex_);
    if (owned != nullptr && owned->bytes + static_cast<int64_t>(taken) >
                                owned->tenant->limit(Quota::kDeviceBytes).hard) {
      return false;
    }
    return taken <= static_cast<size_t>(limit_) && MayFitLocked(static_cast<int64_t>(taken), use);
  }

  void Settle() { pool_->Settle(); }
  void Trim() { pool_->Trim(); }
  void Close(absl::Status why) {
    const MutexLock lock(mutex_);
    closed_ = std::move(why);
  }
  int64_t limit() const { return limit_; }
  int64_t used(MemoryUse use) const {
    const MutexLock lock(mutex_);
    return used_[static_cast<int>(use)];
  }
  int64_t used() const {
    const MutexLock lock(mutex_);
    return total_;
  }
  int64_t peak() const {
    const MutexLock lock(mutex_);
    return peak_;
  }
  std::map<std::string, int64_t> owned() const {
    const MutexLock lock(mutex_);
    std::map<std::string, int64_t> owned;
    for (const auto& [name, of] : owned_) owned[name] = of.bytes;
    return owned;
  }
  int64_t owned_by(const std::string& owner) const {
    const MutexLock lock(mutex_);
    const auto of = owned_.find(owner);
    return of == owned_.end() ? 0 : of->second.bytes;
  }
  /// There as long as this.
  Owned* OwnedBy(Tenant& tenant) {
    const MutexLock lock(mutex_);
    Owned& owned = owned_[tenant.name()];
    owned.tenant = &tenant;
    return &owned;
  }

 private:
  absl::StatusOr<Buffer> FromCard(size_t bytes, MemoryUse use, bool exportable) {
    const absl::StatusOr<int64_t> left =
        exportable ? pool_->LeftAfterExportable(bytes) : pool_->LeftAfter(bytes);
    if (!left.ok()) return left.status();
    if (*left < spare_) {
      return RetryLater(absl::ResourceExhaustedError(
          fmt::format("{} needs {} bytes of device memory, but others use the card: {} bytes too "
                      "few are free on it; retry later",
                      Subject(use), bytes, spare_ - *left)));
    }
    return exportable ? pool_->AllocateExportable(bytes) : pool_->Allocate(bytes);
  }

  bool MayFitLocked(int64_t size, MemoryUse use) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return use != MemoryUse::kShared || used_[static_cast<int>(use)] + size <= limit_ - limit_ / 4;
  }

  static absl::Status CheckQuotaLocked(int64_t size, const Owned* owned) {
    if (owned == nullptr) return absl::OkStatus();
    absl::Status fits = owned->tenant->CheckUse(Quota::kDeviceBytes, owned->bytes, size);
    const int64_t lasting = owned->bytes - owned->request_bytes;
    const bool waiting_helps = size <= owned->tenant->limit(Quota::kDeviceBytes).hard - lasting;
    return fits.ok() || !waiting_helps ? fits : RetryLater(std::move(fits));
  }
  static void CountOwnedLocked(int64_t size, MemoryUse use, Owned* owned) {
    if (owned == nullptr) return;
    owned->bytes += size;
    if (use == MemoryUse::kRequests) owned->request_bytes += size;
  }

  void Uncount(int64_t size, MemoryUse use, Owned* owned) {
    const MutexLock lock(mutex_);
    total_ -= size;
    used_[static_cast<int>(use)] -= size;
    CountOwnedLocked(-size, use, owned);
  }

  const int64_t limit_, spare_;
  const std::shared_ptr<DevicePool> pool_;
  mutable Mutex mutex_;
  std::array<int64_t, kMemoryUses> used_ ABSL_GUARDED_BY(mutex_) = {};
  int64_t total_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Owned> owned_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  ///< OK, or why nothing is allocated any more
};

DeviceBudget::DeviceBudget(std::shared_ptr<DevicePool> pool, int64_t limit_bytes,
                           int64_t spare_bytes)
    : state_(std::make_shared<State>(std::move(pool), limit_bytes, spare_bytes)) {
  for (int i = 0; i < kMemoryUses; ++i) {
    spare_[i].budget = this;
    spare_[i].use = static_cast<MemoryUse>(i);
    spare_[i].evicts = false;
  }
}

DeviceBudget::Sources::Sources(DeviceBudget* budget, Owned* owned) {
  for (int i = 0; i < kMemoryUses; ++i) {
    for (UseSource* each : {&source[i], &at_once[i], &exportable[i]}) {
      each->budget = budget;
      each->use = static_cast<MemoryUse>(i);
      each->owned = owned;
    }
    at_once[i].at_once = true;
    exportable[i].exportable = true;
  }
}

DeviceBudget::Sources& DeviceBudget::SourcesOf(const MemoryOwner* owner) {
  if (owner == nullptr) return unowned_;
  const std::string_view name = NameOf(*owner);
  const MutexLock lock(owners_mutex_);
  const auto known = owners_.find(name);
  if (known != owners_.end()) return known->second;
  return owners_.try_emplace(std::string(name), this, state_->OwnedBy(TenantOf(*owner)))
      .first->second;
}

absl::StatusOr<Buffer> DeviceBudget::UseSource::Allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  State& state = *budget->state_;
  const size_t taken = state.Taken(bytes, exportable);
  absl::StatusOr<Buffer> buffer = state.Allocate(bytes, use, owned, exportable);
  const bool may_evict = evicts && budget->evict && !Budget::SpareOnly::Holds();
  while (may_evict && absl::IsResourceExhausted(buffer.status()) &&
         state.MayFit(taken, use, owned) && budget->evict(static_cast<int64_t>(taken), at_once)) {
    if (at_once) {
      state.Settle();
    } else {
      state.Trim();
    }
    buffer = state.Allocate(bytes, use, owned, exportable);
  }
  return buffer;
}

MemorySource& DeviceBudget::Source(MemoryUse use, const MemoryOwner* owner) {
  return SourcesOf(owner).source[static_cast<int>(use)];
}
MemorySource& DeviceBudget::SourceAtOnce(MemoryUse use, const MemoryOwner* owner) {
  return SourcesOf(owner).at_once[static_cast<int>(use)];
}
MemorySource& DeviceBudget::SpareSource(MemoryUse use) { return spare_[static_cast<int>(use)]; }
MemorySource& DeviceBudget::ExportableSource(MemoryUse use, const MemoryOwner* owner) {
  return SourcesOf(owner).exportable[static_cast<int>(use)];
}
size_t DeviceBudget::ExportableBytes(size_t bytes) const {
  return state_->Taken(bytes, /*exportable=*/true);
}
void DeviceBudget::Trim() { state_->Trim(); }
void DeviceBudget::Close(absl::Status why) { state_->Close(std::move(why)); }
int64_t DeviceBudget::limit() const { return state_->limit(); }
int64_t DeviceBudget::used(MemoryUse use) const { return state_->used(use); }
int64_t DeviceBudget::used() const { return state_->used(); }
int64_t DeviceBudget::peak() const { return state_->peak(); }
std::map<std::string, int64_t> DeviceBudget::owned() const { return state_->owned(); }
int64_t DeviceBudget::owned_by(const std::string& owner) const { return state_->owned_by(owner); }

}  // namespace sparsed::engine
