#include "tests/unit/client/chain_products.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "sparsed/chain.h"
#include "tests/unit/client/attention_products.h"
#include "tests/unit/client/chain_models.h"
#include "tests/unit/client/eventually.h"

namespace sparsed::test {
namespace {

Model Spmm(const Sparse& s, bool transpose, const Model& b, double alpha, double beta,
           const Model* old, const Model& values) {
  const int64_t width = b.cols / values.cols;
  Model c = Model::Zeros(transpose ? s.cols : s.rows, b.cols);
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      const int64_t to = transpose ? s.columns[i] : row, from = transpose ? row : s.columns[i];
      for (int64_t j = 0; j < b.cols; ++j) {
        c.at[to * b.cols + j] +=
            alpha * values.at[i * values.cols + j / width] * b.at[from * b.cols + j];
      }
    }
  }
  if (old != nullptr) {
    for (size_t i = 0; i < c.at.size(); ++i) c.at[i] += beta * old->at[i];
  }
  return c;
}

Model Sddmm(const Sparse& s, const Model& a, const Model& b, const Model& values,
            int64_t heads = 1) {
  Model o = Model::Zeros(s.nnz(), heads);
  const int64_t width = a.cols / heads;
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      for (int64_t j = 0; j < a.cols; ++j) {
        const int64_t head = j / width;
        o.at[i * heads + head] += values.at[i * values.cols + (values.cols == 1 ? 0 : head)] *
                                  a.at[row * a.cols + j] * b.at[s.columns[i] * a.cols + j];
      }
    }
  }
  return o;
}

enum class Reduction : uint8_t { kMean, kMax, kMin };

/// `which`: of a greatest or least, the nonzero that it is of.
Model Reduce(const Sparse& s, bool transpose, Reduction reduction, const Model& b,
             const std::vector<double>& values, Model* which) {
  Model c = Model::Zeros(transpose ? s.cols : s.rows, b.cols);
  *which = c;
  std::ranges::fill(which->at, -1);
  std::vector<double> count(static_cast<size_t>(c.rows));
  // In ascending order of columns, or of rows.
  std::vector<int64_t> order(static_cast<size_t>(s.nnz())), rows(order.size());
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      order[i] = i;
      rows[i] = row;
    }
  }
  std::ranges::sort(order, {}, [&](int64_t i) { return std::pair(rows[i], s.columns[i]); });
  for (const int64_t i : order) {
    const int64_t to = transpose ? s.columns[i] : rows[i];
    const int64_t from = transpose ? rows[i] : s.columns[i];
    ++count[to];
    for (int64_t j = 0; j < b.cols; ++j) {
      const double product = values[i] * b.at[from * b.cols + j];
      double& result = c.at[to * b.cols + j];
      double& at = which->at[to * b.cols + j];
      if (reduction == Reduction::kMean) {
        result += product;
      } else if (at < 0 ||
                 (!std::isnan(result) &&
                  (std::isnan(product) ||
                   (reduction == Reduction::kMax ? product > result : product < result)))) {
        result = product;
        at = static_cast<double>(i);
      }
    }
  }
  for (int64_t i = 0; i < c.rows * c.cols && reduction == Reduction::kMean; ++i) {
    c.at[i] /= std::max(count[i / c.cols], 1.0);
  }
  return c;
}

Model Scale(const Sparse& s, const Model& x, const Model* rows, const Model* cols) {
  const auto factor = [](const Model* of, int64_t row, int64_t head) {
    return of == nullptr ? 1 : of->at[row * of->cols + (of->cols == 1 ? 0 : head)];
  };
  Model y = x;
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      for (int64_t head = 0; head < x.cols; ++head) {
        y.at[i * x.cols + head] *= factor(rows, row, head) * factor(cols, s.columns[i], head);
      }
    }
  }
  return y;
}

Model Total(const Sparse& s, bool transpose, const Model& x) {
  Model y = Model::Zeros(transpose ? s.cols : s.rows, x.cols);
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      const int64_t to = transpose ? s.columns[i] : row;
      for (int64_t head = 0; head < x.cols; ++head) {
        y.at[to * x.cols + head] += x.at[i * x.cols + head];
      }
    }
  }
  return y;
}

