// Numbers that a type of values cannot hold.
#pragma once

#include <cmath>
#include <string>

#include "sparsed/types.h"

namespace sparsed::cli {

/// Whether a number became infinite when it was rounded.
inline bool Overflowed(double number, double rounded) {
  return std::isfinite(number) && !std::isfinite(rounded);
}

/// "70000 is beyond f16, which holds 65504 at most".
std::string BeyondRange(double number, ValueType type);

}  // namespace sparsed::cli
