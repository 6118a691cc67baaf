// Attached products that become parts of CUDA graphs.
#include <gtest/gtest.h>

#include <optional>
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

}  // namespace
}  // namespace sparsed::test
