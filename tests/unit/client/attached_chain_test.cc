// Chains that callers run themselves, beside the server's program.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sparsed/attached.h"
#include "sparsed/chain.h"
#include "tests/unit/client/chain_models.h"
#include "tests/unit/client/chain_products.h"
#include "tests/unit/client/client_testing.h"
#include "tests/unit/client/server_process.h"

namespace sparsed::test {
namespace {

AttachedMatrix Attach(const Client& client, const std::string& name, int threads = 2) {
  auto attached = AttachedMatrix::Attach(client, name, {.threads = threads});
  if (!attached.ok()) {
    ADD_FAILURE() << attached.status();
    std::abort();
  }
  return *std::move(attached);
}

/// Each chain on the server, and here.
class HereAndThere final : public ChainRunner {
 public:
  using ChainRunner::ChainRunner;
  absl::StatusOr<ComputeResult> Run(const std::vector<Matrix>& of, const Chain& chain) override {
    const auto there = ChainRunner::Run(of, chain);
    const std::string& name = of[0].name();
    if (!attached_.contains(name)) attached_.emplace(name, Attach(client(), name));
    auto here = attached_.at(name).Run(chain);
    EXPECT_EQ(here.status().code(), there.status().code());
    EXPECT_EQ(here.status().message(), there.status().message());
    if (!here.ok() || !there.ok()) return here;
    EXPECT_EQ(here->transport, Transport::kAttached);
    EXPECT_EQ(here->version, there->version);
    EXPECT_EQ(here->steps.size(), there->steps.size());
    for (size_t i = 0; i < std::min(here->steps.size(), there->steps.size()); ++i) {
      EXPECT_EQ(here->steps[i].plan, there->steps[i].plan);
    }
    ++runs;
    return here;
  }
  bool here() const override { return true; }

  int64_t ran() const {
    int64_t all = 0;
    for (const auto& [name, attached] : attached_) all += attached.runs();
    return all;
  }
  int64_t runs = 0;

 private:
  std::map<std::string, AttachedMatrix> attached_;
};

TEST(AttachedChain, OfAllKinds) {
  Folder folder;
  ServerProcess server({folder.local()});
  HereAndThere runner(Connect(server));
  CheckChains(runner);
  EXPECT_GT(runner.runs, 100);
  EXPECT_EQ(runner.ran(), runner.runs);
}

/// S^T (S B) + 6 B.
class TwoProducts {
 public:
  TwoProducts(const Matrix& s, int64_t cols, int64_t k, unsigned seed)
      : b_(RandomDense(cols * k, seed)), c_(static_cast<size_t>(cols * k), kPoison) {
    const auto b = chain_.Input(DenseView(b_.data(), cols, k));
    const auto there = chain_.Spmm(s, b);
    const auto back =
        chain_.Spmm(s, there, {.transpose = true, .beta = 2, .accumulate = chain_.Sum({{b, 3}})});
    chain_.Output(back, MutableDenseView(c_.data(), cols, k));
  }
  std::vector<float> Expected(const CsrMatrix& s) const {
    const int64_t k = static_cast<int64_t>(b_.size()) / s.cols;
    std::vector<float> c = Multiply(s, true, Multiply(s, false, b_, k), k);
    for (size_t i = 0; i < c.size(); ++i) c[i] += 6 * b_[i];
    return c;
  }
  const Chain& chain() const { return chain_; }
  const std::vector<float>& result() const { return c_; }

