// Clients that announce gigabytes and send nothing, send a part and stop, or read no result: do the
// others go on, does the memory come back, and does SIGTERM end the server meanwhile?
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sparsed/v1/buffers.grpc.pb.h"
#include "sparsed/v1/catalog.grpc.pb.h"
#include "sparsed/v1/compute.grpc.pb.h"
#include "tests/fault/attack.h"
#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLimit = 512 * kMiB;
constexpr int kAnnounced = 10;        ///< of nearly all memory each
constexpr int kStopped = 12;          ///< after so much:
constexpr int64_t kSent = 16 * kMiB;  // each on a connection of its own
constexpr int kUnread = 6;            ///< results of 25 MB
constexpr int64_t kRows = 100000;
constexpr int64_t kWidth = 64;
/// Of --receive-idle and --send-idle, in seconds.
constexpr const char* kIdle = "2";
/// Until what was held is free: five times as long.
constexpr std::chrono::seconds kBack(10);

std::shared_ptr<grpc::Channel> Connect(const ServerUnderAttack& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), arguments);
}

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + kBack;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

/// A Put of an f32 matrix of so many bytes.
class Put {
 public:
  Put(const std::shared_ptr<grpc::Channel>& channel, const std::string& name, int64_t bytes)
      : stub_(v1::Buffers::NewStub(channel)), writer_(stub_->Put(&context_, &info_)) {
    v1::PutBufferRequest request;
    v1::PutBufferHeader& header = *request.mutable_header();
    header.set_name(name);
    header.mutable_shape()->set_rows(bytes / (4 * kWidth));
    header.mutable_shape()->set_cols(kWidth);
    header.mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
    writer_->Write(request);
  }
  ~Put() { context_.TryCancel(); }

  void Send(int64_t bytes) {
    v1::PutBufferRequest request;
    v1::Chunk& chunk = *request.mutable_chunk();
    chunk.set_data(std::string(static_cast<size_t>(kMiB), '\0'));
    for (int64_t offset = 0; offset < bytes; offset += kMiB) {
      chunk.set_offset(static_cast<uint64_t>(offset));
      if (!writer_->Write(request)) return;
    }
  }
  absl::Status End() {
    writer_->WritesDone();
    return ToAbsl(writer_->Finish());
  }

 private:
  grpc::ClientContext context_;
  v1::BufferInfo info_;
  std::unique_ptr<v1::Buffers::Stub> stub_;
  std::unique_ptr<grpc::ClientWriter<v1::PutBufferRequest>> writer_;
};

/// An SpMM with "tall" whose result nobody reads.
struct Unread {
  explicit Unread(const std::shared_ptr<grpc::Channel>& channel)
      : stub(v1::Compute::NewStub(channel)), stream(stub->Spmm(&context)) {
    v1::SpmmRequest request;
    v1::SpmmStart& start = *request.mutable_start();
    start.set_request_id(1);
    start.set_matrix("tall");
    start.mutable_b()->mutable_shape()->set_rows(kWidth);
    start.mutable_b()->mutable_shape()->set_cols(kWidth);
    start.mutable_b()->mutable_shape()->set_type(v1::ELEMENT_TYPE_F32);
    stream->Write(request);
    v1::Chunk& chunk = *request.mutable_chunk();
    chunk.set_request_id(1);
    chunk.set_data(std::string(kWidth * kWidth * sizeof(float), '\0'));
    stream->Write(request);
  }
  ~Unread() { context.TryCancel(); }

  grpc::ClientContext context;
  std::unique_ptr<v1::Compute::Stub> stub;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SpmmRequest, v1::ComputeReply>> stream;
};

