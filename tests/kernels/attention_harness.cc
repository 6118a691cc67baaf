#include "tests/kernels/attention_harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include "kernels/reference/reference.h"
#include "tests/generate.h"

namespace sparsed::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();
using Kind = EdgeScores::Kind;

enum class Scores { kPlain, kHuge, kEqual, kMasked, kInvalid };

struct Case {
  Kind kind = Kind::kDot;
  int64_t heads = 1, width = 8, value_width = 8;  ///< widths of a head
  int64_t bias_cols = 0;                          ///< 0: none
  int64_t padding = 0, offset = 0;
  Scores scores = Scores::kPlain;
  bool shared = false;  ///< kGatv2: values are `right`
};

/// A matrix in float64, without padding.
class Widened {
 public:
  template <typename T>
  explicit Widened(const Matrix<T>& from) : rows_(from.rows()), cols_(from.cols()) {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < cols_; ++j) values_.push_back(from(i, j));
    }
  }
  ConstDense View() const { return {values_.data(), rows_, cols_, cols_}; }

 private:
  int64_t rows_, cols_;
  std::vector<double> values_;
};

template <typename T>
class Checks {
 public:
  using Sum = SumOf<T>;

  Checks(AttentionSite& site, const Pattern& pattern, const Subject& plain,
         const Subject& transposed, const Case& c)
      : site_(site),
        pattern_(pattern),
        plain_(plain),
        transposed_(transposed),
        c_(c),
        left_(New<T>(pattern.rows, ScoreColumns())),
        right_(New<T>(pattern.cols, ScoreColumns())),
        att_(New<T>(1, ScoreColumns())),
        bias_(New<T>(pattern.nnz(), std::max<int64_t>(c.bias_cols, 1))),
        values_(New<T>(pattern.cols, c.heads * c.value_width)),
        gradient_(New<T>(pattern.rows, c.heads * c.value_width)) {
    FillOperands();
    scores_ = Described(left_.View(), right_.View(), att_.View(), bias_.View());
    expected_ = reference::EdgeAttention(pattern_.view(), Wide(), Widened(Values()).View());
  }

  void Forward() {
    for (const bool with_log_sums : {true, false}) {
      Matrix<T> out = New<T>(pattern_.rows, c_.heads * c_.value_width);
      Matrix<Sum> log_sums = New<Sum>(pattern_.rows, c_.heads);
      EdgeAttention attention{plain_.there};
      attention.scores = scores_;
      attention.values = Values().View();
      attention.out = out.MutableView();
      if (with_log_sums) attention.log_sums = log_sums.MutableView();
      const absl::Status done = site_.Compute(attention, ElementTypeOf<T>());
      ASSERT_TRUE(done.ok()) << done;
      Expect("out", out, expected_.out);
      if (with_log_sums) Expect("log_sums", log_sums, expected_.log_sums);
    }
  }

