// SpGEMM by cuSPARSE.
//
// Idea: the library knows no ranges of rows, so it makes the whole product beforehand, in memory
// that the caller's source gives; counts are read off it and rows copied out of it.
// Layout in: plain CSR of both, row offsets narrowed to 32 bits.
// Threads: the library's.
// Needs: some 24 bytes for each product (ALG1), or what its estimate says (ALG2), and C twice for a
// while. Larger products than it is known to get right are refused, and every result is looked
// through before it is used: rows within their bounds, columns that ascend.
// Wins: on power-law graphs over most other libraries; docs/kernels-cuda.md has it beside ours.
#include "kernels/cuda/cusparse.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/spgemm/host.h"
#include "kernels/cuda/spgemm/spgemm.h"
#include "kernels/cuda/spgemm/whole_product.h"

namespace sparsed::cuda {
namespace {

/// ALG1 fails above some four million rows, whatever memory there is.
constexpr int64_t kMostRows = int64_t{1} << 22;
/// Products in 32 bits; more have come back as zeros.
constexpr int64_t kMostProducts = int64_t{1} << 30;

/// What is prepared.
struct Product {
  WholeProduct c;
  ProductCheck check;
  int64_t products = 0;
  Buffer row_offsets, columns, values;
};

struct DestroyPlan {
  void operator()(cusparseSpGEMMDescr_t plan) const { OpenCusparse()->SpGEMM_destroyDescr(plan); }
};
using Plan = std::unique_ptr<std::remove_pointer_t<cusparseSpGEMMDescr_t>, DestroyPlan>;

template <typename T>
T* As(Buffer& buffer) {
  return reinterpret_cast<T*>(buffer.mutable_data());
}

/// Makes a product. Its own memory is what only that takes; the stream must have passed before it
/// ends. Each step is left out after an error.
class Making {
 public:
  Making(const Context& context, const Problem& problem, const SpgemmArguments& arguments,
         MemorySource& memory)
      : context_(context),
        problem_(problem),
        arguments_(arguments),
        memory_(memory),
        stream_(static_cast<cudaStream_t>(context.stream)) {}

  absl::StatusOr<std::shared_ptr<Product>> Make(cusparseSpGEMMAlg_t algorithm) {
    const CsrView &s = arguments_.left, &t = arguments_.right;
    product_->c = {s.rows, t.cols, nullptr, nullptr, nullptr, problem_.type};
    product_->row_offsets = Allocate<int32_t>(s.rows + 1);
    CountProducts();
    if (status_.ok() && product_->products > 0) {
      Multiply(algorithm);
    } else if (status_.ok()) {
      status_ = ToStatus(cudaMemsetAsync(product_->row_offsets.mutable_data(), 0,
                                         product_->row_offsets.size(), stream_),
                         "an empty product");
    }
    product_->c.row_offsets = As<int32_t>(product_->row_offsets);
    product_->c.columns = As<int32_t>(product_->columns);
    product_->c.values = product_->values.data();
    Check();
    if (!status_.ok()) return status_;
    return product_;
  }

 private:
  template <typename T>
  Buffer Allocate(int64_t count) {
    return AllocateBytes(static_cast<size_t>(count) * sizeof(T));
  }
  Buffer AllocateBytes(size_t bytes) {
    if (!status_.ok()) return Buffer();
    status_ = StillWanted(context_);
    absl::StatusOr<Buffer> buffer = memory_.Allocate(bytes);
    status_.Update(buffer.status());
    return buffer.ok() ? *std::move(buffer) : Buffer();
  }
  void Run(cudaError_t error, std::string_view doing) {
    if (status_.ok()) status_ = ToStatus(error, doing);
  }
  void Run(cusparseStatus_t result, std::string_view doing) {
    if (!status_.ok()) return;
    status_ = ToStatus(result, doing);
    // It was given the memory that it asked for: what else it lacks it will lack again.
    if (result == CUSPARSE_STATUS_INSUFFICIENT_RESOURCES) {
      status_ = absl::FailedPreconditionError(std::string(status_.message()));
    }
  }

  /// Bounds of the rows and how many products there are; waits for them.
  void CountProducts() {
    row_bounds_ = Allocate<int64_t>(arguments_.left.rows);
    products_ = Allocate<int64_t>(1);
    if (!status_.ok()) return;
    status_ = RowBinsSpgemm().analyse(
        context_, arguments_, {As<int64_t>(row_bounds_), static_cast<size_t>(arguments_.left.rows)},
        As<int64_t>(products_));
    Read(products_, &product_->products, sizeof(product_->products));
    if (status_.ok() && product_->products > kMostProducts) {
      status_ = absl::FailedPreconditionError(
          fmt::format("{} products are more than the {} that cuSPARSE is trusted with",
                      product_->products, kMostProducts));
    }
  }

