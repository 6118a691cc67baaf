// SDDMM calls.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "engine/execution/dense_call.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

class SddmmCall final : public DenseCall {
 public:
  using DenseCall::DenseCall;

  static std::vector<std::string> HeldNames(const SddmmSpec& spec) {
    return {spec.a.held, spec.b.held};
  }

  absl::Status Set(const SddmmSpec& spec) {
    const Pattern& pattern = *matrix_->pattern();
    unscaled_ = spec.unscaled;
    if (absl::Status status = AddOperand("A", spec.tenant, spec.a, pattern.rows(), -1);
        !status.ok())
      return status;
    const int64_t k = operands_[0].shape.cols;
    if (absl::Status status = AddOperand("B", spec.tenant, spec.b, pattern.cols(), k); !status.ok())
      return status;
    const absl::Status set =
        SetResult(spec.tenant, spec.result_held, {pattern.nnz(), 1, 1, matrix_->type()});
    return set.ok() ? MayFit(/*new_result=*/true) : set;
  }

 private:
  Loader ToLoad() const override {
    std::vector<Loader> loaders = {DenseCall::ToLoad()};
    if (matrix_->caller_order() != nullptr) loaders.push_back(LoaderOf(matrix_->caller_order()));
    return LoaderOf(std::move(loaders));
  }

  /// The values one after the other, as kernels write them: a held destination may have gaps.
  DenseShape WithoutGaps() const { return {result_shape_.rows, 1, 1, result_shape_.type}; }

  /// Kernels write canonical CSR order; a caller who uploaded in another order gets that one back.
  absl::StatusOr<Array> InCallersOrder(Array canonical) {
    if (matrix_->caller_order() == nullptr) return canonical;
    absl::StatusOr<Array> order = matrix_->caller_order()->Get();
    if (!order.ok()) return order.status();
    absl::StatusOr<Array> result = NewResult("values", WithoutGaps());
    if (!result.ok()) return result.status();
    VisitBits(canonical.type, [&]<typename Bits>(Bits) {
      const auto positions = order->As<int64_t>();
      const auto from = std::as_const(canonical).As<Bits>();
      const auto to = result->MutableAs<Bits>();
      for (size_t i = 0; i < from.size(); ++i) to[positions[i]] = from[i];
    });
    return result;
  }

  absl::Status RunOnCpu(Lane& lane) override {
    const int64_t k = operands_[0].shape.cols;
    const Problem asked = Asked(k, DeviceKind::kCpu);
    absl::StatusOr<Resolved<SddmmKernel>> plan = Resolve(*impl_, matrix_, asked, SddmmKernels());
    if (!plan.ok()) return plan.status();
    Array values;
    if (!unscaled_) {
      absl::StatusOr<Array> placed =
          matrix_->ValuesIn(*plan->layout, impl_->budget.Source(MemoryUse::kLayouts), lane.threads);
      if (!placed.ok()) return placed.status();
      values = *std::move(placed);
    }
    absl::StatusOr<Array> a = OnHost(operands_[0]);
    if (!a.ok()) return a.status();
    absl::StatusOr<Array> b = OnHost(operands_[1]);
    if (!b.ok()) return b.status();
    absl::StatusOr<Array> result = NewResult("values", WithoutGaps());
    if (!result.ok()) return result.status();
    const size_t workspace = plan->kernel->workspace(plan->problem, *plan->layout, lane.threads);
    if (absl::Status status = Grow(lane.workspace, workspace, host_memory()); !status.ok())
      return status;

    const SddmmArguments arguments{*plan->layout, unscaled_ ? nullptr : values.buffer.data(),
                                   View(*a, operands_[0].shape), View(*b, operands_[1].shape),
                                   result->buffer.mutable_data()};
    const Context context{
        lane.threads, {lane.workspace.mutable_data(), lane.workspace.size()}, token().flag()};
    const auto begin = Clock::now();
    absl::Status status = plan->kernel->run(context, plan->problem, arguments);
    end_.timings.kernel_ns = NanosecondsSince(begin);
    if (!status.ok()) {
      // Stopped: what it did of the operations, nobody knows.
      scheduler().AddBusy(device(), end_.timings.kernel_ns);
      return status;
    }
    Ran(asked, *plan->kernel);
    return SendInOrder(*std::move(result), plan->text);
  }

