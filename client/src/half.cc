#include "sparsed/half.h"

#include <bit>
#include <cmath>

namespace sparsed {
inline namespace client {
namespace {

/// The bits of a float whose further rounding gives what rounding `value` itself would: where it is
/// not exact, the one towards zero with its last bit set (Boldo and Melquiond, "Emulation of a FMA
/// and correctly rounded sums", IEEE TC 2008, rounding to odd).
uint32_t OddFloatBits(double value) {
  const auto nearest = static_cast<float>(value);
  auto bits = std::bit_cast<uint32_t>(nearest);
  const double back = nearest;
  if (back == value || std::isnan(value)) return bits;
  if (std::abs(back) > std::abs(value)) --bits;
  return bits | 1;
}

}  // namespace

Float16::Float16(double value) {
  const uint32_t from = OddFloatBits(value);
  const uint32_t sign = from >> 16 & 0x8000;
  const uint32_t magnitude = from & 0x7fffffff;
  if (magnitude > 0x7f800000) {  // NaN
    bits = static_cast<uint16_t>(sign | 0x7e00);
  } else if (magnitude >= 0x47800000) {  // 65536 and above
    bits = static_cast<uint16_t>(sign | 0x7c00);
  } else if (magnitude < 0x38800000) {  // below 2^-14: subnormal; the adder rounds at 2^-24
    const float rounded = std::bit_cast<float>(magnitude) + 0.5F;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000));
  } else {
    const uint32_t odd = magnitude >> 13 & 1;
    bits = static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
  }
}

Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t widened = exponent == 0x1f ? 0xff : exponent + 112;
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

BFloat16::BFloat16(double value) {
  const uint32_t from = OddFloatBits(value);
  bits = static_cast<uint16_t>(std::isnan(value) ? from >> 16 | 0x40
                                                 : (from + 0x7fff + (from >> 16 & 1)) >> 16);
}

BFloat16::operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

}  // namespace client
}  // namespace sparsed
