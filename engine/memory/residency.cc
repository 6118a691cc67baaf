#include "engine/memory/residency.h"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace sparsed::engine {
namespace {

/// Of its arrays in one allocation.
size_t BytesTogether(const Layout& layout) {
  size_t bytes = 0;
  for (const Array& array : layout.arrays) bytes = PackedBytes(bytes) + array.bytes();
  return bytes;
}

}  // namespace

Residency::Residency(DeviceBudget& budget, CopyIn copy_in, CopyRowsIn copy_rows_in,
                     PlaceSlots place_slots)
    : budget_(budget),
      copy_in_(std::move(copy_in)),
      copy_rows_in_(std::move(copy_rows_in)),
      place_slots_(std::move(place_slots)) {
  budget_.evict = [this](int64_t bytes, bool at_once) { return Evict(bytes, at_once); };
}

Residency::~Residency() { budget_.evict = nullptr; }

Residency::Entry Residency::Of(std::weak_ptr<const void> original) {
  Entry entry;
  entry.original = std::move(original);
  return entry;
}

template <typename T>
absl::StatusOr<std::shared_ptr<const T>> Residency::PlaceAs(
    Key key, Entry entry, const std::function<absl::StatusOr<std::shared_ptr<const T>>()>& make) {
  std::vector<Entry> dead;  // freed after the lock
  MutexLock lock(mutex_);
  while (true) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) break;
    Entry& known = found->second;
    if (known.expired() && known.copy != nullptr) {
      // Something else lives at this address now.
      dead.push_back(std::move(known));
      entries_.erase(found);
      break;
    }
    if (known.copy != nullptr) {
      known.used = ++clock_;
      return std::static_pointer_cast<const T>(known.copy);
    }
    placed_.Wait(mutex_);
  }
  for (Entry& gone : TakeDeadLocked()) dead.push_back(std::move(gone));
  entry.used = ++clock_;
  entries_[key] = std::move(entry);
  lock.Unlock();
  dead.clear();
  absl::StatusOr<std::shared_ptr<const T>> made = make();
  lock.Lock();
  if (made.ok()) {
    Entry& placed = entries_[key];
    placed.copy = *made;
    if constexpr (std::is_same_v<T, Layout>) {
      placed.kind = (*made)->kind;
      placed.bytes = static_cast<int64_t>(budget_.ExportableBytes(BytesTogether(**made)));
    } else {
      placed.bytes = static_cast<int64_t>((*made)->bytes());
    }
  } else {
    entries_.erase(key);
  }
  lock.Unlock();
  placed_.NotifyAll();
  return made;
}

absl::StatusOr<Array> Residency::CopyOf(const Array& array, MemoryUse use,
                                        const std::optional<PitchedRows>& rows) {
  const int64_t length =
      rows ? static_cast<int64_t>(rows->rows * rows->device_pitch / SizeOf(array.type))
           : array.length;
  absl::StatusOr<Array> copy = AllocateArray(budget_.Source(use), array.name, array.type, length);
  if (!copy.ok()) return copy;
  std::byte* const to = copy->buffer.mutable_data();
  const absl::Status copied = rows ? copy_rows_in_(to, array.buffer.data(), *rows)
                                   : copy_in_(to, array.buffer.data(), array.bytes());
  if (!copied.ok()) return copied;
  return copy;
}

absl::StatusOr<std::shared_ptr<const Layout>> Residency::CopyOf(const Layout& layout) {
  const absl::StatusOr<Buffer> room =
      budget_.ExportableSource(MemoryUse::kLayouts).Allocate(BytesTogether(layout));
  if (!room.ok()) return room.status();
  auto copy = std::make_shared<Layout>(layout);
  size_t at = 0;
  for (Array& array : copy->arrays) {
    at = PackedBytes(at);
    Buffer there = room->Part(at, array.bytes());
    const absl::Status copied = copy_in_(there.mutable_data(), array.buffer.data(), array.bytes());
    if (!copied.ok()) return copied;
    array.buffer = std::move(there);
    at += array.bytes();
  }
  return copy;
}

absl::StatusOr<std::shared_ptr<const Layout>> Residency::Place(
    const std::shared_ptr<const Layout>& layout) {
  return PlaceAs<Layout>({layout.get(), nullptr}, Of(layout), [&] { return CopyOf(*layout); });
}

