// CSR SpMM in parts of about equal work: what the kernels over csr_rows.h share.
//
// Of a row that is cut, each part leaves its sums in the workspace; they are added up in order of
// parts afterwards, so that results do not depend on the team, and rounded to C's type once.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/parts.h"
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
  if (kIsHalf<T>) return false;
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
          .alpha = static_cast<SumOf<T>>(arguments.alpha),
          .beta = static_cast<SumOf<T>>(arguments.beta),
          .prefetch = ShouldPrefetch(s, row_bytes),
          .stream = ShouldStream<T>(arguments)};
}

/// The product of a single row, whose sums go to `sums`, unscaled.
template <typename T>
CsrProduct<T> PieceOf(const CsrProduct<T>& product, SumOf<T>* sums) {
  CsrProduct<T> piece = product;
  if constexpr (kIsHalf<T>) {
    piece.sums = sums;
  } else {
    piece.row_order = nullptr;
    piece.c = sums;
    piece.ldc = 0;
    piece.alpha = 1;
    piece.beta = 0;
    piece.stream = false;
  }
  return piece;
}

/// Computes one part. What it has of the row that an earlier part began goes to `head`, of the row
/// that it does not end to `tail`.
template <typename T>
void RunPart(const CsrProduct<T>& product, Cut begin, Cut end, SumOf<T>* head, SumOf<T>* tail) {
  RowRange rows{begin.row, end.row};
  if (begin.nonzero > product.row_offsets[begin.row]) {
    MultiplyRows(PieceOf(product, head), {begin.row, begin.row + 1}, begin.nonzero, end.nonzero);
    ++rows.begin;
  }
  if (rows.begin < rows.end) MultiplyRows(product, rows, 0, end.nonzero);
  if (rows.begin <= end.row && end.nonzero > product.row_offsets[end.row]) {
    MultiplyRows(PieceOf(product, tail), {end.row, end.row + 1}, 0, end.nonzero);
  }
}

/// Computes the product's columns but for those of cut rows, part by part; `pieces` has two rows of
/// `stride` for each part: its head and its tail. False: the run is to end.
template <typename T>
bool RunParts(PartLoop& loop, const CsrProduct<T>& product, std::span<const int64_t> row_offsets,
              int64_t parts, SumOf<T>* pieces, int64_t stride) {
  return loop.Run(parts, [&](int64_t part) {
    SumOf<T>* const head = pieces + 2 * part * stride;
    RunPart(product, PartBegin(row_offsets, part, parts), PartBegin(row_offsets, part + 1, parts),
            head, head + stride);
  });
}

/// Computes the rows of C that were cut from their pieces.
template <typename T>
void FinishCutRows(const CsrProduct<T>& product, std::span<const int64_t> row_offsets,
                   int64_t parts, SumOf<T>* pieces) {
  Cut begin = PartBegin(row_offsets, 0, parts);
  for (int64_t part = 0; part < parts;) {
    Cut end = PartBegin(row_offsets, part + 1, parts);
    const int64_t row = end.row;
    const bool begins_and_does_not_end =
        end.nonzero > row_offsets[row] && (begin.row < row || begin.nonzero == row_offsets[row]);
    SumOf<T>* const sum = pieces + (2 * part + 1) * product.k;
    begin = end;
    ++part;
    if (!begins_and_does_not_end) continue;
    // The heads of the parts after it, up to the one that ends the row.
    for (int64_t with = part; with < parts && end.row == row; ++with) {
      const SumOf<T>* const head = pieces + 2 * with * product.k;
      for (int64_t j = 0; j < product.k; ++j) sum[j] += head[j];
      end = PartBegin(row_offsets, with + 1, parts);
    }
    const int64_t c_row = product.row_order == nullptr ? row : product.row_order[row];
    T* const c = product.c + c_row * product.ldc;
    for (int64_t j = 0; j < product.k; ++j) {
      const SumOf<T> old = product.beta == 0 ? 0 : product.beta * static_cast<SumOf<T>>(c[j]);
      c[j] = static_cast<T>(product.alpha * sum[j] + old);
    }
  }
}

/// Bytes of the pieces that parts leave.
inline size_t PieceBytes(const Layout& layout, const Problem& problem) {
  if (layout.rows == 0) return 0;
  const size_t size = VisitFloat(problem.type, []<typename T>(T) { return sizeof(SumOf<T>); });
  return static_cast<size_t>(2 * PartCount(layout.rows, layout.nnz, problem.k) * problem.k) * size;
}

inline bool SupportsCsrRows(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSpmm && !problem.transposed &&
         problem.device == DeviceKind::kCpu && layout.kind == kCsr && IsFloat(problem.type);
}

}  // namespace sparsed::cpu
