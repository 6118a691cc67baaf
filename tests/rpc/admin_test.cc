// Admin, health, reflection, and the pages of the HTTP port.
#include <fmt/format.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "engine/memory/processor.h"
#include "proto/wire/chunk_codec.h"
#include "server/telemetry/request_feed.h"
#include "tests/rpc/raw_stream.h"
#include "tests/rpc/test_server.h"

namespace {
/// By which the clock of the day is wrong.
std::atomic<time_t> set_forward = 0;
}  // namespace

/// In libc's place, for all of this process.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += set_forward;
  return result;
}

namespace sparsed::test {
namespace {

TEST(Admin, UptimeSurvivesAClockThatIsSet) {
  TestServer server;
  grpc::ClientContext context;
  v1::Stats stats;
  constexpr time_t kDay = 24 * 60 * 60;
  const auto before = std::chrono::system_clock::now();
  set_forward = kDay;
  const auto after = std::chrono::system_clock::now();
  const grpc::Status status = server.admin().GetStats(&context, v1::GetStatsRequest(), &stats);
  set_forward = 0;
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_GE(after - before, std::chrono::seconds(kDay)) << "the clock cannot be set here";
  EXPECT_GT(stats.uptime_seconds(), 0);
  EXPECT_LT(stats.uptime_seconds(), kDay);
}

TEST(Admin, ServerInfoSaysWhatItFound) {
  TestServer server([](server::Config& config) {
    WithPages(config);
    config.devices = {"auto"};
  });
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(server.admin().GetServerInfo(&context, v1::GetServerInfoRequest(), &info).ok());
  EXPECT_EQ(info.version(), SPARSED_VERSION);
  ASSERT_EQ(info.devices_size(), 2);  // what was looked for and not found is there, with the reason
  EXPECT_EQ(info.devices(1).name(), "cuda:0");
  EXPECT_NE(info.devices(1).description().empty(), info.devices(1).unavailable().empty());
  EXPECT_EQ(info.devices(0).name(), "cpu");
  EXPECT_FALSE(info.devices(0).description().empty());
  EXPECT_EQ(info.max_chunk_bytes(), 2 << 20);
  EXPECT_EQ(info.host_memory_limit_bytes(), 1 << 30);
  EXPECT_FALSE(info.durable());
  EXPECT_GT(info.started_unix_ns(), int64_t{1} << 60);
  EXPECT_EQ(info.metrics_address(), server.server().metrics_address());
}

TEST(Admin, CalibratesADeviceOrSaysWhyNot) {
  TestServer server;
  const auto calibrate = [&](const std::string& device, v1::CalibrateReply& reply) {
    grpc::ClientContext context;
    v1::CalibrateRequest request;
    request.set_device(device);
    return server.admin().Calibrate(&context, request, &reply);
  };
  v1::CalibrateReply reply;
  grpc::Status status = calibrate("tpu", reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_NE(status.error_message().find("\"tpu\""), std::string::npos) << status.error_message();
  status = calibrate("cuda", reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << status.error_message();
  status = calibrate("cpu", reply);
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(server.admin().GetServerInfo(&context, v1::GetServerInfoRequest(), &info).ok());
  ASSERT_GE(info.devices_size(), 1);
  EXPECT_GT(info.devices(0).constants().at("multiplications_per_second"), 0);
  // Others compute on this machine, or its caches are larger than what this server may measure
  // with.
  if (!status.ok()) {
    EXPECT_TRUE(status.error_code() == grpc::StatusCode::ABORTED ||
                status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED)
        << status.error_message();
    EXPECT_EQ(info.devices(0).calibrated_unix_ns(), 0);
    return;
  }
  EXPECT_EQ(reply.device().name(), "cpu");
  EXPECT_GT(reply.device().calibrated_unix_ns(), int64_t{1} << 60);
  const auto& constants = reply.device().constants();
  ASSERT_TRUE(constants.contains("cache_bytes_per_second"));
  EXPECT_GT(constants.at("cache_bytes_per_second"), 0);
  // Not where caches are so large that twice as much is more than this server may prepare with.
  if (engine::LastLevelCacheBytes() <= int64_t{64} << 20) {
    ASSERT_TRUE(constants.contains("read_bytes_per_second"));
    EXPECT_GT(constants.at("read_bytes_per_second"), 0);
  }
  EXPECT_EQ(info.devices(0).calibrated_unix_ns(), reply.device().calibrated_unix_ns());
}

TEST(Admin, SnapshotsAreSentAndCounted) {
  std::string folder = testing::TempDir() + "snapshot_XXXXXX";
  mkdtemp(folder.data());
  {
    TestServer server([&](server::Config& config) {
      WithPages(config);
      config.data_dir = folder;
    });
    MakeGood(server);
    EXPECT_EQ(server.Page("/metrics").find("sparsed_last_snapshot_bytes "), std::string::npos);
    std::string bytes;
    int64_t expected = 0;
    grpc::ClientContext context;
    const auto reader = server.admin().SaveSnapshot(&context, v1::SaveSnapshotRequest());
    v1::SaveSnapshotReply reply;
    while (reader->Read(&reply)) {
      if (bytes.empty()) expected = reply.expected_bytes();
      bytes += reply.data();
    }
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(bytes.substr(0, 13), "snapshot.json");
    EXPECT_GT(expected, 0);
    EXPECT_GT(static_cast<int64_t>(bytes.size()), expected);
    EXPECT_NE(
        server.Page("/metrics").find(fmt::format("sparsed_last_snapshot_bytes {}\n", bytes.size())),
        std::string::npos);
    EXPECT_NE(server.Page("/metrics").find("sparsed_last_snapshot_timestamp_seconds "),
              std::string::npos);
    EXPECT_NE(server.Page("/metrics").find("op=\"save_snapshot\""), std::string::npos);
    ExpectGood(server);
  }
  std::filesystem::remove_all(folder);
}

TEST(Admin, RequestsAreToldAsTheyEnd) {
  TestServer server;
  MakeGood(server);
  grpc::ClientContext context;
  const auto reader = server.admin().WatchRequests(&context, v1::WatchRequestsRequest());
  v1::WatchRequestsReply reply;
  ASSERT_TRUE(reader->Read(&reply)) << "the first comes at once";
  EXPECT_EQ(reply.requests_size(), 0);
  grpc::ClientContext looking;
  v1::MatrixInfo info;
  v1::GetMatrixRequest get;
  get.set_name("good");
  ASSERT_TRUE(server.catalog().Get(&looking, get, &info).ok());
  ExpectGood(server);
  ASSERT_TRUE(reader->Read(&reply));
  ASSERT_GE(reply.requests_size(), 1);
  EXPECT_EQ(reply.requests(0).operation(), "spmm") << "calls that only look are none";
  EXPECT_EQ(reply.requests(0).subject(), "good");
  EXPECT_EQ(reply.requests(0).code(), "OK");
  EXPECT_GT(reply.requests(0).k(), 0);
  EXPECT_EQ(reply.left_out(), 0);
  context.TryCancel();
  while (reader->Read(&reply)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
}

TEST(WaitingRequests, OfASlowReaderAreFewAndTheOthersAreCounted) {
  server::WaitingRequests waiting;
  const auto request = [](const std::string& subject) {
    server::EndedRequest ended;
    ended.record.subject = subject;
    return std::make_shared<const server::EndedRequest>(std::move(ended));
  };
  EXPECT_TRUE(waiting.empty());
  const std::string long_name(100'000, 'x');
  for (int i = 0; i < 20; ++i) waiting.Add(request(long_name));
  for (int i = 0; i < 10'000; ++i) waiting.Add(request("short"));
  auto [first, left_out] = waiting.Take(12);
  ASSERT_EQ(first.size(), 12);
  EXPECT_EQ(first[9]->record.subject, long_name) << "the first of them, in order";
  EXPECT_EQ(first[10]->record.subject, "short");
  auto [rest, none] = waiting.Take(100'000);
  EXPECT_EQ(none, 0) << "told once";
  size_t bytes = 0;
  for (const auto& one : first) bytes += server::BytesOf(*one);
  for (const auto& one : rest) bytes += server::BytesOf(*one);
  EXPECT_LE(bytes, server::WaitingRequests::kMostBytes);
  EXPECT_EQ(first.size() + rest.size() + static_cast<size_t>(left_out), 10'020);
  EXPECT_TRUE(waiting.empty());
  waiting.Add(request(long_name));
  EXPECT_EQ(waiting.Take(1).first.size(), 1) << "there is room again";
}

TEST(Admin, StatsCount) {
  TestServer server;
  MakeGood(server);
  ExpectGood(server);
  Spmm(server.compute(), "nothing", 1, 1, {1.f});
  grpc::ClientContext context;
  v1::Stats stats;
  ASSERT_TRUE(server.admin().GetStats(&context, v1::GetStatsRequest(), &stats).ok());
  std::map<std::string, int64_t> counts;
  for (const auto& count : stats.requests()) {
    counts[count.operation() + " " + count.code()] = count.count();
  }
  EXPECT_EQ(counts["upload OK"], 1);
  EXPECT_EQ(counts["spmm OK"], 1);
  EXPECT_EQ(counts["spmm NOT_FOUND"], 1);
  EXPECT_EQ(stats.matrices(), 1);
  EXPECT_EQ(stats.patterns(), 1);
  EXPECT_EQ(stats.requests_in_flight(), 0);
  EXPECT_EQ(stats.memory_bytes_size(), 7);  // six uses, and what is kept
  EXPECT_GT(stats.memory_bytes().at("matrices"), 0);
  EXPECT_GT(stats.uptime_seconds(), 0);
  EXPECT_GT(stats.device_busy_seconds(), 0);
}

TEST(Admin, HealthAnswersForEachService) {
  TestServer server;
  for (const std::string service :
       {"", "sparsed.v1.Catalog", "sparsed.v1.Compute", "sparsed.v1.Buffers", "sparsed.v1.Admin"}) {
    // HealthCheckRequest { string service = 1; }, HealthCheckResponse { enum status = 1; SERVING =
    // 1 }
    std::string request;
    if (!service.empty()) {
      request = std::string("\x0a") + static_cast<char>(service.size()) + service;
    }
    RawStream call(server.channel(), "/grpc.health.v1.Health/Check");
    ASSERT_TRUE(call.Write(request));
    call.WritesDone();
    std::string reply;
    ASSERT_TRUE(call.Read(&reply));
    EXPECT_EQ(reply, "\x08\x01") << service;
    EXPECT_TRUE(call.Finish().ok());
  }
}

TEST(Admin, ReflectionListsTheServices) {
  TestServer server;
  RawStream call(server.channel(),
                 "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  ASSERT_TRUE(call.Write("\x3a\x01*"));  // ServerReflectionRequest { string list_services = 7; }
  std::string reply;
  ASSERT_TRUE(call.Read(&reply));
  for (const char* service : {"sparsed.v1.Catalog", "sparsed.v1.Compute", "sparsed.v1.Buffers",
                              "sparsed.v1.Admin", "grpc.health.v1.Health"}) {
    EXPECT_NE(reply.find(service), std::string::npos) << service;
  }
  call.WritesDone();
  EXPECT_TRUE(call.Finish().ok());
}

TEST(HttpPort, EveryFamilyHasDataAfterTraffic) {
  TestServer server([](server::Config& config) {
    WithPages(config);
    config.preparation_workers = 1;
  });
  MakeGood(server);
  ExpectGood(server);
  ASSERT_TRUE(Eventually([&] { return server.engine().preparation().pending() == 0; }));
  std::string head;
  const std::string page = server.Page("/metrics", &head);
  EXPECT_NE(head.find("200 OK"), std::string::npos) << head;
  EXPECT_NE(head.find("text/plain; version=0.0.4"), std::string::npos) << head;
  for (const char* sample : {
           "sparsed_requests_total{code=\"OK\",kind=\"work\",op=\"spmm\",tenant=\"default\"} 1",
           "sparsed_request_seconds_count{kind=\"work\",op=\"spmm\"} 1",
           "sparsed_request_phase_seconds_count{kind=\"work\",op=\"spmm\",phase=\"queue\"} 1",
           "sparsed_request_phase_seconds_count{kind=\"work\",op=\"spmm\",phase=\"receive\"} 1",
           "sparsed_request_phase_seconds_count{kind=\"work\",op=\"spmm\",phase=\"kernel\"} 1",
           "sparsed_request_phase_seconds_count{kind=\"work\",op=\"spmm\",phase=\"send\"} 1",
           "sparsed_kernel_seconds_count{device=\"cpu\",kernel=\"",
           "sparsed_kernel_flops_total{device=\"cpu\",kernel=\"",
           "sparsed_kernel_floor_seconds_total{device=\"cpu\",kernel=\"",
           "sparsed_device_busy_seconds_total{device=\"cpu\"} ",
           "sparsed_tenant_device_seconds_total{device=\"cpu\",tenant=\"default\"} ",
           "sparsed_transfer_bytes_total{direction=\"in\",path=\"stream\"} ",
           "sparsed_transfer_bytes_total{direction=\"out\",path=\"held\"} ",
           "sparsed_requests_in_flight{kind=\"work\",op=\"spmm\"} 0",
           "sparsed_queue_depth{device=\"cpu\"} 0",
           "sparsed_preparation_seconds_count{stage=\"features\"} ",
           "sparsed_preparations{state=\"ready\"} 1",
           "sparsed_recipes_total{outcome=\"no_time\"} 0",
           "sparsed_layout_bytes{kind=\"csr\",tier=\"host\"} ",
           "sparsed_memory_bytes{device=\"cpu\",use=\"matrices\"} ",
           "sparsed_memory_limit_bytes{device=\"cpu\"} ",
           "sparsed_memory_reserved_bytes{device=\"cpu\"} ",
           "sparsed_evictions_total{device=\"cpu\"} 0",
           "sparsed_memory_evictable_bytes{device=\"cpu\"} ",
           "sparsed_disk_read_bytes_total{read=\"again\"} 0",
           "sparsed_matrices 1",
           "sparsed_spans_total{result=\"dropped\"} 0",
           "sparsed_build_info{version=\"" SPARSED_VERSION "\"",
       }) {
    EXPECT_NE(page.find(sample), std::string::npos) << sample << " is missing in\n" << page;
  }
}

/// Every scrape is paid for by the server, the network and Prometheus' disk.
TEST(HttpPort, SeriesAppearWhenTheyAreFirstCounted) {
  TestServer server(WithPages);
  const std::string idle = server.Page("/metrics");
  EXPECT_LT(idle.size(), 40u << 10);
  for (const char* series :
       {"sparsed_requests_in_flight{", "sparsed_request_seconds_count{",
        "sparsed_request_phase_seconds_count{", "sparsed_layout_build_seconds_count{"}) {
    EXPECT_EQ(idle.find(series), std::string::npos) << series;
  }
  MakeGood(server);
  ExpectGood(server);
  // An upload has no kernel, and on the CPU nothing is copied to a device.
  const std::string page = server.Page("/metrics");
  EXPECT_NE(
      page.find(R"(sparsed_request_phase_seconds_count{kind="work",op="upload",phase="receive"})"),
      std::string::npos);
  EXPECT_EQ(page.find(R"(op="upload",phase="kernel")"), std::string::npos);
  EXPECT_EQ(page.find(R"(phase="to_device")"), std::string::npos);
}

TEST(HttpPort, StatusPageKeepsTheBeginningOfLongNames) {
  TestServer server(WithPages);
  const std::string name = "begin" + std::string(100000, 'x');
  const Answer answer = Spmm(server.compute(), name, 1, 1, {1.f});
  EXPECT_EQ(answer.code(), grpc::INVALID_ARGUMENT);
  EXPECT_LT(answer.message().size(), 1000u);
  // A name of three-byte characters, so that the limit is in the middle of one.
  std::string snowmen = "snow";
  for (int i = 0; i < 20000; ++i) snowmen += "\u2603";
  grpc::ClientContext context;
  v1::GetMatrixRequest get;
  get.set_name(snowmen);
  v1::MatrixInfo info;
  const grpc::Status status = server.catalog().Get(&context, get, &info);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
  grpc::ClientContext upload;
  auto stream = server.catalog().Upload(&upload);
  v1::UploadRequest header;
  header.mutable_header()->set_name(name);
  stream->Write(header);
  EXPECT_EQ(stream->Finish().error_code(), grpc::INVALID_ARGUMENT);

  const std::string page = server.Page("/api/requests");
  EXPECT_LT(page.size(), 20000u);
  EXPECT_NE(page.find(name.substr(0, 255)), std::string::npos);
  EXPECT_NE(page.find(snowmen.substr(0, 4 + 83 * 3) + "\""), std::string::npos) << page;
}

TEST(HttpPort, ProbesAndUnknownPages) {
  TestServer server(WithPages);
  EXPECT_EQ(server.Page("/healthz"), "alive\n");
  EXPECT_EQ(server.Page("/readyz"), "ready\n");
  std::string head;
  server.Page("/etc/passwd", &head);
  EXPECT_NE(head.find("404"), std::string::npos);
}

}  // namespace
}  // namespace sparsed::test
