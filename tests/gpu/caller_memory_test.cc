// Memory that a process allocated on the GPU itself, used by a server that is another process, on a
// real GPU. The test is the server; callers are processes of their own that run the disabled tests.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/exportable_memory.h"
#include "kernels/cuda/ipc_memory.h"
#include "tests/gpu/cuda_malloc.h"
#include "tests/gpu/gpu.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"

// The client's types have names of the kernels': they come after them.
#include "sparsed/gpu_memory.h"
#include "tests/unit/client/client_matrices.h"

namespace sparsed::test {
namespace {

#define SKIP_WITHOUT_GPU() \
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot()

void Trusting(server::Config& config) {
  config.devices = {"cuda:0"};
  config.trust_caller_gpu_memory = true;
  WithLocal(config);
  WithPages(config);
}
void Distrustful(server::Config& config) {
  Trusting(config);
  config.trust_caller_gpu_memory = false;
}

/// A process of its own that runs one of the disabled tests below.
class Caller {
 public:
  Caller(const std::string& test, const TestServer& server) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    std::vector<std::string> words = {self, "--gtest_filter=GpuCallerMemory.DISABLED_" + test,
                                      "--gtest_also_run_disabled_tests"};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    setenv("SPARSED_TEST_ADDRESS", server.address().c_str(), 1);
    // Which tests of the shards are this process's is nothing to the child.
    unsetenv("GTEST_TOTAL_SHARDS");
    unsetenv("GTEST_SHARD_INDEX");
    EXPECT_EQ(posix_spawn(&pid_, self.c_str(), nullptr, nullptr, arguments.data(), environ), 0);
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  ~Caller() {
    Kill();
    Wait();
  }
  void Kill() {
    if (pid_ > 0) kill(pid_, SIGKILL);
  }
  /// Its exit status; -1 if it was killed.
  int Wait() {
    if (pid_ <= 0) return status_;
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return status_;
  }

