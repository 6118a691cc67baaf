// Which arrays are on the device: placed on first use, evicted least recently used.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/memory/device_budget.h"
#include "engine/memory/lazy_array.h"
#include "kernels/array.h"
#include "kernels/layout.h"

namespace sparsed::engine {

/// Rows that begin `host_pitch` bytes apart in host memory and `device_pitch` on the device, where
/// what is between them is zeros.
struct PitchedRows {
  size_t rows = 0;
  size_t row_bytes = 0;
  size_t host_pitch = 0;
  size_t device_pitch = 0;
};

/// Device copies of host arrays and layouts, and arrays whose only copy is on the device. What it
/// hands out stays on the device while it is held; what nobody holds may be evicted. A copy goes
/// with its original. Thread-safe.
class Residency {
 public:
  /// Copies host bytes to the device; returns when they are there.
  using CopyIn = std::function<absl::Status(void* to, const void* from, size_t bytes)>;
  /// The same row by row.
  using CopyRowsIn =
      std::function<absl::Status(void* to, const void* from, const PitchedRows& rows)>;
  /// PlaceValues (kernels/layout.h) on the device; returns when it is done.
  using PlaceSlots = std::function<absl::Status(const Layout& layout, ElementType type,
                                                const void* csr_values, void* slots)>;
  /// Copies what another GPU of the machine has.
  using CopyFromPeer = std::function<absl::Status(void* to, const void* from, size_t bytes)>;
  /// Becomes the budget's way to make room. The budget outlives it.
  Residency(DeviceBudget& budget, CopyIn copy_in, CopyRowsIn copy_rows_in, PlaceSlots place_slots);
  ~Residency();
  /// Another GPU's.
  struct Peer {
    const Residency* residency;
    std::function<bool()> serves;  ///< it is not lost
  };
  /// They outlive what is placed: operands that they have come from there. Once, before anything is
  /// placed.
  void SetPeers(std::vector<Peer> peers, CopyFromPeer copy_from_peer) {
    peers_ = std::move(peers);
    copy_from_peer_ = std::move(copy_from_peer);
  }

  /// The original, with its arrays on the device, all in one exportable allocation: another process
  /// that is to use it needs one descriptor. RESOURCE_EXHAUSTED without room.
  absl::StatusOr<std::shared_ptr<const Layout>> Place(const std::shared_ptr<const Layout>& layout);
  absl::StatusOr<std::shared_ptr<const Array>> Place(const Array& array, MemoryUse use);
  /// A matrix's values in the order of a layout, from those in CSR's order: brought there on the
  /// device, or, where it has no room for both, in memory from `host`.
  absl::StatusOr<std::shared_ptr<const Array>> PlaceValues(
      const Array& csr_values, const std::shared_ptr<const Layout>& layout, MemorySource& host);
  /// Of an operand that is held by name: brought here from wherever it is; with `rows`, which are
  /// the same every time, `rows.rows * rows.device_pitch` bytes.
  absl::StatusOr<std::shared_ptr<const Array>> Place(const std::shared_ptr<LazyArray>& held,
                                                     const std::optional<PitchedRows>& rows = {},
                                                     MemoryUse use = MemoryUse::kBuffers);
  /// `held` is `array` on the device, and its loader copies it to the host: which is done before it
  /// is evicted.
  void Adopt(const std::shared_ptr<LazyArray>& held, std::shared_ptr<const Array> array);

  /// What is there of an operand that is held by name.
  enum class Presence : uint8_t {
    kNothing,
    kCopy,  ///< as on the host
    kOnly,  ///< and not there; other GPUs may have copies
  };
  Presence PresenceOf(const std::shared_ptr<LazyArray>& held) const;
  /// Whether a layout is there, or on its way.
  bool Has(const std::shared_ptr<const Layout>& layout) const;

  /// Lets go of copies that nobody uses until `bytes` are free: first those whose original is
  /// gone, then copies, then (not `at_once`) what must be copied to the host. False if there was
  /// nothing.
  bool Evict(int64_t bytes, bool at_once);
  /// Lets go of copies whose original is gone.
  void Sweep();
  int64_t evictions() const;
  /// Of the layouts that are there, by kind.
  std::map<std::string, int64_t> layout_bytes() const;

 private:
  /// An original; values in a layout: theirs in CSR's order, and the layout.
  using Key = std::pair<const void*, const Layout*>;
  struct Entry {
    std::weak_ptr<const void> original;
    std::optional<std::weak_ptr<const Layout>> layout;  ///< of values
    std::shared_ptr<const void> copy;                   ///< null: on its way
    int64_t bytes = 0;
    uint64_t used = 0;               ///< when: larger is later
    std::weak_ptr<LazyArray> moved;  ///< what it must be copied to before it goes
    std::string kind;                ///< of a layout; empty: an array

    bool expired() const { return original.expired() || (layout && layout->expired()); }
  };
  using Entries = std::map<Key, Entry>;

  /// Of which there is no copy yet.
  static Entry Of(std::weak_ptr<const void> original);
  /// What is there for the originals that `entry` has, or what `make` brings.
  template <typename T>
  absl::StatusOr<std::shared_ptr<const T>> PlaceAs(
      Key key, Entry entry, const std::function<absl::StatusOr<std::shared_ptr<const T>>()>& make);
  absl::StatusOr<std::shared_ptr<const Layout>> CopyOf(const Layout& layout);
  absl::StatusOr<Array> CopyOf(const Array& array, MemoryUse use,
                               const std::optional<PitchedRows>& rows = {});
  /// What is there of an operand that is held by name; null: nothing.
  std::shared_ptr<const Array> Find(const LazyArray& held) const;
  /// A copy of what a peer has of it, if that is as large as `rows`, if given, say; null: none has.
  absl::StatusOr<std::shared_ptr<const Array>> CopyOfPeers(const LazyArray& held,
                                                           const std::optional<PitchedRows>& rows,
                                                           MemoryUse use);
  /// PlaceValues without looking what is there.
  absl::StatusOr<Array> NewSlots(const Array& csr_values,
                                 const std::shared_ptr<const Layout>& layout, MemorySource& host);
  using HeldArrays = std::vector<std::shared_ptr<LazyArray>>;
  /// Whether nobody holds it, and it has a host copy; `moved`: and has none. What it looked at is
  /// in `looked_at`: it may have become the last to hold it, and frees nothing under the lock.
  bool MayGoLocked(const Entry& entry, bool moved, HeldArrays& looked_at) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// All of those, least recently used first.
  std::vector<Key> VictimsLocked(bool moved, HeldArrays& looked_at) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Takes entries whose original is gone out; they are freed without the lock.
  std::vector<Entry> TakeDeadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DeviceBudget& budget_;
  const CopyIn copy_in_;
  const CopyRowsIn copy_rows_in_;
  const PlaceSlots place_slots_;
  std::vector<Peer> peers_;
  CopyFromPeer copy_from_peer_;
  mutable Mutex mutex_;
  CondVar placed_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t evictions_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sparsed::engine
