// CSR SpMM in parts of about equal work: what the kernels over csr_rows.h share.
//
// A part that begins inside a row leaves that row's sum in the workspace, k elements for each part;
// the sums are added to C in order of parts afterwards, so that results do not depend on the team.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/spmm/csr_rows.h"
#include "kernels/formats/csr.h"
#include "kernels/kernel_table.h"

namespace sparsed::cpu {

/// Results that no cache keeps until they are sent gain from not being read before they are
/// written; smaller ones lose by leaving the cache.
inline constexpr int64_t kStreamBytes = 16 << 20;

template <typename T>
bool ShouldStream(const SpmmArguments& arguments) {
  constexpr uintptr_t kLine = 64;
  const int64_t stride = arguments.c.leading_dimension * static_cast<int64_t>(sizeof(T));
  return arguments.beta == 0 && arguments.c.cols * sizeof(T) >= kLine && stride % kLine == 0 &&
         reinterpret_cast<uintptr_t>(arguments.c.data) % kLine == 0 &&
         arguments.c.rows * stride >= kStreamBytes;
}

template <typename T>
CsrProduct<T> MakeProduct(const CsrView& s, const SpmmArguments& arguments) {
  const int64_t row_bytes = arguments.b.cols * static_cast<int64_t>(sizeof(T));
  return {.row_offsets = s.row_offsets.data(),
          .column_indices = s.column_indices.data(),
          .row_order = s.row_order.empty() ? nullptr : s.row_order.data(),
          .values = static_cast<const T*>(arguments.values),
          .nnz = s.nnz(),
          .b = static_cast<const T*>(arguments.b.data),
          .ldb = arguments.b.leading_dimension,
          .c = static_cast<T*>(arguments.c.data),
          .ldc = arguments.c.leading_dimension,
          .k = arguments.b.cols,
          .alpha = static_cast<T>(arguments.alpha),
          .beta = static_cast<T>(arguments.beta),
          .prefetch = ShouldPrefetch(s, row_bytes),
          .stream = ShouldStream<T>(arguments)};
}

/// Computes one part; the head of it that belongs to a row of an earlier part goes to `partial`.
template <typename T>
void RunPart(const CsrProduct<T>& product, Cut begin, Cut end, T* partial) {
  RowRange rows{begin.row, end.row};
  if (begin.nonzero > product.row_offsets[begin.row]) {
    CsrProduct<T> head = product;
    head.row_order = nullptr;
    head.c = partial;
    head.ldc = 0;
    head.alpha = 1;
    head.beta = 0;
    head.stream = false;
    MultiplyRows(head, {begin.row, begin.row + 1}, begin.nonzero, end.nonzero);
    ++rows.begin;
  }
  if (rows.begin <= end.row && end.nonzero > product.row_offsets[end.row]) ++rows.end;
  if (rows.begin < rows.end) MultiplyRows(product, rows, 0, end.nonzero);
}

/// Adds what parts left of rows that they did not begin.
template <typename T>
void AddPartials(const CsrProduct<T>& product, std::span<const int64_t> row_offsets, int64_t parts,
                 const T* partials) {
  for (int64_t part = 1; part < parts; ++part) {
    const Cut begin = PartBegin(row_offsets, part, parts);
    if (begin.nonzero == row_offsets[begin.row]) continue;
    const int64_t c_row = product.row_order == nullptr ? begin.row : product.row_order[begin.row];
    T* const c = product.c + c_row * product.ldc;
    const T* const partial = partials + part * product.k;
    for (int64_t j = 0; j < product.k; ++j) c[j] += product.alpha * partial[j];
  }
}

/// Computes the product's columns, part by part; `partials` has a row of `stride` for each part.
template <typename T>
void RunParts(const Context& context, const CsrProduct<T>& product,
              std::span<const int64_t> row_offsets, int64_t parts, T* partials, int64_t stride) {
#pragma omp parallel for num_threads(context.threads) \
    schedule(dynamic, 1) if (parts > 1 && context.threads > 1)
  for (int64_t part = 0; part < parts; ++part) {
    if (context.stopped()) continue;
    RunPart(product, PartBegin(row_offsets, part, parts), PartBegin(row_offsets, part + 1, parts),
            partials + part * stride);
  }
}

/// Bytes of the rows that parts leave.
inline size_t PartialBytes(const Layout& layout, const Problem& problem) {
  return static_cast<size_t>(PartCount(layout.rows, layout.nnz, problem.k) * problem.k) *
         SizeOf(problem.type);
}

inline bool SupportsCsrRows(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSpmm && !problem.transposed &&
         problem.device == DeviceKind::kCpu && layout.kind == kCsr && !IsHalf(problem.type);
}

}  // namespace sparsed::cpu
