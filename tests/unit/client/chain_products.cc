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
#include "tests/unit/client/eventually.h"

namespace sparsed::test {
namespace {

template <typename T>
constexpr ValueType kTypeOf = std::is_same_v<T, float>     ? ValueType::kF32
                              : std::is_same_v<T, double>  ? ValueType::kF64
                              : std::is_same_v<T, Float16> ? ValueType::kF16
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

Sparse RandomSparse(int64_t rows, int64_t cols, bool ordered, std::mt19937& random) {
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

Model Spmm(const Sparse& s, bool transpose, const Model& b, double alpha, double beta,
           const Model* old, const std::vector<double>& values) {
  Model c = Model::Zeros(transpose ? s.cols : s.rows, b.cols);
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      const int64_t to = transpose ? s.columns[i] : row, from = transpose ? row : s.columns[i];
      for (int64_t j = 0; j < b.cols; ++j) {
        c.at[to * b.cols + j] += alpha * values[i] * b.at[from * b.cols + j];
      }
    }
  }
  if (old != nullptr) {
    for (size_t i = 0; i < c.at.size(); ++i) c.at[i] += beta * old->at[i];
  }
  return c;
}

Model Sddmm(const Sparse& s, const Model& a, const Model& b, const std::vector<double>& values) {
  Model o = Model::Zeros(s.nnz(), 1);
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < a.cols; ++j) {
        sum += a.at[row * a.cols + j] * b.at[s.columns[i] * a.cols + j];
      }
      o.at[i] = values[i] * sum;
    }
  }
  return o;
}

/// A dense matrix of the caller's: in memory of its own, shared, or held by the server.
template <typename T>
class Place {
 public:
  Place(const Client& client, const Model& shape, std::mt19937& random)
      : client_(client), rows_(shape.rows), cols_(shape.cols) {
    kind_ = random() % 3;
    stride_ = cols_ + (kind_ == 2 || cols_ == 1 ? 0 : static_cast<int64_t>(random() % 3));
    if (kind_ == 1) {
      auto shared = client.AllocateShared(std::max<int64_t>(rows_, 1), stride_, kTypeOf<T>);
      EXPECT_TRUE(shared.ok()) << shared.status();
      shared_.push_back(*shared);
    }
    own_.resize(static_cast<size_t>(rows_ * stride_));
    std::fill_n(data(), rows_ * stride_, As<T>(768));
  }
  Operand AsOperand(const Model& model) {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < cols_; ++j) {
        data()[i * stride_ + j] = As<T>(model.at[i * cols_ + j]);
      }
    }
    const DenseView view(data(), kTypeOf<T>, rows_, cols_, stride_);
    if (kind_ != 2) return view;
    auto held = client_.PutDense(Name(), view);
    EXPECT_TRUE(held.ok()) << held.status();
    return *held;
  }
  Destination AsDestination() {
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

/// Chains of random steps over two matrices.
template <typename T>
void CheckRandomChains(const Client& client, unsigned seed, int chains) {
  std::mt19937 random(seed);
  const std::vector<Sparse> sparse = {RandomSparse(45, 45, false, random),
                                      RandomSparse(45, 31, true, random)};
  const std::vector<Matrix> matrices = {Send<T>(client, "square", sparse[0]),
                                        Send<T>(client, "tall", sparse[1])};
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
      operands.push_back(std::make_unique<Place<T>>(client, model, random));
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
      const size_t which = random() % 2;
      const Sparse& s = sparse[which];
      std::vector<double> s_values = s.values;
      std::optional<Chain::Value> own;
      if (which == 0 && random() % 2 == 0) {
        const size_t i = with_rows(s.nnz(), 1);
        own = values[i];
        s_values = models[i].at;
      }
      const uint32_t kind = random() % 4;
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
                           options.beta == 0 ? nullptr : &models[old], s_values);
        if (!model.IsSmall()) continue;
        values.push_back(chain.Spmm(matrices[which], values[b], options));
        models.push_back(std::move(model));
      } else if (kind == 2) {
        Chain::SddmmOptions options;
        options.values = own;
        options.unscaled = !own && random() % 2 == 0;
        if (options.unscaled) s_values.assign(s_values.size(), 1);
        const size_t a = with_rows(s.rows, k), b = with_rows(s.cols, k);
        Model model = Sddmm(s, models[a], models[b], s_values);
        if (!model.IsSmall()) continue;
        values.push_back(chain.Sddmm(matrices[which], values[a], values[b], options));
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
        results.emplace_back(i, std::make_unique<Place<T>>(client, models[i], random));
        chain.Output(values[i], results.back().second->AsDestination());
      }
    }
    for (int again = 0; again < 2; ++again) {
      const auto done = client.Run(chain);
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
  for (int64_t row = 0; row < s.rows; ++row) {
    double greatest = -std::numeric_limits<double>::infinity(), sum = 0;
    const int64_t begin = s.offsets[row], end = s.offsets[row + 1];
    for (int64_t i = begin; i < end; ++i) greatest = std::max(greatest, scale * x.at[i]);
    for (int64_t i = begin; i < end; ++i) sum += std::exp(scale * x.at[i] - greatest);
    for (int64_t i = begin; i < end; ++i) y.at[i] = std::exp(scale * x.at[i] - greatest) / sum;
  }
  return y;
}

