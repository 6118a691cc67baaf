// Devices by name.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/problem.h"

namespace sparsed {

/// One device. Of GPUs there may be several; those that one server uses are of one model.
struct DeviceId {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;  ///< of a GPU, as CUDA counts those that it sees

  friend auto operator<=>(const DeviceId&, const DeviceId&) = default;
};

/// "cpu", "cuda:0".
std::string Name(DeviceId device);
/// The device of that name; none if there cannot be one.
std::optional<DeviceId> ParseDeviceId(std::string_view name);

}  // namespace sparsed
