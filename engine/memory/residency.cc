#include "engine/memory/residency.h"

#include <type_traits>
#include <utility>

namespace sparsed::engine {

Residency::Residency(DeviceBudget& budget, CopyIn copy_in)
    : budget_(budget), copy_in_(std::move(copy_in)) {
  budget_.evict = [this](int64_t bytes, bool at_once) { return Evict(bytes, at_once); };
}

Residency::~Residency() { budget_.evict = nullptr; }

template <typename T>
absl::StatusOr<std::shared_ptr<const T>> Residency::PlaceAs(
    const void* key, std::weak_ptr<const void> original,
    const std::function<absl::StatusOr<std::shared_ptr<const T>>()>& make) {
  std::vector<Entry> dead;  // freed after the lock
  std::unique_lock lock(mutex_);
  while (true) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) break;
    Entry& entry = found->second;
    if (entry.original.expired() && entry.copy != nullptr) {
      // Something else lives at this address now.
      dead.push_back(std::move(entry));
      entries_.erase(found);
      break;
    }
    if (entry.copy != nullptr) {
      entry.used = ++clock_;
      return std::static_pointer_cast<const T>(entry.copy);
    }
    placed_.wait(lock);
  }
  for (Entry& entry : TakeDeadLocked()) dead.push_back(std::move(entry));
  entries_[key] = Entry{std::move(original), nullptr, 0, ++clock_, {}, {}};
  lock.unlock();
  dead.clear();
  absl::StatusOr<std::shared_ptr<const T>> made = make();
  lock.lock();
  if (made.ok()) {
    Entry& entry = entries_[key];
    entry.copy = *made;
    entry.bytes = static_cast<int64_t>((*made)->bytes());
    if constexpr (std::is_same_v<T, Layout>) entry.kind = (*made)->kind;
  } else {
    entries_.erase(key);
  }
  lock.unlock();
  placed_.notify_all();
  return made;
}

absl::StatusOr<Array> Residency::CopyOf(const Array& array, MemoryUse use) {
  absl::StatusOr<Array> copy =
      AllocateArray(budget_.Source(use), array.name, array.type, array.length);
  if (!copy.ok()) return copy;
  if (absl::Status s = copy_in_(copy->buffer.mutable_data(), array.buffer.data(), array.bytes());
      !s.ok()) {
    return s;
  }
  return copy;
}

absl::StatusOr<std::shared_ptr<const Layout>> Residency::Place(
    const std::shared_ptr<const Layout>& layout) {
  return PlaceAs<Layout>(layout.get(), layout,
                         [&]() -> absl::StatusOr<std::shared_ptr<const Layout>> {
                           auto copy = std::make_shared<Layout>(*layout);
                           for (Array& array : copy->arrays) {
                             absl::StatusOr<Array> there = CopyOf(array, MemoryUse::kLayouts);
                             if (!there.ok()) return there.status();
                             array = *std::move(there);
                           }
                           return copy;
                         });
}

absl::StatusOr<std::shared_ptr<const Array>> Residency::Place(const Array& array, MemoryUse use) {
  if (array.bytes() == 0) return std::make_shared<const Array>(array);
  return PlaceAs<Array>(array.buffer.data(), array.buffer.lifetime(),
                        [&]() -> absl::StatusOr<std::shared_ptr<const Array>> {
                          absl::StatusOr<Array> there = CopyOf(array, use);
                          if (!there.ok()) return there.status();
                          return std::make_shared<const Array>(*std::move(there));
                        });
}

absl::StatusOr<std::shared_ptr<const Array>> Residency::Place(
    const std::shared_ptr<LazyArray>& held) {
  return PlaceAs<Array>(held.get(), held, [&]() -> absl::StatusOr<std::shared_ptr<const Array>> {
    absl::StatusOr<Array> host = held->Get();
    if (!host.ok()) return host.status();
    if (host->bytes() == 0) return std::make_shared<const Array>(*host);
    absl::StatusOr<Array> there = CopyOf(*host, MemoryUse::kBuffers);
    if (!there.ok()) return there.status();
    return std::make_shared<const Array>(*std::move(there));
  });
}

void Residency::Adopt(const std::shared_ptr<LazyArray>& held, std::shared_ptr<const Array> array) {
  std::vector<Entry> dead;
  std::lock_guard lock(mutex_);
  dead = TakeDeadLocked();
  const auto bytes = static_cast<int64_t>(array->bytes());
  entries_[held.get()] = Entry{held, std::move(array), bytes, ++clock_, held, {}};
}

std::vector<Residency::Entry> Residency::TakeDeadLocked() {
  std::vector<Entry> dead;
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->second.copy != nullptr && it->second.original.expired()) {
      dead.push_back(std::move(it->second));
      it = entries_.erase(it);
    } else {
      ++it;
    }
  }
  return dead;
}

void Residency::Sweep() {
  std::vector<Entry> dead;
  std::lock_guard lock(mutex_);
  dead = TakeDeadLocked();
}

Residency::Entries::iterator Residency::VictimLocked(bool moved) {
  auto victim = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    const Entry& entry = it->second;
    const std::shared_ptr<LazyArray> home = entry.moved.lock();
    // Its loader holds the copy until it has run.
    const bool only_here = home != nullptr && !home->resident();
    if (only_here != moved || entry.copy.use_count() != (only_here ? 2 : 1)) continue;
    if (victim == entries_.end() || entry.used < victim->second.used) victim = it;
  }
  return victim;
}

bool Residency::Evict(int64_t bytes, bool at_once) {
  int64_t freed = 0;
  {
    std::vector<Entry> gone;
    std::lock_guard lock(mutex_);
    gone = TakeDeadLocked();
    for (const Entry& entry : gone) freed += entry.bytes;
    while (freed < bytes) {
      const auto victim = VictimLocked(/*moved=*/false);
      if (victim == entries_.end()) break;
      freed += victim->second.bytes;
      gone.push_back(std::move(victim->second));
      entries_.erase(victim);
      ++evictions_;
    }
  }
  while (!at_once && freed < bytes) {
    std::unique_lock lock(mutex_);
    const auto victim = VictimLocked(/*moved=*/true);
    if (victim == entries_.end()) break;
    const void* const key = victim->first;
    Entry entry = std::move(victim->second);
    // Whoever asks for it meanwhile waits, and then finds its copy on the host.
    victim->second = Entry{entry.original, nullptr, 0, 0, {}, {}};
    lock.unlock();
    const std::shared_ptr<LazyArray> home = entry.moved.lock();
    const bool saved = home == nullptr || home->Get().ok();
    if (saved) freed += entry.bytes;
    lock.lock();
    if (saved) {
      entries_.erase(key);
      ++evictions_;
    } else {
      entries_[key] = std::move(entry);
    }
    lock.unlock();
    placed_.notify_all();
    if (!saved) break;
  }
  return freed > 0;
}

int64_t Residency::evictions() const {
  std::lock_guard lock(mutex_);
  return evictions_;
}

std::map<std::string, int64_t> Residency::layout_bytes() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, int64_t> bytes;
  for (const auto& [key, entry] : entries_) {
    if (!entry.kind.empty()) bytes[entry.kind] += entry.bytes;
  }
  return bytes;
}

}  // namespace sparsed::engine
