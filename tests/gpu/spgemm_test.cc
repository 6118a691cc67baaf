// Every SpGEMM kernel of the GPU against kernels/reference: results and workspaces start poisoned,
// arrays are exactly as large as they must be, and what is behind them must stay as it was.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/reference/reference.h"
#include "tests/generate.h"
#include "tests/gpu/gpu.h"
#include "tests/matrix_market.h"
#include "tests/matrix_pack.h"
#include "tests/product_formats.h"

namespace sparsed::test {
namespace {

#define SKIP_WITHOUT_GPU() \
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot()

/// An array on the device between the host's copies of it, with a guard behind.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Gpu& gpu, const std::vector<T>& values) : gpu_(gpu), length_(values.size()) {
    std::vector<T> all = values;
    all.resize(length_ + kGuard);
    std::memset(static_cast<void*>(all.data() + length_), 0xff, kGuard * sizeof(T));
    buffer_ = gpu.Upload(all.data(), all.size() * sizeof(T));
  }
  /// Poisoned.
  DeviceArray(Gpu& gpu, size_t length) : gpu_(gpu), length_(length) {
    buffer_ = gpu.Allocate((length + kGuard) * sizeof(T));
    Must(gpu.stream().Fill(buffer_.mutable_data(), 0xff, (length + kGuard) * sizeof(T)));
  }
  std::span<T> span() { return {reinterpret_cast<T*>(buffer_.mutable_data()), length_}; }
  T* data() { return span().data(); }
  /// Expects that the guard is as it was.
  std::vector<T> Download() {
    std::vector<T> all(length_ + kGuard);
    gpu_.Download(all.data(), buffer_.data(), all.size() * sizeof(T));
    const auto* const guard = reinterpret_cast<const unsigned char*>(all.data() + length_);
    EXPECT_TRUE(std::all_of(guard, guard + kGuard * sizeof(T), [](auto b) { return b == 0xff; }))
        << "written behind the end";
    all.resize(length_);
    return all;
  }

 private:
  static constexpr size_t kGuard = 64;
  Gpu& gpu_;
  size_t length_;
  Buffer buffer_;
};

/// For what kernels prepare.
class PoisonedMemory final : public MemorySource {
 public:
  explicit PoisonedMemory(Gpu& gpu) : gpu_(gpu) {}
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    Buffer buffer = gpu_.Allocate(bytes);
    Must(gpu_.stream().Fill(buffer.mutable_data(), 0xff, bytes));
    return buffer;
  }

 private:
  Gpu& gpu_;
};

template <typename T>
struct OnGpu {
  OnGpu(Gpu& gpu, const Matrix& matrix)
      : rows(matrix.pattern.rows),
        cols(matrix.pattern.cols),
        offsets(gpu, matrix.pattern.row_offsets),
        columns(gpu, matrix.pattern.column_indices),
        values(gpu, std::vector<T>(matrix.values.begin(), matrix.values.end())) {}
  CsrView view() { return {rows, cols, offsets.span(), columns.span(), {}}; }

  int64_t rows, cols;
  DeviceArray<int64_t> offsets;
  DeviceArray<int32_t> columns;
  DeviceArray<T> values;
};

template <typename T>
Matrix Rounded(Matrix matrix) {
  for (double& value : matrix.values) value = static_cast<T>(value);
  return matrix;
}

