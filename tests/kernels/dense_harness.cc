#include "tests/kernels/dense_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "kernels/reference/reference.h"

namespace sparsed::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <typename T>
double Wide(T value) {
  return static_cast<SumOf<T>>(value);
}

/// A row-major matrix with a leading dimension, surrounded and padded by NaN.
template <typename T>
class Operand {
 public:
  Operand(int64_t rows, int64_t cols, const DenseCase& c)
      : rows_(rows),
        cols_(cols),
        leading_(cols + c.padding),
        begin_(kGuard + c.offset),
        buffer_(HeapMemory().Allocate((begin_ + rows * leading_ + kGuard) * sizeof(T)).value()) {
    for (T& value : all()) value = static_cast<T>(static_cast<SumOf<T>>(kNan));
  }

  T* data() { return all().data() + begin_; }
  T& at(int64_t row, int64_t col) { return data()[row * leading_ + col]; }
  int64_t leading() const { return leading_; }
  ConstDense view() { return {data(), rows_, cols_, leading_}; }
  Dense mutable_view() { return {data(), rows_, cols_, leading_}; }

  /// Random values, rounded to T, here and in the dense float64 copy.
  std::vector<double> Fill(uint64_t seed) {
    std::vector<double> copy = RandomValues(rows_ * cols_, seed);
    for (int64_t i = 0; i < rows_ * cols_; ++i) {
      T& value = at(i / cols_, i % cols_);
      value = static_cast<T>(static_cast<SumOf<T>>(copy[i]));
      copy[i] = Wide(value);
    }
    return copy;
  }

  int64_t CountPaddingTouched() {
    int64_t touched = 0;
    for (int64_t i = -begin_; i < rows_ * leading_ + kGuard; ++i) {
      const bool inside = i >= 0 && i < rows_ * leading_ && i % leading_ < cols_;
      touched += !inside && !std::isnan(Wide(data()[i]));
    }
    return touched;
  }

 private:
  static constexpr int64_t kGuard = 64;
  std::span<T> all() {
    return {reinterpret_cast<T*>(buffer_.mutable_data()), buffer_.size() / sizeof(T)};
  }

  int64_t rows_, cols_, leading_, begin_;
  Buffer buffer_;
};

