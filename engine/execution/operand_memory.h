// Where a streamed operand is put together.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/memory/arriving.h"
#include "engine/memory/budget.h"
#include "engine/memory/device.h"

namespace sparsed::engine {

/// On the device if its first bytes find room there, else on the host. Operands that are not
/// complete have half of the device's memory at most.
class OperandMemory final : public ArrivingMemory {
 public:
  /// `device` may be null; `host` is `owner`'s memory for requests. All outlive this.
  OperandMemory(Device* device, MemorySource& host, const MemoryOwner& owner, size_t bytes)
      : device_(device), host_(host), owner_(owner), bytes_(bytes) {}
  ~OperandMemory() override { Arrived(); }

  absl::Status Reach(size_t offset, size_t size) override;
  Buffer buffer() const override { return place_ == nullptr ? Buffer() : place_->buffer(); }
  /// On the host.
  size_t counted() const override {
    return place_ == nullptr || on_device_ ? 0 : place_->counted();
  }
  /// Once something was reached.
  bool on_device() const { return on_device_; }

 private:
  /// False: no room.
  absl::StatusOr<bool> FindsRoomOnDevice();
  void Arrived();

  Device* const device_;
  MemorySource& host_;
  const MemoryOwner& owner_;
  const size_t bytes_;
  size_t reached_ = 0;
  int64_t announced_ = 0;  ///< its part of the device's arriving()
  bool on_device_ = false;
  std::unique_ptr<ArrivingMemory> place_;
};

}  // namespace sparsed::engine
