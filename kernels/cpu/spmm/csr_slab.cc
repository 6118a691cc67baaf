// SpMM from CSR with a packed B: C = alpha * S * B + beta * C, some columns at a time.
//
// Idea: where rows of S have nothing in common but chance, each of them gathers rows of B from all
// over; once B exceeds the private cache, the product is as fast as the cache behind that. So B is
// cut along K into column blocks that fit, each copied to a compact array first: strided rows
// would share a few sets of the cache.
// Layout in: "csr", plain or with permuted rows. Threads as in csr.cc, one column block after
// another. Needs: 2 k sums of workspace for each part, and a column block; f32 or f64. Wins where
// B's rows are used often and far apart, for wide B; the indices are read once a column block.
#include <algorithm>

#include "kernels/cpu/slab.h"
#include "kernels/cpu/spmm/csr_parts.h"
#include "kernels/cpu/spmm/spmm.h"

namespace sparsed::cpu {
namespace {

size_t SlabOffset(const Layout& layout, const Problem& problem) {
  return (PieceBytes(layout, problem) + 63) / 64 * 64;
}

template <typename T>
absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  const CsrView s = ViewCsr(arguments.layout);
  PartLoop loop(context);
  if (s.rows == 0) return loop.Finish();
  const CsrProduct<T> product = MakeProduct<T>(s, arguments);
  const int64_t parts = PartCount(s.rows, s.nnz(), product.k);
  T* const pieces = reinterpret_cast<T*>(context.workspace.data());
  T* const slab =
      reinterpret_cast<T*>(context.workspace.data() + SlabOffset(arguments.layout, problem));
  const int64_t width = SlabWidth(s.cols, sizeof(T));
  const bool prefetch = ShouldPrefetch(s, width * static_cast<int64_t>(sizeof(T)));
  for (int64_t column = 0; column < product.k; column += width) {
    CsrProduct<T> part = product;
    part.b = slab;
    part.ldb = width;
    part.c = product.c + column;
    part.k = std::min(width, product.k - column);
    part.prefetch = prefetch;
    // A run that goes on within a column block has it in its workspace.
    if (loop.BeginsPhase(parts)) PackSlab(context, arguments.b, column, part.k, slab, width);
    if (!RunParts(loop, part, s.row_offsets, parts, pieces + column, product.k)) return loop.Cut();
  }
  FinishCutRows(product, s.row_offsets, parts, pieces);
  return loop.Finish();
}

absl::Status RunCsrSlabSpmm(const Context& context, const Problem& problem,
                            const SpmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? Run<float>(context, problem, arguments)
                                           : Run<double>(context, problem, arguments);
}

bool SupportsCsrSlabSpmm(const Problem& problem, const Layout& layout) {
  return SupportsCsrRows(problem, layout) && !IsHalf(problem.type) &&
         SlabsMayPay(layout.cols, layout.nnz, problem.k, SizeOf(problem.type));
}

size_t CsrSlabSpmmWorkspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  return SlabOffset(layout, problem) + SlabBytes(layout.cols, SizeOf(problem.type));
}

}  // namespace

SpmmKernel CsrSlabSpmm() {
  return {.name = "cpu.csr.slab",
          .layout_kind = kCsr,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = SupportsCsrSlabSpmm,
          .workspace = CsrSlabSpmmWorkspace,
          .run = RunCsrSlabSpmm,
          .resumes = true};
}

}  // namespace sparsed::cpu
