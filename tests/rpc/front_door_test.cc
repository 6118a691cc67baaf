// Connections: how many, what they are called, and what becomes of those that say nothing or too
// much.
#include "server/listener/front_door.h"

#include <grpcpp/generic/async_generic_service.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <mutex>
#include <set>

#include "server/listener/self_probe.h"
#include "tests/fault/raw_http2.h"
#include "tests/rpc/raw_stream.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using server::AskHealth;

void OverTcp(server::Config& config) {
  WithPages(config);
  config.listen = {"127.0.0.1:0"};
}

bool Health(const std::shared_ptr<grpc::Channel>& channel) {
  RawStream call(channel, "/grpc.health.v1.Health/Check");
  call.Write("");
  call.WritesDone();
  std::string reply;
  return call.Read(&reply) && call.Finish().ok();
}

TEST(FrontDoor, BoundsConnectionsAndTakesOthersAfterThem) {
  TestServer server([](server::Config& config) {
    OverTcp(config);
    config.max_connections = 3;
  });
  std::vector<std::shared_ptr<grpc::Channel>> channels = {server.channel()};
  ASSERT_TRUE(Health(server.channel()));
  while (channels.size() < 3) {
    channels.push_back(server.Connect());
    ASSERT_TRUE(Health(channels.back()));
  }
  EXPECT_EQ(server.Sample("sparsed_connections"), 3);
  EXPECT_FALSE(Health(server.Connect()));
  EXPECT_GE(server.Sample("sparsed_connections_refused_total{reason=\"limit\"}"), 1);
  channels.resize(2);
  ASSERT_TRUE(Eventually([&] { return server.Sample("sparsed_connections") == 2; }));
  EXPECT_TRUE(Health(server.Connect()));
}

/// By where it listens.
class Probed : public testing::TestWithParam<const char*> {};

TEST_P(Probed, LetsItsOwnProbeInWhenItIsFull) {
  TestServer server([](server::Config& config) {
    OverTcp(config);
    config.listen = {GetParam()};
    config.insecure = true;
    config.max_connections = 1;
  });
  const std::string address = "127.0.0.1" + server.address().substr(server.address().rfind(':'));
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  ASSERT_TRUE(Health(channel));
  EXPECT_FALSE(AskHealth(address, std::chrono::seconds(5)).ok());
  // The server's own probe does better: it goes on being ready.
  std::this_thread::sleep_for(std::chrono::seconds(6));
  EXPECT_EQ(server.Page("/readyz"), "ready\n");
}

INSTANTIATE_TEST_SUITE_P(Addresses, Probed, testing::Values("127.0.0.1:0", "0.0.0.0:0"));

TEST(FrontDoor, InflatesNothing) {
  TestServer server(OverTcp);
  const std::string zeros(1 << 20, '\0');
  for (const char* method : {"/sparsed.v1.Catalog/List", "/sparsed.v1.Catalog/Upload"}) {
    for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
      grpc::ChannelArguments arguments;
      arguments.SetCompressionAlgorithm(algorithm);
      RawStream call(grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(),
                                               arguments),
                     method);
      call.Write(zeros);
      EXPECT_EQ(call.Finish().error_code(), grpc::UNIMPLEMENTED);
    }
  }
  EXPECT_TRUE(Health(server.channel()));
}

TEST(FrontDoor, WaitsForAPrefaceAndRefusesOtherWords) {
  TestServer server(OverTcp);
  std::vector<Descriptor> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(ConnectTo(server.address()));
  const Descriptor wrong = ConnectTo(server.address());
  const std::string_view words = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_EQ(send(wrong.fd(), words.data(), words.size(), 0), static_cast<ssize_t>(words.size()));
  ASSERT_TRUE(Eventually([&] {
    return server.Sample("sparsed_connections_refused_total{reason=\"protocol\"}") == 1;
  }));
  EXPECT_EQ(server.Sample("sparsed_connections"), 0);
  // A preface in two parts.
  const std::string opening = Http2Opening();
  ASSERT_EQ(send(silent[0].fd(), opening.data(), 10, 0), 10);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(server.Sample("sparsed_connections"), 0);
  ASSERT_GT(send(silent[0].fd(), opening.data() + 10, opening.size() - 10, 0), 0);
  EXPECT_TRUE(Eventually([&] { return server.Sample("sparsed_connections") == 1; }));
  silent.clear();
  EXPECT_TRUE(Eventually([&] { return server.Sample("sparsed_connections") == 0; }));
  EXPECT_TRUE(Health(server.channel()));
}

TEST(FrontDoor, EndsAConnectionForItsHeadersAndServesOthers) {
  TestServer server(OverTcp);
  const std::string headers =
      Http2Frame(kHeadersFrame, 0, 1, CallHeaders("/sparsed.v1.Admin/GetStats") + EndlessField());
  const std::string part = Http2Frame(kContinuationFrame, 0, 1, std::string(16384, 'x'));
  // Each of them ends; by how the bytes fall into reads, gRPC may be the first to have had enough.
  EXPECT_TRUE(Eventually([&] {
    RawHttp2 attacker(server.address());
    attacker.Send(headers);
    EXPECT_TRUE(Eventually([&] {
      attacker.Send(part);
      attacker.Read();
      return !attacker.open();
    }));
    return server.Sample("sparsed_connections_ended_total{reason=\"headers\"}") >= 1;
  }));
  EXPECT_TRUE(Health(server.channel()));
}

