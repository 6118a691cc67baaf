// Kernels over "csr" as kernels over "dcsr": they see its stored rows as CSR with permuted rows.
#pragma once

#include <string_view>

#include "kernels/formats/dcsr.h"
#include "kernels/kernel_table.h"

namespace sparsed {

/// `kCsr` makes the kernel over "csr"; it takes a function, since table entries have no state.
template <typename Kernel, Kernel (*kCsr)()>
Kernel OverStoredRows(std::string_view name) {
  Kernel kernel = kCsr();
  kernel.name = name;
  kernel.layout_kind = kDcsr;
  kernel.supports = [](const Problem& problem, const Layout& layout) {
    return layout.kind == kDcsr && kCsr().supports(problem, StoredRows(layout));
  };
  kernel.workspace = [](const Problem& problem, const Layout& layout, int threads) {
    return kCsr().workspace(problem, StoredRows(layout), threads);
  };
  return kernel;
}

/// `kScaleEmptyRows` scales the EmptyRows of C (C = beta * C) before the kernel runs.
template <SpmmKernel (*kCsr)(),
          absl::Status (*kScaleEmptyRows)(const Context&, const Problem&, const SpmmArguments&)>
SpmmKernel SpmmOverStoredRows(std::string_view name) {
  SpmmKernel kernel = OverStoredRows<SpmmKernel, kCsr>(name);
  kernel.run = [](const Context& context, const Problem& problem, const SpmmArguments& arguments) {
    // Transposed, the rows of C are columns of S: the kernel writes them all.
    if (!problem.transposed) {
      const absl::Status status = kScaleEmptyRows(context, problem, arguments);
      if (!status.ok()) return status;
    }
    return kCsr().run(context, problem,
                      {StoredRows(arguments.layout), arguments.values, arguments.b, arguments.c,
                       arguments.alpha, arguments.beta});
  };
  if (kernel.prepare != nullptr) {
    kernel.prepare = [](const Context& context, const Problem& problem,
                        const SpmmArguments& arguments, MemorySource& memory) {
      return kCsr().prepare(context, problem,
                            {StoredRows(arguments.layout), arguments.values, arguments.b,
                             arguments.c, arguments.alpha, arguments.beta},
                            memory);
    };
  }
  return kernel;
}

template <SddmmKernel (*kCsr)()>
SddmmKernel SddmmOverStoredRows(std::string_view name) {
  SddmmKernel kernel = OverStoredRows<SddmmKernel, kCsr>(name);
  kernel.run = [](const Context& context, const Problem& problem, const SddmmArguments& arguments) {
    return kCsr().run(
        context, problem,
        {StoredRows(arguments.layout), arguments.values, arguments.a, arguments.b, arguments.out});
  };
  return kernel;
}

}  // namespace sparsed
