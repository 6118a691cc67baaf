// SDDMM from CSR, plain, with permuted rows or of S^T: O = S .* (A * B^T).
//
// Idea: a row of A stays in the L1 cache while the rows of B that its nonzeros name are dotted with
// it, four at a time (csr_dots.cc). Layout in: "csr". Threads take parts of equal numbers of
// nonzeros, cut anywhere: every nonzero is a result of its own. Where slots are not in CSR's order,
// a part's results wait in the workspace until they are scattered by value_source. Needs: then, one
// part's elements of workspace for each thread. No alignment. Wins where rows share little (else
// tiles do better), for any K.
#include <omp.h>

#include <algorithm>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/sddmm/csr_dots.h"
#include "kernels/cpu/sddmm/sddmm.h"

namespace sparsed::cpu {
namespace {

/// Parts of equal numbers of nonzeros.
struct Parts {
  int64_t nnz = 0;
  int64_t count = 1;

  Parts(int64_t nnz, int64_t k) : nnz(nnz), count(PartCount(0, nnz, k)) {}
  int64_t Begin(int64_t part) const { return nnz / count * part + nnz % count * part / count; }
  int64_t MaxSize() const { return nnz / count + 1; }
};

template <typename T, typename Index>
void Scatter(const T* results, std::span<const Index> targets, T* out) {
  for (size_t i = 0; i < targets.size(); ++i) out[targets[i]] = results[i];
}

template <typename T>
void RunPart(const CsrDots<T>& dots, const CsrView& s, const Array* value_source, int64_t first,
             int64_t last, T* buffer, T* out) {
  if (first == last) return;
  const auto after = std::upper_bound(s.row_offsets.begin(), s.row_offsets.end(), first);
  const int64_t row = after - s.row_offsets.begin() - 1;
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
  // A layout of S^T has rows of B for its rows, and of A for its columns.
  const ConstDense& a = arguments.layout.transposed ? arguments.b : arguments.a;
  const ConstDense& b = arguments.layout.transposed ? arguments.a : arguments.b;
  const int64_t row_bytes = b.cols * static_cast<int64_t>(sizeof(T));
  const CsrDots<T> dots = {.row_offsets = s.row_offsets.data(),
                           .column_indices = s.column_indices.data(),
                           .row_order = s.row_order.empty() ? nullptr : s.row_order.data(),
                           .values = static_cast<const T*>(arguments.values),
                           .nnz = s.nnz(),
                           .a = static_cast<const T*>(a.data),
                           .lda = a.leading_dimension,
                           .b = static_cast<const T*>(b.data),
                           .ldb = b.leading_dimension,
                           .k = b.cols,
                           .prefetch = ShouldPrefetch(s, row_bytes)};
  const Array* const value_source = arguments.layout.Find(kValueSource);
  const Parts parts(s.nnz(), dots.k);
#pragma omp parallel for num_threads(context.threads) \
    schedule(dynamic, 1) if (parts.count > 1 && context.threads > 1)
  for (int64_t part = 0; part < parts.count; ++part) {
    if (context.stopped()) continue;
    T* const buffer = reinterpret_cast<T*>(context.workspace.data()) +
                      (value_source == nullptr ? 0 : omp_get_thread_num() * parts.MaxSize());
    RunPart(dots, s, value_source, parts.Begin(part), parts.Begin(part + 1), buffer,
            static_cast<T*>(arguments.out));
  }
  return context.stopped() ? absl::CancelledError("the product was cancelled") : absl::OkStatus();
}

absl::Status RunCsrSddmm(const Context& context, const Problem& problem,
                         const SddmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? Run<float>(context, arguments)
                                           : Run<double>(context, arguments);
}

bool SupportsCsrSddmm(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSddmm && problem.device == DeviceKind::kCpu &&
         layout.kind == kCsr &&
         (problem.type == ElementType::kF32 || problem.type == ElementType::kF64);
}

size_t CsrSddmmWorkspace(const Problem& problem, const Layout& layout, int threads) {
  if (layout.Find(kValueSource) == nullptr) return 0;
  const Parts parts(layout.nnz, problem.k);
  return static_cast<size_t>(parts.MaxSize() * threads) * SizeOf(problem.type);
}

}  // namespace

SddmmKernel CsrSddmm() {
  return {.name = "cpu.csr.dot",
          .layout_kind = kCsr,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = SupportsCsrSddmm,
          .workspace = CsrSddmmWorkspace,
          .run = RunCsrSddmm};
}

}  // namespace sparsed::cpu
