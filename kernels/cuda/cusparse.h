// cuSPARSE, opened by its soname when it is first asked for, and a CSR matrix as it wants it.
#pragma once

#include <cusparse.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/layout.h"
#include "kernels/problem.h"

namespace sparsed::cuda {

/// The functions that are used. All are there or none.
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
};
/// Null if the library or one of the functions is missing.
const Cusparse* OpenCusparse();

absl::Status ToStatus(cusparseStatus_t status, std::string_view doing);

/// The calling thread's handle, made on first use, set to the stream.
absl::StatusOr<cusparseHandle_t> CusparseHandle(void* stream);

struct DestroyMatrix {
  void operator()(cusparseSpMatDescr_t matrix) const { OpenCusparse()->DestroySpMat(matrix); }
  void operator()(cusparseDnMatDescr_t matrix) const { OpenCusparse()->DestroyDnMat(matrix); }
};
using SparseMatrix = std::unique_ptr<std::remove_pointer_t<cusparseSpMatDescr_t>, DestroyMatrix>;
using DenseMatrix = std::unique_ptr<std::remove_pointer_t<cusparseDnMatDescr_t>, DestroyMatrix>;

inline cudaDataType TypeOf(const Problem& problem) {
  return problem.type == ElementType::kF32 ? CUDA_R_32F : CUDA_R_64F;
}

/// Bytes for 32-bit row offsets, rounded up to 256.
inline size_t OffsetBytes(const Layout& layout) {
  return (static_cast<size_t>(layout.rows + 1) * sizeof(int32_t) + 255) / 256 * 256;
}

/// A plain CSR layout with `offsets` as its 32-bit row offsets.
absl::StatusOr<SparseMatrix> DescribeCsr(const Layout& layout, const Problem& problem,
                                         int32_t* offsets, const void* values);
absl::StatusOr<DenseMatrix> Describe(const ConstDense& dense, const Problem& problem);

/// What cuSPARSE can take: CSR's row order, sizes that fit 32 bits, nothing empty.
bool CusparseTakes(const Problem& problem, const Layout& layout);

}  // namespace sparsed::cuda
