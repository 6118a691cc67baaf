// SDDMM from CSR with a packed B: O = S .* (A * B^T), some columns of both at a time.
//
// Idea: as in SpMM's csr_slab.cc, B is cut along K into column blocks that fit the private cache
// and are used by all of S while they are there; the dot products of a column block are added to
// those before, in the result itself.
// Layout in: plain "csr". Threads as in csr.cc, one column block after another. Needs: a
// column block; f32 or f64. Wins where B's rows are used often and far apart, for wide operands;
// the result and the indices are read once a column block.
#include <algorithm>

#include "kernels/cpu/parts.h"
#include "kernels/cpu/sddmm/csr_parts.h"
#include "kernels/cpu/sddmm/sddmm.h"
#include "kernels/cpu/slab.h"

namespace sparsed::cpu {
namespace {

template <typename T>
absl::Status Run(const Context& context, const SddmmArguments& arguments) {
  const CsrView s = ViewCsr(arguments.layout);
  const CsrDots<T> dots = MakeDots<T>(s, arguments);
  T* const out = static_cast<T*>(arguments.out);
  T* const slab = reinterpret_cast<T*>(context.workspace.data());
  const int64_t width = SlabWidth(s.cols, sizeof(T));
  const bool prefetch = ShouldPrefetch(s, width * static_cast<int64_t>(sizeof(T)));
  const NonzeroParts parts(s.nnz(), dots.k);
  PartLoop loop(context);
  for (int64_t column = 0; column < dots.k; column += width) {
    CsrDots<T> slab_dots = dots;
    slab_dots.a = dots.a + column;
    slab_dots.b = slab;
    slab_dots.ldb = width;
    slab_dots.k = std::min(width, dots.k - column);
    slab_dots.values = column + width < dots.k ? nullptr : dots.values;
    slab_dots.prefetch = prefetch;
    slab_dots.add = column > 0;
    // A run that goes on within a column block has it in its workspace.
    if (loop.BeginsPhase(parts.count)) {
      PackSlab(context, arguments.b, column, slab_dots.k, slab, width);
    }
    const bool all = loop.Run(parts.count, [&](int64_t part) {
      const int64_t first = parts.Begin(part);
      const int64_t last = parts.Begin(part + 1);
      if (first < last) DotNonzeros(slab_dots, RowOf(s, first), first, last, out + first);
    });
    if (!all) return loop.Cut();
  }
  return loop.Finish();
}

absl::Status RunCsrSlabSddmm(const Context& context, const Problem& problem,
                             const SddmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? Run<float>(context, arguments)
                                           : Run<double>(context, arguments);
}

bool SupportsCsrSlabSddmm(const Problem& problem, const Layout& layout) {
  return SupportsCsrDots(problem, layout) && !IsHalf(problem.type) && !layout.transposed &&
         layout.Find(kValueSource) == nullptr &&
         SlabsMayPay(layout.cols, layout.nnz, problem.k, SizeOf(problem.type));
}

size_t CsrSlabSddmmWorkspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  return SlabBytes(layout.cols, SizeOf(problem.type));
}

}  // namespace

SddmmKernel CsrSlabSddmm() {
  return {.name = "cpu.csr.slab_dot",
          .layout_kind = kCsr,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = SupportsCsrSlabSddmm,
          .workspace = CsrSlabSddmmWorkspace,
          .run = RunCsrSlabSddmm,
          .resumes = true};
}

}  // namespace sparsed::cpu
