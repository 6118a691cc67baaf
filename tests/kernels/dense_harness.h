// SpMM and SDDMM kernels against kernels/reference, with operands that show every wrong access:
// padding is NaN in inputs and must survive in outputs, outputs and workspaces start as NaN.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "tests/generate.h"

namespace sparsed::test {

struct DenseCase {
  ElementType type = ElementType::kF32;
  int64_t k = 1;
  int threads = 1;
  bool transposed = false;  ///< SpMM with the transpose of the pattern (not of the layout)
  double alpha = 1;
  double beta = 0;
  int64_t padding = 0;    ///< leading dimensions exceed the widths by this
  int64_t offset = 0;     ///< elements by which operands begin after an alignment of 64
  bool unscaled = false;  ///< SDDMM without values
};
std::ostream& operator<<(std::ostream& out, const DenseCase& c);

/// Runs the kernel on the layout of `pattern`, whose values are `values` in CSR order, and expects
/// what the reference computes, within an error bound that follows from the type and the number of
/// terms. Returns the bytes of the result, for comparisons of runs.
std::string ExpectSpmm(const SpmmKernel& kernel, const Layout& layout, const Pattern& pattern,
                       const std::vector<double>& values, const DenseCase& c);
std::string ExpectSddmm(const SddmmKernel& kernel, const Layout& layout, const Pattern& pattern,
                        const std::vector<double>& values, const DenseCase& c);

/// Patterns of odd sizes and shapes.
std::vector<NamedPattern> OddPatterns();

}  // namespace sparsed::test
