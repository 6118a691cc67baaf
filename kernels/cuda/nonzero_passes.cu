// Values of nonzeros are scaled by threads of their own, a warp finding the rows of 32 at once, and
// added up as row_passes.cuh says.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/row_passes.cuh"
#include "kernels/cuda/sddmm/row_search.cuh"
#include "kernels/formats/csr.h"
#include "kernels/value_source.h"

namespace sparsed::cuda {
namespace {

constexpr int kScaleThreads = 256;

/// A dense matrix's rows, or ones.
template <typename T>
struct Factors {
  const T* data;  // null: ones
  int64_t stride;
  int step;  // 0: one column for all heads

  __device__ SumOf<T> At(int64_t row, int head) const {
    return data == nullptr
               ? SumOf<T>(1)
               : Widen(ReadOnly(data + row * stride + static_cast<int64_t>(head) * step));
  }
};
template <typename T>
Factors<T> FactorsOf(const ConstDense& dense) {
  return {static_cast<const T*>(dense.data), dense.leading_dimension, dense.cols > 1 ? 1 : 0};
}

template <typename T>
struct Scaling {
  Factors<T> rows, cols;
  const T* x;
  T* y;
  int64_t ldx, ldy;
  int heads;
};

template <typename T>
__global__ void __launch_bounds__(kScaleThreads)
    Scale(const RowOffsets s, const int32_t* columns, const Scaling<T> p) {
  const int lane = threadIdx.x % 32;
  const int64_t begin =
      (static_cast<int64_t>(blockIdx.x) * (kScaleThreads / 32) + threadIdx.x / 32) * kStep;
  if (begin >= s.items) return;
  const int row = FindRow(s, begin, lane);
  const int own_row = RowOf(s, begin, row, RowEnd(s, begin, row, lane), lane);
  const int own_column = __ldg(columns + min(begin + lane, s.items - 1));
  const int count = static_cast<int>(min(s.items - begin, int64_t{kStep}));
  // Lanes go over what lies side by side.
  const int64_t all = static_cast<int64_t>(count) * p.heads;
  for (int64_t base = 0; base < all; base += 32) {
    const int64_t i = base + lane;
    const int nonzero = static_cast<int>(min(i / p.heads, int64_t{kStep} - 1));
    const int64_t at_row = __shfl_sync(kWarp, own_row, nonzero);
    const int64_t at_column = __shfl_sync(kWarp, own_column, nonzero);
    if (i >= all) continue;
    const int head = static_cast<int>(i % p.heads);
    const int64_t at = begin + nonzero;
    p.y[at * p.ldy + head] = Narrow<T>(p.rows.At(at_row, head) * Widen(p.x[at * p.ldx + head]) *
                                       p.cols.At(at_column, head));
  }
}

template <typename T>
struct Totals {
  using Found = Summed<SumOf<T>>;
  static constexpr bool kOfRows = true;
  const T* x;
  T* y;
  int64_t ldx, ldy;
  ValueSource source;

  __device__ void Find(int64_t i, int64_t head, Found& found) const {
    found.Add(Widen(ReadOnly(x + source[i] * ldx + head)));
  }
  __device__ void WriteRow(int64_t row, int64_t head, const Found& found) const {
    y[row * ldy + head] = Narrow<T>(found.sum);
  }
};

}  // namespace

absl::Status ScaleNonzeros(Stream& stream, const NonzeroScaling& scaling, ElementType type) {
  const CsrView csr = ViewCsr(scaling.layout);
  if (csr.nnz() == 0) return absl::OkStatus();
  if (csr.rows > std::numeric_limits<int32_t>::max() - 64) {
    return absl::UnimplementedError("there are too many rows for the GPU's kernel");
  }
  const RowOffsets rows = {csr.row_offsets.data(), static_cast<int>(csr.rows), csr.nnz()};
  VisitFloat(type, [&]<typename T>(T) {
    const Scaling<T> p = {.rows = FactorsOf<T>(scaling.rows),
                          .cols = FactorsOf<T>(scaling.cols),
                          .x = static_cast<const T*>(scaling.x.data),
                          .y = static_cast<T*>(scaling.y.data),
                          .ldx = scaling.x.leading_dimension,
                          .ldy = scaling.y.leading_dimension,
                          .heads = static_cast<int>(scaling.y.cols)};
    const auto blocks = static_cast<unsigned>((csr.nnz() + kScaleThreads - 1) / kScaleThreads);
    Scale<T><<<blocks, kScaleThreads, 0, static_cast<cudaStream_t>(stream.handle())>>>(
        rows, csr.column_indices.data(), p);
  });
  return ToStatus(cudaGetLastError(), "scaling nonzeros");
}

absl::Status TotalNonzeros(Stream& stream, const NonzeroTotals& totals, ElementType type) {
  const CsrView csr = ViewCsr(totals.layout);
  if (csr.rows == 0 || totals.y.cols == 0) return absl::OkStatus();
  return VisitFloat(type, [&]<typename T>(T) {
    const Totals<T> work = {static_cast<const T*>(totals.x.data), static_cast<T*>(totals.y.data),
                            totals.x.leading_dimension, totals.y.leading_dimension,
                            totals.x_by_slot ? ValueSource() : ValueSource(totals.layout)};
    return ToStatus(LaunchPass(static_cast<cudaStream_t>(stream.handle()), csr.row_offsets,
                               totals.y.cols, work),
                    "adding up nonzeros");
  });
}

}  // namespace sparsed::cuda
