// Calls through a ring, against the server's program.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sparsed/client.h"
#include "tests/unit/client/client_testing.h"
#include "tests/unit/client/server_process.h"

namespace sparsed::test {
namespace {

using std::chrono::microseconds;

constexpr int64_t kRingBytes = 4096 + 2 * 64 * 4096;

/// An operand and the result that it should bring, in shared memory.
class Product {
 public:
  Product(const Client& client, const CsrMatrix& s, int64_t k, unsigned seed)
      : b_(*client.AllocateShared(s.cols, k)), c_(*client.AllocateShared(s.rows, k)) {
    const std::vector<float> dense = RandomDense(s.cols * k, seed);
    std::copy(dense.begin(), dense.end(), static_cast<float*>(b_.data()));
    expected_ = Multiply(s, false, dense, k);
    Forget();
  }
  void Forget() { std::fill_n(result(), expected_.size(), kPoison); }
  Call<ComputeResult> Begin(const Client& client, const CallOptions& options = {}) const {
    return client.MatrixNamed("m").SpmmAsync(b_.ConstView(), c_.View(), {}, options);
  }
  bool Is() const { return std::equal(expected_.begin(), expected_.end(), result()); }
  float* result() const { return static_cast<float*>(c_.data()); }

 private:
  SharedMatrix b_, c_;
  std::vector<float> expected_;
};

void ExpectProduct(const Client& client, const CsrMatrix& s, unsigned seed) {
  const Product product(client, s, 8, seed);
  const auto done = product.Begin(client).Wait();
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_FALSE(done->plan.empty());
  EXPECT_TRUE(product.Is());
}

TEST(Ring, TakesHeldOperands) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server, {.ring = true});
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(client, "m", s);
  const std::vector<float> dense = RandomDense(30 * 8, 3);
  const auto b = client.PutDense("b", DenseView(dense.data(), 30, 8));
  const auto c = client.PutZeros("c", ValueType::kF32, 40, 8);
  ASSERT_TRUE(b.ok() && c.ok());
  EXPECT_EQ(SharedBytes(client), 0);
  const auto done = client.MatrixNamed("m").Spmm(*b, *c);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(SharedBytes(client), kRingBytes);
  std::vector<float> got(40 * 8);
  ASSERT_TRUE(c->Read(MutableDenseView(got.data(), 40, 8)).ok());
  EXPECT_EQ(got, Multiply(s, false, dense, 8));
  // An operand that has to travel, and a refusal with a sentence.
  ASSERT_TRUE(client.MatrixNamed("m").Spmm(DenseView(dense.data(), 30, 8), *c).ok());
  const auto refused = client.MatrixNamed("m").Spmm(*c, *b);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << refused.status();
  EXPECT_EQ(client.MatrixNamed("none").Spmm(*b, *c).status().code(), absl::StatusCode::kNotFound);
}

TEST(Ring, WhereThereIsNoneRequestsGoByTheStream) {
  Folder folder;
  const std::vector<std::vector<std::string>> without = {{"--local-listen=off"},
                                                         {folder.local(), "--max-rings=0"}};
  for (const std::vector<std::string>& flags : without) {
    ServerProcess server(flags);
    const Client client = Connect(server, {.ring = true});
    const CsrMatrix s = RandomMatrix(40, 30, 1);
    Upload(client, "m", s);
    ExpectProduct(client, s, 1);
    ExpectProduct(client, s, 2);
    EXPECT_LT(SharedBytes(client), kRingBytes);
  }
}

TEST(Ring, ManyAtOnceInAnyOrder) {
  Folder folder;
  ServerProcess server({folder.local(), "--ring-spin=20"});
  const Client client = Connect(server, {.ring = true});
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(client, "m", s);
  std::vector<Product> products;
  for (unsigned i = 0; i < 200; ++i) products.emplace_back(client, s, 4, i);
  for (int round = 0; round < 3; ++round) {
    std::vector<Call<ComputeResult>> calls;
    for (Product& product : products) {
      product.Forget();
      calls.push_back(product.Begin(client));
    }
    // Nobody waits for this one: it is asked.
    EXPECT_TRUE(Eventually([&] { return calls[150].Done(); }));
    EXPECT_TRUE(products[150].Is());
    for (size_t i = calls.size(); i-- > 0;) {
      if (i % 3 == 0) {
        EXPECT_TRUE(calls[i].WaitFor(std::chrono::seconds(30)));
      }
      const auto done = calls[i].Wait();
      ASSERT_TRUE(done.ok()) << done.status();
      EXPECT_TRUE(products[i].Is()) << i;
    }
  }
}

