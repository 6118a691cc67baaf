#include "engine/memory/array_assembler.h"

#include <fmt/format.h>

#include <utility>

namespace sparsed::engine {

absl::StatusOr<std::byte*> ArrayAssembler::Claim(uint64_t offset, uint64_t size) {
  if (!received_.Contains(offset, size)) {
    return absl::InvalidArgumentError(
        fmt::format("chunk of {} bytes at offset {} goes beyond the end of array '{}' ({} bytes)",
                    size, offset, array_.name, received_.size()));
  }
  static std::byte nothing;
  if (size == 0) return &nothing;
  if (const auto other = received_.FindOverlap(offset, size)) {
    return absl::InvalidArgumentError(
        fmt::format("chunk [{}, {}) of array '{}' overlaps [{}, {}), which has already arrived",
                    offset, offset + size, array_.name, other->begin, other->end));
  }
  if (received_.intervals() >= kMaxRanges && !received_.Touches(offset, size)) {
    return absl::InvalidArgumentError(
        fmt::format("array '{}' arrived in more than {} separate pieces; send larger ones, or send "
                    "them in order",
                    array_.name, kMaxRanges));
  }
  // What finds no memory has not arrived, or the array would be complete without it.
  if (absl::Status s = memory_->Reach(offset, size); !s.ok()) return s;
  received_.Add(offset, size);
  if (array_.buffer.size() == 0) array_.buffer = memory_->buffer();
  return array_.buffer.mutable_data() + offset;
}

absl::StatusOr<Array> ArrayAssembler::Finish() {
  if (const auto gap = received_.FirstGap()) {
    return absl::InvalidArgumentError(
        fmt::format("array '{}' is incomplete: bytes [{}, {}) of {} never arrived", array_.name,
                    gap->begin, gap->end, received_.size()));
  }
  if (memory_ != nullptr && array_.bytes() > 0) {
    if (absl::Status s = memory_->Reach(0, array_.buffer.size()); !s.ok()) return s;
  }
  memory_.reset();
  received_ = Coverage();
  return std::exchange(array_, Array());
}

}  // namespace sparsed::engine