/// Chains of random steps over two matrices.
template <typename T>
void CheckRandomChains(ChainRunner& runner, unsigned seed, int chains) {
  std::mt19937 random(seed);
  const std::vector<Sparse> sparse = {RandomSparse(45, 45, false, random),
                                      RandomSparse(45, 31, true, random)};
  const std::vector<Matrix> matrices = {Send<T>(runner.client(), "square", sparse[0]),
                                        Send<T>(runner.client(), "tall", sparse[1])};
  for (int turn = 0; turn < chains; ++turn) {
    SCOPED_TRACE(testing::Message() << "type " << Name(kTypeOf<T>) << " chain " << turn);
    Chain chain;
    std::vector<Chain::Value> values;
    std::vector<Model> models;
    std::vector<std::unique_ptr<Place<T>>> operands;
    const int64_t k = std::vector<int64_t>{1, 5, 16}[random() % 3];
    for (const Model& shape :
         {Model::Zeros(45, k), Model::Zeros(31, k), Model::Zeros(sparse[0].nnz(), 1)}) {
      Model model = shape;
      for (double& x : model.at) x = static_cast<double>(random() % 3) - 1;
      operands.push_back(std::make_unique<Place<T>>(runner, model, random));
      values.push_back(chain.Input(operands.back()->AsOperand(model)));
      models.push_back(model);
    }
    const auto with_rows = [&](int64_t rows, int64_t cols) {
      std::vector<size_t> fit;
      for (size_t i = 0; i < models.size(); ++i) {
        if (models[i].rows == rows && models[i].cols == cols) fit.push_back(i);
      }
      return fit[random() % fit.size()];
    };
    for (int step = 0; step < 12; ++step) {
      const size_t which = runner.here() ? 0 : random() % 2;
      const Sparse& s = sparse[which];
      std::vector<double> s_values = s.values;
      std::optional<Chain::Value> own;
      if (which == 0 && random() % 2 == 0) {
        const size_t i = with_rows(s.nnz(), 1);
        own = values[i];
        s_values = models[i].at;
      }
      const uint32_t kind = random() % 6;
      if (kind < 2) {
        Chain::SpmmOptions options;
        options.transpose = random() % 2 == 0;
        options.alpha = random() % 2 == 0 ? 1 : -1;
        options.values = own;
        const size_t b = with_rows(options.transpose ? s.rows : s.cols, k);
        const size_t old = with_rows(options.transpose ? s.cols : s.rows, k);
        if (random() % 2 == 0) {
          options.beta = 2;
          options.accumulate = values[old];
        }
        Model model = Spmm(s, options.transpose, models[b], options.alpha, options.beta,
                           options.beta == 0 ? nullptr : &models[old], Nonzeros(s_values));
        if (!model.IsSmall()) continue;
        values.push_back(chain.Spmm(matrices[which], values[b], options));
        models.push_back(std::move(model));
      } else if (kind == 2) {
        Chain::SddmmOptions options;
        options.values = own;
        options.unscaled = !own && random() % 2 == 0;
        if (options.unscaled) s_values.assign(s_values.size(), 1);
        const size_t a = with_rows(s.rows, k), b = with_rows(s.cols, k);
        Model model = Sddmm(s, models[a], models[b], Nonzeros(s_values));
        if (!model.IsSmall()) continue;
        values.push_back(chain.Sddmm(matrices[which], values[a], values[b], options));
        models.push_back(std::move(model));
      } else if (kind == 3) {
        const Chain::ReduceOptions options = {.transpose = random() % 2 == 0, .values = own};
        const size_t b = with_rows(options.transpose ? s.rows : s.cols, k);
        Model positions;
        models.push_back(
            Reduce(s, options.transpose, Reduction::kMax, models[b], s_values, &positions));
        values.push_back(chain.Max(matrices[which], values[b], options));
      } else if (kind == 4 && which == 0) {
        Chain::ScaleOptions options = {.values = own};
        std::optional<size_t> rows;
        if (k == 1) rows = with_rows(s.rows, 1);
        if (rows) options.rows = values[*rows];
        Model model = Scale(s, Nonzeros(s_values), rows ? &models[*rows] : nullptr, nullptr);
        if (!model.IsSmall()) continue;
        values.push_back(chain.Scale(matrices[which], options));
        models.push_back(std::move(model));
      } else {
        const size_t first = random() % values.size();
        Model model = Model::Zeros(models[first].rows, models[first].cols);
        std::vector<Chain::Term> terms;
        for (uint32_t left = 1 + random() % 3; left > 0; --left) {
          const size_t i = with_rows(model.rows, model.cols);
          const double factor = static_cast<double>(random() % 5) - 2;
          terms.push_back({values[i], factor});
          for (size_t at = 0; at < model.at.size(); ++at) model.at[at] += factor * models[i].at[at];
        }
        if (!model.IsSmall()) continue;
        values.push_back(chain.Sum(terms));
        models.push_back(std::move(model));
      }
    }
    // Some of all values, operands too; the last always, one of them twice.
    std::vector<std::pair<size_t, std::unique_ptr<Place<T>>>> results;
    for (size_t i = 0; i < values.size() && results.size() < 14; ++i) {
      for (int twice = 0; twice < 2; ++twice) {
        if (i + 1 < values.size() && random() % 4 != 0) continue;
        results.emplace_back(i, std::make_unique<Place<T>>(runner, models[i], random));
        chain.Output(values[i], results.back().second->AsDestination());
      }
    }
    for (int again = 0; again < 2; ++again) {
      const auto done = runner.Run(matrices, chain);
      ASSERT_TRUE(done.ok()) << done.status();
      EXPECT_EQ(done->steps.size(), values.size() - operands.size());
      for (const auto& [value, place] : results) {
        SCOPED_TRACE(testing::Message() << "value " << value << " of " << values.size());
        place->Expect(models[value]);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

Model Softmax(const Sparse& s, const Model& x, double scale) {
  Model y = x;
  for (int64_t head = 0; head < x.cols; ++head) {
    const auto at = [&](int64_t i) { return i * x.cols + head; };
    for (int64_t row = 0; row < s.rows; ++row) {
      double greatest = -std::numeric_limits<double>::infinity(), sum = 0;
      const int64_t begin = s.offsets[row], end = s.offsets[row + 1];
      for (int64_t i = begin; i < end; ++i) greatest = std::max(greatest, scale * x.at[at(i)]);
      for (int64_t i = begin; i < end; ++i) sum += std::exp(scale * x.at[at(i)] - greatest);
      for (int64_t i = begin; i < end; ++i) {
        y.at[at(i)] = std::exp(scale * x.at[at(i)] - greatest) / sum;
      }
    }
  }
  return y;
}

Model SoftmaxGradient(const Sparse& s, const Model& y, const Model& dy, double scale) {
  Model dx = y;
  for (int64_t head = 0; head < y.cols; ++head) {
    const auto at = [&](int64_t i) { return i * y.cols + head; };
    for (int64_t row = 0; row < s.rows; ++row) {
      double sum = 0;
      for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
        sum += y.at[at(i)] * dy.at[at(i)];
      }
      for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
        dx.at[at(i)] = scale * y.at[at(i)] * (dy.at[at(i)] - sum);
      }
    }
  }
  return dx;
}

/// Attention along the nonzeros, forward and backward, as one chain.
template <typename T>
void CheckAttention(ChainRunner& runner, int64_t heads, double relative) {
  SCOPED_TRACE(testing::Message() << heads << " heads");
  std::mt19937 random(9);
  Sparse s = RandomSparse(40, 3000, false, random);
  // The first row is long, longer than what a warp takes.
  Sparse full = {1, 3000};
  for (int32_t col = 2999; col >= 0; --col) full.columns.push_back(col);
  full.values.assign(3000, 1);
  full.offsets.push_back(3000);
  for (int64_t& offset : s.offsets) offset += 3000;
  s.offsets.insert(s.offsets.begin(), 0);
  s.columns.insert(s.columns.begin(), full.columns.begin(), full.columns.end());
  s.values.insert(s.values.begin(), full.values.begin(), full.values.end());
  ++s.rows;
  const Matrix matrix = Send<T>(runner.client(), "attention", s);
  constexpr int64_t kDim = 12;
  constexpr double kScale = 0.25;
  std::vector<Model> in;
  std::vector<std::unique_ptr<Place<T>>> places;
  Chain chain;
  std::vector<Chain::Value> values;
  for (const int64_t rows : {s.rows, s.cols, s.cols, s.rows}) {
    Model model = Model::Zeros(rows, kDim);
    for (double& x : model.at) x = (static_cast<double>(random() % 9) - 4) / 4;
    places.push_back(std::make_unique<Place<T>>(runner, model, random));
    values.push_back(chain.Input(places.back()->AsOperand(model)));
    in.push_back(std::move(model));
  }
  const Chain::Value q = values[0], k = values[1], v = values[2], d_out = values[3];
  const Model ones = Nonzeros(std::vector<double>(s.columns.size(), 1));
  const auto scores = chain.Sddmm(matrix, q, k, {.unscaled = true, .heads = heads});
  const auto weights = chain.Softmax(matrix, scores, kScale);
  const auto out = chain.Spmm(matrix, v, {.values = weights});
  const auto d_v = chain.Spmm(matrix, d_out, {.transpose = true, .values = weights});
  const auto d_weights = chain.Sddmm(matrix, d_out, v, {.unscaled = true, .heads = heads});
  const auto d_scores = chain.SoftmaxGradient(matrix, weights, d_weights, kScale);
  const auto d_q = chain.Spmm(matrix, k, {.values = d_scores});
  const auto d_k = chain.Spmm(matrix, q, {.transpose = true, .values = d_scores});
  const Model m_weights = Softmax(s, Sddmm(s, in[0], in[1], ones, heads), kScale);
  const Model m_scores = SoftmaxGradient(s, m_weights, Sddmm(s, in[3], in[2], ones, heads), kScale);
  const std::vector<std::pair<Chain::Value, Model>> expected = {
      {weights, m_weights},
      {out, Spmm(s, false, in[2], 1, 0, nullptr, m_weights)},
      {d_v, Spmm(s, true, in[3], 1, 0, nullptr, m_weights)},
      {d_q, Spmm(s, false, in[1], 1, 0, nullptr, m_scores)},
      {d_k, Spmm(s, true, in[0], 1, 0, nullptr, m_scores)}};
  std::vector<std::unique_ptr<Place<T>>> results;
  for (const auto& [value, model] : expected) {
    results.push_back(std::make_unique<Place<T>>(runner, model, random));
    chain.Output(value, results.back()->AsDestination());
  }
  const auto done = runner.Run({matrix}, chain);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->steps[1].plan, "softmax");
  EXPECT_EQ(done->steps[5].plan, "softmax gradient");
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "attention in " << Name(kTypeOf<T>) << ", result " << i);
    results[i]->Expect(expected[i].second, relative);
  }

  // Masked nonzeros are zeros, unless a row has no others.
  Model x = Model::Zeros(s.nnz(), heads);
  for (double& at : x.at) {
    at = random() % 3 == 0 ? static_cast<double>(random() % 5) : -INFINITY;
  }
  for (int64_t i = s.offsets[1]; i < s.offsets[2]; ++i) x.at[i * heads] = -INFINITY;
  Place<T> from(runner, x, random), to(runner, x, random);
  Chain masked;
  masked.Output(masked.Softmax(matrix, masked.Input(from.AsOperand(x)), 2), to.AsDestination());
  ASSERT_TRUE(runner.Run({matrix}, masked).ok());
  to.Expect(Softmax(s, x, 2), relative);
}

