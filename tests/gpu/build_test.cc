// What is built on the GPU is bit by bit what the CPU builds.
#include "kernels/cuda/build/build.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/formats/row_segments.h"
#include "kernels/pipeline.h"
#include "kernels/reorder/lsh_pairs.h"
#include "tests/generate.h"
#include "tests/gpu/gpu.h"
#include "tests/kernels/dense_harness.h"
#include "tests/kernels/layout_testing.h"

namespace sparsed::test {
namespace {

class GpuBuild : public testing::Test {
 protected:
  void SetUp() override {
    if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
    accelerator_.emplace(Gpu::Get()->stream(), Gpu::Get()->memory());
  }
  cuda::GpuBuildAccelerator& accelerator() { return *accelerator_; }

 private:
  std::optional<cuda::GpuBuildAccelerator> accelerator_;
};

std::vector<NamedPattern> Patterns() {
  std::vector<NamedPattern> patterns = OddPatterns();
  patterns.push_back({"no rows", FromCoordinates(0, 20, {})});
  patterns.push_back({"no columns", FromCoordinates(20, 0, {})});
  patterns.push_back({"runs", Runs(3000, 2500, 45, 4)});
  patterns.push_back({"long runs", Runs(500, 40'000, 3000, 6)});
  patterns.push_back({"wide rows", Uniform(10, 30'000, 9'000, 3)});
  patterns.push_back({"one panel", Runs(60'000, 60, 40, 5)});
  return patterns;
}

TEST_F(GpuBuild, RowSegmentsAreThoseOfTheCpu) {
  for (const auto& [name, pattern] : Patterns()) {
    for (const RowSegmentsOptions options :
         {RowSegmentsOptions{}, RowSegmentsOptions{224, 8}, RowSegmentsOptions{32, 2},
          RowSegmentsOptions{40, 1}, RowSegmentsOptions{5000, 16}, RowSegmentsOptions{64, 10'000},
          RowSegmentsOptions{1 << 30, 3}}) {
      for (const bool permuted : {false, true}) {
        SCOPED_TRACE(testing::Message() << name << ", panels of " << options.panel << ", at least "
                                        << options.min_heavy << (permuted ? ", permuted" : ""));
        const std::vector<int32_t> order = RandomOrder(pattern.rows, 5);
        CsrView csr = pattern.view();
        if (permuted) csr.row_order = order;
        const Layout cpu = BuildRowSegments(csr, options, OnHeap()).value();
        const auto gpu = accelerator().BuildRowSegments(csr, options, OnHeap());
        ASSERT_TRUE(gpu.ok()) << gpu.status();
        EXPECT_EQ(gpu->parameters, cpu.parameters);
        ExpectSameArrays(*gpu, cpu);
      }
    }
  }
}

/// Memory that is not to be had, from the `first`th buffer on.
class NoRoom : public MemorySource {
 public:
  NoRoom(MemorySource& memory, int first) : memory_(memory), left_(first) {}
  absl::StatusOr<Buffer> Allocate(size_t bytes) override {
    if (left_-- <= 0) return absl::ResourceExhaustedError("no room");
    return memory_.Allocate(bytes);
  }

 private:
  MemorySource& memory_;
  int left_;
};

void ExpectSamePairs(const CandidatePairs& one, const CandidatePairs& other) {
  ASSERT_EQ(one.count, other.count);
  for (int64_t p = 0; p < one.count; ++p) {
    ASSERT_EQ(one.pairs[p], other.pairs[p]);
    ASSERT_EQ(one.similarities[p], other.similarities[p]);
  }
}

TEST_F(GpuBuild, CandidatePairsAreThoseOfTheCpu) {
  std::vector<NamedPattern> patterns = Patterns();
  patterns.push_back({"clusters", ShuffledClusters(2000, 16, 40'000, 32, 20, 2, 3)});
  for (const auto& [name, pattern] : patterns) {
    for (const auto& [siglen, bsize] : {std::pair{128, 2}, std::pair{16, 1}, std::pair{15, 3},
                                        std::pair{48, 16}, std::pair{7, 7}}) {
      SCOPED_TRACE(testing::Message() << name << ", " << siglen << " in " << bsize);
      LshOptions options;
      options.siglen = siglen;
      options.bsize = bsize;
      BuildContext context = OnHeap();
      const CandidatePairs cpu = FindCandidatePairs(pattern.view(), options, context).value();
      context.accelerator = &accelerator();
      ExpectSamePairs(FindCandidatePairs(pattern.view(), options, context).value(), cpu);
      for (const int buffers : {0, 1, 2}) {
        NoRoom none(Gpu::Get()->memory(), buffers);
        cuda::GpuBuildAccelerator bare(Gpu::Get()->stream(), none);
        context.accelerator = &bare;
        ExpectSamePairs(FindCandidatePairs(pattern.view(), options, context).value(), cpu);
      }
    }
  }
}

TEST_F(GpuBuild, PipelinesUseTheGpuAndFallBack) {
  const Pattern pattern = Runs(30'000, 9000, 45, 2);
  const auto build = [&](BuildContext context) {
    return BuildLayout(ParsePipeline("lsh_cluster(force) > row_segments(force)").value(),
                       pattern.view(), context)
        .value();
  };
  const BuiltLayout cpu = build(OnHeap());
  BuildContext context = OnHeap();
  context.accelerator = &accelerator();
  const BuiltLayout gpu = build(context);
  EXPECT_NE(gpu.notes.find("built on the GPU"), std::string::npos) << gpu.notes;
  EXPECT_EQ(accelerator().calls(), 2);
  ExpectSameArrays(gpu.layout, cpu.layout);
  context.threads = 16;  // they are faster than copies
  EXPECT_EQ(build(context).notes.find("built on"), std::string::npos);
  EXPECT_EQ(accelerator().calls(), 3) << "rows are still clustered there";
  context.threads = 2;

  for (const int buffers : {0, 1, 3, 4, 6, 7, 8}) {
    NoRoom none(Gpu::Get()->memory(), buffers);
    cuda::GpuBuildAccelerator bare(Gpu::Get()->stream(), none);
    context.accelerator = &bare;
    const BuiltLayout fallen_back = build(context);
    EXPECT_NE(fallen_back.notes.find("built on the CPU (no room)"), std::string::npos)
        << fallen_back.notes;
    if (buffers == 0) {
      EXPECT_EQ(bare.calls(), 0);
    }
    ExpectSameArrays(fallen_back.layout, cpu.layout);
  }
}

}  // namespace
}  // namespace sparsed::test
