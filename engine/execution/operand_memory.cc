#include "engine/execution/operand_memory.h"

#include <utility>

namespace sparsed::engine {

absl::Status OperandMemory::Reach(size_t offset, size_t size) {
  if (place_ == nullptr) {
    const absl::StatusOr<bool> on_device = FindsRoomOnDevice();
    if (!on_device.ok()) return on_device.status();
    on_device_ = *on_device;
    if (!on_device_) place_ = ArriveWhole(host_, bytes_);
  }
  if (absl::Status status = place_->Reach(offset, size); !status.ok()) return status;
  reached_ += size;
  if (reached_ >= bytes_) Arrived();
  return absl::OkStatus();
}

absl::StatusOr<bool> OperandMemory::FindsRoomOnDevice() {
  if (device_ == nullptr) return false;
  const auto bytes = static_cast<int64_t>(bytes_);
  announced_ = bytes;
  if (device_->arriving().fetch_add(bytes) + bytes > device_->budget().limit() / 2) {
    Arrived();
    return false;
  }
  place_ = ArriveWhole(device_->budget().SourceAtOnce(MemoryUse::kRequests, &owner_), bytes_);
  const absl::Status status = place_->Reach(0, bytes_);
  if (status.ok()) return true;
  Arrived();
  place_.reset();
  if (absl::IsResourceExhausted(status)) return false;
  return status;
}

void OperandMemory::Arrived() {
  if (announced_ > 0) device_->arriving() -= std::exchange(announced_, 0);
}

}  // namespace sparsed::engine