/// Says who called.
class Peers final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    struct Reactor final : grpc::ServerGenericBidiReactor {
      void OnDone() override { delete this; }
    };
    {
      const std::lock_guard lock(mutex_);
      peers_.insert(context->peer());
    }
    auto* const reactor = new Reactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  std::set<std::string> peers() {
    const std::lock_guard lock(mutex_);
    return peers_;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> peers_;
};

TEST(FrontDoor, EveryConnectionHasANameOfItsOwn) {
  const std::string path = testing::TempDir() + "sparsed_front_door";
  Peers peers;
  server::FrontDoor::Options options;
  options.addresses = {"unix:" + path, "127.0.0.1:0"};
  options.max_unfinished_bytes = 1 << 20;
  auto door = server::FrontDoor::Open(options);
  ASSERT_TRUE(door.ok()) << door.status();
  grpc::ServerBuilder builder;
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(&peers);
  const auto grpc_server = builder.BuildAndStart();
  ASSERT_TRUE((*door)->Serve(std::move(acceptor)).ok());
  for (const std::string& address : (*door)->addresses()) {
    for (int i = 0; i < 3; ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      RawStream call(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments),
          "/any/Method");
      EXPECT_TRUE(call.Finish().ok());
    }
  }
  const std::set<std::string> seen = peers.peers();
  EXPECT_EQ(seen.size(), 6u);
  for (const char* name :
       {"unix-abstract:connection-1", "unix-abstract:connection-2", "unix-abstract:connection-3"}) {
    EXPECT_TRUE(seen.contains(name)) << *seen.rbegin();
  }
  (*door)->Close();
  EXPECT_FALSE(std::filesystem::exists(path));
  grpc_server->Shutdown();
}

TEST(FrontDoor, GoesOnWithoutDescriptors) {
  // In a process of its own, so that nobody else lacks them.
  const auto starve_and_recover = [] {
    TestServer server(OverTcp);
    if (!Health(server.channel())) _exit(2);
    std::vector<Descriptor> all;
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 300;
    setrlimit(RLIMIT_NOFILE, &limit);
    const Descriptor early = ConnectTo(server.address());
    while (true) {
      Descriptor fd(dup(early.fd()));
      if (!fd.open()) break;
      all.push_back(std::move(fd));
    }
    all.pop_back();  // for our end
    // The server's probe of itself may be faster, and take it.
    const bool closed = Eventually([&] {
      const Descriptor refused = ConnectTo(server.address());
      char byte = 0;
      pollfd end = {refused.fd(), POLLIN, 0};
      return refused.open() && poll(&end, 1, 1000) == 1 && recv(refused.fd(), &byte, 1, 0) == 0;
    });
    all.clear();
    _exit(closed && Health(server.Connect()) ? 0 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(starve_and_recover(), testing::ExitedWithCode(0), "");
}

TEST(SelfProbe, TellsWhatDoesNotAnswerAndGivesUp) {
  // It takes connections, and says nothing.
  const std::string path = testing::TempDir() + "sparsed_silent";
  auto silent = server::ListenSocket::Open("unix:" + path);
  ASSERT_TRUE(silent.ok()) << silent.status();
  EXPECT_FALSE(AskHealth("unix:" + path, std::chrono::milliseconds(50)).ok());
  EXPECT_FALSE(AskHealth("127.0.0.1:1", std::chrono::seconds(1)).ok());

  std::mutex mutex;
  absl::Status last;
  std::atomic<int> told = 0, gave_up = 0;
  server::SelfProbe::Options options;
  options.addresses = {"unix:" + path};
  options.interval = options.time = options.patience = std::chrono::milliseconds(20);
  options.told = [&](const absl::Status& status) {
    const std::lock_guard lock(mutex);
    last = status;
    ++told;
  };
  options.give_up = [&] { ++gave_up; };
  {
    const server::SelfProbe probe(options);
    EXPECT_TRUE(Eventually([&] { return gave_up > 0 && told > 6; }));
  }
  EXPECT_EQ(gave_up, 1);
  EXPECT_NE(last.message().find(path), std::string::npos) << last;
}

TEST(SelfProbe, ReadinessTurnsRedWhenTheSocketIsGone) {
  TestServer server(WithPages);
  EXPECT_EQ(server.Page("/readyz"), "ready\n");
  const std::string path = server.address().substr(std::string("unix:").size());
  std::filesystem::rename(path, path + ".away");
  EXPECT_TRUE(Eventually([&] {
    return server.Page("/readyz").find("does not answer at " + server.address()) !=
           std::string::npos;
  })) << server.Page("/readyz");
  std::filesystem::rename(path + ".away", path);
  EXPECT_TRUE(Eventually([&] { return server.Page("/readyz") == "ready\n"; }));
}

}  // namespace
}  // namespace sparsed::test