 private:
  pid_t pid_ = 0;
  int status_ = -1;
};

bool HasNoRegions(const TestServer& server) {
  return server.Page("/metrics").find("sparsed_shared_regions 0") != std::string::npos;
}

TEST(GpuCallerMemory, IsUsedWhereItIs) {
  SKIP_WITHOUT_GPU();
  TestServer server(Trusting);
  EXPECT_EQ(Caller("IsInPlace", server).Wait(), 0);
  EXPECT_TRUE(Eventually([&] { return HasNoRegions(server); })) << "the caller has gone";
  EXPECT_EQ(server.engine().gpus().front()->budget().used(engine::MemoryUse::kShared), 0);
}

TEST(GpuCallerMemory, OfPoolsAndVirtualMemoryIsCopied) {
  SKIP_WITHOUT_GPU();
  TestServer server(Trusting);
  EXPECT_EQ(Caller("HasNoHandle", server).Wait(), 0);
}

TEST(GpuCallerMemory, IsCopiedWithoutTheFlag) {
  SKIP_WITHOUT_GPU();
  TestServer server(Distrustful);
  EXPECT_EQ(Caller("IsNotTrusted", server).Wait(), 0);
}

TEST(GpuCallerMemory, ThatIsFreedGoesBackToTheCard) {
  SKIP_WITHOUT_GPU();
  TestServer server(Trusting);
  EXPECT_EQ(Caller("ComesAndGoes", server).Wait(), 0);
}

TEST(GpuCallerMemory, OfTheServersOwnProcessIsCopied) {
  SKIP_WITHOUT_GPU();
  TestServer server(Trusting);
  auto client = Client::Connect(server.address());
  ASSERT_TRUE(client.ok()) << client.status();
  auto memory = GpuMemory::Open(*client, 0);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const CsrMatrix s = RandomMatrix(30, 30, 1);
  const QueuedMatrix matrix(*memory, Upload(*client, "s", s));
  const CudaMalloc b(30 * 4 * sizeof(float)), c(30 * 4 * sizeof(float));
  const std::vector<float> x = RandomDense(30 * 4, 2);
  Must(Gpu::Get()->stream().Copy(b.data(), x.data(), x.size() * sizeof(float)));
  Must(Gpu::Get()->stream().Synchronize());
  const auto done =
      matrix.Spmm({Gpu::Get()->stream().handle()}, DenseView(b.data(), ValueType::kF32, 30, 4, 0),
                  MutableDenseView(c.data(), ValueType::kF32, 30, 4, 0));
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->in_place_bytes, 0);
  std::vector<float> back(x.size());
  Gpu::Get()->Download(back.data(), c.data(), back.size() * sizeof(float));
  EXPECT_EQ(back, Multiply(s, false, x, 4));
}

TEST(GpuCallerMemory, ACallerThatIsKilledHarmsNobody) {
  SKIP_WITHOUT_GPU();
  TestServer server(Trusting);
  MakeGood(server);
  std::mt19937 random(7);
  for (int round = 0; round < 5; ++round) {
    Caller caller("NeverStops", server);
    ASSERT_TRUE(Eventually([&] { return !HasNoRegions(server); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
    caller.Kill();
    EXPECT_EQ(caller.Wait(), -1);
    EXPECT_TRUE(Eventually([&] { return HasNoRegions(server); }));
    ExpectGood(server);
  }
}

/// What a caller that lends memory writes to a file: a handle, a number and the size.
struct Lent {
  cuda::IpcHandle handle;
  uint64_t id = 0, bytes = 0;
};

v1::LocalRequest OpenOf(const Lent& lent) {
  v1::LocalRequest request;
  v1::OpenCallerMemory& open = *request.mutable_open_caller_memory();
  open.set_gpu(*cuda::DeviceUuid(0));
  open.set_handle(lent.handle.data(), lent.handle.size());
  open.set_bytes(lent.bytes);
  open.set_allocation(lent.id);
  return request;
}

TEST(GpuCallerMemory, WrongAndStaleHandlesAreRefused) {
  SKIP_WITHOUT_GPU();
  TestServer server(Trusting);
  MakeGood(server);
  const std::string path = testing::TempDir() + "sparsed_lent_" + std::to_string(getpid());
  std::filesystem::remove(path);
  setenv("SPARSED_TEST_LENT", path.c_str(), 1);
  Caller caller("Lends", server);
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(path); }));
  Lent lent;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&lent), sizeof(lent));
  Peer one(server), other(server);
  one.Receive();
  other.Receive();
  const auto code_of = [&](const Lent& wrong) { return one.Ask(OpenOf(wrong)).status().code(); };
  // Whoever has the handle may name the memory, as often as they like.
  const std::string first = one.Ask(OpenOf(lent)).region(), again = one.Ask(OpenOf(lent)).region(),
                    others = other.Ask(OpenOf(lent)).region();
  EXPECT_EQ(first.size(), 16U);
  EXPECT_EQ(again.size(), 16U);
  EXPECT_EQ(others.size(), 16U);
  EXPECT_EQ(one.Forget(first).status().code(), kOk);
  EXPECT_EQ(one.Forget(again).status().code(), kOk);
  Lent wrong = lent;
  ++wrong.id;
  EXPECT_EQ(code_of(wrong), kPrecondition) << "another allocation while this one is open";
  EXPECT_EQ(other.Forget(others).status().code(), kOk);
  wrong = lent;
  wrong.bytes = uint64_t{1} << 40;
  EXPECT_EQ(code_of(wrong), kInvalid);
  wrong = lent;
  wrong.handle.fill(0);
  EXPECT_EQ(code_of(wrong), kInvalid);
  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    for (char& byte : wrong.handle) byte = static_cast<char>(random());
    EXPECT_EQ(code_of(wrong), kInvalid);
  }
  const CudaMalloc own(4096);
  const auto allocation = cuda::AllocationOf(own.data());
  ASSERT_TRUE(allocation.has_value());
  EXPECT_EQ(code_of({*cuda::HandleOf(*allocation), allocation->id, 4096}), kInvalid)
      << "the server's own";
  const std::string last = one.Ask(OpenOf(lent)).region();
  EXPECT_EQ(last.size(), 16U) << "it is there still";
  ExpectGood(server);
  // Once its process has gone, nobody can open it any more.
  caller.Kill();
  caller.Wait();
  EXPECT_EQ(one.Forget(last).status().code(), kOk);
  EXPECT_TRUE(HasNoRegions(server));
  EXPECT_EQ(code_of(lent), kInvalid);
  ExpectGood(server);
  std::filesystem::remove(path);
}

/// A caller's view of it all: matrix, operands, results.
struct Work {
  static constexpr int64_t kN = 3000, kWidth = 16;
  static constexpr size_t kBytes = kN * kWidth * sizeof(float);

  Work()
      : client(*Client::Connect(std::getenv("SPARSED_TEST_ADDRESS"))),
        memory(*GpuMemory::Open(client, 0)),
        s(RandomMatrix(kN, kN, 5)),
        matrix(memory, Upload(client, "s", s, {.replace = true})),
        x(RandomDense(kN * kWidth, 9)),
        expected(Multiply(s, false, x, kWidth)) {}

  static GpuStream Stream() { return {Gpu::Get()->stream().handle()}; }
  /// B is written, the product queued and C read, all in one stream; checked.
  absl::StatusOr<QueuedResult> Run(std::byte* b, std::byte* c) {
    cuda::Stream& stream = Gpu::Get()->stream();
    Must(stream.Copy(b, x.data(), kBytes));
    const std::vector<float> poison(x.size(), kPoison);
    Must(stream.Copy(c, poison.data(), kBytes));
    auto done = matrix.Spmm(Stream(), DenseView(b, ValueType::kF32, kN, kWidth, 0),
                            MutableDenseView(c, ValueType::kF32, kN, kWidth, 0));
    std::vector<float> back(x.size());
    Must(stream.Copy(back.data(), c, kBytes));
    Must(stream.Synchronize());
    EXPECT_TRUE(done.ok()) << done.status();
    EXPECT_EQ(back, expected);
    return done;
  }

  const Client client;
  const GpuMemory memory;
  const CsrMatrix s;
  const QueuedMatrix matrix;
  const std::vector<float> x, expected;
};

