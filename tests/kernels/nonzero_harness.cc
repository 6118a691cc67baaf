#include "tests/kernels/nonzero_harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/generate.h"

namespace sparsed::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

template <typename T>
constexpr ElementType kType = ElementTypeOf<T>();

struct Case {
  int64_t heads = 1, width = 1;
  int64_t padding = 0, offset = 0;
};

template <typename T>
class Checks {
 public:
  using Sum = SumOf<T>;

  Checks(NonzeroSite& site, const Subject& subject, const Case& c)
      : site_(site), s_(subject), c_(c), k_(c.heads * c.width) {}

  void SumsOfHeads(bool by_slot) {
    Matrix<T> values = New(s_.nnz(), c_.heads), b = New(s_.cols(), k_);
    values.Fill(random_);
    b.Fill(random_);
    for (const double beta : {0.0, -2.0}) {
      Matrix<T> c = New(s_.rows(), k_);
      if (beta != 0) c.Fill(random_);
      const Matrix<T> before = c;
      RowProducts products{s_.there};
      products.values = values.View();
      products.values_by_slot = by_slot;
      products.b = b.View();
      products.c = c.MutableView();
      products.alpha = 0.5;
      products.beta = beta;
      Must(site_.Compute(products, kType<T>));
      c.Expect([&](int64_t i, int64_t j) {
        double sum = 0;
        for (int64_t slot = s_.offsets[i]; slot < s_.offsets[i + 1]; ++slot) {
          sum += values(by_slot ? slot : s_.source[slot], j / c_.width) * b(s_.columns[slot], j);
        }
        return 0.5 * sum + (beta == 0 ? 0 : beta * before(i, j));
      });
    }
  }

  void Reductions(bool with_values, bool with_infinities) {
    Matrix<T> values = New(s_.nnz(), 1), b = New(s_.cols(), k_);
    values.Fill(random_);
    b.Fill(random_);
    if (with_infinities) {
      for (int i = 0; i < 6; ++i) {
        const int64_t row = random_() % s_.cols(), column = random_() % k_;
        b.Set(row, column, i < 2 ? kNan : i % 2 == 0 ? kInfinite : -kInfinite);
      }
    }
    std::vector<int64_t> positions(static_cast<size_t>(s_.nnz()));
    for (size_t i = 0; i < positions.size(); ++i) {
      positions[i] = static_cast<int64_t>(positions.size() - 1 - i);
    }
    const Buffer positions_there =
        site_.Upload(positions.data(), positions.size() * sizeof(int64_t));
    for (const Reduction reduction : {Reduction::kMean, Reduction::kMax, Reduction::kMin}) {
      for (const int arguments : {0, 1, 2}) {
        if (reduction == Reduction::kMean && arguments > 0) continue;
        SCOPED_TRACE(fmt::format("{}, arguments {}", Name(reduction), arguments));
        Matrix<T> c = New(s_.rows(), k_);
        Matrix<int64_t> which(site_, s_.rows(), k_, c_.padding, c_.offset);
        RowProducts products{s_.there};
        products.reduction = reduction;
        if (with_values) products.values = values.View();
        products.b = b.View();
        products.c = c.MutableView();
        if (arguments > 0) products.arguments = which.MutableView();
        if (arguments > 1) {
          products.positions = {reinterpret_cast<const int64_t*>(positions_there.data()),
                                positions.size()};
        }
        Must(site_.Compute(products, kType<T>));
        std::vector<int64_t> expected_which(static_cast<size_t>(s_.rows() * k_), -1);
        c.Expect([&](int64_t i, int64_t j) {
          Sum result = 0;
          int64_t& at = expected_which[i * k_ + j];
          for (int64_t slot = s_.offsets[i]; slot < s_.offsets[i + 1]; ++slot) {
            const Sum product =
                (with_values ? static_cast<Sum>(values(s_.source[slot], 0)) : Sum(1)) *
                static_cast<Sum>(b(s_.columns[slot], j));
            if (reduction == Reduction::kMean) {
              result += product;
              continue;
            }
            const bool better = reduction == Reduction::kMax ? product > result : product < result;
            if (at < 0 || (!std::isnan(result) && (better || std::isnan(product)))) {
              result = product;
              at = s_.source[slot];
            }
          }
          if (arguments > 1 && at >= 0) at = positions[at];
          const int64_t length = s_.offsets[i + 1] - s_.offsets[i];
          const bool divides = reduction == Reduction::kMean && length > 0;
          return static_cast<double>(divides ? result / static_cast<Sum>(length) : result);
        });
        if (arguments == 0) continue;
        which.Expect(
            [&](int64_t i, int64_t j) { return static_cast<double>(expected_which[i * k_ + j]); });
      }
    }
  }

