#include "kernels/cuda/cusparse.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <limits>
#include <map>

#include "kernels/cuda/capture.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/elements.h"
#include "kernels/formats/csr.h"

namespace sparsed::cuda {
namespace {

template <typename Function>
bool Load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

const Cusparse* OpenCusparse() {
  static const Cusparse* const opened = []() -> const Cusparse* {
    void* library = dlopen("libcusparse.so.12", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    static Cusparse c;
    const bool complete = Load(library, "cusparseCreate", c.Create) &&
                          Load(library, "cusparseSetStream", c.SetStream) &&
                          Load(library, "cusparseGetErrorString", c.GetErrorString) &&
                          Load(library, "cusparseCreateCsr", c.CreateCsr) &&
                          Load(library, "cusparseDestroySpMat", c.DestroySpMat) &&
                          Load(library, "cusparseCreateDnMat", c.CreateDnMat) &&
                          Load(library, "cusparseDestroyDnMat", c.DestroyDnMat) &&
                          Load(library, "cusparseSpMM_bufferSize", c.SpMM_bufferSize) &&
                          Load(library, "cusparseSpMM", c.SpMM) &&
                          Load(library, "cusparseSDDMM_bufferSize", c.SDDMM_bufferSize) &&
                          Load(library, "cusparseSDDMM", c.SDDMM) &&
                          Load(library, "cusparseSpMM_preprocess", c.SpMM_preprocess) &&
                          Load(library, "cusparseSDDMM_preprocess", c.SDDMM_preprocess) &&
                          Load(library, "cusparseSpMatSetValues", c.SpMatSetValues) &&
                          Load(library, "cusparseSpGEMM_createDescr", c.SpGEMM_createDescr) &&
                          Load(library, "cusparseSpGEMM_destroyDescr", c.SpGEMM_destroyDescr) &&
                          Load(library, "cusparseSpGEMM_workEstimation", c.SpGEMM_workEstimation) &&
                          Load(library, "cusparseSpGEMM_estimateMemory", c.SpGEMM_estimateMemory) &&
                          Load(library, "cusparseSpGEMM_compute", c.SpGEMM_compute) &&
                          Load(library, "cusparseSpGEMM_copy", c.SpGEMM_copy) &&
                          Load(library, "cusparseSpMatGetSize", c.SpMatGetSize) &&
                          Load(library, "cusparseCsrSetPointers", c.CsrSetPointers) &&
                          Load(library, "cusparseCreateDnVec", c.CreateDnVec) &&
                          Load(library, "cusparseDestroyDnVec", c.DestroyDnVec) &&
                          Load(library, "cusparseSpMV_bufferSize", c.SpMV_bufferSize) &&
                          Load(library, "cusparseSpMV", c.SpMV);
    Load(library, "cusparseSpMV_preprocess", c.SpMV_preprocess);
    return complete ? &c : nullptr;
  }();
  return opened;
}

absl::Status ToStatus(cusparseStatus_t status, std::string_view doing) {
  if (status == CUSPARSE_STATUS_SUCCESS) return absl::OkStatus();
  cudaGetLastError();  // what it met inside is told here, not at the next launch
  const std::string message =
      fmt::format("cuSPARSE, {}: {}", doing, OpenCusparse()->GetErrorString(status));
  if (status == CUSPARSE_STATUS_INSUFFICIENT_RESOURCES || status == CUSPARSE_STATUS_ALLOC_FAILED) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

absl::StatusOr<cusparseHandle_t> CusparseHandle(void* stream) {
  // By device, of which a handle is; they live as long as the thread and the driver's context.
  thread_local std::map<int, cusparseHandle_t> opened;
  int device = 0;
  absl::Status status = ToStatus(cudaGetDevice(&device), "finding the GPU");
  if (!status.ok()) return status;
  cusparseHandle_t& handle = opened[device];
  if (handle == nullptr) {
    const CaptureScope whatever_others_capture;  // it allocates
    status = ToStatus(OpenCusparse()->Create(&handle), "opening");
    if (!status.ok()) return status;
  }
  status =
      ToStatus(OpenCusparse()->SetStream(handle, static_cast<cudaStream_t>(stream)), "its stream");
  if (!status.ok()) return status;
  return handle;
}

absl::StatusOr<SparseMatrix> DescribeCsr(const Layout& layout, const Problem& problem,
                                         int32_t* offsets, const void* values) {
  const CsrView s = ViewCsr(layout);
  cusparseSpMatDescr_t matrix = nullptr;
  const absl::Status status = ToStatus(
      OpenCusparse()->CreateCsr(&matrix, s.rows, s.cols, s.nnz(), offsets,
                                const_cast<int32_t*>(s.column_indices.data()),
                                const_cast<void*>(values), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                                CUSPARSE_INDEX_BASE_ZERO, TypeOf(problem)),
      "describing S");
  if (!status.ok()) return status;
  return SparseMatrix(matrix);
}

namespace {

/// With `offsets` filled from the layout's.
absl::StatusOr<SparseMatrix> DescribeNarrowed(void* stream, const Problem& problem,
                                              const Layout& layout, int32_t* offsets,
                                              const void* values) {
  const absl::Status status =
      ToStatus(NarrowOffsets(static_cast<cudaStream_t>(stream), ViewCsr(layout).row_offsets.data(),
                             offsets, layout.rows + 1),
               "narrowing row offsets");
  if (!status.ok()) return status;
  return DescribeCsr(layout, problem, offsets, values);
}

}  // namespace

absl::StatusOr<std::shared_ptr<PreparedCsr>> PrepareCsr(void* stream, const Problem& problem,
                                                        const Layout& layout, const void* values,
                                                        size_t workspace, MemorySource& memory) {
  absl::StatusOr<Buffer> buffer = memory.Allocate(OffsetBytes(layout) + workspace);
  if (!buffer.ok()) return buffer.status();
  auto* const offsets = reinterpret_cast<int32_t*>(buffer->mutable_data());
  absl::StatusOr<SparseMatrix> matrix = DescribeNarrowed(stream, problem, layout, offsets, values);
  if (!matrix.ok()) return Settled(stream, matrix.status());
  auto prepared = std::make_shared<PreparedCsr>();
  prepared->memory = *std::move(buffer);
  prepared->matrix = *std::move(matrix);
  prepared->workspace = prepared->memory.mutable_data() + OffsetBytes(layout);
  return prepared;
}

absl::StatusOr<CsrOfRun> DescribeForRun(const Context& context, const Problem& problem,
                                        const Layout& layout, void* values) {
  CsrOfRun run;
  if (const auto* prepared = static_cast<const PreparedCsr*>(context.prepared);
      prepared != nullptr) {
    const absl::Status status =
        ToStatus(OpenCusparse()->SpMatSetValues(prepared->matrix.get(), values), "S's values");
    if (!status.ok()) return status;
    run.matrix = prepared->matrix.get();
    run.workspace = prepared->workspace;
    return run;
  }
  auto* const offsets = reinterpret_cast<int32_t*>(context.workspace.data());
  absl::StatusOr<SparseMatrix> matrix =
      DescribeNarrowed(context.stream, problem, layout, offsets, values);
  if (!matrix.ok()) return matrix.status();
  run.own = *std::move(matrix);
  run.matrix = run.own.get();
  run.workspace = context.workspace.data() + OffsetBytes(layout);
  return run;
}

absl::StatusOr<DenseMatrix> Describe(const ConstDense& dense, const Problem& problem) {
  cusparseDnMatDescr_t matrix = nullptr;
  const absl::Status status =
      ToStatus(OpenCusparse()->CreateDnMat(&matrix, dense.rows, dense.cols, dense.leading_dimension,
                                           const_cast<void*>(dense.data), TypeOf(problem),
                                           CUSPARSE_ORDER_ROW),
               "describing an operand");
  if (!status.ok()) return status;
  return DenseMatrix(matrix);
}

bool CusparseTakes(const Problem& problem, const Layout& layout) {
  return problem.device == DeviceKind::kCuda && layout.kind == kCsr && problem.k > 0 &&
         layout.rows > 0 && layout.cols > 0 && layout.nnz > 0 &&
         layout.nnz < std::numeric_limits<int32_t>::max() && layout.Find("row_order") == nullptr;
}

}  // namespace sparsed::cuda
