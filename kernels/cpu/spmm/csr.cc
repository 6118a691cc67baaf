// SpMM from CSR, plain or with permuted rows: C = alpha * S * B + beta * C.
//
// Idea: output rows in registers (csr_rows.cc) and merge-path balance (Merrill and Garland, SC
// 2016): the rows and nonzeros are cut into parts of equal work, a long row over several parts.
// Layout in: "csr". A part belongs to one thread, parts are handed out as threads come. A part that
// begins inside a row leaves that row's sum in the workspace; the sums are added to C in order of
// parts afterwards, so that results do not depend on the team.
// A wide B whose rows are used often but far apart is packed slab by slab of columns, so that what
// is gathered stays in the private cache; else all of a row is used while it is there. Needs: k
// elements of workspace for each part, and room for one slab if B is packed. No alignment; C is
// stored past the caches if it is large, aligned to 64 and not read. Wins where rows share little
// (else tiles do better), for any K.
#include <algorithm>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/prefetch.h"
#include "kernels/cpu/spmm/csr_rows.h"
#include "kernels/cpu/spmm/spmm.h"

namespace sparsed::cpu {
namespace {

/// Results that no cache keeps until they are sent gain from not being read before they are
/// written; smaller ones lose by leaving the cache.
constexpr int64_t kStreamBytes = 16 << 20;

/// Bytes of a row of a packed slab of B: a few vectors, so that indices are not read too often.
constexpr int64_t kSlabBytes = 256;

/// Whether packing pays: B is wide, exceeds the private caches while a slab is not out of all
/// proportion, its rows are used often enough to be worth the copy, and rows of S span so much of
/// it that they share nothing but by chance.
bool ShouldPack(const CsrView& s, int64_t row_bytes) {
  constexpr int64_t kPrivateCache = 2 << 20;
  constexpr int64_t kLargestSlab = 32 << 20;
  constexpr int64_t kUses = 12;
  constexpr int64_t kSamples = 256;
  if (row_bytes < 4 * kSlabBytes || s.cols * row_bytes < kPrivateCache ||
      s.cols * kSlabBytes > kLargestSlab || s.nnz() < kUses * s.cols) {
    return false;
  }
  int64_t wide_rows = 0;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    const int64_t p = s.nnz() / kSamples * sample;
    const auto after = std::upper_bound(s.row_offsets.begin(), s.row_offsets.end(), p);
    const int64_t span = int64_t{s.column_indices[*after - 1]} - s.column_indices[*(after - 1)];
    wide_rows += span * row_bytes > kPrivateCache / 2;
  }
  return 2 * wide_rows > kSamples;
}

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

/// As RunParts, with each slab of B copied to `slab` first.
template <typename T>
void RunPacked(const Context& context, const CsrProduct<T>& product, const CsrView& s,
               int64_t parts, T* partials, T* slab) {
  constexpr int64_t kWidth = kSlabBytes / sizeof(T);
  for (int64_t column = 0; column < product.k && !context.stopped(); column += kWidth) {
    CsrProduct<T> part_product = product;
    part_product.b = slab;
    part_product.ldb = kWidth;
    part_product.c = product.c + column;
    part_product.k = std::min(kWidth, product.k - column);
#pragma omp parallel for num_threads(context.threads) schedule(static) if (context.threads > 1)
    for (int64_t row = 0; row < s.cols; ++row) {
      std::copy_n(product.b + row * product.ldb + column, part_product.k, slab + row * kWidth);
    }
    RunParts(context, part_product, s.row_offsets, parts, partials + column, product.k);
  }
}

/// Where things are in the workspace, in bytes.
struct Workspace {
  int64_t parts = 0;
  bool packed = false;
  size_t slab = 0;
  size_t size = 0;

  Workspace(const CsrView& s, int64_t k, size_t element_bytes)
      : parts(PartCount(s.rows, s.nnz(), k)),
        packed(ShouldPack(s, k * static_cast<int64_t>(element_bytes))),
        slab((static_cast<size_t>(parts * k) * element_bytes + 63) / 64 * 64),
        size(slab + (packed ? static_cast<size_t>(s.cols * kSlabBytes) : 0)) {}
};

template <typename T>
absl::Status Run(const Context& context, const SpmmArguments& arguments) {
  const CsrView s = ViewCsr(arguments.layout);
  if (s.rows == 0) return absl::OkStatus();
  const CsrProduct<T> product = MakeProduct<T>(s, arguments);
  const Workspace workspace(s, product.k, sizeof(T));
  T* const partials = reinterpret_cast<T*>(context.workspace.data());
  if (workspace.packed) {
    RunPacked(context, product, s, workspace.parts, partials,
              reinterpret_cast<T*>(context.workspace.data() + workspace.slab));
  } else {
    RunParts(context, product, s.row_offsets, workspace.parts, partials, product.k);
  }
  if (context.stopped()) return absl::CancelledError("the product was cancelled");
  AddPartials(product, s.row_offsets, workspace.parts, partials);
  return absl::OkStatus();
}

absl::Status RunCsrSpmm(const Context& context, const Problem& problem,
                        const SpmmArguments& arguments) {
  return problem.type == ElementType::kF32 ? Run<float>(context, arguments)
                                           : Run<double>(context, arguments);
}

bool SupportsCsrSpmm(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSpmm && !problem.transposed &&
         problem.device == DeviceKind::kCpu && layout.kind == kCsr &&
         (problem.type == ElementType::kF32 || problem.type == ElementType::kF64);
}

size_t CsrSpmmWorkspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  return Workspace(ViewCsr(layout), problem.k, SizeOf(problem.type)).size;
}

}  // namespace

SpmmKernel CsrSpmm() {
  return {.name = "cpu.csr.row_balanced",
          .layout_kind = kCsr,
          .device = DeviceKind::kCpu,
          .deterministic = true,
          .supports = SupportsCsrSpmm,
          .workspace = CsrSpmmWorkspace,
          .run = RunCsrSpmm};
}

}  // namespace sparsed::cpu
