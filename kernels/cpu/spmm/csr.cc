// SpMM from CSR, plain or with permuted rows: C = alpha * S * B + beta * C.
//
// Idea: output rows in registers (csr_rows.cc) and merge-path balance (Merrill and Garland, SC
// 2016): the rows and nonzeros are cut into parts of equal work, a long row over several parts
// (csr_parts.h). 16-bit types are stored only: sums are f32, rounded once.
// Layout in: "csr". A part belongs to one thread, parts are handed out as threads come. Needs: 2 k
// sums of workspace for each part. No alignment; C is stored past the caches if it is large,
// aligned to 64 and not read. Wins where rows share little (else tiles do better) and what is
// gathered of B fits the caches or is not used again (else column blocks do better), for any K.
#include "kernels/cpu/spmm/csr_parts.h"
#include "kernels/cpu/spmm/spmm.h"

namespace sparsed::cpu {
namespace {

template <typename T>
absl::Status Run(const Context& context, const SpmmArguments& arguments) {
  const CsrView s = ViewCsr(arguments.layout);
  PartLoop loop(context);
  if (s.rows == 0) return loop.Finish();
  const CsrProduct<T> product = MakeProduct<T>(s, arguments);
  const int64_t parts = PartCount(s.rows, s.nnz(), product.k);
  auto* const pieces = reinterpret_cast<SumOf<T>*>(context.workspace.data());
  if (!RunParts(loop, product, s.row_offsets, parts, pieces, product.k)) return loop.Cut();
  FinishCutRows(product, s.row_offsets, parts, pieces);
  return loop.Finish();
}

absl::Status RunCsrSpmm(const Context& context, const Problem& problem,
                        const SpmmArguments& arguments) {
  return VisitFloat(problem.type, [&]<typename T>(T) { return Run<T>(context, arguments); });
}

size_t CsrSpmmWorkspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  return PieceBytes(layout, problem);
}

}  // namespace

SpmmKernel CsrSpmm() {
  return {.name = "cpu.csr.row_balanced",
          .layout_kind = kCsr,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = SupportsCsrRows,
          .workspace = CsrSpmmWorkspace,
          .run = RunCsrSpmm,
          .resumes = true};
}

}  // namespace sparsed::cpu
