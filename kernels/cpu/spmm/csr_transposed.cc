// Transposed SpMM from CSR: C = alpha * S^T * B + beta * C.
//
// Idea: scatter rows of B, held in registers, to rows of C (csr_scatter.cc). Layout in: "csr",
// plain or with permuted rows. C is cut into blocks of rows, each owned by one thread that goes
// over all of S for it; so nothing races, and every element of C is summed in the order of S's
// rows, whatever the team. A block's nonzeros are found in each row by bisection. A C of 16 bits is
// summed aside in f32, some columns at a time, and rounded once. Needs: nothing; for 16-bit types a
// row of sums for each row of C.
// Wins when the transposed layout is not there (yet): C is read and written once for each nonzero
// where the transposed layout writes it once in all.
#include <algorithm>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/spmm/csr_parts.h"
#include "kernels/cpu/spmm/csr_scatter.h"
#include "kernels/cpu/spmm/spmm.h"

namespace sparsed::cpu {
namespace {

/// An evenly spaced sample of S's column indices, sorted: its quantiles cut the columns into blocks
/// of about equal numbers of nonzeros.
class ColumnSample {
 public:
  explicit ColumnSample(const CsrView& s) : cols_(s.cols) {
    size_ = std::min<int64_t>(s.nnz(), kSize);
    for (int64_t i = 0; i < size_; ++i) columns_[i] = s.column_indices[s.nnz() / size_ * i];
    std::sort(columns_, columns_ + size_);
  }
  /// The first column of `block` of [0, blocks]; that of `blocks` is the number of columns.
  int32_t BlockBegin(int64_t block, int64_t blocks) const {
    if (block == 0) return 0;
    if (block == blocks || size_ == 0) return static_cast<int32_t>(cols_);
    return columns_[size_ * block / blocks];
  }

 private:
  static constexpr int64_t kSize = 2048;
  int64_t cols_;
  int64_t size_ = 0;
  int32_t columns_[kSize];
};

/// Columns of C that are summed aside at a time.
constexpr int64_t kSumsWidth = 32;

template <typename T>
absl::Status Run(const Context& context, const SpmmArguments& arguments) {
  const CsrView s = ViewCsr(arguments.layout);
  const CsrProduct<T> whole = MakeProduct<T>(s, arguments);
  const int64_t blocks = context.threads;
  const ColumnSample sample(s);
  // Rows of S between two looks at the stop flag.
  const int64_t parts = s.rows == 0 ? 0 : PartCount(s.rows, s.nnz(), whole.k);
  const int64_t width = kIsHalf<T> ? kSumsWidth : whole.k;
  // Every thread goes over all of S: a run that may be cut does so together, some parts at a time,
  // enough for the team to be worth its start.
  Progress once;
  Progress& progress = context.progress == nullptr ? once : *context.progress;
  const bool cut = context.progress != nullptr && !kIsHalf<T>;
  int64_t computed = 0;
  do {
    const int64_t first = cut ? progress.done : 0;
    const int64_t last =
        cut ? std::min(parts, first + std::max<int64_t>(progress.least, context.threads)) : parts;
#pragma omp parallel for num_threads(context.threads) schedule(static, 1) if (context.threads > 1)
    for (int64_t block = 0; block < blocks; ++block) {
      const Tile tile = {.first_column = sample.BlockBegin(block, blocks),
                         .last_column = sample.BlockBegin(block + 1, blocks)};
      for (int64_t column = 0; column < whole.k; column += width) {
        CsrProduct<T> product = whole;
        product.b += column;
        product.c += column;
        product.k = std::min(width, whole.k - column);
        if constexpr (kIsHalf<T>) {
          product.sums = reinterpret_cast<float*>(context.workspace.data());
          product.ld_sums = std::min(width, whole.k);  // in narrower columns too: blocks share it
        } else {
          product.sums = product.c;
          product.ld_sums = product.ldc;
        }
        if (first == 0) BeginTile(product, tile);
        for (int64_t part = first; part < last && !context.stopped(); ++part) {
          ScatterRows(product,
                      {PartBegin(s.row_offsets, part, parts).row,
                       PartBegin(s.row_offsets, part + 1, parts).row},
                      tile);
        }
        if constexpr (kIsHalf<T>) EndTile(product, tile);
      }
    }
    computed += last - first;
    progress.done = last;
  } while (progress.done < parts && !context.stopped() && !progress.pauses(computed));
  if (context.stopped()) return absl::CancelledError("the product was cancelled");
  progress.finished = progress.done == parts;
  return absl::OkStatus();
}

absl::Status RunCsrTransposedSpmm(const Context& context, const Problem& problem,
                                  const SpmmArguments& arguments) {
  return VisitFloat(problem.type, [&]<typename T>(T) { return Run<T>(context, arguments); });
}

bool SupportsCsrTransposedSpmm(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSpmm && problem.transposed &&
         problem.device == DeviceKind::kCpu && layout.kind == kCsr && IsFloat(problem.type);
}

size_t CsrTransposedSpmmWorkspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  if (!IsHalf(problem.type)) return 0;
  return static_cast<size_t>(layout.cols * std::min(problem.k, kSumsWidth)) * sizeof(float);
}

}  // namespace

SpmmKernel CsrTransposedSpmm() {
  return {.name = "cpu.csr.scatter",
          .layout_kind = kCsr,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = SupportsCsrTransposedSpmm,
          .workspace = CsrTransposedSpmmWorkspace,
          .run = RunCsrTransposedSpmm,
          .resumes = true};
}

}  // namespace sparsed::cpu
