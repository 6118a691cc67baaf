// Storms of results that nobody reads, of operands and matrices that come and go, and many clients
// at once: is what the process takes by the system's count what --host-memory promises?
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sparsed/client.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "sparsed/v1/buffers.pb.h"
#include "sparsed/v1/compute.grpc.pb.h"
#include "tests/fault/attack.h"
#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMiB = 1 << 20;
constexpr int64_t kGiB = int64_t{1} << 30;
/// Code, stacks, gRPC's own: what may come on top of the limit.
constexpr double kOnTop = 150;

// A result of 6.8 MB each.
constexpr int64_t kRows = 26560;
constexpr int64_t kWidth = 64;

constexpr int kRounds = 3;
constexpr int kUnread = 128;
constexpr int kPuts = 64;
constexpr int64_t kPutRows = 65536;  ///< of kWidth: 16 MB
constexpr int kUploads = 16;
constexpr int kClients = 32;

CsrMatrix Random(int64_t n, int64_t row_nnz, uint64_t seed) {
  CsrMatrix s;
  s.rows = s.cols = n;
  s.row_offsets = {0};
  std::mt19937_64 random(seed);
  for (int64_t row = 0; row < n; ++row) {
    std::vector<int32_t> columns;
    for (int64_t i = 0; i < row_nnz; ++i) {
      columns.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(n)));
    }
    std::sort(columns.begin(), columns.end());
    columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
    s.column_indices.insert(s.column_indices.end(), columns.begin(), columns.end());
    s.row_offsets.push_back(s.nnz());
  }
  s.values = std::vector<float>(s.column_indices.size(), 1.0F);
  return s;
}

/// Memory in use as the server says, in bytes.
absl::StatusOr<int64_t> Accounted(const Client& client) {
  const absl::StatusOr<Stats> stats = client.GetStats();
  if (!stats.ok()) return stats.status();
  int64_t bytes = 0;
  for (const auto& [use, count] : stats->memory_bytes) bytes += count;
  return bytes;
}

/// Products whose results are computed, and never read.
class UnreadResults {
 public:
  UnreadResults(const std::string& address, int count) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    for (int i = 0; i < count; ++i) {
      if (i % kStreamsPerConnection == 0) {
        stubs_.push_back(v1::Compute::NewStub(
            grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments)));
      }
      contexts_.push_back(std::make_unique<grpc::ClientContext>());
      streams_.push_back(stubs_.back()->Spmm(contexts_.back().get()));
      v1::SpmmRequest request;
      v1::SpmmStart& start = *request.mutable_start();
      start.set_request_id(1);
      start.set_matrix("storm");
      start.mutable_b()->set_buffer("storm");
      streams_.back()->Write(request);
    }
  }
  ~UnreadResults() {
    for (const auto& context : contexts_) context->TryCancel();
    v1::ComputeReply ignored;
    for (const auto& stream : streams_) {
      while (stream->Read(&ignored)) {
      }
      stream->Finish();
    }
  }

 private:
  static constexpr int kStreamsPerConnection = 16;
  using Stream = grpc::ClientReaderWriter<v1::SpmmRequest, v1::ComputeReply>;
  std::vector<std::unique_ptr<v1::Compute::Stub>> stubs_;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

/// Until the server has computed all that it will: what it accounts for stands still.
absl::Status AwaitStandstill(const Client& client) {
  int64_t before = -1;
  for (int same = 0; same < 4;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    const absl::StatusOr<int64_t> now = Accounted(client);
    if (!now.ok()) return now.status();
    same = *now == before ? same + 1 : 0;
    before = *now;
  }
  return absl::OkStatus();
}

/// A refusal for want of memory is what a limit is for.
absl::Status Tolerated(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? absl::OkStatus() : status;
}

