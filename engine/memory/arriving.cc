#include "engine/memory/arriving.h"

#include "absl/status/statusor.h"

namespace sparsed::engine {
namespace {

class Whole final : public ArrivingMemory {
 public:
  Whole(MemorySource& memory, size_t bytes) : memory_(memory), bytes_(bytes) {}

  absl::Status Reach(size_t, size_t) override {
    if (buffer_.size() == bytes_) return absl::OkStatus();
    absl::StatusOr<Buffer> buffer = memory_.Allocate(bytes_);
    if (buffer.ok()) buffer_ = *std::move(buffer);
    return buffer.status();
  }
  Buffer buffer() const override { return buffer_; }
  size_t counted() const override { return buffer_.size(); }

 private:
  MemorySource& memory_;
  const size_t bytes_;
  Buffer buffer_;
};

}  // namespace

std::unique_ptr<ArrivingMemory> ArriveWhole(MemorySource& memory, size_t bytes) {
  return std::make_unique<Whole>(memory, bytes);
}

absl::Status CheckRoom(Budget& budget, MemoryUse use, size_t bytes, const MemoryOwner* owner) {
  if (absl::Status fits = budget.MayFit(bytes, use, owner); !fits.ok()) return fits;
  // Nothing is evicted for what may never come.
  const int64_t free = budget.limit() - budget.used() + budget.evictions()->bytes();
  if (free > 0 && bytes <= static_cast<size_t>(free)) return absl::OkStatus();
  // The budget refuses in its own words.
  return budget.Source(use).Allocate(bytes).status();
}

}  // namespace sparsed::engine
