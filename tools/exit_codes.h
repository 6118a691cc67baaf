// How tools end: as sparsectl does.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace sparsed::tools {

inline constexpr int kWrongUse = 2, kBadInput = 3;

/// Says on stderr what failed, and returns the exit code for it.
inline int ExitWith(std::string_view program, const absl::Status& failed) {
  fmt::print(stderr, "{}: {}\n", program, std::string(failed.message()));
  return absl::IsInvalidArgument(failed) || absl::IsNotFound(failed) ? kBadInput : 1;
}

}  // namespace sparsed::tools
