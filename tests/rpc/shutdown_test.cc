// Starting and stopping: taken addresses, draining, restarts.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <thread>

#include "tests/rpc/raw_stream.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

server::Config MinimalConfig() {
  server::Config config;
  config.listen = {"127.0.0.1:0"};
  config.metrics_listen.clear();
  config.host_memory_bytes = int64_t{1} << 28;
  config.preparation_memory_bytes = int64_t{1} << 27;
  return config;
}

TEST(Start, SaysWhichAddressIsTaken) {
  TestServer first(WithPages);
  server::Config config = MinimalConfig();
  config.listen = {first.address()};
  auto second = server::Server::Start(config);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(first.address()), std::string::npos) << second.status();
  MakeGood(first);
  ExpectGood(first);  // it kept its socket

  auto tcp = server::Server::Start(MinimalConfig());
  ASSERT_TRUE(tcp.ok()) << tcp.status();
  config.listen = (*tcp)->addresses();
  second = server::Server::Start(config);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("in use"), std::string::npos) << second.status();

  config = MinimalConfig();
  config.metrics_listen = first.server().metrics_address();
  second = server::Server::Start(config);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(config.metrics_listen), std::string::npos)
      << second.status();
}

TEST(Start, ServesAllAddressesAndASocketLeftBehind) {
  const std::string path = testing::TempDir() + "sparsed_left_behind";
  std::filesystem::remove(path);
  for (int round = 0; round < 2; ++round) {
    server::Config config = MinimalConfig();
    config.listen = {"127.0.0.1:0", "unix:" + path};
    auto server = server::Server::Start(config);
    ASSERT_TRUE(server.ok()) << server.status();
    ASSERT_EQ((*server)->addresses().size(), 2u);
    for (const std::string& address : (*server)->addresses()) {
      const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
      grpc::ClientContext context;
      v1::ServerInfo info;
      EXPECT_TRUE(v1::Admin::NewStub(channel)
                      ->GetServerInfo(&context, v1::GetServerInfoRequest(), &info)
                      .ok())
          << address;
    }
  }
}

TEST(Drain, FinishesWhatIsInFlightAndRefusesWhatIsNew) {
  TestServer server(WithPages);
  MustUpload(server, "long", Rmat(14, 16, 7));
  grpc::ClientContext context;
  auto stream = server.compute().Spgemm(&context);
  v1::SpgemmRequest request;
  request.mutable_start()->set_request_id(1);
  request.mutable_start()->set_left("long");
  request.mutable_start()->set_right("long");
  stream->Write(request);
  v1::ComputeReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  RawStream health(server.channel(), "/grpc.health.v1.Health/Watch");
  health.Write("");
  health.WritesDone();
  std::string status;
  ASSERT_TRUE(health.Read(&status));
  EXPECT_EQ(status, "\x08\x01");  // SERVING

  std::thread drain([&] { server.server().Drain(std::chrono::seconds(60)); });
  ASSERT_TRUE(health.Read(&status));
  EXPECT_EQ(status, "\x08\x02");  // NOT_SERVING
  EXPECT_EQ(server.Page("/readyz"), "not ready: the server starts or shuts down\n");
  request.mutable_start()->set_request_id(2);
  stream->Write(request);
  std::map<uint64_t, Answer> answers;
  EXPECT_TRUE(ReadUntilEnds(*stream, 2, &answers));
  EXPECT_EQ(answers[1].code(), 0) << answers[1].message();
  EXPECT_EQ(answers[2].code(), grpc::UNAVAILABLE) << answers[2].message();
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  drain.join();

  grpc::ClientContext late;
  auto refused = server.compute().Spmm(&late);
  EXPECT_FALSE(refused->Read(&reply));
  EXPECT_EQ(refused->Finish().error_code(), grpc::UNAVAILABLE);
}

TEST(Drain, IdleStreamsDoNotHoldItUp) {
  auto server = std::make_unique<TestServer>();
  MakeGood(*server);
  grpc::ClientContext context, watch_context;
  auto stream = server->compute().Spmm(&context);
  v1::WatchRequest watch;
  watch.set_name("good");
  watch.set_follow(true);
  auto watcher = server->catalog().Watch(&watch_context, watch);
  v1::WatchReply state;
  ASSERT_TRUE(watcher->Read(&state));
  const auto begin = std::chrono::steady_clock::now();
  server->server().Drain(std::chrono::seconds(60));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  v1::ComputeReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  EXPECT_FALSE(watcher->Read(&state));
  EXPECT_EQ(watcher->Finish().error_code(), grpc::UNAVAILABLE);
}

