// SDDMM from adaptive sparse tiles: O = S .* (A * B^T).
//
// Idea: as in kernels/cpu/spmm/aspt.cc, a panel's dense columns have their rows of B copied into a
// tile that stays in a core's private cache, where the panel's dense entries find them; the sparse
// remainder is dotted with B itself. The inner loops are those of plain CSR (csr_dots.cc).
// Layout in: "aspt". A part of whole panels, or of remainder rows, belongs to one thread, parts are
// handed out as threads come; every nonzero is a result of its own. Results wait in the workspace
// until they are scattered by value_source. Needs: a tile and a block of results for each thread.
// No alignment. Wins where panels share columns.
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/aspt_parts.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/sddmm/csr_dots.h"
#include "kernels/cpu/sddmm/sddmm.h"

namespace sparsed::cpu {
namespace {

/// A tile is copied if each of its columns has this many entries on average.
constexpr int64_t kReuse = 4;

/// A thread's workspace.
template <typename T>
struct Workspace {
  static constexpr int64_t kBytes =
      kTileBytes + kTranslatedEntries * static_cast<int64_t>(sizeof(T) + sizeof(int32_t));

  T* tile;
  T* results;        ///< kTranslatedEntries
  int32_t* columns;  ///< kTranslatedEntries

  explicit Workspace(std::byte* bytes)
      : tile(reinterpret_cast<T*>(bytes)),
        results(reinterpret_cast<T*>(bytes + kTileBytes)),
        columns(reinterpret_cast<int32_t*>(results + kTranslatedEntries)) {}
};

template <typename T>
class Dots {
 public:
  Dots(const AsptView& s, const SddmmArguments& arguments)
      : s_(s),
        value_source_(*arguments.layout.Find(kValueSource)),
        out_(static_cast<T*>(arguments.out)) {
    // A layout of S^T has rows of B for its rows, and of A for its columns.
    const ConstDense& a = arguments.layout.transposed ? arguments.b : arguments.a;
    const ConstDense& b = arguments.layout.transposed ? arguments.a : arguments.b;
    const int64_t row_bytes = b.cols * static_cast<int64_t>(sizeof(T));
    const T* const values = static_cast<const T*>(arguments.values);
    remainder_ = {.row_offsets = s.remainder_row_offsets.data(),
                  .column_indices = s.remainder_columns.data(),
                  .row_order = nullptr,
                  .values = values == nullptr ? nullptr : values + s.dense_nnz(),
                  .nnz = static_cast<int64_t>(s.remainder_columns.size()),
                  .a = static_cast<const T*>(a.data),
                  .lda = a.leading_dimension,
                  .b = static_cast<const T*>(b.data),
                  .ldb = b.leading_dimension,
                  .k = b.cols,
                  .prefetch = ShouldPrefetch(s.Remainder(), row_bytes)};
    dense_ = remainder_;
    dense_.row_offsets = s.dense_row_offsets.data();
    dense_.column_indices = s.dense_indices.data();
    dense_.row_order = s.row_order.empty() ? nullptr : s.row_order.data();
    dense_.values = values;
    dense_.nnz = s.dense_nnz();
    dense_.prefetch = s.cols * row_bytes > kTileBytes;
  }

  /// The dense entries of rows of one panel.
  void Dense(RowRange rows, Workspace<T> workspace) const {
    const int64_t first = s_.dense_row_offsets[rows.begin];
    const int64_t last = s_.dense_row_offsets[rows.end];
    const int64_t panel = rows.begin / s_.panel;
    const int64_t begin = s_.panel_offsets[panel];
    const auto columns = s_.panel_columns.subspan(begin, s_.panel_offsets[panel + 1] - begin);
    const int64_t tile_rows = static_cast<int64_t>(columns.size());
    const int64_t row_bytes = dense_.k * static_cast<int64_t>(sizeof(T));
    CsrDots<T> dots = dense_;
    const bool copy = last - first >= kReuse * tile_rows && tile_rows * row_bytes <= kTileBytes;
    if (copy) {
      for (int64_t i = 0; i < tile_rows; ++i) {
        std::memcpy(workspace.tile + i * dots.k, dots.b + columns[i] * dots.ldb, row_bytes);
      }
      dots.b = workspace.tile;
      dots.ldb = dots.k;
      dots.prefetch = false;
    }
    int64_t row = rows.begin;
    for (int64_t d = first; d < last; d += kTranslatedEntries) {
      const int64_t end = std::min(d + kTranslatedEntries, last);
      while (s_.dense_row_offsets[row + 1] <= d) ++row;
      if (copy) {
        DotNonzeros(dots, row, d, end, workspace.results);
      } else {
        DotInPlace(dots, columns, row, d, end, workspace);
      }
      Scatter(workspace.results, d, end - d);
    }
  }

