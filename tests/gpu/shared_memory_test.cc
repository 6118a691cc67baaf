// Memory that clients share with a server on the GPU: pinned, and copied without staging.
#include <gtest/gtest.h>

#include "tests/gpu/gpu.h"
#include "tests/rpc/test_server.h"
#include "tests/unit/client/shared_products.h"

namespace sparsed::test {
namespace {

TEST(GpuSharedMemory, ProductsOfAllKinds) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  TestServer server([](server::Config& config) {
    config.devices = {"cuda:0"};
    config.local_listen = config.listen.front() + ".local";
  });
  CheckSharedProducts(server.address());
}

TEST(GpuSharedMemory, WhatDoesNotFitRunsInColumnBlocksOrOnTheCpu) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  TestServer server([](server::Config& config) {
    config.devices = {"cuda:0"};
    config.device_memory_bytes = int64_t{520} << 20;
    config.local_listen = config.listen.front() + ".local";
  });
  MemorySource& memory =
      server.engine().gpus().front()->budget().Source(engine::MemoryUse::kPreparation);
  EXPECT_EQ(CheckLargeSharedProduct(server.address()).find("blocks of"), std::string::npos);
  const absl::StatusOr<Buffer> hog = memory.Allocate(size_t{500} << 20);
  ASSERT_TRUE(hog.ok()) << hog.status();
  EXPECT_NE(CheckLargeSharedProduct(server.address()).find("blocks of"), std::string::npos);
  std::vector<Buffer> rest;
  for (size_t bytes = size_t{64} << 20; bytes >= 4096;) {
    absl::StatusOr<Buffer> taken = memory.Allocate(bytes);
    if (taken.ok()) {
      rest.push_back(*std::move(taken));
    } else {
      bytes /= 2;
    }
  }
  EXPECT_NE(CheckLargeSharedProduct(server.address()).find("cpu."), std::string::npos);
}

}  // namespace
}  // namespace sparsed::test
