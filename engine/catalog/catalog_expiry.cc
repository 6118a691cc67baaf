// Matrices that nothing uses any more.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/catalog/catalog.h"

namespace sparsed::engine {
namespace {

/// Entries that are looked at without letting go of the lock: a millisecond at most.
constexpr int kDueAtOnce = 4096;
/// Leases of one that nobody uses: those of the catalog's two maps.
constexpr int64_t kOwnLeases = 2;

}  // namespace

absl::Status CheckTimeToLive(std::string_view what, std::chrono::nanoseconds time_to_live,
                             std::string_view otherwise) {
  if (time_to_live.count() >= 0 && time_to_live <= kLongestTimeToLive) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} has a time to live of {} ns, expected 1 to {} (366 days), or 0 for {}", what,
                  time_to_live.count(), kLongestTimeToLive.count(), otherwise));
}

bool Catalog::IsDue(const MatrixLease& matrix) const {
  const MatrixKeep& keep = matrix->keep();
  if (keep.time_to_live.count() == 0) return false;
  if (matrix.use_count() > kOwnLeases) {
    keep.used->store(options_.now(), std::memory_order_relaxed);
    return false;
  }
  return options_.now() - keep.used->load(std::memory_order_relaxed) >= keep.time_to_live;
}

std::vector<NameKey> Catalog::FindDue() {
  std::vector<NameKey> due;
  const MutexLock lock(mutex_);
  auto it = matrices_.upper_bound(looked_at_);
  for (int i = 0; i < kDueAtOnce && it != matrices_.end(); ++i, ++it) {
    if (IsDue(it->second)) due.push_back(it->first);
  }
  looked_at_ = it == matrices_.end() ? NameKey() : std::prev(it)->first;
  return due;
}

std::optional<MatrixExpiry> Catalog::ExpireIfDue(const NameKey& key) {
  MatrixExpiry expiry;
  std::shared_ptr<Pattern> gone;
  {
    const NameLocks::Guard change(changes_, key);
    {
      const MutexLock lock(mutex_);
      const auto found = matrices_.find(key);
      if (found == matrices_.end() || !IsDue(found->second)) return std::nullopt;
      // From here on nobody can begin to use it; while the name is locked nobody uploads another.
      expiry.matrix = RemoveLocked(key);
    }
    expiry.status = store_.DeleteMatrix(key.first, key.second);
    const MutexLock lock(mutex_);
    if (expiry.status.ok()) {
      gone = ForgetNameLocked(key, expiry.matrix);
    } else {
      // It is there as long as a restart would bring it back; tried again after its time to live.
      expiry.matrix->keep().used->store(options_.now(), std::memory_order_relaxed);
      ReplaceLocked(expiry.matrix);
    }
  }
  if (!expiry.status.ok()) return expiry;
  if (gone != nullptr && on_pattern_gone) on_pattern_gone(gone);
  return expiry;
}

std::shared_ptr<Pattern> Catalog::ForgetNameLocked(const NameKey& key, const MatrixLease& deleted) {
  const auto versions = versions_.find(key);
  deleted_version_ = std::max(deleted_version_, versions->second.last);
  versions_.erase(versions);
  shares_.Forget(key);
  return RetireLocked(deleted->pattern());
}

std::vector<MatrixExpiry> Catalog::Expire(const std::stop_token& stop) {
  std::vector<MatrixExpiry> expired;
  for (const NameKey& key : FindDue()) {
    if (stop.stop_requested()) break;
    std::optional<MatrixExpiry> expiry = ExpireIfDue(key);
    if (expiry.has_value()) expired.push_back(*std::move(expiry));
  }
  return expired;
}

}  // namespace sparsed::engine