absl::StatusOr<std::shared_ptr<const Array>> Residency::Place(const Array& array, MemoryUse use) {
  if (array.bytes() == 0) return std::make_shared<const Array>(array);
  return PlaceAs<Array>({array.buffer.data(), nullptr}, Of(array.buffer.lifetime()),
                        [&]() -> absl::StatusOr<std::shared_ptr<const Array>> {
                          absl::StatusOr<Array> placed = CopyOf(array, use);
                          if (!placed.ok()) return placed.status();
                          return std::make_shared<const Array>(*std::move(placed));
                        });
}

absl::StatusOr<std::shared_ptr<const Array>> Residency::PlaceValues(
    const Array& csr_values, const std::shared_ptr<const Layout>& layout, MemorySource& host) {
  if (layout->Find(kValueSource) == nullptr || csr_values.bytes() == 0) {
    return Place(csr_values, MemoryUse::kMatrices);
  }
  Entry entry = Of(csr_values.buffer.lifetime());
  entry.layout = layout;
  return PlaceAs<Array>({csr_values.buffer.data(), layout.get()}, std::move(entry),
                        [&]() -> absl::StatusOr<std::shared_ptr<const Array>> {
                          absl::StatusOr<Array> slots = NewSlots(csr_values, layout, host);
                          if (!slots.ok()) return slots.status();
                          return std::make_shared<const Array>(*std::move(slots));
                        });
}

absl::StatusOr<Array> Residency::NewSlots(const Array& csr_values,
                                          const std::shared_ptr<const Layout>& layout,
                                          MemorySource& host) {
  const auto new_slots = [&](MemorySource& memory) {
    return AllocateArray(memory, "values", csr_values.type, layout->value_slots);
  };
  absl::StatusOr<std::shared_ptr<const Layout>> device_layout = Place(layout);
  if (!device_layout.ok()) return device_layout.status();
  absl::StatusOr<std::shared_ptr<const Array>> device_values =
      Place(csr_values, MemoryUse::kMatrices);
  if (device_values.ok()) {
    absl::StatusOr<Array> slots = new_slots(budget_.Source(MemoryUse::kMatrices));
    if (slots.ok()) {
      const absl::Status placed =
          place_slots_(**device_layout, csr_values.type, (*device_values)->buffer.data(),
                       slots->buffer.mutable_data());
      if (!placed.ok()) return placed;
      return slots;
    }
    device_values = slots.status();  // and lets go of the copy, to make room
  }
  if (!absl::IsResourceExhausted(device_values.status())) return device_values.status();
  absl::StatusOr<Array> staged = new_slots(host);
  if (!staged.ok()) return staged.status();
  sparsed::PlaceValues(*layout, csr_values.type, csr_values.buffer.data(),
                       staged->buffer.mutable_data(), /*threads=*/1);
  return CopyOf(*staged, MemoryUse::kMatrices);
}

std::shared_ptr<const Array> Residency::Find(const LazyArray& held) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find({&held, nullptr});
  if (found == entries_.end() || found->second.expired()) return nullptr;
  return std::static_pointer_cast<const Array>(found->second.copy);
}

absl::StatusOr<std::shared_ptr<const Array>> Residency::CopyOfPeers(
    const LazyArray& held, const std::optional<PitchedRows>& rows, MemoryUse use) {
  for (const Peer& peer : peers_) {
    if (!peer.serves()) continue;
    const std::shared_ptr<const Array> there = peer.residency->Find(held);
    if (there == nullptr || there->bytes() == 0) continue;
    if (rows && there->bytes() != rows->rows * rows->device_pitch) continue;
    absl::StatusOr<Array> copy =
        AllocateArray(budget_.Source(use), there->name, there->type, there->length);
    if (!copy.ok()) return copy.status();
    const absl::Status copied =
        copy_from_peer_(copy->buffer.mutable_data(), there->buffer.data(), there->bytes());
    if (copied.ok()) return std::make_shared<const Array>(*std::move(copy));
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<const Array>> Residency::Place(
    const std::shared_ptr<LazyArray>& held, const std::optional<PitchedRows>& rows, MemoryUse use) {
  return PlaceAs<Array>(
      {held.get(), nullptr}, Of(held), [&]() -> absl::StatusOr<std::shared_ptr<const Array>> {
        // Where that fails, the host's way may not.
        absl::StatusOr<std::shared_ptr<const Array>> copied = CopyOfPeers(*held, rows, use);
        if (copied.ok() && *copied != nullptr) return copied;
        absl::StatusOr<Array> host = held->Get();
        if (!host.ok()) return host.status();
        if (host->bytes() == 0) return std::make_shared<const Array>(*host);
        absl::StatusOr<Array> placed = CopyOf(*host, use, rows);
        if (!placed.ok()) return placed.status();
        return std::make_shared<const Array>(*std::move(placed));
      });
}

void Residency::Adopt(const std::shared_ptr<LazyArray>& held, std::shared_ptr<const Array> array) {
  std::vector<Entry> dead;
  const MutexLock lock(mutex_);
  dead = TakeDeadLocked();
  const auto bytes = static_cast<int64_t>(array->bytes());
  Entry entry = Of(held);
  entry.copy = std::move(array);
  entry.bytes = bytes;
  entry.used = ++clock_;
  entry.moved = held;
  entries_[{held.get(), nullptr}] = std::move(entry);
}

Residency::Presence Residency::PresenceOf(const std::shared_ptr<LazyArray>& held) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find({held.get(), nullptr});
  if (found == entries_.end() || found->second.expired()) return Presence::kNothing;
  const bool only_here = !found->second.moved.expired() && !held->resident();
  return only_here ? Presence::kOnly : Presence::kCopy;
}

bool Residency::Has(const std::shared_ptr<const Layout>& layout) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find({layout.get(), nullptr});
  return found != entries_.end() && !found->second.expired();
}