/// Every step of nonzeros of several heads, alone, of small whole numbers.
template <typename T>
void CheckHeads(ChainRunner& runner, unsigned seed) {
  std::mt19937 random(seed);
  for (const bool ordered : {true, false}) {
    const Sparse s = RandomSparse(45, 31, ordered, random);
    const Matrix matrix = Send<T>(runner.client(), "heads", s);
    for (const auto& [heads, width] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 5}, {2, 4}, {3, 5}, {8, 8}, {6, 1}}) {
      SCOPED_TRACE(testing::Message() << Name(kTypeOf<T>) << ", " << heads << " heads of " << width
                                      << (ordered ? "" : ", not in order"));
      const int64_t k = heads * width;
      Chain chain;
      std::vector<std::unique_ptr<Place<T>>> places;
      const auto input = [&](int64_t rows, int64_t cols) {
        Model model = Model::Zeros(rows, cols);
        for (double& x : model.at) x = static_cast<double>(random() % 3) - 1;
        places.push_back(std::make_unique<Place<T>>(runner, model, random));
        return std::pair(chain.Input(places.back()->AsOperand(model)), model);
      };
      const auto [a, m_a] = input(s.rows, k);
      const auto [b, m_b] = input(s.cols, k);
      const auto [values, m_values] = input(s.nnz(), heads);
      const auto [single, m_single] = input(s.nnz(), 1);
      const auto [rows, m_rows] = input(s.rows, heads);
      const auto [cols, m_cols] = input(s.cols, 1);
      const Model own = Nonzeros(s.values);
      const auto dots = chain.Sddmm(matrix, a, b, {.values = values, .heads = heads});
      const Model m_dots = Sddmm(s, m_a, m_b, m_values, heads);
      const auto scaled = chain.Scale(matrix, {.values = dots, .rows = rows, .cols = cols});
      const Model m_scaled = Scale(s, m_dots, &m_rows, &m_cols);
      Model m_sum = m_dots;
      for (size_t i = 0; i < m_sum.at.size(); ++i) m_sum.at[i] = 2 * m_dots.at[i] - m_values.at[i];
      const std::vector<std::pair<Chain::Value, Model>> expected = {
          {chain.Spmm(matrix, b, {.values = values}), Spmm(s, false, m_b, 1, 0, nullptr, m_values)},
          {chain.Spmm(matrix, a, {.transpose = true, .values = values}),
           Spmm(s, true, m_a, 1, 0, nullptr, m_values)},
          {chain.Spmm(matrix, b, {.alpha = -1, .beta = 2, .accumulate = a, .values = values}),
           Spmm(s, false, m_b, -1, 2, &m_a, m_values)},
          // What the server itself made: in its order, not the caller's.
          {chain.Spmm(matrix, a, {.transpose = true, .beta = 1, .accumulate = b, .values = scaled}),
           Spmm(s, true, m_a, 1, 1, &m_b, m_scaled)},
          {dots, m_dots},
          {scaled, m_scaled},
          {chain.Sddmm(matrix, a, b, {.heads = heads}), Sddmm(s, m_a, m_b, own, heads)},
          {chain.Sddmm(matrix, a, b, {.values = single, .heads = heads}),
           Sddmm(s, m_a, m_b, m_single, heads)},
          {chain.Scale(matrix, {.cols = cols}), Scale(s, own, nullptr, &m_cols)},
          {chain.Total(matrix, {.values = scaled}), Total(s, false, m_scaled)},
          {chain.Total(matrix, {.transpose = true, .values = values}), Total(s, true, m_values)},
          {chain.Total(matrix), Total(s, false, own)},
          {chain.Total(matrix, {.transpose = true}), Total(s, true, own)},
          // Values in two orders.
          {chain.Sum({{dots, 2}, {values, -1}}), m_sum},
      };
      std::vector<std::unique_ptr<Place<T>>> results;
      for (const auto& [value, model] : expected) {
        ASSERT_TRUE(std::ranges::all_of(model.at, [](double x) { return std::abs(x) <= 256; }));
        results.push_back(std::make_unique<Place<T>>(runner, model, random));
        chain.Output(value, results.back()->AsDestination());
      }
      for (int again = 0; again < 2; ++again) {
        const auto done = runner.Run({matrix}, chain);
        ASSERT_TRUE(done.ok()) << done.status();
        EXPECT_EQ(done->steps[1].plan, "scale");
        EXPECT_EQ(done->steps[10].plan, "total");
        EXPECT_EQ(done->steps[0].plan.find("head_dots") != std::string::npos, heads > 1)
            << done->steps[0].plan;
        EXPECT_EQ(done->steps[3].plan.find("head_products") != std::string::npos, heads > 1)
            << done->steps[3].plan;
        for (size_t i = 0; i < expected.size(); ++i) {
          SCOPED_TRACE(testing::Message() << "result " << i);
          results[i]->Expect(expected[i].second);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

/// Means, greatest and least ones, and which nonzeros those are of.
template <typename T>
void CheckReductions(ChainRunner& runner, unsigned seed, double relative) {
  std::mt19937 random(seed);
  for (const bool ordered : {true, false}) {
    const Sparse s = RandomSparse(45, 31, ordered, random);
    const Matrix matrix = Send<T>(runner.client(), "reductions", s);
    for (const int64_t k : {1, 3, 8}) {
      for (const bool transpose : {false, true}) {
        Chain chain;
        const int64_t in = transpose ? s.rows : s.cols;
        Model m_b = Model::Zeros(in, k), m_own = Model::Zeros(s.nnz(), 1);
        for (double& x : m_b.at) x = static_cast<double>(random() % 9) - 4;
        for (double& x : m_own.at) x = static_cast<double>(random() % 3) - 1;
        m_b.at[random() % m_b.at.size()] = std::numeric_limits<double>::quiet_NaN();
        m_b.at[random() % m_b.at.size()] = INFINITY;
        m_b.at[random() % m_b.at.size()] = -INFINITY;
        Place<T> b_place(runner, m_b, random), own_place(runner, m_own, random);
        const auto b = chain.Input(b_place.AsOperand(m_b));
        const auto own = chain.Input(own_place.AsOperand(m_own));
        const std::vector<double> ones(s.columns.size(), 1);
        std::vector<Model> expected, expected_which;
        std::vector<std::unique_ptr<Place<T>>> results;
        std::vector<std::unique_ptr<Place<int64_t>>> positions;
        std::vector<std::string> plans;
        const auto add = [&](Reduction reduction, const Chain::ReduceOptions& options,
                             const std::vector<double>& values) {
          Model which;
          expected.push_back(Reduce(s, transpose, reduction, m_b, values, &which));
          results.push_back(std::make_unique<Place<T>>(runner, expected.back(), random));
          plans.push_back(reduction == Reduction::kMean  ? "mean"
                          : reduction == Reduction::kMax ? "max"
                                                         : "min");
          if (reduction == Reduction::kMean) {
            chain.Output(chain.Mean(matrix, b, options), results.back()->AsDestination());
            return;
          }
          const Chain::Best best = reduction == Reduction::kMax
                                       ? chain.MaxAndWhich(matrix, b, options)
                                       : chain.MinAndWhich(matrix, b, options);
          chain.Output(best.value, results.back()->AsDestination());
          positions.push_back(std::make_unique<Place<int64_t>>(runner, which, random));
          expected_which.push_back(which);
          chain.Output(best.which, positions.back()->AsDestination());
        };
        for (const Reduction reduction : {Reduction::kMean, Reduction::kMax, Reduction::kMin}) {
          add(reduction, {.transpose = transpose}, s.values);
          add(reduction, {.transpose = transpose, .values = own}, m_own.at);
          add(reduction, {.transpose = transpose, .unscaled = true}, ones);
        }
        // Of which nobody wants to know which.
        Model which;
        expected.push_back(Reduce(s, transpose, Reduction::kMin, m_b, s.values, &which));
        results.push_back(std::make_unique<Place<T>>(runner, expected.back(), random));
        plans.emplace_back("min");
        chain.Output(chain.Min(matrix, b, {.transpose = transpose}),
                     results.back()->AsDestination());
        const auto done = runner.Run({matrix}, chain);
        ASSERT_TRUE(done.ok()) << done.status();
        ASSERT_EQ(done->steps.size(), plans.size());
        for (size_t i = 0; i < plans.size(); ++i) {
          // A GPU's has the sum's plan behind it.
          const std::string& plan = done->steps[i].plan;
          EXPECT_EQ(plan.substr(0, plan.find(',')), plans[i]);
        }
        for (size_t i = 0; i < results.size(); ++i) {
          SCOPED_TRACE(testing::Message() << Name(kTypeOf<T>) << " result " << i << " of " << k
                                          << (transpose ? " columns, transposed" : " columns")
                                          << (ordered ? "" : ", not in order"));
          results[i]->Expect(expected[i], relative);
          if (testing::Test::HasFatalFailure()) return;
        }
        for (size_t i = 0; i < positions.size(); ++i) {
          SCOPED_TRACE(testing::Message() << "positions " << i);
          positions[i]->Expect(expected_which[i]);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

void CheckRefusals(ChainRunner& runner) {
  std::mt19937 random(5);
  const Sparse s = RandomSparse(45, 31, true, random);
  const Client& client = runner.client();
  const Matrix matrix = Send<float>(client, "refusals", s);
  std::vector<float> b(31 * 4), c(45 * 4), o(static_cast<size_t>(s.nnz()));
  const DenseView b_view(b.data(), 31, 4);
  const MutableDenseView c_view(c.data(), 45, 4);
  const auto expect = [&](const Chain& chain, absl::StatusCode code, std::string_view sentence) {
    const absl::Status status = runner.Run({matrix}, chain).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(std::string(status.message()).find(sentence), std::string::npos)
        << status << "\nexpected: " << sentence;
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  {
    Chain chain;
    expect(chain, kInvalid, "a chain has 1 to 64 operands, not 0");
    const auto x = chain.Input(b_view);
    expect(chain, kInvalid, "a chain has 1 to 1024 steps, not 0");
    const auto y = chain.Spmm(matrix, x);
    expect(chain, kInvalid, "a chain has 1 to 16 results, not 0");
    chain.Spmm(matrix, y);
    chain.Output(y, c_view);
    expect(chain, kInvalid, "step 1: B, value 1, is 45 x 4 f32, expected 31 x K f32");
  }
  {
    Chain other;
    const auto foreign = other.Input(b_view);
    Chain chain;
    chain.Output(chain.Spmm(matrix, chain.Input(b_view)), c_view);
    chain.Spmm(matrix, foreign);
    expect(chain, kInvalid, "a step or a result is of a value of another chain");
  }
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    chain.Output(chain.Spmm(client.MatrixNamed("nobody"), x), c_view);
    expect(chain, absl::StatusCode::kNotFound, "nobody");
  }
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    const auto y = chain.Spmm(matrix, x);
    chain.Output(chain.Sum({{x, 1}, {y, 1}}), c_view);
    expect(chain, kInvalid, "step 1: a term, value 1, is 45 x 4 f32, expected 31 x 4 f32");
  }
  {
    Chain chain;
    chain.Input(b_view);
    chain.Output(chain.Sum({}), c_view);
    expect(chain, kInvalid, "step 0: a sum has 1 to 64 terms, not 0");
  }
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    const auto y = chain.Spmm(matrix, x);
    const auto edges = chain.Sddmm(matrix, y, x, {.unscaled = true, .values = y});
    chain.Output(edges, MutableDenseView(o.data(), s.nnz(), 1));
    expect(chain, kInvalid, "step 1: S has values, but the product is unscaled");
  }
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    chain.Output(chain.Softmax(matrix, x), c_view);
    expect(chain, kInvalid, "step 0: its value, value 0, is 31 x 4 f32, expected ");
  }
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    chain.Output(chain.Spmm(matrix, x, {.beta = 1, .accumulate = x}), c_view);
    expect(chain, kInvalid, "step 0: C, value 0, is 31 x 4 f32, expected 45 x 4 f32");
  }
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    chain.Output(chain.Spmm(matrix, x, {.beta = 1}), c_view);
    expect(chain, kInvalid, "step 0: beta is 1, but there is no value to accumulate to");
  }
  {
    // Of as many elements.
    Chain chain;
    chain.Output(chain.Spmm(matrix, chain.Input(b_view)), MutableDenseView(c.data(), 4, 45));
    expect(chain, kInvalid, "result 0: it is 45 x 4 f32, its destination 4 x 45 f32");
  }
  {
    std::vector<double> wide(31 * 4);
    Chain chain;
    const auto x = chain.Input(DenseView(wide.data(), 31, 4));
    chain.Output(chain.Spmm(matrix, x), c_view);
    expect(chain, kInvalid, "");
  }
  std::vector<float> values(static_cast<size_t>(s.nnz() * 3));
  const DenseView three(values.data(), s.nnz(), 3);
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    chain.Output(chain.Spmm(matrix, x, {.values = chain.Input(three)}), c_view);
    expect(chain, kInvalid, "step 0: B has 4 columns, which 3 heads do not divide");
  }
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    const auto y = chain.Spmm(matrix, x);
    chain.Output(chain.Sddmm(matrix, y, x, {.heads = 3}),
                 MutableDenseView(values.data(), s.nnz(), 3));
    expect(chain, kInvalid, "step 1: A has 4 columns, which 3 heads do not divide");
  }
  for (const int64_t heads : {int64_t{0}, int64_t{-1}, int64_t{1} << 32}) {
    Chain chain;
    const auto x = chain.Input(b_view);
    const auto y = chain.Spmm(matrix, x);
    chain.Output(chain.Sddmm(matrix, y, x, {.heads = heads}),
                 MutableDenseView(o.data(), s.nnz(), 1));
    expect(chain, kInvalid, fmt::format("step 1: {} heads, expected 1 or more", heads));
  }
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    const auto y = chain.Spmm(matrix, x);
    const auto edges = chain.Sddmm(matrix, y, x, {.values = chain.Input(three), .heads = 2});
    chain.Output(edges, MutableDenseView(values.data(), s.nnz(), 2));
    expect(chain, kInvalid, "step 1: S's values are of 3 heads, the product of 2");
  }
  {
    Chain chain;
    const auto x = chain.Input(three);
    chain.Output(chain.SoftmaxGradient(matrix, x, chain.Scale(matrix, {})), c_view);
    expect(chain, kInvalid, "step 1: the gradient, value 1, is ");
  }
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    chain.Output(chain.Mean(matrix, x, {.values = chain.Scale(matrix, {}), .unscaled = true}),
                 c_view);
    expect(chain, kInvalid, "step 1: S has values, but the reduction is unscaled");
  }
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    chain.Output(chain.Max(matrix, x, {.values = chain.Input(three)}), c_view);
    expect(chain, kInvalid, "step 0: S's values, value 1, is ");
  }
  {
    Chain chain;
    chain.Output(chain.Min(matrix, chain.Input(b_view), {.transpose = true}), c_view);
    expect(chain, kInvalid, "step 0: B, value 0, is 31 x 4 f32, expected 45 x K f32");
  }
  {
    Chain chain;
    const auto x = chain.Input(b_view);
    chain.Output(chain.Scale(matrix, {.rows = x}), MutableDenseView(o.data(), s.nnz(), 1));
    expect(chain, kInvalid, "step 0: what rows are scaled by, value 0, is 31 x 4 f32, expected 45");
  }
  {
    Chain chain;
    chain.Output(chain.Total(matrix, {.values = chain.Input(b_view)}), c_view);
    expect(chain, kInvalid, "step 0: its value, value 0, is 31 x 4 f32, expected ");
  }
  {
    Chain chain;
    const Chain::Best best = chain.MaxAndWhich(matrix, chain.Input(b_view), {});
    chain.Output(chain.Spmm(matrix, best.which, {.transpose = true}), c_view);
    expect(chain, kInvalid,
           "step 1: B is value 2, a reduction's arguments, which are for results alone");
    Chain sum;
    const Chain::Best other = sum.MaxAndWhich(matrix, sum.Input(b_view), {});
    sum.Output(sum.Sum({{other.which, 1}}), c_view);
    expect(sum, kInvalid,
           "step 1: a term is value 2, a reduction's arguments, which are for results alone");
  }
  {
    // Of other types.
    std::vector<int64_t> which(45 * 4);
    Chain chain;
    const Chain::Best best = chain.MaxAndWhich(matrix, chain.Input(b_view), {});
    chain.Output(best.which, c_view);
    expect(chain, kInvalid, "result 0: it is 45 x 4 i64, its destination 45 x 4 f32");
    Chain swapped;
    const Chain::Best other = swapped.MaxAndWhich(matrix, swapped.Input(b_view), {});
    swapped.Output(other.value, MutableDenseView(which.data(), 45, 4));
    expect(swapped, kInvalid, "result 0: it is 45 x 4 f32, its destination 45 x 4 i64");
    const auto held = client.PutZeros("which", ValueType::kF32, 45, 4);
    ASSERT_TRUE(held.ok()) << held.status();
    Chain holding;
    const Chain::Best third = holding.MaxAndWhich(matrix, holding.Input(b_view), {});
    holding.Output(third.which, *held);
    expect(holding, kInvalid,
           "result 0: the result is 45 x 4 i64, but the buffer 'which' is 45 x 4 f32");
    EXPECT_EQ(client.PutZeros("no", ValueType::kI64, 45, 4).status().code(), kInvalid);
  }
  {
    const auto shared = client.AllocateShared(45, 8);
    ASSERT_TRUE(shared.ok());
    auto* const data = static_cast<float*>(shared->data());
    std::fill_n(data, 45 * 8, 1.0F);
    Chain chain;
    const auto y = chain.Spmm(matrix, chain.Input(b_view));
    chain.Output(y, MutableDenseView(data, 45, 4));
    chain.Output(y, MutableDenseView(data + 64, 45, 4));
    expect(chain, kInvalid, "result 1 shares memory with another result");
  }
}

