// SpMM from CSR by cuSPARSE: C = alpha * op(S) * B + beta * C, with each of its CSR algorithms.
//
// Layout in: "csr", rows not permuted. Needs: cuSPARSE's own workspace and, before it, 32-bit row
// offsets, which a small kernel makes in the same run.
// Wins: now and then at small K; it is what the other kernels are measured against.
#include "kernels/cuda/cusparse.h"

#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {
namespace {

cusparseOperation_t OperationOf(const Problem& problem) {
  return problem.transposed ? CUSPARSE_OPERATION_TRANSPOSE : CUSPARSE_OPERATION_NON_TRANSPOSE;
}

struct Call {
  cusparseHandle_t handle = nullptr;
  SparseMatrix s;
  DenseMatrix b, c;
};

absl::StatusOr<Call> Prepare(void* stream, const Problem& problem, const Layout& layout,
                             int32_t* offsets, const void* values, const ConstDense& b,
                             const ConstDense& c) {
  absl::StatusOr<cusparseHandle_t> handle = CusparseHandle(stream);
  if (!handle.ok()) return handle.status();
  absl::StatusOr<SparseMatrix> s = DescribeCsr(layout, problem, offsets, values);
  if (!s.ok()) return s.status();
  absl::StatusOr<DenseMatrix> b_matrix = Describe(b, problem);
  if (!b_matrix.ok()) return b_matrix.status();
  absl::StatusOr<DenseMatrix> c_matrix = Describe(c, problem);
  if (!c_matrix.ok()) return c_matrix.status();
  return Call{*handle, *std::move(s), *std::move(b_matrix), *std::move(c_matrix)};
}

absl::StatusOr<size_t> BufferSize(cusparseSpMMAlg_t algorithm, const Problem& problem,
                                  const Call& call) {
  const double one[2] = {1, 0};
  const float one_f32 = 1;
  const void* scale = problem.type == ElementType::kF32 ? static_cast<const void*>(&one_f32) : one;
  size_t bytes = 0;
  const absl::Status status = ToStatus(
      OpenCusparse()->SpMM_bufferSize(
          call.handle, OperationOf(problem), CUSPARSE_OPERATION_NON_TRANSPOSE, scale, call.s.get(),
          call.b.get(), scale, call.c.get(), TypeOf(problem), algorithm, &bytes),
      "asking for its workspace");
  if (!status.ok()) return status;
  return bytes;
}

// The sizes alone decide; no address is followed.
template <cusparseSpMMAlg_t kAlgorithm>
size_t Workspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  alignas(256) static std::byte nowhere[256];
  const int64_t rows = problem.transposed ? layout.cols : layout.rows;
  const int64_t cols = problem.transposed ? layout.rows : layout.cols;
  absl::StatusOr<Call> call =
      Prepare(nullptr, problem, layout, reinterpret_cast<int32_t*>(nowhere), nowhere,
              {nowhere, cols, problem.k, problem.k}, {nowhere, rows, problem.k, problem.k});
  if (!call.ok()) return OffsetBytes(layout);
  const absl::StatusOr<size_t> bytes = BufferSize(kAlgorithm, problem, *call);
  return OffsetBytes(layout) + (bytes.ok() ? *bytes : 0);
}

template <cusparseSpMMAlg_t kAlgorithm>
absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  auto* const offsets = reinterpret_cast<int32_t*>(context.workspace.data());
  absl::Status status =
      ToStatus(NarrowOffsets(static_cast<cudaStream_t>(context.stream),
                             ViewCsr(layout).row_offsets.data(), offsets, layout.rows + 1),
               "narrowing row offsets");
  if (!status.ok()) return status;
  absl::StatusOr<Call> call = Prepare(
      context.stream, problem, layout, offsets, arguments.values, arguments.b,
      {arguments.c.data, arguments.c.rows, arguments.c.cols, arguments.c.leading_dimension});
  if (!call.ok()) return call.status();
  const float alpha = static_cast<float>(arguments.alpha),
              beta = static_cast<float>(arguments.beta);
  const bool f32 = problem.type == ElementType::kF32;
  return ToStatus(
      OpenCusparse()->SpMM(call->handle, OperationOf(problem), CUSPARSE_OPERATION_NON_TRANSPOSE,
                           f32 ? static_cast<const void*>(&alpha) : &arguments.alpha, call->s.get(),
                           call->b.get(), f32 ? static_cast<const void*>(&beta) : &arguments.beta,
                           call->c.get(), TypeOf(problem), kAlgorithm,
                           context.workspace.data() + OffsetBytes(layout)),
      "SpMM");
}

template <cusparseSpMMAlg_t kAlgorithm>
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSpmm && CusparseTakes(problem, layout) &&
         (!problem.transposed || kAlgorithm != CUSPARSE_SPMM_CSR_ALG3);
}

template <cusparseSpMMAlg_t kAlgorithm>
SpmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = false,  // the vendor promises it for some algorithms and modes only
          .supports = Supports<kAlgorithm>,
          .workspace = Workspace<kAlgorithm>,
          .run = Run<kAlgorithm>};
}

}  // namespace

std::span<const SpmmKernel> CusparseSpmm() {
  static const std::vector<SpmmKernel> kernels = [] {
    std::vector<SpmmKernel> list;
    if (OpenCusparse() != nullptr) {
      list = {Kernel<CUSPARSE_SPMM_CSR_ALG1>("cuda.cusparse.alg1"),
              Kernel<CUSPARSE_SPMM_CSR_ALG2>("cuda.cusparse.alg2"),
              Kernel<CUSPARSE_SPMM_CSR_ALG3>("cuda.cusparse.alg3")};
    }
    return list;
  }();
  return kernels;
}

}  // namespace sparsed::cuda
