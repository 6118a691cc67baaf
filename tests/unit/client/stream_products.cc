#include "tests/unit/client/stream_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <thread>
#include <type_traits>
#include <vector>

#include "sparsed/chain.h"
#include "sparsed/client.h"
#include "tests/unit/client/client_matrices.h"

namespace sparsed::test {
namespace {

/// Odd ones, and every operand and result but SDDMM's and S's values is large.
constexpr int64_t kRows = 1501, kCols = 1203, kWidth = 1001;

Client ConnectTo(const std::string& address, int streams) {
  auto client = Client::Connect(address, {.streams = streams});
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

/// Small whole numbers: whatever the order of summation, the sums are exact.
template <typename T>
std::vector<T> Numbers(int64_t count, unsigned seed) {
  const std::vector<float> numbers = RandomDense(count, seed);
  return {numbers.begin(), numbers.end()};
}

/// What several products, in all ways that have chunks, leave in their destinations.
template <typename T>
std::vector<std::vector<T>> Products(const Client& client, const std::string& name, int64_t nnz) {
  const Matrix s = client.MatrixNamed(name);
  std::vector<std::vector<T>> results;
  const T poison = std::numeric_limits<T>::max();
  const auto result = [&](int64_t elements) -> std::vector<T>& {
    return results.emplace_back(static_cast<size_t>(elements), poison);
  };
  const std::vector<T> b = Numbers<T>(kCols * kWidth, 1), a = Numbers<T>(kRows * kWidth, 2);
  results.reserve(16);
  const auto expect = [](const absl::StatusOr<ComputeResult>& done) {
    EXPECT_TRUE(done.ok()) << done.status();
  };
  {
    std::vector<T>& c = result(kRows * kWidth);
    expect(s.Spmm(DenseView(b.data(), kCols, kWidth), MutableDenseView(c.data(), kRows, kWidth)));
  }
  {
    std::vector<T>& c = result(kCols * kWidth);
    expect(s.Spmm(DenseView(a.data(), kRows, kWidth), MutableDenseView(c.data(), kCols, kWidth),
                  {.transpose = true, .alpha = 2}));
  }
  {
    // Gaps between the rows of all of them, and what was there is added.
    constexpr int64_t kStride = kWidth + 3;
    const std::vector<T> wide = Numbers<T>(kCols * kStride, 3);
    std::vector<T>& c = result(kRows * kStride);
    std::ranges::copy(Numbers<T>(kRows * kStride, 4), c.begin());
    expect(s.Spmm(DenseView(wide.data(), kCols, kWidth, kStride),
                  MutableDenseView(c.data(), kRows, kWidth, kStride), {.beta = -1}));
  }
  const std::vector<T> values = Numbers<T>(nnz, 5);
  {
    std::vector<T>& c = result(kRows * kWidth);
    SpmmOptions options;
    options.values = DenseView(values.data(), nnz, 1);
    expect(s.Spmm(DenseView(b.data(), kCols, kWidth), MutableDenseView(c.data(), kRows, kWidth),
                  options));
  }
  {
    std::vector<T>& products = result(nnz);
    expect(s.Sddmm(DenseView(a.data(), kRows, kWidth), DenseView(b.data(), kCols, kWidth),
                   MutableDenseView(products.data(), nnz, 1)));
  }
  {
    std::vector<T>& products = result(nnz);
    std::vector<T>& c = result(kRows * kWidth);
    std::vector<T>& sum = result(kRows * kWidth);
    Chain chain;
    const auto x = chain.Input(DenseView(a.data(), kRows, kWidth));
    const auto y = chain.Input(DenseView(b.data(), kCols, kWidth));
    const auto p = chain.Sddmm(s, x, y, {.unscaled = true});
    const auto z = chain.Spmm(s, y);
    chain.Output(p, MutableDenseView(products.data(), nnz, 1));
    chain.Output(z, MutableDenseView(c.data(), kRows, kWidth));
    chain.Output(chain.Sum({{x, 2}, {z, -1}}), MutableDenseView(sum.data(), kRows, kWidth));
    expect(client.Run(chain));
  }
  return results;
}

template <typename T>
void CheckStreamsOf(const std::string& address, const CarriedBytes& carried) {
  CsrMatrix s = RandomMatrix(kRows, kCols, 7);
  if constexpr (std::is_same_v<T, double>) {
    const std::vector<float> narrow = F32(s);
    s.values = std::vector<double>(narrow.begin(), narrow.end());
  }
  const Client one = ConnectTo(address, 1);
  ASSERT_TRUE(one.Upload("s", s.View(), {.replace = true}).ok());
  const double at_first = carried("in");
  const auto expected = Products<T>(one, "s", s.nnz());
  EXPECT_EQ(carried("in"), at_first);
  for (const int streams : {2, 4}) {
    const Client several = ConnectTo(address, streams);
    // The first of each kind may go over one stream; all are right.
    const double in = carried("in"), out = carried("out");
    bool used = false;
    for (int round = 0; round < 50 && !used; ++round) {
      const auto got = Products<T>(several, "s", s.nnz());
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i] == expected[i]) << i;
      used = carried("in") > in && carried("out") > out;
    }
    EXPECT_TRUE(used);
  }
}

}  // namespace

void CheckStreams(const std::string& address, const CarriedBytes& carried) {
  CheckStreamsOf<float>(address, carried);
  CheckStreamsOf<double>(address, carried);
}

void CheckStreamsAtOnce(const std::string& address, const CarriedBytes& carried) {
  const CsrMatrix s = RandomMatrix(kRows, kCols, 7);
  const Client client = ConnectTo(address, 3);
  ASSERT_TRUE(client.Upload("s", s.View()).ok());
  const Matrix matrix = client.MatrixNamed("s");
  const std::vector<float> b = RandomDense(kCols * kWidth, 1);
  const std::vector<float> expected = Multiply(s, false, b, kWidth);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      std::vector<float> c(expected.size());
      for (int round = 0; round < 4; ++round) {
        std::ranges::fill(c, kPoison);
        auto call = matrix.SpmmAsync(DenseView(b.data(), kCols, kWidth),
                                     MutableDenseView(c.data(), kRows, kWidth));
        if (round == 2) call.Cancel();
        const auto done = call.Wait();
        if (round == 2 && !done.ok()) continue;
        EXPECT_TRUE(done.ok()) << done.status();
        EXPECT_TRUE(c == expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(carried("in"), 0);
}

}  // namespace sparsed::test
