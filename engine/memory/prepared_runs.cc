#include "engine/memory/prepared_runs.h"

#include <algorithm>

namespace sparsed::engine {

void* PreparedRuns::Find(const Entry& wanted) {
  entries_.remove_if([](const Entry& entry) { return entry.lifetime.expired(); });
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.layout == wanted.layout && entry.kernel == wanted.kernel &&
           entry.type == wanted.type && entry.k == wanted.k &&
           entry.transposed == wanted.transposed && entry.strides == wanted.strides;
  });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return found->prepared.get();
}

void* PreparedRuns::Keep(Entry entry, std::shared_ptr<void> prepared) {
  entry.prepared = std::move(prepared);
  entries_.push_front(std::move(entry));
  if (entries_.size() > kMost) entries_.pop_back();
  return entries_.front().prepared.get();
}

}  // namespace sparsed::engine