TEST(Ring, FromManyThreads) {
  Folder folder;
  ServerProcess server({folder.local()});
  for (const int spin : {0, 30}) {
    const Client client = Connect(server, {.ring = true, .ring_spin = microseconds(spin)});
    const CsrMatrix s = RandomMatrix(40, 30, 1);
    Upload(client, spin == 0 ? "m" : "other", s);
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 6; ++seed) {
      threads.emplace_back([&, seed] {
        Product product(client, s, 3, seed);
        for (int round = 0; round < 200; ++round) {
          product.Forget();
          Call<ComputeResult> call = product.Begin(client);
          if (round % 7 == 3) call.WaitFor(std::chrono::microseconds(round));
          if (round % 11 == 5) call.Cancel();
          const auto done = call.Wait();
          if (round % 11 == 5 && absl::IsCancelled(done.status())) continue;
          ASSERT_TRUE(done.ok()) << done.status();
          ASSERT_TRUE(product.Is());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Ring, AnotherRunOfTheServerGetsAnother) {
  Folder folder;
  const auto start = [&] {
    return std::make_unique<ServerProcess>(
        std::vector<std::string>{folder.local(), "--data-dir=" + folder.path()},
        "unix:" + folder.path() + "/socket");
  };
  auto server = start();
  const Client client = Connect(*server, {.ring = true});
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(client, "m", s);
  for (const int signal : {SIGKILL, SIGTERM}) {
    ExpectProduct(client, s, 1);
    EXPECT_GE(SharedBytes(client), kRingBytes);
    server->End(signal);
    server = start();
    Connect(*server);
    ExpectProduct(client, s, 2);
    // Once the pause after a failure is over.
    EXPECT_TRUE(Eventually([&] {
      ExpectProduct(client, s, 3);
      return SharedBytes(client) >= kRingBytes;
    }));
  }
}

TEST(Ring, CallsEndWithTheirServer) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server, {.max_attempts = 1, .ring = true});
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(client, "m", s);
  ExpectProduct(client, s, 1);
  const Product one(client, s, 8, 2), other(client, s, 8, 3);
  // So that they find it in shared memory.
  ASSERT_TRUE(one.Begin(client).Wait().ok());
  ASSERT_TRUE(other.Begin(client).Wait().ok());
  server.Pause();
  Call<ComputeResult> call = one.Begin(client), waited = other.Begin(client);
  absl::Status status;
  std::thread waiter([&] { status = waited.Wait().status(); });
  EXPECT_FALSE(call.Done());
  server.End(SIGKILL);
  EXPECT_EQ(call.Wait().status().code(), absl::StatusCode::kUnavailable);
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST(Ring, CancelledCallsEndBeforeTheirMemoryIsTheCallersAgain) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client client = Connect(server, {.ring = true});
  const CsrMatrix s = RandomMatrix(2000, 2000, 1);
  Upload(client, "m", s);
  const auto idle = [&] { return client.GetStats()->in_flight.empty(); };
  constexpr size_t kElements = 2000 * 512;
  const Product product(client, s, 512, 1);
  for (int round = 0; round < 5; ++round) {
    std::fill_n(product.result(), kElements, 5.0F);
    Call<ComputeResult> call = product.Begin(client);
    // In the midst of it: the first rows are there.
    EXPECT_TRUE(Eventually(
        [&] { return call.Done() || *static_cast<volatile float*>(product.result()) != 5.0F; }));
    call.Cancel();
    const auto ended = call.Wait();
    EXPECT_TRUE(ended.ok() || absl::IsCancelled(ended.status())) << ended.status();
    std::fill_n(product.result(), kElements, 5.0F);
    EXPECT_TRUE(Eventually(idle));
    EXPECT_EQ(std::count(product.result(), product.result() + kElements, 5.0F),
              static_cast<int64_t>(kElements));
  }
}

TEST(Ring, GoesWithItsClient) {
  Folder folder;
  ServerProcess server({folder.local()});
  const Client other = Connect(server);
  const CsrMatrix s = RandomMatrix(40, 30, 1);
  Upload(other, "m", s);
  std::optional<SharedMatrix> kept;
  {
    const Client client = Connect(server, {.ring = true});
    ExpectProduct(client, s, 1);
    kept = *client.AllocateShared(30, 8);
    ASSERT_TRUE(
        client.MatrixNamed("m").Spmm(kept->ConstView(), client.AllocateShared(40, 8)->View()).ok());
    EXPECT_GE(SharedBytes(other), kRingBytes);
  }
  // Memory that it allocated keeps its connection, but not the ring.
  EXPECT_TRUE(Eventually([&] { return SharedBytes(other) < kRingBytes; }));
}

}  // namespace
}  // namespace sparsed::test
