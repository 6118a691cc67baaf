#include "engine/execution/dense_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/execution/column_blocks.h"
#include "engine/execution/dense_product.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// A century, as for deadlines.
constexpr uint64_t kLongestTimeout = 100ull * 365 * 24 * 3600 * 1000000000;

Problem ProblemOf(const SpmmSpec& spec, ElementType type) {
  return {.operation = Operation::kSpmm,
          .transposed = spec.transpose,
          .type = type,
          .allow_tf32 = spec.allow_tf32 && type == ElementType::kF32};
}
Problem ProblemOf(const SddmmSpec& /*spec*/, ElementType type) {
  return {.operation = Operation::kSddmm, .type = type};
}

/// Of what the result consists, for the client.
std::string_view ResultName(Operation operation) {
  return operation == Operation::kSddmm ? "values" : "dense";
}

}  // namespace

DenseCall::DenseCall(std::shared_ptr<Executor::Impl> impl, std::string tenant,
                     std::shared_ptr<ResultSink> sink, MatrixLease matrix, const Problem& problem)
    : Job(impl->scheduler, std::move(tenant), std::move(sink), DeviceId{}),
      impl_(std::move(impl)),
      owner_(impl_->budget.OwnerOf(this->tenant())),
      matrix_(std::move(matrix)),
      problem_(problem),
      operands_(*impl_, owner_) {
  end_.version = matrix_->version();
}

absl::StatusOr<ClaimedBytes> DenseCall::Claim(uint32_t array, uint64_t offset, uint64_t size) {
  return operands_.Claim(array, offset, size);
}

bool DenseCall::complete() const { return operands_.complete(); }

std::string DenseCall::Missing() const {
  std::string missing = operands_.Missing();
  return missing.empty() ? Job::Missing() : missing;
}

size_t DenseCall::announced() const { return operands_.announced(); }

size_t DenseCall::counted() const { return operands_.counted(); }

void DenseCall::Drop() {
  whole_.reset();
  queue_ = {};
  result_.Drop();
  plan_ = {};
  matrix_.reset();
  // Who hears of the end may need their memory for the next. Before it was submitted, somebody may
  // be writing into them.
  if (submitted()) operands_.Clear();
}

Job::Loader DenseCall::ToLoad() const {
  std::vector<Loader> loaders = {LoaderOf(*impl_, device(), matrix_, plan_)};
  if ((own_values_ || problem_.operation == Operation::kSddmm) &&
      matrix_->caller_order() != nullptr) {
    loaders.push_back(LoaderOf(matrix_->caller_order()));
  }
  operands_.AppendLoaders(impl_->gpu(device()), loaders);
  return LoaderOf(std::move(loaders));
}

absl::Status DenseCall::Set(const SpmmSpec& spec) {
  const Pattern& pattern = *matrix_->pattern();
  alpha_ = spec.alpha;
  beta_ = spec.beta;
  queue_ = spec.queue;
  const int64_t in_rows = problem_.transposed ? pattern.rows() : pattern.cols();
  const int64_t out_rows = problem_.transposed ? pattern.cols() : pattern.rows();
  if (absl::Status status = AddOperand("B", spec.b, in_rows, -1); !status.ok()) return status;
  problem_.k = operands_[0].shape.cols;
  if (absl::Status status = SetResult(
          spec.result, {out_rows, problem_.k, spec.result_leading_dimension, matrix_->type()});
      !status.ok()) {
    return status;
  }
  if (beta_ == 0) return SetValues(spec.values);
  if (!spec.accumulate.has_value()) {
    return absl::InvalidArgumentError(
        fmt::format("beta is {}, but there is no operand to accumulate to", beta_));
  }
  const absl::Status added = AddOperand("C", *spec.accumulate, out_rows, problem_.k);
  return added.ok() ? SetValues(spec.values) : added;
}

