// SpMM calls.
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

/// Columns: narrower slabs would read S too often.
constexpr int64_t kLeastSlab = 8;

class SpmmCall final : public DenseCall {
 public:
  using DenseCall::DenseCall;

  static std::vector<std::string> HeldNames(const SpmmSpec& spec) {
    return {spec.b.held, spec.accumulate ? spec.accumulate->held : ""};
  }

  absl::Status Set(const SpmmSpec& spec) {
    const Pattern& pattern = *matrix_->pattern();
    transpose_ = spec.transpose;
    alpha_ = spec.alpha;
    beta_ = spec.beta;
    allow_tf32_ = spec.allow_tf32;
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
    if (beta_ == 0) return MayFit(/*new_result=*/true);
    if (!spec.accumulate.has_value()) {
      return absl::InvalidArgumentError(
          fmt::format("beta is {}, but there is no operand to accumulate to", beta_));
    }
    const absl::Status added = AddOperand("C", spec.tenant, *spec.accumulate, out_rows, k);
    return added.ok() ? MayFit(/*new_result=*/false) : added;
  }

 private:
  /// The result's memory on the host, with C's old value in it if beta asks for it.
  absl::StatusOr<Array> PrepareResult() {
    if (beta_ == 0) return NewResult("dense", result_shape_);
    Operand& accumulate = operands_[1];
    absl::StatusOr<Array> old = OnHost(accumulate);
    if (!old.ok()) return old.status();
    // A streamed C of the right shape is ours alone: it becomes the result. No other attempt
    // follows that of the CPU and would add to it again.
    if (accumulate.streamed && !keep_result_ &&
        accumulate.shape.leading_dimension == result_shape_.leading_dimension) {
      return old;
    }
    absl::StatusOr<Array> result = NewResult("dense", result_shape_);
    if (result.ok()) CopyRows(*old, accumulate.shape, *result, result_shape_);
    return result;
  }

  absl::Status RunOnCpu(Lane& lane) override {
    const int64_t k = operands_[0].shape.cols;
    const Problem asked = Asked(k, DeviceKind::kCpu);
    absl::StatusOr<Resolved<SpmmKernel>> plan = Resolve(*impl_, matrix_, asked, SpmmKernels());
    if (!plan.ok()) return plan.status();
    absl::StatusOr<Array> values =
        matrix_->ValuesIn(*plan->layout, impl_->budget.Source(MemoryUse::kLayouts), lane.threads);
    if (!values.ok()) return values.status();
    absl::StatusOr<Array> b = OnHost(operands_[0]);
    if (!b.ok()) return b.status();
    absl::StatusOr<Array> result = PrepareResult();
    if (!result.ok()) return result.status();
    const size_t workspace = plan->kernel->workspace(plan->problem, *plan->layout, lane.threads);
    if (absl::Status status = Grow(lane.workspace, workspace, host_memory()); !status.ok())
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
    absl::Status status = plan->kernel->run(context, plan->problem, arguments);
    end_.timings.kernel_ns = NanosecondsSince(begin);
    if (!status.ok()) {
      // Stopped: what it did of the operations, nobody knows.
      scheduler().AddBusy(device(), end_.timings.kernel_ns);
      return status;
    }
    Ran(asked, *plan->kernel);
    SendBegin(plan->text, "dense");
    return SendResult(*std::move(result));
  }

  absl::Status RunOnDevice(DeviceLane& gpu) override {
    const int64_t k = operands_[0].shape.cols;
    const Problem asked = Asked(k, DeviceKind::kCuda);
    absl::StatusOr<Resolved<SpmmKernel>> plan = Resolve(*impl_, matrix_, asked, SpmmKernels());
    if (!plan.ok()) return plan.status();
    const auto begin = Clock::now();
    absl::StatusOr<OnDeviceSparse> s = PlaceSparse(plan->layout, /*with_values=*/true);
    if (!s.ok()) return s.status();
    absl::StatusOr<DenseOnDevice> b = OnDevice(operands_[0], gpu);
    if (!b.ok()) return b.status();
    absl::StatusOr<DenseOnDevice> result = PrepareDeviceResult(gpu);
    if (!result.ok()) return result.status();
    // A width that vectors divide is faster, of which the last columns are zeros.
    Problem problem = WithWidth(plan->problem, WidthOnDevice(*b, *result));
    if (!plan->kernel->supports(problem, *plan->layout)) problem = plan->problem;
    Array c = *result->array;
    const SpmmArguments arguments{
        *s->layout,
        s->values->buffer.data(),
        {b->array->buffer.data(), b->shape.rows, problem.k, b->shape.leading_dimension},
        {c.buffer.mutable_data(), result->shape.rows, problem.k, result->shape.leading_dimension},
        alpha_,
        beta_};
    const absl::StatusOr<Context> context =
        DeviceContext(gpu, *plan->kernel, s->layout, problem, arguments);
    if (!context.ok()) return context.status();
    end_.timings.to_device_ns = NanosecondsSince(begin);
    absl::Status status = TimedOnDevice(
        gpu, [&] { return plan->kernel->run(*context, problem, arguments); },
        [&] { return ClearGap(*result, gpu); });
    if (!status.ok()) return status;
    Ran(asked, *plan->kernel);
    const auto computed = Clock::now();
    SendBegin(plan->text, "dense");
    status = SendDeviceResult(*std::move(result), gpu);
    end_.timings.from_device_ns = NanosecondsSince(computed);
    return status;
  }

