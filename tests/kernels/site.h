// Where tests of kernels without plans put their operands: the CPU's memory or a device's, with
// guards around them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/array.h"
#include "kernels/formats/csr_build.h"
#include "kernels/layout.h"
#include "kernels/problem.h"
#include "tests/generate.h"

namespace sparsed::test {

/// A device. All that operations name is there; they are done when they return.
class Site {
 public:
  virtual ~Site() = default;
  virtual Buffer Upload(const void* data, size_t bytes) = 0;
  virtual void Download(void* to, const Buffer& from, size_t bytes) = 0;
};

/// A kind of site on the CPU.
template <typename Kind>
class OnCpu : public Kind {
 public:
  Buffer Upload(const void* data, size_t bytes) override {
    Buffer buffer = HeapMemory().Allocate(bytes).value();
    if (bytes > 0) std::memcpy(buffer.mutable_data(), data, bytes);
    return buffer;
  }
  void Download(void* to, const Buffer& from, size_t bytes) override {
    std::memcpy(to, from.data(), bytes);
  }
};

template <typename T>
double Wide(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<double>(value);
  } else {
    return static_cast<SumOf<T>>(value);
  }
}
template <typename T>
T Stored(double value) {
  if constexpr (std::is_integral_v<T>) {
    return std::isnan(value) ? T{-77} : static_cast<T>(value);
  } else {
    return static_cast<T>(static_cast<SumOf<T>>(value));
  }
}

/// A matrix with NaN (integers: -77) around and between its rows, which begin `offset` elements
/// behind a multiple of 64 bytes. Its numbers are multiples of 1/4 up to 2, so that sums of
/// products are exact in f32, whatever their order.
template <typename T>
class Matrix {
 public:
  static constexpr int64_t kGuard = 64;

  Matrix(Site& site, int64_t rows, int64_t cols, int64_t padding, int64_t offset)
      : site_(site),
        rows_(rows),
        cols_(cols),
        leading_(cols + padding),
        begin_(kGuard + offset),
        host_(static_cast<size_t>(begin_ + rows * leading_ + kGuard),
              Stored<T>(std::numeric_limits<double>::quiet_NaN())) {}

  Matrix& Fill(std::mt19937& random) {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < cols_; ++j) {
        Set(i, j, static_cast<double>(static_cast<int>(random() % 17) - 8) / 4);
      }
    }
    return *this;
  }
  /// Numbers of no special form in [-magnitude, magnitude].
  Matrix& FillUniformly(std::mt19937& random, double magnitude) {
    std::uniform_real_distribution<double> uniform(-magnitude, magnitude);
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < cols_; ++j) Set(i, j, uniform(random));
    }
    return *this;
  }
  void Set(int64_t i, int64_t j, double value) { host_[At(i, j)] = Stored<T>(value); }
  double operator()(int64_t i, int64_t j) const { return Wide(host_[At(i, j)]); }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  void Upload() { there_ = site_.Upload(host_.data(), host_.size() * sizeof(T)); }
  ConstDense View() {
    if (there_.size() == 0) Upload();
    return {Data(), rows_, cols_, leading_};
  }
  Dense MutableView() {
    Upload();
    return {Data(), rows_, cols_, leading_};
  }
  /// What is there must be as `expected(i, j)` says, a NaN if that is one, to `relative` or
  /// exactly; around it nothing has changed.
  template <typename Expected>
  void Expect(const Expected& expected, double relative = 0) {
    ExpectWithin(expected, [&](int64_t i, int64_t j) {
      return relative * std::max(std::abs(Wide(Stored<T>(expected(i, j)))), 1e-3);
    });
  }
  /// Likewise, to `bound(i, j)`.
  template <typename Expected, typename Bound>
  void ExpectWithin(const Expected& expected, const Bound& bound) {
    std::vector<T> got(host_.size());
    site_.Download(got.data(), there_, got.size() * sizeof(T));
    std::swap(got, host_);
    int64_t wrong = 0, touched = 0;
    std::string example;
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < cols_; ++j) {
        const double want = Wide(Stored<T>(expected(i, j))), is = (*this)(i, j);
        if (is == want || (std::isnan(is) && std::isnan(want))) continue;
        if (std::abs(is - want) <= bound(i, j)) continue;
        if (wrong++ == 0) example = fmt::format("({}, {}): got {}, expected {}", i, j, is, want);
      }
    }
    const auto size = static_cast<int64_t>(host_.size());
    for (int64_t k = 0; k < size; ++k) {
      const int64_t at = k - begin_;
      const bool inside = at >= 0 && at < rows_ * leading_ && at % leading_ < cols_;
      touched += !inside && std::memcmp(&got[k], &host_[k], sizeof(T)) != 0;
    }
    EXPECT_EQ(wrong, 0) << example;
    EXPECT_EQ(touched, 0);
    std::swap(got, host_);
  }

 private:
  size_t At(int64_t i, int64_t j) const { return static_cast<size_t>(begin_ + i * leading_ + j); }
  T* Data() { return reinterpret_cast<T*>(there_.mutable_data()) + begin_; }

  Site& site_;
  const int64_t rows_, cols_, leading_, begin_;
  std::vector<T> host_;
  Buffer there_;
};

/// S as both sides see it: plain CSR, or that of S^T with its value source.
struct Subject {
  Subject(Site& site, const Pattern& of, bool is_transposed) : transposed(is_transposed) {
    BuildContext context;
    context.memory = &HeapMemory();
    const Layout built =
        (transposed ? TransposeCsr(of.view(), context) : CopyCsr(of.view(), context)).value();
    const CsrView csr = ViewCsr(built);
    offsets.assign(csr.row_offsets.begin(), csr.row_offsets.end());
    columns.assign(csr.column_indices.begin(), csr.column_indices.end());
    for (int64_t i = 0; i < built.nnz; ++i) {
      source.push_back(transposed ? built.Elements<int32_t>(kValueSource)[i] : i);
    }
    there = built;
    for (Array& array : there.arrays) {
      array.buffer = site.Upload(array.buffer.data(), array.bytes());
    }
  }
  int64_t rows() const { return there.rows; }
  int64_t cols() const { return there.cols; }
  int64_t nnz() const { return there.nnz; }

  bool transposed;
  Layout there;
  std::vector<int64_t> offsets, source;
  std::vector<int32_t> columns;
};

}  // namespace sparsed::test
