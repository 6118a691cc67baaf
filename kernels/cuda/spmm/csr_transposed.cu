// SpMM with the transpose of a CSR matrix that is not built: C = alpha * S^T * B + beta * C.
//
// Idea: scatter: every nonzero (r, c) adds its multiple of B's row r to C's row c atomically, four
// elements by one instruction where the hardware has it. A first kernel scales or clears C. f16 and
// bf16 add up in a matrix of floats, which a last kernel rounds, once, into C.
// Layout in: "csr", plain or with permuted rows.
// Threads: a group of 1 to 32 lanes takes 32 consecutive nonzeros and one column block, 16 bytes
// a lane; B's row stays in registers from one nonzero to the next of its row.
// Needs: for f16 and bf16 a float for each element of C. Sums in no fixed order: not deterministic.
// Wins: before the transposed layout is built, and where it would not fit.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kItems = 32;

template <typename T>
struct Scatter {
  const int64_t* row_offsets;
  const int32_t* columns;
  const int32_t* row_order;
  const T* values;
  const T* b;
  T* c;
  SumOf<T>* sums;  // C, or where its elements are too narrow a matrix of its shape
  int64_t rows, nnz, ldb, ldc, sums_stride, k, c_rows;
  SumOf<T> alpha, beta;
};

// Before: C = beta * C. After, where the sums are not in C: C = sums + beta * C.
template <typename T>
__global__ void Scale(const Scatter<T> s) {
  const int64_t column = static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= s.c_rows || column >= s.k) return;
  T& c = s.c[row * s.ldc + column];
  SumOf<T> scaled = s.beta == 0 ? 0 : s.beta * Widen(c);
  if constexpr (kIsHalf<T>) scaled += s.sums[row * s.sums_stride + column];
  c = Narrow<T>(scaled);
}

template <typename T, int kWidth, int kGroup>
__global__ void __launch_bounds__(kThreads) ScatterRows(const Scatter<T> s) {
  using Sum = SumOf<T>;
  const int64_t group = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kGroup;
  const int64_t begin = group * kItems;
  const int64_t end = min(begin + kItems, s.nnz);
  const int64_t column =
      (static_cast<int64_t>(blockIdx.y) * kGroup + threadIdx.x % kGroup) * kWidth;
  if (begin >= end || column >= s.k) return;
  int64_t row = UpperBound(s.row_offsets, 0, s.rows, begin) - 1;
  int64_t row_end = s.row_offsets[row + 1];
  Vector<T, kWidth> b = {};
  bool loaded = false;
  for (int64_t position = begin; position < end; ++position) {
    while (position >= row_end) {
      row_end = s.row_offsets[++row + 1];
      loaded = false;
    }
    if (!loaded) {
      const int64_t source = s.row_order == nullptr ? row : s.row_order[row];
      b = LoadVector<T, kWidth>(s.b + source * s.ldb + column);
      loaded = true;
    }
    const Sum scale = s.alpha * Widen(s.values[position]);
    Vector<Sum, kWidth> sum;
    for (int j = 0; j < kWidth; ++j) sum.at[j] = scale * Widen(b.at[j]);
    AtomicAddVector<Sum, kWidth>(s.sums + s.columns[position] * s.sums_stride + column, sum);
  }
}

template <typename T, int kWidth, int kGroup>
void Launch(cudaStream_t stream, const Scatter<T>& s) {
  const int64_t groups = (s.nnz + kItems - 1) / kItems;
  const dim3 grid(static_cast<unsigned>((groups * kGroup + kThreads - 1) / kThreads),
                  static_cast<unsigned>((s.k + kGroup * kWidth - 1) / (kGroup * kWidth)));
  ScatterRows<T, kWidth, kGroup><<<grid, kThreads, 0, stream>>>(s);
}

template <typename T, int kWidth>
void LaunchGroup(cudaStream_t stream, const Scatter<T>& s) {
  if (s.k <= 2 * kWidth) return Launch<T, kWidth, 2>(stream, s);
  if (s.k <= 8 * kWidth) return Launch<T, kWidth, 8>(stream, s);
  Launch<T, kWidth, 32>(stream, s);
}

// Sums of a row, so many that each row of them is aligned.
int64_t SumsStride(int64_t k) { return (k + 3) / 4 * 4; }

template <typename T>
absl::Status RunOf(const Context& context, const SpmmArguments& arguments) {
  const CsrView v = ViewCsr(arguments.layout);
  Scatter<T> s = {.row_offsets = v.row_offsets.data(),
                  .columns = v.column_indices.data(),
                  .row_order = v.row_order.empty() ? nullptr : v.row_order.data(),
                  .values = static_cast<const T*>(arguments.values),
                  .b = static_cast<const T*>(arguments.b.data),
                  .c = static_cast<T*>(arguments.c.data),
                  .sums = nullptr,
                  .rows = v.rows,
                  .nnz = v.nnz(),
                  .ldb = arguments.b.leading_dimension,
                  .ldc = arguments.c.leading_dimension,
                  .sums_stride = arguments.c.leading_dimension,
                  .k = arguments.c.cols,
                  .c_rows = arguments.c.rows,
                  .alpha = static_cast<SumOf<T>>(arguments.alpha),
                  .beta = static_cast<SumOf<T>>(arguments.beta)};
  if (s.c_rows == 0 || s.k == 0) return absl::OkStatus();
  const auto stream = static_cast<cudaStream_t>(context.stream);
  const auto scale = [&] {
    const dim3 grid(static_cast<unsigned>((s.c_rows + 7) / 8),
                    static_cast<unsigned>((s.k + 31) / 32));
    Scale<T><<<grid, dim3(32, 8), 0, stream>>>(s);
  };
  if constexpr (kIsHalf<T>) {
    s.sums = reinterpret_cast<float*>(context.workspace.data());
    s.sums_stride = SumsStride(s.k);
    const size_t bytes = static_cast<size_t>(s.c_rows * s.sums_stride) * sizeof(float);
    const absl::Status status =
        ToStatus(cudaMemsetAsync(s.sums, 0, bytes, stream), "clearing the sums");
    if (!status.ok()) return status;
  } else {
    s.sums = s.c;
    scale();
  }
  if (s.nnz > 0) {
    if (RowsAreWide<T>(s.b, s.ldb, s.k) && RowsAreWide<SumOf<T>>(s.sums, s.sums_stride, s.k)) {
      LaunchGroup<T, kWidest<SumOf<T>>>(stream, s);
    } else {
      LaunchGroup<T, 1>(stream, s);
    }
  }
  if constexpr (kIsHalf<T>) scale();
  return ToStatus(cudaGetLastError(), "starting transposed SpMM");
}

absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  return VisitFloat(problem.type, [&]<typename T>(T) { return RunOf<T>(context, arguments); });
}

bool Supports(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && problem.operation == Operation::kSpmm &&
         problem.k <= kMostSpmmWidth && problem.transposed && layout.kind == kCsr;
}

size_t Workspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  if (!IsHalf(problem.type)) return 0;
  return static_cast<size_t>(layout.cols * SumsStride(problem.k)) * sizeof(float);
}

}  // namespace

SpmmKernel CsrTransposedSpmm() {
  return {.name = "cuda.csr.scatter",
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = false,
          .supports = Supports,
          .workspace = Workspace,
          .run = Run};
}

}  // namespace sparsed::cuda