  /// From canonical order in host memory to where it is wanted.
  absl::Status SendInOrder(Array canonical, const std::string& plan) {
    absl::StatusOr<Array> ordered = InCallersOrder(std::move(canonical));
    if (!ordered.ok()) return ordered.status();
    if (result_shape_.leading_dimension > 1) {
      absl::StatusOr<Array> spread = NewResult("values", result_shape_);
      if (!spread.ok()) return spread.status();
      CopyRows(*ordered, WithoutGaps(), *spread, result_shape_);
      ordered = *std::move(spread);
    }
    SendBegin(plan, "values");
    return SendResult(*std::move(ordered));
  }

  absl::Status RunOnDevice(DeviceLane& gpu) override {
    const int64_t k = operands_[0].shape.cols;
    const Problem asked = Asked(k, DeviceKind::kCuda);
    absl::StatusOr<Resolved<SddmmKernel>> plan = Resolve(*impl_, matrix_, asked, SddmmKernels());
    if (!plan.ok()) return plan.status();
    const auto begin = Clock::now();
    absl::StatusOr<OnDeviceSparse> s = PlaceSparse(plan->layout, !unscaled_);
    if (!s.ok()) return s.status();
    absl::StatusOr<DenseOnDevice> a = OnDevice(operands_[0], gpu);
    if (!a.ok()) return a.status();
    absl::StatusOr<DenseOnDevice> b = OnDevice(operands_[1], gpu);
    if (!b.ok()) return b.status();
    absl::StatusOr<Array> result = AllocateArray(
        gpu_device().budget().Source(keep_result_ ? MemoryUse::kBuffers : MemoryUse::kRequests),
        "values", matrix_->type(), result_shape_.rows);
    if (!result.ok()) return result.status();
    // A width that vectors divide is faster; zeros add nothing to dot products.
    Problem problem = plan->problem;
    problem.k = WidthOnDevice(*a, *b);
    if (!plan->kernel->supports(problem, *plan->layout)) problem = plan->problem;
    const auto view = [&](const DenseOnDevice& dense) {
      return ConstDense{dense.array->buffer.data(), dense.shape.rows, problem.k,
                        dense.shape.leading_dimension};
    };
    const SddmmArguments arguments{*s->layout,
                                   s->values == nullptr ? nullptr : s->values->buffer.data(),
                                   view(*a), view(*b), result->buffer.mutable_data()};
    const absl::StatusOr<Context> context =
        DeviceContext(gpu, *plan->kernel, s->layout, problem, arguments);
    if (!context.ok()) return context.status();
    end_.timings.to_device_ns = NanosecondsSince(begin);
    absl::Status status =
        TimedOnDevice(gpu, [&] { return plan->kernel->run(*context, problem, arguments); });
    if (!status.ok()) return status;
    Ran(asked, *plan->kernel);
    const auto computed = Clock::now();
    if (matrix_->caller_order() != nullptr || result_shape_.leading_dimension > 1) {
      // Another order, or gaps: the host sees to it.
      absl::StatusOr<Array> host =
          gpu_device().ToHost(*result, impl_->budget.Source(MemoryUse::kRequests));
      status = host.ok() ? SendInOrder(*std::move(host), plan->text) : host.status();
    } else {
      SendBegin(plan->text, "values");
      status =
          SendDeviceResult({std::make_shared<const Array>(*std::move(result)), result_shape_}, gpu);
    }
    end_.timings.from_device_ns = NanosecondsSince(computed);
    return status;
  }

  absl::Status RunInSlabs(DeviceLane& /*gpu*/) override {
    return absl::UnimplementedError("what does not fit runs on the CPU");
  }

  Problem Asked(int64_t k, DeviceKind device) const override {
    return {Operation::kSddmm, false, matrix_->type(), k, device};
  }

  void Ran(const Problem& asked, const SddmmKernel& kernel) {
    const auto nnz = static_cast<double>(matrix_->pattern()->nnz());
    scheduler().AddBusy(device(), end_.timings.kernel_ns);
    impl_->Ran(device(), asked.operation, kernel.name, end_.timings.kernel_ns,
               nnz * (2.0 * static_cast<double>(asked.k) + 1), MustMove(asked));
  }

  bool unscaled_ = false;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Call>> BeginSddmm(std::shared_ptr<Executor::Impl> impl,
                                                 SddmmSpec spec, std::shared_ptr<ResultSink> sink) {
  return BeginDense<SddmmCall>(std::move(impl), spec, std::move(sink));
}

}  // namespace sparsed::engine
