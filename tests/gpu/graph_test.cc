// Attached products that become parts of CUDA graphs.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/gpu/graphs.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"

// The client's types have names of the kernels': they come after them.
#include "sparsed/attached.h"
#include "tests/unit/client/client_matrices.h"
#include "tests/unit/client/eventually.h"

namespace sparsed::test {
namespace {

constexpr int64_t kRows = 3000, kWidth = 16;
constexpr size_t kBytes = kRows * kWidth * sizeof(float);

DenseView View(const Buffer& memory) {
  return {reinterpret_cast<const float*>(memory.data()), kRows, kWidth};
}
MutableDenseView Into(Buffer& memory) {
  return {reinterpret_cast<float*>(memory.mutable_data()), kRows, kWidth};
}

TEST(GpuGraphs, KeepWhatTheyUse) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  TestServer server([](server::Config& config) {
    config.devices = {"cuda:0"};
    WithLocal(config);
  });
  const auto connected = Client::Connect(server.address());
  ASSERT_TRUE(connected.ok()) << connected.status();
  CsrMatrix s = RandomMatrix(kRows, kRows, 1);
  auto& values = std::get<std::vector<float>>(s.values);
  const Matrix matrix = Upload(*connected, "m", s);
  const std::vector<float> b = RandomDense(kRows * kWidth, 3);
  const std::vector<float> once = Multiply(s, false, b, kWidth);
  const std::vector<float> twice = Multiply(s, false, once, kWidth);
  const Buffer x = Gpu::Get()->Upload(b.data(), kBytes);
  Buffer y = Gpu::Get()->Upload(b.data(), kBytes), z = Gpu::Get()->Upload(b.data(), kBytes);
  const auto used = [&] {
    return server.engine().gpus().front()->budget().used(engine::MemoryUse::kShared);
  };
  std::optional<CapturedGraph> graph;
  {
    const auto attached = AttachedMatrix::Attach(*connected, "m", {.gpu = 0});
    ASSERT_TRUE(attached.ok()) << attached.status();
    // Two steps, and the second's operand is the first's result; the server is asked meanwhile.
    graph.emplace([&](void* stream) {
      const auto first = attached->Spmm(GpuStream{stream}, View(x), Into(y));
      EXPECT_TRUE(first.ok()) << first.status();
      const auto second = attached->Spmm(GpuStream{stream}, View(y), Into(z));
      EXPECT_TRUE(second.ok()) << second.status();
      // What would have to be copied is refused, and spoils nothing.
      EXPECT_EQ(attached->Spmm(GpuStream{stream}, View(y), Into(y)).status().code(),
                absl::StatusCode::kFailedPrecondition);
    });
    EXPECT_EQ(attached->runs(), 0) << "nothing ran";
  }
  // Other values, which new products see, and then no matrix at all.
  for (float& value : values) value += 1;
  ASSERT_TRUE(matrix.UpdateValues(std::span<const float>(values)).ok());
  ASSERT_TRUE(matrix.Delete().ok());
  for (int i = 0; i < 3; ++i) {
    Must(Gpu::Get()->stream().Fill(y.mutable_data(), 0xff, kBytes));
    Must(Gpu::Get()->stream().Fill(z.mutable_data(), 0xff, kBytes));
    Must(Gpu::Get()->stream().Synchronize());
    graph->Run();
    std::vector<float> c(once.size());
    Gpu::Get()->Download(c.data(), z.data(), kBytes);
    EXPECT_EQ(c, twice) << "with the values of then";
  }
  EXPECT_GT(used(), 0);
  graph.reset();
  EXPECT_TRUE(Eventually([&] { return used() == 0; }));
}

TEST(GpuGraphs, HaveChains) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  TestServer server([](server::Config& config) {
    config.devices = {"cuda:0"};
    WithLocal(config);
  });
  const auto connected = Client::Connect(server.address());
  ASSERT_TRUE(connected.ok()) << connected.status();
  CsrMatrix s = RandomMatrix(kRows, kRows, 1);
  auto& values = std::get<std::vector<float>>(s.values);
  const Matrix matrix = Upload(*connected, "m", s), other = Upload(*connected, "other", s);
  const std::vector<float> b = RandomDense(kRows * kWidth, 3);
  const std::vector<float> once = Multiply(s, false, b, kWidth);
  std::vector<float> expected = Multiply(s, true, once, kWidth);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += 2 * b[i];
  const Buffer x = Gpu::Get()->Upload(b.data(), kBytes);
  Buffer y = Gpu::Get()->Upload(b.data(), kBytes), z = Gpu::Get()->Upload(b.data(), kBytes);
  const auto used = [&] {
    return server.engine().gpus().front()->budget().used(engine::MemoryUse::kShared);
  };
  // y = S^T (S x) + 2 x, and the sum over each row of a softmax, which is 1, or 0 of no nonzeros.
  Chain chain, stranger;
  const auto in = chain.Input(View(x));
  chain.Output(
      chain.Spmm(matrix, chain.Spmm(matrix, in), {.transpose = true, .beta = 2, .accumulate = in}),
      Into(y));
  const auto weights =
      chain.Softmax(matrix, chain.Sddmm(matrix, in, in, {.unscaled = true, .heads = kWidth}));
  chain.Output(chain.Total(matrix, {.values = weights}), Into(z));
  stranger.Output(stranger.Spmm(other, stranger.Input(View(x))), Into(y));
  std::optional<CapturedGraph> graph;
  {
    const auto attached = AttachedMatrix::Attach(*connected, "m", {.gpu = 0});
    ASSERT_TRUE(attached.ok()) << attached.status();
    graph.emplace([&](void* stream) {
      // The server is asked meanwhile.
      const auto done = attached->Run(GpuStream{stream}, chain);
      EXPECT_TRUE(done.ok()) << done.status();
      EXPECT_EQ(attached->Run(GpuStream{stream}, stranger).status().code(),
                absl::StatusCode::kFailedPrecondition);
    });
    EXPECT_EQ(attached->runs(), 0) << "nothing ran";
    // Beside it, in a stream, where what is kept for the graph is not used.
    Chain wider;
    wider.Output(wider.Spmm(matrix, wider.Spmm(matrix, wider.Input(View(x)))), Into(z));
    ASSERT_TRUE(attached->Run(GpuStream{Gpu::Get()->stream().handle()}, wider).ok());
    Must(Gpu::Get()->stream().Synchronize());
  }
  for (float& value : values) value += 1;
  ASSERT_TRUE(matrix.UpdateValues(std::span<const float>(values)).ok());
  ASSERT_TRUE(matrix.Delete().ok());
  for (int i = 0; i < 3; ++i) {
    Must(Gpu::Get()->stream().Fill(y.mutable_data(), 0xff, kBytes));
    Must(Gpu::Get()->stream().Fill(z.mutable_data(), 0xff, kBytes));
    Must(Gpu::Get()->stream().Synchronize());
    graph->Run();
    std::vector<float> c(expected.size());
    Gpu::Get()->Download(c.data(), y.data(), kBytes);
    EXPECT_EQ(c, expected) << "with the values of then";
    Gpu::Get()->Download(c.data(), z.data(), kBytes);
    for (int64_t row = 0; row < kRows; ++row) {
      const bool none = s.row_offsets[row] == s.row_offsets[row + 1];
      for (int64_t j = 0; j < kWidth; ++j) {
        ASSERT_NEAR(c[row * kWidth + j], none ? 0 : 1, 1e-5) << row << ", " << j;
      }
    }
  }
  EXPECT_GT(used(), 0);
  graph.reset();
  EXPECT_TRUE(Eventually([&] { return used() == 0; }));
}

