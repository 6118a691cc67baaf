// SpGEMM from CSR where columns come in clusters: C = S * T, with T's rows as words of 32 columns.
//
// Idea: what costs a row of C is less its products than finding where they belong. Where T's
// nonzeros lie next to each other, as in web graphs, several share a word of 32 columns, and the
// pattern of a row of C is the union of some words (the compression of Deveci, Trott and
// Rajamanickam, "Multithreaded sparse matrix-matrix multiplication for many-core and GPU
// architectures", Parallel Computing 2018). Rows are counted by adding up words' masks
// in a table, and computed by bitmaps (bitmap_rows.cuh).
// Layout in: plain CSR of both, and "row_words" of T.
// Needs: lists of rows as row bins.
// Wins: over row bins where a word has some two nonzeros or more (docs/kernels-cuda.md). Sums
// depend on the order in which lanes come.
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/spgemm/binned_rows.cuh"
#include "kernels/cuda/spgemm/bitmap_rows.cuh"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/spgemm.h"
#include "kernels/formats/row_words.h"

namespace sparsed::cuda {
namespace {

/// There is nothing to prepare, only to refuse.
absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& /*context*/,
                                              const Problem& /*problem*/,
                                              const SpgemmArguments& arguments,
                                              MemorySource& /*memory*/) {
  if (absl::Status s = CheckBitmapRows(arguments.right); !s.ok()) return s;
  return nullptr;
}

absl::StatusOr<std::string> Pipeline(const Problem& /*problem*/, const CsrView& /*left*/,
                                     const CsrView& right) {
  if (absl::Status s = CheckBitmapRows(right); !s.ok()) return s;
  return std::string(kRowWords);
}

RowWords WordsOf(const SpgemmArguments& arguments) {
  const RowWordsView view = ViewRowWords(*arguments.right_format.layout);
  static_assert(sizeof(Word) == 2 * sizeof(int32_t));
  return {view.word_offsets.data(), reinterpret_cast<const Word*>(view.words.data())};
}

absl::Status Symbolic(const Context& context, const SpgemmArguments& arguments, RowRange range,
                      std::span<int64_t> row_nnz) {
  Rows<float> rows = RowsOf<float>(arguments, range);
  rows.row_nnz = row_nnz.data();
  return CountRowsByBitmaps(context, rows, range.end - range.begin, WordsOf(arguments));
}

template <typename T>
absl::Status Compute(const RowsCall& call) {
  return AddRowsByBitmaps(call.context, RowsOf<T>(call), call.range.end - call.range.begin,
                          WordsOf(call.arguments));
}

}  // namespace

SpgemmKernel RowWordsSpgemm() {
  return {.name = "cuda.csr.row_words",
          .device = DeviceKind::kCuda,
          .deterministic = false,
          .supports = IsPlainSpgemm,
          .workspace = BinnedRowsWorkspace,
          .analyse = CountProducts,
          .symbolic = Symbolic,
          .numeric = NumericByType<Compute<float>, Compute<double>>,
          .prepare = Prepare,
          .layout_kind = kRowWords,
          .pipeline = Pipeline};
}

}  // namespace sparsed::cuda
