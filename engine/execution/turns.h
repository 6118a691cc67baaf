// When work that can wait takes a turn from calls that do not end.
#pragma once

#include <algorithm>
#include <chrono>

namespace sparsed::engine {

/// Of the worker slots of one device. Not thread-safe.
class Turns {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// Which worker slots may find idle by themselves.
  static constexpr std::chrono::milliseconds kPatience{100};
  /// For how long worker slots stand back until the others' calls end, the first time; every time
  /// that this is not enough they go on, and it is twice as long the next time.
  static constexpr std::chrono::milliseconds kStandBack{50};
  /// Turns take one part of so many of the worker slots' time.
  static constexpr int kParts = 20;

  /// When work that was asked for at `asked` takes a turn, if no worker slot was idle before.
  Time DueAt(Time asked) const { return std::max(asked + kPatience, next_); }
  /// A turn was taken, or waited for in vain: calls stood back, or might have, from `begin` to
  /// `end`.
  void Took(Time begin, Time end) { next_ = end + (kParts - 1) * (end - begin); }

 private:
  Time next_;
};

}  // namespace sparsed::engine
