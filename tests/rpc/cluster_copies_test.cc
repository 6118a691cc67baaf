// Copies from a node that does as the test says: slow ones, silent ones, many at once.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/cluster/copies.h"
#include "server/cluster/etcd.h"
#include "server/cluster/record.h"
#include "sparsed/v1/cluster.grpc.pb.h"
#include "tests/rpc/test_etcd.h"
#include "tests/rpc/test_server.h"

namespace sparsed::test {
namespace {

using namespace std::chrono_literals;

using Writer = grpc::ServerWriter<v1::DownloadReply>;

/// A node, as another one sees it that copies from it.
class Source final : public v1::Cluster::Service {
 public:
  using Send = std::function<grpc::Status(const std::string& name, grpc::ServerContext&, Writer&)>;

  explicit Source(Send send) : send_(std::move(send)) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = fmt::format("127.0.0.1:{}", port);
  }
  ~Source() override { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& address() const { return address_; }

 private:
  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                     Writer* writer) override {
    return send_(request->name(), *context, *writer);
  }

  const Send send_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

constexpr int64_t kRows = 8;

v1::DownloadReply HeaderOfDiagonal() {
  v1::DownloadReply header;
  v1::MatrixInfo& matrix = *header.mutable_header()->mutable_matrix();
  matrix.set_rows(kRows);
  matrix.set_cols(kRows);
  matrix.set_nnz(kRows);
  matrix.set_type(v1::ELEMENT_TYPE_F32);
  matrix.set_version(1);
  return header;
}

template <typename T>
v1::DownloadReply ChunkOf(uint32_t array, const std::vector<T>& values) {
  v1::DownloadReply reply;
  reply.mutable_chunk()->set_array(array);
  reply.mutable_chunk()->set_data(
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
  return reply;
}

/// The identity, with `pause` before each message.
grpc::Status SendDiagonal(Writer& writer, std::chrono::milliseconds pause = 0ms) {
  std::vector<int64_t> row_offsets;
  std::vector<int32_t> column_indices;
  for (int64_t row = 0; row <= kRows; ++row) row_offsets.push_back(row);
  for (int32_t row = 0; row < kRows; ++row) column_indices.push_back(row);
  const std::vector<float> values(kRows, 1);
  for (const v1::DownloadReply& reply : {HeaderOfDiagonal(), ChunkOf(0, row_offsets),
                                         ChunkOf(1, column_indices), ChunkOf(2, values)}) {
    std::this_thread::sleep_for(pause);
    writer.Write(reply);
  }
  return grpc::Status::OK;
}

grpc::Status AwaitCancel(const grpc::ServerContext& context) {
  while (!context.IsCancelled()) std::this_thread::sleep_for(1ms);
  return grpc::Status::CANCELLED;
}

server::Peers::Options Patient(std::chrono::milliseconds patience) {
  server::Peers::Options options;
  options.patience = patience;
  return options;
}

v1::CopyHereRequest RequestOf(const std::string& name, const std::string& from) {
  v1::CopyHereRequest request;
  request.set_tenant("default");
  request.set_name(name);
  request.set_from(from);
  request.set_owner("source");
  return request;
}

TEST(Copies, OneThatIsSlowGoesOnAsLongAsBytesCome) {
  constexpr std::chrono::milliseconds kPatience = 600ms;
  Source source([&](const std::string&, grpc::ServerContext&, Writer& writer) {
    return SendDiagonal(writer, kPatience / 2);
  });
  TestServer server;
  server::Peers peers(Patient(kPatience));
  const std::atomic<bool> stop = false;
  const auto reply = peers.Fetch(RequestOf("m", source.address()), server.engine(), 1, stop);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->bytes(), (kRows + 1) * 8 + kRows * (4 + 4));
  EXPECT_NE(server.engine().catalog().Look("default", "m"), nullptr);
}

TEST(Copies, OneOfWhichNothingComesIsGivenUp) {
  for (const bool begun : {false, true}) {
    Source source([&](const std::string&, grpc::ServerContext& context, Writer& writer) {
      if (begun) writer.Write(HeaderOfDiagonal());
      return AwaitCancel(context);
    });
    TestServer server;
    server::Peers peers(Patient(300ms));
    const std::atomic<bool> stop = false;
    const absl::Status status =
        peers.Fetch(RequestOf("m", source.address()), server.engine(), 1, stop).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_NE(status.message().find(source.address()), std::string::npos) << status;
    EXPECT_NE(status.message().find("nothing of the matrix came for 300 ms"), std::string::npos)
        << status;
    EXPECT_EQ(server.engine().catalog().Look("default", "m"), nullptr);
    EXPECT_TRUE(server.ComesBackTo(0));
  }
}

TEST(Copies, CancelEndsThem) {
  std::atomic<bool> asked = false;
  Source source([&](const std::string&, grpc::ServerContext& context, Writer&) {
    asked = true;
    return AwaitCancel(context);
  });
  TestServer server;
  server::Peers peers({});
  const std::atomic<bool> stop = false;
  auto copy = std::async(std::launch::async, [&] {
    return peers.Fetch(RequestOf("m", source.address()), server.engine(), 1, stop).status();
  });
  while (!asked) std::this_thread::sleep_for(1ms);
  peers.Cancel();
  EXPECT_TRUE(absl::IsCancelled(copy.get()));
}

TEST(Copies, TheCallersOrderCountsAgainstTheServersMemory) {
  Source source([&](const std::string&, grpc::ServerContext& context, Writer& writer) {
    v1::DownloadReply header = HeaderOfDiagonal();
    v1::MatrixInfo& matrix = *header.mutable_header()->mutable_matrix();
    matrix.set_cols(1 << 30);
    matrix.set_nnz(10'000'000);
    matrix.set_type(v1::ELEMENT_TYPE_F16);
    header.mutable_header()->set_caller_order(true);
    writer.Write(header);
    return AwaitCancel(context);
  });
  // There is room for the matrix, and none for the order.
  TestServer server([](server::Config& config) { config.host_memory_bytes = 72 << 20; });
  server::Peers peers(Patient(5s));
  const std::atomic<bool> stop = false;
  const absl::Status status =
      peers.Fetch(RequestOf("m", source.address()), server.engine(), 1, stop).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

/// A node of a real cluster, and the scripted one, which is registered there.
class CopiesHere : public testing::Test {
 protected:
  void SetUp() override {
    if (!TestEtcd::Installed()) GTEST_SKIP() << TestEtcd::kMissing;
    etcd_ = std::make_unique<TestEtcd>();
    std::string folder = testing::TempDir() + "sparsed_copies_XXXXXX";
    folder_ = mkdtemp(folder.data());
    const std::string address = fmt::format("127.0.0.1:{}", FreePort());
    node_ = std::make_unique<TestServer>([&](server::Config& config) {
      config.listen = {address};
      config.advertise = address;
      config.node = "node";
      config.etcd = {etcd_->address()};
      config.data_dir = folder_ + "/data";
    });
    stub_ = v1::Cluster::NewStub(node_->channel());
  }
  void TearDown() override {
    node_.reset();
    etcd_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  /// The source owns these matrices.
  void Join(const Source& source, const std::vector<std::string>& matrices) {
    server::NodeRecord node;
    node.address = source.address();
    std::vector<server::Directory::Change> changes = {
        {.key = std::string(server::kNodesPrefix) + "source",
         .value = server::ToJson(node),
         .if_revision = {}}};
    for (const std::string& name : matrices) {
      server::MatrixRecord record;
      record.key = {"default", name};
      record.rows = record.cols = record.nnz = kRows;
      record.type = "f32";
      record.pattern_hash = "some";
      record.copies = {{"source", {0, 1}}};
      changes.push_back({.key = server::DirectoryKey(record.key),
                         .value = server::ToJson(record),
                         .if_revision = {}});
    }
    const auto applied = server::OpenEtcd({etcd_->address()})->Apply(changes);
    ASSERT_TRUE(applied.ok()) << applied.status();
  }

  /// As other nodes ask for it. A call that waits for others for so long waits for ever.
  grpc::Status CopyHere(const v1::CopyHereRequest& request, const std::string& traceparent = "") {
    grpc::ClientContext context;
    if (!traceparent.empty()) context.AddMetadata("traceparent", traceparent);
    context.set_deadline(std::chrono::system_clock::now() + 20s);
    v1::CopyHereReply reply;
    return stub_->CopyHere(&context, request, &reply);
  }

  std::unique_ptr<TestEtcd> etcd_;
  std::string folder_;
  std::unique_ptr<TestServer> node_;
  std::unique_ptr<v1::Cluster::Stub> stub_;
};

TEST_F(CopiesHere, AreOfNodesOfTheClusterAlone) {
  std::atomic<int> asked = 0;
  Source source([&](const std::string&, grpc::ServerContext&, Writer& writer) {
    ++asked;
    return SendDiagonal(writer);
  });
  for (const std::string& from :
       {source.address(), std::string("unix:/nowhere"), std::string(), node_->address()}) {
    const grpc::Status status = CopyHere(RequestOf("m", from));
    EXPECT_EQ(status.error_code(), grpc::FAILED_PRECONDITION) << from << status.error_message();
  }
  EXPECT_EQ(asked, 0);
  const grpc::Status stranger = CopyHere(RequestOf("m", source.address()));
  EXPECT_NE(stranger.error_message().find("no node of the cluster has the address '" +
                                          source.address() + "'"),
            std::string::npos)
      << stranger.error_message();
  // One that has only just joined is known.
  Join(source, {"m"});
  const grpc::Status status = CopyHere(RequestOf("m", source.address()));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(asked, 1);
}

TEST_F(CopiesHere, AreInTheTraceOfWhoAskedForThem) {
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  std::mutex mutex;
  std::map<std::string, std::string> parents;
  Source source([&](const std::string& name, grpc::ServerContext& context, Writer& writer) {
    const auto& metadata = context.client_metadata();
    const auto parent = metadata.find("traceparent");
    {
      const std::lock_guard lock(mutex);
      parents[name] = parent == metadata.end()
                          ? "none"
                          : std::string(parent->second.data(), parent->second.size());
    }
    return SendDiagonal(writer);
  });
  Join(source, {"traced", "other"});
  const grpc::Status traced =
      CopyHere(RequestOf("traced", source.address()), "00-" + trace + "-00f067aa0ba902b7-01");
  ASSERT_TRUE(traced.ok()) << traced.error_message();
  const grpc::Status other = CopyHere(RequestOf("other", source.address()));
  ASSERT_TRUE(other.ok()) << other.error_message();
  const std::lock_guard lock(mutex);
  EXPECT_EQ(parents["traced"].substr(0, 36), "00-" + trace + "-");
  EXPECT_TRUE(parents["traced"].ends_with("-01")) << parents["traced"];
  EXPECT_EQ(parents["other"], "none") << "of another call by the same threads";
}

TEST_F(CopiesHere, SeveralAreMadeAtOnceAndThrottledOnesAreNotWaitedFor) {
  std::atomic<int> slow = 0;
  std::atomic<int> quick = 0;
  std::atomic<bool> done = false;
  Source source([&](const std::string& name, grpc::ServerContext& context, Writer& writer) {
    std::atomic<int>& arrived = name.starts_with("slow") ? slow : quick;
    ++arrived;
    // Quick ones wait for each other, slow ones for the end.
    while (!context.IsCancelled() && (&arrived == &slow ? !done : quick < 2)) {
      std::this_thread::sleep_for(1ms);
    }
    return SendDiagonal(writer);
  });
  std::vector<std::string> names = {"quick-0", "quick-1"};
  for (int i = 0; i < 6; ++i) names.push_back(fmt::format("slow-{}", i));
  Join(source, names);
  const auto start = [&](const std::string& name, int64_t bytes_per_second) {
    v1::CopyHereRequest request = RequestOf(name, source.address());
    request.set_bytes_per_second(bytes_per_second);
    return std::async(std::launch::async, [this, request] { return CopyHere(request); });
  };
  std::vector<std::future<grpc::Status>> later;
  for (int i = 0; i < 6; ++i) later.push_back(start(fmt::format("slow-{}", i), 1 << 30));
  while (slow == 0) std::this_thread::sleep_for(1ms);
  std::vector<std::future<grpc::Status>> now;
  for (int i = 0; i < 2; ++i) now.push_back(start(fmt::format("quick-{}", i), 0));
  for (std::future<grpc::Status>& copy : now) {
    const grpc::Status status = copy.get();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(slow, 1) << "throttled copies are made one by one";
  done = true;
  for (std::future<grpc::Status>& copy : later) {
    const grpc::Status status = copy.get();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

}  // namespace
}  // namespace sparsed::test