  /// Of the result that the reference has, rounded. `wanted`: bits for left, right, values, bias,
  /// att.
  void Backward(unsigned wanted) {
    SCOPED_TRACE(fmt::format("gradients {:x}", wanted));
    Matrix<T> out = Rounded<T>(expected_.out, c_.heads * c_.value_width);
    Matrix<Sum> log_sums = Rounded<Sum>(expected_.log_sums, c_.heads);
    Matrix<T> left = New<T>(left_), right = New<T>(right_), values = New<T>(values_),
              bias = New<T>(bias_), att = New<T>(att_);
    EdgeAttentionGradient gradient{plain_.there, transposed_.there};
    gradient.scores = scores_;
    gradient.values = Values().View();
    gradient.out = out.View();
    gradient.log_sums = log_sums.View();
    gradient.gradient = gradient_.View();
    if (c_.bias_cols == 0) wanted &= ~8U;
    if (c_.kind != Kind::kGatv2) wanted &= ~16U;
    if ((wanted & 1) != 0) gradient.left = left.MutableView();
    if ((wanted & 2) != 0) gradient.right = right.MutableView();
    if ((wanted & 4) != 0) gradient.values_gradient = values.MutableView();
    if ((wanted & 8) != 0) gradient.bias = bias.MutableView();
    if ((wanted & 16) != 0) gradient.att = att.MutableView();
    const absl::Status done = site_.Compute(gradient, ElementTypeOf<T>());
    ASSERT_TRUE(done.ok()) << done;
    const auto expected = reference::EdgeAttentionGradients(
        pattern_.view(), Wide(), Widened(Values()).View(), Widened(out).View(),
        Widened(log_sums).View(), Widened(gradient_).View());
    if ((wanted & 1) != 0) Expect("left", left, expected.left);
    if ((wanted & 2) != 0) Expect("right", right, expected.right);
    if ((wanted & 4) != 0) Expect("values", values, expected.values);
    if ((wanted & 8) != 0) Expect("bias", bias, expected.bias);
    if ((wanted & 16) != 0) Expect("att", att, expected.att);
  }

 private:
  int64_t ScoreColumns() const { return c_.kind == Kind::kSum ? c_.heads : c_.heads * c_.width; }
  Matrix<T>& Values() { return c_.shared && c_.kind == Kind::kGatv2 ? right_ : values_; }
  template <typename U>
  Matrix<U> New(int64_t rows, int64_t cols) {
    return Matrix<U>(site_, rows, cols, c_.padding, c_.offset);
  }
  template <typename U>
  Matrix<U> New(const Matrix<U>& like) {
    return New<U>(like.rows(), like.cols());
  }
  template <typename U>
  Matrix<U> Rounded(const reference::Values& from, int64_t cols) {
    Matrix<U> to = New<U>(pattern_.rows, cols);
    for (int64_t i = 0; i < pattern_.rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) to.Set(i, j, from.values[i * cols + j]);
    }
    return to;
  }

  EdgeScores Described(const ConstDense& left, const ConstDense& right, const ConstDense& att,
                       const ConstDense& bias) const {
    EdgeScores scores;
    scores.kind = c_.kind;
    scores.heads = c_.heads;
    scores.scale = 1 / std::sqrt(static_cast<double>(c_.width));
    if (c_.scores == Scores::kHuge) scores.scale *= 1e4;
    scores.slope = 0.2;
    scores.left = left;
    scores.right = right;
    if (c_.kind == Kind::kGatv2) scores.att = att;
    if (c_.bias_cols > 0) scores.bias = bias;
    return scores;
  }
  /// The reference's.
  EdgeScores Wide() {
    wide_ = {Widened(left_), Widened(right_), Widened(att_), Widened(bias_)};
    return Described(wide_[0].View(), wide_[1].View(), wide_[2].View(), wide_[3].View());
  }

  void FillOperands() {
    std::mt19937 random(7);
    const double of_scores = c_.scores == Scores::kEqual                           ? 0
                             : c_.scores == Scores::kHuge && c_.kind != Kind::kDot ? 1e4
                                                                                   : 1;
    left_.FillUniformly(random, of_scores);
    right_.FillUniformly(random, of_scores);
    bias_.FillUniformly(random, c_.scores == Scores::kHuge ? 1e4 : of_scores);
    values_.FillUniformly(random, 1);
    gradient_.FillUniformly(random, 1);
    std::mt19937 of_att(8);
    att_.FillUniformly(of_att, 1);
    if (c_.scores == Scores::kMasked || c_.scores == Scores::kInvalid) MaskSome(random);
    if (c_.scores == Scores::kInvalid) MakeInvalid();
  }
  /// Rows that are masked wholly, partly, and not.
  void MaskSome(std::mt19937& random) {
    for (int64_t i = 0; i < pattern_.rows; ++i) {
      for (int64_t p = pattern_.row_offsets[i]; p < pattern_.row_offsets[i + 1]; ++p) {
        for (int64_t column = 0; column < bias_.cols(); ++column) {
          if (i % 4 == 1 || (i % 4 == 2 && random() % 2 == 0)) bias_.Set(p, column, -kInfinite);
        }
      }
    }
  }
  /// NaN or infinity in a column of the bias of some rows.
  void MakeInvalid() {
    for (int64_t i = 0; i < pattern_.rows; ++i) {
      const int64_t begin = pattern_.row_offsets[i], end = pattern_.row_offsets[i + 1];
      if (begin == end || i % 7 > 2) continue;
      const int64_t at = i % 2 == 0 ? begin : end - 1;
      bias_.Set(at, i % bias_.cols(), i % 3 == 0 ? kInfinite : kNan);
    }
  }

  /// Sums of n numbers, one after the other or otherwise, are off by less than n roundings and
  /// hardly ever by more than a few times the square root of n; what is stored by one more.
  template <typename U>
  void Expect(std::string_view what, Matrix<U>& got, const reference::Values& expected) {
    SCOPED_TRACE(what);
    const double unit = std::is_same_v<T, double> ? 0x1p-53 : 0x1p-24;
    const double stored = std::is_same_v<U, Float16>    ? 0x1p-11
                          : std::is_same_v<U, BFloat16> ? 0x1p-8
                          : std::is_same_v<U, double>   ? 0x1p-53
                                                        : 0x1p-24;
    // Below the least normal numbers roundings are of a fixed size.
    const double least = std::is_same_v<U, Float16> ? 0x1p-24 : 1e-37;
    int64_t length = std::max(c_.width, c_.value_width);
    for (const Subject* const subject : {&plain_, &transposed_}) {
      for (int64_t i = 0; i < subject->rows(); ++i) {
        length = std::max(length, subject->offsets[i + 1] - subject->offsets[i]);
      }
    }
    const double roundings = 8 + 2 * std::sqrt(static_cast<double>(length));
    got.ExpectWithin([&](int64_t i, int64_t j) { return expected.values[i * got.cols() + j]; },
                     [&](int64_t i, int64_t j) {
                       const double value = std::abs(expected.values[i * got.cols() + j]);
                       const double error =
                           roundings * unit * expected.magnitudes[i * got.cols() + j];
                       // Of two numbers that differ by the error, rounded.
                       return error + stored * (2 * value + error) + least;
                     });
  }

  AttentionSite& site_;
  const Pattern& pattern_;
  const Subject& plain_;
  const Subject& transposed_;
  const Case c_;
  Matrix<T> left_, right_, att_, bias_, values_, gradient_;
  EdgeScores scores_;
  std::vector<Widened> wide_;
  reference::AttentionResults expected_;
};

