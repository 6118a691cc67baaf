#include "server/rpc/shared_regions.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <utility>

namespace sparsed::server {
namespace {

constexpr size_t kNameBytes = 16;

}  // namespace

std::string RandomBytes(size_t count) {
  std::string bytes(count, 0);
  // So few come at once, or not at all before the machine has collected any.
  while (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
  }
  return bytes;
}

std::string SharedRegions::NewName() { return RandomBytes(kNameBytes); }

void SharedRegions::Add(const std::string& name, Buffer memory) {
  const MutexLock lock(mutex_);
  regions_.emplace(name, std::move(memory));
}

void SharedRegions::Remove(const std::string& name) {
  Buffer memory;  // goes when the lock has gone: to unmap it may take a while
  const MutexLock lock(mutex_);
  const auto found = regions_.find(name);
  if (found == regions_.end()) return;
  memory = std::move(found->second);
  regions_.erase(found);
}

absl::StatusOr<Buffer> SharedRegions::Find(std::string_view name, uint64_t offset) const {
  const MutexLock lock(mutex_);
  const auto found = regions_.find(std::string(name));
  if (found == regions_.end()) {
    return absl::NotFoundError(
        "the shared memory is not known here: it was not shared, or whoever shared it has gone");
  }
  const Buffer& memory = found->second;
  if (offset >= memory.size()) {
    return absl::InvalidArgumentError(
        fmt::format("the offset {} lies behind the end of the shared memory, which has {} bytes",
                    offset, memory.size()));
  }
  return memory.Part(offset, memory.size() - offset);
}

int64_t SharedRegions::count() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(regions_.size());
}

}  // namespace sparsed::server