  /// Remainder rows.
  void Remainder(RowRange rows, Workspace<T> workspace) const {
    for (int64_t begin = rows.begin; begin < rows.end; begin += kTranslatedRows) {
      const int64_t end = std::min(begin + kTranslatedRows, rows.end);
      std::array<int32_t, kTranslatedRows> order;
      for (int64_t q = begin; q < end; ++q) {
        order[q - begin] = static_cast<int32_t>(s_.MatrixRow(s_.LayoutRow(q)));
      }
      CsrDots<T> dots = remainder_;
      dots.row_offsets += begin;
      dots.row_order = order.data();
      int64_t row = 0;
      const int64_t last = s_.remainder_row_offsets[end];
      for (int64_t p = s_.remainder_row_offsets[begin]; p < last; p += kTranslatedEntries) {
        const int64_t size = std::min(kTranslatedEntries, last - p);
        while (dots.row_offsets[row + 1] <= p) ++row;
        DotNonzeros(dots, row, p, p + size, workspace.results);
        Scatter(workspace.results, s_.dense_nnz() + p, size);
      }
    }
  }

 private:
  /// Dense entries [first, last), the first of them in `row`, by their columns in B.
  void DotInPlace(CsrDots<T> dots, std::span<const int32_t> columns, int64_t row, int64_t first,
                  int64_t last, Workspace<T> workspace) const {
    for (int64_t d = first; d < last; ++d) {
      workspace.columns[d - first] = columns[s_.dense_indices[d]];
    }
    dots.column_indices = workspace.columns;
    if (dots.values != nullptr) dots.values += first;
    dots.nnz = last - first;
    for (int64_t d = first; d < last;) {
      // Rows a block at a time, their offsets counted from `first`.
      std::array<int64_t, kTranslatedRows + 1> offsets;
      int64_t count = 0;
      for (; count < kTranslatedRows && s_.dense_row_offsets[row + count] < last; ++count) {
        offsets[count] = std::max(s_.dense_row_offsets[row + count], first) - first;
      }
      const int64_t end = std::min(s_.dense_row_offsets[row + count], last);
      offsets[count] = end - first;
      CsrDots<T> block = dots;
      block.row_offsets = offsets.data();
      if (block.row_order != nullptr) {
        block.row_order += row;
      } else {
        block.a += row * block.lda;
      }
      DotNonzeros(block, 0, d - first, end - first, workspace.results + (d - first));
      row += count;
      d = end;
    }
  }

  void Scatter(const T* results, int64_t slot, int64_t count) const {
    auto scatter = [&](auto source) {
      for (int64_t i = 0; i < count; ++i) out_[source[slot + i]] = results[i];
    };
    if (value_source_.type == ElementType::kI32) {
      scatter(value_source_.As<int32_t>());
    } else {
      scatter(value_source_.As<int64_t>());
    }
  }

  const AsptView& s_;
  const Array& value_source_;
  T* out_;
  CsrDots<T> dense_;
  CsrDots<T> remainder_;
};

template <typename T>
absl::Status Run(const Context& context, const SddmmArguments& arguments) {
  const AsptView s = ViewAspt(arguments.layout);
  PartLoop loop(context);
  if (s.rows == 0) return loop.Finish();
  const Dots<T> dots(s, arguments);
  const bool fused = s.remainder_order.empty();
  const AsptParts parts(s, fused, arguments.b.cols);
  const CsrView remainder = s.Remainder();
  const int64_t later = fused ? 0 : PartCount(s.rows, remainder.nnz(), arguments.b.cols);
  const auto compute = [&](int64_t part) {
    const Workspace<T> workspace(context.workspace.data() +
                                 omp_get_thread_num() * Workspace<T>::kBytes);
    if (part >= parts.count()) {
      const int64_t p = part - parts.count();
      dots.Remainder({PartBegin(remainder.row_offsets, p, later).row,
                      PartBegin(remainder.row_offsets, p + 1, later).row},
                     workspace);
      return;
    }
    const int64_t end = parts.Begin(part + 1);
    for (RowRange rows{parts.Begin(part), end}; rows.begin < rows.end;) {
      const RowRange panel = FirstPanel(s, rows);
      dots.Dense(panel, workspace);
      if (fused) dots.Remainder(panel, workspace);
      rows.begin = panel.end;
    }
  };
  return loop.Run(parts.count() + later, compute) ? loop.Finish() : loop.Cut();
}

absl::Status RunAsptSddmm(const Context& context, const Problem& problem,
                          const SddmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? Run<float>(context, arguments)
                                           : Run<double>(context, arguments);
}

bool SupportsAsptSddmm(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSddmm && problem.device == DeviceKind::kCpu &&
         layout.kind == kAspt && IsFloat(problem.type) && !IsHalf(problem.type);
}

size_t AsptSddmmWorkspace(const Problem& problem, const Layout&, int threads) {
  const int64_t bytes =
      problem.type == ElementType::kF32 ? Workspace<float>::kBytes : Workspace<double>::kBytes;
  return static_cast<size_t>(bytes * threads);
}

}  // namespace

SddmmKernel AsptSddmm() {
  return {.name = "cpu.aspt.panel_dot",
          .layout_kind = kAspt,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = SupportsAsptSddmm,
          .workspace = AsptSddmmWorkspace,
          .run = RunAsptSddmm,
          .resumes = true};
}

}  // namespace sparsed::cpu
