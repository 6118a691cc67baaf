// SpMV, which is SpMM with one column, from CSR by cuSPARSE: y = alpha * op(S) * x + beta * y, with
// each of its CSR algorithms; algorithm 1 alone for the transpose.
//
// Layout in: "csr", rows not permuted. Prepared once: as for SpMM. cuSPARSE's vectors are
// contiguous: others are copied into the workspace, and y back.
// Wins: where rows are alike; it is what the other kernels are measured against.
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cusparse.h"
#include "kernels/cuda/spmm/spmm.h"

namespace sparsed::cuda {
namespace {

size_t RoundedUp(size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Contiguous copies of x and y, at the beginning of what cuSPARSE gets as its workspace.
struct Copies {
  size_t x_bytes, y_bytes;

  Copies(const Problem& problem, const Layout& layout) {
    const size_t size = SizeOf(problem.type);
    x_bytes = RoundedUp((problem.transposed ? layout.rows : layout.cols) * size);
    y_bytes = RoundedUp((problem.transposed ? layout.cols : layout.rows) * size);
  }
  size_t bytes() const { return x_bytes + y_bytes; }
};

/// A column as a vector: itself, or its copy at `copy`.
struct Column {
  void* data;  ///< of the vector
  Dense strided;
  DenseVector vector;

  bool copied() const { return data != strided.data; }
  absl::Status Copy(void* stream, size_t size, bool in) const {
    if (!copied()) return absl::OkStatus();
    const size_t stride = static_cast<size_t>(strided.leading_dimension) * size;
    return ToStatus(
        cudaMemcpy2DAsync(in ? data : strided.data, in ? size : stride, in ? strided.data : data,
                          in ? stride : size, size, static_cast<size_t>(strided.rows),
                          cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
        "copying a strided vector");
  }
};

absl::StatusOr<Column> Describe(const Dense& column, const Problem& problem, std::byte* copy) {
  Column described = {column.leading_dimension == 1 ? column.data : copy, column, nullptr};
  cusparseDnVecDescr_t vector = nullptr;
  const absl::Status status =
      ToStatus(OpenCusparse()->CreateDnVec(&vector, column.rows, described.data, TypeOf(problem)),
               "describing a vector");
  if (!status.ok()) return status;
  described.vector.reset(vector);
  return described;
}

/// Everything that cuSPARSE wants to know besides S.
struct Call {
  cusparseHandle_t handle = nullptr;
  Column x, y;
  cusparseOperation_t operation;
  Scalars scalars;
};

absl::StatusOr<Call> DescribeCall(void* stream, const Problem& problem,
                                  const SpmmArguments& arguments, std::byte* copies) {
  absl::StatusOr<cusparseHandle_t> handle = CusparseHandle(stream);
  if (!handle.ok()) return handle.status();
  const ConstDense& b = arguments.b;
  absl::StatusOr<Column> x = Describe(
      Dense{const_cast<void*>(b.data), b.rows, b.cols, b.leading_dimension}, problem, copies);
  if (!x.ok()) return x.status();
  absl::StatusOr<Column> y =
      Describe(arguments.c, problem, copies + Copies(problem, arguments.layout).x_bytes);
  if (!y.ok()) return y.status();
  return Call{.handle = *handle,
              .x = *std::move(x),
              .y = *std::move(y),
              .operation = OperationOf(problem),
              .scalars = Scalars(problem, arguments.alpha, arguments.beta)};
}

// The sizes alone decide; no address is followed.
template <cusparseSpMVAlg_t kAlgorithm>
size_t OwnWorkspace(const Problem& problem, const Layout& layout) {
  alignas(256) static std::byte nowhere[256];
  const int64_t rows = problem.transposed ? layout.cols : layout.rows;
  const int64_t cols = problem.transposed ? layout.rows : layout.cols;
  const absl::StatusOr<Call> call = DescribeCall(
      nullptr, problem, {layout, nowhere, {nowhere, cols, 1, 1}, {nowhere, rows, 1, 1}}, nowhere);
  const absl::StatusOr<SparseMatrix> s =
      DescribeCsr(layout, problem, reinterpret_cast<int32_t*>(nowhere), nowhere);
  size_t bytes = 0;
  if (!call.ok() || !s.ok() ||
      OpenCusparse()->SpMV_bufferSize(call->handle, call->operation, call->scalars.alpha(),
                                      s->get(), call->x.vector.get(), call->scalars.beta(),
                                      call->y.vector.get(), call->scalars.type, kAlgorithm,
                                      &bytes) != CUSPARSE_STATUS_SUCCESS) {
    return size_t{1} << 62;  // more than there is: the run is refused
  }
  return Copies(problem, layout).bytes() + bytes;
}

template <cusparseSpMVAlg_t kAlgorithm>
size_t Workspace(const Problem& problem, const Layout& layout, int /*threads*/) {
  return OffsetBytes(layout) + OwnWorkspace<kAlgorithm>(problem, layout);
}

template <cusparseSpMVAlg_t kAlgorithm>
absl::StatusOr<std::shared_ptr<void>> PrepareRuns(const Context& context, const Problem& problem,
                                                  const SpmmArguments& arguments,
                                                  MemorySource& memory) {
  const Layout& layout = arguments.layout;
  absl::StatusOr<std::shared_ptr<PreparedCsr>> prepared =
      PrepareCsr(context.stream, problem, layout, arguments.values,
                 OwnWorkspace<kAlgorithm>(problem, layout), memory);
  if (!prepared.ok()) return prepared.status();
  if (OpenCusparse()->SpMV_preprocess == nullptr) return *std::move(prepared);
  std::byte* const copies = (*prepared)->workspace;
  const absl::StatusOr<Call> call = DescribeCall(context.stream, problem, arguments, copies);
  if (!call.ok()) return Settled(context.stream, call.status());
  const absl::Status status =
      ToStatus(OpenCusparse()->SpMV_preprocess(
                   call->handle, call->operation, call->scalars.alpha(), (*prepared)->matrix.get(),
                   call->x.vector.get(), call->scalars.beta(), call->y.vector.get(),
                   call->scalars.type, kAlgorithm, copies + Copies(problem, layout).bytes()),
               "preprocessing for SpMV");
  if (!status.ok()) return Settled(context.stream, status);
  return *std::move(prepared);
}

template <cusparseSpMVAlg_t kAlgorithm>
absl::Status Run(const Context& context, const Problem& problem, const SpmmArguments& arguments) {
  const Layout& layout = arguments.layout;
  absl::StatusOr<CsrOfRun> s =
      DescribeForRun(context, problem, layout, const_cast<void*>(arguments.values));
  if (!s.ok()) return s.status();
  const absl::StatusOr<Call> call = DescribeCall(context.stream, problem, arguments, s->workspace);
  if (!call.ok()) return call.status();
  const size_t size = SizeOf(problem.type);
  if (absl::Status in = call->x.Copy(context.stream, size, true); !in.ok()) return in;
  if (arguments.beta != 0) {
    if (absl::Status in = call->y.Copy(context.stream, size, true); !in.ok()) return in;
  }
  const absl::Status status =
      ToStatus(OpenCusparse()->SpMV(call->handle, call->operation, call->scalars.alpha(), s->matrix,
                                    call->x.vector.get(), call->scalars.beta(),
                                    call->y.vector.get(), call->scalars.type, kAlgorithm,
                                    s->workspace + Copies(problem, layout).bytes()),
               "SpMV");
  return status.ok() ? call->y.Copy(context.stream, size, false) : status;
}

template <cusparseSpMVAlg_t kAlgorithm>
bool Supports(const Problem& problem, const Layout& layout) {
  return problem.operation == Operation::kSpmm && problem.k == 1 &&
         CusparseTakes(problem, layout) &&
         (kAlgorithm == CUSPARSE_SPMV_CSR_ALG1 || !problem.transposed);
}

template <cusparseSpMVAlg_t kAlgorithm>
SpmmKernel Kernel(std::string_view name) {
  return {.name = name,
          .layout_kind = kCsr,
          .device = DeviceKind::kCuda,
          .deterministic = false,  // the vendor promises it for one algorithm only
          .supports = Supports<kAlgorithm>,
          .workspace = Workspace<kAlgorithm>,
          .run = Run<kAlgorithm>,
          .prepare = PrepareRuns<kAlgorithm>,
          .from_library = true};
}

}  // namespace

std::span<const SpmmKernel> CusparseSpmv() {
  static const std::vector<SpmmKernel> kernels = [] {
    std::vector<SpmmKernel> list;
    if (OpenCusparse() != nullptr) {
      list = {Kernel<CUSPARSE_SPMV_CSR_ALG1>("cuda.cusparse.spmv_alg1"),
              Kernel<CUSPARSE_SPMV_CSR_ALG2>("cuda.cusparse.spmv_alg2")};
    }
    return list;
  }();
  return kernels;
}

}  // namespace sparsed::cuda
