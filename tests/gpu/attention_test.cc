// Attention along edges on the GPU.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include "tests/gpu/gpu.h"
#include "tests/gpu/workspace.h"
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
    return RunInWorkspace(gpu_, cuda::EdgeAttentionWorkspace(attention, type),
                          [&](const Context& context) {
                            return cuda::ComputeEdgeAttention(context, attention, type);
                          });
  }
  absl::Status Compute(const EdgeAttentionGradient& gradient, ElementType type) override {
    return RunInWorkspace(gpu_, cuda::EdgeAttentionWorkspace(gradient, type),
                          [&](const Context& context) {
                            return cuda::ComputeEdgeAttentionGradient(context, gradient, type);
                          });
  }

 private:
  Gpu& gpu_;
};

TEST(GpuAttention, AsInFloat64) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  OnGpu gpu(*Gpu::Get());
  CheckAttention(gpu);
  CheckAttentionOfOddScores(gpu);
}

TEST(GpuAttention, OfWideHeads) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  OnGpu gpu(*Gpu::Get());
  CheckAttentionOfWideHeads(gpu);
}

TEST(GpuAttention, OfLongRows) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  OnGpu gpu(*Gpu::Get());
  CheckAttentionOfLongRows(gpu);
}

}  // namespace
}  // namespace sparsed::test
