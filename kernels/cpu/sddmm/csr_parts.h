// CSR SDDMM in parts of equal numbers of nonzeros: what the kernels over csr_dots.h share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/sddmm/csr_dots.h"
#include "kernels/formats/csr.h"
#include "kernels/kernel_table.h"

namespace sparsed::cpu {

/// Parts of equal numbers of nonzeros.
struct NonzeroParts {
  int64_t nnz = 0;
  int64_t count = 1;

  NonzeroParts(int64_t nnz, int64_t k) : nnz(nnz), count(PartCount(0, nnz, k)) {}
  int64_t Begin(int64_t part) const { return nnz / count * part + nnz % count * part / count; }
  int64_t MaxSize() const { return nnz / count + 1; }
};

/// The row that a nonzero is in.
inline int64_t RowOf(const CsrView& s, int64_t nonzero) {
  const auto after = std::upper_bound(s.row_offsets.begin(), s.row_offsets.end(), nonzero);
  return after - s.row_offsets.begin() - 1;
}

template <typename T>
CsrDots<T> MakeDots(const CsrView& s, const SddmmArguments& arguments) {
  // A layout of S^T has rows of B for its rows, and of A for its columns.
  const ConstDense& a = arguments.layout.transposed ? arguments.b : arguments.a;
  const ConstDense& b = arguments.layout.transposed ? arguments.a : arguments.b;
  return {.row_offsets = s.row_offsets.data(),
          .column_indices = s.column_indices.data(),
          .row_order = s.row_order.empty() ? nullptr : s.row_order.data(),
          .values = static_cast<const T*>(arguments.values),
          .nnz = s.nnz(),
          .a = static_cast<const T*>(a.data),
          .lda = a.leading_dimension,
          .b = static_cast<const T*>(b.data),
          .ldb = b.leading_dimension,
          .k = b.cols,
          .prefetch = ShouldPrefetch(s, b.cols * static_cast<int64_t>(sizeof(T)))};
}

inline bool SupportsCsrDots(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSddmm && problem.device == DeviceKind::kCpu &&
         layout.kind == kCsr && IsFloat(problem.type);
}

}  // namespace sparsed::cpu
