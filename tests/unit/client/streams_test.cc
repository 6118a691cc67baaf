// Several streams for one request: servers that die, that know nothing of carriers, and whose end
// comes before the last bytes.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sparsed/v1/admin.grpc.pb.h"
#include "sparsed/v1/compute.grpc.pb.h"
#include "tests/unit/client/client_testing.h"

namespace sparsed::test {
namespace {

constexpr int64_t kRows = 3, kInner = 1 << 20;  // B has 4 MiB
constexpr size_t kResultBytes = kRows * sizeof(float);

/// Answers every product with the values 1, 2, 3; of one with carriers the first stays behind its
/// end.
class CarryingServer final : public v1::Compute::Service, public v1::Admin::Service {
 public:
  /// kNotKnown: the server says that the carrier has ended, though it has not.
  enum class Last { kComes, kIsAnother, kNever, kNoCarriers, kNotKnown };

  explicit CarryingServer(Last last) : last_(last) {
    address_ = "unix:" + testing::TempDir() + "sparsed_carrying_" + std::to_string(getpid());
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(static_cast<v1::Compute::Service*>(this));
    builder.RegisterService(static_cast<v1::Admin::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~CarryingServer() override { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& address() const { return address_; }
  int opened() {
    const std::lock_guard lock(mutex_);
    return opened_;
  }
  /// Requests that named a carrier.
  int carried() {
    const std::lock_guard lock(mutex_);
    return carried_;
  }

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* info) override {
    info->set_max_chunk_bytes(1 << 20);
    info->set_max_requests_per_stream(4);
    return grpc::Status::OK;
  }

  grpc::Status Spmm(grpc::ServerContext*,
                    grpc::ServerReaderWriter<v1::ComputeReply, v1::SpmmRequest>* stream) override {
    v1::SpmmRequest request;
    while (stream->Read(&request)) {
      if (request.has_start()) Reply(*stream, request.start());
    }
    return grpc::Status::OK;
  }

  grpc::Status Carry(grpc::ServerContext* context,
                     grpc::ServerReaderWriter<v1::CarryReply, v1::CarryRequest>* stream) override {
    {
      const std::lock_guard lock(mutex_);
      ++opened_;
    }
    if (last_ == Last::kNoCarriers) return {grpc::StatusCode::UNIMPLEMENTED, "what is that?"};
    v1::CarryReply reply;
    reply.set_carrier(std::string(16, 'c'));
    stream->Write(reply);
    uint64_t id = 0;
    {
      std::unique_lock lock(mutex_);
      while (owed_ == 0 && !context->IsCancelled()) {
        changed_.wait_for(lock, std::chrono::milliseconds(10));
      }
      id = std::exchange(owed_, 0);
    }
    if (last_ == Last::kNever || id == 0) return {grpc::StatusCode::UNAVAILABLE, "told to"};
    *reply.mutable_chunk() = ChunkOf(id, last_ == Last::kIsAnother ? 1 : 0);
    stream->Write(reply);
    v1::CarryRequest ignored;
    while (stream->Read(&ignored)) {
    }
    return grpc::Status::OK;
  }

 private:
  static v1::Chunk ChunkOf(uint64_t id, int64_t element) {
    v1::Chunk chunk;
    chunk.set_request_id(id);
    chunk.set_offset(static_cast<uint64_t>(element) * sizeof(float));
    const auto value = static_cast<float>(element + 1);
    chunk.set_data(std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
    return chunk;
  }

  void Reply(grpc::ServerReaderWriter<v1::ComputeReply, v1::SpmmRequest>& stream,
             const v1::SpmmStart& start) {
    const uint64_t id = start.request_id();
    const bool carried = start.carriers_size() > 0;
    v1::ComputeReply reply;
    if (carried && last_ == Last::kNotKnown) {
      reply.mutable_end()->set_request_id(id);
      reply.mutable_end()->mutable_status()->set_code(grpc::StatusCode::UNAVAILABLE);
      {
        // Before its client can ask.
        const std::lock_guard lock(mutex_);
        ++carried_;
      }
      stream.Write(reply);
      return;
    }
    v1::Begin& begin = *reply.mutable_begin();
    begin.set_request_id(id);
    begin.set_rows(kRows);
    begin.set_cols(1);
    v1::ArrayHeader& array = *begin.add_arrays();
    array.set_type(v1::ELEMENT_TYPE_F32);
    array.set_length(kRows);
    stream.Write(reply);
    for (int64_t i = carried ? 1 : 0; i < kRows; ++i) {
      *reply.mutable_chunk() = ChunkOf(id, i);
      stream.Write(reply);
    }
    reply.mutable_end()->set_request_id(id);
    stream.Write(reply);
    if (!carried) return;
    const std::lock_guard lock(mutex_);
    ++carried_;
    owed_ = id;
    changed_.notify_all();
  }

  const Last last_;
  std::string address_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t owed_ = 0;  ///< the request whose first element is missing
  int opened_ = 0, carried_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

/// Multiplies until a request had carriers; how that went. Without, each must be right.
absl::Status MultiplyCarried(CarryingServer& server, const Client& client) {
  const std::vector<float> b(kInner, 1);
  absl::Status status;
  Eventually([&] {
    std::vector<float> c(kRows, kPoison);
    const auto done = client.MatrixNamed("m").Spmm(DenseView(b.data(), kInner, 1),
                                                   MutableDenseView(c.data(), kRows, 1));
    status = done.status();
    const bool carried = server.carried() > 0;
    EXPECT_TRUE(carried || done.ok()) << done.status();
    EXPECT_TRUE(!done.ok() || c == (std::vector<float>{1, 2, 3}));
    return carried;
  });
  EXPECT_EQ(server.carried(), 1);
  return status;
}

Client ConnectTo(const CarryingServer& server, int streams, int attempts = 1) {
  auto client = Client::Connect(server.address(), {.max_attempts = attempts, .streams = streams});
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

TEST(ClientStreams, TheEndMayComeBeforeTheLastBytes) {
  CarryingServer server(CarryingServer::Last::kComes);
  const absl::Status status = MultiplyCarried(server, ConnectTo(server, 2));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(server.opened(), 1);
}

TEST(ClientStreams, OneThatBreaksBehindTheEndIsUnavailable) {
  CarryingServer server(CarryingServer::Last::kNever);
  const absl::Status status = MultiplyCarried(server, ConnectTo(server, 2));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_NE(status.message().find("carried some of the request"), std::string::npos) << status;
}

TEST(ClientStreams, OneThatTheServerKnowsNoMoreIsNotUsedAgain) {
  CarryingServer server(CarryingServer::Last::kNotKnown);
  const Client client = ConnectTo(server, 2, 2);
  const absl::Status status = MultiplyCarried(server, client);
  EXPECT_TRUE(status.ok()) << status;
  // The request may end before the server comes to the new one.
  EXPECT_TRUE(Eventually([&] { return server.opened() == 2; })) << server.opened();
}

TEST(ClientStreams, AreNotTrusted) {
  CarryingServer server(CarryingServer::Last::kIsAnother);
  // It came on the stream, too.
  const absl::Status status = MultiplyCarried(server, ConnectTo(server, 2));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
}

TEST(ClientStreams, OneServesWhereTheServerKnowsNoMore) {
  CarryingServer server(CarryingServer::Last::kNoCarriers);
  const Client client = ConnectTo(server, 4);
  const std::vector<float> b(kInner, 1);
  for (int i = 0; i < 20; ++i) {
    std::vector<float> c(kRows, kPoison);
    const auto done = client.MatrixNamed("m").Spmm(DenseView(b.data(), kInner, 1),
                                                   MutableDenseView(c.data(), kRows, 1));
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(c, (std::vector<float>{1, 2, 3}));
  }
  EXPECT_TRUE(Eventually([&] { return server.opened() >= 3; }));
  EXPECT_EQ(server.opened(), 3) << "it was asked once for each";
}

TEST(ClientStreams, SmallRequestsNeedNone) {
  CarryingServer server(CarryingServer::Last::kComes);
  const Client client = ConnectTo(server, 4);
  const std::vector<float> b(100, 1);
  std::vector<float> c(kRows, kPoison);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(client.MatrixNamed("m")
                    .Spmm(DenseView(b.data(), 100, 1), MutableDenseView(c.data(), kRows, 1))
                    .ok());
  }
  EXPECT_EQ(server.opened(), 0);
}

TEST(ClientStreams, OutliveTheServer) {
  Folder folder;
  const std::string data = "--data-dir=" + folder.path() + "/data";
  const std::string address = "unix:" + folder.path() + "/socket";
  auto server = std::make_unique<ServerProcess>(std::vector<std::string>{data}, address);
  const Client client = Connect(
      *server,
      {.max_attempts = 1000, .initial_backoff = std::chrono::milliseconds(1), .streams = 3});
  const CsrMatrix s = RandomMatrix(1101, 1003, 1);
  Upload(client, "m", s);
  constexpr int64_t kWidth = 1101;
  const std::vector<float> b = RandomDense(1003 * kWidth, 2);
  const std::vector<float> expected = Multiply(s, false, b, kWidth);
  std::vector<float> c(expected.size());
  const CallOptions in_a_minute{.timeout = std::chrono::minutes(1)};
  for (int round = 0; round < 6; ++round) {
    std::ranges::fill(c, kPoison);
    auto call = client.MatrixNamed("m").SpmmAsync(DenseView(b.data(), 1003, kWidth),
                                                  MutableDenseView(c.data(), 1101, kWidth), {},
                                                  in_a_minute);
    if (round % 2 == 1) {
      server->End(SIGKILL);
      server = std::make_unique<ServerProcess>(std::vector<std::string>{data}, address);
    }
    const auto done = call.Wait();
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_TRUE(c == expected) << round;
  }
}

}  // namespace
}  // namespace sparsed::test