/// Exactly as many bytes as asked for, with a guard behind.
class Workspace {
 public:
  explicit Workspace(size_t bytes)
      : bytes_(bytes), buffer_(HeapMemory().Allocate(bytes + kGuard).value()) {
    std::memset(buffer_.mutable_data(), 0xff, bytes + kGuard);  // NaN in every type
  }
  std::span<std::byte> span() { return {buffer_.mutable_data(), bytes_}; }
  bool guard_intact() const {
    for (size_t i = bytes_; i < bytes_ + kGuard; ++i) {
      if (buffer_.data()[i] != std::byte{0xff}) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t bytes_;
  Buffer buffer_;
};

template <typename T>
std::vector<T> Place(const Layout& layout, const std::vector<double>& values, int threads) {
  std::vector<T> rounded;
  for (const double value : values) rounded.push_back(static_cast<T>(static_cast<SumOf<T>>(value)));
  std::vector<T> slots(layout.value_slots, static_cast<T>(static_cast<SumOf<T>>(kNan)));
  PlaceValues(layout, ElementTypeOf<T>(), rounded.data(), slots.data(), threads);
  return slots;
}

template <typename T>
std::vector<double> Rounded(const std::vector<double>& values) {
  std::vector<double> rounded;
  for (const double value : values)
    rounded.push_back(Wide(static_cast<T>(static_cast<SumOf<T>>(value))));
  return rounded;
}

/// A sum of `terms` products in any order: each is rounded once as a product and at most `terms`
/// times as part of a sum, then scaled and added to what was there (Higham, Accuracy and Stability
/// of Numerical Algorithms, 2002, section 3.1). Types that are only stored add half a unit in the
/// last place of the result, once.
template <typename T>
double Bound(int64_t terms, double magnitude, double result) {
  using Sum = SumOf<T>;
  const double u = std::numeric_limits<Sum>::epsilon() / 2;
  const double sum_bound = static_cast<double>(terms + 4) * u * 1.01 * magnitude +
                           static_cast<double>(terms + 4) * std::numeric_limits<Sum>::denorm_min();
  if (!kIsHalf<T>) return sum_bound;
  const double stored = std::is_same_v<T, Float16> ? 0x1p-11 : 0x1p-8;
  const double subnormal = std::is_same_v<T, Float16> ? 0x1p-25 : 0;
  return sum_bound + std::max((std::abs(result) + sum_bound) * stored, subnormal);
}

/// Runs a kernel that resumes, cut as often as it lets itself be, as many times as it takes.
template <typename Kernel, typename Arguments>
void RunInPieces(const Kernel& kernel, const Problem& problem, const Arguments& arguments,
                 int threads) {
  Workspace workspace(kernel.workspace(problem, arguments.layout, threads));
  const std::atomic<bool> pause = true;
  Progress progress = {.least = 2, .pause = &pause};
  for (int runs = 0; !progress.finished && runs < 100000; ++runs) {
    const absl::Status status =
        kernel.run({.threads = threads, .workspace = workspace.span(), .progress = &progress},
                   problem, arguments);
    ASSERT_TRUE(status.ok()) << status;
    progress.least = 1 + runs % 5;
  }
  EXPECT_TRUE(progress.finished) << "it never ends";
  EXPECT_TRUE(workspace.guard_intact());
}

/// Fails once, with the worst place and the number of places.
class Comparison {
 public:
  void Add(int64_t row, int64_t col, double got, double expected, double bound) {
    const double error = std::abs(got - expected);
    if (error <= bound) return;  // false for NaN
    if (wrong_++ == 0) {
      first_ = "at (" + std::to_string(row) + ", " + std::to_string(col) + "): got " +
               std::to_string(got) + ", expected " + std::to_string(expected) + " within " +
               std::to_string(bound);
    }
  }
  void Expect() const { EXPECT_EQ(wrong_, 0) << first_; }

 private:
  int64_t wrong_ = 0;
  std::string first_;
};

template <typename T>
std::string ExpectSpmmOf(const SpmmKernel& kernel, const Layout& layout, const Pattern& pattern,
                         const std::vector<double>& values, const DenseCase& c) {
  const Pattern shape = c.transposed ? Transpose(pattern) : pattern;
  Operand<T> b(shape.cols, c.k, c);
  Operand<T> result(shape.rows, c.k, c);
  const std::vector<double> b_copy = b.Fill(101);
  std::vector<double> expected(shape.rows * c.k, kNan);
  Operand<T> in_pieces(shape.rows, c.k, c);
  if (c.beta != 0) {
    expected = result.Fill(102);
    in_pieces.Fill(102);
  }
  std::vector<double> magnitude(expected.size());
  reference::Spmm(pattern.view(), Rounded<T>(values).data(), c.transposed, b_copy.data(), c.k, c.k,
                  c.alpha, c.beta, expected.data(), magnitude.data());

  const Problem problem = {.operation = Operation::kSpmm,
                           .transposed = c.transposed != layout.transposed,
                           .type = c.type,
                           .k = c.k};
  EXPECT_TRUE(kernel.supports(problem, layout));
  const std::vector<T> slots = Place<T>(layout, values, c.threads);
  if (kernel.resumes) {
    RunInPieces(
        kernel, problem,
        SpmmArguments{layout, slots.data(), b.view(), in_pieces.mutable_view(), c.alpha, c.beta},
        c.threads);
    EXPECT_EQ(in_pieces.CountPaddingTouched(), 0);
  }
  Workspace workspace(kernel.workspace(problem, layout, c.threads));
  const absl::Status status =
      kernel.run({.threads = c.threads, .workspace = workspace.span()}, problem,
                 {layout, slots.data(), b.view(), result.mutable_view(), c.alpha, c.beta});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(workspace.guard_intact());
  EXPECT_EQ(result.CountPaddingTouched(), 0);
  Comparison comparison;
  std::string bytes, in_pieces_bytes;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const int64_t terms = shape.row_offsets[row + 1] - shape.row_offsets[row];
    for (int64_t j = 0; j < c.k; ++j) {
      const int64_t i = row * c.k + j;
      comparison.Add(row, j, Wide(result.at(row, j)), expected[i],
                     Bound<T>(terms, magnitude[i], expected[i]));
    }
    bytes.append(reinterpret_cast<const char*>(&result.at(row, 0)), c.k * sizeof(T));
    if (kernel.resumes) {
      in_pieces_bytes.append(reinterpret_cast<const char*>(&in_pieces.at(row, 0)), c.k * sizeof(T));
    }
  }
  EXPECT_TRUE(!kernel.resumes || in_pieces_bytes == bytes) << "cut, it has other bits";
  comparison.Expect();
  return bytes;
}

template <typename T>
std::string ExpectSddmmOf(const SddmmKernel& kernel, const Layout& layout, const Pattern& pattern,
                          const std::vector<double>& values, const DenseCase& c) {
  Operand<T> a(pattern.rows, c.k, c);
  Operand<T> b(pattern.cols, c.k, c);
  Operand<T> out(1, pattern.nnz(), c);
  const std::vector<double> a_copy = a.Fill(103);
  const std::vector<double> b_copy = b.Fill(104);
  const std::vector<double> rounded = Rounded<T>(values);
  std::vector<double> expected(pattern.nnz(), kNan);
  std::vector<double> magnitude(pattern.nnz());
  reference::Sddmm(pattern.view(), c.unscaled ? nullptr : rounded.data(), a_copy.data(), c.k,
                   b_copy.data(), c.k, c.k, expected.data(), magnitude.data());

  const Problem problem = {.operation = Operation::kSddmm, .type = c.type, .k = c.k};
  EXPECT_TRUE(kernel.supports(problem, layout));
  const std::vector<T> slots = Place<T>(layout, values, c.threads);
  const T* const scale = c.unscaled ? nullptr : slots.data();
  std::string in_pieces_bytes;
  const size_t result_bytes = pattern.nnz() * sizeof(T);
  if (kernel.resumes) {
    Operand<T> in_pieces(1, pattern.nnz(), c);
    RunInPieces(kernel, problem,
                SddmmArguments{layout, scale, a.view(), b.view(), in_pieces.data()}, c.threads);
    in_pieces_bytes.assign(reinterpret_cast<const char*>(in_pieces.data()), result_bytes);
  }
  Workspace workspace(kernel.workspace(problem, layout, c.threads));
  const absl::Status status = kernel.run({.threads = c.threads, .workspace = workspace.span()},
                                         problem, {layout, scale, a.view(), b.view(), out.data()});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(workspace.guard_intact());
  EXPECT_EQ(out.CountPaddingTouched(), 0);
  Comparison comparison;
  for (int64_t p = 0; p < pattern.nnz(); ++p) {
    comparison.Add(0, p, Wide(out.data()[p]), expected[p],
                   Bound<T>(c.k, magnitude[p], expected[p]));
  }
  comparison.Expect();
  std::string bytes(reinterpret_cast<const char*>(out.data()), result_bytes);
  EXPECT_TRUE(!kernel.resumes || in_pieces_bytes == bytes) << "cut, it has other bits";
  return bytes;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const DenseCase& c) {
  return out << Name(c.type) << " k=" << c.k << " threads=" << c.threads
             << (c.transposed ? " transposed" : "") << " alpha=" << c.alpha << " beta=" << c.beta
             << " padding=" << c.padding << " offset=" << c.offset
             << (c.unscaled ? " unscaled" : "");
}

std::string ExpectSpmm(const SpmmKernel& kernel, const Layout& layout, const Pattern& pattern,
                       const std::vector<double>& values, const DenseCase& c) {
  return VisitFloat(
      c.type, [&]<typename T>(T) { return ExpectSpmmOf<T>(kernel, layout, pattern, values, c); });
}

std::string ExpectSddmm(const SddmmKernel& kernel, const Layout& layout, const Pattern& pattern,
                        const std::vector<double>& values, const DenseCase& c) {
  return VisitFloat(
      c.type, [&]<typename T>(T) { return ExpectSddmmOf<T>(kernel, layout, pattern, values, c); });
}

std::vector<NamedPattern> OddPatterns() {
  std::vector<NamedPattern> patterns;
  patterns.push_back({"0 x 0", FromCoordinates(0, 0, {})});
  patterns.push_back({"0 rows", FromCoordinates(0, 7, {})});
  patterns.push_back({"0 columns", FromCoordinates(5, 0, {})});
  patterns.push_back({"no nonzeros", FromCoordinates(5, 7, {})});
  patterns.push_back({"one nonzero", FromCoordinates(1, 1, {{0, 0}})});
  patterns.push_back({"one row", Uniform(1, 100, 37, 11)});
  patterns.push_back({"one column", Transpose(Uniform(1, 100, 37, 12))});
  patterns.push_back({"rows of all lengths", [] {
                        std::vector<std::pair<int32_t, int32_t>> entries;
                        for (int32_t row = 0; row < 40; ++row) {
                          for (int32_t i = 0; i < row; ++i) entries.emplace_back(row, 2 * i + 1);
                        }
                        return FromCoordinates(43, 90, std::move(entries));
                      }()});
  patterns.push_back({"a full row and column", [] {
                        std::vector<std::pair<int32_t, int32_t>> entries;
                        for (int32_t i = 0; i < 500; ++i) {
                          entries.insert(entries.end(), {{i, i}, {250, i}, {i, 3}});
                        }
                        return FromCoordinates(500, 500, std::move(entries));
                      }()});
  patterns.push_back({"one huge row among empty ones", [] {
                        std::vector<std::pair<int32_t, int32_t>> entries;
                        for (int32_t i = 0; i < 6000; ++i) entries.emplace_back(17, 2 * i);
                        return FromCoordinates(33, 12001, std::move(entries));
                      }()});
  patterns.push_back({"band", Band(300, 15)});
  patterns.push_back({"stencil", Stencil(19, 23)});
  patterns.push_back({"R-MAT", Rmat(9, 8, 13)});
  return patterns;
}

}  // namespace sparsed::test
