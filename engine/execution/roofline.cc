#include "engine/execution/roofline.h"

#include <algorithm>
#include <optional>

#include "engine/execution/gpu_backend.h"

namespace sparsed::engine {
namespace {

/// Null if it is not here.
const Backend* BackendOf(const Measurement& measurement, const Executor& executor) {
  const std::optional<DeviceId> id = ParseDeviceId(measurement.device);
  if (!id.has_value()) return nullptr;
  if (id->kind == DeviceKind::kCpu) return &executor.backend(*id);
  const auto& gpus = executor.gpus();
  const auto found = std::ranges::find(gpus, *id, &GpuBackend::id);
  return found == gpus.end() ? nullptr : &*found;
}

}  // namespace

std::string_view Name(Roof roof) {
  switch (roof) {
    case Roof::kUnknown:
      return "";
    case Roof::kMemory:
      return "memory";
    case Roof::kCache:
      return "cache";
  }
  return "";
}

RooflinePosition RooflineOf(const Measurement& measurement, const Executor& executor) {
  const double bytes = measurement.compulsory_bytes;
  const Backend* const backend = BackendOf(measurement, executor);
  RooflinePosition position;
  position.roofline_ms = bytes > 0 && backend != nullptr ? 1e3 * bytes / backend->bytes_per_second()
                                                         : measurement.roofline_ms;
  if (position.roofline_ms <= 0 || measurement.median_ms <= 0) return position;
  position.share = position.roofline_ms / measurement.median_ms;
  const bool fits =
      backend != nullptr && bytes > 0 && bytes <= static_cast<double>(backend->cache_bytes());
  position.roof = fits || position.share > 1 ? Roof::kCache : Roof::kMemory;
  return position;
}

RooflinePosition RooflineOf(const Plan& plan, const std::vector<Measurement>& measurements,
                            const Executor& executor) {
  const Measurement* fastest = nullptr;
  for (const Measurement& m : measurements) {
    if (m.signature != plan.signature || m.pipeline != plan.pipeline || m.kernel != plan.kernel ||
        m.pair != plan.pair) {
      continue;
    }
    if (fastest == nullptr || m.median_ms < fastest->median_ms) fastest = &m;
  }
  return fastest == nullptr ? RooflinePosition() : RooflineOf(*fastest, executor);
}

}  // namespace sparsed::engine
