// SpMM and SDDMM calls: operands in, one dense result out.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "engine/execution/executor_impl.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t Nanoseconds(Clock::duration duration) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

/// A dense operand: in the stream (then it is put together here), or held.
struct Operand {
  DenseShape shape;
  bool streamed = false;
  uint32_t stream_array = 0;
  ArrayAssembler assembler;
  std::shared_ptr<LazyArray> held;

  absl::StatusOr<Array> Get() { return streamed ? assembler.Finish() : held->Get(); }
};

ConstDense View(const Array& array, const DenseShape& shape) {
  return {array.buffer.data(), shape.rows, shape.cols, shape.leading_dimension};
}

/// Zeros the gaps between the rows: what was in that memory before is nobody's business.
void ClearGaps(Array& array, const DenseShape& shape) {
  const size_t size = SizeOf(shape.type);
  for (int64_t row = 0; row + 1 < shape.rows; ++row) {
    std::memset(array.buffer.mutable_data() + (row * shape.leading_dimension + shape.cols) * size,
                0, (shape.leading_dimension - shape.cols) * size);
  }
}

void CopyRows(const Array& from, const DenseShape& from_shape, Array& to,
              const DenseShape& to_shape) {
  const size_t size = SizeOf(to_shape.type);
  for (int64_t row = 0; row < to_shape.rows; ++row) {
    std::memcpy(to.buffer.mutable_data() + row * to_shape.leading_dimension * size,
                from.buffer.data() + row * from_shape.leading_dimension * size,
                to_shape.cols * size);
  }
}

/// What SpMM and SDDMM have in common: operands, a result here or there, one kernel run.
class DenseCall : public Job {
 public:
  DenseCall(std::shared_ptr<Executor::Impl> impl, std::string tenant,
            std::shared_ptr<ResultSink> sink, MatrixLease matrix)
      : Job(impl->scheduler, std::move(tenant), std::move(sink)),
        impl_(std::move(impl)),
        matrix_(std::move(matrix)) {
    end_.version = matrix_->version();
  }

  absl::StatusOr<std::byte*> Claim(uint32_t array, uint64_t offset, uint64_t size) override {
    for (Operand& operand : operands_) {
      if (operand.streamed && operand.stream_array == array)
        return operand.assembler.Claim(offset, size);
    }
    return absl::InvalidArgumentError(
        fmt::format("no operand of the request is announced as array {}", array));
  }

  bool complete() const override {
    return std::all_of(operands_.begin(), operands_.end(),
                       [](const Operand& o) { return !o.streamed || o.assembler.complete(); });
  }

 protected:
  void Drop() override {
    destination_ = DenseWrite();
    matrix_.reset();
    held_operands_.clear();
  }

  /// Resolves one operand and reserves its memory. `cols` is -1 where the operand itself defines
  /// it.
  absl::Status AddOperand(std::string_view what, const std::string& tenant, const OperandSpec& spec,
                          int64_t rows, int64_t cols) {
    Operand operand;
    if (spec.held.empty()) {
      if (!spec.shape.has_value()) {
        return absl::InvalidArgumentError(
            fmt::format("operand {} needs a shape or the name of a held matrix", what));
      }
      operand.shape = *spec.shape;
      operand.streamed = true;
      operand.stream_array = spec.stream_array;
      for (const Operand& other : operands_) {
        if (other.streamed && other.stream_array == spec.stream_array) {
          return absl::InvalidArgumentError(fmt::format(
              "two operands are announced as array {} of the stream", spec.stream_array));
        }
      }
    } else {
      absl::StatusOr<HeldDenseLease> held = impl_->dense.Find(tenant, spec.held);
      if (!held.ok()) return held.status();
      operand.shape = (*held)->shape;
      operand.held = (*held)->elements;
      held_operands_.push_back(*held);
      if (spec.shape.has_value() &&
          (spec.shape->rows != operand.shape.rows || spec.shape->cols != operand.shape.cols ||
           spec.shape->type != operand.shape.type)) {
        return absl::InvalidArgumentError(fmt::format(
            "operand {} is announced as {} x {} {}, but the held matrix '{}' is {} x {} {}", what,
            spec.shape->rows, spec.shape->cols, Name(spec.shape->type), spec.held,
            operand.shape.rows, operand.shape.cols, Name(operand.shape.type)));
      }
    }
    if (operand.shape.leading_dimension == 0) operand.shape.leading_dimension = operand.shape.cols;
    if (absl::Status status = ValidateShape(fmt::format("operand {}", what), operand.shape);
        !status.ok())
      return status;
    if (operand.shape.type != matrix_->type()) {
      return absl::InvalidArgumentError(fmt::format("operand {} is {}, but matrix '{}' is {}", what,
                                                    Name(operand.shape.type), matrix_->name(),
                                                    Name(matrix_->type())));
    }
    if (operand.shape.rows != rows || (cols >= 0 && operand.shape.cols != cols)) {
      return absl::InvalidArgumentError(fmt::format("operand {} is {} x {}, expected {} x {}", what,
                                                    operand.shape.rows, operand.shape.cols, rows,
                                                    cols >= 0 ? fmt::to_string(cols) : "K"));
    }
    if (operand.streamed) {
      absl::StatusOr<Array> array = AllocateArray(impl_->budget.Source(MemoryUse::kRequests), what,
                                                  operand.shape.type, operand.shape.elements());
      if (!array.ok()) return array.status();
      operand.assembler = ArrayAssembler(*std::move(array));
    }
    operands_.push_back(std::move(operand));
    return absl::OkStatus();
  }

