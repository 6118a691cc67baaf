// Which bytes of an array have come.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace sparsed::wire {

/// A set of bytes in [0, size). Memory grows with the number of gaps.
class Coverage {
 public:
  explicit Coverage(uint64_t size) : size_(size) {}

  /// Adds [offset, offset + length). False, and no change, if that leaves [0, size) or overlaps
  /// what is there.
  bool Add(uint64_t offset, uint64_t length) {
    if (offset > size_ || length > size_ - offset) return false;
    if (length == 0) return true;
    const auto after = intervals_.lower_bound(offset);
    if (after != intervals_.end() && after->first < offset + length) return false;
    const auto before = after == intervals_.begin() ? intervals_.end() : std::prev(after);
    if (before != intervals_.end() && before->second > offset) return false;

    uint64_t begin = offset;
    uint64_t end = offset + length;
    if (after != intervals_.end() && after->first == end) {
      end = after->second;
      intervals_.erase(after);
    }
    if (before != intervals_.end() && before->second == begin) {
      before->second = end;
    } else {
      intervals_.emplace(begin, end);
    }
    covered_ += length;
    return true;
  }

  bool complete() const { return covered_ == size_; }
  uint64_t covered() const { return covered_; }
  uint64_t size() const { return size_; }

 private:
  uint64_t size_;
  uint64_t covered_ = 0;
  std::map<uint64_t, uint64_t> intervals_;  // begin to end; neither empty nor touching
};

}  // namespace sparsed::wire
