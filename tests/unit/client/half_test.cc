// The library's 16-bit types: every value there and back, rounding from double.
#include "sparsed/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace sparsed {
namespace {

template <typename Half>
Half FromBits(uint32_t bits) {
  Half half;
  half.bits = static_cast<uint16_t>(bits);
  return half;
}

template <typename Half>
class HalfTest : public testing::Test {};
using Halves = testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(HalfTest, Halves);

TYPED_TEST(HalfTest, EveryValueComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = FromBits<TypeParam>(bits);
    const float value = half;
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(value)))) << bits;
    } else {
      EXPECT_EQ(TypeParam(value).bits, bits);
    }
  }
}

/// Half way between neighbours the even one is nearer, and the least more or less decides.
TYPED_TEST(HalfTest, RoundsOnceFromDouble) {
  const auto infinity =
      FromBits<TypeParam>(TypeParam(std::numeric_limits<double>::infinity()).bits);
  for (uint32_t bits = 0; bits + 1 < infinity.bits; ++bits) {
    const double low = static_cast<float>(FromBits<TypeParam>(bits));
    const double high = static_cast<float>(FromBits<TypeParam>(bits + 1));
    const double middle = (low + high) / 2;
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(TypeParam(middle).bits, even);
    ASSERT_EQ(TypeParam(std::nextafter(middle, 0)).bits, bits);
    ASSERT_EQ(TypeParam(std::nextafter(middle, high)).bits, bits + 1);
    ASSERT_EQ(TypeParam(-middle).bits, even | 0x8000);
  }
  EXPECT_EQ(TypeParam(1e300).bits, infinity.bits);
  EXPECT_EQ(TypeParam(-1e300).bits, infinity.bits | 0x8000);
  EXPECT_EQ(TypeParam(1e-300).bits, 0);
}

TEST(Float16, HasTheValuesOfBinary16) {
  EXPECT_EQ(Float16(1).bits, 0x3c00);
  EXPECT_EQ(Float16(-2).bits, 0xc000);
  EXPECT_EQ(Float16(65504).bits, 0x7bff);
  EXPECT_EQ(Float16(65519.99).bits, 0x7bff);
  EXPECT_EQ(Float16(65520).bits, 0x7c00);
  EXPECT_EQ(Float16(0x1p-24).bits, 1);
  EXPECT_EQ(BFloat16(1).bits, 0x3f80);
}

}  // namespace
}  // namespace sparsed