  /// Where the result goes: `result_shape_` is complete afterwards.
  absl::Status SetResult(const std::string& tenant, const std::string& held, DenseShape shape) {
    if (shape.leading_dimension == 0) shape.leading_dimension = shape.cols;
    result_shape_ = shape;
    if (held.empty()) return ValidateShape("the result", shape);
    absl::StatusOr<DenseWrite> write = impl_->dense.BeginWrite(tenant, held);
    if (!write.ok()) return write.status();
    const DenseShape& there = write->base()->shape;
    if (there.rows != shape.rows || there.cols != shape.cols || there.type != shape.type) {
      return absl::InvalidArgumentError(fmt::format(
          "the result is {} x {} {}, but the held matrix '{}' is {} x {} {}", shape.rows,
          shape.cols, Name(shape.type), held, there.rows, there.cols, Name(there.type)));
    }
    result_shape_ = there;
    destination_ = *std::move(write);
    keep_result_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<Array> NewResult(std::string_view name) {
    absl::StatusOr<Array> result = AllocateArray(
        impl_->budget.Source(keep_result_ ? MemoryUse::kBuffers : MemoryUse::kRequests), name,
        result_shape_.type, result_shape_.elements());
    if (result.ok() && result_shape_.leading_dimension > result_shape_.cols)
      ClearGaps(*result, result_shape_);
    return result;
  }

  void SendBegin(const std::string& plan, std::string_view name) {
    CallBegin begin{plan, 0, result_shape_.rows, result_shape_.cols, {}};
    if (!keep_result_)
      begin.arrays.push_back({std::string(name), result_shape_.type, result_shape_.elements()});
    sink().OnBegin(std::move(begin));
  }

  absl::Status SendResult(Array result) {
    if (keep_result_) return destination_.Publish(std::move(result));
    sink().OnArray(0, std::move(result));
    return absl::OkStatus();
  }

  /// Bytes of S that any kernel must read.
  double SparseBytes() const {
    const auto nnz = static_cast<double>(matrix_->pattern()->nnz());
    return nnz * static_cast<double>(sizeof(int32_t) + SizeOf(matrix_->type())) +
           static_cast<double>(matrix_->pattern()->rows() + 1) * sizeof(int64_t);
  }
  /// Bytes of a dense operand of which S touches at most nnz of `rows` rows.
  double TouchedBytes(int64_t rows, int64_t k) const {
    return static_cast<double>(std::min(rows, matrix_->pattern()->nnz())) * static_cast<double>(k) *
           static_cast<double>(SizeOf(matrix_->type()));
  }

  const std::shared_ptr<Executor::Impl> impl_;
  MatrixLease matrix_;
  std::vector<Operand> operands_;
  std::vector<HeldDenseLease> held_operands_;
  DenseShape result_shape_;
  DenseWrite destination_;
  bool keep_result_ = false;
};

class SpmmCall final : public DenseCall {
 public:
  using DenseCall::DenseCall;

  absl::Status Set(const SpmmSpec& spec) {
    const Pattern& pattern = *matrix_->pattern();
    transpose_ = spec.transpose;
    alpha_ = spec.alpha;
    beta_ = spec.beta;
    const int64_t in_rows = transpose_ ? pattern.rows() : pattern.cols();
    const int64_t out_rows = transpose_ ? pattern.cols() : pattern.rows();
    if (absl::Status status = AddOperand("B", spec.tenant, spec.b, in_rows, -1); !status.ok())
      return status;
    const int64_t k = operands_[0].shape.cols;
    if (absl::Status status =
            SetResult(spec.tenant, spec.result_held,
                      {out_rows, k, spec.result_leading_dimension, matrix_->type()});
        !status.ok()) {
      return status;
    }
    if (beta_ == 0) return absl::OkStatus();
    if (!spec.accumulate.has_value()) {
      return absl::InvalidArgumentError(
          fmt::format("beta is {}, but there is no operand to accumulate to", beta_));
    }
    return AddOperand("C", spec.tenant, *spec.accumulate, out_rows, k);
  }