 private:
  std::vector<float> b_, c_;
  Chain chain_;
};

TEST(AttachedChain, SeesNewValuesAndADeletion) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  CsrMatrix s = RandomMatrix(40, 30, 1);
  const Matrix matrix = Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m");
  const TwoProducts products(matrix, 30, 8, 3);
  for (uint64_t version = 1; version <= 5; ++version) {
    const auto done = attached.Run(products.chain());
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(done->version, version);
    EXPECT_EQ(done->plan, "chain of 3: " + done->steps[0].plan);
    EXPECT_EQ(products.result(), products.Expected(s)) << version;
    for (float& value : std::get<std::vector<float>>(s.values)) value += 1;
    ASSERT_TRUE(matrix.UpdateValues(std::span<const float>(F32(s))).ok());
  }
  EXPECT_EQ(attached.runs(), 5);
  ASSERT_TRUE(matrix.Delete().ok());
  EXPECT_EQ(attached.Run(products.chain()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(attached.runs(), 5);
}

TEST(AttachedChain, OutlivesTheServer) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client =
      Connect(server, {.connect_timeout = std::chrono::milliseconds(500), .max_attempts = 1});
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  const Matrix matrix = Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m");
  const TwoProducts products(matrix, 30, 8, 3), wider(matrix, 30, 12, 4);
  ASSERT_TRUE(attached.Run(products.chain()).ok());
  ASSERT_EQ(attached.runs(), 1);
  server.End(SIGKILL);
  for (int i = 0; i < 3; ++i) {
    const auto done = attached.Run(products.chain());
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(products.result(), products.Expected(s));
  }
  EXPECT_EQ(attached.runs(), 4);
  EXPECT_EQ(attached.Run(wider.chain()).status().code(), absl::StatusCode::kUnavailable)
      << "of that nothing was exported";
}

TEST(AttachedChain, WhatCannotRunHereRunsOnTheServer) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  const CsrMatrix s = RandomMatrix(30, 30, 1), other = RandomMatrix(30, 30, 2);
  const Matrix matrix = Upload(client, "m", s), second = Upload(client, "other", other);
  const AttachedMatrix attached = Attach(client, "m");
  std::vector<float> b = RandomDense(30 * 4, 3), c(30 * 4, kPoison);
  const DenseView from(b.data(), 30, 4);
  const MutableDenseView to(c.data(), 30, 4);
  const std::vector<float> once = Multiply(s, false, b, 4);
  {
    Chain both;
    both.Output(both.Spmm(second, both.Spmm(matrix, both.Input(from))), to);
    const auto done = attached.Run(both);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(done->transport, Transport::kStream);
    EXPECT_EQ(c, Multiply(other, false, once, 4));
  }
  {
    const auto held = client.PutDense("b", from);
    ASSERT_TRUE(held.ok());
    Chain of_held;
    of_held.Output(of_held.Spmm(matrix, of_held.Input(*held)), to);
    ASSERT_TRUE(attached.Run(of_held).ok());
    EXPECT_EQ(c, once);
  }
  {
    // The result over the operand.
    std::vector<float> both = b;
    Chain over;
    over.Output(over.Spmm(matrix, over.Input(DenseView(both.data(), 30, 4))),
                MutableDenseView(both.data(), 30, 4));
    ASSERT_TRUE(attached.Run(over).ok());
    EXPECT_EQ(both, once);
  }
  {
    // Of another type, and of none of the matrix.
    const std::vector<double> wide(30, 2);
    std::vector<double> sum(30);
    Chain sums;
    sums.Output(sums.Sum({{sums.Input(DenseView(wide.data(), 30, 1)), 3}}),
                MutableDenseView(sum.data(), 30, 1));
    ASSERT_TRUE(attached.Run(sums).ok());
    EXPECT_EQ(sum, std::vector<double>(30, 6));
  }
  {
    // Sums of f32, in a chain of f16: of rows of one nonzero each, whose scores are 0.
    Sparse diagonal = {30, 30};
    for (int32_t i = 0; i < 30; ++i) {
      diagonal.columns.push_back(i);
      diagonal.values.push_back(1);
      diagonal.offsets.push_back(i + 1);
    }
    const Matrix half = Send<Float16>(client, "half", diagonal);
    const std::vector<Float16> ones(30, Float16(1.0F)), zeros(30, Float16(0.0F));
    std::vector<float> log_sums(30, kPoison);
    Chain of_sums;
    const auto x = of_sums.Input(DenseView(ones.data(), ValueType::kF16, 30, 1));
    const auto y = of_sums.Input(DenseView(zeros.data(), ValueType::kF16, 30, 1));
    const Chain::Attended made = of_sums.Attention(half, x, y, x);
    of_sums.Output(of_sums.Sum({{made.log_sums, 3}}), MutableDenseView(log_sums.data(), 30, 1));
    const auto done = Attach(client, "half").Run(of_sums);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(done->transport, Transport::kStream);
    EXPECT_EQ(log_sums, std::vector<float>(30, 0));
  }
  EXPECT_EQ(attached.runs(), 0);
  EXPECT_EQ(attached.Run(GpuStream{}, Chain()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Chain sums;
  sums.Output(sums.Sum({{sums.Input(from), 2}}), to);
  ASSERT_TRUE(attached.Run(sums).ok());
  for (size_t i = 0; i < c.size(); ++i) EXPECT_EQ(c[i], 2 * b[i]);
  EXPECT_EQ(attached.runs(), 1);
}

TEST(AttachedChain, OfAnEmptyMatrix) {
  Folder folder;
  ServerProcess server({folder.local()});
  HereAndThere runner(Connect(server));
  for (const auto& [rows, cols] :
       std::vector<std::pair<int64_t, int64_t>>{{5, 3}, {0, 3}, {5, 0}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << cols);
    const std::vector<int64_t> offsets(static_cast<size_t>(rows + 1));
    const std::string name = "empty-" + std::to_string(rows) + "-" + std::to_string(cols);
    const auto matrix =
        runner.client().Upload(name, {.rows = rows,
                                      .cols = cols,
                                      .row_offsets = std::span<const int64_t>(offsets),
                                      .column_indices = {},
                                      .values = std::span<const float>()});
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    std::vector<float> a(static_cast<size_t>(rows * 4), 1), b(static_cast<size_t>(cols * 4), 1);
    std::vector<float> c(a.size(), 7), d(b.size(), 7), t(static_cast<size_t>(cols * 2), 7);
    std::vector<int64_t> which(a.size(), 7);
    float nothing = 0;
    Chain chain;
    const auto x = chain.Input(DenseView(a.data(), rows, 4));
    const auto y = chain.Input(DenseView(b.data(), cols, 4));
    const auto p =
        chain.Softmax(*matrix, chain.Sddmm(*matrix, x, y, {.unscaled = true, .heads = 2}));
    chain.Output(chain.Spmm(*matrix, y, {.beta = 3, .accumulate = x, .values = p}),
                 MutableDenseView(c.data(), rows, 4));
    chain.Output(chain.Spmm(*matrix, x, {.transpose = true}), MutableDenseView(d.data(), cols, 4));
    chain.Output(chain.Total(*matrix, {.transpose = true, .values = p}),
                 MutableDenseView(t.data(), cols, 2));
    chain.Output(chain.MaxAndWhich(*matrix, y, {}).which, MutableDenseView(which.data(), rows, 4));
    chain.Output(p, MutableDenseView(&nothing, 0, 2));
    const auto done = runner.Run({*matrix}, chain);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(c, std::vector<float>(c.size(), 3));
    EXPECT_EQ(d, std::vector<float>(d.size(), 0));
    EXPECT_EQ(t, std::vector<float>(t.size(), 0));
    EXPECT_EQ(which, std::vector<int64_t>(which.size(), -1));
  }
  EXPECT_EQ(runner.ran(), 3);
}

TEST(AttachedChain, OfManyThreadsWhileValuesChange) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server);
  CsrMatrix s = RandomMatrix(60, 50, 1);
  auto& values = std::get<std::vector<float>>(s.values);
  std::ranges::fill(values, 1.0F);
  const Matrix matrix = Upload(client, "m", s);
  const AttachedMatrix attached = Attach(client, "m", /*threads=*/1);
  const std::vector<float> b(50 * 4, 1);
  const std::vector<float> once = Multiply(s, true, Multiply(s, false, b, 4), 4);
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      std::vector<float> c(50 * 4);
      Chain chain;
      chain.Output(chain.Spmm(matrix, chain.Spmm(matrix, chain.Input(DenseView(b.data(), 50, 4))),
                              {.transpose = true}),
                   MutableDenseView(c.data(), 50, 4));
      while (!done) {
        const auto ran = attached.Run(chain);
        ASSERT_TRUE(ran.ok()) << ran.status();
        // Version v has v in the place of each value, in both steps.
        const auto square = static_cast<float>(ran->version * ran->version);
        for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(c[i], once[i] * square) << i;
      }
    });
  }
  for (int round = 2; round <= 60; ++round) {
    const std::vector<float> fresh(values.size(), static_cast<float>(round));
    ASSERT_TRUE(matrix.UpdateValues(std::span<const float>(fresh)).ok());
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(attached.runs(), 0);
}

}  // namespace
}  // namespace sparsed::test
