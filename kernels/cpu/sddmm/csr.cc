// SDDMM from CSR, plain, with permuted rows or of S^T: O = S .* (A * B^T).
//
// Idea: a row of A stays in the L1 cache while the rows of B that its nonzeros name are dotted with
// it, four at a time (csr_dots.cc). 16-bit types are stored only: sums are f32. Layout in: "csr".
// Threads take parts of equal numbers of nonzeros, cut anywhere: every nonzero is a result of its
// own. Where slots are not in CSR's order, a part's results wait in the workspace until they are
// scattered by value_source. Needs: then, one part's elements of workspace for each thread. No
// alignment. Wins where rows share little (else tiles do better), for any K.
#include <omp.h>

#include "kernels/cpu/parts.h"
#include "kernels/cpu/sddmm/csr_parts.h"
#include "kernels/cpu/sddmm/sddmm.h"

namespace sparsed::cpu {
namespace {

template <typename T, typename Index>
void Scatter(const T* results, std::span<const Index> targets, T* out) {
  for (size_t i = 0; i < targets.size(); ++i) out[targets[i]] = results[i];
}

template <typename T>
void RunPart(const CsrDots<T>& dots, const CsrView& s, const Array* value_source, int64_t first,
             int64_t last, T* buffer, T* out) {
  if (first == last) return;
  const int64_t row = RowOf(s, first);
  if (value_source == nullptr) {
    DotNonzeros(dots, row, first, last, out + first);
    return;
  }
  DotNonzeros(dots, row, first, last, buffer);
  const auto slots = static_cast<size_t>(last - first);
  if (value_source->type == ElementType::kI32) {
    Scatter(buffer, value_source->As<int32_t>().subspan(first, slots), out);
  } else {
    Scatter(buffer, value_source->As<int64_t>().subspan(first, slots), out);
  }
}

template <typename T>
absl::Status Run(const Context& context, const SddmmArguments& arguments) {
  const CsrView s = ViewCsr(arguments.layout);
  const CsrDots<T> dots = MakeDots<T>(s, arguments);
  const Array* const value_source = arguments.layout.Find(kValueSource);
  const NonzeroParts parts(s.nnz(), dots.k);
  PartLoop loop(context);
  const bool all = loop.Run(parts.count, [&](int64_t part) {
    T* const buffer = reinterpret_cast<T*>(context.workspace.data()) +
                      (value_source == nullptr ? 0 : omp_get_thread_num() * parts.MaxSize());
    RunPart(dots, s, value_source, parts.Begin(part), parts.Begin(part + 1), buffer,
            static_cast<T*>(arguments.out));
  });
  return all ? loop.Finish() : loop.Cut();
}

absl::Status RunCsrSddmm(const Context& context, const Problem& problem,
                         const SddmmArguments& arguments) {
  return VisitFloat(problem.type, [&]<typename T>(T) { return Run<T>(context, arguments); });
}

size_t CsrSddmmWorkspace(const Problem& problem, const Layout& layout, int threads) {
  if (layout.Find(kValueSource) == nullptr) return 0;
  const NonzeroParts parts(layout.nnz, problem.k);
  return static_cast<size_t>(parts.MaxSize() * threads) * SizeOf(problem.type);
}

}  // namespace

SddmmKernel CsrSddmm() {
  return {.name = "cpu.csr.dot",
          .layout_kind = kCsr,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = SupportsCsrDots,
          .workspace = CsrSddmmWorkspace,
          .run = RunCsrSddmm,
          .resumes = true};
}

}  // namespace sparsed::cpu