  void Read(Buffer& from, void* to, size_t bytes) {
    if (!status_.ok()) return;
    Run(cudaMemcpyAsync(to, from.data(), bytes, cudaMemcpyDeviceToHost, stream_), "reading counts");
    Run(cudaStreamSynchronize(stream_), "counting products");
  }

  SparseMatrix Describe(const CsrView& csr, const void* values, Buffer& offsets) {
    offsets = Allocate<int32_t>(csr.rows + 1);
    if (!status_.ok()) return nullptr;
    Run(NarrowOffsets(stream_, csr.row_offsets.data(), As<int32_t>(offsets), csr.rows + 1),
        "narrowing row offsets");
    return Describe(csr.rows, csr.cols, csr.nnz(), As<int32_t>(offsets), csr.column_indices.data(),
                    values);
  }

  SparseMatrix Describe(int64_t rows, int64_t cols, int64_t nnz, int32_t* offsets,
                        const int32_t* columns, const void* values) {
    cusparseSpMatDescr_t matrix = nullptr;
    if (status_.ok()) {
      Run(OpenCusparse()->CreateCsr(&matrix, rows, cols, nnz, offsets,
                                    const_cast<int32_t*>(columns), const_cast<void*>(values),
                                    CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                                    CUSPARSE_INDEX_BASE_ZERO, TypeOf(problem_)),
          "describing a matrix");
    }
    return SparseMatrix(matrix);
  }

  void Multiply(cusparseSpGEMMAlg_t algorithm) {
    const Cusparse& library = *OpenCusparse();
    const absl::StatusOr<cusparseHandle_t> handle = CusparseHandle(context_.stream);
    status_.Update(handle.status());
    s_ = Describe(arguments_.left, arguments_.left_values, s_offsets_);
    t_ = Describe(arguments_.right, arguments_.right_values, t_offsets_);
    c_ = Describe(arguments_.left.rows, arguments_.right.cols, 0,
                  As<int32_t>(product_->row_offsets), nullptr, nullptr);
    cusparseSpGEMMDescr_t plan = nullptr;
    if (status_.ok()) Run(library.SpGEMM_createDescr(&plan), "planning");
    plan_.reset(plan);
    if (!status_.ok()) return;
    constexpr double kOne64 = 1, kZero64 = 0;
    constexpr float kOne32 = 1, kZero32 = 0;
    const bool wide = problem_.type == ElementType::kF64;
    const void* const one = wide ? static_cast<const void*>(&kOne64) : &kOne32;
    const void* const zero = wide ? static_cast<const void*>(&kZero64) : &kZero32;
    const auto with = [&](auto function, auto... rest) {
      return function(*handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE,
                      one, s_.get(), t_.get(), zero, c_.get(), TypeOf(problem_), algorithm,
                      plan_.get(), rest...);
    };
    size_t bytes = 0;
    Run(with(library.SpGEMM_workEstimation, &bytes, nullptr), "asking for the estimate's memory");
    first_ = AllocateBytes(bytes);
    if (status_.ok()) {
      Run(with(library.SpGEMM_workEstimation, &bytes, first_.mutable_data()), "estimating");
    }
    if (!status_.ok()) return;
    if (algorithm == CUSPARSE_SPGEMM_ALG1) {
      Run(with(library.SpGEMM_compute, &bytes, nullptr), "asking for the product's memory");
    } else {
      size_t estimate_bytes = 0;
      constexpr float kWhole = 1;
      Run(with(library.SpGEMM_estimateMemory, kWhole, &estimate_bytes, nullptr, nullptr),
          "asking for the estimate's memory");
      estimate_ = AllocateBytes(estimate_bytes);
      if (!status_.ok()) return;
      Run(with(library.SpGEMM_estimateMemory, kWhole, &estimate_bytes, estimate_.mutable_data(),
               &bytes),
          "estimating memory");
      Run(cudaStreamSynchronize(stream_), "estimating memory");
    }
    second_ = AllocateBytes(bytes);
    if (status_.ok()) {
      Run(with(library.SpGEMM_compute, &bytes, second_.mutable_data()), "computing");
    }
    int64_t rows = 0, cols = 0, nnz = 0;
    if (status_.ok()) Run(library.SpMatGetSize(c_.get(), &rows, &cols, &nnz), "counting");
    if (status_.ok() && (nnz <= 0 || nnz > product_->products)) {
      status_ = absl::FailedPreconditionError(
          fmt::format("cuSPARSE makes {} entries of {} products", nnz, product_->products));
    }
    product_->columns = Allocate<int32_t>(status_.ok() ? nnz : 0);
    product_->values =
        AllocateBytes(status_.ok() ? static_cast<size_t>(nnz) * SizeOf(problem_.type) : 0);
    if (!status_.ok()) return;
    Run(library.CsrSetPointers(c_.get(), product_->row_offsets.mutable_data(),
                               product_->columns.mutable_data(), product_->values.mutable_data()),
        "placing C");
    if (status_.ok()) Run(with(library.SpGEMM_copy), "writing C");
    nnz_ = nnz;
  }