absl::Status Round(const std::string& address, const Client& client) {
  {
    const UnreadResults unread(address, kUnread);
    if (absl::Status status = AwaitStandstill(client); !status.ok()) return status;
  }
  const std::vector<float> elements(kPutRows * kWidth, 1.0F);
  const DenseView put(elements.data(), kPutRows, kWidth);
  std::vector<Call<DenseMatrix>> puts;
  for (int i = 0; i < kPuts; ++i) {
    puts.push_back(client.PutDenseAsync(fmt::format("put-{}", i), put));
  }
  for (Call<DenseMatrix>& call : puts) {
    const absl::StatusOr<DenseMatrix> held = call.Wait();
    const absl::Status status = held.ok() ? held->Delete() : Tolerated(held.status());
    if (!status.ok()) return status;
  }
  std::vector<CsrMatrix> sources;
  for (int i = 0; i < kUploads; ++i) sources.push_back(Random(60000, 16, 100 + i));
  std::vector<Call<Matrix>> uploads;
  for (int i = 0; i < kUploads; ++i) {
    uploads.push_back(client.UploadAsync(fmt::format("upload-{}", i), sources[i].View()));
  }
  for (Call<Matrix>& call : uploads) {
    const absl::StatusOr<Matrix> matrix = call.Wait();
    const absl::Status status = matrix.ok() ? matrix->Delete() : Tolerated(matrix.status());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

/// Rounds of storms, for so long and at least three.
absl::Status Storm(const ServerUnderAttack& server, double seconds) {
  const absl::StatusOr<Client> client = Client::Connect(server.address());
  if (!client.ok()) return client.status();
  const absl::StatusOr<Matrix> matrix = client->Upload("storm", Random(kRows, 8, 1).View());
  if (!matrix.ok()) return matrix.status();
  const std::vector<float> b(kRows * kWidth, 1.0F);
  const auto held = client->PutDense("storm", DenseView(b.data(), kRows, kWidth));
  if (!held.ok()) return held.status();
  const auto begun = Clock::now();
  for (int round = 0;
       round < kRounds || Clock::now() - begun < std::chrono::duration<double>(seconds); ++round) {
    if (absl::Status status = Round(server.address(), *client); !status.ok()) return status;
    const auto accounted = Accounted(*client);
    if (!accounted.ok()) return accounted.status();
    fmt::print("round {}: {:.0f} MiB resident, at most {:.0f} so far, {:.0f} accounted for\n",
               round + 1, static_cast<double>(server.resident_bytes()) / kMiB,
               static_cast<double>(server.peak_resident_bytes()) / kMiB,
               static_cast<double>(*accounted) / kMiB);
    std::fflush(stdout);
  }
  if (absl::Status status = held->Delete(); !status.ok()) return status;
  return matrix->Delete();
}

/// One client of many: whatever comes to its mind, for so long.
absl::Status Mixed(const std::string& address, int id, Clock::time_point until) {
  const absl::StatusOr<Client> client = Client::Connect(address);
  if (!client.ok()) return client.status();
  std::mt19937 random(id);
  const std::string name = fmt::format("mixed-{}", id);
  const CsrMatrix small = Random(5000, 8, 1000 + id);
  while (Clock::now() < until) {
    const int64_t rows = 5000;
    const int64_t width = 16 << random() % 5;
    std::vector<float> b(rows * width, 1.0F), c(rows * width);
    const DenseView operand(b.data(), rows, width);
    const MutableDenseView result(c.data(), rows, width);
    absl::Status status;
    switch (random() % 4) {
      case 0:
        status = client->Upload(name, small.View(), {.replace = true}).status();
        break;
      case 1:
        status = client->PutDense(name, operand).status();
        if (status.ok()) status = client->DenseNamed(name).Delete();
        break;
      case 2:
        status = client->MatrixNamed(name).Spmm(operand, result).status();
        break;
      default: {
        Call<ComputeResult> call = client->MatrixNamed(name).SpmmAsync(operand, result);
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 50));
        call.Cancel();
        call.Wait().status().IgnoreError();
      }
    }
    if (absl::IsNotFound(status)) continue;  // its upload was refused so far
    if (status = Tolerated(status); !status.ok()) return status;
  }
  const absl::Status status = client->MatrixNamed(name).Delete();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::Status ManyClients(const ServerUnderAttack& server, double seconds) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(std::max(8.0, seconds)));
  std::mutex mutex;
  absl::Status first;
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const absl::Status status = Mixed(server.address(), i, until);
      const std::lock_guard lock(mutex);
      first.Update(status);
    });
  }
  for (std::thread& client : clients) client.join();
  return first;
}

/// Runs `storm` against a server with this limit and bounds what it took.
absl::Status Measure(const std::string& what, int64_t limit, const AttackOptions& options,
                     absl::Status (*storm)(const ServerUnderAttack&, double), Bounds& bounds) {
  std::vector<std::string> flags = {fmt::format("--host-memory={}", limit)};
  flags.insert(flags.end(), options.flags.begin(), options.flags.end());
  auto server = ServerUnderAttack::Start(flags);
  if (!server.ok()) return server.status();
  if (absl::Status status = storm(**server, options.seconds / 3); !status.ok()) return status;
  std::this_thread::sleep_for(std::chrono::seconds(10));
  const absl::StatusOr<Client> client = Client::Connect((*server)->address());
  if (!client.ok()) return client.status();
  const absl::StatusOr<int64_t> accounted = Accounted(*client);
  if (!accounted.ok()) return accounted.status();
  bounds.AtMost(what + ", resident at most",
                static_cast<double>((*server)->peak_resident_bytes()) / kMiB,
                1.15 * static_cast<double>(limit) / kMiB + kOnTop, "MiB");
  bounds.AtMost(what + ", resident ten seconds later",
                static_cast<double>((*server)->resident_bytes()) / kMiB,
                static_cast<double>(*accounted) / kMiB + kOnTop, "MiB");
  return absl::OkStatus();
}

/// The default limit in a control group.
absl::Status InControlGroup(const AttackOptions& options, Bounds& bounds) {
  auto server = ServerUnderAttack::Start(options.flags, {.memory_bytes = 2 * kGiB});
  if (absl::IsUnimplemented(server.status())) {
    fmt::print("not tried in a control group of 2 GiB: {}\n",
               std::string(server.status().message()));
    return absl::OkStatus();
  }
  if (!server.ok()) return server.status();
  const absl::Status status = Storm(**server, options.seconds / 3);
  bounds.True("lives with the default limit in a control group of 2 GiB", (*server)->Lives());
  return status;
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return absl::UnimplementedError("sanitizers take memory of their own");
#endif
  if (absl::Status s = Measure("limit 1 GiB", kGiB, options, Storm, bounds); !s.ok()) return s;
  if (absl::Status s = Measure("32 clients, limit 512 MiB", kGiB / 2, options, ManyClients, bounds);
      !s.ok()) {
    return s;
  }
  return InControlGroup(options, bounds);
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "Storms of unread results, operands and matrices that come and go, and 32 clients at once: "
      "does the process keep to --host-memory?",
      0, sparsed::test::Attack);
}
