// SpGEMM kernels against the reference. Operands show every wrong access: outputs and workspace
// begin poisoned, arrays are exactly as large as they must be.
#include "kernels/cpu/spgemm/spgemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/formats/diagonals.h"
#include "kernels/reference/reference.h"
#include "kernels/spgemm_blocks.h"
#include "tests/generate.h"
#include "tests/kernels/instruction_sets.h"
#include "tests/kernels/layout_testing.h"
#include "tests/matrix_market.h"
#include "tests/product_formats.h"

namespace sparsed::test {
namespace {

template <typename T>
struct Product {
  std::vector<int64_t> row_nnz;
  std::vector<int32_t> columns;  ///< compacted
  std::vector<T> values;
  friend bool operator==(const Product&, const Product&) = default;
};

/// Memory full of ones.
class PoisonedMemory final : public MemorySource {
 public:
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    absl::StatusOr<Buffer> buffer = HeapMemory().Allocate(bytes);
    if (buffer.ok() && bytes > 0) std::memset(buffer->mutable_data(), 0xff, bytes);
    return buffer;
  }
};

/// An operation on one pair of matrices, in the number type of a kernel's run.
template <typename T>
class Multiplication {
 public:
  Multiplication(const Matrix& s, const Matrix& t, Semiring semiring = Semiring::kSumProduct,
                 const Pattern* mask = nullptr)
      : s_(s),
        t_(t),
        semiring_(semiring),
        mask_(mask),
        s_values_(s.values.begin(), s.values.end()),
        t_values_(t.values.begin(), t.values.end()) {}

  SpgemmArguments arguments() const {
    SpgemmArguments arguments = {s_.pattern.view(), s_values_.data(), t_.pattern.view(),
                                 t_values_.data()};
    if (mask_ != nullptr) arguments.mask = mask_->view();
    formats_.AddTo(arguments);
    return arguments;
  }
  Problem problem() const {
    return {.operation = Operation::kSpgemm,
            .type = ElementTypeOf<T>(),
            .semiring = semiring_,
            .masked = mask_ != nullptr};
  }

  /// The formats that the kernel reads, workspace of the size that it asks for, full of ones, and
  /// what it prepares; none if the matrices don't suit it.
  std::optional<Context> MakeContext(const SpgemmKernel& kernel, int threads) {
    PoisonedMemory memory;
    formats_ = {};
    absl::StatusOr<ProductFormats> formats =
        MakeFormats(kernel, problem(), arguments(), ContextWith(memory, threads));
    if (absl::IsFailedPrecondition(formats.status())) return std::nullopt;
    EXPECT_TRUE(formats.ok()) << formats.status();
    formats_ = *std::move(formats);
    const size_t bytes = kernel.workspace(problem(), arguments(), threads);
    workspace_ = HeapMemory().Allocate(std::max<size_t>(bytes, 1)).value();
    std::memset(workspace_.mutable_data(), 0xff, bytes);
    Context context = {.threads = threads, .workspace = {workspace_.mutable_data(), bytes}};
    if (kernel.prepare == nullptr) return context;
    absl::StatusOr<std::shared_ptr<void>> prepared =
        kernel.prepare(context, problem(), arguments(), memory);
    if (absl::IsFailedPrecondition(prepared.status())) return std::nullopt;
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    prepared_ = *std::move(prepared);
    context.prepared = prepared_.get();
    return context;
  }

  std::vector<int64_t> Bounds(const SpgemmKernel& kernel, const Context& context,
                              int64_t* products) const {
    std::vector<int64_t> bounds(s_.pattern.rows, -1);
    EXPECT_TRUE(kernel.analyse(context, arguments(), bounds, products).ok());
    return bounds;
  }

  /// The same, cut as often as can be.
  std::vector<int64_t> BoundsInPieces(const SpgemmKernel& kernel, Context context,
                                      int64_t* products) const {
    std::vector<int64_t> bounds(s_.pattern.rows, -1);
    const std::atomic<bool> wanted = true;
    Progress progress{.pause = &wanted};
    context.progress = &progress;
    for (int64_t run = 0; !progress.finished && run <= s_.pattern.rows; ++run) {
      EXPECT_TRUE(kernel.analyse(context, arguments(), bounds, products).ok());
    }
    EXPECT_TRUE(progress.finished);
    return bounds;
  }