TEST(Drain, SilentClientsDoNotHoldItUp) {
  TestServer server;
  MakeGood(server);
  grpc::ClientContext empty_context, begun_context, put_context, spmm_context, unread_context;
  auto empty = server.catalog().Upload(&empty_context);
  auto begun = server.catalog().Upload(&begun_context);
  v1::UploadRequest header;
  *header.mutable_header() = HeaderOf("silent", Uniform(100, 100, 10, 1));
  begun->Write(header);
  WriteArray<v1::UploadRequest>(*begun, 0, 2, std::string(100, 'x'));
  v1::BufferInfo held;
  auto put = server.buffers().Put(&put_context, &held);
  auto spmm = server.compute().Spmm(&spmm_context);
  spmm->Write(SpmmStartOf(1, "good", 50, 3));
  auto unread = server.compute().Spmm(&unread_context);
  constexpr int64_t kWidth = 1 << 17;
  const std::vector<float> b = FloatValues(50 * kWidth, 2);
  unread->Write(SpmmStartOf(1, "good", 50, kWidth));
  WriteArray<v1::SpmmRequest>(*unread, 1, 0, BytesOf(b));
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::Stats stats;
    EXPECT_TRUE(server.admin().GetStats(&context, v1::GetStatsRequest(), &stats).ok());
    std::map<std::string, int64_t> counts;
    for (const auto& some : stats.in_flight()) {
      counts[some.operation() + " " + some.activity()] = some.count();
    }
    return counts["upload receiving"] == 2 && counts["put_buffer receiving"] == 1 &&
           counts["spmm receiving"] == 1 && counts["spmm sending"] == 1;
  }));

  const auto begin = std::chrono::steady_clock::now();
  server.server().Drain(std::chrono::seconds(60));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  v1::UploadReply reply;
  EXPECT_FALSE(empty->Read(&reply));
  EXPECT_EQ(empty->Finish().error_code(), grpc::UNAVAILABLE);
  EXPECT_FALSE(begun->Read(&reply));
  EXPECT_EQ(begun->Finish().error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(put->Finish().error_code(), grpc::UNAVAILABLE);
  std::map<uint64_t, Answer> answers;
  EXPECT_TRUE(ReadUntilEnds(*spmm, 1, &answers));
  EXPECT_EQ(answers[1].code(), grpc::UNAVAILABLE) << answers[1].message();
  v1::ComputeReply part;
  EXPECT_FALSE(spmm->Read(&part));
  EXPECT_EQ(spmm->Finish().error_code(), grpc::UNAVAILABLE);
  while (unread->Read(&part)) {
  }
  EXPECT_EQ(unread->Finish().error_code(), grpc::UNAVAILABLE);
}

TEST(Drain, TakesNothingNew) {
  TestServer server;
  MakeGood(server);
  server.server().Drain(std::chrono::seconds(60));
  const Pattern pattern = Band(5, 1);
  EXPECT_EQ(
      Upload(server.catalog(), HeaderOf("late", pattern), pattern, FloatValues(pattern.nnz(), 1))
          .error_code(),
      grpc::UNAVAILABLE);

  grpc::ClientContext update_context;
  v1::UpdateValuesReply updated;
  auto update = server.catalog().UpdateValues(&update_context, &updated);
  EXPECT_EQ(update->Finish().error_code(), grpc::UNAVAILABLE);
  grpc::ClientContext put_context;
  v1::BufferInfo held;
  auto put = server.buffers().Put(&put_context, &held);
  EXPECT_EQ(put->Finish().error_code(), grpc::UNAVAILABLE);

  grpc::ClientContext download_context;
  v1::DownloadRequest download;
  download.set_name("good");
  auto reader = server.catalog().Download(&download_context, download);
  v1::DownloadReply part;
  EXPECT_FALSE(reader->Read(&part));
  EXPECT_EQ(reader->Finish().error_code(), grpc::UNAVAILABLE);
  grpc::ClientContext delete_context;
  v1::DeleteMatrixRequest request;
  request.set_name("good");
  v1::DeleteMatrixReply deleted;
  EXPECT_EQ(server.catalog().Delete(&delete_context, request, &deleted).error_code(),
            grpc::UNAVAILABLE);

  grpc::ClientContext stats_context;
  v1::Stats stats;
  ASSERT_TRUE(server.admin().GetStats(&stats_context, v1::GetStatsRequest(), &stats).ok());
  EXPECT_EQ(stats.matrices(), 1);
}

TEST(Restart, KeepsWhatWasAcknowledged) {
  const std::string folder = testing::TempDir() + "sparsed_rpc_restart";
  std::filesystem::remove_all(folder);
  const auto durable = [&](server::Config& config) { config.data_dir = folder; };
  {
    TestServer server(durable);
    MakeGood(server);
    ExpectGood(server);
  }
  {
    TestServer server(durable);
    ExpectGood(server);
  }
  std::filesystem::remove_all(folder);
}

TEST(DataDirectory, DeletedUnderAServerIsSaid) {
  const std::string folder = testing::TempDir() + "sparsed_rpc_deleted";
  std::filesystem::remove_all(folder);
  {
    TestServer server([&](server::Config& config) {
      WithPages(config);
      config.data_dir = folder;
    });
    MakeGood(server);
    EXPECT_EQ(server.Page("/readyz"), "ready\n");
    EXPECT_NE(server.Page("/metrics").find("sparsed_store_up 1"), std::string::npos);
    std::filesystem::remove_all(folder);
    const Pattern late = Uniform(20, 20, 3, 1);
    const grpc::Status status =
        Upload(server.catalog(), HeaderOf("late", late), late, FloatValues(late.nnz(), 1));
    EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE) << status.error_message();
    EXPECT_NE(status.error_message().find("data directory"), std::string::npos)
        << status.error_message();
    EXPECT_EQ(status.error_message().find(folder), std::string::npos) << status.error_message();
    EXPECT_TRUE(Eventually(
        [&] { return server.Page("/readyz") == "not ready: the data directory is gone\n"; }));
    EXPECT_NE(server.Page("/metrics").find("sparsed_store_up 0"), std::string::npos);
    ExpectGood(server);  // from memory
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace sparsed::test
