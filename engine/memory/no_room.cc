#include "engine/memory/no_room.h"

#include <algorithm>
#include <vector>

namespace sparsed::engine {
namespace {

/// Without holding it, lest it be freed here.
bool IsOf(const std::weak_ptr<LazyLayout>& noted, const std::shared_ptr<LazyLayout>& layout) {
  return !noted.owner_before(layout) && !layout.owner_before(noted);
}

}  // namespace

void NoRoom::Note(DeviceId device, const std::shared_ptr<LazyLayout>& layout, Time now) {
  const MutexLock lock(mutex_);
  std::erase_if(refusals_, [&](const Refusal& refusal) {
    return refusal.layout.expired() || refusal.until <= now ||
           (refusal.device == device && IsOf(refusal.layout, layout));
  });
  refusals_.push_back({device, layout, now + kTryAgainAfter});
  any_ = true;
}

bool NoRoom::Has(DeviceId device, const std::shared_ptr<LazyLayout>& layout, Time now) const {
  if (!any_) return false;
  const MutexLock lock(mutex_);
  return std::ranges::any_of(refusals_, [&](const Refusal& refusal) {
    return refusal.device == device && refusal.until > now && IsOf(refusal.layout, layout);
  });
}

}  // namespace sparsed::engine
