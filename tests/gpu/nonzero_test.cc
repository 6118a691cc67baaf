// What has no plan, on the GPU.
#include <gtest/gtest.h>

#include "kernels/formats/csr.h"
#include "kernels/kernel_table.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/workspace.h"
#include "tests/kernels/nonzero_harness.h"

namespace sparsed::test {
namespace {

class OnGpu : public NonzeroSite {
 public:
  explicit OnGpu(Gpu& gpu) : gpu_(gpu) {}

  Buffer Upload(const void* data, size_t bytes) override { return gpu_.Upload(data, bytes); }
  void Download(void* to, const Buffer& from, size_t bytes) override {
    gpu_.Download(to, from.data(), bytes);
  }
  absl::Status Compute(const RowProducts& products, ElementType type) override {
    return RunInWorkspace(
        gpu_, cuda::RowProductsWorkspace(products, type),
        [&](const Context& context) { return cuda::ComputeRowProducts(context, products, type); });
  }
  absl::Status Compute(const HeadDots& dots, ElementType type) override {
    Context context;
    context.stream = gpu_.stream().handle();
    return Done(cuda::ComputeHeadDots(context, dots, type));
  }
  absl::Status Compute(const NonzeroScaling& scaling, ElementType type) override {
    return Done(cuda::ScaleNonzeros(gpu_.stream(), scaling, type));
  }
  absl::Status Compute(const NonzeroTotals& totals, ElementType type) override {
    return Done(cuda::TotalNonzeros(gpu_.stream(), totals, type));
  }
  absl::Status Softmax(const Layout& csr, ElementType type, double scale, const ConstDense& x,
                       const ConstDense* dy, const Dense& y) override {
    const auto rows = ViewCsr(csr).row_offsets;
    return Done(dy == nullptr
                    ? cuda::RowSoftmax(gpu_.stream(), rows, type, scale, x, y)
                    : cuda::RowSoftmaxGradient(gpu_.stream(), rows, type, scale, x, *dy, y));
  }

 protected:
  Gpu& gpu_;

 private:
  absl::Status Done(const absl::Status& started) {
    const absl::Status done = gpu_.stream().Synchronize();
    return started.ok() ? done : started;
  }
};

/// Reductions by a kernel of SpMM, those that it can.
class ByKernel final : public OnGpu {
 public:
  ByKernel(Gpu& gpu, const SpmmKernel& kernel) : OnGpu(gpu), kernel_(kernel) {}
  int runs() const { return runs_; }

  absl::Status Compute(const RowProducts& products, ElementType type) override {
    const Problem problem = {.operation = Operation::kSpmm,
                             .type = type,
                             .k = products.c.cols,
                             .device = DeviceKind::kCuda};
    const bool apart = products.values.data != nullptr && products.values.leading_dimension != 1;
    if (products.arguments.data != nullptr || apart ||
        !kernel_.supports(problem, products.layout)) {
      return OnGpu::Compute(products, type);
    }
    ++runs_;
    const SpmmArguments arguments = {
        products.layout, products.values.data, products.b, products.c, 1, 0, products.reduction};
    return RunInWorkspace(
        gpu_, kernel_.workspace(problem, products.layout, 1),
        [&](const Context& context) { return kernel_.run(context, problem, arguments); });
  }

 private:
  const SpmmKernel& kernel_;
  int runs_ = 0;
};

/// Every kernel that says that it reduces, from plain CSR.
TEST(GpuNonzeros, AreReducedByKernelsOfSpmm) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  int kernels = 0;
  for (const SpmmKernel& kernel : SpmmKernels()) {
    if (!kernel.reduces || kernel.device != DeviceKind::kCuda) continue;
    SCOPED_TRACE(kernel.name);
    ByKernel site(*Gpu::Get(), kernel);
    CheckReductions(site);
    if (HasFatalFailure()) return;
    EXPECT_GT(site.runs(), 0);
    ++kernels;
  }
  EXPECT_GE(kernels, 7);
}

TEST(GpuNonzeros, AsInFloat64) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  OnGpu gpu(*Gpu::Get());
  CheckNonzeroKernels(gpu);
  CheckNonzeroKernelsOfLongRows(gpu);
}

/// Rows of matrices of several columns, by words of 2 to 16 bytes.
TEST(GpuNonzeros, ArePutInOrder) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  Gpu& gpu = *Gpu::Get();
  const std::vector<int64_t> order = {4, 0, 3, 1, 2};
  const Buffer order_there = gpu.Upload(order.data(), order.size() * sizeof(int64_t));
  const std::span<const int64_t> placed = {reinterpret_cast<const int64_t*>(order_there.data()),
                                           order.size()};
  for (const int64_t cols : {1, 2, 3, 4, 8, 13}) {
    for (const int64_t padding : {0, 1, 4}) {
      SCOPED_TRACE(testing::Message() << cols << " columns and " << padding);
      const int64_t pitch = cols + padding;
      std::vector<uint16_t> from(5 * pitch);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(i + 1);
      const Buffer from_there = gpu.Upload(from.data(), from.size() * sizeof(uint16_t));
      for (const bool scatters : {false, true}) {
        std::vector<uint16_t> to(5 * pitch, 7777);
        Buffer to_there = gpu.Upload(to.data(), to.size() * sizeof(uint16_t));
        const ConstDense source = {from_there.data(), 5, cols, pitch};
        const Dense target = {to_there.mutable_data(), 5, cols, pitch};
        Must(scatters ? cuda::ScatterRows(gpu.stream(), placed, ElementType::kBF16, source, target)
                      : cuda::GatherRows(gpu.stream(), placed, ElementType::kBF16, source, target));
        gpu.Download(to.data(), to_there.data(), to.size() * sizeof(uint16_t));
        for (int64_t i = 0; i < 5; ++i) {
          for (int64_t j = 0; j < pitch; ++j) {
            const int64_t to_row = scatters ? order[i] : i, from_row = scatters ? i : order[i];
            ASSERT_EQ(to[to_row * pitch + j], j < cols ? from[from_row * pitch + j] : 7777)
                << i << ", " << j;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparsed::test
