// How near trials came to what their device's memory allows.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/catalog/plan.h"
#include "engine/execution/executor.h"

namespace sparsed::engine {

/// What bounds a product from above.
enum class Roof : uint8_t {
  kUnknown,
  kMemory,
  kCache,  ///< the last level cache held what it moves, or some: memory's rate is no bound
};
/// "", "memory", "cache".
std::string_view Name(Roof roof);

struct RooflinePosition {
  Roof roof = Roof::kUnknown;
  double roofline_ms =
      0;             ///< of the compulsory bytes at the rate of the device's memory; 0: not known
  double share = 0;  ///< roofline_ms over the median: of memory's roof, which may not be the one
};

/// At the rate of memory that is known now: everybody who asks gets the same.
RooflinePosition RooflineOf(const Measurement& measurement, const Executor& executor);
/// Of the fastest of `measurements` of what the plan runs.
RooflinePosition RooflineOf(const Plan& plan, const std::vector<Measurement>& measurements,
                            const Executor& executor);

}  // namespace sparsed::engine
