// Attention along edges on the GPU.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include "tests/gpu/gpu.h"
#include "tests/kernels/attention_harness.h"

namespace sparsed::test {
namespace {

class OnGpu final : public AttentionSite {
 public:
  explicit OnGpu(Gpu& gpu) : gpu_(gpu) {}

  Buffer Upload(const void* data, size_t bytes) override { return gpu_.Upload(data, bytes); }
  void Download(void* to, const Buffer& from, size_t bytes) override {
    gpu_.Download(to, from.data(), bytes);
  }
  absl::Status Compute(const EdgeAttention& attention, ElementType type) override {
    return InWorkspace(cuda::EdgeAttentionWorkspace(attention, type), [&](const Context& context) {
      return cuda::ComputeEdgeAttention(context, attention, type);
    });
  }
  absl::Status Compute(const EdgeAttentionGradient& gradient, ElementType type) override {
    return InWorkspace(cuda::EdgeAttentionWorkspace(gradient, type), [&](const Context& context) {
      return cuda::ComputeEdgeAttentionGradient(context, gradient, type);
    });
  }

 private:
  static constexpr size_t kGuard = 256;

  /// With a workspace of NaN that nothing is written behind.
  template <typename Start>
  absl::Status InWorkspace(size_t bytes, const Start& start) {
    Buffer workspace = gpu_.Allocate(bytes + kGuard);
    Must(gpu_.stream().Fill(workspace.mutable_data(), 0xff, bytes + kGuard));
    Context context;
    context.workspace = {workspace.mutable_data(), bytes};
    context.stream = gpu_.stream().handle();
    const absl::Status started = start(context);
    const absl::Status done = gpu_.stream().Synchronize();
    unsigned char guard[kGuard];
    gpu_.Download(guard, workspace.data() + bytes, kGuard);
    for (const unsigned char byte : guard) EXPECT_EQ(byte, 0xff) << "behind the workspace";
    return started.ok() ? done : started;
  }

  Gpu& gpu_;
};

TEST(GpuAttention, AsInFloat64) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  OnGpu gpu(*Gpu::Get());
  CheckAttention(gpu);
  CheckAttentionOfOddScores(gpu);
}

TEST(GpuAttention, OfLongRows) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  OnGpu gpu(*Gpu::Get());
  CheckAttentionOfLongRows(gpu);
}

}  // namespace
}  // namespace sparsed::test
