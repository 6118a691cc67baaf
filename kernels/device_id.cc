#include "kernels/device_id.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

namespace sparsed {

std::string Name(DeviceId device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", device.ordinal);
}

std::optional<DeviceId> ParseDeviceId(std::string_view name) {
  constexpr std::string_view kCuda = "cuda:";
  if (name == "cpu") return DeviceId{};
  if (!name.starts_with(kCuda)) return std::nullopt;
  DeviceId device{DeviceKind::kCuda, 0};
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kCuda.size(), end, device.ordinal);
  if (error != std::errc() || rest != end || device.ordinal < 0) return std::nullopt;
  if (Name(device) != name) return std::nullopt;  // "cuda:01", say
  return device;
}

}  // namespace sparsed
