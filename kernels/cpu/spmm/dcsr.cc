// SpMM from doubly compressed sparse rows: C = alpha * S * B + beta * C.
//
// Idea: the kernel of CSR on the stored rows; the rows of C that S has nothing for are scaled or
// cleared. Layout in: "dcsr". Threads, needs: as csr.cc.
// Wins where most rows are empty: CSR's row offsets are not read, and its parts balance nonzeros.
#include <algorithm>
#include <array>

#include "kernels/cpu/spmm/csr_parts.h"
#include "kernels/cpu/spmm/spmm.h"
#include "kernels/dcsr_kernels.h"

namespace sparsed::cpu {
namespace {

/// As CSR does: as rows of a product, of no nonzeros each.
template <typename T>
void ScaleEmptyRowsOf(const Context& context, const SpmmArguments& arguments) {
  constexpr int64_t kRows = 256;
  const std::array<int64_t, kRows + 1> offsets{};
  const std::span<const int32_t> empty = EmptyRows(arguments.layout);
  const auto count = static_cast<int64_t>(empty.size());
  const CsrView rows = {.rows = count,
                        .cols = arguments.b.rows,
                        .row_offsets = offsets,
                        .column_indices = {},
                        .row_order = empty};
  const CsrProduct<T> product = MakeProduct<T>(rows, arguments);
#pragma omp parallel for num_threads(context.threads) \
    schedule(static) if (context.threads > 1 && count > kRows)
  for (int64_t first = 0; first < count; first += kRows) {
    CsrProduct<T> part = product;
    part.row_order += first;
    MultiplyRows(part, {0, std::min(kRows, count - first)}, 0, 0);
  }
}

absl::Status ScaleEmptyRows(const Context& context, const Problem& problem,
                            const SpmmArguments& arguments) {
  const bool scaled = context.progress != nullptr && context.progress->done > 0;
  if (!scaled && arguments.beta != 1 && !EmptyRows(arguments.layout).empty()) {
    VisitFloat(problem.type, [&]<typename T>(T) { ScaleEmptyRowsOf<T>(context, arguments); });
  }
  return absl::OkStatus();
}

const SpmmKernel& OfCsr(const Problem&, const Layout&) {
  static const SpmmKernel kernel = CsrSpmm();
  return kernel;
}

}  // namespace

SpmmKernel DcsrSpmm() {
  return SpmmOverStoredRows<OfCsr, ScaleEmptyRows>("cpu.dcsr.row_balanced", DeviceKind::kCpu);
}

}  // namespace sparsed::cpu