/// Runs `kernel` on rows of `range` with room for `room` entries in each; expects the reference's.
template <typename T>
void ExpectRows(Gpu& gpu, const SpgemmKernel& kernel, const Context& context,
                const Problem& problem, const SpgemmArguments& arguments, RowRange range,
                std::span<const int64_t> room, const reference::SparseResult& expected,
                int64_t terms) {
  std::vector<int64_t> begins(room.size() + 1);
  std::partial_sum(room.begin(), room.end(), begins.begin() + 1);
  DeviceArray<int64_t> row_begin(gpu, begins);
  DeviceArray<int64_t> row_nnz(gpu, room.size());
  DeviceArray<int32_t> columns(gpu, begins.back());
  DeviceArray<T> values(gpu, begins.back());
  const absl::Status status = kernel.numeric(context, problem, arguments, range, row_begin.span(),
                                             columns.data(), values.data(), row_nnz.span());
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<int64_t> got_nnz = row_nnz.Download();
  const std::vector<int32_t> got_columns = columns.Download();
  const std::vector<T> got_values = values.Download();
  for (size_t i = 0; i < room.size(); ++i) {
    const int64_t from = expected.row_offsets[range.begin + i];
    const int64_t nnz = expected.row_offsets[range.begin + i + 1] - from;
    ASSERT_EQ(got_nnz[i], nnz) << "row " << range.begin + i;
    for (int64_t j = 0; j < nnz; ++j) {
      ASSERT_EQ(got_columns[begins[i] + j], expected.column_indices[from + j])
          << "row " << range.begin + i << ", entry " << j << " of " << nnz;
      if (std::isnan(expected.values[from + j])) {
        ASSERT_TRUE(std::isnan(got_values[begins[i] + j]));
        continue;
      }
      if (!std::isfinite(expected.magnitudes[from + j])) {
        ASSERT_EQ(got_values[begins[i] + j], static_cast<T>(expected.values[from + j]));
        continue;
      }
      const double bound = expected.magnitudes[from + j] * static_cast<double>(terms + 2) *
                               std::numeric_limits<T>::epsilon() +
                           std::numeric_limits<T>::min();
      ASSERT_NEAR(got_values[begins[i] + j], expected.values[from + j], bound)
          << "row " << range.begin + i << ", entry " << j << " of " << nnz;
    }
  }
}

/// What the kernel says of the rows before it computes them, and all of them, and a part.
template <typename T>
void ExpectPhases(Gpu& gpu, const SpgemmKernel& kernel, const Context& context,
                  const Problem& problem, const SpgemmArguments& arguments,
                  const reference::SparseResult& expected, std::span<const int64_t> row_products,
                  int64_t terms) {
  const int64_t rows = arguments.left.rows;
  DeviceArray<int64_t> counts(gpu, rows), products(gpu, 1);
  absl::Status status = kernel.analyse(context, arguments, counts.span(), products.data());
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<int64_t> bounds = counts.Download();
  EXPECT_EQ(products.Download()[0],
            std::accumulate(row_products.begin(), row_products.end(), int64_t{0}));
  for (int64_t row = 0; row < rows; ++row) {
    ASSERT_LE(bounds[row], std::min(row_products[row], arguments.right.cols)) << row;
  }

  status = kernel.symbolic(context, arguments, {0, rows}, counts.span());
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<int64_t> exact = counts.Download();
  for (int64_t row = 0; row < rows; ++row) {
    ASSERT_EQ(exact[row], expected.row_offsets[row + 1] - expected.row_offsets[row])
        << "row " << row << " of " << row_products[row] << " products";
  }

  ExpectRows<T>(gpu, kernel, context, problem, arguments, {0, rows}, exact, expected, terms);
  ExpectRows<T>(gpu, kernel, context, problem, arguments, {0, rows}, bounds, expected, terms);
  const RowRange part = {rows / 3, rows - rows / 4};
  const std::span<const int64_t> room(exact);
  ExpectRows<T>(gpu, kernel, context, problem, arguments, part,
                room.subspan(part.begin, part.end - part.begin), expected, terms);
  DeviceArray<int64_t> again(
      gpu, std::vector<int64_t>(bounds.begin() + part.begin, bounds.begin() + part.end));
  status = kernel.symbolic(context, arguments, part, again.span());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(again.Download(),
            std::vector<int64_t>(exact.begin() + part.begin, exact.begin() + part.end));
}