/// Cancelled between its steps, it leaves nothing.
void CheckEarlyEnds(const Client& client) {
  std::mt19937 random(6);
  constexpr int64_t kRows = 3000, kColumns = 64;
  const Matrix matrix = Send<float>(client, "long", RandomSparse(kRows, kRows, true, random));
  std::vector<float> b(kRows * kColumns), c(kRows * kColumns);
  Chain chain;
  auto x = chain.Input(DenseView(b.data(), kRows, kColumns));
  for (int i = 0; i < 1024; ++i) x = chain.Spmm(matrix, x);
  chain.Output(x, MutableDenseView(c.data(), kRows, kColumns));
  const auto status = client.Run(chain, {.timeout = std::chrono::milliseconds(1)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  Call<ComputeResult> call = client.RunAsync(chain);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  call.Cancel();
  const absl::Status cancelled = call.Wait().status();
  // A fast card may have been faster.
  EXPECT_TRUE(cancelled.ok() || absl::IsCancelled(cancelled)) << cancelled;
  const auto requests = [&] { return client.GetStats()->memory_bytes.at("requests"); };
  // Worker slots keep small workspaces.
  EXPECT_TRUE(Eventually([&] { return requests() < int64_t{2} << 20; })) << requests();
}

}  // namespace

void CheckChains(ChainRunner& runner) {
  CheckRandomChains<float>(runner, 1, 12);
  CheckRandomChains<double>(runner, 2, 6);
  CheckRandomChains<Float16>(runner, 3, 6);
  CheckRandomChains<BFloat16>(runner, 4, 6);
  for (const int64_t heads : {1, 3}) {
    CheckAttention<float>(runner, heads, 2e-5);
    CheckAttention<double>(runner, heads, 1e-12);
    CheckAttention<Float16>(runner, heads, 1e-2);
    CheckAttention<BFloat16>(runner, heads, 1e-1);
  }
  CheckHeads<float>(runner, 11);
  CheckHeads<double>(runner, 12);
  CheckHeads<Float16>(runner, 13);
  CheckHeads<BFloat16>(runner, 14);
  CheckReductions<float>(runner, 21, 1e-6);
  CheckReductions<double>(runner, 22, 1e-14);
  CheckReductions<Float16>(runner, 23, 1e-3);
  CheckReductions<BFloat16>(runner, 24, 8e-3);
  CheckFusedAttention(runner);
  if (const std::unique_ptr<DeviceBytes> device = runner.Allocate(1); device != nullptr) return;
  CheckRefusals(runner);
  CheckAttentionRefusals(runner);
  if (!runner.here()) CheckEarlyEnds(runner.client());
}

}  // namespace sparsed::test
