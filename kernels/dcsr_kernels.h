// Kernels over "csr" as kernels over "dcsr": they see its stored rows as CSR with permuted rows.
#pragma once

#include <string_view>

#include "kernels/formats/dcsr.h"
#include "kernels/kernel_table.h"

namespace sparsed {

/// `kOf` names the kernel over "csr" for a problem on the stored rows: a function, since table
/// entries have no state. The caller adds `run`.
template <typename Kernel, const Kernel& (*kOf)(const Problem&, const Layout& stored)>
Kernel OverStoredRows(std::string_view name, DeviceKind device) {
  return {.name = name,
          .layout_kind = kDcsr,
          .device = device,
          .deterministic = true,
          .supports =
              [](const Problem& problem, const Layout& layout) {
                if (layout.kind != kDcsr) return false;
                const Layout stored = StoredRows(layout);
                return kOf(problem, stored).supports(problem, stored);
              },
          .workspace =
              [](const Problem& problem, const Layout& layout, int threads) {
                const Layout stored = StoredRows(layout);
                return kOf(problem, stored).workspace(problem, stored, threads);
              },
          .run = nullptr,
          .resumes = device == DeviceKind::kCpu};
}

/// `kScaleEmptyRows` scales the EmptyRows of C (C = beta * C) before the kernel runs. Not
/// transposed: C has a row for each of S.
template <const SpmmKernel& (*kOf)(const Problem&, const Layout& stored),
          absl::Status (*kScaleEmptyRows)(const Context&, const Problem&, const SpmmArguments&)>
SpmmKernel SpmmOverStoredRows(std::string_view name, DeviceKind device) {
  SpmmKernel kernel = OverStoredRows<SpmmKernel, kOf>(name, device);
  kernel.run = [](const Context& context, const Problem& problem, const SpmmArguments& arguments) {
    const absl::Status status = kScaleEmptyRows(context, problem, arguments);
    if (!status.ok()) return status;
    const Layout stored = StoredRows(arguments.layout);
    return kOf(problem, stored)
        .run(context, problem,
             {stored, arguments.values, arguments.b, arguments.c, arguments.alpha, arguments.beta});
  };
  return kernel;
}

template <const SddmmKernel& (*kOf)(const Problem&, const Layout& stored)>
SddmmKernel SddmmOverStoredRows(std::string_view name, DeviceKind device) {
  SddmmKernel kernel = OverStoredRows<SddmmKernel, kOf>(name, device);
  kernel.run = [](const Context& context, const Problem& problem, const SddmmArguments& arguments) {
    const Layout stored = StoredRows(arguments.layout);
    return kOf(problem, stored)
        .run(context, problem, {stored, arguments.values, arguments.a, arguments.b, arguments.out});
  };
  return kernel;
}

}  // namespace sparsed