std::vector<Residency::Entry> Residency::TakeDeadLocked() {
  std::vector<Entry> dead;
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->second.copy != nullptr && it->second.expired()) {
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
  const MutexLock lock(mutex_);
  dead = TakeDeadLocked();
}

bool Residency::MayGoLocked(const Entry& entry, bool moved, HeldArrays& looked_at) const {
  std::shared_ptr<LazyArray> held = entry.moved.lock();
  // Its loader holds the copy until it has run.
  const bool only_here = held != nullptr && !held->resident();
  if (held != nullptr) looked_at.push_back(std::move(held));
  return only_here == moved && entry.copy.use_count() == (only_here ? 2 : 1);
}

std::vector<Residency::Key> Residency::VictimsLocked(bool moved, HeldArrays& looked_at) const {
  std::vector<std::pair<uint64_t, Key>> by_use;
  for (const auto& [key, entry] : entries_) {
    if (MayGoLocked(entry, moved, looked_at)) by_use.emplace_back(entry.used, key);
  }
  std::ranges::sort(by_use);
  std::vector<Key> victims;
  victims.reserve(by_use.size());
  for (const auto& [used, key] : by_use) victims.push_back(key);
  return victims;
}

bool Residency::Evict(int64_t bytes, bool at_once) {
  int64_t freed = 0;
  std::vector<Key> to_save;
  {
    std::vector<Entry> gone;
    HeldArrays looked_at;
    const MutexLock lock(mutex_);
    gone = TakeDeadLocked();
    for (const Entry& entry : gone) freed += entry.bytes;
    if (freed >= bytes) return true;
    for (const Key& key : VictimsLocked(/*moved=*/false, looked_at)) {
      if (freed >= bytes) break;
      const auto victim = entries_.find(key);
      freed += victim->second.bytes;
      gone.push_back(std::move(victim->second));
      entries_.erase(victim);
      ++evictions_;
    }
    if (!at_once && freed < bytes) to_save = VictimsLocked(/*moved=*/true, looked_at);
  }
  for (const Key& key : to_save) {
    if (freed >= bytes) break;
    HeldArrays looked_at;
    MutexLock lock(mutex_);
    const auto victim = entries_.find(key);
    // Somebody may have taken it since.
    if (victim == entries_.end() || !MayGoLocked(victim->second, /*moved=*/true, looked_at))
      continue;
    Entry entry = std::move(victim->second);
    // Whoever asks for it meanwhile waits, and then finds its copy on the host.
    victim->second = Of(entry.original);
    lock.Unlock();
    const std::shared_ptr<LazyArray> held = entry.moved.lock();
    const bool saved = held == nullptr || held->Get().ok();
    if (saved) freed += entry.bytes;
    lock.Lock();
    if (saved) {
      entries_.erase(key);
      ++evictions_;
    } else {
      entries_[key] = std::move(entry);
    }
    lock.Unlock();
    placed_.NotifyAll();
    if (!saved) break;
  }
  return freed > 0;
}

int64_t Residency::evictions() const {
  const MutexLock lock(mutex_);
  return evictions_;
}

std::map<std::string, int64_t> Residency::layout_bytes() const {
  const MutexLock lock(mutex_);
  std::map<std::string, int64_t> bytes;
  for (const auto& [key, entry] : entries_) {
    if (!entry.kind.empty()) bytes[entry.kind] += entry.bytes;
  }
  return bytes;
}

}  // namespace sparsed::engine
