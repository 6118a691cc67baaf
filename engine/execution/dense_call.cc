#include "engine/execution/dense_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/execution/slabs.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

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

size_t BytesOf(const DenseShape& shape) {
  return static_cast<size_t>(shape.elements()) * SizeOf(shape.type);
}

/// Whether two matrices have a byte in common. Those of one leading dimension may lie side by side:
/// columns of one matrix. Of others all that lies between their rows counts as theirs.
bool ShareBytes(const Array& one, const DenseShape& one_shape, const Array& other,
                const DenseShape& other_shape) {
  if (one.buffer.data() > other.buffer.data()) {
    return ShareBytes(other, other_shape, one, one_shape);
  }
  if (one.length == 0 || other.length == 0) return false;
  const auto distance = static_cast<uint64_t>(other.buffer.data() - one.buffer.data());
  if (one_shape.leading_dimension != other_shape.leading_dimension || one.type != other.type) {
    return distance < one.bytes();
  }
  const uint64_t size = SizeOf(one.type);
  const uint64_t stride = static_cast<uint64_t>(one_shape.leading_dimension) * size;
  const auto rows = static_cast<uint64_t>(one_shape.rows);
  // The other's first row begins in this row of the one, its last byte maybe in the next.
  const uint64_t row = distance / stride, in_row = distance % stride;
  return (row < rows && in_row < static_cast<uint64_t>(one_shape.cols) * size) ||
         (row + 1 < rows && in_row + static_cast<uint64_t>(other_shape.cols) * size > stride);
}

}  // namespace

DenseCall::DenseCall(std::shared_ptr<Executor::Impl> impl, std::string tenant,
                     std::shared_ptr<ResultSink> sink, MatrixLease matrix, const Problem& problem)
    : Job(impl->scheduler, std::move(tenant), std::move(sink), DeviceId{}),
      impl_(std::move(impl)),
      owner_(impl_->budget.OwnerOf(this->tenant())),
      matrix_(std::move(matrix)),
      problem_(problem) {
  end_.version = matrix_->version();
}

absl::StatusOr<std::byte*> DenseCall::Claim(uint32_t array, uint64_t offset, uint64_t size) {
  for (const Operand& operand : operands_) {
    StreamedOperand* const streamed = operand.streamed();
    if (streamed == nullptr || streamed->stream_array() != array) continue;
    claimed_ = streamed;
    return streamed->Claim(offset, size);
  }
  return absl::InvalidArgumentError(
      fmt::format("no operand of the request is announced as array {}", array));
}

absl::Status DenseCall::Commit() {
  return claimed_ == nullptr ? absl::OkStatus() : claimed_->Commit();
}

bool DenseCall::complete() const {
  return std::ranges::all_of(operands_, [](const Operand& operand) {
    return operand.streamed() == nullptr || operand.streamed()->complete();
  });
}

std::string DenseCall::Missing() const {
  for (const Operand& operand : operands_) {
    const StreamedOperand* const streamed = operand.streamed();
    if (streamed != nullptr && !streamed->complete()) return streamed->Missing();
  }
  return Job::Missing();
}

size_t DenseCall::announced() const {
  size_t bytes = 0;
  for (const Operand& operand : operands_) {
    if (const StreamedOperand* const streamed = operand.streamed()) bytes += streamed->announced();
  }
  return bytes;
}

size_t DenseCall::counted() const {
  size_t bytes = 0;
  for (const Operand& operand : operands_) {
    if (const StreamedOperand* const streamed = operand.streamed()) bytes += streamed->counted();
  }
  return bytes;
}

void DenseCall::Drop() {
  destination_ = DenseWrite();
  shared_result_.reset();
  plan_ = {};
  matrix_.reset();
  // Who hears of the end may need their memory for the next. Before it was submitted, somebody may
  // be writing into them.
  if (submitted()) operands_.clear();
}

Job::Loader DenseCall::ToLoad() const {
  std::vector<Loader> loaders = {LoaderOf(*impl_, device(), matrix_, plan_)};
  if ((own_values_ || problem_.operation == Operation::kSddmm) &&
      matrix_->caller_order() != nullptr) {
    loaders.push_back(LoaderOf(matrix_->caller_order()));
  }
  GpuBackend* const gpu = impl_->gpu(device());
  for (const Operand& operand : operands_) {
    if (operand.held() == nullptr) continue;
    const auto& held = std::get<Operand::Held>(operand.source);
    const bool on_device = gpu != nullptr && gpu->device().residency().PresenceOf(held) !=
                                                 Residency::Presence::kNothing;
    if (!on_device) loaders.push_back(LoaderOf(held));
  }
  return LoaderOf(std::move(loaders));
}

