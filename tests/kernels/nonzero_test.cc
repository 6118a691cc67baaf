// What has no plan, on the CPU.
#include <gtest/gtest.h>

#include "kernels/formats/csr.h"
#include "kernels/row_softmax.h"
#include "tests/kernels/nonzero_harness.h"

namespace sparsed::test {
namespace {

class Cpu final : public OnCpu<NonzeroSite> {
 public:
  explicit Cpu(int threads) : threads_(threads) {}

  absl::Status Compute(const RowProducts& products, ElementType type) override {
    ComputeRowProducts(products, type, threads_);
    return absl::OkStatus();
  }
  absl::Status Compute(const HeadDots& dots, ElementType type) override {
    ComputeHeadDots(dots, type, threads_);
    return absl::OkStatus();
  }
  absl::Status Compute(const NonzeroScaling& scaling, ElementType type) override {
    ScaleNonzeros(scaling, type, threads_);
    return absl::OkStatus();
  }
  absl::Status Compute(const NonzeroTotals& totals, ElementType type) override {
    TotalNonzeros(totals, type, threads_);
    return absl::OkStatus();
  }
  absl::Status Softmax(const Layout& csr, ElementType type, double scale, const ConstDense& x,
                       const ConstDense* dy, const Dense& y) override {
    const auto rows = ViewCsr(csr).row_offsets;
    if (dy == nullptr) {
      RowSoftmax(rows, type, scale, x, y, threads_);
    } else {
      RowSoftmaxGradient(rows, type, scale, x, *dy, y, threads_);
    }
    return absl::OkStatus();
  }

 private:
  const int threads_;
};

TEST(Nonzeros, AsInFloat64WithOneThread) {
  Cpu cpu(1);
  CheckNonzeroKernels(cpu);
}

TEST(Nonzeros, AsInFloat64WithSeveralThreads) {
  Cpu cpu(3);
  CheckNonzeroKernels(cpu);
  CheckNonzeroKernelsOfLongRows(cpu);
}

}  // namespace
}  // namespace sparsed::test
