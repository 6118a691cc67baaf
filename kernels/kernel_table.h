// Every kernel by name. Adding one is a file and its line in the table beside it (spmm.h, sddmm.h
// or spgemm.h of kernels/cpu and kernels/cuda); what is not built is not in the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed {

/// C[M,K] = alpha * op(S) * B + beta * C. With beta == 0, C's old contents are not read (they may
/// be NaN). Shapes, types and aliasing (C overlaps nothing) were checked by the caller.
struct SpmmArguments {
  const Layout& layout;
  const void* values;  ///< layout.value_slots elements of problem.type
  ConstDense b;
  Dense c;
  double alpha = 1;
  double beta = 0;
  /// Of the products of op(S)'s rows, for kernels that `reduces` is true of; there `values` may be
  /// null, which are ones, and alpha and beta are 1 and 0 but for sums.
  Reduction reduction = Reduction::kSum;
};

/// O = S .* (A[M,K] * B[N,K]^T): one value for each nonzero, in the CSR order that the layout was
/// built from.
struct SddmmArguments {
  const Layout& layout;
  const void* values;  ///< layout.value_slots elements; null: S is a mask only
  ConstDense a;
  ConstDense b;
  void* out;  ///< layout.nnz elements
};

/// A factor of SpGEMM in a layout besides plain CSR.
struct SpgemmFormat {
  const Layout* layout = nullptr;
  const void* values = nullptr;  ///< layout->value_slots elements
};

/// C = S * T. Transposition is the caller's: what is here is multiplied as it is.
struct SpgemmArguments {
  CsrView left;  ///< plain CSR
  const void* left_values;
  CsrView right;
  const void* right_values;
  /// Given where Problem::masked: as many rows as S and columns as T. C has the positions that are
  /// in it and have products, no others.
  std::optional<CsrView> mask = std::nullopt;
  /// Given where the kernel wants it (SpgemmKernel::layout_kind).
  SpgemmFormat left_format = {};
  SpgemmFormat right_format = {};
};

/// `workspace` of kernels that need none.
inline size_t NoWorkspace(const Problem& /*problem*/, const Layout& /*layout*/, int /*threads*/) {
  return 0;
}

/// A kernel's `prepare`, null for most: what is worth doing once for many runs. What it returns is
/// handed to runs with the same problem, layout and leading dimensions as Context::prepared, to one
/// at a time; values, operands and scales may change between them. Its memory comes from `memory`,
/// its work is queued in the context's stream; it needs no workspace, nor do the runs. A run
/// without it gives the same result, later. CANCELLED soon after Context::stop.
template <typename Arguments>
using PrepareRuns = absl::StatusOr<std::shared_ptr<void>> (*)(const Context&, const Problem&,
                                                              const Arguments&,
                                                              MemorySource& memory);

/// How far a kernel's arithmetic is from IEEE 754's in the type that it sums in (f64 for f64, else
/// f32), where each product and each addition is rounded once, to nearest. For error bounds: no
/// more than that is lost.
struct Accuracy {
  /// Relative error of a product besides its rounding: its factors were rounded, or parts of them
  /// were left out.
  double product = 0;
  /// Relative error of an addition, in units of half the type's machine epsilon: 1 where sums are
  /// rounded to nearest, 2 where they are cut off.
  double addition = 1;
  friend bool operator==(const Accuracy&, const Accuracy&) = default;
};
/// `accuracy` of kernels that compute as IEEE 754 has it.
inline Accuracy RoundedToNearest(const Problem& /*problem*/) { return {}; }

struct SpmmKernel {
  std::string_view name;         ///< "cpu.csr.row_balanced"
  std::string_view layout_kind;  ///< "csr"
  DeviceKind device;
  bool deterministic;  ///< same bits for the same thread count and for every run
  bool (*supports)(const Problem&, const Layout&);
  size_t (*workspace)(const Problem&, const Layout&, int threads);  ///< bytes
  absl::Status (*run)(const Context&, const Problem&, const SpmmArguments&);
  PrepareRuns<SpmmArguments> prepare = nullptr;
  Accuracy (*accuracy)(const Problem&) = RoundedToNearest;
  bool from_library = false;  ///< a vendor's, which decides what comes of infinite factors and NaN
  bool resumes = false;       ///< it knows Context::progress
  bool reduces = false;       ///< it knows SpmmArguments::reduction
};

struct SddmmKernel {
  std::string_view name;
  std::string_view layout_kind;
  DeviceKind device;
  bool deterministic;
  bool (*supports)(const Problem&, const Layout&);
  size_t (*workspace)(const Problem&, const Layout&, int threads);
  absl::Status (*run)(const Context&, const Problem&, const SddmmArguments&);
  PrepareRuns<SddmmArguments> prepare = nullptr;
  Accuracy (*accuracy)(const Problem&) = RoundedToNearest;
  bool from_library = false;  ///< as in SpmmKernel
  bool resumes = false;       ///< as in SpmmKernel
};

