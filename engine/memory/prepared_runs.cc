#include "engine/memory/prepared_runs.h"

#include <algorithm>

#include "absl/status/status.h"

namespace sparsed::engine {

absl::StatusOr<Buffer> PreparedRuns::Limited::Allocate(size_t bytes) {
  if (bytes > kMostBytes - bytes_) {
    refused_ = true;
    return absl::ResourceExhaustedError("more than a lane keeps");
  }
  bytes_ += bytes;
  return memory_.Allocate(bytes);
}

const PreparedRuns::Entry* PreparedRuns::Find(const Entry& wanted) {
  entries_.remove_if([](const Entry& entry) { return entry.lifetime.expired(); });
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.layout == wanted.layout && entry.kernel == wanted.kernel &&
           entry.type == wanted.type && entry.k == wanted.k &&
           entry.transposed == wanted.transposed && entry.strides == wanted.strides;
  });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return &entries_.front();
}

void* PreparedRuns::Keep(Entry entry) {
  entries_.push_front(std::move(entry));
  size_t bytes = 0;
  for (const Entry& kept : entries_) bytes += kept.bytes;
  while (entries_.size() > kMost || bytes > kMostBytes) {
    bytes -= entries_.back().bytes;
    entries_.pop_back();
  }
  return entries_.front().prepared.get();
}

}  // namespace sparsed::engine