 private:
  Next Run(Lane& lane, absl::Status* end) override {
    *end = Multiply(lane);
    return Next::kEnded;
  }

  /// The result's memory, with C's old value in it if beta asks for it.
  absl::StatusOr<Array> PrepareResult() {
    if (beta_ == 0) return NewResult("dense");
    Operand& accumulate = operands_[1];
    absl::StatusOr<Array> old = accumulate.Get();
    if (!old.ok()) return old.status();
    // A streamed C of the right shape is ours alone: it becomes the result.
    if (accumulate.streamed && !keep_result_ &&
        accumulate.shape.leading_dimension == result_shape_.leading_dimension) {
      return old;
    }
    absl::StatusOr<Array> result = NewResult("dense");
    if (result.ok()) CopyRows(*old, accumulate.shape, *result, result_shape_);
    return result;
  }

  absl::Status Multiply(Lane& lane) {
    const int64_t k = operands_[0].shape.cols;
    const Problem asked{Operation::kSpmm, transpose_, matrix_->type(), k, DeviceKind::kCpu};
    absl::StatusOr<Resolved<SpmmKernel>> plan = Resolve(*impl_, matrix_, asked, SpmmKernels());
    if (!plan.ok()) return plan.status();
    absl::StatusOr<Array> values =
        matrix_->ValuesIn(*plan->layout, impl_->budget.Source(MemoryUse::kLayouts), lane.threads);
    if (!values.ok()) return values.status();
    absl::StatusOr<Array> b = operands_[0].Get();
    if (!b.ok()) return b.status();
    absl::StatusOr<Array> result = PrepareResult();
    if (!result.ok()) return result.status();
    const size_t workspace = plan->kernel->workspace(plan->problem, *plan->layout, lane.threads);
    if (absl::Status status = EnsureWorkspace(lane, workspace, impl_->budget); !status.ok())
      return status;

    const SpmmArguments arguments{
        *plan->layout,
        values->buffer.data(),
        View(*b, operands_[0].shape),
        {result->buffer.mutable_data(), result_shape_.rows, k, result_shape_.leading_dimension},
        alpha_,
        beta_};
    const Context context{
        lane.threads, {lane.workspace.mutable_data(), lane.workspace.size()}, token().flag()};
    const auto begin = Clock::now();
    end_.timings.queue_ns = Nanoseconds(begin - submitted_);
    absl::Status status = plan->kernel->run(context, plan->problem, arguments);
    end_.timings.kernel_ns = Nanoseconds(Clock::now() - begin);
    const double flops =
        2.0 * static_cast<double>(matrix_->pattern()->nnz()) * static_cast<double>(k);
    impl_->Ran(asked, plan->kernel->name, end_.timings.kernel_ns, flops,
               SparseBytes() + TouchedBytes(operands_[0].shape.rows, k) +
                   (beta_ == 0 ? 1 : 2) *
                       static_cast<double>(result_shape_.rows * k * SizeOf(asked.type)));
    if (!status.ok()) return status;
    SendBegin(plan->text, "dense");
    return SendResult(*std::move(result));
  }

  bool transpose_ = false;
  double alpha_ = 1;
  double beta_ = 0;
};

class SddmmCall final : public DenseCall {
 public:
  using DenseCall::DenseCall;

  absl::Status Set(const SddmmSpec& spec) {
    const Pattern& pattern = *matrix_->pattern();
    unscaled_ = spec.unscaled;
    if (absl::Status status = AddOperand("A", spec.tenant, spec.a, pattern.rows(), -1);
        !status.ok())
      return status;
    const int64_t k = operands_[0].shape.cols;
    if (absl::Status status = AddOperand("B", spec.tenant, spec.b, pattern.cols(), k); !status.ok())
      return status;
    return SetResult(spec.tenant, spec.result_held, {pattern.nnz(), 1, 1, matrix_->type()});
  }

 private:
  Next Run(Lane& lane, absl::Status* end) override {
    *end = Multiply(lane);
    return Next::kEnded;
  }

  /// Kernels write canonical CSR order; a caller who uploaded in another order gets that one back.
  absl::StatusOr<Array> InCallersOrder(Array canonical) {
    if (matrix_->caller_order() == nullptr) return canonical;
    absl::StatusOr<Array> order = matrix_->caller_order()->Get();
    if (!order.ok()) return order.status();
    absl::StatusOr<Array> result = NewResult("values");
    if (!result.ok()) return result.status();
    const auto place = [&]<typename T>(T) {
      const auto positions = order->As<int64_t>();
      const auto from = std::as_const(canonical).As<T>();
      const auto to = result->MutableAs<T>();
      for (size_t i = 0; i < from.size(); ++i) to[positions[i]] = from[i];
    };
    if (canonical.type == ElementType::kF32) {
      place(float{});
    } else {
      place(double{});
    }
    return result;
  }

