// Clients of every transport that are killed at any moment: nothing of theirs stays, the server
// lives, and the others' results are right.
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/device.h"
#include "tests/fault/attack.h"
#include "tests/fault/server_under_attack.h"

// The client's types have names of the kernels': they come after them.
#include "sparsed/attached.h"
#include "sparsed/client.h"
#include "sparsed/gpu_memory.h"
#include "tests/fault/checked_product.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kRows = 20000;
constexpr int64_t kRowNnz = 8;
constexpr uint32_t kSeed = 1;  ///< of all clients' matrix
constexpr int kVictims = 8;    ///< at once
constexpr auto kLongestLife = milliseconds(1500);
/// With a GPU: a context alone takes some hundred milliseconds, eight at once longer.
constexpr auto kLongestLifeOnGpu = milliseconds(5000);
/// Of a client that is to be killed for its first results, or to end by itself.
constexpr std::chrono::seconds kPatience(30);
/// The last two where the server has a GPU: requests in memory of it, and products in queues.
constexpr std::array<const char*, 8> kTransports = {"stream", "streams",  "held", "shared",
                                                    "ring",   "attached", "gpu",  "queued"};
constexpr size_t kOnCpu = 6;
/// Of operands from which on a client with several streams uses them: 4 MiB.
constexpr int64_t kLargeWidth = 53;
constexpr const char* kMatrix = "killed";

// --- A client, which is a process of its own: `attack_clients --as TRANSPORT ADDRESS`.

constexpr int kWrong = 3;   ///< exit code: a result was not what it should be
constexpr int kFailed = 4;  ///< ... a call failed
constexpr int kIdle = 5;    ///< ... it was told to end before its first result

volatile sig_atomic_t told_to_end = 0;

absl::Status Wrong() { return absl::DataLossError("a wrong product"); }

/// One product with operand and result in the client's memory: b and c say where.
template <typename Multiplier>
absl::Status Multiply(const CheckedProduct& problem, const Multiplier& by, float* b, float* c,
                      int64_t k) {
  problem.FillB(b, k);
  std::fill_n(c, kRows * k, -1.0F);
  const auto done = by.Spmm(DenseView(b, kRows, k), MutableDenseView(c, kRows, k));
  if (!done.ok()) return done.status();
  return problem.Is(c, k) ? absl::OkStatus() : Wrong();
}

absl::Status MultiplyHeld(const CheckedProduct& problem, const Client& client, int64_t k) {
  std::vector<float> data(kRows * k);
  problem.FillB(data.data(), k);
  const PutOptions put{.owner = "killed", .time_to_live = std::chrono::seconds(2)};
  const std::string name = fmt::format("killed-{}", getpid());
  const auto b = client.PutDense(name + "-b", DenseView(data.data(), kRows, k), put);
  if (!b.ok()) return b.status();
  const auto c = client.PutZeros(name + "-c", ValueType::kF32, kRows, k, put);
  if (!c.ok()) return c.status();
  const auto done = client.MatrixNamed(kMatrix).Spmm(*b, *c);
  if (!done.ok()) return done.status();
  const auto read = c->Read(MutableDenseView(data.data(), kRows, k));
  if (!read.ok()) return read.status();
  return problem.Is(data.data(), k) ? absl::OkStatus() : Wrong();
}

/// Products on a GPU: b and c are matrices of it, and what is to be in b and comes back goes by way
/// of the host.
class GpuClient {
 public:
  static absl::StatusOr<GpuClient> Open(const Client& client) {
    absl::StatusOr<GpuMemory> memory = GpuMemory::Open(client, 0);
    if (!memory.ok()) return memory.status();
    absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create();
    if (!stream.ok()) return stream.status();
    return GpuClient(*std::move(memory), *std::move(stream));
  }

