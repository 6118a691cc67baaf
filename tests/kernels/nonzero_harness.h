// What is computed on plain CSR without a plan (kernels/row_products.h, kernels/nonzero_passes.h,
// kernels/row_softmax.h) against float64, on any device.
#pragma once

#include "kernels/array.h"
#include "kernels/layout.h"
#include "kernels/nonzero_passes.h"
#include "kernels/row_products.h"
#include "tests/kernels/site.h"

namespace sparsed::test {

class NonzeroSite : public Site {
 public:
  virtual absl::Status Compute(const RowProducts& products, ElementType type) = 0;
  virtual absl::Status Compute(const HeadDots& dots, ElementType type) = 0;
  virtual absl::Status Compute(const NonzeroScaling& scaling, ElementType type) = 0;
  virtual absl::Status Compute(const NonzeroTotals& totals, ElementType type) = 0;
  /// `dy` null: of x; else the gradient, x being y.
  virtual absl::Status Softmax(const Layout& csr, ElementType type, double scale,
                               const ConstDense& x, const ConstDense* dy, const Dense& y) = 0;
};

/// All of it, of every type, of 1 to 8 heads and more, of small matrices with empty rows.
void CheckNonzeroKernels(NonzeroSite& site);
/// With a row of 100,000 nonzeros.
void CheckNonzeroKernelsOfLongRows(NonzeroSite& site);
/// Means, greatest and least ones alone, of S, with both.
void CheckReductions(NonzeroSite& site);

}  // namespace sparsed::test
