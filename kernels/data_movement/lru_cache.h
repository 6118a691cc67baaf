// A cache as the models of data movement see it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/array.h"
#include "kernels/scratch.h"

namespace sparsed {

/// Fully associative, forgets what was used least recently. It holds units of one size, numbered
/// from 0, and whatever else passes through it once.
class LruCache {
 public:
  /// Empty, with room for `capacity` bytes. Scratch: 16 bytes a unit. RESOURCE_EXHAUSTED.
  absl::Status Open(MemorySource& memory, int64_t units, int64_t unit_bytes, int64_t capacity) {
    unit_bytes_ = unit_bytes;
    capacity_ = capacity;
    if (absl::Status status = units_.Allocate(memory, units); !status.ok()) return status;
    std::fill_n(units_.data(), units, Unit{kAbsent, kNone, 0});
    return absl::OkStatus();
  }

  /// Whether the unit has to be fetched. It is the most recent one then.
  bool Touch(int64_t number) {
    const auto touched = static_cast<int32_t>(number);
    Unit& unit = units_[touched];
    if (touched == newest_) {
      // What passed since is older than it now.
      (unit.older == kNone ? passed_first_ : units_[unit.older].passed) += unit.passed;
      unit.passed = 0;
      return false;
    }
    const bool absent = unit.older == kAbsent;
    if (absent) {
      held_ += unit_bytes_;
    } else {
      Unlink(unit);
    }
    unit = {newest_, kNone, 0};
    (newest_ == kNone ? oldest_ : units_[newest_].newer) = touched;
    newest_ = touched;
    if (absent) Evict();
    return absent;
  }

  /// Bytes that nobody asks for again push others out.
  void Pass(int64_t bytes) {
    held_ += bytes;
    (newest_ == kNone ? passed_first_ : units_[newest_].passed) += bytes;
    Evict();
  }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kAbsent = -2;

  struct Unit {
    int32_t older;  ///< kAbsent: not held
    int32_t newer;
    int64_t passed;  ///< bytes that passed between it and the newer one
  };

  void Unlink(const Unit& unit) {
    (unit.older == kNone ? oldest_ : units_[unit.older].newer) = unit.newer;
    (unit.older == kNone ? passed_first_ : units_[unit.older].passed) += unit.passed;
    units_[unit.newer].older = unit.older;
  }

  void Evict() {
    while (held_ > capacity_) {
      const int64_t dropped = std::min(passed_first_, held_ - capacity_);
      passed_first_ -= dropped;
      held_ -= dropped;
      if (held_ <= capacity_ || oldest_ == kNone) return;
      Unit& evicted = units_[oldest_];
      oldest_ = evicted.newer;
      (oldest_ == kNone ? newest_ : units_[oldest_].older) = kNone;
      passed_first_ += evicted.passed;
      held_ -= unit_bytes_;
      evicted.older = kAbsent;
    }
  }

  Scratch<Unit> units_;
  int64_t unit_bytes_ = 0, capacity_ = 0;
  int64_t held_ = 0;
  int64_t passed_first_ = 0;  ///< bytes that passed before the oldest unit was touched
  int32_t oldest_ = kNone, newest_ = kNone;
};

}  // namespace sparsed