  absl::Status Multiply(const CheckedProduct& problem, const Matrix& matrix, bool queued,
                        int64_t k) {
    const absl::StatusOr<GpuMatrix> b = memory_.Allocate(kRows, k), c = memory_.Allocate(kRows, k);
    if (!b.ok()) return b.status();
    if (!c.ok()) return c.status();
    std::vector<float> host(kRows * k);
    const size_t bytes = host.size() * sizeof(float);
    problem.FillB(host.data(), k);
    if (absl::Status s = stream_.Copy(b->data(), host.data(), bytes); !s.ok()) return s;
    absl::Status done;
    if (queued) {
      done = QueuedMatrix(memory_, matrix)
                 .Spmm({stream_.handle()}, b->ConstView(), c->View())
                 .status();
    } else {
      done = stream_.Synchronize();
      if (done.ok()) done = matrix.Spmm(b->ConstView(), c->View()).status();
    }
    if (done.ok()) done = stream_.Copy(host.data(), c->data(), bytes);
    // Also after an error: what was queued uses what goes.
    const absl::Status waited = stream_.Synchronize();
    if (!done.ok()) return done;
    if (!waited.ok()) return waited;
    return problem.Is(host.data(), k) ? absl::OkStatus() : Wrong();
  }

 private:
  GpuClient(GpuMemory memory, cuda::Stream stream)
      : memory_(std::move(memory)), stream_(std::move(stream)) {}

  const GpuMemory memory_;
  cuda::Stream stream_;
};

/// The same values anew: what is exported of the old ones has to go.
absl::Status Update(const CheckedProduct& problem, const Client& client) {
  return client.MatrixNamed(kMatrix).UpdateValues(std::span<const float>(problem.values)).status();
}

/// Computes by that transport until it is told to end.
int BeClient(const std::string& transport, const std::string& address) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, [](int) { told_to_end = 1; });
  const CheckedProduct problem(kRows, kRowNnz, kSeed);
  int64_t results = 0;
  const absl::Status status = [&]() -> absl::Status {
    const bool streams = transport == "streams";
    const auto client =
        Client::Connect(address, {.ring = transport == "ring", .streams = streams ? 3 : 1});
    if (!client.ok()) return client.status();
    std::minstd_rand random(static_cast<uint32_t>(getpid()));
    const bool on_gpu = transport == "gpu" || transport == "queued";
    absl::StatusOr<GpuClient> gpu = on_gpu ? GpuClient::Open(*client) : absl::CancelledError();
    if (on_gpu && !gpu.ok()) return gpu.status();
    while (told_to_end == 0) {
      const auto attached = transport == "attached"
                                ? AttachedMatrix::Attach(*client, kMatrix, {.threads = 1})
                                : absl::CancelledError();
      if (transport == "attached" && !attached.ok()) return attached.status();
      // A few products with what was allocated for them.
      const int64_t k = (streams ? kLargeWidth : 1) + static_cast<int64_t>(random() % 32);
      const auto b = client->AllocateShared(kRows, k), c = client->AllocateShared(kRows, k);
      if (!b.ok() || !c.ok()) return absl::ResourceExhaustedError("no memory to share");
      std::vector<float> own_b(kRows * k), own_c(kRows * k);
      for (uint32_t left = 1 + random() % 4; left > 0 && told_to_end == 0; --left) {
        absl::Status done;
        if (transport == "held") {
          done = MultiplyHeld(problem, *client, k);
        } else if (transport == "shared" || transport == "ring") {
          done = Multiply(problem, client->MatrixNamed(kMatrix), static_cast<float*>(b->data()),
                          static_cast<float*>(c->data()), k);
        } else if (on_gpu) {
          done = gpu->Multiply(problem, client->MatrixNamed(kMatrix), transport == "queued", k);
        } else if (transport == "attached") {
          done = Multiply(problem, *attached, own_b.data(), own_c.data(), k);
          if (done.ok() && attached->runs() == 0) return absl::InternalError("it did not run here");
          if (done.ok() && random() % 4 == 0) done = Update(problem, *client);
        } else {
          done = Multiply(problem, client->MatrixNamed(kMatrix), own_b.data(), own_c.data(), k);
        }
        if (!done.ok()) return done;
        ++results;
      }
    }
    return absl::OkStatus();
  }();
  if (!status.ok()) std::cerr << transport << ": " << status << std::endl;
  if (absl::IsDataLoss(status)) return kWrong;
  if (!status.ok()) return kFailed;
  return results > 0 ? 0 : kIdle;
}

