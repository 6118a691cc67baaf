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

void SharedRegions::Add(const std::string& name, SharedRegion region) {
  const MutexLock lock(mutex_);
  regions_.emplace(name, std::move(region));
}

void SharedRegions::Remove(const std::string& name) {
  SharedRegion region;  // goes when the lock has gone: to unmap it may take a while
  const MutexLock lock(mutex_);
  const auto found = regions_.find(name);
  if (found == regions_.end()) return;
  region = std::move(found->second);
  regions_.erase(found);
}

absl::StatusOr<SharedRegion> SharedRegions::Find(std::string_view name, uint64_t offset) const {
  const MutexLock lock(mutex_);
  const auto found = regions_.find(std::string(name));
  if (found == regions_.end()) {
    return absl::NotFoundError(
        "the shared memory is not known here: it was not shared, or whoever shared it has gone");
  }
  const Buffer& memory = found->second.memory;
  if (offset >= memory.size()) {
    return absl::InvalidArgumentError(
        fmt::format("the offset {} lies behind the end of the shared memory, which has {} bytes",
                    offset, memory.size()));
  }
  return SharedRegion{memory.Part(offset, memory.size() - offset), found->second.device, nullptr};
}

int64_t SharedRegions::count() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(regions_.size());
}

void SharedRegions::AddQueue(const std::string& name, std::shared_ptr<engine::DeviceQueue> queue) {
  const MutexLock lock(mutex_);
  queues_.emplace(name, std::move(queue));
}

void SharedRegions::RemoveQueue(const std::string& name) {
  std::shared_ptr<engine::DeviceQueue> queue;  // goes when the lock has gone
  const MutexLock lock(mutex_);
  const auto found = queues_.find(name);
  if (found == queues_.end()) return;
  queue = std::move(found->second);
  queues_.erase(found);
}

absl::StatusOr<engine::QueueSpec> SharedRegions::FindQueue(std::string_view place) const {
  if (place.empty()) return engine::QueueSpec();
  if (place.size() != kNameBytes + sizeof(uint32_t)) {
    return absl::InvalidArgumentError(
        fmt::format("a place in a queue has {} bytes, the queue's name and a number, not {}",
                    kNameBytes + sizeof(uint32_t), place.size()));
  }
  uint32_t number = 0;
  for (size_t i = 0; i < sizeof(number); ++i) {
    number |= uint32_t{static_cast<uint8_t>(place[kNameBytes + i])} << (8 * i);
  }
  const MutexLock lock(mutex_);
  const auto found = queues_.find(std::string(place.substr(0, kNameBytes)));
  if (found == queues_.end()) {
    return absl::NotFoundError(
        "the queue is not known here: it was not opened, or whoever opened it has gone");
  }
  return engine::QueueSpec{found->second, number};
}

int64_t SharedRegions::queues() const {
  const MutexLock lock(mutex_);
  return static_cast<int64_t>(queues_.size());
}

}  // namespace sparsed::server