Model SoftmaxGradient(const Sparse& s, const Model& y, const Model& dy, double scale) {
  Model dx = y;
  for (int64_t row = 0; row < s.rows; ++row) {
    double sum = 0;
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) sum += y.at[i] * dy.at[i];
    for (int64_t i = s.offsets[row]; i < s.offsets[row + 1]; ++i) {
      dx.at[i] = scale * y.at[i] * (dy.at[i] - sum);
    }
  }
  return dx;
}

/// Attention along the nonzeros, forward and backward, as one chain.
template <typename T>
void CheckAttention(const Client& client, double relative) {
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
  const Matrix matrix = Send<T>(client, "attention", s);
  constexpr int64_t kDim = 12;
  constexpr double kScale = 0.25;
  std::vector<Model> in;
  std::vector<std::unique_ptr<Place<T>>> places;
  Chain chain;
  std::vector<Chain::Value> values;
  for (const int64_t rows : {s.rows, s.cols, s.cols, s.rows}) {
    Model model = Model::Zeros(rows, kDim);
    for (double& x : model.at) x = (static_cast<double>(random() % 9) - 4) / 4;
    places.push_back(std::make_unique<Place<T>>(client, model, random));
    values.push_back(chain.Input(places.back()->AsOperand(model)));
    in.push_back(std::move(model));
  }
  const Chain::Value q = values[0], k = values[1], v = values[2], d_out = values[3];
  const std::vector<double> ones(s.columns.size(), 1);
  const auto scores = chain.Sddmm(matrix, q, k, {.unscaled = true});
  const auto weights = chain.Softmax(matrix, scores, kScale);
  const auto out = chain.Spmm(matrix, v, {.values = weights});
  const auto d_v = chain.Spmm(matrix, d_out, {.transpose = true, .values = weights});
  const auto d_weights = chain.Sddmm(matrix, d_out, v, {.unscaled = true});
  const auto d_scores = chain.SoftmaxGradient(matrix, weights, d_weights, kScale);
  const auto d_q = chain.Spmm(matrix, k, {.values = d_scores});
  const auto d_k = chain.Spmm(matrix, q, {.transpose = true, .values = d_scores});
  const Model m_weights = Softmax(s, Sddmm(s, in[0], in[1], ones), kScale);
  const Model m_scores = SoftmaxGradient(s, m_weights, Sddmm(s, in[3], in[2], ones), kScale);
  const std::vector<std::pair<Chain::Value, Model>> expected = {
      {weights, m_weights},
      {out, Spmm(s, false, in[2], 1, 0, nullptr, m_weights.at)},
      {d_v, Spmm(s, true, in[3], 1, 0, nullptr, m_weights.at)},
      {d_q, Spmm(s, false, in[1], 1, 0, nullptr, m_scores.at)},
      {d_k, Spmm(s, true, in[0], 1, 0, nullptr, m_scores.at)}};
  std::vector<std::unique_ptr<Place<T>>> results;
  for (const auto& [value, model] : expected) {
    results.push_back(std::make_unique<Place<T>>(client, model, random));
    chain.Output(value, results.back()->AsDestination());
  }
  const auto done = client.Run(chain);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->steps[1].plan, "softmax");
  EXPECT_EQ(done->steps[5].plan, "softmax gradient");
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "attention in " << Name(kTypeOf<T>) << ", result " << i);
    results[i]->Expect(expected[i].second, relative);
  }

  // Masked nonzeros are zeros, unless a row has no others.
  Model x = Model::Zeros(s.nnz(), 1);
  for (double& at : x.at) {
    at = random() % 3 == 0 ? static_cast<double>(random() % 5) : -INFINITY;
  }
  for (int64_t i = s.offsets[1]; i < s.offsets[2]; ++i) x.at[i] = -INFINITY;
  Place<T> from(client, x, random), to(client, x, random);
  Chain masked;
  masked.Output(masked.Softmax(matrix, masked.Input(from.AsOperand(x)), 2), to.AsDestination());
  ASSERT_TRUE(client.Run(masked).ok());
  to.Expect(Softmax(s, x, 2), relative);
}

void CheckRefusals(const Client& client) {
  std::mt19937 random(5);
  const Sparse s = RandomSparse(45, 31, true, random);
  const Matrix matrix = Send<float>(client, "refusals", s);
  std::vector<float> b(31 * 4), c(45 * 4), o(static_cast<size_t>(s.nnz()));
  const DenseView b_view(b.data(), 31, 4);
  const MutableDenseView c_view(c.data(), 45, 4);
  const auto expect = [&](const Chain& chain, absl::StatusCode code, std::string_view sentence) {
    const absl::Status status = client.Run(chain).status();
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
  // Lanes keep small workspaces.
  EXPECT_TRUE(Eventually([&] { return requests() < int64_t{2} << 20; })) << requests();
}

}  // namespace

void CheckChains(const Client& client) {
  CheckRandomChains<float>(client, 1, 12);
  CheckRandomChains<double>(client, 2, 6);
  CheckRandomChains<Float16>(client, 3, 6);
  CheckRandomChains<BFloat16>(client, 4, 6);
  CheckAttention<float>(client, 2e-5);
  CheckAttention<double>(client, 1e-12);
  CheckAttention<Float16>(client, 1e-2);
  CheckAttention<BFloat16>(client, 1e-1);
  CheckRefusals(client);
  CheckEarlyEnds(client);
}

}  // namespace sparsed::test
