#include "kernels/cuda/check.h"
#include "kernels/formats/csr.h"
#include "kernels/formats/dcsr.h"
#include "tests/bench/gpu/output_stationary.h"

namespace sparsed::test {
namespace {

constexpr int kWarps = 32;

struct Rows {
  const int64_t* offsets;
  const int32_t* columns;
  const int32_t* order;  // null: identity
  int64_t count;         // that have nonzeros, if only these are stored
  int64_t rows, cols;
};

template <int kColumns>
__global__ void __launch_bounds__(kWarps * 32)
    OutputStationary(const Rows s, const float* values, const float* b, float* c, int64_t k) {
  const int lane = threadIdx.x % 32;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns;
  for (int64_t row = threadIdx.x / 32; row < s.count; row += kWarps) {
    const int64_t end = s.offsets[row + 1];
    float sums[kColumns] = {};
    for (int64_t p = s.offsets[row] + lane; p < end; p += 32) {
      const float value = values[p];
      const float* const from = b + s.columns[p];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (first + j < k) sums[j] += value * from[(first + j) * s.cols];
      }
    }
    const int64_t target = s.order == nullptr ? row : s.order[row];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], offset);
      }
      if (lane == j && first + j < k) c[(first + j) * s.rows + target] = sums[j];
    }
  }
}

}  // namespace

absl::Status RunOutputStationary(const Context& context, Strip strip,
                                 const ColumnMajorSpmm& product) {
  const bool compressed = product.layout.kind == kDcsr;
  const Layout stored = compressed ? StoredRows(product.layout) : product.layout;
  const CsrView view = ViewCsr(stored);
  const Rows s = {.offsets = view.row_offsets.data(),
                  .columns = view.column_indices.data(),
                  .order = view.row_order.empty() ? nullptr : view.row_order.data(),
                  .count = stored.rows,
                  .rows = product.layout.rows,
                  .cols = product.layout.cols};
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (compressed) {
    const cudaError_t cleared =
        cudaMemsetAsync(product.c, 0, s.rows * product.k * sizeof(float), stream);
    if (cleared != cudaSuccess) return cuda::ToStatus(cleared, "clearing C");
  }
  const auto width = static_cast<int64_t>(strip);
  const auto blocks = static_cast<unsigned>((product.k + width - 1) / width);
  if (strip == Strip::kOneColumn) {
    OutputStationary<1>
        <<<blocks, kWarps * 32, 0, stream>>>(s, product.values, product.b, product.c, product.k);
  } else {
    OutputStationary<4>
        <<<blocks, kWarps * 32, 0, stream>>>(s, product.values, product.b, product.c, product.k);
  }
  return cuda::ToStatus(cudaGetLastError(), "starting the output-stationary SpMM");
}

}  // namespace sparsed::test