TEST(GpuGraphs, AreNotSpoiledByProductsOfOtherThreads) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  TestServer server([](server::Config& config) {
    config.devices = {"cuda:0"};
    WithLocal(config);
  });
  const auto connected = Client::Connect(server.address());
  ASSERT_TRUE(connected.ok()) << connected.status();
  const CsrMatrix s = RandomMatrix(kRows, kRows, 1);
  Upload(*connected, "m", s);
  const std::vector<float> b = RandomDense(kRows * kWidth, 3);
  const Buffer x = Gpu::Get()->Upload(b.data(), kBytes);
  Buffer y = Gpu::Get()->Upload(b.data(), kBytes), z = Gpu::Get()->Upload(b.data(), kBytes);
  const auto attached = AttachedMatrix::Attach(*connected, "m", {.gpu = 0});
  ASSERT_TRUE(attached.ok()) << attached.status();
  // The server is asked before, and has nothing to do meanwhile.
  ASSERT_TRUE(attached->Spmm(GpuStream{Gpu::Get()->stream().handle()}, View(x), Into(y)).ok());
  Must(Gpu::Get()->stream().Synchronize());
  std::this_thread::sleep_for(std::chrono::seconds(1));
  absl::StatusOr<cuda::Stream> other = cuda::Stream::Create();
  ASSERT_TRUE(other.ok()) << other.status();
  CapturedGraph graph(
      [&](void* stream) {
        std::thread([&] {
          // The first of this stream, and those whose times are asked for.
          for (int i = 0; i < 100; ++i) {
            const auto done = attached->Spmm(GpuStream{other->handle()}, View(x), Into(z));
            EXPECT_TRUE(done.ok()) << done.status();
          }
        }).join();
        const auto captured = attached->Spmm(GpuStream{stream}, View(x), Into(y));
        EXPECT_TRUE(captured.ok()) << captured.status();
      },
      /*global=*/true);
  graph.Run();
  Must(other->Synchronize());
  const std::vector<float> expected = Multiply(s, false, b, kWidth);
  std::vector<float> c(expected.size());
  for (const Buffer* result : {&y, &z}) {
    Gpu::Get()->Download(c.data(), result->data(), kBytes);
    EXPECT_EQ(c, expected);
  }
}

}  // namespace
}  // namespace sparsed::test
