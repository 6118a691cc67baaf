// Which bytes of an array have come, where they come in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace sparsed {

/// A set of bytes in [0, size), kept as the fewest intervals. Memory grows with their number.
class Coverage {
 public:
  /// The bytes [begin, end).
  struct Interval {
    uint64_t begin = 0, end = 0;
    friend bool operator==(const Interval&, const Interval&) = default;
  };

  explicit Coverage(uint64_t size = 0) : size_(size) {}

  /// [offset, offset + length) is within [0, size).
  bool Contains(uint64_t offset, uint64_t length) const {
    return offset <= size_ && length <= size_ - offset;
  }
  /// The first interval that has bytes of [offset, offset + length), which is within [0, size).
  std::optional<Interval> FindOverlap(uint64_t offset, uint64_t length) const {
    const auto first = intervals_.upper_bound(offset);
    if (first != intervals_.begin()) {
      const auto& [begin, end] = *std::prev(first);
      if (length > 0 && end > offset) return Interval{begin, end};
    }
    if (first != intervals_.end() && first->first < offset + length) {
      return Interval{first->first, first->second};
    }
    return std::nullopt;
  }
  /// Adding [offset, offset + length), which overlaps nothing, makes no interval more.
  bool Touches(uint64_t offset, uint64_t length) const {
    const auto after = intervals_.lower_bound(offset);
    return (after != intervals_.end() && after->first == offset + length) ||
           (after != intervals_.begin() && std::prev(after)->second == offset);
  }
  /// Adds [offset, offset + length). False, and no change, if that leaves [0, size) or overlaps
  /// what is there.
  bool Add(uint64_t offset, uint64_t length) {
    if (!Contains(offset, length) || FindOverlap(offset, length)) return false;
    if (length == 0) return true;
    covered_ += length;
    uint64_t end = offset + length;
    const auto after = intervals_.lower_bound(offset);
    const auto before = after == intervals_.begin() ? intervals_.end() : std::prev(after);
    if (after != intervals_.end() && after->first == end) {
      end = after->second;
      intervals_.erase(after);
    }
    if (before != intervals_.end() && before->second == offset) {
      before->second = end;
    } else {
      intervals_.emplace(offset, end);
    }
    return true;
  }

  bool complete() const { return covered_ == size_; }
  /// Bytes that it has, and that it may have.
  uint64_t covered() const { return covered_; }
  uint64_t size() const { return size_; }
  size_t intervals() const { return intervals_.size(); }
  /// The first bytes that are missing; none if it is complete.
  std::optional<Interval> FirstGap() const {
    if (complete()) return std::nullopt;
    auto next = intervals_.begin();
    const uint64_t begin = next != intervals_.end() && next->first == 0 ? (next++)->second : 0;
    return Interval{begin, next == intervals_.end() ? size_ : next->first};
  }

 private:
  uint64_t size_;
  uint64_t covered_ = 0;
  std::map<uint64_t, uint64_t> intervals_;  ///< begin to end; neither empty nor touching
};

}  // namespace sparsed