  /// Rows in blocks of up to `block_entries` entries, placed by `bounds`: exact counts or bounds.
  Product<T> Run(const SpgemmKernel& kernel, const Context& context,
                 const std::vector<int64_t>& bounds, int64_t block_entries) const {
    Product<T> product;
    RowRange block;
    for (int64_t row = 0; row < s_.pattern.rows; row = block.end) {
      block = NextRowBlock(bounds, row, block_entries);
      std::vector<int64_t> row_begin(block.end - block.begin + 1);
      std::vector<int64_t> row_nnz(block.end - block.begin, -1);
      const int64_t room = PlaceRowBlock(bounds, block, row_begin);
      const auto columns = std::make_unique<int32_t[]>(room);
      const auto values = std::make_unique<T[]>(room);
      std::fill(columns.get(), columns.get() + room, -77);
      std::fill(values.get(), values.get() + room, std::numeric_limits<T>::quiet_NaN());
      const absl::Status status = kernel.numeric(context, problem(), arguments(), block, row_begin,
                                                 columns.get(), values.get(), row_nnz);
      EXPECT_TRUE(status.ok()) << status;
      for (size_t i = 0; i < row_nnz.size(); ++i) {
        EXPECT_LE(row_nnz[i], bounds[block.begin + i]);
        product.row_nnz.push_back(row_nnz[i]);
        product.columns.insert(product.columns.end(), &columns[row_begin[i]],
                               &columns[row_begin[i]] + row_nnz[i]);
        product.values.insert(product.values.end(), &values[row_begin[i]],
                              &values[row_begin[i]] + row_nnz[i]);
      }
    }
    return product;
  }

 private:
  const Matrix& s_;
  const Matrix& t_;
  const Semiring semiring_;
  const Pattern* const mask_;
  std::vector<T> s_values_;
  std::vector<T> t_values_;
  ProductFormats formats_;
  Buffer workspace_;
  std::shared_ptr<void> prepared_;
};

template <typename T>
Matrix Rounded(const Matrix& matrix) {
  Matrix rounded = matrix;
  for (double& v : rounded.values) v = static_cast<T>(v);
  return rounded;
}

/// Whether the matrices suit the kernel's format.
template <typename T>
bool Suit(const SpgemmKernel& kernel, const Matrix& s, const Matrix& t) {
  return Multiplication<T>(s, t).MakeContext(kernel, 1).has_value();
}

/// Refuses what would exceed its limit.
class LimitedMemory final : public MemorySource {
 public:
  explicit LimitedMemory(int64_t limit) : limit_(limit) {}
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    const auto size = static_cast<int64_t>(bytes);
    if (*used_ + size > limit_) return absl::ResourceExhaustedError("the limit is reached");
    absl::StatusOr<Buffer> buffer = HeapMemory().Allocate(bytes);
    if (!buffer.ok()) return buffer;
    peak_ = std::max<int64_t>(peak_, *used_ += size);
    const auto give_back = [used = used_, size, kept = *buffer](std::byte*) { *used -= size; };
    return Buffer(std::shared_ptr<std::byte>(buffer->mutable_data(), give_back), bytes);
  }
  int64_t used() const { return *used_; }
  int64_t peak() const { return peak_; }

 private:
  const int64_t limit_;
  const std::shared_ptr<std::atomic<int64_t>> used_ = std::make_shared<std::atomic<int64_t>>(0);
  std::atomic<int64_t> peak_ = 0;
};