absl::Status DenseCall::Set(const SpmmSpec& spec) {
  const Pattern& pattern = *matrix_->pattern();
  alpha_ = spec.alpha;
  beta_ = spec.beta;
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
  Operand operand;
  if (spec.held.empty() && !spec.shape.has_value()) {
    return absl::InvalidArgumentError(
        fmt::format("operand {} needs a shape or the name of a held matrix", what));
  }
  if (spec.shared.size() > 0) {
    operand.shape = *spec.shape;
  } else if (spec.held.empty()) {
    operand.shape = *spec.shape;
    for (const Operand& other : operands_) {
      const auto* const announced = std::get_if<Operand::Announced>(&other.source);
      if (announced != nullptr && announced->stream_array == spec.stream_array) {
        return absl::InvalidArgumentError(
            fmt::format("two operands are announced as array {} of the stream", spec.stream_array));
      }
    }
    operand.source = Operand::Announced{std::string(what), spec.stream_array};
  } else {
    absl::StatusOr<HeldDenseLease> held = impl_->dense.Find(tenant(), spec.held);
    if (!held.ok()) return held.status();
    operand.shape = (*held)->shape;
    operand.source = (*held)->elements;
    if (spec.shape.has_value() &&
        (spec.shape->rows != operand.shape.rows || spec.shape->cols != operand.shape.cols ||
         spec.shape->type != operand.shape.type)) {
      return absl::InvalidArgumentError(fmt::format(
          "operand {} is announced as {} x {} {}, but the held matrix '{}' is {} x {} {}", what,
          spec.shape->rows, spec.shape->cols, Name(spec.shape->type), spec.held, operand.shape.rows,
          operand.shape.cols, Name(operand.shape.type)));
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
  if (spec.shared.size() > 0) {
    absl::StatusOr<Array> array =
        SharedArray(fmt::format("operand {}", what), spec.shared, operand.shape);
    if (!array.ok()) return array.status();
    operand.source = *std::move(array);
  }
  operands_.push_back(std::move(operand));
  return absl::OkStatus();
}

absl::StatusOr<Array> DenseCall::SharedArray(std::string_view what, const Buffer& memory,
                                             const DenseShape& shape) const {
  if (reinterpret_cast<uintptr_t>(memory.data()) % Buffer::kAlignment != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} begins at an offset that {} does not divide", what, Buffer::kAlignment));
  }
  if (BytesOf(shape) > memory.size()) {
    return absl::InvalidArgumentError(
        fmt::format("{} takes {} bytes, {} are left of the shared memory from its offset on", what,
                    BytesOf(shape), memory.size()));
  }
  return Array{std::string(what), shape.type, shape.elements(), memory};
}

absl::Status DenseCall::CheckApart() {
  if (!shared_result_.has_value()) return absl::OkStatus();
  for (const Operand& operand : operands_) {
    const Array* const shared = operand.shared();
    if (shared == nullptr || !ShareBytes(*shared, operand.shape, *shared_result_, result_shape_)) {
      continue;
    }
    const bool old_value = beta_ != 0 && &operand == &operands_[1];
    if (!old_value || shared->buffer.data() != shared_result_->buffer.data() ||
        operand.shape.leading_dimension != result_shape_.leading_dimension) {
      return absl::InvalidArgumentError(
          fmt::format("the result would overwrite {}: they share bytes", shared->name));
    }
    in_place_ = true;
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
  const std::string& held = spec.held;
  if (spec.shared.size() > 0) {
    if (!spec.shape.has_value() || spec.shape->rows != shape.rows ||
        spec.shape->cols != shape.cols || spec.shape->type != shape.type) {
      return absl::InvalidArgumentError(fmt::format(
          "the result is {} x {} {}, its destination {}", shape.rows, shape.cols, Name(shape.type),
          spec.shape.has_value() ? fmt::format("{} x {} {}", spec.shape->rows, spec.shape->cols,
                                               Name(spec.shape->type))
                                 : "has no shape"));
    }
    shape.leading_dimension = spec.shape->leading_dimension;
  }
  if (shape.leading_dimension == 0) shape.leading_dimension = shape.cols;
  result_shape_ = shape;
  if (held.empty()) {
    if (absl::Status s = ValidateShape("the result", shape); !s.ok()) return s;
    if (spec.shared.size() == 0) return absl::OkStatus();
    absl::StatusOr<Array> array = SharedArray("the result", spec.shared, shape);
    if (!array.ok()) return array.status();
    shared_result_ = *std::move(array);
    return absl::OkStatus();
  }
  absl::StatusOr<DenseWrite> write = impl_->dense.BeginWrite(tenant(), held);
  if (!write.ok()) return write.status();
  const DenseShape& there = write->base()->shape;
  if (there.rows != shape.rows || there.cols != shape.cols || there.type != shape.type) {
    return absl::InvalidArgumentError(
        fmt::format("the result is {} x {} {}, but the held matrix '{}' is {} x {} {}", shape.rows,
                    shape.cols, Name(shape.type), held, there.rows, there.cols, Name(there.type)));
  }
  result_shape_ = there;
  destination_ = *std::move(write);
  keep_result_ = true;
  return absl::OkStatus();
}

absl::Status DenseCall::ChooseDevice() {
  std::vector<Operand::Held> held;
  for (const Operand& operand : operands_) {
    if (operand.held() != nullptr) held.push_back(std::get<Operand::Held>(operand.source));
  }
  TakePlan(impl_->first_choice());
  const bool planned = plan_.plan != nullptr && plan_.plan->layout != nullptr;
  const absl::StatusOr<Backend*> backend = impl_->Place(
      planned ? plan_.plan->layout->Resident() : matrix_->pattern()->resident_csr(), held);
  if (!backend.ok()) return backend.status();
  MoveTo((*backend)->id());
  return absl::OkStatus();
}

absl::Status DenseCall::ExpectStreams() {
  for (Operand& operand : operands_) {
    const auto* const announced = std::get_if<Operand::Announced>(&operand.source);
    if (announced == nullptr) continue;
    GpuBackend* const gpu = impl_->gpu(device());
    const size_t bytes = BytesOf(operand.shape);
    // Memory is taken as it comes.
    if (gpu == nullptr || static_cast<int64_t>(bytes) > gpu->device().budget().limit()) {
      if (absl::Status s = CheckRoom(impl_->budget, MemoryUse::kRequests, bytes); !s.ok()) return s;
    }
    operand.source = std::make_unique<StreamedOperand>(
        announced->name, operand.shape, announced->stream_array, gpu, host_memory(), owner_);
  }
  return MayFit();
}

absl::Status DenseCall::MayFit() const {
  if (device().kind != DeviceKind::kCpu) return absl::OkStatus();
  // Operands may fit each, and a result is below 2^63: no overflow.
  size_t all = beta_ == 0 && !shared_result_.has_value() ? BytesOf(result_shape_) : 0;
  for (const Operand& operand : operands_) {
    all += operand.streamed() != nullptr ? BytesOf(operand.shape) : 0;
  }
  return impl_->budget.MayFit(all, MemoryUse::kRequests);
}

void DenseCall::TakePlan(DeviceKind device) {
  problem_.device = device;
  plan_ = matrix_->pattern()->plans().Find(ClassOf(problem_));
}

Job::Next DenseCall::Run(Lane& lane, absl::Status* end) {
  absl::StatusOr<Resolved> plan = Resolve(*impl_, device(), matrix_, problem_, plan_);
  const auto run = [&](absl::Status (DenseCall::*how)(Resolved&, Lane&)) {
    return CheckedOn(*lane.backend, token(), plan.ok() ? (this->*how)(*plan, lane) : plan.status());
  };
  *end = run(&DenseCall::RunWhole);
  if (device().kind == DeviceKind::kCpu) return Next::kEnded;
  const auto elsewhere = [&](const absl::Status& status) {
    return !sent_ && (absl::IsResourceExhausted(status) || absl::IsUnimplemented(status));
  };
  if (!elsewhere(*end)) return Next::kEnded;
  // Without room on the host either, what the device said stands.
  if (absl::Status moved = MoveToHost(); !moved.ok()) {
    if (!absl::IsResourceExhausted(moved)) *end = std::move(moved);
    return Next::kEnded;
  }
  lane.gpu->prepared.Clear();  // it may be what there is no room for
  *end = run(&DenseCall::RunInSlabs);
  if (!elsewhere(*end)) return Next::kEnded;
  TakePlan(DeviceKind::kCpu);
  MoveTo(DeviceId{});
  return Next::kAgain;
}

bool DenseCall::operands_on_host() const {
  return std::ranges::all_of(operands_, [](const Operand& operand) {
    return operand.streamed() == nullptr || operand.streamed()->on_host();
  });
}

absl::Status DenseCall::MoveToHost() {
  for (const Operand& operand : operands_) {
    StreamedOperand* const streamed = operand.streamed();
    if (streamed == nullptr) continue;
    if (absl::Status s = streamed->MoveToHost(token()); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::StatusOr<PlacedSparse> DenseCall::PlaceIn(const std::shared_ptr<const Layout>& layout,
                                                Lane& lane) {
  if (unscaled_ || own_values_) {
    absl::StatusOr<PlacedSparse> placed = lane.backend->Place(layout, nullptr, host_memory());
    if (!placed.ok() || unscaled_) return placed;
    absl::StatusOr<std::shared_ptr<const Array>> values = PlaceOwnValues(*placed->layout, lane);
    if (!values.ok()) return values.status();
    placed->values = *std::move(values);
    return placed;
  }
  absl::StatusOr<Array> values = lane.backend->ValuesFor(
      *matrix_, *layout, impl_->budget.Source(MemoryUse::kLayouts), lane.threads);
  if (!values.ok()) return values.status();
  return lane.backend->Place(layout, &*values, host_memory());
}

absl::StatusOr<std::shared_ptr<const Array>> DenseCall::PlaceOwnValues(const Layout& layout,
                                                                       Lane& lane) {
  Backend& backend = *lane.backend;
  MemorySource& memory = backend.MemoryFor(MemoryUse::kRequests, owner_);
  absl::StatusOr<PlacedDense> there = operands_.back().On(backend, lane, token());
  if (there.ok() && matrix_->caller_order() != nullptr) {
    const absl::StatusOr<std::shared_ptr<const Array>> order =
        backend.PlaceIndices(matrix_->caller_order());
    if (!order.ok()) return order.status();
    there = backend.Gather(*there, **order, memory, lane);
  }
  if (!there.ok()) return there.status();
  return backend.OrderValues(*there, layout, memory, lane);
}

absl::StatusOr<PlacedSparse> DenseCall::PlaceMatrix(Resolved& plan, Lane& lane) {
  absl::StatusOr<PlacedSparse> placed = PlaceIn(plan.layout, lane);
  if (!absl::IsResourceExhausted(placed.status()) || plan.layout->recipe == kCsr ||
      !operands_on_host()) {
    return placed;
  }
  impl_->no_room.Note(device(), plan_.plan->layout);
  absl::StatusOr<Resolved> plain = ResolvePlain(matrix_, plan.problem);
  if (!plain.ok()) return plain.status();
  plan = *std::move(plain);
  return PlaceIn(plan.layout, lane);
}

absl::StatusOr<PlacedDense> DenseCall::EmptyResult(Lane& lane) {
  if (shared_result_.has_value() && lane.backend->shares_host_memory()) {
    return lane.backend->Bring(*shared_result_, result_shape_, lane);
  }
  return lane.backend->NewDense(ResultName(problem_.operation), result_shape_,
                                lane.backend->MemoryFor(result_use(), owner_), lane);
}

absl::StatusOr<PlacedDense> DenseCall::NewResult(Lane& lane) {
  if (beta_ == 0 || (in_place_ && lane.backend->shares_host_memory())) return EmptyResult(lane);
  const Operand& accumulate = operands_[1];
  absl::StatusOr<PlacedDense> old = accumulate.On(*lane.backend, lane, token());
  if (!old.ok()) return old;
  // On the CPU a streamed C of the right shape is ours alone: it becomes the result. A kernel that
  // fails on a GPU may have written, and then the product is computed elsewhere.
  if (lane.backend->id().kind == DeviceKind::kCpu && accumulate.streamed() != nullptr &&
      !keep_result_ && !shared_result_.has_value() &&
      accumulate.shape.leading_dimension == result_shape_.leading_dimension) {
    return old;
  }
  absl::StatusOr<PlacedDense> result = EmptyResult(lane);
  if (!result.ok()) return result;
  if (absl::Status s = lane.backend->CopyDense(*old, *result, lane); !s.ok()) return s;
  return result;
}

BoundRun DenseCall::Bind(const Resolved& plan, const PlacedSparse& s, const PlacedDense& first,
                         const PlacedDense* second, const PlacedDense& written) const {
  // A width that vectors divide is faster; what is behind the K columns is nobody's.
  Problem problem = plan.problem;
  problem.k = CommonWidth(first, second != nullptr ? *second : written);
  if (!plan.kernel->Serves(problem, *s.layout)) problem.k = plan.problem.k;
  RunArguments arguments;
  arguments.values = s.values == nullptr ? nullptr : s.values->buffer.data();
  arguments.dense[0] = first.View(problem.k);
  if (second != nullptr) arguments.dense[1] = second->View(problem.k);
  arguments.result = written.MutableView(second != nullptr ? 1 : problem.k);
  arguments.alpha = alpha_;
  arguments.beta = beta_;
  return {*plan.kernel, problem, s.layout, arguments};
}

absl::Status DenseCall::RunWhole(Resolved& plan, Lane& lane) {
  Backend& backend = *lane.backend;
  const bool sddmm = problem_.operation == Operation::kSddmm;
  const auto begin = Clock::now();
  absl::StatusOr<PlacedSparse> s = PlaceMatrix(plan, lane);
  if (!s.ok()) return s.status();
  absl::StatusOr<PlacedDense> first = operands_[0].On(backend, lane, token());
  if (!first.ok()) return first.status();
  absl::StatusOr<PlacedDense> second;
  if (sddmm) {
    second = operands_[1].On(backend, lane, token());
    if (!second.ok()) return second.status();
  }
  absl::StatusOr<PlacedDense> result = NewResult(lane);
  if (!result.ok()) return result.status();
  PlacedDense written = *result;
  std::shared_ptr<const Array> order;
  if (!writes_in_order(*result)) {
    const DenseShape packed = {result_shape_.rows, 1, 1, result_shape_.type};
    absl::StatusOr<PlacedDense> canonical =
        backend.NewDense("values", packed, backend.MemoryFor(MemoryUse::kRequests, owner_), lane);
    if (!canonical.ok()) return canonical.status();
    written = *std::move(canonical);
    if (matrix_->caller_order() != nullptr) {
      // Now, so that nothing was computed for nothing where there is no room for it.
      absl::StatusOr<std::shared_ptr<const Array>> there =
          backend.PlaceIndices(matrix_->caller_order());
      if (!there.ok()) return there.status();
      order = *std::move(there);
    }
  }

  const BoundRun run = Bind(plan, *s, *first, sddmm ? &*second : nullptr, written);
  if (backend.id().kind != DeviceKind::kCpu) end_.timings.to_device_ns = NanosecondsSince(begin);

  RunOptions options{lane.workspace, backend.memory(MemoryUse::kRequests), token().flag()};
  if (keep_result_) options.behind = [&] { return backend.ClearPadding(written, lane); };
  double milliseconds = 0;
  absl::Status status = backend.Run(lane, run, options, &milliseconds);
  AddKernelTime(milliseconds);
  if (!status.ok()) return status;
  for (const Operand& operand : operands_) {
    if (operand.streamed() != nullptr) operand.streamed()->Settled();
  }
  Observe(problem_, run.kernel(), end_.timings.kernel_ns);

  const auto computed = Clock::now();
  if (written.array != result->array) {
    status = backend.Scatter(written, order.get(), *result, lane);
    if (!status.ok()) return status;
  }
  SendBegin(plan.text);
  status = Send(*std::move(result), backend, lane);
  if (backend.id().kind != DeviceKind::kCpu) {
    end_.timings.from_device_ns = NanosecondsSince(computed);
  }
  return status;
}

absl::Status DenseCall::RunInSlabs(Resolved& plan, Lane& lane) {
  if (problem_.operation != Operation::kSpmm) {
    return absl::UnimplementedError("what does not fit runs on the CPU");
  }
  const auto began = Clock::now();
  absl::StatusOr<PlacedSparse> s = PlaceMatrix(plan, lane);
  if (!s.ok()) return s.status();
  absl::StatusOr<Array> b = operands_[0].OnHost();
  if (!b.ok()) return b.status();
  // C's old value stays as it is, for the CPU if a slab fails.
  Array old;
  if (beta_ != 0) {
    absl::StatusOr<Array> accumulate = operands_[1].OnHost();
    if (!accumulate.ok()) return accumulate.status();
    old = *std::move(accumulate);
  }
  // On the host, whatever the lane's device.
  const bool directly = shared_result_.has_value() && !in_place_;
  absl::StatusOr<PlacedDense> result =
      directly ? impl_->cpu.Bring(*shared_result_, result_shape_, lane)
               : impl_->cpu.NewDense(ResultName(problem_.operation), result_shape_,
                                     impl_->cpu.MemoryFor(result_use(), owner_), lane);
  if (!result.ok()) return result.status();
  Array written = *result->array;
  const SlabProduct product = {.plan = plan,
                               .sparse = *s,
                               .b = {*b, operands_[0].shape},
                               .old = {old, beta_ == 0 ? DenseShape() : operands_[1].shape},
                               .result = {written, result_shape_},
                               .alpha = alpha_,
                               .beta = beta_,
                               .owner = owner_};
  SlabMultiplication slabs(product, *impl_->gpu(lane.backend->id()), lane, token());
  const absl::Status status = slabs.Run();
  if (!status.ok()) return status;
  // Copies and kernels overlap: the time is of all together.
  AddKernelTime(1e-6 * static_cast<double>(NanosecondsSince(began)));
  Observe(problem_, slabs.kernel(), end_.timings.kernel_ns);
  SendBegin(fmt::format("{}, in slabs of {} columns", plan.text, slabs.width()));
  return Send(*std::move(result), impl_->cpu, lane);
}

void DenseCall::AddKernelTime(double milliseconds) {
  const auto nanoseconds = static_cast<uint64_t>(milliseconds * 1e6);
  end_.timings.kernel_ns += nanoseconds;
  scheduler().AddBusy(device(), nanoseconds);
}

void DenseCall::Observe(const Problem& problem, std::string_view kernel, uint64_t nanoseconds) {
  const Pattern& pattern = *matrix_->pattern();
  const auto nnz = static_cast<double>(pattern.nnz());
  const auto k = static_cast<double>(problem.k);
  double bytes = CompulsoryBytes(problem, pattern.rows(), pattern.cols(), pattern.nnz());
  // With beta, C's old value is read besides.
  if (beta_ != 0) {
    bytes +=
        static_cast<double>(result_shape_.rows) * k * static_cast<double>(SizeOf(problem.type));
  }
  const double flops = problem.operation == Operation::kSddmm ? nnz * (2.0 * k + 1) : 2.0 * nnz * k;
  impl_->RecordRun(device(), problem.operation, kernel, nanoseconds, flops, bytes);
}

void DenseCall::SendBegin(const std::string& plan) {
  CallBegin begin{plan, 0, result_shape_.rows, result_shape_.cols, {}};
  if (!keep_result_ && !shared_result_.has_value()) {
    begin.arrays.push_back({std::string(ResultName(problem_.operation)), result_shape_.type,
                            result_shape_.elements()});
  }
  sent_ = true;
  sink().OnBegin(std::move(begin));
}

absl::Status DenseCall::Send(PlacedDense result, Backend& from, Lane& lane) {
  if (absl::Status s = CheckHolds(*result.array, result.shape); !s.ok()) return s;
  if (keep_result_) {
    MemorySource& memory = impl_->budget.Source(MemoryUse::kBuffers, &owner_);
    return destination_.Publish(from.Hold(std::move(result), result_shape_, memory));
  }
  if (shared_result_.has_value()) {
    if (result.array->buffer.data() == shared_result_->buffer.data()) return absl::OkStatus();
    return from.FetchInto(result, result_shape_, *shared_result_, lane);
  }
  size_t sent = 0;
  return from.Fetch(
      result, result_shape_, host_memory(), lane, [&](const Array& host, size_t bytes) {
        const auto length = static_cast<int64_t>((bytes - sent) / SizeOf(host.type));
        sink().OnArray(0, sent,
                       {host.name, host.type, length, host.buffer.Part(sent, bytes - sent)});
        sent = bytes;
      });
}

template <typename Spec>
absl::StatusOr<std::shared_ptr<Call>> DenseCall::BeginOf(std::shared_ptr<Executor::Impl> impl,
                                                         const Spec& spec,
                                                         std::shared_ptr<ResultSink> sink) {
  absl::StatusOr<MatrixLease> matrix = impl->catalog.Find(spec.tenant, spec.matrix);
  if (!matrix.ok()) return matrix.status();
  const Problem problem = ProblemOf(spec, (*matrix)->type());
  auto call = std::make_shared<DenseCall>(std::move(impl), spec.tenant, std::move(sink),
                                          *std::move(matrix), problem);
  absl::Status status = call->Set(spec);
  if (status.ok()) status = call->CheckApart();
  if (status.ok()) status = call->ChooseDevice();
  if (status.ok()) status = call->ExpectStreams();
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
