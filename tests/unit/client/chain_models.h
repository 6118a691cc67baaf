// What chains are tested with: matrices, what values of chains have to be, and where they lie.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sparsed/chain.h"
#include "tests/unit/client/chain_products.h"

namespace sparsed::test {

template <typename T>
inline constexpr ValueType kTypeOf = std::is_same_v<T, float>     ? ValueType::kF32
                                     : std::is_same_v<T, double>  ? ValueType::kF64
                                     : std::is_same_v<T, Float16> ? ValueType::kF16
                                     : std::is_same_v<T, int64_t> ? ValueType::kI64
                                                                  : ValueType::kBF16;

template <typename T>
T As(double value) {
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(value);
  return T(static_cast<float>(value));
}
template <typename T>
double Wide(T value) {
  if constexpr (std::is_floating_point_v<T>) return value;
  return static_cast<double>(static_cast<float>(value));
}

/// A matrix whose rows' nonzeros are in no order, of small whole numbers.
struct Sparse {
  int64_t rows, cols;
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> columns = {};
  std::vector<double> values = {};

  int64_t nnz() const { return static_cast<int64_t>(columns.size()); }
};

inline Sparse RandomSparse(int64_t rows, int64_t cols, bool ordered, std::mt19937& random) {
  Sparse s = {rows, cols};
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int32_t> columns;
    for (int32_t col = 0; col < cols && row % 5 != 4; ++col) {
      if (random() % static_cast<uint32_t>(cols) < 3) columns.push_back(col);
    }
    if (!ordered) std::shuffle(columns.begin(), columns.end(), random);
    for (const int32_t col : columns) {
      s.columns.push_back(col);
      s.values.push_back(static_cast<double>(random() % 3) - 1);
    }
    s.offsets.push_back(s.nnz());
  }
  return s;
}

/// What a value of a chain has to be.
struct Model {
  int64_t rows = 0, cols = 0;
  std::vector<double> at;

  static Model Zeros(int64_t rows, int64_t cols) {
    return {rows, cols, std::vector<double>(static_cast<size_t>(rows * cols))};
  }
  bool Like(const Model& other) const { return rows == other.rows && cols == other.cols; }
  /// Sums of whole numbers as small as that are exact in every type.
  bool IsSmall() const {
    return std::ranges::all_of(at, [](double x) { return std::abs(x) <= 200; });
  }
};

/// One value for each nonzero.
inline Model Nonzeros(const std::vector<double>& values) {
  return {static_cast<int64_t>(values.size()), 1, values};
}

/// A dense matrix of the caller's: in memory of its own, shared, or held by the server.
template <typename T>
class Place {
 public:
  Place(ChainRunner& runner, const Model& shape, std::mt19937& random)
      : client_(runner.client()), rows_(shape.rows), cols_(shape.cols) {
    // The server holds no i64.
    kind_ = random() % (std::is_same_v<T, int64_t> || runner.here() ? 2 : 3);
    stride_ = cols_ + (kind_ == 2 || cols_ == 1 ? 0 : static_cast<int64_t>(random() % 3));
    if (kind_ == 1) {
      auto shared = client_.AllocateShared(std::max<int64_t>(rows_, 1), stride_, kTypeOf<T>);
      EXPECT_TRUE(shared.ok()) << shared.status();
      shared_.push_back(*shared);
    }
    own_.resize(static_cast<size_t>(rows_ * stride_));
    std::fill_n(data(), rows_ * stride_, As<T>(768));
    device_ = runner.Allocate(static_cast<size_t>(rows_ * stride_) * sizeof(T));
    if (device_ != nullptr) device_->Write(data());
  }
  Operand AsOperand(const Model& model) {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < cols_; ++j) {
        data()[i * stride_ + j] = As<T>(model.at[i * cols_ + j]);
      }
    }
    const DenseView view(data(), kTypeOf<T>, rows_, cols_, stride_);
    if (device_ != nullptr) {
      device_->Write(data());
      return DenseView(device_->data(), kTypeOf<T>, rows_, cols_, stride_);
    }
    if (kind_ != 2) return view;
    auto held = client_.PutDense(Name(), view);
    EXPECT_TRUE(held.ok()) << held.status();
    return *held;
  }
  Destination AsDestination() {
    if (device_ != nullptr) {
      return MutableDenseView(device_->data(), kTypeOf<T>, rows_, cols_, stride_);
    }
    if (kind_ != 2) return View();
    auto held = client_.PutZeros(Name(), kTypeOf<T>, rows_, cols_);
    EXPECT_TRUE(held.ok()) << held.status();
    return *held;
  }
  /// `relative` to what is expected, or to one.
  void Expect(const Model& model, double relative = 0) {
    if (kind_ == 2) {
      const auto read = client_.DenseNamed(Name()).Read(View());
      EXPECT_TRUE(read.ok()) << read.status();
    }
    if (device_ != nullptr) device_->Read(data());
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < stride_; ++j) {
        const double expected = j < cols_ ? model.at[i * cols_ + j] : 768;
        const double got = Wide(data()[i * stride_ + j]);
        if (got == expected || (std::isnan(got) && std::isnan(expected))) continue;
        ASSERT_LE(std::abs(got - expected), relative * std::max(1.0, std::abs(expected)))
            << "at " << i << ", " << j << ": " << got << ", not " << expected;
      }
    }
  }

 private:
  std::string Name() const { return fmt::format("place-{}", static_cast<const void*>(this)); }
  T* data() { return kind_ == 1 ? static_cast<T*>(shared_[0].data()) : own_.data(); }
  MutableDenseView View() { return {data(), kTypeOf<T>, rows_, cols_, stride_}; }

  const Client client_;
  const int64_t rows_, cols_;
  uint32_t kind_;
  int64_t stride_;
  std::vector<SharedMatrix> shared_;
  std::vector<T> own_;
  std::unique_ptr<DeviceBytes> device_;
};

template <typename T>
Matrix Send(const Client& client, const std::string& name, const Sparse& s) {
  std::vector<T> values;
  for (const double value : s.values) values.push_back(As<T>(value));
  const auto matrix = client.Upload(name,
                                    {.rows = s.rows,
                                     .cols = s.cols,
                                     .row_offsets = std::span<const int64_t>(s.offsets),
                                     .column_indices = s.columns,
                                     .values = std::span<const T>(values)},
                                    {.replace = true, .sort = true});
  EXPECT_TRUE(matrix.ok()) << matrix.status();
  return *matrix;
}

}  // namespace sparsed::test