  void Check() {
    check_ = AllocateBytes(sizeof(ProductCheck));
    if (!status_.ok()) return;
    // What is between the rows must be all that there is.
    int32_t end = 0;
    Run(CheckProduct(stream_, product_->c, As<int64_t>(row_bounds_), nnz_,
                     As<ProductCheck>(check_)),
        "checking C");
    Run(cudaMemcpyAsync(&end, product_->c.row_offsets + product_->c.rows, sizeof(end),
                        cudaMemcpyDeviceToHost, stream_),
        "checking C");
    Read(check_, &product_->check, sizeof(ProductCheck));
    if (status_.ok() && (product_->check.wrong > 0 || end != nnz_)) {
      status_ = absl::FailedPreconditionError(
          fmt::format("cuSPARSE's result, of {} entries, cannot be right", nnz_));
    }
  }

  const Context& context_;
  const Problem& problem_;
  const SpgemmArguments& arguments_;
  MemorySource& memory_;
  const cudaStream_t stream_;
  absl::Status status_;
  const std::shared_ptr<Product> product_ = std::make_shared<Product>();
  int64_t nnz_ = 0;
  // What is queued uses them until it is waited for, also after an error.
  Buffer row_bounds_, products_, check_, s_offsets_, t_offsets_, first_, estimate_, second_;
  SparseMatrix s_, t_, c_;
  Plan plan_;
};

template <cusparseSpGEMMAlg_t kAlgorithm>
absl::StatusOr<std::shared_ptr<void>> Prepare(const Context& context, const Problem& problem,
                                              const SpgemmArguments& arguments,
                                              MemorySource& memory) {
  const CsrView &s = arguments.left, &t = arguments.right;
  if (s.rows > kMostRows || t.rows > kMostRows ||
      std::max(s.nnz(), t.nnz()) > std::numeric_limits<int32_t>::max()) {
    return absl::FailedPreconditionError(
        fmt::format("{} x {} and {} nonzeros by {} are more than cuSPARSE is trusted with", s.rows,
                    s.cols, s.nnz(), t.nnz()));
  }
  Making making(context, problem, arguments, memory);
  absl::StatusOr<std::shared_ptr<Product>> product = making.Make(kAlgorithm);
  if (product.ok()) return *std::move(product);
  absl::Status status = Settled(context.stream, product.status());
  // Whatever it is that the library does not do, others do it.
  if (absl::IsInternal(status)) {
    return absl::FailedPreconditionError(std::string(status.message()));
  }
  return status;
}

const Product& ProductOf(const Context& context) {
  return *static_cast<const Product*>(context.prepared);
}

absl::Status Analyse(const Context& context, const SpgemmArguments& /*arguments*/,
                     std::span<int64_t> row_bounds, int64_t* products) {
  const Product& product = ProductOf(context);
  const auto stream = static_cast<cudaStream_t>(context.stream);
  absl::Status status = ToStatus(cudaMemcpyAsync(products, &product.products, sizeof(*products),
                                                 cudaMemcpyHostToDevice, stream),
                                 "telling how many products there are");
  if (!status.ok()) return status;
  return ToStatus(CountRows(stream, product.c, {0, product.c.rows}, row_bounds.data()),
                  "counting rows");
}

absl::Status Numeric(const Context& context, const Problem& /*problem*/,
                     const SpgemmArguments& /*arguments*/, RowRange range,
                     std::span<const int64_t> row_begin, int32_t* column_indices, void* values,
                     std::span<int64_t> row_nnz) {
  const Product& product = ProductOf(context);
  return ToStatus(
      CopyProductRows(static_cast<cudaStream_t>(context.stream), product.c, product.check.longest,
                      range, row_begin.data(), column_indices, values, row_nnz.data()),
      "copying rows");
}

template <cusparseSpGEMMAlg_t kAlgorithm>
SpgemmKernel Kernel(std::string_view name) {
  return {.name = name,
          .device = DeviceKind::kCuda,
          .deterministic = false,
          .supports = IsPlainSpgemm,
          .workspace = NoSpgemmWorkspace,
          .analyse = Analyse,
          .symbolic = BoundsAreExact,
          .numeric = Numeric,
          .prepare = Prepare<kAlgorithm>,
          .from_library = true};
}

}  // namespace

std::span<const SpgemmKernel> CusparseSpgemm() {
  static const std::vector<SpgemmKernel> kernels = [] {
    std::vector<SpgemmKernel> list;
    if (OpenCusparse() != nullptr) {
      list = {Kernel<CUSPARSE_SPGEMM_ALG1>("cuda.cusparse.spgemm_alg1"),
              Kernel<CUSPARSE_SPGEMM_ALG2>("cuda.cusparse.spgemm_alg2")};
    }
    return list;
  }();
  return kernels;
}

}  // namespace sparsed::cuda