// --- Who starts and kills them.

pid_t Spawn(const std::string& transport, const std::string& address) {
  std::string self = std::filesystem::read_symlink("/proc/self/exe");
  std::string as = "--as", what = transport, where = address;
  char* const arguments[] = {self.data(), as.data(), what.data(), where.data(), nullptr};
  pid_t child = 0;
  return posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments, environ) == 0 ? child : 0;
}

/// Exit status, or minus a signal; sends `sig` first.
int End(pid_t child, int sig) {
  kill(child, sig);
  const auto deadline = Clock::now() + kPatience;
  int how = 0;
  while (waitpid(child, &how, WNOHANG) == 0) {
    if (Clock::now() > deadline) kill(child, SIGKILL);
    std::this_thread::sleep_for(milliseconds(5));
  }
  return WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
}

struct Toll {
  std::array<int64_t, kTransports.size()> killed = {};
  int64_t failed = 0;            ///< ended by themselves before they were killed
  int64_t bystanders_wrong = 0;  ///< or failed
};

/// Starts and kills clients for so long, beside one of each of so many transports that nobody
/// kills.
Toll KillClients(const std::string& address, size_t transports, Clock::duration time,
                 std::mt19937& random) {
  struct Victim {
    pid_t pid;
    size_t transport;
    Clock::time_point dies;
  };
  std::vector<pid_t> bystanders;
  for (size_t i = 0; i < transports; ++i) bystanders.push_back(Spawn(kTransports[i], address));
  std::vector<Victim> victims;
  Toll toll;
  const auto end = Clock::now() + time;
  while (Clock::now() < end || !victims.empty()) {
    while (victims.size() < kVictims && Clock::now() < end) {
      const size_t transport = random() % transports;
      const auto longest = transport < kOnCpu ? kLongestLife : kLongestLifeOnGpu;
      const auto life = std::uniform_int_distribution<int64_t>(0, longest.count())(random);
      victims.push_back(
          {Spawn(kTransports[transport], address), transport, Clock::now() + milliseconds(life)});
    }
    std::erase_if(victims, [&](const Victim& victim) {
      if (victim.dies > Clock::now()) return false;
      ++(End(victim.pid, SIGKILL) == -SIGKILL ? toll.killed[victim.transport] : toll.failed);
      return true;
    });
    std::this_thread::sleep_for(milliseconds(2));
  }
  for (const pid_t pid : bystanders) {
    // Beside so many, the first result may be late.
    int how = End(pid, SIGTERM);
    if (how != 0) {
      std::cerr << "a bystander ended with " << how << std::endl;
      ++toll.bystanders_wrong;
    }
  }
  return toll;
}

int64_t Descriptors(pid_t pid) {
  std::error_code ignored;
  const std::filesystem::directory_iterator entries(fmt::format("/proc/{}/fd", pid), ignored);
  return std::distance(begin(entries), end(entries));
}

constexpr const char* kSharedOnGpu = R"(sparsed_memory_bytes{device="cuda:0",use="shared"})";

/// What there should be nothing of when no client is there.
std::map<std::string, std::string> Remains(bool has_gpu) {
  std::map<std::string, std::string> samples = {
      {"regions", "sparsed_shared_regions"},
      {"attachments", "sparsed_attachments"},
      {"rings", "sparsed_rings"},
      {"queues", "sparsed_queues"},
      {"local connections", "sparsed_local_connections"},
      {"bytes shared", R"(sparsed_memory_bytes{device="cpu",use="shared"})"},
      {"bytes of buffers", R"(sparsed_memory_bytes{device="cpu",use="buffers"})"}};
  if (has_gpu) samples["bytes shared on the GPU"] = kSharedOnGpu;
  return samples;
}