/// Runs the kernel in every way and expects what the reference computes, where the matrices suit
/// it.
template <typename T>
void ExpectProduct(const SpgemmKernel& kernel, const Matrix& exact_s, const Matrix& exact_t,
                   Semiring semiring = Semiring::kSumProduct, const Pattern* mask = nullptr) {
  SCOPED_TRACE(fmt::format("{} {} {}", kernel.name, Name(ElementTypeOf<T>()), Name(semiring)));
  const Matrix s = Rounded<T>(exact_s);
  const Matrix t = Rounded<T>(exact_t);
  const CsrView mask_view = mask == nullptr ? CsrView() : mask->view();
  const reference::SparseResult expected =
      reference::Spgemm(s.pattern.view(), s.values.data(), t.pattern.view(), t.values.data(),
                        semiring, mask == nullptr ? nullptr : &mask_view);
  Multiplication<T> multiplication(s, t, semiring, mask);
  ASSERT_TRUE(kernel.supports(multiplication.problem()));

  int64_t expected_products = 0;
  for (const int32_t k : s.pattern.column_indices) {
    expected_products += t.pattern.row_offsets[k + 1] - t.pattern.row_offsets[k];
  }
  Product<T> first;
  for (const int threads : {1, 2, 5}) {
    SCOPED_TRACE(threads);
    const std::optional<Context> made = multiplication.MakeContext(kernel, threads);
    if (!made) return;
    const Context& context = *made;
    int64_t products = -1;
    const std::vector<int64_t> bounds = multiplication.Bounds(kernel, context, &products);
    EXPECT_EQ(products, expected_products);
    products = -1;
    EXPECT_EQ(multiplication.BoundsInPieces(kernel, context, &products), bounds);
    EXPECT_EQ(products, expected_products);

    std::vector<int64_t> counts(s.pattern.rows, -1);
    ASSERT_TRUE(
        kernel.symbolic(context, multiplication.arguments(), {0, s.pattern.rows}, counts).ok());
    for (int64_t row = 0; row < s.pattern.rows; ++row) {
      ASSERT_EQ(counts[row], expected.row_offsets[row + 1] - expected.row_offsets[row]) << row;
      ASSERT_LE(counts[row], bounds[row]);
      ASSERT_LE(bounds[row], t.pattern.cols);
    }

    const Product<T> product =
        multiplication.Run(kernel, context, bounds, std::numeric_limits<int64_t>::max());
    if (threads == 1 || !kernel.deterministic) {
      first = product;
      ASSERT_EQ(product.row_nnz, counts);
      ASSERT_EQ(product.columns, expected.column_indices);
      for (size_t i = 0; i < product.values.size(); ++i) {
        // Sums of at most `products of the row` terms, each rounded once more.
        const double bound = expected.magnitudes[i] * static_cast<double>(s.pattern.nnz() + 2) *
                                 std::numeric_limits<T>::epsilon() +
                             std::numeric_limits<T>::min();
        ASSERT_NEAR(product.values[i], expected.values[i], bound) << i;
      }
    }
    // The same bits for every team, placement and block.
    EXPECT_EQ(product, first);
    EXPECT_EQ(multiplication.Run(kernel, context, counts, std::numeric_limits<int64_t>::max()),
              first);
    const int64_t entries = std::accumulate(bounds.begin(), bounds.end(), int64_t{0});
    EXPECT_EQ(multiplication.Run(kernel, context, bounds, entries / 3), first);
    EXPECT_EQ(multiplication.Run(kernel, context, counts, entries / 20), first);
  }
}

class SpgemmTest : public testing::TestWithParam<SpgemmKernel (*)()> {
 protected:
  static void Expect(const Matrix& s, const Matrix& t) {
    ExpectProduct<float>(GetParam()(), s, t);
    ExpectProduct<double>(GetParam()(), s, t);
  }
  static void Expect(Pattern s, Pattern t) {
    Expect(WithRandomValues(std::move(s), 11), WithRandomValues(std::move(t), 12));
  }
  static void ExpectSquare(const Pattern& s) { Expect(s, s); }
};

TEST_P(SpgemmTest, MultipliesOddShapes) {
  for (const auto& [s, t] : OddFactors()) {
    SCOPED_TRACE(testing::Message() << s.rows << " x " << s.cols << " by " << t.cols);
    Expect(s, t);
  }
}

TEST_P(SpgemmTest, MultipliesRegularMatrices) {
  ExpectSquare(Band(300, 1));
  ExpectSquare(Band(400, 15));
  ExpectSquare(Band(90, 89));
  ExpectSquare(Stencil(40, 37));
  ExpectSquare(Stencil(1, 50));
}

TEST_P(SpgemmTest, MultipliesIrregularMatrices) {
  ExpectSquare(Uniform(500, 500, 16, 21));
  ExpectSquare(Uniform(2000, 2000, 3, 22));
  ExpectSquare(Rmat(9, 8, 23));
  ExpectSquare(PowerLaw(1500, 6000, 2.1, 24));
  Expect(Uniform(200, 3000, 60, 25), Uniform(3000, 40000, 20, 26));
}

TEST_P(SpgemmTest, MultipliesRowsThatAreLostInTheWidth) {
  // Few products in a window that no cache holds, and some rows with many.
  Pattern s = Uniform(40, 4000, 8, 31);
  Pattern t = Uniform(4000, 3'000'000, 12, 32);
  Expect(s, t);
  Expect(Uniform(3, 4000, 900, 33), std::move(t));
}

