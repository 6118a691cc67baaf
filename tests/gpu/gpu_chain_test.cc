// Chains on the GPU: results as anywhere, and what has no room there runs on the CPU.
#include <gtest/gtest.h>

#include <vector>

#include "engine/engine.h"
#include "tests/gpu/gpu.h"
#include "tests/rpc/test_server.h"

// The library's types, which come behind the kernels' of the same names.
#include "sparsed/chain.h"
#include "tests/unit/client/chain_products.h"

namespace sparsed::test {
namespace {

TEST(GpuChains, OfAllKinds) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  TestServer server([](server::Config& config) {
    config.devices = {"cuda:0"};
    config.local_listen = config.listen.front() + ".local";
  });
  const auto client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  CheckChains(*client);
}

TEST(GpuChains, WhatFindsNoRoomRunsOnTheCpuFromTheFirstStepOn) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  TestServer server([](server::Config& config) {
    config.devices = {"cuda:0"};
    config.device_memory_bytes = int64_t{520} << 20;
  });
  const auto client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  constexpr int64_t kRows = 100'000, kColumns = 32;
  std::vector<int64_t> offsets(kRows + 1);
  std::vector<int32_t> columns(kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    columns[row] = static_cast<int32_t>((row + 1) % kRows);
    offsets[row + 1] = row + 1;
  }
  const std::vector<float> ones(kRows, 1);
  const auto shift = client->Upload("shift", {.rows = kRows,
                                              .cols = kRows,
                                              .row_offsets = std::span<const int64_t>(offsets),
                                              .column_indices = columns,
                                              .values = std::span<const float>(ones)});
  ASSERT_TRUE(shift.ok()) << shift.status();
  std::vector<float> b(kRows * kColumns), c(kRows * kColumns);
  for (int64_t i = 0; i < kRows * kColumns; ++i) b[i] = static_cast<float>(i / kColumns % 1021);
  // All layers are kept until they are summed.
  Chain chain;
  std::vector<Chain::Term> layers = {{chain.Input(DenseView(b.data(), kRows, kColumns))}};
  for (int i = 0; i < 8; ++i) layers.push_back({chain.Spmm(*shift, layers.back().value)});
  chain.Output(chain.Sum(layers), MutableDenseView(c.data(), kRows, kColumns));
  const auto expect = [&](std::string_view device) {
    std::fill(c.begin(), c.end(), -1.0F);
    const auto done = client->Run(chain);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_NE(done->steps[0].plan.find(device), std::string::npos) << done->steps[0].plan;
    for (int64_t row = 0; row < kRows; ++row) {
      float sum = 0;
      for (int64_t i = 0; i <= 8; ++i) sum += static_cast<float>((row + i) % kRows % 1021);
      ASSERT_EQ(c[row * kColumns], sum) << "row " << row;
      ASSERT_EQ(c[row * kColumns + kColumns - 1], sum) << "row " << row;
    }
  };
  expect("cuda.");
  MemorySource& memory =
      server.engine().gpus().front()->budget().Source(engine::MemoryUse::kPreparation);
  // Some steps find room.
  const absl::StatusOr<Buffer> hog = memory.Allocate(size_t{450} << 20);
  ASSERT_TRUE(hog.ok()) << hog.status();
  expect("cpu.");
}

}  // namespace
}  // namespace sparsed::test
