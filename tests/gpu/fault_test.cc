// A lost device: what is in flight fails, probes are told, a restart recovers everything.
#include "tests/gpu/fault.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "tests/gpu/gpu.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

constexpr const char* kIllegal = "an illegal memory access was encountered";

/// Of a death test's own process, whose failures nobody prints.
[[noreturn]] void EndWithFailures() {
  const testing::TestResult& result =
      *testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.total_part_count(); ++i) {
    const testing::TestPartResult& part = result.GetTestPartResult(i);
    std::cerr << part.file_name() << ":" << part.line_number() << ": " << part.message() << "\n";
  }
  std::_Exit(result.Failed() ? 1 : 0);
}

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

    EXPECT_STREQ(BreakTheDevice(), kIllegal);
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
    EXPECT_STREQ(BreakTheDevice(), kIllegal);
  }
  // What the other card still does is right. An illegal access may end it, too: some drivers end
  // all of a process's contexts.
  for (int i = 0; i < 20; ++i) {
    const Answer answer = Spmm(server.compute(), "s", 200, 8, b);
    if (answer.code() != 0) {
      EXPECT_EQ(answer.code(), grpc::StatusCode::UNAVAILABLE) << answer.message();
      EXPECT_NE(answer.message().find(" is lost"), std::string::npos) << answer.message();
      continue;
    }
    const std::vector<float> after = answer.Values<float>(0);
    ASSERT_EQ(after.size(), before.size());
    for (size_t k = 0; k < after.size(); ++k) EXPECT_NEAR(after[k], before[k], 1e-4);
  }
  const auto& gpus = server.engine().gpus();
  // Requests may have kept to the other, which has the layout.
  EXPECT_FALSE(gpus[1]->PlaceValues(Layout(), ElementType::kF32, nullptr, nullptr).ok());
  EXPECT_FALSE(gpus[1]->status().ok());
  const bool other_serves = gpus[0]->status().ok();
  std::string head;
  server.Page("/readyz", &head);
  EXPECT_NE(head.find(other_serves ? "200" : "503"), std::string::npos) << head;
  const std::string metrics = server.Page("/metrics");
  EXPECT_NE(metrics.find("sparsed_device_up{device=\"cuda:1\"} 0"), std::string::npos);
  const std::string other = other_serves ? "1" : "0";
  EXPECT_NE(metrics.find("sparsed_device_up{device=\"cuda:0\"} " + other), std::string::npos);
}

/// In a process of its own: it has lost a card afterwards.
TEST(GpuFaultDeathTest, ALostCardOfTwoIsTold) {
  if (const auto second = cuda::ProbeDevice(1); !second.ok()) GTEST_SKIP() << second.status();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        LoseOneOfTwo();
        EndWithFailures();
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
        EndWithFailures();
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sparsed::test