TEST_P(SpgemmTest, LooksForNoMoreDiagonalsThanAreWorthIt) {
  // Some 30,000 diagonals, times one.
  Matrix s = {Uniform(20'000, 20'000, 2, 34), {}};
  s.values.assign(s.pattern.column_indices.size(), 1);
  std::vector<std::vector<int32_t>> t(20'000);
  for (int32_t i = 0; i < 20'000; ++i) t[i] = {i};
  const Matrix identity = {FromRows(20'000, t), std::vector<double>(20'000, 1)};
  for (const SpgemmKernel& kernel : cpu::ListSpgemm()) {
    if (kernel.layout_kind != kDiagonals) continue;
    Multiplication<float> multiplication(s, identity);
    EXPECT_FALSE(multiplication.MakeContext(kernel, 1).has_value());
  }
}

TEST_P(SpgemmTest, MultipliesHubs) {
  // An arrow: a full row, a full column, a diagonal.
  std::vector<std::vector<int32_t>> rows(3000);
  for (int32_t i = 0; i < 3000; ++i) {
    rows[i] = {0, i};
    rows[1234].push_back(i);
  }
  ExpectSquare(FromRows(3000, rows));
}

TEST_P(SpgemmTest, MultipliesRunsAtEveryOffset) {
  // Rows of T that are runs of 0 to 70 columns, beginning anywhere in a vector.
  std::vector<std::vector<int32_t>> t;
  for (int32_t i = 0; i < 300; ++i) {
    t.emplace_back(i % 71);
    std::iota(t.back().begin(), t.back().end(), i * 7 % 330);
  }
  Expect(Uniform(60, 300, 7, 41), FromRows(400, t));
  Expect(Uniform(60, 300, 2, 42), FromRows(100'000, t));
}

TEST_P(SpgemmTest, SwitchesMethodsAtTheirLimits) {
  // Rows of 1, 2, 3 ... products, once close together and once far apart.
  for (const int32_t stride : {1, 5, 997}) {
    std::vector<std::vector<int32_t>> s;
    std::vector<std::vector<int32_t>> t;
    for (int32_t i = 0; i < 80; ++i) {
      s.emplace_back();
      for (int32_t k = std::max(0, i - 9); k <= i; ++k) s.back().push_back(k);
      t.emplace_back();
      for (int32_t j = 0; j < i % 13; ++j) t.back().push_back((i + j * (1 + i % 3)) * stride);
    }
    Expect(FromRows(80, s), FromRows(120 * stride, t));
  }
}

TEST_P(SpgemmTest, KeepsEntriesThatCancelAndZerosOfAnySign) {
  // Row 0 cancels exactly, row 1 multiplies explicit zeros of both signs, row 2 underflows.
  const Matrix s = {FromRows(4, {{0, 1}, {2, 3}, {3}}), {1, 1, -1, 1, 1e-30}};
  const Matrix t = {FromRows(6, {{0, 1, 5}, {0, 1, 5}, {0, 2, 4}, {1, 2, 5}}),
                    {3, -2, 0.5, -3, 2, -0.5, 0.0, -0.0, 0.0, -0.0, 0.0, -1e-30}};
  Expect(s, t);
}

TEST_P(SpgemmTest, CarriesInfinitiesAndNans) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Matrix s = {FromRows(2, {{0, 1}}), {1, 1}};
  const Matrix t = {FromRows(4, {{0, 1, 2}, {1, 2, 3}}),
                    {infinity, infinity, 1, -infinity, 2, NAN}};
  Multiplication<float> multiplication(s, t);
  const SpgemmKernel kernel = GetParam()();
  const std::optional<Context> context = multiplication.MakeContext(kernel, 1);
  if (!context) GTEST_SKIP() << "too little of a matrix for the format";
  const Product<float> product = multiplication.Run(kernel, *context, {4}, 100);
  ASSERT_EQ(product.columns, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(product.values[0], infinity);
  EXPECT_TRUE(std::isnan(product.values[1]));
  EXPECT_EQ(product.values[2], 3);
  EXPECT_TRUE(std::isnan(product.values[3]));
}

TEST_P(SpgemmTest, MultipliesRealMatrices) {
  const std::filesystem::path folder = std::filesystem::path(SPARSED_SHARED_DATA) / "small";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string path = file.path();
    SCOPED_TRACE(path);
    const std::optional<Matrix> s = ReadMatrixMarket(path);
    ASSERT_TRUE(s.has_value());
    if (s->pattern.nnz() > 15'000) continue;
    if (s->pattern.rows == s->pattern.cols) {
      Expect(*s, *s);
    } else {
      std::vector<int64_t> source;
      Matrix t = {Transpose(s->pattern, &source), {}};
      for (const int64_t p : source) t.values.push_back(s->values[p]);
      Expect(*s, t);
    }
  }
}

TEST_P(SpgemmTest, ComputesWithEveryInstructionSet) {
  WithEveryInstructionSet([&] {
    ExpectSquare(Rmat(8, 6, 51));
    ExpectSquare(Band(100, 15));
    ExpectSquare(Stencil(60, 20));
    Expect(Uniform(20, 500, 10, 52), Uniform(500, 1'500'000, 12, 53));
  });
}

TEST_P(SpgemmTest, ComputesAnyRangeOfRows) {
  const SpgemmKernel kernel = GetParam()();
  Matrix s = WithRandomValues(Rmat(9, 5, 61), 62);
  if (!Suit<double>(kernel, s, s)) s = WithRandomValues(Band(512, 7), 62);
  Multiplication<double> multiplication(s, s);
  const std::optional<Context> made = multiplication.MakeContext(kernel, 2);
  ASSERT_TRUE(made);
  const Context& context = *made;
  std::vector<int64_t> all(s.pattern.rows);
  ASSERT_TRUE(kernel.symbolic(context, multiplication.arguments(), {0, s.pattern.rows}, all).ok());
  for (const RowRange range : {RowRange{0, 0}, RowRange{17, 17}, RowRange{17, 18},
                               RowRange{100, 311}, RowRange{511, 512}}) {
    std::vector<int64_t> some(range.end - range.begin, -1);
    ASSERT_TRUE(kernel.symbolic(context, multiplication.arguments(), range, some).ok());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + range.begin));
  }
}

TEST_P(SpgemmTest, StopsWhenAsked) {
  // A product of seconds, dense rows times dense rows; a band for kernels that these don't suit.
  const SpgemmKernel kernel = GetParam()();
  Matrix s = WithRandomValues(Uniform(3000, 3000, 1500, 71), 72);
  if (!Suit<float>(kernel, s, s)) s = WithRandomValues(Band(20'000, 20), 72);
  Multiplication<float> multiplication(s, s);
  std::atomic<bool> stop = false;
  const std::optional<Context> made = multiplication.MakeContext(kernel, 2);
  ASSERT_TRUE(made);
  Context context = *made;
  context.stop = &stop;
  int64_t products = 0;
  const std::vector<int64_t> bounds = multiplication.Bounds(kernel, context, &products);
  const int64_t rows = s.pattern.rows;
  std::vector<int64_t> row_begin(rows + 1);
  std::vector<int64_t> row_nnz(rows);
  const int64_t room = PlaceRowBlock(bounds, {0, rows}, row_begin);
  std::vector<int32_t> columns(room);
  std::vector<float> values(room);
  auto numeric = [&] {
    return kernel.numeric(context, multiplication.problem(), multiplication.arguments(), {0, rows},
                          row_begin, columns.data(), values.data(), row_nnz);
  };
  auto symbolic = [&] {
    return kernel.symbolic(context, multiplication.arguments(), {0, rows}, row_nnz);
  };
  stop = true;
  EXPECT_EQ(kernel.analyse(context, multiplication.arguments(), row_nnz, &products).code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(numeric().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(symbolic().code(), absl::StatusCode::kCancelled);
  if (kernel.prepare != nullptr) {
    EXPECT_EQ(
        kernel.prepare(context, multiplication.problem(), multiplication.arguments(), HeapMemory())
            .status()
            .code(),
        absl::StatusCode::kCancelled);
  }

  stop = false;
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stop = true;
  });
  // Whoever ends before it is stopped begins anew.
  absl::Status status;
  while (status.ok()) status = numeric();
  stopper.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  // What was left half done does no harm to the next product in the same workspace.
  stop = false;
  const Matrix small = WithRandomValues(Stencil(20, 20), 73);
  Multiplication<float> next(small, small);
  const Context fresh = next.MakeContext(kernel, 2).value();
  context = {.threads = 2, .workspace = context.workspace, .prepared = fresh.prepared};
  const Product<float> clean =
      next.Run(kernel, fresh, next.Bounds(kernel, fresh, &products), 1 << 20);
  EXPECT_EQ(next.Run(kernel, context, next.Bounds(kernel, context, &products), 1 << 20), clean);
}

TEST(SpgemmFormats, TakeWhatSuitsThem) {
  const Matrix band = WithRandomValues(Band(300, 4), 81);
  const Matrix random = WithRandomValues(Uniform(3000, 3000, 5, 82), 83);
  EXPECT_TRUE(Suit<float>(cpu::DiagonalsSpgemm(), band, band));
  EXPECT_FALSE(Suit<float>(cpu::DiagonalsSpgemm(), random, random));
  EXPECT_TRUE(Suit<float>(cpu::EvenRowsSpgemm(), random, random));
  EXPECT_TRUE(Suit<float>(cpu::SectionsSpgemm(), band, band));
  EXPECT_FALSE(Suit<float>(cpu::SectionsSpgemm(), random, random));
  // One full row.
  std::vector<std::vector<int32_t>> rows(3000, {0});
  rows[7].resize(3000);
  std::iota(rows[7].begin(), rows[7].end(), 0);
  const Matrix hub = WithRandomValues(FromRows(3000, rows), 84);
  EXPECT_FALSE(Suit<float>(cpu::EvenRowsSpgemm(), random, hub));
  EXPECT_TRUE(Suit<float>(cpu::ColumnPartsSpgemm(), hub, hub));
}

constexpr Semiring kSemirings[] = {Semiring::kSumProduct, Semiring::kBoolean, Semiring::kMinPlus,
                                   Semiring::kPlusPair};

TEST_P(SpgemmTest, ComputesInTheSemiringsThatItSupports) {
  for (const Semiring semiring : kSemirings) {
    if (!GetParam()().supports({.operation = Operation::kSpgemm, .semiring = semiring})) continue;
    const auto expect = [&](Pattern s_pattern, Pattern t_pattern) {
      const Matrix s = WithRandomValues(std::move(s_pattern), 81);
      const Matrix t = WithRandomValues(std::move(t_pattern), 82);
      ExpectProduct<float>(GetParam()(), s, t, semiring);
      ExpectProduct<double>(GetParam()(), s, t, semiring);
    };
    expect(FromRows(0, {{}, {}}), FromRows(3, {}));
    expect(FromRows(1, {{0}, {}, {0}}), FromRows(7, {{1, 3, 6}}));
    expect(Band(200, 7), Band(200, 15));
    expect(Rmat(9, 6, 83), Rmat(9, 5, 84));
    expect(Uniform(1000, 1000, 3, 85), Uniform(1000, 900, 5, 86));
    expect(Uniform(30, 4000, 300, 87), Uniform(4000, 2'000'000, 9, 88));
    WithEveryInstructionSet([&] {
      expect(Uniform(50, 300, 7, 89), Band(300, 15));
      expect(Uniform(20, 500, 10, 90), Uniform(500, 1'500'000, 12, 91));
    });
  }
}

/// The least sum, whichever way a row goes: NaNs count only among themselves.
TEST_P(SpgemmTest, LeastSumsPassOverNans) {
  const SpgemmKernel kernel = GetParam()();
  if (!kernel.supports({.operation = Operation::kSpgemm, .semiring = Semiring::kMinPlus})) return;
  const double infinity = std::numeric_limits<double>::infinity();
  // Column 0: NaN, then 2; column 1: 3, then NaN; column 2: infinity alone; column 3: NaNs alone.
  std::vector<std::vector<int32_t>> t_rows(3, {0, 1, 2, 3});
  std::vector<double> t_values = {NAN,      3,   infinity, NAN, 2,        NAN,
                                  infinity, NAN, 4,        5,   infinity, NAN};
  for (const int32_t far : {4, 40, 400, 1'500'000}) {
    SCOPED_TRACE(far);
    t_rows[2].push_back(far);
    Matrix t = {FromRows(far + 1, t_rows), t_values};
    t.values.push_back(-infinity);
    t_rows[2].pop_back();
    const Matrix s = {FromRows(3, {{0, 1, 2}}), {0, 0, 0}};
    Multiplication<float> multiplication(s, t, Semiring::kMinPlus);
    const Context context = multiplication.MakeContext(kernel, 1).value();
    const Product<float> product = multiplication.Run(kernel, context, {13}, 100);
    ASSERT_EQ(product.columns.size(), 5u);
    EXPECT_EQ(product.values[0], 2);
    EXPECT_EQ(product.values[1], 3);
    EXPECT_EQ(product.values[2], infinity);
    EXPECT_TRUE(std::isnan(product.values[3]));
    EXPECT_EQ(product.values[4], -infinity);
  }
}

TEST_P(SpgemmTest, AnswersForWhatItSupports) {
  const SpgemmKernel kernel = GetParam()();
  EXPECT_TRUE(kernel.supports({.operation = Operation::kSpgemm, .type = ElementType::kF64}));
  EXPECT_FALSE(kernel.supports({.operation = Operation::kSpmm, .type = ElementType::kF64}));
  EXPECT_FALSE(kernel.supports({.operation = Operation::kSpgemm, .type = ElementType::kI32}));
  EXPECT_FALSE(kernel.supports(
      {.operation = Operation::kSpgemm, .type = ElementType::kF32, .device = DeviceKind::kCuda}));
  EXPECT_FALSE(kernel.supports({.operation = Operation::kSpgemm, .masked = true}));
}

/// Sections that are not one block each, or whose block is not a line.
template <int64_t kColumns, int64_t kBlock>
SpgemmKernel SectionsIn() {
  static const std::string name = fmt::format("cpu.incsr.sections_{}_{}", kColumns, kBlock);
  SpgemmKernel kernel = cpu::SectionsSpgemm();
  kernel.name = name;
  kernel.pipeline = [](const Problem&, const CsrView&,
                       const CsrView&) -> absl::StatusOr<std::string> {
    return fmt::format("incsr(columns={},block={})", kColumns, kBlock);
  };
  return kernel;
}

INSTANTIATE_TEST_SUITE_P(Sections, SpgemmTest,
                         testing::Values(&SectionsIn<32, 4>, &SectionsIn<16, 8>),
                         [](const auto& info) {
                           const std::string name(info.param().name);
                           return name.substr(name.rfind('.') + 1);
                         });

TEST(SectionsSpgemm, ReadsOtherShapesOfOneType) {
  for (const Pattern& pattern : {Band(300, 15), InBlocks(Uniform(100, 100, 5, 2), 3, 3)}) {
    const Matrix s = WithRandomValues(pattern, 1);
    ExpectProduct<float>(SectionsIn<32, 16>(), s, s);
    ExpectProduct<float>(SectionsIn<4, 4>(), s, s);
    ExpectProduct<double>(SectionsIn<4, 2>(), s, s);
    ExpectProduct<double>(SectionsIn<32, 2>(), s, s);
  }
}

TEST(SectionsSpgemm, RefusesBlocksThatAreNoVectors) {
  const Matrix s = WithRandomValues(Band(300, 15), 1);
  EXPECT_FALSE(Suit<float>(SectionsIn<4, 2>(), s, s));
  EXPECT_TRUE(Suit<double>(SectionsIn<4, 2>(), s, s));
  EXPECT_TRUE(Suit<float>(SectionsIn<32, 16>(), s, s));
  EXPECT_FALSE(Suit<double>(SectionsIn<32, 16>(), s, s));
}

INSTANTIATE_TEST_SUITE_P(Cpu, SpgemmTest,
                         testing::Values(&cpu::RowGroupsSpgemm, &cpu::DenseSpgemm, &cpu::HashSpgemm,
                                         &cpu::HeapSpgemm, &cpu::DiagonalsSpgemm,
                                         &cpu::ColumnPartsSpgemm, &cpu::EvenRowsSpgemm,
                                         &cpu::SectionsSpgemm),
                         [](const auto& info) {
                           const std::string name(info.param().name);
                           return name.substr(name.rfind('.') + 1);
                         });

/// Not where the library is missing.
std::vector<SpgemmKernel (*)()> Libraries() {
  if (cpu::GraphblasSpgemm().empty()) return {};
  return {+[] { return cpu::GraphblasSpgemm().front(); }};
}
INSTANTIATE_TEST_SUITE_P(Libraries, SpgemmTest, testing::ValuesIn(Libraries()));

TEST(GraphblasSpgemm, TakesItsMemoryFromTheRequest) {
  if (cpu::GraphblasSpgemm().empty()) GTEST_SKIP() << "GraphBLAS is not installed";
  const SpgemmKernel kernel = cpu::GraphblasSpgemm().front();
  const Matrix s = WithRandomValues(Rmat(10, 8, 95), 96);
  Multiplication<float> multiplication(s, s);
  LimitedMemory unlimited(int64_t{1} << 40);
  Context context;
  context.threads = 2;
  const auto prepare = [&](MemorySource& memory) {
    return kernel.prepare(context, multiplication.problem(), multiplication.arguments(), memory);
  };
  auto whole = prepare(unlimited);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_GT(unlimited.used(), 12 * s.pattern.nnz());
  whole = absl::CancelledError("");
  EXPECT_EQ(unlimited.used(), 0) << "nothing is kept for others";
  for (int64_t bytes = unlimited.peak() - 1; bytes > 100; bytes = bytes * 2 / 3) {
    LimitedMemory memory(bytes);
    const absl::Status status = prepare(memory).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << bytes << ": " << status;
    EXPECT_EQ(memory.used(), 0) << bytes;
  }
}

/// C at the positions of a mask alone, in every semiring.
void ExpectMasked(Pattern s_pattern, Pattern t_pattern, const Pattern& mask) {
  const Matrix s = WithRandomValues(std::move(s_pattern), 91);
  const Matrix t = WithRandomValues(std::move(t_pattern), 92);
  for (const Semiring semiring : kSemirings) {
    ExpectProduct<float>(cpu::MaskedSpgemm(), s, t, semiring, &mask);
    ExpectProduct<double>(cpu::MaskedSpgemm(), s, t, semiring, &mask);
  }
}

TEST(MaskedSpgemm, MultipliesOddShapes) {
  ExpectMasked(FromRows(0, {}), FromRows(0, {}), FromRows(0, {}));
  ExpectMasked(FromRows(0, {{}, {}}), FromRows(3, {}), FromRows(3, {{0, 1}, {2}}));
  ExpectMasked(FromRows(1, {{0}, {}, {0}}), FromRows(7, {{1, 3, 6}}),
               FromRows(7, {{0, 1, 2, 6}, {1}, {}}));
  ExpectMasked(Uniform(17, 33, 5, 5), Uniform(33, 65, 9, 6),
               FromRows(65, std::vector<std::vector<int32_t>>(17)));
  ExpectMasked(Uniform(1, 300, 40, 1), Uniform(300, 1, 1, 2), FromRows(1, {{0}}));
}

TEST(MaskedSpgemm, KeepsWhatTheMaskAndTheProductsShare) {
  ExpectMasked(Rmat(9, 6, 3), Rmat(9, 5, 4), Rmat(9, 4, 5));
  ExpectMasked(Uniform(200, 300, 7, 6), Uniform(300, 250, 9, 7), Uniform(200, 250, 100, 8));
  ExpectMasked(Band(300, 15), Band(300, 15), Band(300, 3));
}

TEST(MaskedSpgemm, SearchesShortRowsOfTheMaskInLongOnes) {
  ExpectMasked(Uniform(40, 60, 9, 9), Uniform(60, 5000, 2500, 10), Uniform(40, 5000, 3, 11));
}

TEST(MaskedSpgemm, HashesWhereColumnsAreMany) {
  ExpectMasked(Uniform(30, 400, 20, 12), Uniform(400, 5'000'000, 40, 13),
               Uniform(30, 5'000'000, 200, 14));
  // As many candidates as products: all of them, and others.
  const Pattern t = Uniform(50, 5'000'000, 30, 15);
  ExpectMasked(Band(50, 0), t, t);
}

TEST(MaskedSpgemm, AnswersForWhatItSupports) {
  const SpgemmKernel kernel = cpu::MaskedSpgemm();
  EXPECT_TRUE(kernel.supports({.operation = Operation::kSpgemm, .masked = true}));
  EXPECT_FALSE(kernel.supports({.operation = Operation::kSpgemm}));
  EXPECT_FALSE(kernel.supports(
      {.operation = Operation::kSpgemm, .device = DeviceKind::kCuda, .masked = true}));
  EXPECT_FALSE(kernel.supports(
      {.operation = Operation::kSpgemm, .type = ElementType::kF16, .masked = true}));
}

TEST(MaskedSpgemm, StopsWhenAsked) {
  const Matrix s = WithRandomValues(Uniform(2000, 2000, 700, 16), 17);
  Multiplication<float> multiplication(s, s, Semiring::kSumProduct, &s.pattern);
  const SpgemmKernel kernel = cpu::MaskedSpgemm();
  std::atomic<bool> stop = false;
  Context context = multiplication.MakeContext(kernel, 2).value();
  context.stop = &stop;
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stop = true;
  });
  std::vector<int64_t> row_nnz(s.pattern.rows);
  absl::Status status;
  while (status.ok()) {
    status = kernel.symbolic(context, multiplication.arguments(), {0, s.pattern.rows}, row_nnz);
  }
  stopper.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace sparsed::test