  /// Slabs of K, as wide as the device has room for: a slab's operand goes up while the one before
  /// is multiplied, and its result comes down meanwhile.
  absl::Status RunInSlabs(DeviceLane& gpu) override {
    const int64_t k = operands_[0].shape.cols;
    const Problem asked = Asked(k, DeviceKind::kCuda);
    absl::StatusOr<Resolved<SpmmKernel>> plan = Resolve(*impl_, matrix_, asked, SpmmKernels());
    if (!plan.ok()) return plan.status();
    const auto began = Clock::now();
    absl::StatusOr<OnDeviceSparse> s = PlaceSparse(plan->layout, /*with_values=*/true);
    if (!s.ok()) return s.status();
    absl::StatusOr<Array> b = OnHost(operands_[0]);
    if (!b.ok()) return b.status();
    // C's old value stays as it is, for the CPU if a slab fails.
    absl::StatusOr<Array> old;
    if (beta_ != 0) {
      old = OnHost(operands_[1]);
      if (!old.ok()) return old.status();
    }
    absl::StatusOr<Array> result = NewResult("dense", result_shape_);
    if (!result.ok()) return result.status();

    struct Slab {
      Array b, c;
      int64_t first = 0, width = 0;  // columns; width 0: nothing in flight
    };
    std::array<Slab, 2> slabs;
    MemorySource& memory = gpu_device().budget().Source(MemoryUse::kRequests);
    int64_t width = (k + 1) / 2;
    const SpmmKernel* kernel = plan->kernel;
    absl::Status reserved = absl::ResourceExhaustedError("");
    for (; absl::IsResourceExhausted(reserved) && width >= kLeastSlab; width = (width + 1) / 2) {
      for (Slab& slab : slabs) slab = Slab();
      // The last slab may be narrower, and may need more workspace.
      const int64_t rest = k % width == 0 ? width : k % width;
      kernel = Serving(plan->problem, width, rest, *plan->layout, plan->kernel);
      if (kernel == nullptr) return absl::UnimplementedError("no kernel for slabs");
      reserved = Grow(gpu.workspace,
                      std::max(kernel->workspace(WithWidth(plan->problem, width), *s->layout, 1),
                               kernel->workspace(WithWidth(plan->problem, rest), *s->layout, 1)),
                      device_memory());
      for (Slab& slab : slabs) {
        for (auto [array, rows] : {std::pair(&slab.b, operands_[0].shape.rows),
                                   std::pair(&slab.c, result_shape_.rows)}) {
          if (!reserved.ok()) continue;
          absl::StatusOr<Array> there =
              AllocateArray(memory, "slab", matrix_->type(), rows * width);
          reserved = there.status();
          if (there.ok()) *array = *std::move(there);
        }
      }
      if (reserved.ok()) break;
    }
    if (!reserved.ok()) return reserved;

    Device& device = gpu_device();
    const size_t size = SizeOf(matrix_->type());
    const auto slab_rows = [size](const DenseShape& host, int64_t columns) {
      const size_t row_bytes = static_cast<size_t>(columns) * size;
      return PitchedRows{.rows = static_cast<size_t>(host.rows),
                         .row_bytes = row_bytes,
                         .host_pitch = static_cast<size_t>(host.leading_dimension) * size,
                         .device_pitch = row_bytes};
    };
    const auto bring_down = [&](size_t turn) {
      Slab& slab = slabs[turn];
      if (slab.width == 0) return absl::OkStatus();
      const int64_t columns = std::exchange(slab.width, 0);
      return device.CopyRowsOut(gpu.streams(turn),
                                result->buffer.mutable_data() + slab.first * size,
                                slab.c.buffer.data(), slab_rows(result_shape_, columns));
    };
    absl::Status status;
    size_t turn = 0;
    for (int64_t first = 0; first < k && status.ok(); first += width, turn ^= 1) {
      if (token().stopped()) status = token().status();
      Slab& slab = slabs[turn];
      slab.first = first;
      const int64_t columns = std::min(width, k - first);
      cuda::Stream& stream = gpu.streams(turn);
      if (status.ok()) {
        status =
            device.CopyRowsIn(stream, slab.b.buffer.mutable_data(), b->buffer.data() + first * size,
                              slab_rows(operands_[0].shape, columns));
      }
      if (status.ok() && beta_ != 0) {
        status = device.CopyRowsIn(stream, slab.c.buffer.mutable_data(),
                                   old->buffer.data() + first * size,
                                   slab_rows(operands_[1].shape, columns));
      }
      if (status.ok()) {
        // One kernel at a time: they share the workspace.
        status = gpu.end.Hold(stream);
      }
      if (status.ok()) {
        Context context = DeviceContext(gpu);
        context.stream = stream.handle();
        const SpmmArguments arguments{
            *s->layout,
            s->values->buffer.data(),
            {slab.b.buffer.data(), operands_[0].shape.rows, columns, columns},
            {slab.c.buffer.mutable_data(), result_shape_.rows, columns, columns},
            alpha_,
            beta_};
        status = kernel->run(context, WithWidth(plan->problem, columns), arguments);
      }
      if (status.ok()) status = gpu.end.Record(stream);
      slab.width = columns;
      if (status.ok()) status = bring_down(turn ^ 1);
    }
    if (status.ok()) status = bring_down(turn ^ 1);
    for (size_t i = 0; i < 2; ++i) {
      const absl::Status done = device.Settle(gpu.streams(i));
      if (status.ok()) status = done;
    }
    if (!status.ok()) return status;
    // Copies and kernels overlap: the time is of all together.
    end_.timings.kernel_ns = NanosecondsSince(began);
    Ran(asked, *kernel);
    SendBegin(fmt::format("{}, in slabs of {} columns", plan->text, width), "dense");
    return SendResult(*std::move(result));
  }

