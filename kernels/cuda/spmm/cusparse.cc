// SpMM from CSR by cuSPARSE: C = alpha * S * B + beta * C, with algorithm 3 of those that it has
// for CSR. Algorithms 1 and 2 served next to no matrix (2 plans of 1,300), and round parts of sums
// of f16 and bf16 before they add them up. Transposed products reach it through the layout
// "transpose".
//
// Layout in: "csr", rows not permuted. Prepared once: 32-bit row offsets and what cuSPARSE's
// preprocessing makes of them, in its workspace. Runs that nothing was prepared for narrow the
// offsets into their own workspace.
// Wins: now and then at small K; it is what the other kernels are measured against.
#include "kernels/cuda/cusparse.h"

#include "kernels/cuda/check.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {
namespace {

constexpr cusparseSpMMAlg_t kAlgorithm = CUSPARSE_SPMM_CSR_ALG3;
constexpr cusparseOperation_t kAsItIs = CUSPARSE_OPERATION_NON_TRANSPOSE;

/// Everything that cuSPARSE wants to know besides S.
struct Call {
  cusparseHandle_t handle = nullptr;
  DenseMatrix b, c;
  Scalars scalars;
};

absl::StatusOr<Call> DescribeCall(void* stream, const Problem& problem,
                                  const SpmmArguments& arguments) {
  absl::StatusOr<cusparseHandle_t> handle = CusparseHandle(stream);
  if (!handle.ok()) return handle.status();
  absl::StatusOr<DenseMatrix> b = Describe(arguments.b, problem);
  if (!b.ok()) return b.status();
  const Dense& c = arguments.c;
  absl::StatusOr<DenseMatrix> c_matrix =
      Describe(ConstDense{c.data, c.rows, c.cols, c.leading_dimension}, problem);
  if (!c_matrix.ok()) return c_matrix.status();
  return Call{.handle = *handle,
              .b = *std::move(b),
              .c = *std::move(c_matrix),
              .scalars = Scalars(problem, arguments.alpha, arguments.beta)};
}

// The sizes alone decide; no address is followed.
size_t OwnWorkspace(const Problem& problem, const Layout& layout) {
  alignas(256) static std::byte nowhere[256];
  const absl::StatusOr<Call> call = DescribeCall(nullptr, problem,
                                                 {layout,
                                                  nowhere,
                                                  {nowhere, layout.cols, problem.k, problem.k},
                                                  {nowhere, layout.rows, problem.k, problem.k}});
  const absl::StatusOr<SparseMatrix> s =
      DescribeCsr(layout, problem, reinterpret_cast<int32_t*>(nowhere), nowhere);
  size_t bytes = 0;
  if (!call.ok() || !s.ok() ||
      OpenCusparse()->SpMM_bufferSize(call->handle, kAsItIs, kAsItIs, call->scalars.alpha(),
                                      s->get(), call->b.get(), call->scalars.beta(), call->c.get(),
                                      call->scalars.type, kAlgorithm,
                                      &bytes) != CUSPARSE_STATUS_SUCCESS) {
    return size_t{1} << 62;  // more than there is: the run is refused
  }
  return bytes;
}

size_t Workspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  return OffsetBytes(layout) + OwnWorkspace(problem, layout);
}

absl::StatusOr<std::shared_ptr<void>> PrepareRuns(const Context& context, const Problem& problem,
                                                  const SpmmArguments& arguments,
                                                  MemorySource& memory) {
  const Layout& layout = arguments.layout;
  absl::StatusOr<std::shared_ptr<PreparedCsr>> prepared = PrepareCsr(
      context.stream, problem, layout, arguments.values, OwnWorkspace(problem, layout), memory);
  if (!prepared.ok()) return prepared.status();
  const absl::StatusOr<Call> call = DescribeCall(context.stream, problem, arguments);
  if (!call.ok()) return Settled(context.stream, call.status());
  const absl::Status status =
      ToStatus(OpenCusparse()->SpMM_preprocess(
                   call->handle, kAsItIs, kAsItIs, call->scalars.alpha(), (*prepared)->matrix.get(),
                   call->b.get(), call->scalars.beta(), call->c.get(), call->scalars.type,
                   kAlgorithm, (*prepared)->workspace),
               "preprocessing for SpMM");
  if (!status.ok()) return Settled(context.stream, status);
  return *std::move(prepared);
}

absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  absl::StatusOr<CsrOfRun> s =
      DescribeForRun(context, problem, arguments.layout, const_cast<void*>(arguments.values));
  if (!s.ok()) return s.status();
  const absl::StatusOr<Call> call = DescribeCall(context.stream, problem, arguments);
  if (!call.ok()) return call.status();
  return ToStatus(OpenCusparse()->SpMM(call->handle, kAsItIs, kAsItIs, call->scalars.alpha(),
                                       s->matrix, call->b.get(), call->scalars.beta(),
                                       call->c.get(), call->scalars.type, kAlgorithm, s->workspace),
                  "SpMM");
}

bool Supports(const Problem& problem, const Layout& layout) {
  // With one column of a wider matrix it reads and writes where it must not (12.6.3); SpMV is for
  // them.
  return problem.operation == Operation::kSpmm && problem.k > 1 && !problem.transposed &&
         CusparseTakes(problem, layout);
}

}  // namespace

std::span<const SpmmKernel> CusparseSpmm() {
  static const SpmmKernel kernels[] = {
      {.name = "cuda.cusparse.alg3",
       .layout_kind = kCsr,
       .device = DeviceKind::kCuda,
       .deterministic = false,  // the vendor promises it for some algorithms and modes only
       .supports = Supports,
       .workspace = Workspace,
       .run = Run,
       .prepare = PrepareRuns,
       .from_library = true}};
  return OpenCusparse() == nullptr ? std::span<const SpmmKernel>() : kernels;
}

}  // namespace sparsed::cuda
