// SpMM from adaptive sparse tiles: C = alpha * S * B + beta * C.
//
// Idea: Hong et al., PPoPP'19, on a CPU. Where the GPU loads a panel's dense columns into shared
// memory, a thread copies their rows of B, a column block at a time, into a tile that stays in
// its private cache: one long stream of independent loads instead of a miss a nonzero, and no two
// rows of the tile compete for a cache set. Panels whose columns are reused too little for the copy
// read B itself. The sparse remainder then adds to C row by row. The inner loops are those of plain
// CSR (csr_rows.cc).
// Layout in: "aspt". A part of whole panels belongs to one thread, parts are handed out as threads
// come. A remainder in the rows' own order is added panel by panel, while C is in the cache; one
// with an order of its own after all panels. Every row's terms are added in the same order by
// whichever thread, so results do not depend on the team.
// Needs: a tile and a block of columns of workspace for each thread. No alignment.
// Wins where panels share columns, and K is wide.
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/aspt_parts.h"
#include "kernels/cpu/parts.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/spmm/csr_rows.h"
#include "kernels/cpu/spmm/spmm.h"

namespace sparsed::cpu {
namespace {

/// A tile is copied if each of its columns has this many entries on average.
constexpr int64_t kReuse = 4;

template <typename T>
class Product {
 public:
  Product(const AsptView& s, const SpmmArguments& arguments) : s_(s) {
    const int64_t row_bytes = arguments.b.cols * static_cast<int64_t>(sizeof(T));
    remainder_ = {.row_offsets = s.remainder_row_offsets.data(),
                  .column_indices = s.remainder_columns.data(),
                  .row_order = s.row_order.empty() ? nullptr : s.row_order.data(),
                  .values = static_cast<const T*>(arguments.values) + s.dense_nnz(),
                  .nnz = static_cast<int64_t>(s.remainder_columns.size()),
                  .b = static_cast<const T*>(arguments.b.data),
                  .ldb = arguments.b.leading_dimension,
                  .c = static_cast<T*>(arguments.c.data),
                  .ldc = arguments.c.leading_dimension,
                  .k = arguments.b.cols,
                  .alpha = static_cast<T>(arguments.alpha),
                  .beta = static_cast<T>(arguments.beta),
                  .prefetch = ShouldPrefetch(s.Remainder(), row_bytes),
                  .stream = false};
    dense_ = remainder_;
    dense_.row_offsets = s.dense_row_offsets.data();
    dense_.column_indices = s.dense_indices.data();
    dense_.values = static_cast<const T*>(arguments.values);
    dense_.nnz = s.dense_nnz();
    dense_.prefetch = s.cols * row_bytes > kTileBytes;
  }

  /// The dense entries of rows of one panel; rows without are left alone.
  void Dense(RowRange rows, std::byte* workspace) const {
    const int64_t entries = s_.dense_row_offsets[rows.end] - s_.dense_row_offsets[rows.begin];
    if (entries == 0) return;
    const int64_t panel = rows.begin / s_.panel;
    const int64_t first = s_.panel_offsets[panel];
    const auto columns = s_.panel_columns.subspan(first, s_.panel_offsets[panel + 1] - first);
    const int64_t width = TileWidth(static_cast<int64_t>(columns.size()));
    if (width > 0 && entries >= kReuse * static_cast<int64_t>(columns.size())) {
      MultiplyTile(rows, columns, width, reinterpret_cast<T*>(workspace));
    } else {
      MultiplyInPlace(rows, columns, reinterpret_cast<int32_t*>(workspace));
    }
  }

  /// Remainder rows: where a row had dense entries they are added to C, else C is computed.
  void Remainder(RowRange rows) const {
    for (int64_t begin = rows.begin, end; begin < rows.end; begin = end) {
      const Treatment treatment = TreatmentOf(begin);
      end = begin + 1;
      while (end < rows.end && end - begin < kTranslatedRows && TreatmentOf(end) == treatment) {
        ++end;
      }
      if (treatment == Treatment::kNone) continue;
      CsrProduct<T> product = remainder_;
      if (treatment == Treatment::kAdd) product.beta = 1;
      if (s_.remainder_order.empty()) {
        MultiplyRows(product, {begin, end}, 0, product.nnz);
        continue;
      }
      std::array<int32_t, kTranslatedRows> order;
      for (int64_t q = begin; q < end; ++q) {
        order[q - begin] = static_cast<int32_t>(s_.MatrixRow(s_.remainder_order[q]));
      }
      product.row_offsets += begin;
      product.row_order = order.data();
      MultiplyRows(product, {0, end - begin}, 0, product.nnz);
    }
  }

 private:
  enum class Treatment { kNone, kCompute, kAdd };

  Treatment TreatmentOf(int64_t q) const {
    const int64_t r = s_.LayoutRow(q);
    if (s_.dense_row_offsets[r] == s_.dense_row_offsets[r + 1]) return Treatment::kCompute;
    return s_.remainder_row_offsets[q] == s_.remainder_row_offsets[q + 1] ? Treatment::kNone
                                                                          : Treatment::kAdd;
  }

  /// Calls `multiply(run)` for each run of rows with dense entries.
  template <typename Multiply>
  void ForEachRun(RowRange rows, int64_t longest, Multiply multiply) const {
    auto empty = [&](int64_t r) { return s_.dense_row_offsets[r] == s_.dense_row_offsets[r + 1]; };
    for (int64_t begin = rows.begin; begin < rows.end;) {
      if (empty(begin)) {
        ++begin;
        continue;
      }
      int64_t end = begin + 1;
      while (end < rows.end && end - begin < longest && !empty(end)) ++end;
      multiply(RowRange{begin, end});
      begin = end;
    }
  }

