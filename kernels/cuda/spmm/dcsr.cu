// SpMM from doubly compressed sparse rows: C = alpha * S * B + beta * C.
//
// Idea: a kernel of CSR on the stored rows, the first of csr_rows.cu that serves; a kernel before
// it scales or clears the rows of C that S has nothing for. Layout in: "dcsr". Threads of the
// latter: a group of 8 or 32 lanes a row and column block, 16 bytes a lane; else, and needs: as
// csr_rows.cu. Wins where most rows are empty: they cost a plain write of C, not a group that looks
// for nonzeros.
#include <cstdint>

#include "kernels/cuda/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/spmm/slice.cuh"
#include "kernels/cuda/spmm/spmm.h"
#include "kernels/dcsr_kernels.h"

namespace sparsed::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, bool kAligned, int kGroup>
__global__ void __launch_bounds__(kThreads)
    Scale(const int32_t* rows, int64_t count, T* c, int64_t ldc, int64_t k, SumOf<T> beta) {
  using Part = Slice<T, kAligned, kGroup>;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kGroup;
  const int64_t first = Part::First(blockIdx.y, threadIdx.x % kGroup);
  const int elements = Part::Count(k, first);
  if (i >= count || elements == 0) return;
  SliceSum<Part>().Emit(c + rows[i] * ldc + first, elements, SumOf<T>(0), beta);
}

template <typename T, bool kAligned, int kGroup>
void Launch(cudaStream_t stream, std::span<const int32_t> rows, const Dense& c, double beta) {
  constexpr int64_t kColumns = Slice<T, kAligned, kGroup>::kColumns;
  const auto count = static_cast<int64_t>(rows.size());
  const dim3 grid(static_cast<unsigned>((count * kGroup + kThreads - 1) / kThreads),
                  static_cast<unsigned>((c.cols + kColumns - 1) / kColumns));
  Scale<T, kAligned, kGroup>
      <<<grid, kThreads, 0, stream>>>(rows.data(), count, static_cast<T*>(c.data),
                                      c.leading_dimension, c.cols, static_cast<SumOf<T>>(beta));
}

template <typename T, bool kAligned>
void LaunchGroup(cudaStream_t stream, std::span<const int32_t> rows, const Dense& c, double beta) {
  c.cols* static_cast<int64_t>(sizeof(T)) <= 128 ? Launch<T, kAligned, 8>(stream, rows, c, beta)
                                                 : Launch<T, kAligned, 32>(stream, rows, c, beta);
}

absl::Status ScaleEmptyRows(const Context& context, const Problem& problem,
                            const SpmmArguments& arguments) {
  const std::span<const int32_t> rows = EmptyRows(arguments.layout);
  const Dense& c = arguments.c;
  if (arguments.beta == 1 || rows.empty() || c.cols == 0) return absl::OkStatus();
  const auto stream = static_cast<cudaStream_t>(context.stream);
  VisitFloat(problem.type, [&]<typename T>(T) {
    RowsAreWide<T>(c.data, c.leading_dimension, c.cols)
        ? LaunchGroup<T, true>(stream, rows, c, arguments.beta)
        : LaunchGroup<T, false>(stream, rows, c, arguments.beta);
  });
  return ToStatus(cudaGetLastError(), "scaling the rows without nonzeros");
}

}  // namespace

SpmmKernel DcsrSpmm() {
  return SpmmOverStoredRows<CsrRowsFor, ScaleEmptyRows>("cuda.dcsr.rows", DeviceKind::kCuda);
}

}  // namespace sparsed::cuda