std::string_view NameOf(const Case& c) {
  if (c.kind == Kind::kGatv2) return c.shared ? "gatv2 of its values" : "gatv2";
  return c.kind == Kind::kDot ? "dot" : "sum";
}

constexpr Kind kKinds[] = {Kind::kDot, Kind::kSum, Kind::kGatv2};

void CheckCases(AttentionSite& site, const Pattern& pattern, const std::vector<Case>& cases,
                bool each_alone = false) {
  const Subject plain(site, pattern, false), transposed(site, pattern, true);
  for (const Case& c : cases) {
    for (const ElementType type :
         {ElementType::kF32, ElementType::kF64, ElementType::kF16, ElementType::kBF16}) {
      SCOPED_TRACE(fmt::format(
          "{} x {}, {}, {} heads of {} and {}, bias of {}, padding {}, offset {}, scores {}, {}",
          pattern.rows, pattern.cols, NameOf(c), c.heads, c.width, c.value_width, c.bias_cols,
          c.padding, c.offset, static_cast<int>(c.scores), Name(type)));
      VisitFloat(type, [&]<typename T>(T) {
        Checks<T> checks(site, pattern, plain, transposed, c);
        checks.Forward();
        checks.Backward(31);
        const unsigned all = c.kind == Kind::kGatv2 ? 31 : 15;
        for (unsigned wanted = 1; each_alone && wanted < all; ++wanted) checks.Backward(wanted);
      });
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

/// Rows of none, one and several nonzeros, and one of most columns.
Pattern Small(int64_t rows, int64_t cols) {
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> of_rows;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int32_t>& columns = of_rows.emplace_back();
    if (row % 5 == 4) continue;
    const uint32_t chance = row == 13 ? 900 : row % 5 == 3 ? 30 : 250;
    for (int32_t col = 0; col < cols; ++col) {
      if (random() % 1000 < chance) columns.push_back(col);
    }
  }
  return FromRows(cols, of_rows);
}

/// A row of 100,000 nonzeros, one of 2,000, many of one, many empty.
Pattern WithLongRow() {
  constexpr int32_t kCols = 100'050;
  std::vector<std::vector<int32_t>> of_rows(700);
  for (int32_t row = 0; row < 700; row += 2) of_rows[row] = {row * 37 % 90};
  for (int32_t col = 0; col < 100'000; ++col) of_rows[330].push_back(col + 25);
  for (int32_t col = 0; col < 2000; ++col) of_rows[500].push_back(col * 50 + 1);
  return FromRows(kCols, of_rows);
}

/// Rows of several hundred nonzeros and more, with short ones among them.
Pattern WithLongerRows() {
  std::mt19937 random(5);
  std::vector<std::vector<int32_t>> of_rows(12);
  for (size_t row = 0; row < of_rows.size(); ++row) {
    const uint32_t chance = row % 3 == 0 ? 3 : row % 3 == 1 ? 400 : 950;
    for (int32_t col = 0; col < 1700; ++col) {
      if (random() % 1000 < chance) of_rows[row].push_back(col);
    }
  }
  of_rows[4].clear();
  return FromRows(1700, of_rows);
}

Pattern Transposed(const Pattern& of) {
  std::vector<std::pair<int32_t, int32_t>> coordinates;
  for (int32_t row = 0; row < of.rows; ++row) {
    for (int64_t p = of.row_offsets[row]; p < of.row_offsets[row + 1]; ++p) {
      coordinates.emplace_back(of.column_indices[p], row);
    }
  }
  return FromCoordinates(of.cols, of.rows, std::move(coordinates));
}

/// Every number of heads with every width, the rest in turn.
std::vector<Case> ManyCases(Kind kind) {
  constexpr int64_t kWidths[] = {1, 7, 8, 16, 24, 32, 64, 128, 200};
  std::vector<Case> cases;
  for (const int64_t heads : {1, 2, 4, 8, 3}) {
    for (const int64_t width : kWidths) {
      const auto turn = static_cast<int64_t>(cases.size());
      Case c;
      c.kind = kind;
      c.heads = heads;
      c.width = width;
      c.value_width = turn % 3 == 2 ? kWidths[(turn + heads) % 9] : width;
      c.bias_cols = turn % 4 == 1 ? 1 : turn % 4 == 3 ? heads : 0;
      // Rows that begin at multiples of 16 bytes and such that do not.
      c.padding = turn % 2 == 0 ? (16 - heads * width % 16) % 16 : 3;
      c.offset = turn % 2;
      c.shared = kind == Kind::kGatv2 && c.value_width == width && turn % 2 == 0;
      cases.push_back(c);
    }
  }
  return cases;
}

}  // namespace

void CheckAttention(AttentionSite& site) {
  for (const Kind kind : kKinds) {
    CheckCases(site, Small(53, 41), ManyCases(kind));
    CheckCases(site, Small(23, 170), {{kind, 4, 8, 16, 4, 0, 0}, {kind, 40, 2, 3, 1, 1, 0}});
    CheckCases(site, Small(170, 23), {{kind, 4, 16, 8, 4, 1, 1}, {kind, 3, 5, 9, 0, 0, 0}});
    CheckCases(site, Small(31, 37), {{kind, 2, 8, 4, 2, 0, 0}, {kind, 1, 8, 4, 0, 0, 0}}, true);
  }
}

void CheckAttentionOfWideHeads(AttentionSite& site) {
  for (const Kind kind : kKinds) {
    CheckCases(site, Small(53, 41),
               {{kind, 1, 257, 257, 1, 0, 0, Scores::kPlain, true},
                {kind, 2, 512, 520, 0, 0, 0},
                {kind, 1, 1024, 1024, 1, 0, 0, Scores::kPlain, true},
                {kind, 3, 40, 700, 3, 1, 1},
                {kind, 2, 700, 40, 2, 1, 0, Scores::kMasked},
                {kind, 1, 300, 300, 1, 0, 0, Scores::kHuge}});
    CheckCases(site, WithLongerRows(), {{kind, 2, 300, 516, 2, 0, 0}});
    CheckCases(site, Small(31, 37), {{kind, 2, 264, 260, 2, 0, 0}}, true);
  }
}

void CheckAttentionOfOddScores(AttentionSite& site) {
  for (const Kind kind : kKinds) {
    for (const int64_t heads : {1, 4}) {
      for (const Scores scores :
           {Scores::kHuge, Scores::kEqual, Scores::kMasked, Scores::kInvalid}) {
        CheckCases(site, Small(53, 41),
                   {{kind, heads, 8, 8, heads, 0, 0, scores},
                    {kind, heads, 7, 32, 1, 1, 0, scores},
                    {kind, heads, 32, 5, 0, 0, 0, scores}});
      }
    }
    const std::vector<Case> cases = {{kind, 2, 8, 4, 2, 0, 0}, {kind, 1, 1, 1, 1, 1, 0}};
    CheckCases(site, FromRows(9, std::vector<std::vector<int32_t>>(7)), cases);
    CheckCases(site, FromRows(9, {}), cases);
    CheckCases(site, FromRows(0, std::vector<std::vector<int32_t>>(7)), cases);
    CheckCases(site, FromRows(1, {{0}}), cases);
  }
}

void CheckAttentionOfLongRows(AttentionSite& site) {
  const Pattern with_longer_rows = WithLongerRows();
  for (const Kind kind : kKinds) {
    for (const Pattern& pattern : {with_longer_rows, Transposed(with_longer_rows)}) {
      CheckCases(site, pattern,
                 {{kind, 8, 32, 32, 8, 0, 0},
                  {kind, 3, 24, 7, 1, 1, 1},
                  {kind, 1, 64, 128, 0, 0, 0},
                  {kind, 2, 5, 3, 2, 0, 0, Scores::kHuge},
                  {kind, 2, 8, 8, 2, 0, 0, Scores::kMasked},
                  {kind, 2, 8, 8, 1, 0, 0, Scores::kInvalid}});
    }
  }
  const Pattern with_long_row = WithLongRow(), with_long_column = Transposed(with_long_row);
  for (const Pattern* const pattern : {&with_long_row, &with_long_column}) {
    CheckCases(site, *pattern,
               {{Kind::kDot, 4, 8, 8, 4, 0, 0},
                {Kind::kDot, 1, 16, 5, 1, 1, 0},
                {Kind::kDot, 2, 8, 8, 2, 0, 0, Scores::kHuge},
                {Kind::kSum, 3, 1, 8, 0, 0, 0},
                {Kind::kGatv2, 4, 8, 8, 4, 0, 0, Scores::kPlain, true},
                {Kind::kGatv2, 1, 16, 5, 1, 1, 0},
                {Kind::kGatv2, 2, 8, 8, 2, 0, 0, Scores::kHuge}});
  }
}

}  // namespace sparsed::test
