// The layouts that a kernel of SpGEMM reads its factors from besides plain CSR.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/array.h"
#include "kernels/kernel_table.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"

namespace sparsed::test {

/// In host memory, with values.
struct ProductFormats {
  Layout left, right;  ///< without arrays: the kernel reads none
  Array left_values, right_values;

  /// Has `arguments` name them, while they stay where they are.
  void AddTo(SpgemmArguments& arguments) const;
};

/// Of `arguments`, in host memory, in the pipeline that the kernel has for them.
/// FAILED_PRECONDITION: they don't suit it; and a builder's errors.
absl::StatusOr<ProductFormats> MakeFormats(const SpgemmKernel& kernel, const Problem& problem,
                                           const SpgemmArguments& arguments,
                                           const BuildContext& context);

}  // namespace sparsed::test
