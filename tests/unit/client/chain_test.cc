// Chains through the library, against the real program.
#include "sparsed/chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/client/chain_products.h"
#include "tests/unit/client/client_testing.h"

namespace sparsed::test {
namespace {

TEST(Chain, OfAllKinds) {
  Folder folder;
  ServerProcess server({folder.local()});
  CheckChains(Connect(server));
}

TEST(Chain, WithoutSharedMemory) {
  ServerProcess server;
  CheckChains(Connect(server));
}

TEST(Chain, IsCountedAsARequestOfItsOwn) {
  ServerProcess server;
  const Client client = Connect(server);
  const CsrMatrix s = RandomMatrix(40, 40, 1);
  Upload(client, "m", s);
  std::vector<float> b(40 * 8, 1), c(40 * 8);
  Chain chain;
  auto x = chain.Input(DenseView(b.data(), 40, 8));
  x = chain.Spmm(client.MatrixNamed("m"), x);
  x = chain.Sum({{x, 2}});
  chain.Output(x, MutableDenseView(c.data(), 40, 8));
  const auto done = client.Run(chain);
  ASSERT_TRUE(done.ok()) << done.status();
  ASSERT_EQ(done->steps.size(), 2U);
  EXPECT_EQ(done->plan, "chain of 2: " + done->steps[0].plan);
  EXPECT_NE(done->steps[0].plan.find(" / cpu."), std::string::npos) << done->steps[0].plan;
  EXPECT_EQ(done->steps[1].plan, "sum");
  EXPECT_EQ(done->version, client.MatrixNamed("m").Info()->version);
  const auto stats = client.GetStats();
  ASSERT_TRUE(stats.ok());
  EXPECT_TRUE(std::ranges::any_of(stats->requests, [](const RequestCount& of) {
    return of.operation == "chain" && of.code == "OK" && of.count == 1;
  }));
}

}  // namespace
}  // namespace sparsed::test
