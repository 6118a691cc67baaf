// Random numbers that are the same on every machine: splitmix64, and integers out of it.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace sparsed::corpus {

/// Random numbers by position, so that threads need not share a state.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(Mix(seed)) {}

  uint64_t Bits(uint64_t position) const { return Mix(seed_ + position * 0x9e3779b97f4a7c15); }
  /// Uniform in [0, 1).
  double Unit(uint64_t position) const {
    return static_cast<double>(Bits(position) >> 11) * 0x1p-53;
  }
  /// Uniform in [0, n).
  int32_t Below(int64_t n, uint64_t position) const {
    return static_cast<int32_t>(Unit(position) * static_cast<double>(n));
  }
  /// True for so many in a thousand.
  bool Chance(int permille, uint64_t position) const { return Below(1000, position) < permille; }

 private:
  static uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  uint64_t seed_;
};

/// The same numbers one after the other.
class Random {
 public:
  explicit Random(uint64_t seed) : dice_(seed) {}

  int64_t Below(int64_t n) { return dice_.Below(n, position_++); }
  bool Chance(int permille) { return dice_.Chance(permille, position_++); }

 private:
  Dice dice_;
  uint64_t position_ = 0;
};

/// [0, count) in an order that `random` draws: any class with Below(n).
template <typename Source>
std::vector<int32_t> Shuffled(int64_t count, Source& random) {
  std::vector<int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = count - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
  return order;
}

}  // namespace sparsed::corpus