  Problem Asked(int64_t k, DeviceKind device) const override {
    const bool f32 = matrix_->type() == ElementType::kF32;
    return {Operation::kSpmm, transpose_, matrix_->type(), k, device, allow_tf32_ && f32};
  }
  static Problem WithWidth(Problem problem, int64_t k) {
    problem.k = k;
    return problem;
  }

  /// `wished`, or the first of the layout's kernels that serves both widths.
  static const SpmmKernel* Serving(const Problem& problem, int64_t width, int64_t rest,
                                   const Layout& layout, const SpmmKernel* wished) {
    const auto serves = [&](const SpmmKernel& kernel) {
      return kernel.supports(WithWidth(problem, width), layout) &&
             kernel.supports(WithWidth(problem, rest), layout);
    };
    if (serves(*wished)) return wished;
    for (const SpmmKernel& kernel : SpmmKernels()) {
      if (kernel.device == problem.device && kernel.layout_kind == layout.kind && serves(kernel)) {
        return &kernel;
      }
    }
    return nullptr;
  }

  void Ran(const Problem& asked, const SpmmKernel& kernel) {
    const auto k = static_cast<double>(asked.k);
    scheduler().AddBusy(device(), end_.timings.kernel_ns);
    // With beta, C's old value is read besides.
    const double old = beta_ == 0 ? 0
                                  : static_cast<double>(result_shape_.rows) * k *
                                        static_cast<double>(SizeOf(asked.type));
    impl_->Ran(device(), asked.operation, kernel.name, end_.timings.kernel_ns,
               2.0 * static_cast<double>(matrix_->pattern()->nnz()) * k, MustMove(asked) + old);
  }

  /// As PrepareResult, on the device. C's old value stays as it is: a kernel that fails may have
  /// written, and then the product is computed elsewhere.
  absl::StatusOr<DenseOnDevice> PrepareDeviceResult(DeviceLane& gpu) {
    if (beta_ == 0) return NewDeviceResult("dense", gpu);
    Operand& accumulate = operands_[1];
    absl::StatusOr<DenseOnDevice> old = OnDevice(accumulate, gpu);
    if (!old.ok()) return old.status();
    absl::StatusOr<DenseOnDevice> result = NewDeviceResult("dense", gpu);
    if (!result.ok()) return result;
    const size_t size = SizeOf(result_shape_.type);
    Array to = *result->array;
    absl::Status status = gpu.stream.CopyRows(
        to.buffer.mutable_data(), result->shape.leading_dimension * size, old->array->buffer.data(),
        old->shape.leading_dimension * size, result_shape_.cols * size, result_shape_.rows);
    // The lane's stream has read it before whoever owns it lets it go, also where it failed midway.
    const absl::Status done = gpu_device().Settle(gpu.stream);
    if (status.ok()) status = done;
    if (!status.ok()) return status;
    return result;
  }

  bool transpose_ = false;
  double alpha_ = 1;
  double beta_ = 0;
  bool allow_tf32_ = false;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Call>> BeginSpmm(std::shared_ptr<Executor::Impl> impl, SpmmSpec spec,
                                                std::shared_ptr<ResultSink> sink) {
  return BeginDense<SpmmCall>(std::move(impl), spec, std::move(sink));
}

}  // namespace sparsed::engine
