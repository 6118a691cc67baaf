// What this machine has of a GPU, and what this build can do with one; without CUDA's runtime, and
// the same whether or not it is built.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sparsed::cuda {

/// What was compiled: "13.0" and "80-real 90-virtual", or "none" and nothing.
struct Build {
  std::string_view version;
  std::string_view architectures;
};
Build ThisBuild();

/// What can be seen of a card without its driver's help.
struct Traces {
  std::string library_error;  ///< why libcuda.so.1 cannot be opened; empty if it can
  bool device_files = false;  ///< /dev/nvidia*, or /proc/driver/nvidia
  std::string card;           ///< the PCI address of a card of NVIDIA's; empty: none
};
/// Reads /dev, /proc and /sys under `root`.
Traces FindTraces(const std::string& root = "", const char* library = "libcuda.so.1");

/// OK if the driver can be asked. NOT_FOUND if nobody could expect a GPU to serve: there is no
/// trace of one, or CUDA_VISIBLE_DEVICES hides all. Else UNAVAILABLE, with what is missing and what
/// to do.
absl::Status CheckTraces(const Traces& traces);

/// UNAVAILABLE: the driver is here but says `words` when it is asked for a card, and what to do.
absl::Status DriverRefuses(const Traces& traces, std::string_view words);

}  // namespace sparsed::cuda
