// What callers run themselves.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/device_id.h"

namespace sparsed::server {

/// What a caller ran since it was asked last.
struct AttachedRuns {
  std::string_view tenant;
  std::string_view operation;  ///< "spmm", "sddmm", "chain"
  DeviceId device{};
  uint64_t calls = 0;
  double seconds = 0;                    ///< of the device
  uint64_t bytes_in = 0, bytes_out = 0;  ///< of dense operands, and of results
};

}  // namespace sparsed::server
