// What measurements of kernels hold for, besides the device.
#pragma once

namespace sparsed {

/// To be raised when kernels or layouts changed so much that what was measured of them, and is
/// stored, misleads: plans are tried again then.
inline constexpr int kKernelsVersion = 2;

}  // namespace sparsed
