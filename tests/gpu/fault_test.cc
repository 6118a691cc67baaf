// A lost device: what is in flight fails, probes are told, a restart recovers everything.
#include "tests/gpu/fault.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/gpu/gpu.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

void LoseTheDevice() {
  std::string folder = std::filesystem::temp_directory_path() / "sparsed_fault_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const Pattern pattern = Uniform(300, 200, 7, 11);
  const std::vector<float> b = FloatValues(200 * 8, 5);
  std::vector<float> before;
  {
    TestServer server([&](server::Config& config) {
      config.devices = {"cuda:0"};
      config.data_dir = folder;
      config.metrics_listen = "127.0.0.1:0";
    });
    MustUpload(server, "s", pattern);
    const Answer good = Spmm(server.compute(), "s", 200, 8, b);
    ASSERT_EQ(good.code(), 0) << good.message();
    before = good.Values<float>(0);
    std::string head;
    server.Page("/readyz", &head);
    EXPECT_NE(head.find("200"), std::string::npos);

    BreakTheDevice();
    for (int i = 0; i < 3; ++i) {
      const Answer answer = Spmm(server.compute(), "s", 200, 8, b);
      EXPECT_EQ(answer.code(), grpc::StatusCode::UNAVAILABLE) << answer.message();
    }
    EXPECT_NE(Spmm(server.compute(), "s", 200, 8, b).message().find("cuda:0 is lost"),
              std::string::npos);
    server.Page("/readyz", &head);
    EXPECT_NE(head.find("503"), std::string::npos);
    EXPECT_NE(server.Page("/metrics").find("sparsed_device_up{device=\"cuda:0\"} 0"),
              std::string::npos);
    v1::ServerInfo info;
    grpc::ClientContext context;
    ASSERT_TRUE(server.admin().GetServerInfo(&context, v1::GetServerInfoRequest(), &info).ok());
    EXPECT_NE(info.devices(1).unavailable().find("lost"), std::string::npos);
  }
  // This process has no GPU any more; another would.
  TestServer again([&](server::Config& config) {
    config.devices = {"cpu"};
    config.data_dir = folder;
  });
  const Answer answer = Spmm(again.compute(), "s", 200, 8, b);
  ASSERT_EQ(answer.code(), 0) << answer.message();
  const std::vector<float> after = answer.Values<float>(0);
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-4);
  std::filesystem::remove_all(folder);
}

/// The second breaks under a server that uses both.
void LoseOneOfTwo() {
  TestServer server([&](server::Config& config) {
    config.devices = {"cuda:0", "cuda:1"};
    config.metrics_listen = "127.0.0.1:0";
  });
  const Pattern pattern = Uniform(300, 200, 7, 11);
  const std::vector<float> b = FloatValues(200 * 8, 5);
  MustUpload(server, "s", pattern);
  const Answer good = Spmm(server.compute(), "s", 200, 8, b);
  ASSERT_EQ(good.code(), 0) << good.message();
  const std::vector<float> before = good.Values<float>(0);
  {
    const cuda::DeviceScope scope(1);
    BreakTheDevice();
  }
  // One at the most meets the card before it is known to be lost.
  int failed = 0;
  constexpr int kRequests = 20;
  for (int i = 0; i < kRequests; ++i) {
    const Answer answer = Spmm(server.compute(), "s", 200, 8, b);
    if (answer.code() != 0) {
      ++failed;
      EXPECT_EQ(answer.code(), grpc::StatusCode::UNAVAILABLE) << answer.message();
      EXPECT_NE(answer.message().find("cuda:1 is lost"), std::string::npos) << answer.message();
      continue;
    }
    const std::vector<float> after = answer.Values<float>(0);
    ASSERT_EQ(after.size(), before.size());
    for (size_t k = 0; k < after.size(); ++k) EXPECT_NEAR(after[k], before[k], 1e-4);
  }
  EXPECT_LE(failed, 1);
  // Requests may have kept to the other, which has the layout.
  EXPECT_FALSE(
      server.engine().gpus()[1]->PlaceValues(Layout(), ElementType::kF32, nullptr, nullptr).ok());
  EXPECT_TRUE(server.engine().gpus()[0]->status().ok());
  std::string head;
  server.Page("/readyz", &head);
  EXPECT_NE(head.find("200"), std::string::npos);
  const std::string metrics = server.Page("/metrics");
  EXPECT_NE(metrics.find("sparsed_device_up{device=\"cuda:0\"} 1"), std::string::npos);
  EXPECT_NE(metrics.find("sparsed_device_up{device=\"cuda:1\"} 0"), std::string::npos);
}

/// In a process of its own: it has lost a card afterwards.
TEST(GpuFaultDeathTest, ALostCardOfTwoTakesOnlyItsOwnRequests) {
  if (const auto second = cuda::ProbeDevice(1); !second.ok()) GTEST_SKIP() << second.status();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        LoseOneOfTwo();
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

/// In a process of its own: it has no GPU afterwards.
TEST(GpuFaultDeathTest, ALostDeviceEndsRequestsAndARestartRecovers) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        LoseTheDevice();
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sparsed::test
