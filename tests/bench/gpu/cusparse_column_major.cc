#include <algorithm>
#include <memory>

#include "kernels/cuda/cusparse.h"
#include "tests/bench/gpu/output_stationary.h"

namespace sparsed::test {

absl::StatusOr<double> CusparseColumnMajor(Device& device, const ColumnMajorSpmm& product,
                                           int rounds) {
  const cuda::Cusparse* const library = cuda::OpenCusparse();
  if (library == nullptr) return absl::UnavailableError("there is no cuSPARSE here");
  void* const stream = device.ContextWith({}).stream;
  const absl::StatusOr<cusparseHandle_t> handle = cuda::CusparseHandle(stream);
  if (!handle.ok()) return handle.status();
  const auto describe = [&](const float* data, int64_t rows) -> absl::StatusOr<cuda::DenseMatrix> {
    cusparseDnMatDescr_t matrix = nullptr;
    const absl::Status status = cuda::ToStatus(
        library->CreateDnMat(&matrix, rows, product.k, rows, const_cast<float*>(data), CUDA_R_32F,
                             CUSPARSE_ORDER_COL),
        "describing an operand");
    if (!status.ok()) return status;
    return cuda::DenseMatrix(matrix);
  };
  const auto b = describe(product.b, product.layout.cols);
  const auto c = describe(product.c, product.layout.rows);
  if (!b.ok()) return b.status();
  if (!c.ok()) return c.status();
  const Problem problem = {.type = ElementType::kF32, .k = product.k, .device = DeviceKind::kCuda};
  const float one = 1, zero = 0;
  double best = 0;
  absl::Status failed = absl::UnavailableError("no algorithm took it");
  for (const cusparseSpMMAlg_t algorithm : {CUSPARSE_SPMM_CSR_ALG1, CUSPARSE_SPMM_CSR_ALG2}) {
    // What describes S first only asks for the workspace.
    const auto sized = cuda::PrepareCsr(stream, problem, product.layout, product.values, 0, device);
    if (!sized.ok()) return sized.status();
    const auto with = [&](cusparseSpMatDescr_t s, auto call) {
      return call(*handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE, &one,
                  s, b->get(), &zero, c->get(), CUDA_R_32F, algorithm);
    };
    size_t bytes = 0;
    absl::Status status = cuda::ToStatus(
        with((*sized)->matrix.get(),
             [&](auto... arguments) { return library->SpMM_bufferSize(arguments..., &bytes); }),
        "asking for the workspace");
    if (!status.ok()) {
      failed = status;
      continue;
    }
    const auto s = cuda::PrepareCsr(stream, problem, product.layout, product.values, bytes, device);
    if (!s.ok()) return s.status();
    status = cuda::ToStatus(with((*s)->matrix.get(),
                                 [&](auto... arguments) {
                                   return library->SpMM_preprocess(arguments..., (*s)->workspace);
                                 }),
                            "preprocessing");
    if (!status.ok()) {
      failed = status;
      continue;
    }
    const absl::StatusOr<double> median = device.MedianMilliseconds(rounds, [&] {
      return cuda::ToStatus(
          with((*s)->matrix.get(),
               [&](auto... arguments) { return library->SpMM(arguments..., (*s)->workspace); }),
          "SpMM");
    });
    if (!median.ok()) {
      failed = median.status();
      continue;
    }
    best = best == 0 ? *median : std::min(best, *median);
  }
  if (best == 0) return failed;
  return best;
}

}  // namespace sparsed::test
