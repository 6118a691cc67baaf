// SDDMM on the GPU where sums are no ordinary numbers: kernels that multiply by parts must say the
// same as those that do not.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/pipeline.h"
#include "tests/generate.h"
#include "tests/gpu/gpu.h"
#include "tests/kernels/dense_harness.h"

namespace sparsed::test {
namespace {

constexpr int64_t kWidth = 40;
constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

Layout LayoutOf(const char* pipeline, const Pattern& pattern) {
  BuildContext context;
  context.threads = 2;
  context.memory = &HeapMemory();
  return BuildLayout(ParsePipeline(pipeline).value(), pattern.view(), context).value().layout;
}

/// 0: finite, 1: infinite, 2: NaN.
int Kind(double value) { return std::isnan(value) ? 2 : std::isinf(value) ? 1 : 0; }

/// T: float, Float16 or BFloat16.
template <typename T>
void ExpectWhatIsNotFinite() {
  Gpu& gpu = *Gpu::Get();
  const Pattern pattern = Band(200, 9);
  std::vector<T> a(pattern.rows * kWidth, T(0.5F)), b(pattern.cols * kWidth, T(0.25F));
  a[3 * kWidth + 7] = T(kInfinite);
  if (std::is_same_v<T, float>) {
    a[50 * kWidth] = T(kLargest);  // rounded up to TF32 it would be infinite
    b[53 * kWidth] = T(1e-30F);
  }
  b[90 * kWidth + 39] = T(-kInfinite);
  a[95 * kWidth + 39] = T(0);  // times infinity: NaN
  a[120 * kWidth + 16] = T(std::numeric_limits<float>::quiet_NaN());
  const Buffer a_device = gpu.Upload(a.data(), a.size() * sizeof(T));
  const Buffer b_device = gpu.Upload(b.data(), b.size() * sizeof(T));
  const Problem problem = {.operation = Operation::kSddmm,
                           .type = ElementTypeOf<T>(),
                           .k = kWidth,
                           .device = DeviceKind::kCuda};
  // Of sums in float, and of what they are rounded to in the end.
  const double bound = std::is_same_v<T, float> ? 3e-6 : std::is_same_v<T, Float16> ? 5e-4 : 4e-3;
  for (const char* pipeline :
       {"csr", "dcsr", "coo_panels", "row_panels(force)", "row_panels(force,rows=16)",
        "aspt(panel=64,min_dense=2)", "lsh_cluster(force) > aspt(panel=256,min_dense=2)",
        "transpose > aspt(panel=7,min_dense=1)"}) {
    const Layout layout = gpu.Upload(LayoutOf(pipeline, pattern));
    for (const SddmmKernel& kernel : SddmmKernels()) {
      if (kernel.device != DeviceKind::kCuda || kernel.layout_kind != layout.kind ||
          !kernel.supports(problem, layout) || kernel.from_library) {
        continue;
      }
      SCOPED_TRACE(std::string(kernel.name));
      std::vector<T> out(pattern.nnz(), T(7));
      Buffer result = gpu.Upload(out.data(), out.size() * sizeof(T));
      ASSERT_TRUE(kernel
                      .run({.workspace = {}, .stream = gpu.stream().handle()}, problem,
                           {layout,
                            nullptr,
                            {a_device.data(), pattern.rows, kWidth, kWidth},
                            {b_device.data(), pattern.cols, kWidth, kWidth},
                            result.mutable_data()})
                      .ok());
      gpu.Download(out.data(), result.data(), out.size() * sizeof(T));
      for (int64_t row = 0; row < pattern.rows; ++row) {
        for (int64_t p = pattern.row_offsets[row]; p < pattern.row_offsets[row + 1]; ++p) {
          const int64_t column = pattern.column_indices[p];
          double sum = 0, magnitude = 0;
          for (int64_t k = 0; k < kWidth; ++k) {
            const double term = static_cast<double>(static_cast<float>(a[row * kWidth + k])) *
                                static_cast<float>(b[column * kWidth + k]);
            sum += term;
            magnitude += std::abs(term);
          }
          const auto got = static_cast<float>(out[p]);
          ASSERT_EQ(Kind(got), Kind(static_cast<float>(sum))) << row << ", " << column;
          if (std::isfinite(sum) && magnitude < kLargest) {
            ASSERT_NEAR(got, sum, bound * magnitude) << row << ", " << column;
          }
        }
      }
    }
  }
}

TEST(GpuSddmm, KeepsWhatIsNotFinite) {
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot();
  ExpectWhatIsNotFinite<float>();
  ExpectWhatIsNotFinite<Float16>();
  ExpectWhatIsNotFinite<BFloat16>();
}

}  // namespace
}  // namespace sparsed::test
