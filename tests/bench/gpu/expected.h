// Operands whose elements are known here and on the device, and what kernels should make of them in
// some of the rows, in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/bench/gpu/device.h"
#include "tests/generate.h"

namespace sparsed::test {

template <typename T>
T Stored(double value) {
  return static_cast<T>(static_cast<SumOf<T>>(value));
}
template <typename T>
double Wide(T value) {
  return static_cast<SumOf<T>>(value);
}

/// A dense operand on the device, of random values that repeat after kPeriod elements.
template <typename T>
class Operand {
 public:
  static constexpr int64_t kMostWidth = int64_t{1} << 20;

  /// Operands of different `offset` (< kMostWidth) differ.
  static absl::StatusOr<Operand> Make(Device& device, int64_t rows, int64_t width, int64_t offset) {
    const T* const values = Pool().data() + offset;
    const size_t count = rows * width;
    absl::StatusOr<Buffer> buffer = device.Allocate(count * sizeof(T));
    if (!buffer.ok()) return buffer.status();
    const absl::StatusOr<Buffer> pool = device.Upload(values, kPeriod * sizeof(T));
    if (!pool.ok()) return pool.status();
    absl::Status status;
    for (size_t at = 0; at < count && status.ok(); at += kPeriod) {
      status = device.Copy(buffer->mutable_data() + at * sizeof(T), pool->data(),
                           std::min(kPeriod, count - at) * sizeof(T));
    }
    if (status.ok()) status = device.Finish();
    if (!status.ok()) return status;
    return Operand(width, offset, *std::move(buffer));
  }
  const void* device_data() const { return buffer_.data(); }
  /// `width` elements, here.
  const T* Row(int64_t row) const { return Pool().data() + (row * width_ + offset_) % kPeriod; }

 private:
  static constexpr size_t kPeriod = 1'000'003;

  Operand(int64_t width, int64_t offset, Buffer buffer)
      : width_(width), offset_(offset), buffer_(std::move(buffer)) {}

  /// kPeriod values and, since a row may begin anywhere, the first ones again.
  static const std::vector<T>& Pool() {
    static const std::vector<T>* const pool = [] {
      const std::vector<double> values = RandomValues(kPeriod, 4);
      auto* const repeated = new std::vector<T>(kPeriod + kMostWidth);
      for (size_t i = 0; i < repeated->size(); ++i) {
        (*repeated)[i] = Stored<T>(values[i % kPeriod]);
      }
      return repeated;
    }();
    return *pool;
  }

  int64_t width_, offset_;
  Buffer buffer_;
};

/// What some elements of a result should be, in the order of rows, and the sums of their terms'
/// magnitudes.
struct Expected {
  std::vector<double> values;
  std::vector<double> magnitudes;

  /// The largest error relative to the magnitude, without what rounding to T's least number makes;
  /// infinite for what is not a number.
  template <typename T>
  double ErrorOf(const std::vector<T>& got) const {
    constexpr double kLeast = std::is_same_v<T, Float16> ? 0x1p-25 : 0;
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = (std::abs(Wide(got[i]) - values[i]) - kLeast) / (magnitudes[i] + 1e-30);
      if (std::isnan(error)) return std::numeric_limits<double>::infinity();
      worst = std::max(worst, error);
    }
    return worst;
  }
};

/// Evenly spread rows and the longest one, ascending.
inline std::vector<int64_t> SampleRows(const Pattern& pattern) {
  constexpr int64_t kSamples = 128;
  const int64_t count = std::min(kSamples, pattern.rows);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back(i * pattern.rows / count);
  int64_t longest = 0;
  const auto length = [&](int64_t row) {
    return pattern.row_offsets[row + 1] - pattern.row_offsets[row];
  };
  for (int64_t row = 1; row < pattern.rows; ++row) {
    if (length(row) > length(longest)) longest = row;
  }
  if (pattern.rows > 0) rows.push_back(longest);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

/// C's sampled rows; `values` belong to the pattern's nonzeros.
template <typename T>
Expected ExpectedSpmm(const Pattern& pattern, const std::vector<double>& values,
                      const std::vector<int64_t>& rows, const Operand<T>& b, int64_t k) {
  Expected expected;
  expected.values.resize(rows.size() * k);
  expected.magnitudes.resize(rows.size() * k);
#pragma omp parallel for schedule(dynamic, 1)
  for (size_t i = 0; i < rows.size(); ++i) {
    double* const sums = expected.values.data() + i * k;
    double* const magnitudes = expected.magnitudes.data() + i * k;
    for (int64_t p = pattern.row_offsets[rows[i]]; p < pattern.row_offsets[rows[i] + 1]; ++p) {
      const double value = Wide(Stored<T>(values[p]));
      const T* const row = b.Row(pattern.column_indices[p]);
      for (int64_t j = 0; j < k; ++j) {
        const double term = value * Wide(row[j]);
        sums[j] += term;
        magnitudes[j] += std::abs(term);
      }
    }
  }
  return expected;
}

/// The sampled rows' nonzeros.
template <typename T>
Expected ExpectedSddmm(const Pattern& pattern, const std::vector<double>& values,
                       const std::vector<int64_t>& rows, const Operand<T>& a, const Operand<T>& b,
                       int64_t k) {
  std::vector<std::pair<int64_t, int64_t>> entries;  // row and position
  for (const int64_t row : rows) {
    for (int64_t p = pattern.row_offsets[row]; p < pattern.row_offsets[row + 1]; ++p) {
      entries.emplace_back(row, p);
    }
  }
  Expected expected;
  expected.values.resize(entries.size());
  expected.magnitudes.resize(entries.size());
#pragma omp parallel for schedule(static)
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto [row, p] = entries[i];
    const double value = Wide(Stored<T>(values[p]));
    const T* const left = a.Row(row);
    const T* const right = b.Row(pattern.column_indices[p]);
    for (int64_t j = 0; j < k; ++j) {
      const double term = value * Wide(left[j]) * Wide(right[j]);
      expected.values[i] += term;
      expected.magnitudes[i] += std::abs(term);
    }
  }
  return expected;
}

}  // namespace sparsed::test