  void Dots() {
    Matrix<T> a = New(s_.rows(), k_), b = New(s_.cols(), k_);
    a.Fill(random_);
    b.Fill(random_);
    for (const int64_t of_values : {int64_t{0}, int64_t{1}, c_.heads}) {
      Matrix<T> values = New(s_.nnz(), std::max<int64_t>(of_values, 1)),
                out = New(s_.nnz(), c_.heads);
      values.Fill(random_);
      HeadDots dots{s_.there};
      if (of_values > 0) dots.values = values.View();
      dots.a = a.View();
      dots.b = b.View();
      dots.out = out.MutableView();
      Must(site_.Compute(dots, kType<T>));
      const std::vector<int64_t> rows = RowsOfNonzeros();
      out.Expect([&](int64_t p, int64_t head) {
        double sum = 0;
        for (int64_t j = head * c_.width; j < (head + 1) * c_.width; ++j) {
          sum += a(rows[p], j) * b(s_.columns[p], j);
        }
        return of_values == 0 ? sum : sum * values(p, of_values == 1 ? 0 : head);
      });
    }
  }

  void Scalings() {
    Matrix<T> x = New(s_.nnz(), c_.heads);
    x.Fill(random_);
    const std::vector<int64_t> of_row = RowsOfNonzeros();
    for (const int64_t of_rows : {int64_t{0}, int64_t{1}, c_.heads}) {
      const int64_t of_cols = of_rows == 1 ? 0 : of_rows == 0 ? c_.heads : 1;
      Matrix<T> rows = New(s_.rows(), std::max<int64_t>(of_rows, 1)),
                cols = New(s_.cols(), std::max<int64_t>(of_cols, 1)), y = New(s_.nnz(), c_.heads);
      rows.Fill(random_);
      cols.Fill(random_);
      NonzeroScaling scaling{s_.there};
      scaling.x = x.View();
      if (of_rows > 0) scaling.rows = rows.View();
      if (of_cols > 0) scaling.cols = cols.View();
      scaling.y = y.MutableView();
      Must(site_.Compute(scaling, kType<T>));
      y.Expect([&](int64_t p, int64_t head) {
        const double row = of_rows == 0 ? 1 : rows(of_row[p], of_rows == 1 ? 0 : head);
        const double col = of_cols == 0 ? 1 : cols(s_.columns[p], of_cols == 1 ? 0 : head);
        return row * x(p, head) * col;
      });
    }
  }

  void Totals(bool by_slot) {
    Matrix<T> x = New(s_.nnz(), c_.heads), y = New(s_.rows(), c_.heads);
    x.Fill(random_);
    NonzeroTotals totals{s_.there};
    totals.x = x.View();
    totals.x_by_slot = by_slot;
    totals.y = y.MutableView();
    Must(site_.Compute(totals, kType<T>));
    y.Expect([&](int64_t i, int64_t head) {
      double sum = 0;
      for (int64_t slot = s_.offsets[i]; slot < s_.offsets[i + 1]; ++slot) {
        sum += x(by_slot ? slot : s_.source[slot], head);
      }
      return sum;
    });
  }

  void Softmaxes() {
    const double relative = std::is_same_v<T, double>  ? 1e-12
                            : std::is_same_v<T, float> ? 1e-4
                                                       : 2e-2;
    constexpr double kScale = 0.75;
    Matrix<T> x = New(s_.nnz(), c_.heads), y = New(s_.nnz(), c_.heads);
    x.Fill(random_);
    Must(site_.Softmax(s_.there, kType<T>, kScale, x.View(), nullptr, y.MutableView()));
    const std::vector<int64_t> rows = RowsOfNonzeros();
    std::vector<double> sums =
        SumsOfRows([&](int64_t p, int64_t head) { return std::exp(kScale * x(p, head)); });
    y.Expect(
        [&](int64_t p, int64_t head) {
          return std::exp(kScale * x(p, head)) / sums[rows[p] * c_.heads + head];
        },
        relative);
    Matrix<T> of = New(s_.nnz(), c_.heads), dy = New(s_.nnz(), c_.heads),
              dx = New(s_.nnz(), c_.heads);
    of.Fill(random_);
    dy.Fill(random_);
    const ConstDense dy_view = dy.View();
    Must(site_.Softmax(s_.there, kType<T>, kScale, of.View(), &dy_view, dx.MutableView()));
    sums = SumsOfRows([&](int64_t p, int64_t head) { return of(p, head) * dy(p, head); });
    dx.Expect(
        [&](int64_t p, int64_t head) {
          return kScale * of(p, head) * (dy(p, head) - sums[rows[p] * c_.heads + head]);
        },
        relative);
  }

 private:
  static void Must(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }
  Matrix<T> New(int64_t rows, int64_t cols) {
    return Matrix<T>(site_, rows, cols, c_.padding, c_.offset);
  }
  std::vector<int64_t> RowsOfNonzeros() const {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < s_.rows(); ++i) {
      rows.insert(rows.end(), static_cast<size_t>(s_.offsets[i + 1] - s_.offsets[i]), i);
    }
    return rows;
  }
  template <typename Of>
  std::vector<double> SumsOfRows(const Of& of) const {
    std::vector<double> sums(static_cast<size_t>(s_.rows() * c_.heads));
    for (int64_t i = 0; i < s_.rows(); ++i) {
      for (int64_t p = s_.offsets[i]; p < s_.offsets[i + 1]; ++p) {
        for (int64_t head = 0; head < c_.heads; ++head) sums[i * c_.heads + head] += of(p, head);
      }
    }
    return sums;
  }

  NonzeroSite& site_;
  const Subject& s_;
  const Case c_;
  const int64_t k_;
  std::mt19937 random_{7};
};