absl::Status DenseCall::Set(const SddmmSpec& spec) {
  const Pattern& pattern = *matrix_->pattern();
  unscaled_ = spec.unscaled;
  queue_ = spec.queue;
  if (absl::Status status = AddOperand("A", spec.a, pattern.rows(), -1); !status.ok())
    return status;
  problem_.k = operands_[0].shape.cols;
  if (absl::Status status = AddOperand("B", spec.b, pattern.cols(), problem_.k); !status.ok())
    return status;
  const absl::Status set = SetResult(spec.result, {pattern.nnz(), 1, 1, matrix_->type()});
  return set.ok() ? SetValues(spec.values) : set;
}

absl::Status DenseCall::AddOperand(std::string_view what, const OperandSpec& spec, int64_t rows,
                                   int64_t cols) {
  if (absl::Status status = operands_.Add(what, spec, tenant()); !status.ok()) return status;
  const DenseShape& shape = operands_.back().shape;
  if (shape.type != matrix_->type()) {
    return absl::InvalidArgumentError(fmt::format("operand {} is {}, but matrix '{}' is {}", what,
                                                  Name(shape.type), matrix_->name(),
                                                  Name(matrix_->type())));
  }
  if (shape.rows != rows || (cols >= 0 && shape.cols != cols)) {
    return absl::InvalidArgumentError(fmt::format("operand {} is {} x {}, expected {} x {}", what,
                                                  shape.rows, shape.cols, rows,
                                                  cols >= 0 ? fmt::to_string(cols) : "K"));
  }
  return absl::OkStatus();
}