constexpr int64_t kBoth = 2 * Work::kBytes;

TEST(GpuCallerMemory, DISABLED_IsInPlace) {
  Work work;
  const CudaMalloc b(Work::kBytes + 512), c(Work::kBytes);
  for (int i = 0; i < 50; ++i) {
    const auto done = work.Run(b.data(), c.data());
    ASSERT_TRUE(done.ok());
    EXPECT_TRUE(done->queued);
    EXPECT_EQ(done->in_place_bytes, kBoth);
    EXPECT_EQ(done->copied_bytes, 0);
  }
  EXPECT_EQ(work.Run(b.data() + 256, c.data())->in_place_bytes, kBoth);
  EXPECT_EQ(work.Run(b.data() + 4, c.data())->in_place_bytes, kBoth / 2);
  // Of one allocation, as a framework has it.
  const CudaMalloc both(2 * Work::kBytes + 256);
  EXPECT_EQ(work.Run(both.data(), both.data() + Work::kBytes + 256)->in_place_bytes, kBoth);
  // A second handle of the same client's opens them once more.
  const GpuMemory again = *GpuMemory::Open(work.client, 0);
  const auto done =
      QueuedMatrix(again, work.matrix.matrix())
          .Spmm(Work::Stream(), DenseView(b.data(), ValueType::kF32, Work::kN, Work::kWidth, 0),
                MutableDenseView(c.data(), ValueType::kF32, Work::kN, Work::kWidth, 0));
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->in_place_bytes, kBoth);
  // Plain requests, which take what has been written.
  Must(Gpu::Get()->stream().Synchronize());
  const auto plain = work.matrix.matrix().Spmm(
      DenseView(b.data(), ValueType::kF32, Work::kN, Work::kWidth, 0),
      MutableDenseView(c.data(), ValueType::kF32, Work::kN, Work::kWidth, 0));
  EXPECT_TRUE(plain.ok()) << plain.status();
}

TEST(GpuCallerMemory, DISABLED_HasNoHandle) {
  Work work;
  Buffer pooled = Gpu::Get()->Allocate(Work::kBytes);
  absl::StatusOr<Buffer> mapped = cuda::AllocateExportable(Work::kBytes);
  Must(mapped.status());
  for (int i = 0; i < 3; ++i) {
    const auto done = work.Run(pooled.mutable_data(), mapped->mutable_data());
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->in_place_bytes, 0);
    EXPECT_EQ(done->copied_bytes, kBoth);
  }
}

TEST(GpuCallerMemory, DISABLED_IsNotTrusted) {
  Work work;
  const CudaMalloc b(Work::kBytes), c(Work::kBytes);
  for (int i = 0; i < 3; ++i) {
    const auto done = work.Run(b.data(), c.data());
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->in_place_bytes, 0);
    EXPECT_EQ(done->copied_bytes, kBoth);
  }
}

TEST(GpuCallerMemory, DISABLED_ComesAndGoes) {
  Work work;
  // In one place after another, and again in the same.
  for (int i = 0; i < 30; ++i) {
    const CudaMalloc b(Work::kBytes + (i % 3) * (size_t{4} << 20)), c(Work::kBytes);
    const auto done = work.Run(b.data(), c.data());
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->in_place_bytes + done->copied_bytes, kBoth);
  }
  constexpr size_t kLarge = size_t{1} << 30;
  const size_t before = *cuda::FreeBytes();
  {
    const CudaMalloc large(kLarge);
    EXPECT_EQ(work.Run(large.data(), large.data() + kLarge / 2)->in_place_bytes, kBoth);
  }
  EXPECT_TRUE(Eventually([&] { return *cuda::FreeBytes() + kLarge / 2 > before; }))
      << "the server keeps what was freed";
}

TEST(GpuCallerMemory, DISABLED_NeverStops) {
  Work work;
  const CudaMalloc b(Work::kBytes), c(Work::kBytes);
  while (work.Run(b.data(), c.data()).ok()) {
    for (int i = 0; i < 50; ++i) {
      work.matrix
          .Spmm(Work::Stream(), DenseView(b.data(), ValueType::kF32, Work::kN, Work::kWidth, 0),
                MutableDenseView(c.data(), ValueType::kF32, Work::kN, Work::kWidth, 0))
          .IgnoreError();
    }
  }
}

TEST(GpuCallerMemory, DISABLED_Lends) {
  constexpr size_t kBytes = size_t{2} << 20;
  const CudaMalloc memory(kBytes);
  const auto allocation = cuda::AllocationOf(memory.data());
  ASSERT_TRUE(allocation.has_value());
  const Lent lent = {*cuda::HandleOf(*allocation), allocation->id, kBytes};
  const std::string path = std::getenv("SPARSED_TEST_LENT");
  std::ofstream(path + ".part", std::ios::binary)
      .write(reinterpret_cast<const char*>(&lent), sizeof(lent));
  std::filesystem::rename(path + ".part", path);
  for (;;) pause();  // until it is killed
}

}  // namespace
}  // namespace sparsed::test
