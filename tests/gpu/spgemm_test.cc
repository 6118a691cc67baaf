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
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/reference/reference.h"
#include "tests/generate.h"
#include "tests/gpu/gpu.h"
#include "tests/matrix_market.h"
#include "tests/matrix_pack.h"

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
      const double bound = expected.magnitudes[from + j] * static_cast<double>(terms + 2) *
                               std::numeric_limits<T>::epsilon() +
                           std::numeric_limits<T>::min();
      ASSERT_NEAR(got_values[begins[i] + j], expected.values[from + j], bound)
          << "row " << range.begin + i << ", entry " << j << " of " << nnz;
    }
  }
}

template <typename T>
void ExpectProduct(const SpgemmKernel& kernel, const Matrix& exact_s, const Matrix& exact_t) {
  SCOPED_TRACE(fmt::format("{} {}, {} x {} ({}) by {} x {} ({})", kernel.name,
                           Name(ElementTypeOf<T>()), exact_s.pattern.rows, exact_s.pattern.cols,
                           exact_s.pattern.nnz(), exact_t.pattern.rows, exact_t.pattern.cols,
                           exact_t.pattern.nnz()));
  Gpu& gpu = *Gpu::Get();
  const Matrix s = Rounded<T>(exact_s), t = Rounded<T>(exact_t);
  const reference::SparseResult expected =
      reference::Spgemm(s.pattern.view(), s.values.data(), t.pattern.view(), t.values.data());
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
  const SpgemmArguments arguments = {left.view(), left.values.data(), right.view(),
                                     right.values.data()};
  const Problem problem = {
      .operation = Operation::kSpgemm, .type = ElementTypeOf<T>(), .device = DeviceKind::kCuda};
  ASSERT_TRUE(kernel.supports(problem));
  DeviceArray<std::byte> workspace(gpu, kernel.workspace(problem, arguments, 1));
  Context context = {.workspace = workspace.span(), .stream = gpu.stream().handle()};
  std::shared_ptr<void> prepared;
  if (kernel.prepare != nullptr) {
    PoisonedMemory memory(gpu);
    absl::StatusOr<std::shared_ptr<void>> made =
        kernel.prepare(context, problem, arguments, memory);
    if (absl::IsFailedPrecondition(made.status())) return;
    ASSERT_TRUE(made.ok()) << made.status();
    prepared = *std::move(made);
    context.prepared = prepared.get();
  }

  DeviceArray<int64_t> counts(gpu, rows), products(gpu, 1);
  absl::Status status = kernel.analyse(context, arguments, counts.span(), products.data());
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<int64_t> bounds = counts.Download();
  EXPECT_EQ(products.Download()[0],
            std::accumulate(row_products.begin(), row_products.end(), int64_t{0}));
  for (int64_t row = 0; row < rows; ++row) {
    ASSERT_LE(bounds[row], std::min(row_products[row], t.pattern.cols)) << row;
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
  workspace.Download();
}

void Expect(const Matrix& s, const Matrix& t) {
  for (const SpgemmKernel& kernel : SpgemmKernels()) {
    if (kernel.device != DeviceKind::kCuda) continue;
    ExpectProduct<float>(kernel, s, t);
    ExpectProduct<double>(kernel, s, t);
  }
}
void Expect(Pattern s, Pattern t) {
  Expect(WithRandomValues(std::move(s), 11), WithRandomValues(std::move(t), 12));
}
void ExpectSquare(const Pattern& s) { Expect(s, s); }

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
  const int32_t lengths[] = {1, 2, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025, 8191, 8192, 8193};
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
