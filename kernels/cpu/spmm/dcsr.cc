// SpMM and transposed SpMM from doubly compressed sparse rows: C = alpha * op(S) * B + beta * C.
//
// Idea: the kernels of CSR on the stored rows; the rows of C that S has nothing for are scaled or
// cleared. Layout in: "dcsr". Threads, needs: as csr.cc and csr_transposed.cc.
// Wins where most rows are empty: CSR's row offsets are not read, and its parts balance nonzeros.
#include <algorithm>

#include "kernels/cpu/spmm/spmm.h"
#include "kernels/dcsr_kernels.h"

namespace sparsed::cpu {
namespace {

template <typename T>
void Scale(const Context& context, std::span<const int32_t> rows, const Dense& c, double beta) {
  const auto count = static_cast<int64_t>(rows.size());
  const auto scale = static_cast<SumOf<T>>(beta);
#pragma omp parallel for num_threads(context.threads) \
    schedule(static) if (context.threads > 1 && count > 64)
  for (int64_t i = 0; i < count; ++i) {
    T* const row = static_cast<T*>(c.data) + rows[i] * c.leading_dimension;
    if (scale == 0) {
      std::fill_n(row, c.cols, T{});
    } else {
      for (int64_t j = 0; j < c.cols; ++j) row[j] = T(scale * static_cast<SumOf<T>>(row[j]));
    }
  }
}

absl::Status ScaleRows(const Context& context, const Problem& problem,
                       std::span<const int32_t> rows, const Dense& c, double beta) {
  if (beta != 1) {
    VisitFloat(problem.type, [&]<typename T>(T) { Scale<T>(context, rows, c, beta); });
  }
  return absl::OkStatus();
}

}  // namespace

SpmmKernel DcsrSpmm() { return SpmmOverStoredRows<CsrSpmm, ScaleRows>("cpu.dcsr.row_balanced"); }
SpmmKernel DcsrTransposedSpmm() {
  return SpmmOverStoredRows<CsrTransposedSpmm, ScaleRows>("cpu.dcsr.scatter");
}

}  // namespace sparsed::cpu