/// False if the matrices don't suit the kernel.
template <typename T>
bool ExpectProduct(const SpgemmKernel& kernel, const Matrix& exact_s, const Matrix& exact_t,
                   Semiring semiring = Semiring::kSumProduct, const Pattern* mask = nullptr) {
  SCOPED_TRACE(fmt::format("{} {}, {} x {} ({}) by {} x {} ({})", kernel.name,
                           Name(ElementTypeOf<T>()), exact_s.pattern.rows, exact_s.pattern.cols,
                           exact_s.pattern.nnz(), exact_t.pattern.rows, exact_t.pattern.cols,
                           exact_t.pattern.nnz()));
  Gpu& gpu = *Gpu::Get();
  const Matrix s = Rounded<T>(exact_s), t = Rounded<T>(exact_t);
  const CsrView mask_view = mask == nullptr ? CsrView() : mask->view();
  const reference::SparseResult expected =
      reference::Spgemm(s.pattern.view(), s.values.data(), t.pattern.view(), t.values.data(),
                        semiring, mask == nullptr ? nullptr : &mask_view);
  const int64_t rows = s.pattern.rows;
  std::vector<int64_t> row_products(rows);
  int64_t terms = 0;  // the most that one entry can be the sum of
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = s.pattern.row_offsets[row], end = s.pattern.row_offsets[row + 1];
    terms = std::max(terms, end - begin);
    for (int64_t j = begin; j < end; ++j) {
      const int32_t k = s.pattern.column_indices[j];
      row_products[row] += t.pattern.row_offsets[k + 1] - t.pattern.row_offsets[k];
    }
  }

  OnGpu<T> left(gpu, s), right(gpu, t);
  SpgemmArguments arguments = {left.view(), left.values.data(), right.view(), right.values.data()};
  std::optional<OnGpu<T>> mask_there;
  if (mask != nullptr) {
    mask_there.emplace(gpu, Matrix{*mask, std::vector<double>(mask->nnz())});
    arguments.mask = mask_there->view();
  }
  const Problem problem = {.operation = Operation::kSpgemm,
                           .type = ElementTypeOf<T>(),
                           .device = DeviceKind::kCuda,
                           .semiring = semiring,
                           .masked = mask != nullptr};
  EXPECT_TRUE(kernel.supports(problem));
  const std::vector<T> s_values(s.values.begin(), s.values.end());
  const std::vector<T> t_values(t.values.begin(), t.values.end());
  BuildContext building;
  building.memory = &HeapMemory();
  absl::StatusOr<ProductFormats> formats =
      MakeFormats(kernel, problem,
                  {s.pattern.view(), s_values.data(), t.pattern.view(), t_values.data()}, building);
  if (absl::IsFailedPrecondition(formats.status())) return false;
  EXPECT_TRUE(formats.ok()) << formats.status();
  if (!formats.ok()) return true;
  ProductFormats formats_there;
  const auto bring = [&](const Layout& layout, const Array& values, Layout& layout_there,
                         Array& values_there) {
    layout_there = gpu.Upload(layout);
    values_there = values;
    values_there.buffer = gpu.Upload(values.buffer.data(), values.bytes());
  };
  bring(formats->left, formats->left_values, formats_there.left, formats_there.left_values);
  bring(formats->right, formats->right_values, formats_there.right, formats_there.right_values);
  formats_there.AddTo(arguments);
  DeviceArray<std::byte> workspace(gpu, kernel.workspace(problem, arguments, 1));
  Context context = {.workspace = workspace.span(), .stream = gpu.stream().handle()};
  std::shared_ptr<void> prepared;
  if (kernel.prepare != nullptr) {
    PoisonedMemory memory(gpu);
    absl::StatusOr<std::shared_ptr<void>> made =
        kernel.prepare(context, problem, arguments, memory);
    if (absl::IsFailedPrecondition(made.status())) return false;
    EXPECT_TRUE(made.ok()) << made.status();
    if (!made.ok()) return true;
    prepared = *std::move(made);
    context.prepared = prepared.get();
  }
  ExpectPhases<T>(gpu, kernel, context, problem, arguments, expected, row_products, terms);
  workspace.Download();
  return true;
}

/// The kernels that the matrices suited.
std::set<std::string_view> Expect(const Matrix& s, const Matrix& t,
                                  Semiring semiring = Semiring::kSumProduct,
                                  const Pattern* mask = nullptr) {
  std::set<std::string_view> suited;
  for (const SpgemmKernel& kernel : SpgemmKernels()) {
    if (kernel.device != DeviceKind::kCuda || !kernel.supports({.operation = Operation::kSpgemm,
                                                                .device = DeviceKind::kCuda,
                                                                .semiring = semiring,
                                                                .masked = mask != nullptr})) {
      continue;
    }
    const bool single = ExpectProduct<float>(kernel, s, t, semiring, mask);
    EXPECT_EQ(ExpectProduct<double>(kernel, s, t, semiring, mask), single) << kernel.name;
    if (single) suited.insert(kernel.name);
  }
  return suited;
}
std::set<std::string_view> Expect(Pattern s, Pattern t) {
  return Expect(WithRandomValues(std::move(s), 11), WithRandomValues(std::move(t), 12));
}
std::set<std::string_view> ExpectSquare(const Pattern& s) { return Expect(s, s); }

TEST(GpuSpgemm, OddShapes) {
  SKIP_WITHOUT_GPU();
  for (const auto& [s, t] : OddFactors()) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols << " by " << t.cols);
    Expect(s, t);
  }
}

