// cuSPARSE, opened by its soname when it is first asked for, and a CSR matrix as it wants it.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cusparse_abi.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed::cuda {

/// The functions that are used. All are there or none, but for those that may be null.
struct Cusparse {
  decltype(&cusparseCreate) Create;
  decltype(&cusparseSetStream) SetStream;
  decltype(&cusparseGetErrorString) GetErrorString;
  decltype(&cusparseCreateCsr) CreateCsr;
  decltype(&cusparseDestroySpMat) DestroySpMat;
  decltype(&cusparseCreateDnMat) CreateDnMat;
  decltype(&cusparseDestroyDnMat) DestroyDnMat;
  decltype(&cusparseSpMM_bufferSize) SpMM_bufferSize;
  decltype(&cusparseSpMM) SpMM;
  decltype(&cusparseSDDMM_bufferSize) SDDMM_bufferSize;
  decltype(&cusparseSDDMM) SDDMM;
  decltype(&cusparseSpMM_preprocess) SpMM_preprocess;
  decltype(&cusparseSDDMM_preprocess) SDDMM_preprocess;
  decltype(&cusparseSpMatSetValues) SpMatSetValues;
  decltype(&cusparseSpGEMM_createDescr) SpGEMM_createDescr;
  decltype(&cusparseSpGEMM_destroyDescr) SpGEMM_destroyDescr;
  decltype(&cusparseSpGEMM_workEstimation) SpGEMM_workEstimation;
  decltype(&cusparseSpGEMM_estimateMemory) SpGEMM_estimateMemory;
  decltype(&cusparseSpGEMM_compute) SpGEMM_compute;
  decltype(&cusparseSpGEMM_copy) SpGEMM_copy;
  decltype(&cusparseSpMatGetSize) SpMatGetSize;
  decltype(&cusparseCsrSetPointers) CsrSetPointers;
  decltype(&cusparseCreateDnVec) CreateDnVec;
  decltype(&cusparseDestroyDnVec) DestroyDnVec;
  decltype(&cusparseSpMV_bufferSize) SpMV_bufferSize;
  decltype(&cusparseSpMV) SpMV;
  decltype(&cusparseSpMV_preprocess) SpMV_preprocess;  ///< null before CUDA 12.4
};
/// Null if the library or one of the functions is missing.
const Cusparse* OpenCusparse();

absl::Status ToStatus(cusparseStatus_t status, std::string_view doing);

/// The calling thread's handle, made on first use, set to the stream.
absl::StatusOr<cusparseHandle_t> CusparseHandle(void* stream);

struct DestroyMatrix {
  void operator()(cusparseSpMatDescr_t matrix) const { OpenCusparse()->DestroySpMat(matrix); }
  void operator()(cusparseDnMatDescr_t matrix) const { OpenCusparse()->DestroyDnMat(matrix); }
  void operator()(cusparseDnVecDescr_t vector) const { OpenCusparse()->DestroyDnVec(vector); }
};
using SparseMatrix = std::unique_ptr<std::remove_pointer_t<cusparseSpMatDescr_t>, DestroyMatrix>;
using DenseMatrix = std::unique_ptr<std::remove_pointer_t<cusparseDnMatDescr_t>, DestroyMatrix>;
using DenseVector = std::unique_ptr<std::remove_pointer_t<cusparseDnVecDescr_t>, DestroyMatrix>;

inline cudaDataType TypeOf(const Problem& problem) {
  switch (problem.type) {
    case ElementType::kF16:
      return CUDA_R_16F;
    case ElementType::kBF16:
      return CUDA_R_16BF;
    case ElementType::kF32:
      return CUDA_R_32F;
    default:
      return CUDA_R_64F;
  }
}
/// Of the sums, and of what they are scaled with.
inline cudaDataType SumTypeOf(const Problem& problem) {
  return problem.type == ElementType::kF64 ? CUDA_R_64F : CUDA_R_32F;
}

inline cusparseOperation_t OperationOf(const Problem& problem) {
  return problem.transposed ? CUSPARSE_OPERATION_TRANSPOSE : CUSPARSE_OPERATION_NON_TRANSPOSE;
}

/// What products are scaled with, as cuSPARSE reads it.
struct Scalars {
  Scalars(const Problem& problem, double a, double b)
      : type(SumTypeOf(problem)),
        alpha_f32(static_cast<float>(a)),
        beta_f32(static_cast<float>(b)),
        alpha_f64(a),
        beta_f64(b) {}

  const void* alpha() const {
    return type == CUDA_R_32F ? static_cast<const void*>(&alpha_f32) : &alpha_f64;
  }
  const void* beta() const {
    return type == CUDA_R_32F ? static_cast<const void*>(&beta_f32) : &beta_f64;
  }

  cudaDataType type;  ///< SumTypeOf
  float alpha_f32, beta_f32;
  double alpha_f64, beta_f64;
};

/// Bytes for 32-bit row offsets, rounded up to 256.
inline size_t OffsetBytes(const Layout& layout) {
  return (static_cast<size_t>(layout.rows + 1) * sizeof(int32_t) + 255) / 256 * 256;
}

/// A plain CSR layout with `offsets` as its 32-bit row offsets.
absl::StatusOr<SparseMatrix> DescribeCsr(const Layout& layout, const Problem& problem,
                                         int32_t* offsets, const void* values);

/// A CSR matrix with 32-bit row offsets and cuSPARSE's workspace, for runs of one kind.
struct PreparedCsr {
  Buffer memory;  ///< the row offsets, then the workspace
  SparseMatrix matrix;
  std::byte* workspace = nullptr;
};
/// Up to the preprocessing itself. `workspace` in bytes.
absl::StatusOr<std::shared_ptr<PreparedCsr>> PrepareCsr(void* stream, const Problem& problem,
                                                        const Layout& layout, const void* values,
                                                        size_t workspace, MemorySource& memory);

/// What was prepared, with other values; or else what a run makes in its own workspace.
struct CsrOfRun {
  SparseMatrix own;
  cusparseSpMatDescr_t matrix = nullptr;
  std::byte* workspace = nullptr;
};
absl::StatusOr<CsrOfRun> DescribeForRun(const Context& context, const Problem& problem,
                                        const Layout& layout, void* values);
absl::StatusOr<DenseMatrix> Describe(const ConstDense& dense, const Problem& problem);

/// What cuSPARSE can take: CSR's row order, sizes that fit 32 bits, nothing empty.
bool CusparseTakes(const Problem& problem, const Layout& layout);

}  // namespace sparsed::cuda
