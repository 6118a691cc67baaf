// SpGEMM from CSR: C = S * T, rows of C by bitmaps of their words and columns (bitmap_rows.cuh).
//
// Idea: row bins' tables and windows look up where a product belongs by probing or by walking
// through what a row spans. Where its columns are many and far from each other, two counts of bits
// are less.
// Layout in: plain CSR of both.
// Needs: lists of rows as row bins, whose symbolic phase it uses.
// Wins: on uniform and on some power-law matrices, whose rows have few products for each entry
// (docs/kernels-cuda.md). Sums depend on the order in which lanes come.
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/spgemm/binned_rows.cuh"
#include "kernels/cuda/spgemm/bitmap_rows.cuh"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/spgemm.h"

namespace sparsed::cuda {
namespace {

absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& /*context*/,
                                              const Problem& /*problem*/,
                                              const SpgemmArguments& arguments,
                                              MemorySource& /*memory*/) {
  absl::Status status = CheckBitmapRows(arguments.right);
  if (!status.ok()) return status;
  return std::shared_ptr<void>();
}

template <typename T>
absl::Status Compute(const RowsCall& call) {
  const Rows<T> rows = RowsOf<T>(call);
  return AddRowsByBitmaps(call.context, rows, call.range.end - call.range.begin,
                          RowColumns{rows.pair.t_offsets, rows.pair.t_columns});
}

}  // namespace

SpgemmKernel RowBitmapsSpgemm() {
  return {.name = "cuda.csr.row_bitmaps",
          .device = DeviceKind::kCuda,
          .deterministic = false,
          .supports = IsPlainSpgemm,
          .workspace = BinnedRowsWorkspace,
          .analyse = AnalyseRows,
          .symbolic = RowBinsSpgemm().symbolic,
          .numeric = NumericByType<Compute<float>, Compute<double>>,
          .prepare = Prepare};
}

}  // namespace sparsed::cuda