TEST(GpuSpgemm, RegularMatrices) {
  SKIP_WITHOUT_GPU();
  ExpectSquare(Band(300, 1));
  ExpectSquare(Band(400, 15));
  ExpectSquare(Band(400, 31));
  ExpectSquare(Band(400, 32));
  ExpectSquare(Band(90, 89));
  ExpectSquare(Stencil(40, 37));
}

TEST(GpuSpgemm, IrregularMatrices) {
  SKIP_WITHOUT_GPU();
  ExpectSquare(Uniform(500, 500, 16, 21));
  ExpectSquare(Uniform(2000, 2000, 3, 22));
  ExpectSquare(Rmat(11, 8, 23));
  ExpectSquare(PowerLaw(1500, 6000, 2.1, 24));
  Expect(Uniform(200, 3000, 60, 25), Uniform(3000, 40'000, 20, 26));
}

TEST(GpuSpgemm, RowsInSeveralWindows) {
  SKIP_WITHOUT_GPU();
  const Pattern t = Uniform(4000, 3'000'000, 12, 32);
  Expect(Uniform(40, 4000, 30, 31), t);   // middle rows, many windows of a bitmap
  Expect(Uniform(20, 4000, 400, 33), t);  // long ones
  Expect(Uniform(3, 4000, 1500, 34), t);  // more entries than sums: windows of columns
  Expect(Uniform(20, 600, 300, 35), Uniform(600, 30'000, 700, 36));
}

TEST(GpuSpgemm, FullRowsAndColumns) {
  SKIP_WITHOUT_GPU();
  std::vector<std::vector<int32_t>> arrow(3000), row(3000), column(3000);
  for (int32_t i = 0; i < 3000; ++i) {
    arrow[i] = {0, i};
    arrow[1234].push_back(i);
    row[i] = {i};
    row[7].push_back(i);
    column[i] = {5, i};
  }
  ExpectSquare(FromRows(3000, arrow));
  ExpectSquare(FromRows(3000, row));
  ExpectSquare(FromRows(3000, column));
  Expect(FromRows(3000, row), FromRows(3000, column));
  Expect(Uniform(1, 20'000, 20'000, 37), Uniform(20'000, 20'000, 1, 38));
}

TEST(GpuSpgemm, EveryLengthAroundTheLimitsOfBins) {
  SKIP_WITHOUT_GPU();
  // Row i of C has about lengths[i] entries, close together and far apart.
  const int32_t lengths[] = {1,    2,    31,   32,   33,   127,  128,  129,  255,
                             256,  257,  511,  512,  513,  1023, 1024, 1025, 2047,
                             2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193};
  for (const int32_t stride : {1, 3, 41}) {
    std::vector<std::vector<int32_t>> s, t;
    for (const int32_t length : lengths) {
      s.push_back({static_cast<int32_t>(t.size()), static_cast<int32_t>(t.size()) + 1});
      std::vector<int32_t> even, shared;
      for (int32_t i = 0; i < length; ++i) even.push_back(i * stride);
      for (int32_t i = 0; i < length; i += 2) shared.push_back(i * stride);
      t.push_back(std::move(even));
      t.push_back(std::move(shared));
    }
    Expect(FromRows(static_cast<int64_t>(t.size()), s), FromRows(8200 * stride, t));
  }
}

/// Rows that have some of a matrix's diagonals, each with a chance of a half.
Pattern SomeOfDiagonals(int64_t rows, int64_t cols, const std::vector<int32_t>& offsets,
                        uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<int32_t>> columns(rows);
  for (int64_t row = 0; row < rows; ++row) {
    for (const int32_t offset : offsets) {
      const int64_t column = row + offset;
      if (column >= 0 && column < cols && random() % 2 == 0) {
        columns[row].push_back(static_cast<int32_t>(column));
      }
    }
  }
  return FromRows(cols, columns);
}

TEST(GpuSpgemm, FewDiagonals) {
  SKIP_WITHOUT_GPU();
  const auto suits = [](const std::set<std::string_view>& kernels) {
    return kernels.contains("cuda.dia.diagonals");
  };
  EXPECT_TRUE(suits(ExpectSquare(Band(300, 1))));
  EXPECT_TRUE(suits(ExpectSquare(Band(1000, 31))));
  EXPECT_FALSE(suits(ExpectSquare(Band(1000, 32))));  // 65 diagonals
  EXPECT_TRUE(suits(ExpectSquare(Stencil(50, 41))));
  EXPECT_FALSE(suits(ExpectSquare(Uniform(500, 500, 16, 41))));
  const std::vector<int32_t> far = {-900, -77, -3, 0, 1, 2, 64, 500, 1100};
  EXPECT_TRUE(suits(
      Expect(SomeOfDiagonals(1000, 1300, far, 42), SomeOfDiagonals(1300, 700, {-1000, 0, 5}, 43))));
  EXPECT_TRUE(
      suits(Expect(SomeOfDiagonals(700, 700, {-1}, 44), SomeOfDiagonals(700, 900, far, 45))));
  EXPECT_TRUE(suits(Expect(SomeOfDiagonals(1, 2000, {7, 1999}, 46), Band(2000, 2))));
  EXPECT_TRUE(suits(Expect(SomeOfDiagonals(600, 600, {}, 47), Band(600, 2))));
  std::vector<int32_t> apart;  // 40 and 40 make more than 128
  for (int32_t i = 0; i < 40; ++i) apart.push_back(i * i - 700);
  EXPECT_FALSE(suits(ExpectSquare(SomeOfDiagonals(900, 900, apart, 48))));
}

/// `blocks` blocks of width x width in each row of blocks, one of them on the diagonal; each of
/// their places is a nonzero with a chance of `fill`. The last ones are cut off by the edges.
Pattern InBlocks(int64_t rows, int64_t cols, int32_t width, int64_t blocks, double fill,
                 uint64_t seed) {
  const int64_t block_rows = (rows + width - 1) / width, block_cols = (cols + width - 1) / width;
  std::mt19937_64 random(seed);
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int64_t block_row = 0; block_row < block_rows; ++block_row) {
    for (int64_t i = 0; i < blocks; ++i) {
      const auto block = static_cast<int64_t>(i == 0 ? block_row % block_cols
                                                     : static_cast<int64_t>(random() % block_cols));
      for (int64_t row = block_row * width; row < std::min(rows, (block_row + 1) * width); ++row) {
        for (int64_t col = block * width; col < std::min(cols, (block + 1) * width); ++col) {
          if (std::uniform_real_distribution(0.0, 1.0)(random) >= fill) continue;
          entries.emplace_back(static_cast<int32_t>(row), static_cast<int32_t>(col));
        }
      }
    }
  }
  return FromCoordinates(rows, cols, std::move(entries));
}

/// Blocks of 4 x 4 on the diagonal, some of them narrower, and one full row of blocks.
Pattern OneLongRowOfBlocks(int32_t blocks) {
  const int32_t cols = 4 * blocks;
  std::vector<std::vector<int32_t>> rows(cols);
  for (int32_t i = 0; i < cols; ++i) {
    const bool is_long = i / 4 == blocks / 5;
    const int32_t length = is_long ? cols : i % 4 == 3 ? 3 : 4;
    for (int32_t j = 0; j < length; ++j) rows[i].push_back(is_long ? j : i / 4 * 4 + j);
  }
  return FromRows(cols, rows);
}

bool SuitsBlocks(const std::set<std::string_view>& kernels) {
  return kernels.contains("cuda.bcsr.blocks");
}

class GpuSpgemmOfBlocks : public testing::TestWithParam<int32_t> {};
TEST_P(GpuSpgemmOfBlocks, Compute) {
  SKIP_WITHOUT_GPU();
  const int32_t width = GetParam();
  EXPECT_TRUE(SuitsBlocks(ExpectSquare(InBlocks(601, 601, width, 9, 0.85, 81))));
  EXPECT_TRUE(SuitsBlocks(
      Expect(InBlocks(355, 611, width, 5, 1, 82), InBlocks(611, 997, width, 7, 1, 83))));
  EXPECT_TRUE(
      SuitsBlocks(Expect(InBlocks(1, 611, width, 40, 1, 84), InBlocks(611, 9, width, 1, 1, 85))) ||
      width > 2);  // a single row fills no larger block
}
INSTANTIATE_TEST_SUITE_P(Width, GpuSpgemmOfBlocks, testing::Range(2, 9),
                         testing::PrintToStringParamName());

TEST(GpuSpgemm, DenseBlocks) {
  SKIP_WITHOUT_GPU();
  EXPECT_TRUE(SuitsBlocks(ExpectSquare(Band(700, 40))));
  EXPECT_TRUE(SuitsBlocks(ExpectSquare(Band(90, 89))));

  // A row of blocks far longer than the others, also of the result: several windows. Where it would
  // hold up all others it is refused.
  EXPECT_TRUE(SuitsBlocks(ExpectSquare(OneLongRowOfBlocks(500))));
  EXPECT_FALSE(SuitsBlocks(ExpectSquare(OneLongRowOfBlocks(5000))));

  EXPECT_FALSE(SuitsBlocks(ExpectSquare(Uniform(500, 500, 16, 86))));
  EXPECT_FALSE(SuitsBlocks(Expect(InBlocks(600, 600, 3, 9, 1, 87), Uniform(600, 700, 4, 88))));
  EXPECT_FALSE(SuitsBlocks(ExpectSquare(InBlocks(600, 600, 6, 9, 0.3, 89))));
  EXPECT_FALSE(SuitsBlocks(ExpectSquare(InBlocks(600, 600, 6, 0, 1, 90))));
}

TEST(GpuSpgemm, PaddingOfBlocksMeetsNoInfinity) {
  SKIP_WITHOUT_GPU();
  for (int32_t width = 2; width <= 8; ++width) {
    SCOPED_TRACE(width);
    Matrix s = WithRandomValues(InBlocks(203, 203, width, 4, 0.8, 91), 92);
    Matrix t = WithRandomValues(InBlocks(203, 203, width, 4, 0.8, 93), 94);
    for (size_t i = 0; i < s.values.size(); i += 37) {
      s.values[i] = std::numeric_limits<double>::infinity();
    }
    EXPECT_TRUE(Expect(s, t).contains("cuda.bcsr.blocks"));
    t.values[5] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(Expect(t, s).contains("cuda.bcsr.blocks"));
  }
}

TEST(GpuSpgemm, FewProducts) {
  SKIP_WITHOUT_GPU();
  const auto suits = [](const std::set<std::string_view>& kernels) {
    return kernels.contains("cuda.csr.expand_sort");
  };
  EXPECT_TRUE(suits(ExpectSquare(Stencil(60, 51))));
  EXPECT_TRUE(suits(ExpectSquare(Uniform(3000, 3000, 4, 51))));
  EXPECT_TRUE(suits(Expect(Uniform(2500, 300, 1, 52), Uniform(300, 30'000'000, 20, 53))));
  EXPECT_FALSE(suits(Expect(Uniform(10, 300, 1, 54), Uniform(300, 40'000'000, 2, 55))));
  // As many products as one row may have, and one more.
  std::vector<std::vector<int32_t>> t(600);
  for (int32_t i = 0; i < 32; ++i) t[0].push_back(3 * i);
  t[1] = {5};
  std::vector<std::vector<int32_t>> s(1000);
  for (int32_t i = 0; i < 1000; i += 7) s[i] = {0, 1, 2};
  EXPECT_TRUE(suits(Expect(FromRows(600, s), FromRows(100, t))));
  t.assign(600, {0});
  s[500].clear();
  for (int32_t i = 0; i < 512; ++i) s[500].push_back(i);
  EXPECT_TRUE(suits(Expect(FromRows(600, s), FromRows(100, t))));
  s[500].push_back(512);
  EXPECT_FALSE(suits(Expect(FromRows(600, s), FromRows(100, t))));
  // Many nonzeros without products.
  t.assign(600, {});
  t[599] = {7, 8};
  for (std::vector<int32_t>& row : s) {
    row.resize(600);
    std::iota(row.begin(), row.end(), 0);
  }
  EXPECT_TRUE(suits(Expect(FromRows(600, s), FromRows(100, t))));
}

constexpr Semiring kSemirings[] = {Semiring::kSumProduct, Semiring::kBoolean, Semiring::kMinPlus,
                                   Semiring::kPlusPair};

TEST(GpuSpgemm, Semirings) {
  SKIP_WITHOUT_GPU();
  for (const Semiring semiring : kSemirings) {
    SCOPED_TRACE(Name(semiring));
    const auto expect = [&](Pattern s, Pattern t) {
      return Expect(WithRandomValues(std::move(s), 61), WithRandomValues(std::move(t), 62),
                    semiring);
    };
    EXPECT_FALSE(expect(Uniform(700, 900, 30, 63), Uniform(900, 4000, 20, 64)).empty());
    expect(Rmat(9, 8, 65), Rmat(9, 8, 66));
    expect(Uniform(3, 4000, 1500, 67), Uniform(4000, 30'000, 12, 68));
    for (const auto& [s, t] : OddFactors()) expect(s, t);
  }
}

TEST(GpuSpgemm, Masks) {
  SKIP_WITHOUT_GPU();
  for (const Semiring semiring : kSemirings) {
    SCOPED_TRACE(Name(semiring));
    const auto expect = [&](const Pattern& s, const Pattern& t, const Pattern& mask) {
      EXPECT_EQ(Expect(WithRandomValues(s, 71), WithRandomValues(t, 72), semiring, &mask),
                std::set<std::string_view>{"cuda.csr.masked"});
    };
    const Pattern graph = Rmat(10, 8, 73);
    expect(graph, graph, graph);
    expect(graph, Transpose(graph), graph);
    expect(Uniform(300, 500, 40, 74), Uniform(500, 9000, 300, 75), Uniform(300, 9000, 3, 76));
    expect(Uniform(300, 500, 40, 74), Uniform(500, 9000, 3, 75), Uniform(300, 9000, 300, 76));
    for (const auto& [s, t] : OddFactors()) {
      expect(s, t, Uniform(s.rows, t.cols, std::min<int64_t>(t.cols, 7), 77));
      expect(s, t, FromRows(t.cols, std::vector<std::vector<int32_t>>(s.rows)));
    }
  }
  // Column 0: NaN, then 2; column 1: 3, then NaN; column 2: infinity alone; column 3: NaNs alone.
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Matrix s = {FromRows(2, {{0, 1}}), {0, 0}};
  const Matrix t = {FromRows(5, {{0, 1, 2, 3}, {0, 1, 2, 3}}),
                    {kNan, 3, kInfinity, kNan, 2, kNan, kInfinity, kNan}};
  const Pattern all = FromRows(5, {{0, 1, 2, 3, 4}});
  Expect(s, t, Semiring::kMinPlus, &all);
  Expect(s, t, Semiring::kMinPlus);
}

TEST(GpuSpgemm, ShortRowsAndFewTerms) {
  SKIP_WITHOUT_GPU();
  constexpr std::string_view kEven = "cuda.ell.even_rows", kMerged = "cuda.csr.merged_rows";
  const auto expect = [&](const std::set<std::string_view>& suited, bool even, bool merged) {
    EXPECT_EQ(suited.contains(kEven), even);
    EXPECT_EQ(suited.contains(kMerged), merged);
  };
  expect(ExpectSquare(Stencil(33, 40)), true, true);
  expect(ExpectSquare(Band(500, 3)), true, true);
  expect(ExpectSquare(Band(500, 4)), false, true);  // 81 products
  expect(ExpectSquare(Band(500, 15)), false, true);
  expect(ExpectSquare(Band(500, 16)), false, false);  // 33 terms
  expect(Expect(Uniform(1000, 700, 8, 81), Uniform(700, 50'000, 8, 82)), true, true);
  expect(Expect(Uniform(1000, 700, 2, 83), Uniform(700, 50'000, 300, 84)), false, true);
  expect(Expect(Uniform(300, 700, 32, 85), Uniform(700, 900, 40, 86)), false, true);
  // Rows of all lengths, the longest far from the others: too much padding.
  std::vector<std::vector<int32_t>> rows(2000);
  for (int32_t i = 0; i < 64; ++i) rows[7].push_back(30 * i);
  std::vector<std::vector<int32_t>> single(2000);
  for (int32_t i = 0; i < 2000; i += 3) single[i] = {i};
  expect(Expect(FromRows(2000, rows), FromRows(2000, single)), false, false);
  expect(Expect(FromRows(2000, single), FromRows(2000, rows)), false, true);
  std::vector<int32_t> many(300);
  std::iota(many.begin(), many.end(), 0);
  expect(Expect(FromRows(1, {{}, {}}), FromRows(900, {many})), false, true);
}

TEST(GpuSpgemm, RowsByWordsAndBitmaps) {
  SKIP_WITHOUT_GPU();
  constexpr std::string_view kWords = "cuda.csr.row_words", kBitmaps = "cuda.csr.row_bitmaps";
  const auto expect = [&](const std::set<std::string_view>& suited, bool words, bool bitmaps) {
    EXPECT_EQ(suited.contains(kWords), words);
    EXPECT_EQ(suited.contains(kBitmaps), bitmaps);
  };
  // Rows of T: runs of `length` columns, `stride` apart, each row's in another place.
  const auto runs = [](int32_t rows, int32_t cols, int32_t count, int32_t length, int32_t stride) {
    std::vector<std::vector<int32_t>> t(rows);
    for (int32_t i = 0; i < rows; ++i) {
      for (int32_t run = 0; run < count; ++run) {
        const int32_t from = (i * 37 + run * stride) % (cols - length);
        for (int32_t j = 0; j < length; ++j) t[i].push_back(from + j);
      }
      std::sort(t[i].begin(), t[i].end());
      t[i].erase(std::unique(t[i].begin(), t[i].end()), t[i].end());
    }
    return FromRows(cols, t);
  };
  expect(ExpectSquare(runs(600, 600, 3, 7, 150)), true, true);
  // Rows of C with up to 4,000 entries, in hundreds of words.
  expect(Expect(Uniform(60, 900, 30, 91), runs(900, 200'000, 9, 20, 21'000)), true, true);
  // ... and more than a batch of nonzeros in S.
  expect(Expect(Uniform(20, 900, 90, 90), runs(900, 8000, 9, 20, 800)), true, true);
  // More than a batch of nonzeros in S, more than those of a warp's and of a block's rows.
  expect(Expect(Uniform(9, 3000, 100, 92), runs(3000, 5000, 2, 3, 1700)), true, true);
  expect(Expect(Uniform(9, 3000, 300, 93), runs(3000, 5000, 2, 3, 1700)), true, true);
  expect(Expect(Uniform(5, 3000, 900, 94), runs(3000, 5000, 1, 2, 1)), true, true);
  expect(Expect(Uniform(5, 3000, 1500, 95), runs(3000, 9000, 1, 2, 1)), true, true);
  // A word for two entries, or for one: more words than there are places for.
  expect(Expect(Uniform(40, 400, 25, 96), runs(400, 1'000'000, 10, 2, 90'000)), true, true);
  expect(Expect(Uniform(40, 400, 90, 97), runs(400, 1'000'000, 9, 2, 90'000)), true, true);
  expect(Expect(Uniform(40, 400, 25, 98), Uniform(400, 1'000'000, 18, 99)), false, true);
  expect(Expect(Uniform(40, 400, 90, 98), Uniform(400, 1'000'000, 40, 99)), false, true);
  // The first and the last column that there may be, and one more.
  const auto ends = [](int32_t cols) {
    return FromRows(cols, {{0, 1, 2, cols - 2, cols - 1}, {}, {cols - 33, cols - 32, cols - 1}});
  };
  expect(Expect(FromRows(3, {{0, 1, 2}, {}, {1}, {2}}), ends(1 << 20)), true, true);
  expect(Expect(FromRows(3, {{0, 1, 2}, {}, {1}, {2}}), ends((1 << 20) + 1)), false, false);
  expect(Expect(FromRows(2, {{}, {0}}), FromRows(70, {{}, {}})), false, true);
}

TEST(GpuSpgemm, EntriesThatCancelAreKept) {
  SKIP_WITHOUT_GPU();
  const Matrix s = {FromRows(4, {{0, 1}, {2, 3}, {3}}), {1, 1, -1, 1, 1e-30}};
  const Matrix t = {FromRows(6, {{0, 1, 5}, {0, 1, 5}, {0, 2, 4}, {1, 2, 5}}),
                    {3, -2, 0.5, -3, 2, -0.5, 0.0, -0.0, 0.0, -0.0, 0.0, -1e-30}};
  Expect(s, t);
}

TEST(GpuSpgemm, RealMatrices) {
  SKIP_WITHOUT_GPU();
  const char* const pack = std::getenv("SPARSED_TEST_MATRICES");
  if (pack == nullptr) GTEST_SKIP() << "SPARSED_TEST_MATRICES names no pack of matrices";
  const auto patterns = ReadMatrixPack(pack);
  ASSERT_TRUE(patterns.ok()) << patterns.status();
  for (const NamedPattern& named : *patterns) {
    const Pattern& pattern = named.pattern;
    SCOPED_TRACE(named.name);
    int64_t products = 0;
    const Pattern transposed = Transpose(pattern);
    for (int64_t k = 0; k < pattern.cols; ++k) {
      const int64_t length = transposed.row_offsets[k + 1] - transposed.row_offsets[k];
      products += length * length;
    }
    if (products > 10'000'000) continue;  // the reference takes long
    Expect(pattern, transposed);
  }
}

}  // namespace
}  // namespace sparsed::test
