// The local socket and what requests may name of the memory that was shared over it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"
#include "tests/unit/client/shared_products.h"

namespace sparsed::test {
namespace {

using ::testing::HasSubstr;

TEST(Local, ProductsOfAllKinds) {
  TestServer server([](server::Config& config) {
    WithLocal(config);
    WithPages(config);
  });
  CheckSharedProducts(server.address());
  const std::string metrics = server.Page("/metrics");
  for (const char* direction : {"in", "out"}) {
    const std::string line = std::string("sparsed_transfer_bytes_total{direction=\"") + direction +
                             "\",path=\"shared_host\"} ";
    const size_t at = metrics.find(line);
    ASSERT_NE(at, std::string::npos) << metrics;
    EXPECT_GT(std::stod(metrics.substr(at + line.size())), 1e5);
  }
  // Once the server has noticed that the client is gone.
  EXPECT_TRUE(Eventually([&] {
    return server.Page("/metrics").find("sparsed_shared_regions 0") != std::string::npos;
  }));
}

TEST(Local, GreetsWithTheServersId) {
  TestServer server(WithLocal);
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(server.admin().GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.local_socket(), LocalPathOf(server));
  EXPECT_EQ(info.server_id().size(), 32u);
  Peer peer(server);
  EXPECT_EQ(peer.Receive()->hello().server_id(), info.server_id());
}

TEST(Local, UsesGpuMemoryOfCallersOnlyIfItMay) {
  v1::LocalRequest request;
  v1::OpenCallerMemory& open = *request.mutable_open_caller_memory();
  open.set_gpu(std::string(16, 'x'));
  open.set_handle(std::string(64, 'x'));
  open.set_bytes(4096);
  {
    TestServer server(WithLocal);
    Peer peer(server);
    peer.Receive();
    const v1::LocalReply reply = peer.Ask(request);
    EXPECT_EQ(reply.status().code(), grpc::PERMISSION_DENIED);
    EXPECT_THAT(reply.status().message(), HasSubstr("--trust-caller-gpu-memory"));
  }
  TestServer server([](server::Config& config) {
    WithLocal(config);
    config.trust_caller_gpu_memory = true;
  });
  Peer peer(server);
  peer.Receive();
  EXPECT_EQ(peer.Ask(request).status().code(), kPrecondition) << "it has no such GPU";
  open.clear_gpu();
  EXPECT_EQ(peer.Ask(request).status().code(), kInvalid);
}

TEST(Local, TakesSealedMemoryFilesAlone) {
  TestServer server(WithLocal);
  const size_t files = OpenFiles();
  {
    Peer peer(server);
    peer.Receive();
    EXPECT_EQ(peer.Share({}).status().code(), kInvalid) << "no descriptor";
    const File unsealed(4096, 0), empty(0), never(4096, 0, 0);
    EXPECT_EQ(peer.Share({unsealed.fd()}).status().code(), kInvalid);
    EXPECT_EQ(peer.Share({empty.fd()}).status().code(), kInvalid);
    EXPECT_EQ(peer.Share({never.fd()}).status().code(), kInvalid);
    EXPECT_EQ(peer.Share({STDERR_FILENO}).status().code(), kInvalid);
    const int ordinary = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(peer.Share({ordinary}).status().code(), kInvalid);
    close(ordinary);
    const File good(4096);
    const int read_only =
        open(("/proc/self/fd/" + std::to_string(good.fd())).c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(read_only, 0);
    EXPECT_EQ(peer.Share({read_only}).status().code(), kInvalid);
    close(read_only);
    const File not_writable(4096, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE);
    EXPECT_EQ(peer.Share({not_writable.fd()}).status().code(), kInvalid);
    // Of which no page is taken; the server has 1 GiB, a connection may take half of it.
    const File huge(size_t{600} << 20), most(size_t{500} << 20);
    const v1::LocalReply refused = peer.Share({huge.fd()});
    EXPECT_EQ(refused.status().code(), kExhausted) << refused.status().message();
    const std::string region = peer.Share({most.fd()}).region();
    EXPECT_EQ(peer.Share({most.fd()}).status().code(), kExhausted);
    // All of them together: three quarters of it.
    const File more(size_t{200} << 20);
    Peer other(server), third(server);
    other.Receive();
    third.Receive();
    EXPECT_EQ(other.Share({more.fd()}).status().code(), kOk);
    const v1::LocalReply full = third.Share({more.fd()});
    EXPECT_EQ(full.status().code(), kExhausted);
    EXPECT_THAT(full.status().message(), HasSubstr("three quarters of --host-memory"));
    EXPECT_EQ(peer.Forget(region).status().code(), kOk);
    EXPECT_EQ(third.Share({more.fd()}).status().code(), kOk);
    const int64_t before = server.engine().budget().used(engine::MemoryUse::kShared);
    const v1::LocalReply reply = peer.Share({good.fd()});
    EXPECT_EQ(reply.status().code(), kOk) << reply.status().message();
    EXPECT_EQ(reply.region().size(), 16u);
    EXPECT_EQ(server.engine().budget().used(engine::MemoryUse::kShared), before + 4096);
    EXPECT_NE(ftruncate(good.fd(), 100), 0) << "it cannot be shrunk any more";
  }
  EXPECT_TRUE(Eventually([&] {
    return server.engine().budget().used(engine::MemoryUse::kShared) == 0 && OpenFiles() == files;
  }));
}

TEST(Local, NonsenseEndsTheConnectionAndNothingElse) {
  TestServer server(WithLocal);
  Peer other(server);
  other.Receive();
  const File file(4096);
  const size_t files = OpenFiles();
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Peer peer(server);
    peer.Receive();
    std::string bytes(1 + random() % 6000, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    std::vector<int> sent(random() % 4, file.fd());
    peer.Send(bytes, sent);
    const auto reply = peer.Receive();
    EXPECT_TRUE(!reply || reply->status().code() != kOk);
  }
  {
    Peer peer(server);
    peer.Receive();
    v1::LocalRequest request;
    request.mutable_share();
    peer.Send(request.SerializeAsString(), {file.fd(), file.fd()});
    EXPECT_FALSE(peer.Receive().has_value()) << "two descriptors";
  }
  EXPECT_EQ(other.Share({file.fd()}).status().code(), kOk);
  EXPECT_TRUE(Eventually([&] { return OpenFiles() <= files; }));
}

TEST(Local, RegionsAreTheirConnectionsOwn) {
  TestServer server(WithLocal);
  const File file(4096);
  Peer one(server), other(server);
  one.Receive();
  other.Receive();
  const std::string region = one.Share({file.fd()}).region();
  EXPECT_EQ(other.Forget(region).status().code(), kNotFound);
  EXPECT_EQ(one.Forget("nothing").status().code(), kNotFound);
  EXPECT_EQ(one.Forget(region).status().code(), kOk);
  EXPECT_EQ(one.Forget(region).status().code(), kNotFound);
  EXPECT_EQ(server.engine().budget().used(engine::MemoryUse::kShared), 0);
}

TEST(Local, RepliesWaitForWhoReadsThemLater) {
  TestServer server(WithLocal);
  Peer peer(server);
  peer.Receive();
  // More than the socket takes; each has the number of its request.
  constexpr uint64_t kRequests = 1000;
  for (uint64_t id = 1; id <= kRequests; ++id) {
    v1::LocalRequest request;
    request.set_request_id(id);
    request.mutable_forget()->set_region("nothing");
    peer.Send(request.SerializeAsString());
  }
  for (uint64_t id = 1; id <= kRequests; ++id) {
    const auto reply = peer.Receive();
    ASSERT_TRUE(reply.has_value()) << id;
    EXPECT_EQ(reply->request_id(), id);
    EXPECT_EQ(reply->status().code(), kNotFound);
  }
}

TEST(Local, WhoNeverReadsIsDisconnected) {
  TestServer server([](server::Config& config) {
    WithLocal(config);
    WithPages(config);
  });
  Peer peer(server);
  v1::LocalRequest request;
  request.mutable_forget()->set_region("nothing");
  int sent = 0;
  while (sent < 10'000 && peer.Send(request.SerializeAsString())) ++sent;
  EXPECT_LT(sent, 10'000);
  EXPECT_TRUE(Eventually([&] {
    const std::string metrics = server.Page("/metrics");
    return metrics.find("sparsed_local_connections 0") != std::string::npos;
  }));
}

TEST(Local, AConnectionSharesSoMuchAndSoManyMayCome) {
  TestServer server(WithLocal);
  const File file(4096);
  Peer peer(server);
  peer.Receive();
  for (int i = 0; i < 1024; ++i) ASSERT_EQ(peer.Share({file.fd()}).status().code(), kOk) << i;
  EXPECT_EQ(peer.Share({file.fd()}).status().code(), kExhausted);
  std::vector<std::unique_ptr<Peer>> peers;
  for (int i = 0; i < 255; ++i) {
    peers.push_back(std::make_unique<Peer>(server));
    ASSERT_TRUE(peers.back()->Receive().has_value()) << i;
  }
  Peer late(server);
  EXPECT_EQ(late.Receive().value_or(v1::LocalReply()).status().code(), kExhausted);
  EXPECT_FALSE(late.Receive().has_value()) << "it is closed";
  peers.clear();
  EXPECT_TRUE(Eventually([&] {
    const auto said = Peer(server).Receive();
    return said && said->hello().server_id() != "";
  }));
}

/// Requests that name parts of one region of 4 KiB.
class SharedRequests : public testing::Test {
 protected:
  explicit SharedRequests(const std::function<void(server::Config&)>& configure = WithLocal)
      : server_(configure), file_(4096), peer_(server_) {
    pattern_ = Uniform(8, 8, 3, 1);
    values_ = MustUpload(server_, "s", pattern_);
    peer_.Receive();
    region_ = peer_.Share({file_.fd()}).region();
  }

  void Place(v1::SharedMemory& memory, uint64_t offset) const {
    memory.set_region(region_);
    memory.set_offset(offset);
  }
  static void Shape(v1::DenseShape& shape, int64_t rows, int64_t cols) {
    shape.set_rows(rows);
    shape.set_cols(cols);
    shape.set_type(v1::ELEMENT_TYPE_F32);
  }
  /// S * B, both 8 x 8, B at 0 and C at 1024.
  v1::SpmmRequest Good() const {
    v1::SpmmRequest request;
    v1::SpmmStart& start = *request.mutable_start();
    start.set_request_id(1);
    start.set_matrix("s");
    Shape(*start.mutable_b()->mutable_shape(), 8, 8);
    Place(*start.mutable_b()->mutable_shared(), 0);
    Shape(*start.mutable_result()->mutable_shared()->mutable_shape(), 8, 8);
    Place(*start.mutable_result()->mutable_shared()->mutable_memory(), 1024);
    return request;
  }
  Answer Ask(const v1::SpmmRequest& request) {
    grpc::ClientContext context;
    auto stream = server_.compute().Spmm(&context);
    stream->Write(request);
    stream->WritesDone();
    std::map<uint64_t, Answer> answers;
    ReadUntilEnds(*stream, 1, &answers);
    EXPECT_TRUE(stream->Finish().ok());
    return answers[1];
  }
  int CodeOf(const v1::SpmmRequest& request) {
    const Answer answer = Ask(request);
    EXPECT_TRUE(answer.code() == kOk || answer.message().size() > 20) << answer.message();
    return answer.code();
  }

  TestServer server_;
  File file_;
  Peer peer_;
  Pattern pattern_;
  std::vector<float> values_;
  std::string region_;
};

TEST_F(SharedRequests, WriteNothingButTheResult) {
  for (int i = 0; i < 1024; ++i) file_.floats()[i] = static_cast<float>(i % 7);
  ASSERT_EQ(CodeOf(Good()), kOk);
  for (int row = 0; row < 8; ++row) {
    for (int col = 0; col < 8; ++col) {
      double sum = 0;
      for (int64_t i = pattern_.row_offsets[row]; i < pattern_.row_offsets[row + 1]; ++i) {
        sum += static_cast<double>(values_[i]) * ((pattern_.column_indices[i] * 8 + col) % 7);
      }
      EXPECT_NEAR(file_.floats()[256 + row * 8 + col], sum, 1e-5);
    }
  }
  for (int i = 0; i < 1024; ++i) {
    if (i >= 256 && i < 320) continue;
    EXPECT_EQ(file_.floats()[i], static_cast<float>(i % 7)) << i;
  }
}

TEST_F(SharedRequests, ThatNameWhatIsNotTheirs) {
  v1::SpmmRequest request = Good();
  request.mutable_start()->mutable_b()->mutable_shared()->set_region(std::string(16, 'x'));
  EXPECT_EQ(CodeOf(request), kNotFound);
  request = Good();
  request.mutable_start()->mutable_b()->mutable_shared()->clear_region();
  EXPECT_EQ(CodeOf(request), kNotFound);
  request = Good();
  request.mutable_start()->mutable_result()->mutable_shared()->mutable_memory()->set_region("y");
  EXPECT_EQ(CodeOf(request), kNotFound);
  EXPECT_EQ(CodeOf(Good()), kOk);
  peer_.Forget(region_);
  EXPECT_EQ(CodeOf(Good()), kNotFound) << "replayed";
}

TEST_F(SharedRequests, ThatLeaveTheRegion) {
  const auto b_at = [&](uint64_t offset) {
    v1::SpmmRequest request = Good();
    Place(*request.mutable_start()->mutable_b()->mutable_shared(), offset);
    return CodeOf(request);
  };
  const auto c_at = [&](uint64_t offset) {
    v1::SpmmRequest request = Good();
    Place(*request.mutable_start()->mutable_result()->mutable_shared()->mutable_memory(), offset);
    return CodeOf(request);
  };
  EXPECT_EQ(b_at(4096 - 256), kOk);
  EXPECT_EQ(c_at(4096 - 256), kOk);
  for (const uint64_t offset : {uint64_t{4096 - 192}, uint64_t{4096}, uint64_t{4}, uint64_t{32},
                                uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 63}) {
    EXPECT_EQ(b_at(offset), kInvalid) << offset;
    EXPECT_EQ(c_at(offset), kInvalid) << offset;
  }
  v1::SpmmRequest wide = Good();
  wide.mutable_start()->mutable_result()->mutable_shared()->mutable_shape()->set_leading_dimension(
      int64_t{1} << 61);
  EXPECT_EQ(CodeOf(wide), kInvalid);
  wide = Good();
  wide.mutable_start()->mutable_b()->mutable_shape()->set_leading_dimension(1 << 20);
  EXPECT_EQ(CodeOf(wide), kInvalid);
}

TEST_F(SharedRequests, WhoseShapesAreNotTheProducts) {
  v1::SpmmRequest request = Good();
  request.mutable_start()->mutable_result()->mutable_shared()->mutable_shape()->set_rows(7);
  EXPECT_EQ(CodeOf(request), kInvalid);
  request = Good();
  request.mutable_start()->mutable_result()->mutable_shared()->mutable_shape()->set_type(
      v1::ELEMENT_TYPE_F64);
  EXPECT_EQ(CodeOf(request), kInvalid);
  request = Good();
  request.mutable_start()->mutable_result()->mutable_shared()->clear_shape();
  EXPECT_EQ(CodeOf(request), kInvalid);
  request = Good();
  request.mutable_start()->mutable_b()->clear_shape();
  EXPECT_EQ(CodeOf(request), kInvalid);
  request = Good();
  request.mutable_start()->mutable_b()->mutable_shape()->set_rows(-8);
  EXPECT_EQ(CodeOf(request), kInvalid);
}

TEST_F(SharedRequests, WhoseResultWouldOverwriteAnOperand) {
  v1::SpmmRequest request = Good();
  Place(*request.mutable_start()->mutable_result()->mutable_shared()->mutable_memory(), 192);
  EXPECT_EQ(CodeOf(request), kInvalid);
  // C's old value may lie there, in the same shape alone.
  request = Good();
  v1::SpmmStart& start = *request.mutable_start();
  start.set_beta(2);
  Shape(*start.mutable_accumulate()->mutable_shape(), 8, 8);
  Place(*start.mutable_accumulate()->mutable_shared(), 1024);
  EXPECT_EQ(CodeOf(request), kOk);
  start.mutable_accumulate()->mutable_shape()->set_leading_dimension(9);
  EXPECT_EQ(CodeOf(request), kInvalid);
}

TEST_F(SharedRequests, OfColumnsOfOneMatrix) {
  // Columns of a matrix with 32: B's and C's first begin 16 columns apart.
  for (int i = 0; i < 1024; ++i) file_.floats()[i] = static_cast<float>(i % 7);
  v1::SpmmRequest request = Good();
  v1::SpmmStart& start = *request.mutable_start();
  v1::SharedResult& result = *start.mutable_result()->mutable_shared();
  const auto columns = [&](int64_t count) {
    for (v1::DenseShape* shape : {start.mutable_b()->mutable_shape(), result.mutable_shape()}) {
      Shape(*shape, 8, count);
      shape->set_leading_dimension(32);
    }
    Place(*result.mutable_memory(), 64);
  };
  columns(16);
  ASSERT_EQ(CodeOf(request), kOk);
  for (int row = 0; row < 8; ++row) {
    for (int col = 0; col < 32; ++col) {
      const float got = file_.floats()[row * 32 + col];
      double expected = static_cast<float>((row * 32 + col) % 7);
      if (col >= 16) {
        expected = 0;
        for (int64_t i = pattern_.row_offsets[row]; i < pattern_.row_offsets[row + 1]; ++i) {
          const int64_t there = pattern_.column_indices[i] * 32 + col - 16;
          expected += static_cast<double>(values_[i]) * (there % 7);
        }
      }
      EXPECT_NEAR(got, expected, 1e-5) << row << ' ' << col;
    }
  }
  columns(17);
  EXPECT_EQ(CodeOf(request), kInvalid) << "the 17th";
  // The other way round: the last columns of C would be the first of B, a row below.
  columns(17);
  Place(*start.mutable_b()->mutable_shared(), 64);
  Place(*result.mutable_memory(), 0);
  EXPECT_EQ(CodeOf(request), kInvalid);
  columns(16);
  Place(*start.mutable_b()->mutable_shared(), 64);
  Place(*result.mutable_memory(), 128);
  EXPECT_EQ(CodeOf(request), kOk) << "a row below, beside B";
}

TEST_F(SharedRequests, KeepTheirMemoryFromBeingForgotten) {
  v1::SpmmRequest request = Good();
  request.mutable_start()->mutable_b()->set_stream_array(0);
  grpc::ClientContext context;
  auto stream = server_.compute().Spmm(&context);
  stream->Write(request);
  ASSERT_TRUE(Eventually([&] { return server_.engine().executor().in_flight() == 1; }));
  const auto forget = [this](uint64_t id, const std::string& region) {
    v1::LocalRequest message;
    message.set_request_id(id);
    message.mutable_forget()->set_region(region);
    peer_.Send(message.SerializeAsString());
  };
  forget(1, region_);
  forget(2, "nothing");
  EXPECT_EQ(peer_.Receive()->request_id(), 2u) << "the first waits for the request";
  EXPECT_EQ(CodeOf(Good()), kNotFound) << "others do not find it any more";
  EXPECT_EQ(server_.engine().budget().used(engine::MemoryUse::kShared), 4096);
  const std::vector<float> b(64, 1);
  WriteArray<v1::SpmmRequest>(*stream, 1, 0, BytesOf(b));
  stream->WritesDone();
  std::map<uint64_t, Answer> answers;
  ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  EXPECT_EQ(answers[1].code(), kOk) << answers[1].message();
  const std::optional<v1::LocalReply> reply = peer_.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->request_id(), 1u);
  EXPECT_EQ(reply->status().code(), kOk);
  EXPECT_EQ(server_.engine().budget().used(engine::MemoryUse::kShared), 0);
}

/// To a server that waits half a second for bytes.
class SilentRequests : public SharedRequests {
 protected:
  SilentRequests()
      : SharedRequests([](server::Config& config) {
          WithLocal(config);
          config.receive_idle_seconds = 0.5;
        }) {}
};

TEST_F(SilentRequests, HoldNoMemoryOnAStreamThatIsBusy) {
  v1::SpmmRequest request = Good();
  request.mutable_start()->mutable_b()->set_stream_array(0);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  auto stream = server_.compute().Spmm(&context);
  stream->Write(request);
  std::atomic<bool> ended = false;
  std::thread busy([&] {
    v1::SpmmRequest other;
    other.mutable_cancel()->set_request_id(99);
    while (!ended && stream->Write(other)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  std::map<uint64_t, Answer> answers;
  EXPECT_TRUE(ReadUntilEnds(*stream, 1, &answers));
  ended = true;
  busy.join();
  EXPECT_EQ(answers[1].code(), grpc::DEADLINE_EXCEEDED) << answers[1].message();
  EXPECT_EQ(peer_.Forget(region_).status().code(), kOk);
}

TEST_F(SharedRequests, ChunksNameMemoryToo) {
  for (int i = 0; i < 1024; ++i) file_.floats()[i] = static_cast<float>(i);
  const auto put = [&](const std::function<void(v1::Chunk&)>& change) {
    grpc::ClientContext context;
    v1::BufferInfo info;
    auto writer = server_.buffers().Put(&context, &info);
    v1::PutBufferRequest request;
    request.mutable_header()->set_name("d");
    Shape(*request.mutable_header()->mutable_shape(), 4, 8);
    writer->Write(request);
    v1::PutBufferRequest half;
    half.mutable_chunk()->set_shared_bytes(64);
    Place(*half.mutable_chunk()->mutable_shared(), 4);
    writer->Write(half);
    half.mutable_chunk()->set_offset(64);
    half.mutable_chunk()->mutable_shared()->set_offset(4096 - 64);
    change(*half.mutable_chunk());
    writer->Write(half);
    writer->WritesDone();
    return static_cast<int>(writer->Finish().error_code());
  };
  EXPECT_EQ(put([](v1::Chunk&) {}), kOk);
  const auto held = server_.engine().dense().Find("default", "d");
  ASSERT_TRUE(held.ok());
  const auto elements = (*held)->elements->Get();
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(elements->As<float>()[i], static_cast<float>(i < 16 ? i + 1 : 1024 - 32 + i)) << i;
  }
  EXPECT_EQ(put([](v1::Chunk& chunk) { chunk.set_data("x"); }), kInvalid);
  EXPECT_EQ(put([](v1::Chunk& chunk) { chunk.set_shared_bytes(65); }), kInvalid);
  EXPECT_EQ(put([](v1::Chunk& chunk) { chunk.set_shared_bytes(~uint64_t{0}); }), kInvalid);
  EXPECT_EQ(put([](v1::Chunk& chunk) { chunk.mutable_shared()->set_offset(4096 - 32); }), kInvalid);
  EXPECT_EQ(put([](v1::Chunk& chunk) { chunk.mutable_shared()->set_offset(1 << 30); }), kInvalid);
  EXPECT_EQ(put([](v1::Chunk& chunk) { chunk.mutable_shared()->set_region("x"); }), kNotFound);
  EXPECT_EQ(put([](v1::Chunk& chunk) { chunk.mutable_shared()->clear_region(); }), kNotFound);
  EXPECT_EQ(put([](v1::Chunk& chunk) { chunk.clear_shared(); }), kInvalid) << "half of it lacks";
}

TEST_F(SharedRequests, OutliveTheirConnection) {
  // The same file over connections that end while requests use it: right, or unknown.
  for (int round = 0; round < 50; ++round) {
    auto brief = std::make_unique<Peer>(server_);
    brief->Receive();
    v1::SpmmRequest request = Good();
    const std::string region = brief->Share({file_.fd()}).region();
    request.mutable_start()->mutable_b()->mutable_shared()->set_region(region);
    grpc::ClientContext context;
    auto stream = server_.compute().Spmm(&context);
    stream->Write(request);
    brief.reset();
    stream->WritesDone();
    std::map<uint64_t, Answer> answers;
    ASSERT_TRUE(ReadUntilEnds(*stream, 1, &answers));
    EXPECT_TRUE(answers[1].code() == kOk || answers[1].code() == kNotFound);
    stream->Finish();
  }
  EXPECT_TRUE(Eventually(
      [&] { return server_.engine().budget().used(engine::MemoryUse::kShared) == 4096; }));
}

}  // namespace
}  // namespace sparsed::test
