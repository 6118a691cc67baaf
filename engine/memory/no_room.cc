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
  std::erase_if(noted_, [&](const Noted& noted) {
    return noted.layout.expired() || noted.until <= now ||
           (noted.device == device && IsOf(noted.layout, layout));
  });
  noted_.push_back({device, layout, now + kTryAgainAfter});
  any_ = true;
}

bool NoRoom::Has(DeviceId device, const std::shared_ptr<LazyLayout>& layout, Time now) const {
  if (!any_) return false;
  const MutexLock lock(mutex_);
  return std::ranges::any_of(noted_, [&](const Noted& noted) {
    return noted.device == device && noted.until > now && IsOf(noted.layout, layout);
  });
}

}  // namespace sparsed::engine
