// SDDMM from CSR by cuSPARSE: O = S .* (A * B^T).
//
// cuSPARSE computes the products at S's places only; a small kernel multiplies with S's values.
// f32, f64, f16; it takes no bf16.
// Layout in: plain "csr". Prepared once: as for SpMM.
// Wins: hardly ever; it is what the other kernels are measured against.
#include "kernels/cuda/cusparse.h"

#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/sddmm/sddmm.h"

namespace sparsed::cuda {
namespace {

/// Everything that cuSPARSE wants to know besides the result.
struct Call {
  cusparseHandle_t handle = nullptr;
  DenseMatrix a, b;
  Scalars scalars;  ///< 1 and 0
};

absl::StatusOr<Call> DescribeCall(void* stream, const Problem& problem, const ConstDense& a,
                                  const ConstDense& b) {
  absl::StatusOr<cusparseHandle_t> handle = CusparseHandle(stream);
  if (!handle.ok()) return handle.status();
  absl::StatusOr<DenseMatrix> a_matrix = Describe(a, problem);
  if (!a_matrix.ok()) return a_matrix.status();
  absl::StatusOr<DenseMatrix> b_matrix = Describe(b, problem);
  if (!b_matrix.ok()) return b_matrix.status();
  return Call{.handle = *handle,
              .a = *std::move(a_matrix),
              .b = *std::move(b_matrix),
              .scalars = Scalars(problem, 1, 0)};
}

// The sizes alone decide; no address is followed.
size_t OwnWorkspace(const Problem& problem, const Layout& layout) {
  alignas(256) static std::byte nowhere[256];
  const absl::StatusOr<Call> call =
      DescribeCall(nullptr, problem, {nowhere, layout.rows, problem.k, problem.k},
                   {nowhere, layout.cols, problem.k, problem.k});
  const absl::StatusOr<SparseMatrix> out =
      DescribeCsr(layout, problem, reinterpret_cast<int32_t*>(nowhere), nowhere);
  size_t bytes = 0;
  if (!call.ok() || !out.ok() ||
      OpenCusparse()->SDDMM_bufferSize(
          call->handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_TRANSPOSE,
          call->scalars.alpha(), call->a.get(), call->b.get(), call->scalars.beta(), out->get(),
          call->scalars.type, CUSPARSE_SDDMM_ALG_DEFAULT, &bytes) != CUSPARSE_STATUS_SUCCESS) {
    return size_t{1} << 62;  // more than there is: the run is refused
  }
  return bytes;
}

size_t Workspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  return OffsetBytes(layout) + OwnWorkspace(problem, layout);
}

absl::StatusOr<std::shared_ptr<void>> PrepareRuns(const Context& context, const Problem& problem,
                                                  const SddmmArguments& arguments,
                                                  MemorySource& memory) {
  const Layout& layout = arguments.layout;
  absl::StatusOr<std::shared_ptr<PreparedCsr>> prepared = PrepareCsr(
      context.stream, problem, layout, arguments.out, OwnWorkspace(problem, layout), memory);
  if (!prepared.ok()) return prepared.status();
  const absl::StatusOr<Call> call = DescribeCall(context.stream, problem, arguments.a, arguments.b);
  if (!call.ok()) return Settled(context.stream, call.status());
  const absl::Status status =
      ToStatus(OpenCusparse()->SDDMM_preprocess(call->handle, CUSPARSE_OPERATION_NON_TRANSPOSE,
                                                CUSPARSE_OPERATION_TRANSPOSE, call->scalars.alpha(),
                                                call->a.get(), call->b.get(), call->scalars.beta(),
                                                (*prepared)->matrix.get(), call->scalars.type,
                                                CUSPARSE_SDDMM_ALG_DEFAULT, (*prepared)->workspace),
               "preprocessing for SDDMM");
  if (!status.ok()) return Settled(context.stream, status);
  return *std::move(prepared);
}

absl::Status Run(const Context& context, const Problem& problem, const SddmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  // With beta = 0 it still reads the result: it must not be NaN.
  const size_t bytes = static_cast<size_t>(layout.nnz) * SizeOf(problem.type);
  absl::Status status =
      ToStatus(cudaMemsetAsync(arguments.out, 0, bytes, stream), "clearing the result");
  if (!status.ok()) return status;
  absl::StatusOr<CsrOfRun> out = DescribeForRun(context, problem, layout, arguments.out);
  if (!out.ok()) return out.status();
  const absl::StatusOr<Call> call = DescribeCall(context.stream, problem, arguments.a, arguments.b);
  if (!call.ok()) return call.status();
  status =
      ToStatus(OpenCusparse()->SDDMM(
                   call->handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_TRANSPOSE,
                   call->scalars.alpha(), call->a.get(), call->b.get(), call->scalars.beta(),
                   out->matrix, call->scalars.type, CUSPARSE_SDDMM_ALG_DEFAULT, out->workspace),
               "SDDMM");
  if (!status.ok() || arguments.values == nullptr) return status;
  return ToStatus(
      MultiplyElements(stream, problem.type, arguments.values, arguments.out, layout.nnz),
      "multiplying with S");
}

bool Supports(const Problem& problem, const Layout& layout) {
  // In 16 bits a dot product would be rounded, and may overflow, before it is multiplied with S.
  return problem.operation == Operation::kSddmm && !IsHalf(problem.type) && !layout.transposed &&
         layout.Find(kValueSource) == nullptr && CusparseTakes(problem, layout);
}

}  // namespace

std::span<const SddmmKernel> CusparseSddmm() {
  static const std::vector<SddmmKernel> kernels = [] {
    std::vector<SddmmKernel> list;
    if (OpenCusparse() != nullptr) {
      list.push_back({.name = "cuda.cusparse.sddmm",
                      .layout_kind = "csr",
                      .device = DeviceKind::kCuda,
                      .deterministic = false,
                      .supports = Supports,
                      .workspace = Workspace,
                      .run = Run,
                      .prepare = PrepareRuns,
                      .from_library = true});
    }
    return list;
  }();
  return kernels;
}

}  // namespace sparsed::cuda
