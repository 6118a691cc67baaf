#include "engine/memory/prepared_runs.h"

#include <algorithm>

#include "absl/status/status.h"

namespace sparsed::engine {

PreparedRuns::Entry PreparedRuns::EntryOf(const BoundRun& run) {
  return {.lifetime = run.layout(),
          .layout = run.layout().get(),
          .kernel = run.kernel(),
          .type = run.problem().type,
          .k = run.problem().k,
          .transposed = run.problem().transposed,
          .leading_dimensions = run.leading_dimensions()};
}

bool PreparedRuns::Has(const BoundRun& run, Clock::time_point now) {
  const Entry* const found = Find(EntryOf(run));
  return found != nullptr && (!found->try_again || now < *found->try_again);
}

void* PreparedRuns::For(const BoundRun& run, const Context& context, MemorySource& memory,
                        Clock::time_point now) {
  if (!run.prepares()) return nullptr;
  Entry entry = EntryOf(run);
  if (const Entry* const found = Find(entry); found != nullptr) {
    if (!found->try_again || now < *found->try_again) return found->prepared.get();
    entries_.pop_front();  // where Find put it
  }
  Limited limited(memory);
  absl::StatusOr<std::shared_ptr<void>> prepared = run.Prepare(context, limited);
  if (prepared.ok()) {
    entry.prepared = *std::move(prepared);
    entry.bytes = limited.bytes();
  } else if (absl::IsResourceExhausted(prepared.status()) && !limited.refused()) {
    entry.try_again = now + kTryAgainAfter;
  }
  return Keep(std::move(entry));
}

absl::StatusOr<Buffer> PreparedRuns::Limited::Allocate(size_t bytes) {
  if (bytes > kMostBytes - bytes_) {
    refused_ = true;
    return absl::ResourceExhaustedError("more than a worker slot keeps");
  }
  bytes_ += bytes;
  return memory_.Allocate(bytes);
}

const PreparedRuns::Entry* PreparedRuns::Find(const Entry& wanted) {
  entries_.remove_if([](const Entry& entry) { return entry.lifetime.expired(); });
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.layout == wanted.layout && entry.kernel == wanted.kernel &&
           entry.type == wanted.type && entry.k == wanted.k &&
           entry.transposed == wanted.transposed &&
           entry.leading_dimensions == wanted.leading_dimensions;
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