/// "tall": its product with a small operand is large.
absl::Status UploadTall(const std::shared_ptr<grpc::Channel>& channel) {
  const std::unique_ptr<v1::Catalog::Stub> stub = v1::Catalog::NewStub(channel);
  grpc::ClientContext context;
  auto stream = stub->Upload(&context);
  v1::UploadRequest request;
  v1::UploadHeader& header = *request.mutable_header();
  header.set_name("tall");
  header.set_rows(kRows);
  header.set_cols(kWidth);
  header.set_type(v1::ELEMENT_TYPE_F32);
  header.set_row_offsets_type(v1::ELEMENT_TYPE_I64);
  stream->Write(request);
  request.mutable_chunk()->set_data(std::string((kRows + 1) * sizeof(int64_t), '\0'));
  stream->Write(request);
  stream->WritesDone();
  v1::UploadReply reply;
  while (stream->Read(&reply)) {
  }
  return ToAbsl(stream->Finish());
}

double Requests(const ServerUnderAttack& server) {
  double bytes = 0;
  for (const char* use : {"requests", "buffers"}) {
    const auto sample =
        server.Metric(fmt::format("sparsed_memory_bytes{{device=\"cpu\",use=\"{}\"}}", use));
    bytes += sample.ok() ? *sample : static_cast<double>(kLimit);
  }
  return bytes / static_cast<double>(kMiB);
}

absl::Status Announce(const ServerUnderAttack& server, Bounds& bounds) {
  std::vector<std::unique_ptr<Put>> announced;
  for (int i = 0; i < kAnnounced; ++i) {
    announced.push_back(
        std::make_unique<Put>(Connect(server), fmt::format("announced{}", i), kLimit / 2));
  }
  Put other(Connect(server), "other", kLimit / 2);
  other.Send(kLimit / 2);
  absl::Status status = other.End();
  bounds.True(fmt::format("a client holds half beside {} who announce as much ({})", kAnnounced,
                          status.ok() ? "OK" : std::string(status.message())),
              status.ok());
  grpc::ClientContext context;
  v1::DeleteBufferRequest request;
  request.set_name("other");
  v1::DeleteBufferReply reply;
  return ToAbsl(v1::Buffers::NewStub(Connect(server))->Delete(&context, request, &reply));
}

void Stop(const ServerUnderAttack& server, Bounds& bounds) {
  std::vector<std::unique_ptr<Put>> stopped;
  std::vector<std::unique_ptr<Unread>> unread;
  for (int i = 0; i < kStopped; ++i) {
    stopped.push_back(
        std::make_unique<Put>(Connect(server), fmt::format("stopped{}", i), 2 * kSent));
    stopped.back()->Send(kSent);
  }
  for (int i = 0; i < kUnread; ++i) unread.push_back(std::make_unique<Unread>(Connect(server)));
  const double held = Requests(server);
  const auto begin = Clock::now();
  Eventually([&] { return Requests(server) < 1; });
  const std::chrono::duration<double> waited = Clock::now() - begin;
  bounds.AtMost(
      fmt::format("held {:.0f} s after {:.0f} MiB were stopped or unread", waited.count(), held),
      Requests(server), 1, "MiB");
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  std::vector<std::string> flags = {fmt::format("--host-memory={}", kLimit),
                                    fmt::format("--receive-idle={}", kIdle),
                                    fmt::format("--send-idle={}", kIdle)};
  flags.insert(flags.end(), options.flags.begin(), options.flags.end());
  auto server = ServerUnderAttack::Start(flags);
  if (!server.ok()) return server.status();
  if (absl::Status s = UploadTall(Connect(**server)); !s.ok()) return s;
  const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
  do {
    if (absl::Status s = Announce(**server, bounds); !s.ok()) return s;
    Stop(**server, bounds);
  } while (Clock::now() < end && bounds.hold() && (*server)->Lives());
  bounds.True("the server lives", (*server)->Lives());

  const Put silent(Connect(**server), "silent", kLimit / 2);
  const Unread unread(Connect(**server));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto begin = Clock::now();
  const int code = (*server)->End(SIGTERM);
  const std::chrono::duration<double> took = Clock::now() - begin;
  bounds.AtMost("SIGTERM beside silent clients", took.count(), 10, "s");
  bounds.True("it ended in order", code == 0);
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(argc, argv,
                                   "Clients that announce and send nothing, stop, or read nothing.",
                                   0, sparsed::test::Attack);
}
