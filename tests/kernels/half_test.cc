// Conversions of the 16-bit types against the compiler's own and against what rounding means.
#include "kernels/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

namespace sparsed::test {
namespace {

TEST(Half, KeepsEveryNumber) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    Float16 half;
    half.bits = static_cast<uint16_t>(bits);
    const auto widened = static_cast<float>(half);
    BFloat16 upper;
    upper.bits = static_cast<uint16_t>(bits);
    if (std::isnan(widened)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(Float16(widened))));
    } else {
      EXPECT_EQ(Float16(widened).bits, bits);
    }
    if (std::isnan(static_cast<float>(upper))) {
      EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(static_cast<float>(upper)))));
    } else {
      EXPECT_EQ(BFloat16(static_cast<float>(upper)).bits, bits);
    }
  }
}

/// `type`'s numbers on both sides of `value` are no nearer than the one it is rounded to; of two
/// equally near ones it is the even one.
template <typename Half>
void ExpectNearest(float value) {
  const Half rounded(value);
  if (std::isinf(static_cast<float>(rounded))) return;  // beyond the largest
  const double error = std::abs(static_cast<double>(static_cast<float>(rounded)) - value);
  for (const int step : {-1, 1}) {
    Half other;
    other.bits = static_cast<uint16_t>(rounded.bits + step);
    const auto neighbour = static_cast<double>(static_cast<float>(other));
    if (!std::isfinite(neighbour) || std::signbit(neighbour) != std::signbit(value)) continue;
    const double distance = std::abs(neighbour - value);
    ASSERT_LE(error, distance) << value;
    if (error == distance) {
      ASSERT_EQ(rounded.bits % 2, 0) << value;
    }
  }
}

TEST(Half, RoundsToTheNearest) {
  std::mt19937 random(1);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    ExpectNearest<BFloat16>(value);
    int exponent;
    // Into Float16's range, subnormal numbers included.
    const float small =
        std::ldexp(std::frexp(value, &exponent), static_cast<int>(random() % 42) - 26);
    ExpectNearest<Float16>(small);
  }
  ExpectNearest<Float16>(0x1p-25F);  // halfway between 0 and the least
  ExpectNearest<Float16>(0x3p-25F);  // halfway between two subnormal numbers
  ExpectNearest<Float16>(1 + 0x1p-11F);
}

TEST(Half, OverflowsToInfinity) {
  EXPECT_EQ(static_cast<float>(Float16(65504.0F)), 65504.0F);
  EXPECT_EQ(static_cast<float>(Float16(65519.0F)), 65504.0F);
  EXPECT_TRUE(std::isinf(static_cast<float>(Float16(65520.0F))));
  EXPECT_TRUE(std::isinf(static_cast<float>(Float16(-1e30F))));
  EXPECT_TRUE(std::signbit(static_cast<float>(Float16(-1e30F))));
  EXPECT_TRUE(std::isinf(static_cast<float>(BFloat16(3.4e38F))));
}

}  // namespace
}  // namespace sparsed::test
