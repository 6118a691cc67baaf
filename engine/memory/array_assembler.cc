#include "engine/memory/array_assembler.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace sparsed::engine {

absl::StatusOr<std::byte*> ArrayAssembler::Claim(uint64_t offset, uint64_t size) {
  const uint64_t bytes = array_.bytes();
  if (offset > bytes || size > bytes - offset) {
    return absl::InvalidArgumentError(
        fmt::format("chunk of {} bytes at offset {} goes beyond the end of array '{}' ({} bytes)",
                    size, offset, array_.name, bytes));
  }
  static std::byte nothing;
  if (size == 0) return &nothing;
  if (absl::Status s = AddRange(offset, size); !s.ok()) return s;
  if (array_.buffer.size() == 0) array_.buffer = memory_->buffer();
  return array_.buffer.mutable_data() + offset;
}

absl::Status ArrayAssembler::AddRange(uint64_t offset, uint64_t size) {
  auto next = ranges_.lower_bound(offset);
  const bool overlaps_next = next != ranges_.end() && next->first < offset + size;
  auto previous = next == ranges_.begin() ? ranges_.end() : std::prev(next);
  const bool overlaps_previous = previous != ranges_.end() && previous->second > offset;
  if (overlaps_next || overlaps_previous) {
    const auto& other = overlaps_previous ? *previous : *next;
    return absl::InvalidArgumentError(
        fmt::format("chunk [{}, {}) of array '{}' overlaps [{}, {}), which has already arrived",
                    offset, offset + size, array_.name, other.first, other.second));
  }

  uint64_t begin = offset, end = offset + size;
  const bool extends_previous = previous != ranges_.end() && previous->second == begin;
  const bool extends_next = next != ranges_.end() && next->first == end;
  if (!extends_previous && !extends_next && ranges_.size() >= kMaxRanges) {
    return absl::InvalidArgumentError(
        fmt::format("array '{}' arrived in more than {} separate pieces; send larger ones, or send "
                    "them in order",
                    array_.name, kMaxRanges));
  }
  // What finds no memory has not arrived, or the array would be complete without it.
  if (absl::Status s = memory_->Reach(offset, size); !s.ok()) return s;
  if (extends_previous) {
    begin = previous->first;
    ranges_.erase(previous);
  }
  if (extends_next) {
    end = next->second;
    ranges_.erase(next);
  }
  ranges_.emplace(begin, end);
  received_ += size;
  return absl::OkStatus();
}

absl::StatusOr<Array> ArrayAssembler::Finish() {
  if (!complete()) {
    const bool from_start = !ranges_.empty() && ranges_.begin()->first == 0;
    const uint64_t gap_begin = from_start ? ranges_.begin()->second : 0;
    const auto after = ranges_.upper_bound(gap_begin);
    const uint64_t gap_end = after == ranges_.end() ? array_.bytes() : after->first;
    return absl::InvalidArgumentError(
        fmt::format("array '{}' is incomplete: bytes [{}, {}) of {} never arrived", array_.name,
                    gap_begin, gap_end, array_.bytes()));
  }
  if (memory_ != nullptr && array_.bytes() > 0) {
    if (absl::Status s = memory_->Reach(0, array_.buffer.size()); !s.ok()) return s;
  }
  memory_.reset();
  ranges_.clear();
  received_ = 0;
  return std::exchange(array_, Array());
}

}  // namespace sparsed::engine