  absl::Status Multiply(Lane& lane) {
    const int64_t k = operands_[0].shape.cols;
    const Problem asked{Operation::kSddmm, false, matrix_->type(), k, DeviceKind::kCpu};
    absl::StatusOr<Resolved<SddmmKernel>> plan = Resolve(*impl_, matrix_, asked, SddmmKernels());
    if (!plan.ok()) return plan.status();
    Array values;
    if (!unscaled_) {
      absl::StatusOr<Array> placed =
          matrix_->ValuesIn(*plan->layout, impl_->budget.Source(MemoryUse::kLayouts), lane.threads);
      if (!placed.ok()) return placed.status();
      values = *std::move(placed);
    }
    absl::StatusOr<Array> a = operands_[0].Get();
    if (!a.ok()) return a.status();
    absl::StatusOr<Array> b = operands_[1].Get();
    if (!b.ok()) return b.status();
    // In the held destination's own leading dimension the nnz x 1 result may have gaps; the kernel
    // writes without.
    const DenseShape destination_shape =
        std::exchange(result_shape_, {result_shape_.rows, 1, 1, result_shape_.type});
    absl::StatusOr<Array> result = NewResult("values");
    if (!result.ok()) return result.status();
    const size_t workspace = plan->kernel->workspace(plan->problem, *plan->layout, lane.threads);
    if (absl::Status status = EnsureWorkspace(lane, workspace, impl_->budget); !status.ok())
      return status;

    const SddmmArguments arguments{*plan->layout, unscaled_ ? nullptr : values.buffer.data(),
                                   View(*a, operands_[0].shape), View(*b, operands_[1].shape),
                                   result->buffer.mutable_data()};
    const Context context{
        lane.threads, {lane.workspace.mutable_data(), lane.workspace.size()}, token().flag()};
    const auto begin = Clock::now();
    end_.timings.queue_ns = Nanoseconds(begin - submitted_);
    absl::Status status = plan->kernel->run(context, plan->problem, arguments);
    end_.timings.kernel_ns = Nanoseconds(Clock::now() - begin);
    const auto nnz = static_cast<double>(matrix_->pattern()->nnz());
    impl_->Ran(asked, plan->kernel->name, end_.timings.kernel_ns,
               nnz * (2.0 * static_cast<double>(k) + 1),
               SparseBytes() + TouchedBytes(operands_[0].shape.rows, k) +
                   TouchedBytes(operands_[1].shape.rows, k) +
                   nnz * static_cast<double>(SizeOf(asked.type)));
    if (!status.ok()) return status;
    absl::StatusOr<Array> ordered = InCallersOrder(*std::move(result));
    if (!ordered.ok()) return ordered.status();
    result_shape_ = destination_shape;
    if (result_shape_.leading_dimension > 1) {
      absl::StatusOr<Array> spread = NewResult("values");
      if (!spread.ok()) return spread.status();
      CopyRows(*ordered, {result_shape_.rows, 1, 1, result_shape_.type}, *spread, result_shape_);
      ordered = *std::move(spread);
    }
    SendBegin(plan->text, "values");
    return SendResult(*std::move(ordered));
  }

  bool unscaled_ = false;
};

template <typename CallType, typename Spec>
absl::StatusOr<std::shared_ptr<Call>> Begin(std::shared_ptr<Executor::Impl> impl, const Spec& spec,
                                            std::shared_ptr<ResultSink> sink) {
  absl::StatusOr<MatrixLease> matrix = impl->catalog.Find(spec.tenant, spec.matrix);
  if (!matrix.ok()) return matrix.status();
  auto call =
      std::make_shared<CallType>(std::move(impl), spec.tenant, std::move(sink), *std::move(matrix));
  if (absl::Status status = call->Set(spec); !status.ok()) return status;
  if (absl::Status status = call->Start(spec.timeout_ns); !status.ok()) return status;
  return call;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Call>> BeginSpmm(std::shared_ptr<Executor::Impl> impl, SpmmSpec spec,
                                                std::shared_ptr<ResultSink> sink) {
  return Begin<SpmmCall>(std::move(impl), spec, std::move(sink));
}

absl::StatusOr<std::shared_ptr<Call>> BeginSddmm(std::shared_ptr<Executor::Impl> impl,
                                                 SddmmSpec spec, std::shared_ptr<ResultSink> sink) {
  return Begin<SddmmCall>(std::move(impl), spec, std::move(sink));
}

}  // namespace sparsed::engine
