// SDDMM from CSR by cuSPARSE: O = S .* (A * B^T).
//
// cuSPARSE computes the products at S's places only; a small kernel multiplies with S's values.
// Layout in: plain "csr". Needs: cuSPARSE's own workspace and 32-bit row offsets before it.
// Wins: hardly ever; it is what the other kernels are measured against.
#include "kernels/cuda/cusparse.h"

#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/sddmm/sddmm.h"

namespace sparsed::cuda {
namespace {

struct Call {
  cusparseHandle_t handle = nullptr;
  SparseMatrix out;
  DenseMatrix a, b;
};

absl::StatusOr<Call> Prepare(void* stream, const Problem& problem, const Layout& layout,
                             int32_t* offsets, void* out, const ConstDense& a,
                             const ConstDense& b) {
  absl::StatusOr<cusparseHandle_t> handle = CusparseHandle(stream);
  if (!handle.ok()) return handle.status();
  absl::StatusOr<SparseMatrix> s = DescribeCsr(layout, problem, offsets, out);
  if (!s.ok()) return s.status();
  absl::StatusOr<DenseMatrix> a_matrix = Describe(a, problem);
  if (!a_matrix.ok()) return a_matrix.status();
  absl::StatusOr<DenseMatrix> b_matrix = Describe(b, problem);
  if (!b_matrix.ok()) return b_matrix.status();
  return Call{*handle, *std::move(s), *std::move(a_matrix), *std::move(b_matrix)};
}

struct Scales {
  float one_f32 = 1, zero_f32 = 0;
  double one_f64 = 1, zero_f64 = 0;
  const void* one(const Problem& p) const {
    return p.type == ElementType::kF32 ? static_cast<const void*>(&one_f32) : &one_f64;
  }
  const void* zero(const Problem& p) const {
    return p.type == ElementType::kF32 ? static_cast<const void*>(&zero_f32) : &zero_f64;
  }
};

// The sizes alone decide; no address is followed.
size_t Workspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  alignas(256) static std::byte nowhere[256];
  absl::StatusOr<Call> call = Prepare(nullptr, problem, layout, reinterpret_cast<int32_t*>(nowhere),
                                      nowhere, {nowhere, layout.rows, problem.k, problem.k},
                                      {nowhere, layout.cols, problem.k, problem.k});
  size_t bytes = 0;
  if (call.ok()) {
    const Scales scales;
    const cusparseStatus_t status = OpenCusparse()->SDDMM_bufferSize(
        call->handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_TRANSPOSE,
        scales.one(problem), call->a.get(), call->b.get(), scales.zero(problem), call->out.get(),
        TypeOf(problem), CUSPARSE_SDDMM_ALG_DEFAULT, &bytes);
    if (status != CUSPARSE_STATUS_SUCCESS) bytes = 0;
  }
  return OffsetBytes(layout) + bytes;
}

absl::Status Run(const Context& context, const Problem& problem, const SddmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  auto* const offsets = reinterpret_cast<int32_t*>(context.workspace.data());
  absl::Status status =
      ToStatus(NarrowOffsets(stream, ViewCsr(layout).row_offsets.data(), offsets, layout.rows + 1),
               "narrowing row offsets");
  if (!status.ok()) return status;
  // With beta = 0 it still reads the result: it must not be NaN.
  const size_t bytes = static_cast<size_t>(layout.nnz) * SizeOf(problem.type);
  status = ToStatus(cudaMemsetAsync(arguments.out, 0, bytes, stream), "clearing the result");
  if (!status.ok()) return status;
  absl::StatusOr<Call> call =
      Prepare(context.stream, problem, layout, offsets, arguments.out, arguments.a, arguments.b);
  if (!call.ok()) return call.status();
  const Scales scales;
  status = ToStatus(OpenCusparse()->SDDMM(
                        call->handle, CUSPARSE_OPERATION_NON_TRANSPOSE,
                        CUSPARSE_OPERATION_TRANSPOSE, scales.one(problem), call->a.get(),
                        call->b.get(), scales.zero(problem), call->out.get(), TypeOf(problem),
                        CUSPARSE_SDDMM_ALG_DEFAULT, context.workspace.data() + OffsetBytes(layout)),
                    "SDDMM");
  if (!status.ok() || arguments.values == nullptr) return status;
  return ToStatus(MultiplyElements(stream, problem.type == ElementType::kF32, arguments.values,
                                   arguments.out, layout.nnz),
                  "multiplying with S");
}

bool Supports(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSddmm && !layout.transposed &&
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
                      .run = Run});
    }
    return list;
  }();
  return kernels;
}

}  // namespace sparsed::cuda