/// `check` of every type.
template <typename Check>
void ForEachCase(const Pattern& pattern, const std::vector<Case>& cases, const Check& check) {
  for (const Case& c : cases) {
    for (const ElementType type :
         {ElementType::kF32, ElementType::kF64, ElementType::kF16, ElementType::kBF16}) {
      SCOPED_TRACE(fmt::format("{} x {}, {} heads of {}, padding {}, offset {}, {}", pattern.rows,
                               pattern.cols, c.heads, c.width, c.padding, c.offset, Name(type)));
      VisitFloat(type, [&]<typename T>(T one) { check(one, c); });
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

void CheckAll(NonzeroSite& site, const Pattern& pattern, const std::vector<Case>& cases) {
  const Subject plain(site, pattern, false), transposed(site, pattern, true);
  ForEachCase(pattern, cases, [&]<typename T>(T, const Case& c) {
    Checks<T> checks(site, plain, c);
    checks.SumsOfHeads(false);
    checks.Dots();
    checks.Scalings();
    checks.Totals(false);
    checks.Softmaxes();
    checks.Reductions(true, false);
    checks.Reductions(false, true);
    Checks<T> of_transposed(site, transposed, c);
    of_transposed.SumsOfHeads(false);
    of_transposed.SumsOfHeads(true);
    of_transposed.Totals(false);
    of_transposed.Totals(true);
    of_transposed.Reductions(true, true);
  });
}

/// Every fifth row is empty.
Pattern Small(int64_t rows, int64_t cols) {
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> of_rows;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int32_t>& columns = of_rows.emplace_back();
    for (int32_t col = 0; col < cols && row % 5 != 4; ++col) {
      if (random() % static_cast<uint32_t>(cols) < 9) columns.push_back(col);
    }
  }
  return FromRows(cols, of_rows);
}

/// Row 3 has 100,000 nonzeros, row 5 2,000, others few.
Pattern WithLongRow() {
  constexpr int32_t kCols = 100'050;
  std::vector<std::vector<int32_t>> of_rows(11);
  for (int32_t col = 0; col < 100'000; ++col) of_rows[3].push_back(col + 25);
  for (int32_t col = 0; col < 2000; ++col) of_rows[5].push_back(col * 50 + 1);
  for (const int row : {0, 1, 9}) of_rows[row] = {row, 17, 50'000 + row};
  return FromRows(kCols, of_rows);
}

}  // namespace

void CheckNonzeroKernels(NonzeroSite& site) {
  std::vector<Case> cases;
  for (const int64_t heads : {1, 2, 3, 8}) {
    for (const int64_t width : {1, 5, 8, 32, 64}) {
      // Rows that begin at multiples of 16 bytes and such that do not.
      const int64_t k = heads * width;
      cases.push_back({heads, width, (16 - k % 16) % 16, 0});
      if (width < 32) cases.push_back({heads, width, 3, 1});
    }
  }
  cases.push_back({40, 2, 0, 0});
  CheckAll(site, Small(53, 41), cases);
  // Nothing at all.
  CheckAll(site, FromRows(9, std::vector<std::vector<int32_t>>(7)), {{2, 4, 0, 0}});
}

void CheckReductions(NonzeroSite& site) {
  // Values lie one after another, as SpMM has them; rows of operands begin anywhere.
  const std::vector<std::pair<Pattern, std::vector<Case>>> patterns = {
      {Small(53, 41),
       {{1, 2, 0, 0},
        {1, 5, 0, 1},
        {1, 8, 0, 0},
        {1, 17, 0, 1},
        {1, 32, 0, 0},
        {1, 130, 0, 0},
        {1, 200, 0, 1},
        {1, 9, 3, 0}}},
      {Small(5000, 41), {{1, 4, 0, 0}, {1, 33, 0, 0}, {1, 64, 0, 0}}},
      {WithLongRow(), {{1, 3, 0, 0}, {1, 8, 0, 0}, {1, 20, 0, 0}}},
  };
  for (const auto& [pattern, cases] : patterns) {
    const Subject plain(site, pattern, false);
    ForEachCase(pattern, cases, [&]<typename T>(T, const Case& c) {
      Checks<T> checks(site, plain, c);
      checks.Reductions(true, false);
      checks.Reductions(false, true);
      checks.Reductions(true, true);
    });
  }
}

void CheckNonzeroKernelsOfLongRows(NonzeroSite& site) {
  CheckAll(site, WithLongRow(), {{8, 4, 0, 0}, {3, 1, 1, 0}, {1, 5, 0, 0}});
}

}  // namespace sparsed::test
