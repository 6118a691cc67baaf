#include "client/cli/number_range.h"

#include <fmt/format.h>

#include <limits>

namespace sparsed::cli {
namespace {

double Largest(ValueType type) {
  switch (type) {
    case ValueType::kF16:
      return 65504;
    case ValueType::kBF16:
      return 0x1.fep127;
    case ValueType::kF32:
      return std::numeric_limits<float>::max();
    case ValueType::kF64:
    case ValueType::kI64:
      break;
  }
  return std::numeric_limits<double>::max();
}

}  // namespace

std::string BeyondRange(double number, ValueType type) {
  return fmt::format("{:g} is beyond {}, which holds {:g} at most", number, Name(type),
                     Largest(type));
}

}  // namespace sparsed::cli