absl::Status DenseCall::CheckApart() {
  for (size_t i = 0; i < operands_.size(); ++i) {
    const bool is_old = beta_ != 0 && i == 1;
    if (absl::Status s = result_.CheckApart(operands_[i], is_old, &in_place_); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status DenseCall::SetValues(const std::optional<OperandSpec>& spec) {
  if (!spec.has_value()) return absl::OkStatus();
  if (unscaled_) {
    return absl::InvalidArgumentError("S's values are sent, but the product is unscaled");
  }
  if (absl::Status status = AddOperand("values", *spec, matrix_->pattern()->nnz(), 1);
      !status.ok()) {
    return status;
  }
  if (operands_.back().shape.leading_dimension != 1) {
    return absl::InvalidArgumentError(fmt::format(
        "operand values has leading dimension {}, expected 1: one value after the other",
        operands_.back().shape.leading_dimension));
  }
  own_values_ = true;
  return absl::OkStatus();
}

absl::Status DenseCall::SetResult(const ResultSpec& spec, DenseShape shape) {
  absl::StatusOr<DenseResult> result = DenseResult::Find(*impl_, tenant(), spec, shape);
  if (result.ok()) result_ = *std::move(result);
  return result.status();
}

absl::Status DenseCall::ChooseDevice(const std::optional<DeviceId>& given) {
  if (queue_.queue != nullptr) return TakeQueue();
  TakePlan(impl_->first_choice());
  // Where its memory is: elsewhere it would have to be copied, there and back.
  GpuBackend* const there = operands_.gpu() != nullptr ? operands_.gpu() : result_.gpu();
  if (there != nullptr) {
    if (absl::Status lost = there->status(); !lost.ok()) return lost;
    MoveTo(there->id());
    return absl::OkStatus();
  }
  const bool planned = plan_.plan != nullptr && plan_.plan->layout != nullptr;
  const absl::StatusOr<Backend*> backend = impl_->Place(
      given, planned ? plan_.plan->layout->Resident() : matrix_->pattern()->resident_csr(),
      operands_.held());
  if (!backend.ok()) return backend.status();
  MoveTo((*backend)->id());
  return absl::OkStatus();
}

absl::Status DenseCall::TakeQueue() {
  const DeviceId device = queue_.queue->device();
  GpuBackend& gpu = *impl_->gpu(device);
  const auto elsewhere = [&](std::string_view what) {
    return absl::InvalidArgumentError(fmt::format(
        "the request is in a queue of {}, but {} is in no memory of that GPU's which caller and "
        "server share",
        Name(device), what));
  };
  for (const Operand& operand : operands_) {
    if (operand.gpu() != &gpu) return elsewhere("an operand");
  }
  if (result_.gpu() != &gpu) return elsewhere("the result");
  if (absl::Status lost = gpu.status(); !lost.ok()) return lost;
  TakePlan(device.kind);
  MoveTo(device);
  return absl::OkStatus();
}

absl::Status DenseCall::MayFit() const {
  if (device().kind != DeviceKind::kCpu) return absl::OkStatus();
  // Operands may fit each, and a result is below 2^63: no overflow.
  const size_t result = beta_ == 0 && !result_.shared().has_value() ? BytesOf(result_.shape()) : 0;
  return impl_->budget.MayFit(result + operands_.streamed_bytes(), MemoryUse::kRequests, &owner_);
}

void DenseCall::TakePlan(DeviceKind device) {
  problem_.device = device;
  plan_ = matrix_->pattern()->plans().Find(SignatureOf(problem_));
}

Job::Next DenseCall::Run(WorkerSlot& slot, absl::Status* end) {
  if (whole_ != nullptr) {
    *end = CheckedOn(*slot.backend, token(), GoOn(slot));
    return whole_ != nullptr ? Next::kAgain : Next::kEnded;
  }
  absl::StatusOr<Resolved> plan =
      Resolve(*impl_, device(), matrix_, problem_, plan_, IsTrial(tenant()));
  const auto run = [&](absl::Status (DenseCall::*how)(Resolved&, WorkerSlot&)) {
    return CheckedOn(*slot.backend, token(), plan.ok() ? (this->*how)(*plan, slot) : plan.status());
  };
  if (queue_.queue != nullptr) {
    *end = run(&DenseCall::Enqueue);
    return Next::kEnded;
  }
  *end = run(&DenseCall::RunWhole);
  if (whole_ != nullptr) return Next::kAgain;
  if (device().kind == DeviceKind::kCpu) return Next::kEnded;
  const auto elsewhere = [&](const absl::Status& status) {
    return !sent_ && (absl::IsResourceExhausted(status) || absl::IsUnimplemented(status));
  };
  if (!elsewhere(*end)) return Next::kEnded;
  // Without room on the host either, what the device said stands.
  if (absl::Status moved = operands_.MoveToHost(token()); !moved.ok()) {
    if (!absl::IsResourceExhausted(moved)) *end = std::move(moved);
    return Next::kEnded;
  }
  slot.gpu->prepared.Clear();  // it may be what there is no room for
  *end = run(&DenseCall::RunInColumnBlocks);
  if (!elsewhere(*end)) return Next::kEnded;
  TakePlan(DeviceKind::kCpu);
  MoveTo(DeviceId{});
  return Next::kAgain;
}

absl::StatusOr<PlacedSparse> DenseCall::PlaceIn(const std::shared_ptr<const Layout>& layout,
                                                WorkerSlot& slot) {
  if (unscaled_ || own_values_) {
    absl::StatusOr<PlacedSparse> placed = slot.backend->Place(layout, nullptr, host_memory());
    // In a queue the values are not there yet.
    if (!placed.ok() || unscaled_ || queue_.queue != nullptr) return placed;
    absl::StatusOr<std::shared_ptr<const Array>> values = PlaceOwnValues(*placed->layout, slot);
    if (!values.ok()) return values.status();
    placed->values = *std::move(values);
    return placed;
  }
  return PlaceWithValues(*impl_, *matrix_, layout, slot, host_memory());
}

absl::StatusOr<std::shared_ptr<const Array>> DenseCall::PlaceOwnValues(const Layout& layout,
                                                                       WorkerSlot& slot) {
  Backend& backend = *slot.backend;
  MemorySource& memory = backend.MemoryFor(MemoryUse::kRequests, owner_);
  absl::StatusOr<PlacedDense> there = operands_.back().On(backend, slot, token());
  if (there.ok() && matrix_->caller_order() != nullptr) {
    const absl::StatusOr<std::shared_ptr<const Array>> order =
        backend.PlaceIndices(matrix_->caller_order());
    if (!order.ok()) return order.status();
    there = backend.Gather(*there, **order, memory, slot);
  }
  if (!there.ok()) return there.status();
  return backend.OrderValues(*there, layout, memory, slot);
}

absl::StatusOr<PlacedSparse> DenseCall::PlaceMatrix(Resolved& plan, WorkerSlot& slot) {
  absl::StatusOr<PlacedSparse> placed = PlaceIn(plan.layout, slot);
  if (!absl::IsResourceExhausted(placed.status()) || !operands_.on_host() ||
      !FallBackToPlain(*impl_, device(), matrix_, plan)) {
    return placed;
  }
  return PlaceIn(plan.layout, slot);
}

absl::StatusOr<PlacedDense> DenseCall::EmptyResult(WorkerSlot& slot) {
  return result_.New(ResultName(problem_.operation), owner_, slot);
}

absl::StatusOr<PlacedDense> DenseCall::NewResult(WorkerSlot& slot) {
  if (beta_ == 0 || (in_place_ && result_.written_in_place(*slot.backend))) {
    return EmptyResult(slot);
  }
  const Operand& accumulate = operands_[1];
  absl::StatusOr<PlacedDense> old = accumulate.On(*slot.backend, slot, token());
  if (!old.ok()) return old;
  // On the CPU a streamed C of the right shape is ours alone: it becomes the result. A kernel that
  // fails on a GPU may have written, and then the product is computed elsewhere.
  if (slot.backend->id().kind == DeviceKind::kCpu && accumulate.streamed() != nullptr &&
      result_.streamed() &&
      accumulate.shape.leading_dimension == result_.shape().leading_dimension) {
    return old;
  }
  absl::StatusOr<PlacedDense> result = EmptyResult(slot);
  if (!result.ok()) return result;
  if (absl::Status s = slot.backend->CopyDense(*old, *result, slot); !s.ok()) return s;
  return result;
}

absl::Status DenseCall::RunInColumnBlocks(Resolved& plan, WorkerSlot& slot) {
  if (problem_.operation != Operation::kSpmm) {
    return absl::UnimplementedError("what does not fit runs on the CPU");
  }
  const auto began = Clock::now();
  absl::StatusOr<PlacedSparse> s = PlaceMatrix(plan, slot);
  if (!s.ok()) return s.status();
  absl::StatusOr<Array> b = operands_[0].OnHost();
  if (!b.ok()) return b.status();
  // C's old value stays as it is, for the CPU if a column block fails.
  Array old;
  if (beta_ != 0) {
    absl::StatusOr<Array> accumulate = operands_[1].OnHost();
    if (!accumulate.ok()) return accumulate.status();
    old = *std::move(accumulate);
  }
  // On the host, whatever the worker slot's device.
  const bool directly = result_.written_in_place(impl_->cpu) && !in_place_;
  absl::StatusOr<PlacedDense> result =
      directly ? impl_->cpu.Bring(*result_.shared(), result_.shape(), slot)
               : impl_->cpu.NewDense(ResultName(problem_.operation), result_.shape(),
                                     impl_->cpu.MemoryFor(result_.use(), owner_), slot);
  if (!result.ok()) return result.status();
  Array written = *result->array;
  const ColumnBlockProduct product = {.plan = plan,
                                      .sparse = *s,
                                      .b = {*b, operands_[0].shape},
                                      .old = {old, beta_ == 0 ? DenseShape() : operands_[1].shape},
                                      .result = {written, result_.shape()},
                                      .alpha = alpha_,
                                      .beta = beta_,
                                      .owner = owner_};
  ColumnBlockMultiplication blocks(product, *impl_->gpu(slot.backend->id()), slot, token());
  const absl::Status status = blocks.Run();
  if (!status.ok()) return status;
  // Copies and kernels overlap: the time is of all together.
  AddKernelTime(1e-6 * static_cast<double>(NanosecondsSince(began)));
  Observe(problem_, blocks.kernel(), end_.timings.kernel_ns);
  SendBegin(fmt::format("{}, in blocks of {} columns", plan.text, blocks.width()));
  return Send(*std::move(result), impl_->cpu, slot);
}

void DenseCall::AddKernelTime(double milliseconds) {
  const auto nanoseconds = static_cast<uint64_t>(milliseconds * 1e6);
  end_.timings.kernel_ns += nanoseconds;
  AddBusy(nanoseconds);
}

void DenseCall::Observe(const Problem& problem, std::string_view kernel, uint64_t nanoseconds) {
  RecordProduct(*impl_, device(), *matrix_->pattern(), problem, /*reads_result=*/beta_ != 0, kernel,
                nanoseconds);
}

void DenseCall::SendBegin(const std::string& plan) {
  CallBegin begin{plan, 0, result_.shape().rows, result_.shape().cols, {}};
  if (result_.streamed()) {
    begin.arrays.push_back({std::string(ResultName(problem_.operation)), result_.shape().type,
                            result_.shape().elements()});
  }
  sent_ = true;
  sink().OnBegin(std::move(begin));
}

absl::Status DenseCall::Send(PlacedDense result, Backend& from, WorkerSlot& slot) {
  return result_.Send(std::move(result), from, slot, 0, host_memory(),
                      impl_->budget.Source(MemoryUse::kBuffers, &owner_), sink());
}

template <typename Spec>
absl::StatusOr<std::shared_ptr<Call>> DenseCall::BeginOf(std::shared_ptr<Executor::Impl> impl,
                                                         const Spec& spec,
                                                         std::shared_ptr<ResultSink> sink) {
  const auto found = spec.part.matrices.find(spec.matrix);
  absl::StatusOr<MatrixLease> matrix = found != spec.part.matrices.end()
                                           ? found->second
                                           : impl->catalog.Find(spec.tenant, spec.matrix);
  if (!matrix.ok()) return matrix.status();
  const Problem problem = ProblemOf(spec, (*matrix)->type());
  auto call = std::make_shared<DenseCall>(std::move(impl), spec.tenant, std::move(sink),
                                          *std::move(matrix), problem);
  call->priority = spec.priority;
  absl::Status status = call->Set(spec);
  if (status.ok()) status = call->CheckApart();
  if (status.ok()) status = call->ChooseDevice(spec.part.device);
  // What cannot fit is refused before it is sent.
  if (status.ok()) status = call->operands_.ExpectStreams(call->impl_->gpu(call->device()));
  if (status.ok()) status = call->MayFit();
  if (spec.timeout_ns > 0 && spec.timeout_ns < kLongestTimeout) {
    call->until_ = Clock::now() + std::chrono::nanoseconds(spec.timeout_ns);
  }
  if (status.ok()) status = call->Start(spec.timeout_ns);
  if (!status.ok()) return status;
  return call;
}

absl::StatusOr<std::shared_ptr<Call>> DenseCall::Begin(std::shared_ptr<Executor::Impl> impl,
                                                       const SpmmSpec& spec,
                                                       std::shared_ptr<ResultSink> sink) {
  return BeginOf(std::move(impl), spec, std::move(sink));
}

absl::StatusOr<std::shared_ptr<Call>> DenseCall::Begin(std::shared_ptr<Executor::Impl> impl,
                                                       const SddmmSpec& spec,
                                                       std::shared_ptr<ResultSink> sink) {
  return BeginOf(std::move(impl), spec, std::move(sink));
}

}  // namespace sparsed::engine