/// Waits until nothing of dead clients is left, and says what is.
void ExpectNothingLeft(const ServerUnderAttack& server, bool has_gpu, Bounds& bounds) {
  const std::map<std::string, std::string> remains = Remains(has_gpu);
  std::map<std::string, double> left;
  const auto deadline = Clock::now() + kPatience;
  do {
    left.clear();
    for (const auto& [what, sample] : remains) {
      const auto value = server.Metric(sample);
      // What cannot be read breaks the bound.
      if (!value.ok() || *value != 0) {
        left[what] = value.value_or(std::numeric_limits<double>::infinity());
      }
    }
    if (left.empty()) break;
    std::this_thread::sleep_for(milliseconds(100));
  } while (Clock::now() < deadline);
  for (const auto& [what, sample] : remains) bounds.AtMost("left: " + what, left[what], 0, "");
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  std::vector<std::string> flags = options.flags;
  std::string folder = std::filesystem::temp_directory_path() / "sparsed_clients_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, folder);
  flags.insert(flags.begin(), {"--local-listen=unix:" + folder + "/local", "--host-memory=2GiB",
                               "--buffer-time-to-live=2"});
  // Other attacks leave a GPU alone.
  if (std::none_of(flags.begin(), flags.end(),
                   [](const std::string& flag) { return flag.starts_with("--devices"); })) {
    flags.push_back("--devices=auto");
  }
  auto server = ServerUnderAttack::Start(flags);
  if (!server.ok()) return server.status();
  {
    const auto client = Client::Connect((*server)->address());
    if (!client.ok()) return client.status();
    const auto uploaded = client->Upload(kMatrix, CheckedProduct(kRows, kRowNnz, kSeed).View());
    if (!uploaded.ok()) return uploaded.status();
    if (const absl::Status ready = uploaded->WaitReady(); !ready.ok()) return ready;
  }
  const bool has_gpu = (*server)->Metric(R"(sparsed_device_up{device="cuda:0"})").value_or(0) == 1;
  if (!has_gpu) std::cout << "no GPU here: none of its clients is killed" << std::endl;
  const size_t transports = has_gpu ? kTransports.size() : kOnCpu;
  std::mt19937 random(options.seed);
  const auto seconds = std::chrono::duration<double>(options.seconds);
  Toll all;
  int64_t descriptors = 0, resident = 0;
  // What a first part of the time leaves is what the server keeps for the next clients.
  for (const double part : {0.25, 0.75}) {
    descriptors = Descriptors((*server)->pid());
    resident = (*server)->resident_bytes();
    const Toll toll =
        KillClients((*server)->address(), transports,
                    std::chrono::duration_cast<Clock::duration>(part * seconds), random);
    for (size_t i = 0; i < transports; ++i) all.killed[i] += toll.killed[i];
    all.failed += toll.failed;
    all.bystanders_wrong += toll.bystanders_wrong;
    bounds.True("the server lives", (*server)->Lives());
    if (!bounds.hold()) return absl::OkStatus();
    ExpectNothingLeft(**server, has_gpu, bounds);
  }
  for (size_t i = 0; i < transports; ++i) {
    bounds.AtLeast(fmt::format("clients killed: {}", kTransports[i]),
                   static_cast<double>(all.killed[i]), 1, "");
  }
  bounds.AtMost("clients that failed before", static_cast<double>(all.failed), 0, "");
  bounds.AtMost("bystanders that failed", static_cast<double>(all.bystanders_wrong), 0, "");
  bounds.AtMost("descriptors", static_cast<double>(Descriptors((*server)->pid())),
                static_cast<double>(descriptors + 8), "");
  bounds.AtMost("resident", static_cast<double>((*server)->resident_bytes()) / kMiB,
                static_cast<double>(resident) / kMiB * 1.25 + 64, "MiB");
  std::filesystem::remove_all(folder);
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--as") == 0) {
    return sparsed::test::BeClient(argv[2], argv[3]);
  }
  return sparsed::test::AttackMain(
      argc, argv,
      "Eight clients at once, by one stream and by three, with buffers, with "
      "shared memory, by rings, attached, and with a GPU in its memory and in queues, each\n"
      "killed at a random moment. Nothing of theirs stays, the server "
      "lives, and the results of one\n"
      "client of each kind beside them are right.",
      12, sparsed::test::Attack);
}
