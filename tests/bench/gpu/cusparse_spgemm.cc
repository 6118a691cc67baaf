#include "tests/bench/gpu/cusparse_spgemm.h"

#include <memory>

#include "kernels/cuda/cusparse.h"

namespace sparsed::test {

absl::StatusOr<int64_t> CusparseSpgemm(Device& device, const Problem& problem,
                                       const SpgemmArguments& arguments, const int32_t* s_offsets,
                                       const int32_t* t_offsets) {
  const cuda::Cusparse* const library = cuda::OpenCusparse();
  if (library == nullptr) return absl::UnavailableError("there is no cuSPARSE here");
  const auto handle = cuda::CusparseHandle(device.ContextWith({}).stream);
  if (!handle.ok()) return handle.status();
  absl::Status status;
  const auto check = [&](cusparseStatus_t result, const char* doing) {
    if (status.ok()) status = cuda::ToStatus(result, doing);
    return status.ok();
  };
  const auto allocate = [&](size_t bytes) {
    absl::StatusOr<Buffer> buffer = device.Allocate(bytes);
    if (buffer.ok()) return *std::move(buffer);
    if (status.ok()) status = buffer.status();
    return Buffer();
  };
  const auto describe = [&](int64_t rows, int64_t cols, int64_t nnz, const int32_t* offsets,
                            const int32_t* columns, const void* values) {
    cusparseSpMatDescr_t matrix = nullptr;
    check(library->CreateCsr(&matrix, rows, cols, nnz, const_cast<int32_t*>(offsets),
                             const_cast<int32_t*>(columns), const_cast<void*>(values),
                             CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
                             cuda::TypeOf(problem)),
          "describing a matrix");
    return cuda::SparseMatrix(matrix);
  };
  const CsrView &left = arguments.left, &right = arguments.right;
  Buffer c_offsets = allocate(static_cast<size_t>(left.rows + 1) * sizeof(int32_t));
  const cuda::SparseMatrix s = describe(left.rows, left.cols, left.nnz(), s_offsets,
                                        left.column_indices.data(), arguments.left_values);
  const cuda::SparseMatrix t = describe(right.rows, right.cols, right.nnz(), t_offsets,
                                        right.column_indices.data(), arguments.right_values);
  const cuda::SparseMatrix c =
      describe(left.rows, right.cols, 0, reinterpret_cast<int32_t*>(c_offsets.mutable_data()),
               nullptr, nullptr);
  cusparseSpGEMMDescr_t plan = nullptr;
  if (!status.ok() || !check(library->SpGEMM_createDescr(&plan), "planning")) return status;
  const std::unique_ptr<cusparseSpGEMMDescr, decltype(library->SpGEMM_destroyDescr)> owner(
      plan, library->SpGEMM_destroyDescr);
  const double one64 = 1, zero64 = 0;
  const float one32 = 1, zero32 = 0;
  const bool wide = problem.type == ElementType::kF64;
  const void* const one = wide ? static_cast<const void*>(&one64) : &one32;
  const void* const zero = wide ? static_cast<const void*>(&zero64) : &zero32;
  const auto with = [&](auto function, auto... rest) {
    return function(*handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE,
                    one, s.get(), t.get(), zero, c.get(), cuda::TypeOf(problem),
                    CUSPARSE_SPGEMM_DEFAULT, plan, rest...);
  };
  // Each step is asked for its memory first.
  size_t bytes = 0;
  const auto step = [&](auto function, const char* doing) {
    bytes = 0;
    if (!status.ok() || !check(with(function, &bytes, nullptr), doing)) return Buffer();
    Buffer buffer = allocate(bytes);
    if (status.ok()) check(with(function, &bytes, buffer.mutable_data()), doing);
    return buffer;
  };
  const Buffer first = step(library->SpGEMM_workEstimation, "estimating");
  const Buffer second = step(library->SpGEMM_compute, "computing");
  int64_t rows = 0, cols = 0, nnz = 0;
  if (!status.ok() || !check(library->SpMatGetSize(c.get(), &rows, &cols, &nnz), "counting")) {
    return status;
  }
  Buffer columns = allocate(static_cast<size_t>(nnz) * sizeof(int32_t));
  Buffer values = allocate(static_cast<size_t>(nnz) * SizeOf(problem.type));
  if (status.ok()) {
    check(library->CsrSetPointers(c.get(), c_offsets.mutable_data(), columns.mutable_data(),
                                  values.mutable_data()),
          "placing C");
  }
  if (status.ok()) check(with(library->SpGEMM_copy), "writing C");
  const absl::Status done = device.Finish();
  if (!status.ok()) return status;
  if (!done.ok()) return done;
  return nnz;
}

}  // namespace sparsed::test
