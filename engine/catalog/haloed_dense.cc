#include "engine/catalog/haloed_dense.h"

#include <chrono>
#include <utility>

#include "engine/catalog/dense_catalog.h"

namespace sparsed::engine {

absl::StatusOr<std::shared_ptr<HaloedDense>> HaloedDense::Allocate(std::string_view name,
                                                                   const DenseShape& shape,
                                                                   Halo halo,
                                                                   MemorySource& memory) {
  const auto bytes_of = [&](int64_t rows) {
    return static_cast<size_t>(rows * shape.cols) * SizeOf(shape.type);
  };
  // The own rows begin where results do, as kernels write them; the operand does where that leads.
  const size_t above = bytes_of(halo.above);
  const size_t begin = (above + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
  absl::StatusOr<Buffer> room =
      memory.Allocate(begin + bytes_of(shape.rows) + bytes_of(halo.below));
  if (!room.ok()) return room.status();
  const int64_t rows = halo.rows() + shape.rows;
  Array own{std::string(name), shape.type, shape.elements(),
            room->Part(begin, bytes_of(shape.rows))};
  Array operand{std::string(name), shape.type, rows * shape.cols,
                room->Part(begin - above, bytes_of(rows))};
  return std::shared_ptr<HaloedDense>(new HaloedDense(halo, std::move(own), std::move(operand)));
}

absl::StatusOr<std::shared_ptr<LazyArray>> HaloedDense::Filled(
    const Fill& fill, const std::function<bool()>& stopped) {
  MutexLock lock(mutex_);
  const uint64_t failures = failures_;
  while (filled_ == nullptr && filling_) {
    if (stopped()) {
      return absl::CancelledError("cancelled while another product gathered the rows");
    }
    ended_.WaitFor(mutex_, std::chrono::milliseconds(20));  // who is stopped wakes nobody
    // Else each that waits would try in its turn, and wait as long as the first.
    if (failures_ != failures && !absl::IsCancelled(failure_)) return failure_;
  }
  if (filled_ != nullptr) return filled_;
  filling_ = true;
  lock.Unlock();
  const absl::Status done = fill(operand_.buffer.mutable_data());
  lock.Lock();
  filling_ = false;
  if (done.ok()) {
    filled_ = std::make_shared<LazyArray>(operand_);
  } else {
    ++failures_;
    failure_ = done;
  }
  const std::shared_ptr<LazyArray> filled = filled_;
  lock.Unlock();
  ended_.NotifyAll();
  if (!done.ok()) return done;
  return filled;
}

bool HaloedDense::in_use() const {
  const MutexLock lock(mutex_);
  return filling_ || (filled_ != nullptr && filled_.use_count() > 1);
}

}  // namespace sparsed::engine
