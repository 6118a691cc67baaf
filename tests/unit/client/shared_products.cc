#include "tests/unit/client/shared_products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "sparsed/client.h"
#include "tests/unit/client/eventually.h"

namespace sparsed::test {
namespace {

/// Small integers, so that products are exact in every type.
struct Sparse {
  int64_t rows, cols;
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> columns = {};
  std::vector<double> values = {};
};

Sparse RandomSparse(int64_t rows, int64_t cols, std::mt19937& random) {
  Sparse s = {rows, cols};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = row % 5 == 4 ? cols : 0; col < cols; ++col) {
      if (random() % 7 != 0) continue;
      s.columns.push_back(static_cast<int32_t>(col));
      s.values.push_back(static_cast<double>(random() % 7) - 3);
    }
    s.offsets.push_back(static_cast<int64_t>(s.columns.size()));
  }
  return s;
}

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
template <typename T>
constexpr ValueType TypeOfT() {
  if (std::is_same_v<T, float>) return ValueType::kF32;
  if (std::is_same_v<T, double>) return ValueType::kF64;
  return std::is_same_v<T, Float16> ? ValueType::kF16 : ValueType::kBF16;
}

/// A matrix of `cols` columns inside of one that has `gap` more, which nobody may touch.
template <typename T>
class Dense {
 public:
  Dense(const Client& client, int64_t rows, int64_t cols, int64_t gap)
      : rows_(rows), cols_(cols), stride_(cols + gap) {
    auto made = client.AllocateShared(rows, stride_, TypeOfT<T>());
    EXPECT_TRUE(made.ok()) << made.status();
    memory_.push_back(*std::move(made));
    for (int64_t i = 0; i < rows * stride_; ++i) data()[i] = As<T>(kPoison);
  }
  void FillRandom(std::mt19937& random) {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t col = 0; col < cols_; ++col) {
        data()[row * stride_ + col] = As<T>(static_cast<double>(random() % 5) - 2);
      }
    }
  }
  double At(int64_t row, int64_t col) const { return Wide(data()[row * stride_ + col]); }
  MutableDenseView View() const { return {memory_[0].data(), TypeOfT<T>(), rows_, cols_, stride_}; }
  DenseView ConstView() const { return {memory_[0].data(), TypeOfT<T>(), rows_, cols_, stride_}; }
  bool GapsAreUntouched() const {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t col = cols_; col < stride_; ++col) {
        if (At(row, col) != kPoison) return false;
      }
    }
    return true;
  }

 private:
  static constexpr double kPoison = 777;
  T* data() const { return static_cast<T*>(memory_[0].data()); }

  const int64_t rows_, cols_, stride_;
  std::vector<SharedMatrix> memory_;
};

template <typename T>
void CheckType(const Client& client, const ProductsOf& products_of, const std::string& name,
               unsigned seed) {
  std::mt19937 random(seed);
  const Sparse s = RandomSparse(61 + static_cast<int64_t>(seed), 47, random);
  std::vector<T> values;
  for (const double value : s.values) values.push_back(As<T>(value));
  CsrView view{.rows = s.rows,
               .cols = s.cols,
               .row_offsets = std::span<const int64_t>(s.offsets),
               .column_indices = s.columns,
               .values = std::span<const T>(values)};
  auto matrix = client.Upload(name, view);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  const Products products = products_of(*matrix);
  for (const int64_t k : {1, 16, 33}) {
    for (const bool transpose : {false, true}) {
      for (const double beta : {0.0, -2.0}) {
        for (const int64_t gap : {0, 3}) {
          SCOPED_TRACE(testing::Message() << "K " << k << " transposed " << transpose << " beta "
                                          << beta << " gap " << gap);
          const int64_t in = transpose ? s.rows : s.cols, out = transpose ? s.cols : s.rows;
          Dense<T> b(client, in, k, gap), c(client, out, k, gap);
          b.FillRandom(random);
          std::vector<double> expected(static_cast<size_t>(out * k), 0);
          if (beta != 0) {
            c.FillRandom(random);
            for (int64_t i = 0; i < out * k; ++i) expected[i] = beta * c.At(i / k, i % k);
          }
          for (int64_t row = 0; row < s.rows; ++row) {
            for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
              const int64_t to = transpose ? s.columns[i] : row;
              const int64_t from = transpose ? row : s.columns[i];
              for (int64_t j = 0; j < k; ++j) expected[to * k + j] += s.values[i] * b.At(from, j);
            }
          }
          const auto done =
              products.spmm(b.ConstView(), c.View(), {.transpose = transpose, .beta = beta});
          ASSERT_TRUE(done.ok()) << done.status();
          for (int64_t i = 0; i < out * k; ++i) {
            ASSERT_EQ(c.At(i / k, i % k), expected[i]) << "at " << i;
          }
          EXPECT_TRUE(c.GapsAreUntouched() && b.GapsAreUntouched());
        }
      }
    }
    const auto nnz = static_cast<int64_t>(s.columns.size());
    Dense<T> a(client, s.rows, k, 1), b(client, s.cols, k, 0), o(client, nnz, 1, 0);
    a.FillRandom(random);
    b.FillRandom(random);
    const auto done = products.sddmm(a.ConstView(), b.ConstView(), o.View(), {});
    ASSERT_TRUE(done.ok()) << done.status();
    for (int64_t row = 0; row < s.rows; ++row) {
      for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < k; ++j) sum += a.At(row, j) * b.At(s.columns[i], j);
        ASSERT_EQ(o.At(i, 0), s.values[i] * sum) << "nonzero " << i << " K " << k;
      }
    }
    if (k != 1) continue;
    // They are small enough to be the next product's values.
    Dense<T> c(client, s.rows, k, 2);
    const auto next = products.spmm(b.ConstView(), c.View(), {.values = o.ConstView()});
    ASSERT_TRUE(next.ok()) << next.status();
    for (int64_t row = 0; row < s.rows; ++row) {
      double sum = 0;
      for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
        sum += o.At(i, 0) * b.At(s.columns[i], 0);
      }
      ASSERT_EQ(c.At(row, 0), sum) << "row " << row;
    }
    EXPECT_TRUE(c.GapsAreUntouched());
  }
  EXPECT_TRUE(matrix->Delete().ok());
}

}  // namespace

