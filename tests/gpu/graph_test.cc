// Attached products that become parts of CUDA graphs.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/rpc/local_peer.h"
#include "tests/rpc/test_server.h"

// The client's types have names of the kernels': they come after them.
#include "sparsed/attached.h"
#include "tests/unit/client/client_matrices.h"
#include "tests/unit/client/eventually.h"

namespace sparsed::test {
namespace {

void MustCuda(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

TEST(GpuGraphs, KeepWhatTheyUse) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  TestServer server([](server::Config& config) {
    config.devices = {"cuda:0"};
    WithLocal(config);
  });
  const auto connected = Client::Connect(server.address());
  ASSERT_TRUE(connected.ok()) << connected.status();
  constexpr int64_t kRows = 3000, kWidth = 16;
  CsrMatrix s = RandomMatrix(kRows, kRows, 1);
  auto& values = std::get<std::vector<float>>(s.values);
  const Matrix matrix = Upload(*connected, "m", s);
  const std::vector<float> b = RandomDense(kRows * kWidth, 3);
  const std::vector<float> once = Multiply(s, false, b, kWidth);
  const std::vector<float> twice = Multiply(s, false, once, kWidth);
  constexpr size_t kBytes = kRows * kWidth * sizeof(float);
  const Buffer x = Gpu::Get()->Upload(b.data(), kBytes);
  Buffer y = Gpu::Get()->Allocate(kBytes), z = Gpu::Get()->Allocate(kBytes);
  const auto view = [](const Buffer& of) {
    return DenseView(reinterpret_cast<const float*>(of.data()), kRows, kWidth);
  };
  const auto into = [](Buffer& to) {
    return MutableDenseView(reinterpret_cast<float*>(to.mutable_data()), kRows, kWidth);
  };
  cudaStream_t stream = nullptr;
  MustCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t runs = nullptr;
  const auto used = [&] {
    return server.engine().gpus().front()->budget().used(engine::MemoryUse::kShared);
  };
  {
    const auto attached = AttachedMatrix::Attach(*connected, "m", {.gpu = 0});
    ASSERT_TRUE(attached.ok()) << attached.status();
    // Two steps, and the second's operand is the first's result; the server is asked meanwhile.
    MustCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    const auto first = attached->Spmm(GpuStream{stream}, view(x), into(y));
    const auto second = attached->Spmm(GpuStream{stream}, view(y), into(z));
    // What would have to be copied is refused, and spoils nothing.
    const auto refused = attached->Spmm(GpuStream{stream}, view(y), into(y));
    MustCuda(cudaStreamEndCapture(stream, &graph));
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
    MustCuda(cudaGraphInstantiate(&runs, graph, 0));
    MustCuda(cudaGraphDestroy(graph));
  }
  // Other values, which new products see, and then no matrix at all.
  for (float& value : values) value += 1;
  ASSERT_TRUE(matrix.UpdateValues(std::span<const float>(values)).ok());
  ASSERT_TRUE(matrix.Delete().ok());
  for (int i = 0; i < 3; ++i) {
    MustCuda(cudaMemsetAsync(y.mutable_data(), 0xff, kBytes, stream));
    MustCuda(cudaMemsetAsync(z.mutable_data(), 0xff, kBytes, stream));
    MustCuda(cudaGraphLaunch(runs, stream));
    std::vector<float> c(once.size());
    MustCuda(cudaMemcpyAsync(c.data(), z.data(), kBytes, cudaMemcpyDeviceToHost, stream));
    MustCuda(cudaStreamSynchronize(stream));
    EXPECT_EQ(c, twice) << "with the values of then";
  }
  EXPECT_GT(used(), 0);
  MustCuda(cudaGraphExecDestroy(runs));
  MustCuda(cudaStreamDestroy(stream));
  EXPECT_TRUE(Eventually([&] { return used() == 0; }));
}

}  // namespace
}  // namespace sparsed::test