/// The result's size depends on the data: the engine calls `analyse`, allocates, optionally
/// `symbolic`, allocates, then `numeric` over ranges of rows, streaming each range out before or
/// while the next is computed.
///
/// For a GPU's kernel everything is in device memory, matrices, spans and `products`: it queues in
/// the context's stream, and results are there when the stream has passed. Then row_nnz must hold
/// the rows' bounds when `symbolic` is called.
struct SpgemmKernel {
  std::string_view name;  ///< "cpu.csr.row_groups"
  DeviceKind device;
  bool deterministic;
  bool (*supports)(const Problem&);
  size_t (*workspace)(const Problem&, const SpgemmArguments&, int threads);
  /// row_bounds[i] = an upper bound of the nonzeros of C's row i (at most its products, N, and its
  /// row of the mask), and in *products the number of multiplications in all. `row_bounds` has M
  /// elements. The CPU's know Context::progress; both are whole once it is finished.
  absl::Status (*analyse)(const Context&, const SpgemmArguments&, std::span<int64_t> row_bounds,
                          int64_t* products);
  /// row_nnz[i - range.begin] = exact nonzeros of row i (numerical cancellation keeps an entry).
  absl::Status (*symbolic)(const Context&, const SpgemmArguments&, RowRange range,
                           std::span<int64_t> row_nnz);
  /// Computes rows of `range`. Row range.begin + i's entries, ascending by column, go to positions
  /// row_begin[i] and on of `column_indices` and `values`, with room up to row_begin[i + 1]: its
  /// bound, or its exact count if that is known. `row_begin` has one element more than the range
  /// has rows; all positions before the last one may be overwritten, also those that no row ends up
  /// using. row_nnz[i] receives the exact count.
  absl::Status (*numeric)(const Context&, const Problem&, const SpgemmArguments&, RowRange range,
                          std::span<const int64_t> row_begin, int32_t* column_indices, void* values,
                          std::span<int64_t> row_nnz);
  /// Null for kernels that need no more than their workspace. Else it makes what `analyse`,
  /// `numeric` and, on a GPU, `symbolic` cannot do without, once for a product: tables of what both
  /// patterns make together, or the product itself, handed to the calls (with the same arguments
  /// and at most as many threads) as Context::prepared. Its memory comes from `memory`; `workspace`
  /// is not for it. A GPU's kernel makes it on the device, and may wait for the context's stream to
  /// learn sizes; it is let go when that stream has passed all that was queued. After an error
  /// nothing that it queued is under way. FAILED_PRECONDITION, in a sentence: the matrices don't
  /// suit it.
  PrepareRuns<SpgemmArguments> prepare = nullptr;
  /// Whether its counts are somebody else's: they serve its own calls, and no other kernel's.
  bool from_library = false;
  /// "csr", or the kind of the layout that it reads T from, too, and S where `left_too`: of one
  /// pipeline both.
  std::string_view layout_kind = kCsr;
  bool left_too = false;
  /// The pipeline (kernels/pipeline.h) of that layout for these factors; null: its kind with the
  /// parameters that it has by default. All in host memory. FAILED_PRECONDITION, in a sentence:
  /// the matrices don't suit it.
  absl::StatusOr<std::string> (*pipeline)(const Problem&, const CsrView& left,
                                          const CsrView& right) = nullptr;
};

/// The pipeline of the layout that the kernel reads its factors from besides plain CSR, as
/// SpgemmKernel::pipeline; "csr" if it reads none.
absl::StatusOr<std::string> FormatPipeline(const SpgemmKernel& kernel, const Problem& problem,
                                           const CsrView& left, const CsrView& right);

/// The problem as a kernel on `layout` sees it: a transposed layout turns SpMM's transposition
/// around.
inline Problem SeenThrough(const Layout& layout, Problem problem) {
  if (problem.operation == Operation::kSpmm && layout.transposed) {
    problem.transposed = !problem.transposed;
  }
  return problem;
}

/// Plain CSR's kernel of an operation comes first: it is the default plan and the baseline of every
/// trial.
std::span<const SpmmKernel> SpmmKernels();
std::span<const SddmmKernel> SddmmKernels();
std::span<const SpgemmKernel> SpgemmKernels();

/// Whether there is a kernel of the operation that reads layouts of that kind, plain CSR aside.
bool ReadsLayouts(Operation operation, std::string_view kind);

/// Null if there is none of that name.
const SpmmKernel* FindSpmmKernel(std::string_view name);
const SddmmKernel* FindSddmmKernel(std::string_view name);
const SpgemmKernel* FindSpgemmKernel(std::string_view name);

}  // namespace sparsed