void CheckProducts(const Client& client, const ProductsOf& products_of) {
  CheckType<float>(client, products_of, "f32", 1);
  CheckType<double>(client, products_of, "f64", 2);
  CheckType<Float16>(client, products_of, "f16", 3);
}

void CheckSharedProducts(const std::string& address) {
  const auto client = Client::Connect(address);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto shared = [&] { return client->GetStats()->memory_bytes.at("shared"); };
  EXPECT_EQ(shared(), 0);
  CheckProducts(*client, [](const Matrix& matrix) {
    return Products{
        [matrix](const Operand& b, const Destination& c, const SpmmOptions& options) {
          return matrix.Spmm(b, c, options);
        },
        [matrix](const Operand& a, const Operand& b, const Destination& values,
                 const SddmmOptions& options) { return matrix.Sddmm(a, b, values, options); }};
  });
  // Nobody waits for the server to unmap what went.
  EXPECT_TRUE(Eventually([&] { return shared() == 0; })) << shared() << " bytes are not forgotten";

  // An identity, so that a wrong offset shows.
  const std::vector<int64_t> offsets = {0, 1, 2, 3, 4};
  const std::vector<int32_t> columns = {0, 1, 2, 3};
  const std::vector<float> ones(4, 1);
  auto identity = client->Upload("i", {.rows = 4,
                                       .cols = 4,
                                       .row_offsets = std::span<const int64_t>(offsets),
                                       .column_indices = columns,
                                       .values = std::span<const float>(ones)});
  ASSERT_TRUE(identity.ok());
  const auto both = client->AllocateShared(16, 16);
  ASSERT_TRUE(both.ok()) << both.status();
  auto* const data = static_cast<float*>(both->data());
  for (int i = 0; i < 256; ++i) data[i] = static_cast<float>(i);
  // Rows 4 to 7 of one matrix into rows 8 to 11 of the same.
  ASSERT_TRUE(
      identity->Spmm(DenseView(data + 64, 4, 16), MutableDenseView(data + 128, 4, 16)).ok());
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(data[i], static_cast<float>(i >= 128 && i < 192 ? i - 64 : i)) << i;
  }
  EXPECT_GE(shared(), 1024);
  // Bytes that they share.
  EXPECT_EQ(
      identity->Spmm(DenseView(data, 4, 16), MutableDenseView(data + 16, 4, 16)).status().code(),
      absl::StatusCode::kInvalidArgument);
  // An offset that 64 does not divide goes by the stream, as does a result of the caller's own.
  std::vector<float> own(12);
  ASSERT_TRUE(
      identity->Spmm(DenseView(data + 1, 4, 3, 16), MutableDenseView(own.data(), 4, 3)).ok());
  EXPECT_EQ(own[4], data[18]);
  EXPECT_TRUE(identity->Delete().ok());
}

std::string CheckLargeSharedProduct(const std::string& address) {
  constexpr int64_t kRows = 40'000, kColumns = 131;
  const auto client = Client::Connect(address);
  EXPECT_TRUE(client.ok()) << client.status();
  std::vector<int64_t> offsets(kRows + 1);
  std::vector<int32_t> columns(kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    columns[row] = static_cast<int32_t>(kRows - 1 - row);
    offsets[row + 1] = row + 1;
  }
  const std::vector<float> ones(kRows, 1);
  const auto matrix = client->Upload("backwards",
                                     {.rows = kRows,
                                      .cols = kRows,
                                      .row_offsets = std::span<const int64_t>(offsets),
                                      .column_indices = columns,
                                      .values = std::span<const float>(ones)},
                                     {.replace = true});
  EXPECT_TRUE(matrix.ok()) << matrix.status();
  const auto b = client->AllocateShared(kRows, kColumns);
  const auto c = client->AllocateShared(kRows, kColumns);
  auto* const from = static_cast<float*>(b->data());
  auto* const to = static_cast<float*>(c->data());
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    from[i] = static_cast<float>(i % 251);
    to[i] = static_cast<float>(i % 13);
  }
  const auto done = matrix->Spmm(b->ConstView(), c->View(), {.alpha = 2, .beta = -2});
  EXPECT_TRUE(done.ok()) << done.status();
  int64_t wrong = 0;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const int64_t source = (kRows - 1 - i / kColumns) * kColumns + i % kColumns;
    if (to[i] != static_cast<float>(2 * (source % 251) - 2 * (i % 13))) ++wrong;
  }
  EXPECT_EQ(wrong, 0);
  return done.ok() ? done->plan : "";
}

}  // namespace sparsed::test