  /// Columns of B that a tile of so many rows has room for: all, or as many as one pass of the
  /// inner loops takes a number of times; 0 if not even once.
  int64_t TileWidth(int64_t tile_rows) const {
    constexpr int64_t kPass = 512 / sizeof(T);
    const int64_t room = kTileBytes / static_cast<int64_t>(sizeof(T)) / tile_rows;
    return room >= dense_.k ? dense_.k : room / kPass * kPass;
  }

  void MultiplyTile(RowRange rows, std::span<const int32_t> columns, int64_t width, T* tile) const {
    for (int64_t begin = 0; begin < dense_.k; begin += width) {
      CsrProduct<T> product = dense_;
      product.k = std::min(width, dense_.k - begin);
      for (size_t i = 0; i < columns.size(); ++i) {
        std::memcpy(tile + static_cast<int64_t>(i) * product.k,
                    dense_.b + columns[i] * dense_.ldb + begin, product.k * sizeof(T));
      }
      product.b = tile;
      product.ldb = product.k;
      product.c += begin;
      product.prefetch = false;
      ForEachRun(rows, s_.panel, [&](RowRange run) { MultiplyRows(product, run, 0, product.nnz); });
    }
  }

  /// Turns indices back into columns, block by block.
  void MultiplyInPlace(RowRange rows, std::span<const int32_t> columns, int32_t* block) const {
    ForEachRun(rows, kTranslatedRows, [&](RowRange run) {
      const auto offsets = s_.dense_row_offsets;
      for (int64_t first = offsets[run.begin]; first < offsets[run.end];) {
        const int64_t last = std::min(first + kTranslatedEntries, offsets[run.end]);
        for (int64_t d = first; d < last; ++d) {
          block[d - first] = columns[s_.dense_indices[d]];
        }
        MultiplyBlock(run, first, last, block);
        first = last;
      }
    });
  }

  /// The run's entries in [first, last), whose columns are in `block`. A row that is cut between
  /// blocks is added to.
  void MultiplyBlock(RowRange run, int64_t first, int64_t last, const int32_t* block) const {
    std::array<int64_t, kTranslatedRows + 1> offsets;
    while (s_.dense_row_offsets[run.begin + 1] <= first) ++run.begin;
    while (s_.dense_row_offsets[run.end - 1] >= last) --run.end;
    for (int64_t r = run.begin; r <= run.end; ++r) {
      offsets[r - run.begin] = std::clamp(s_.dense_row_offsets[r], first, last) - first;
    }
    CsrProduct<T> product = dense_;
    product.row_offsets = offsets.data();
    product.column_indices = block;
    product.values += first;
    product.nnz = last - first;
    if (product.row_order != nullptr) {
      product.row_order += run.begin;
    } else {
      product.c += run.begin * product.ldc;
    }
    RowRange rows{0, run.end - run.begin};
    if (s_.dense_row_offsets[run.begin] < first) {
      CsrProduct<T> rest = product;
      rest.beta = 1;
      MultiplyRows(rest, {0, 1}, 0, rest.nnz);
      ++rows.begin;
    }
    if (rows.begin < rows.end) MultiplyRows(product, rows, 0, product.nnz);
  }

  const AsptView& s_;
  CsrProduct<T> dense_;
  CsrProduct<T> remainder_;
};

int64_t WorkspaceOfThread() {
  return std::max(kTileBytes, kTranslatedEntries * static_cast<int64_t>(sizeof(int32_t)));
}

template <typename T>
absl::Status Run(const Context& context, const SpmmArguments& arguments) {
  const AsptView s = ViewAspt(arguments.layout);
  PartLoop loop(context);
  if (s.rows == 0) return loop.Finish();
  const Product<T> product(s, arguments);
  const bool fused = s.remainder_order.empty();
  const AsptParts parts(s, fused, arguments.b.cols);
  const CsrView remainder = s.Remainder();
  const int64_t later = fused ? 0 : PartCount(s.rows, remainder.nnz(), arguments.b.cols);
  const auto compute = [&](int64_t part) {
    std::byte* const workspace =
        context.workspace.data() + omp_get_thread_num() * WorkspaceOfThread();
    const int64_t end = parts.Begin(part + 1);
    for (RowRange rows{parts.Begin(part), end}; rows.begin < rows.end;) {
      const RowRange panel = FirstPanel(s, rows);
      product.Dense(panel, workspace);
      if (fused) product.Remainder(panel);
      rows.begin = panel.end;
    }
  };
  if (!loop.Run(parts.count(), compute)) return loop.Cut();
  const bool all = loop.Run(later, [&](int64_t part) {
    product.Remainder({PartBegin(remainder.row_offsets, part, later).row,
                       PartBegin(remainder.row_offsets, part + 1, later).row});
  });
  return all ? loop.Finish() : loop.Cut();
}

absl::Status RunAsptSpmm(const Context& context, const Problem& problem,
                         const SpmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? Run<float>(context, arguments)
                                           : Run<double>(context, arguments);
}

bool SupportsAsptSpmm(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSpmm && !problem.transposed &&
         problem.device == DeviceKind::kCpu && layout.kind == kAspt && IsFloat(problem.type) &&
         !IsHalf(problem.type);
}

size_t AsptSpmmWorkspace(const Problem&, const Layout&, int threads) {
  return static_cast<size_t>(WorkspaceOfThread() * threads);
}

}  // namespace

SpmmKernel AsptSpmm() {
  return {.name = "cpu.aspt.panel",
          .layout_kind = kAspt,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = SupportsAsptSpmm,
          .workspace = AsptSpmmWorkspace,
          .run = RunAsptSpmm,
          .resumes = true};
}

}  // namespace sparsed::cpu
