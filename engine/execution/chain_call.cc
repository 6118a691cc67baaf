#include "engine/execution/chain_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "engine/execution/dense_product.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// After so long somebody else may have the lane.
constexpr auto kTurn = std::chrono::milliseconds(20);
/// Short steps that are queued before the device has done the first of them: enough for it never to
/// wait. Of others one, so that a chain that is cancelled ends soon.
constexpr size_t kAhead = 8;
constexpr double kShortMilliseconds = 2;

absl::Status OfStep(size_t i, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status named(status.code(), fmt::format("step {}: {}", i, std::string(status.message())));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  return named;
}

/// The values that a step uses.
std::vector<size_t> UsesOf(const ChainStep& step) {
  std::vector<size_t> uses;
  const auto also = [&](const std::optional<size_t>& value) {
    if (value) uses.push_back(*value);
  };
  if (const auto* spmm = std::get_if<SpmmStep>(&step)) {
    uses.push_back(spmm->b);
    if (spmm->beta != 0) also(spmm->accumulate);
    also(spmm->values);
  } else if (const auto* sddmm = std::get_if<SddmmStep>(&step)) {
    uses = {sddmm->a, sddmm->b};
    also(sddmm->values);
  } else if (const auto* softmax = std::get_if<SoftmaxStep>(&step)) {
    uses.push_back(softmax->value);
    also(softmax->gradient);
  } else {
    for (const SumStep::Term& term : std::get<SumStep>(step).terms) uses.push_back(term.value);
  }
  return uses;
}

}  // namespace

/// While it lives the lane queues; then it waits for what is queued.
class ChainCall::Queue {
 public:
  explicit Queue(Lane& lane) : lane_(lane) { lane.queues = true; }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue() { Settle().IgnoreError(); }

  absl::Status Settle() {
    if (!std::exchange(lane_.queues, false)) return absl::OkStatus();
    return lane_.backend->Settle(lane_);
  }

 private:
  Lane& lane_;
};

ChainCall::ChainCall(std::shared_ptr<Executor::Impl> impl, ChainSpec spec,
                     std::shared_ptr<ResultSink> sink)
    : Job(impl->scheduler, spec.tenant, std::move(sink), DeviceId{}),
      impl_(std::move(impl)),
      owner_(impl_->budget.OwnerOf(this->tenant())),
      spec_(std::move(spec)),
      operands_(*impl_, owner_) {}

absl::StatusOr<std::shared_ptr<Call>> ChainCall::Begin(std::shared_ptr<Executor::Impl> impl,
                                                       ChainSpec spec,
                                                       std::shared_ptr<ResultSink> sink) {
  const uint64_t timeout_ns = spec.timeout_ns;
  auto call = std::make_shared<ChainCall>(std::move(impl), std::move(spec), std::move(sink));
  absl::Status status = call->Check();
  if (status.ok()) status = call->SetResults();
  if (status.ok()) status = call->ChooseDevice();
  if (status.ok()) status = call->operands_.ExpectStreams(call->impl_->gpu(call->device()));
  if (status.ok() && call->device().kind == DeviceKind::kCpu) {
    status = call->impl_->budget.MayFit(call->operands_.streamed_bytes() + call->PeakBytes(),
                                        MemoryUse::kRequests);
  }
  if (status.ok()) status = call->Start(timeout_ns);
  if (!status.ok()) return status;
  return call;
}

absl::Status ChainCall::Check() {
  const auto limit = [](std::string_view what, size_t count, size_t least, size_t most) {
    if (count >= least && count <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("a chain has {} to {} {}, not {}", least, most, what, count));
  };
  absl::Status status = limit("operands", spec_.operands.size(), 1, ChainSpec::kMostOperands);
  if (status.ok()) status = limit("steps", spec_.steps.size(), 1, ChainSpec::kMostSteps);
  if (status.ok()) status = limit("results", spec_.results.size(), 1, ChainSpec::kMostResults);
  if (!status.ok()) return status;
  for (size_t i = 0; i < spec_.operands.size(); ++i) {
    status = operands_.Add(fmt::to_string(i), spec_.operands[i], tenant());
    if (!status.ok()) return status;
    DenseShape shape = operands_.back().shape;
    shape.leading_dimension = shape.cols;
    values_.push_back({.shape = shape, .order = nullptr});
  }
  for (size_t i = 0; i < spec_.steps.size(); ++i) {
    Step& step = steps_.emplace_back();
    // Its value is the last of values_ afterwards.
    status = std::visit([&](const auto& spec) { return CheckStep(spec, step); }, spec_.steps[i]);
    if (!status.ok()) return OfStep(i, status);
    if (status = ValidateShape("its value", values_.back().shape); !status.ok()) {
      return OfStep(i, status);
    }
    for (const size_t value : UsesOf(spec_.steps[i])) values_[value].last_use = i;
    values_.back().last_use = i;
  }
  for (const Step& step : steps_) {
    if (step.matrix == nullptr) continue;
    end_.version = step.matrix->version();
    break;
  }
  return absl::OkStatus();
}

absl::StatusOr<MatrixLease> ChainCall::FindMatrix(const std::string& name) {
  const auto found = matrices_.find(name);
  if (found != matrices_.end()) return found->second;
  absl::StatusOr<MatrixLease> matrix = impl_->catalog.Find(tenant(), name);
  if (matrix.ok()) matrices_.emplace(name, *matrix);
  return matrix;
}

absl::StatusOr<ChainCall::Value*> ChainCall::Use(std::string_view what, size_t value) {
  if (value < values_.size()) return &values_[value];
  return absl::InvalidArgumentError(fmt::format(
      "{} is value {}, but before it there are values 0 to {}", what, value, values_.size() - 1));
}

absl::Status ChainCall::UseAs(std::string_view what, size_t value, ElementType type, int64_t rows,
                              int64_t cols) {
  const absl::StatusOr<Value*> used = Use(what, value);
  if (!used.ok()) return used.status();
  const DenseShape& shape = (*used)->shape;
  if (shape.rows == rows && (cols < 0 || shape.cols == cols) && shape.type == type) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "{}, value {}, is {} x {} {}, expected {} x {} {}", what, value, shape.rows, shape.cols,
      Name(shape.type), rows, cols < 0 ? "K" : fmt::to_string(cols), Name(type)));
}

absl::Status ChainCall::UseAsNonzeros(std::string_view what, size_t value, ElementType type,
                                      int64_t nnz) {
  absl::Status status = UseAs(what, value, type, nnz, 1);
  if (!status.ok() || value >= operands_.size()) return status;
  const int64_t leading_dimension = operands_[value].shape.leading_dimension;
  if (leading_dimension == 1) return status;
  return absl::InvalidArgumentError(
      fmt::format("{}, value {}, has leading dimension {}, expected 1: one value after the other",
                  what, value, leading_dimension));
}

absl::Status ChainCall::CheckStep(const SpmmStep& spmm, Step& step) {
  absl::StatusOr<MatrixLease> matrix = FindMatrix(spmm.matrix);
  if (!matrix.ok()) return matrix.status();
  step.matrix = *std::move(matrix);
  step.product = true;
  const Pattern& pattern = *step.matrix->pattern();
  const ElementType type = step.matrix->type();
  step.problem = {.operation = Operation::kSpmm,
                  .transposed = spmm.transpose,
                  .type = type,
                  .allow_tf32 = spmm.allow_tf32 && type == ElementType::kF32};
  const int64_t in_rows = spmm.transpose ? pattern.rows() : pattern.cols();
  const int64_t out_rows = spmm.transpose ? pattern.cols() : pattern.rows();
  absl::Status status = UseAs("B", spmm.b, type, in_rows, -1);
  if (!status.ok()) return status;
  const int64_t k = step.problem.k = values_[spmm.b].shape.cols;
  if (spmm.beta != 0) {
    if (!spmm.accumulate) {
      return absl::InvalidArgumentError(
          fmt::format("beta is {}, but there is no value to accumulate to", spmm.beta));
    }
    status = UseAs("C", *spmm.accumulate, type, out_rows, k);
  }
  if (status.ok() && spmm.values) {
    status = UseAsNonzeros("S's values", *spmm.values, type, pattern.nnz());
  }
  values_.push_back({.shape = {out_rows, k, k, type}, .order = nullptr});
  return status;
}

absl::Status ChainCall::CheckStep(const SddmmStep& sddmm, Step& step) {
  absl::StatusOr<MatrixLease> matrix = FindMatrix(sddmm.matrix);
  if (!matrix.ok()) return matrix.status();
  step.matrix = *std::move(matrix);
  step.product = true;
  const Pattern& pattern = *step.matrix->pattern();
  const ElementType type = step.matrix->type();
  step.problem = {.operation = Operation::kSddmm, .type = type};
  absl::Status status = UseAs("A", sddmm.a, type, pattern.rows(), -1);
  if (!status.ok()) return status;
  step.problem.k = values_[sddmm.a].shape.cols;
  status = UseAs("B", sddmm.b, type, pattern.cols(), step.problem.k);
  if (status.ok() && sddmm.values) {
    if (sddmm.unscaled) {
      return absl::InvalidArgumentError("S has values, but the product is unscaled");
    }
    status = UseAsNonzeros("S's values", *sddmm.values, type, pattern.nnz());
  }
  values_.push_back({.shape = {pattern.nnz(), 1, 1, type}, .order = OrderOf(step.matrix)});
  return status;
}

absl::Status ChainCall::CheckStep(const SumStep& sum, Step& /*step*/) {
  if (sum.terms.empty() || sum.terms.size() > kMostTerms) {
    return absl::InvalidArgumentError(
        fmt::format("a sum has 1 to {} terms, not {}", kMostTerms, sum.terms.size()));
  }
  const absl::StatusOr<Value*> first = Use("a term", sum.terms[0].value);
  if (!first.ok()) return first.status();
  const DenseShape shape = (*first)->shape;
  MatrixLease order = (*first)->order;
  for (const SumStep::Term& term : sum.terms) {
    absl::Status status = UseAs("a term", term.value, shape.type, shape.rows, shape.cols);
    if (!status.ok()) return status;
    if (values_[term.value].order != order) order = nullptr;
  }
  values_.push_back({.shape = shape, .order = std::move(order)});
  return absl::OkStatus();
}

absl::Status ChainCall::CheckStep(const SoftmaxStep& softmax, Step& step) {
  absl::StatusOr<MatrixLease> matrix = FindMatrix(softmax.matrix);
  if (!matrix.ok()) return matrix.status();
  step.matrix = *std::move(matrix);
  const int64_t nnz = step.matrix->pattern()->nnz();
  const ElementType type = step.matrix->type();
  absl::Status status = UseAsNonzeros("its value", softmax.value, type, nnz);
  if (status.ok() && softmax.gradient) {
    status = UseAsNonzeros("the gradient", *softmax.gradient, type, nnz);
  }
  values_.push_back({.shape = {nnz, 1, 1, type}, .order = OrderOf(step.matrix)});
  return status;
}

absl::Status ChainCall::SetResults() {
  std::vector<bool> used(values_.size());
  for (size_t i = 0; i < steps_.size(); ++i) used[value_of(i)] = values_[value_of(i)].last_use > i;
  for (size_t i = 0; i < spec_.results.size(); ++i) {
    const ChainSpec::Result& wanted = spec_.results[i];
    absl::Status status;
    if (wanted.value >= values_.size()) {
      status = absl::InvalidArgumentError(fmt::format(
          "it is value {}, but there are values 0 to {}", wanted.value, values_.size() - 1));
    } else {
      DenseShape shape = values_[wanted.value].shape;
      if (wanted.shape && (wanted.shape->rows != shape.rows || wanted.shape->cols != shape.cols ||
                           wanted.shape->type != shape.type)) {
        return absl::InvalidArgumentError(fmt::format(
            "result {}: it is {} x {} {}, its destination {} x {} {}", i, shape.rows, shape.cols,
            Name(shape.type), wanted.shape->rows, wanted.shape->cols, Name(wanted.shape->type)));
      }
      if (wanted.leading_dimension != 0) shape.leading_dimension = wanted.leading_dimension;
      absl::StatusOr<DenseResult> result = DenseResult::Find(*impl_, tenant(), wanted.place, shape);
      status = result.status();
      for (size_t j = 0; j < operands_.size() && status.ok(); ++j) {
        bool in_place = false;
        status = result->CheckApart(operands_[j], /*is_old=*/false, &in_place);
      }
      for (size_t j = 0; j < results_.size() && status.ok(); ++j) {
        status = result->CheckApart(results_[j]);
      }
      if (status.ok()) results_.push_back(*std::move(result));
    }
    if (!status.ok()) {
      return absl::Status(status.code(),
                          fmt::format("result {}: {}", i, std::string(status.message())));
    }
    Value& value = values_[wanted.value];
    value.last_use = steps_.size();
    // Nonzeros in another order, or with gaps, are put in theirs when all is computed; so is what
    // later steps read, where the caller could change it.
    const bool as_computed =
        value.order == nullptr && !(results_.back().shared() && used[wanted.value]) &&
        (value.shape.cols > 1 || results_.back().shape().leading_dimension == 1);
    if (wanted.value >= spec_.operands.size() && !value.result && as_computed) value.result = i;
  }
  return absl::OkStatus();
}

size_t ChainCall::PeakBytes() const {
  // Of a thousand values of up to 2^63 bytes each.
  double now = 0, peak = 0;
  const auto bytes_of = [&](size_t value) {
    const std::optional<size_t>& result = values_[value].result;
    const bool callers = result && results_[*result].written_in_place(impl_->backend(device()));
    return callers ? 0 : static_cast<double>(BytesOf(values_[value].shape));
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    now += bytes_of(value_of(i));
    peak = std::max(peak, now);
    std::set<size_t> last = {value_of(i)};
    for (const size_t value : UsesOf(spec_.steps[i])) last.insert(value);
    for (const size_t value : last) {
      if (value >= spec_.operands.size() && values_[value].last_use == i) now -= bytes_of(value);
    }
  }
  return static_cast<size_t>(std::min(peak, 0x1p62));
}

void ChainCall::TakePlans(DeviceKind kind) {
  for (Step& step : steps_) {
    if (!step.product) continue;
    step.problem.device = kind;
    step.plan = step.matrix->pattern()->plans().Find(ClassOf(step.problem));
  }
}

absl::Status ChainCall::ChooseDevice() {
  TakePlans(impl_->first_choice());
  std::shared_ptr<const Layout> layout;
  for (const Step& step : steps_) {
    if (!step.product) continue;
    const bool planned = step.plan.plan != nullptr && step.plan.plan->layout != nullptr;
    layout = planned ? step.plan.plan->layout->Resident() : step.matrix->pattern()->resident_csr();
    break;
  }
  const absl::StatusOr<Backend*> backend = impl_->Place(layout, operands_.held());
  if (!backend.ok()) return backend.status();
  MoveTo((*backend)->id());
  GpuBackend* const gpu = impl_->gpu(device());
  if (gpu != nullptr && static_cast<int64_t>(PeakBytes()) > gpu->device().budget().limit()) {
    TakePlans(DeviceKind::kCpu);
    MoveTo(DeviceId{});
  }
  return absl::OkStatus();
}

Job::Loader ChainCall::ToLoad() const {
  std::vector<Loader> loaders;
  for (const auto& [name, matrix] : matrices_) {
    std::set<const void*> seen;
    for (const Step& step : steps_) {
      if (step.matrix != matrix) continue;
      if (!step.product) {
        loaders.push_back(LoaderOf(matrix));
      } else if (seen.insert(step.plan.plan.get()).second) {
        loaders.push_back(LoaderOf(*impl_, device(), matrix, step.plan));
      }
    }
    if (matrix->caller_order() != nullptr) loaders.push_back(LoaderOf(matrix->caller_order()));
  }
  operands_.AppendLoaders(impl_->gpu(device()), loaders);
  return LoaderOf(std::move(loaders));
}

void ChainCall::Drop() {
  Restart();
  for (DenseResult& result : results_) result.Drop();
  steps_.clear();
  values_.clear();
  matrices_.clear();
  // As DenseCall.
  if (submitted()) operands_.Clear();
}

void ChainCall::Restart() {
  next_ = 0;
  placed_ = false;
  for (Value& value : values_) value.placed.reset();
  free_.clear();
  kept_.clear();
  used_.clear();
}

Job::Next ChainCall::Run(Lane& lane, absl::Status* end) {
  *end = CheckedOn(*lane.backend, token(), RunSteps(lane));
  if (end->ok() && next_ < steps_.size()) return Next::kAgain;
  if (end->ok()) {
    *end = CheckedOn(*lane.backend, token(), Send(lane));
    if (end->ok()) {
      for (Step& step : steps_) end_.steps.push_back(std::move(step.done));
      return Next::kEnded;
    }
  }
  const bool elsewhere = absl::IsResourceExhausted(*end) || absl::IsUnimplemented(*end);
  if (device().kind == DeviceKind::kCpu || sent_ || !elsewhere) return Next::kEnded;
  Restart();
  // Without room on the host either, what the device said stands.
  absl::Status moved = operands_.MoveToHost(token());
  if (moved.ok()) {
    moved = impl_->budget.MayFit(operands_.streamed_bytes() + PeakBytes(), MemoryUse::kRequests);
  }
  if (!moved.ok()) {
    if (!absl::IsResourceExhausted(moved)) *end = std::move(moved);
    return Next::kEnded;
  }
  lane.gpu->prepared.Clear();  // it may be what there is no room for
  TakePlans(DeviceKind::kCpu);
  MoveTo(DeviceId{});
  return Next::kAgain;
}

absl::Status ChainCall::PlaceOperands(Lane& lane) {
  const auto begin = Clock::now();
  for (size_t i = 0; i < operands_.size(); ++i) {
    absl::StatusOr<PlacedDense> placed = operands_[i].On(*lane.backend, lane, token());
    if (!placed.ok()) return placed.status();
    values_[i].placed = *std::move(placed);
  }
  placed_ = true;
  if (lane.backend->id().kind != DeviceKind::kCpu) {
    end_.timings.to_device_ns += NanosecondsSince(begin);
  }
  return absl::OkStatus();
}

absl::Status ChainCall::RunSteps(Lane& lane) {
  Backend& backend = *lane.backend;
  if (!placed_) {
    if (absl::Status s = PlaceOperands(lane); !s.ok()) return s;
  }
  const size_t first = next_;
  const auto began = Clock::now();
  Queue queue(lane);
  absl::StatusOr<std::unique_ptr<Moment>> begin = backend.Now(lane);
  if (!begin.ok()) return begin.status();
  std::vector<std::unique_ptr<Moment>> moments;
  moments.push_back(*std::move(begin));
  size_t ahead = 1;
  while (next_ < steps_.size()) {
    if (token().stopped()) return token().status();
    absl::Status ran = RunStep(next_, lane);
    if (absl::IsResourceExhausted(ran) && may_repeat_ && !(free_.empty() && kept_.empty())) {
      // What steps before it used is there for it once they have ended.
      if (absl::Status s = backend.Settle(lane); !s.ok()) return s;
      free_.clear();
      kept_.clear();
      values_[value_of(next_)].placed.reset();
      ran = RunStep(next_, lane);
    }
    if (!ran.ok()) return OfStep(next_, ran);
    std::ranges::move(used_, std::back_inserter(kept_));
    used_.clear();
    absl::StatusOr<std::unique_ptr<Moment>> end = backend.Now(lane);
    if (!end.ok()) return end.status();
    moments.push_back(*std::move(end));
    Recycle(next_);
    ++next_;
    if (moments.size() > ahead + 1) {
      const size_t last = moments.size() - 1 - ahead;
      if (absl::Status passed = moments[last]->Await(); !passed.ok()) return passed;
      const absl::StatusOr<double> ms = moments[last]->MillisecondsSince(*moments[last - 1]);
      ahead = ms.ok() && *ms < kShortMilliseconds ? kAhead : 1;
    }
    if (Clock::now() - began > kTurn) break;
  }
  if (absl::Status s = queue.Settle(); !s.ok()) return s;
  kept_.clear();
  operands_.Settled();
  for (size_t i = first; i < next_; ++i) {
    const absl::StatusOr<double> ms =
        moments[i - first + 1]->MillisecondsSince(*moments[i - first]);
    if (!ms.ok()) return ms.status();
    Step& step = steps_[i];
    step.done.nanoseconds = static_cast<uint64_t>(*ms * 1e6);
    end_.timings.kernel_ns += step.done.nanoseconds;
    scheduler().AddBusy(device(), step.done.nanoseconds);
    if (!step.product) continue;
    const auto* const spmm = std::get_if<SpmmStep>(&spec_.steps[i]);
    RecordProduct(*impl_, device(), *step.matrix->pattern(), step.problem,
                  spmm != nullptr && spmm->beta != 0, step.kernel, step.done.nanoseconds);
  }
  return absl::OkStatus();
}

absl::Status ChainCall::RunStep(size_t i, Lane& lane) {
  const ChainStep& step = spec_.steps[i];
  may_repeat_ = true;
  used_.clear();
  if (const auto* spmm = std::get_if<SpmmStep>(&step)) return RunProduct(*spmm, i, lane);
  if (const auto* sddmm = std::get_if<SddmmStep>(&step)) return RunProduct(*sddmm, i, lane);
  if (const auto* softmax = std::get_if<SoftmaxStep>(&step)) return RunSoftmax(*softmax, i, lane);
  return RunSum(std::get<SumStep>(step), i, lane);
}

absl::StatusOr<Resolved> ChainCall::ResolveStep(const Step& step) {
  return Resolve(*impl_, device(), step.matrix, step.problem, step.plan);
}

absl::StatusOr<PlacedSparse> ChainCall::PlaceMatrix(const Step& step, Resolved& plan,
                                                    const std::optional<size_t>& values, bool masks,
                                                    Lane& lane) {
  Backend& backend = *lane.backend;
  const auto place = [&] {
    return values || masks
               ? backend.Place(plan.layout, nullptr, host_memory())
               : PlaceWithValues(*impl_, *step.matrix, plan.layout, lane, host_memory());
  };
  absl::StatusOr<PlacedSparse> s = place();
  // First what can be had by waiting.
  if (absl::IsResourceExhausted(s.status()) && free_.empty() && kept_.empty() &&
      FallBackToPlain(*impl_, device(), step.matrix, plan)) {
    s = place();
  }
  if (!s.ok()) return s;
  if (values) {
    absl::StatusOr<PlacedDense> canonical = InOrder(*values, OrderOf(step.matrix), lane);
    if (!canonical.ok()) return canonical.status();
    absl::StatusOr<std::shared_ptr<const Array>> ordered = backend.OrderValues(
        *canonical, *s->layout, backend.MemoryFor(MemoryUse::kRequests, owner_), lane);
    if (!ordered.ok()) return ordered.status();
    s->values = *std::move(ordered);
  }
  used_.push_back(s->layout);
  used_.push_back(s->values);
  return s;
}

absl::Status ChainCall::Multiply(Step& step, const Resolved& plan, const PlacedSparse& s,
                                 const PlacedDense& first, const PlacedDense* second,
                                 const PlacedDense& result, double alpha, double beta, Lane& lane) {
  Backend& backend = *lane.backend;
  const BoundRun run = BindProduct(plan, s, first, second, result, alpha, beta);
  step.kernel = run.kernel();
  step.done.plan = plan.text;
  const RunOptions options{lane.workspace, backend.memory(MemoryUse::kRequests), token().flag()};
  double milliseconds = 0;
  if (absl::Status status = backend.Run(lane, run, options, &milliseconds); !status.ok()) {
    return status;
  }
  return backend.ClearPadding(result, lane);
}

absl::Status ChainCall::RunProduct(const SpmmStep& spmm, size_t i, Lane& lane) {
  Step& step = steps_[i];
  absl::StatusOr<Resolved> plan = ResolveStep(step);
  if (!plan.ok()) return plan.status();
  const absl::StatusOr<PlacedSparse> s = PlaceMatrix(step, *plan, spmm.values, false, lane);
  if (!s.ok()) return s.status();
  const absl::StatusOr<PlacedDense> b = InOrder(spmm.b, nullptr, lane);
  if (!b.ok()) return b.status();
  Value& made = values_[value_of(i)];
  if (spmm.beta != 0) {
    Value& old = values_[*spmm.accumulate];
    const bool last = *spmm.accumulate >= spec_.operands.size() && old.last_use == i &&
                      *spmm.accumulate != spmm.b && spmm.accumulate != spmm.values;
    if (last && old.order == nullptr && !old.result && !made.result) {
      may_repeat_ = false;
      made.placed = std::exchange(old.placed, std::nullopt);
    } else {
      const absl::StatusOr<PlacedDense> from = InOrder(*spmm.accumulate, nullptr, lane);
      if (!from.ok()) return from.status();
      absl::StatusOr<PlacedDense> to = NewValue(i, lane);
      if (!to.ok()) return to.status();
      made.placed = *std::move(to);
      absl::Status copied = lane.backend->CopyDense(*from, *made.placed, lane);
      if (!copied.ok()) return copied;
    }
  } else {
    absl::StatusOr<PlacedDense> to = NewValue(i, lane);
    if (!to.ok()) return to.status();
    made.placed = *std::move(to);
  }
  return Multiply(step, *plan, *s, *b, nullptr, *made.placed, spmm.alpha, spmm.beta, lane);
}

absl::Status ChainCall::RunProduct(const SddmmStep& sddmm, size_t i, Lane& lane) {
  Step& step = steps_[i];
  absl::StatusOr<Resolved> plan = ResolveStep(step);
  if (!plan.ok()) return plan.status();
  const absl::StatusOr<PlacedSparse> s =
      PlaceMatrix(step, *plan, sddmm.values, sddmm.unscaled, lane);
  if (!s.ok()) return s.status();
  const absl::StatusOr<PlacedDense> a = InOrder(sddmm.a, nullptr, lane);
  if (!a.ok()) return a.status();
  const absl::StatusOr<PlacedDense> b = InOrder(sddmm.b, nullptr, lane);
  if (!b.ok()) return b.status();
  absl::StatusOr<PlacedDense> to = NewValue(i, lane);
  if (!to.ok()) return to.status();
  Value& made = values_[value_of(i)];
  made.placed = *std::move(to);
  return Multiply(step, *plan, *s, *a, &*b, *made.placed, 1, 0, lane);
}

absl::Status ChainCall::RunSum(const SumStep& sum, size_t i, Lane& lane) {
  Value& made = values_[value_of(i)];
  std::vector<WeightedTerm> terms;
  for (const SumStep::Term& term : sum.terms) {
    const absl::StatusOr<PlacedDense> placed = InOrder(term.value, made.order, lane);
    if (!placed.ok()) return placed.status();
    terms.push_back({term.factor, placed->View(placed->shape.cols)});
  }
  absl::StatusOr<PlacedDense> to = NewValue(i, lane);
  if (!to.ok()) return to.status();
  made.placed = *std::move(to);
  steps_[i].done.plan = "sum";
  if (absl::Status s = lane.backend->Sum(terms, *made.placed, lane); !s.ok()) return s;
  return lane.backend->ClearPadding(*made.placed, lane);
}

absl::Status ChainCall::RunSoftmax(const SoftmaxStep& softmax, size_t i, Lane& lane) {
  Step& step = steps_[i];
  const absl::StatusOr<std::shared_ptr<const Layout>> csr = step.matrix->pattern()->Csr();
  if (!csr.ok()) return csr.status();
  const absl::StatusOr<PlacedSparse> s = lane.backend->Place(*csr, nullptr, host_memory());
  if (!s.ok()) return s.status();
  used_.push_back(s->layout);
  Value& made = values_[value_of(i)];
  const absl::StatusOr<PlacedDense> from = InOrder(softmax.value, made.order, lane);
  if (!from.ok()) return from.status();
  absl::StatusOr<PlacedDense> gradient = PlacedDense();
  if (softmax.gradient) gradient = InOrder(*softmax.gradient, made.order, lane);
  if (!gradient.ok()) return gradient.status();
  absl::StatusOr<PlacedDense> to = NewValue(i, lane);
  if (!to.ok()) return to.status();
  made.placed = *std::move(to);
  step.done.plan = softmax.gradient ? "softmax gradient" : "softmax";
  return lane.backend->Softmax(*s->layout, softmax.scale, *from,
                               softmax.gradient ? &*gradient : nullptr, *made.placed, lane);
}

absl::StatusOr<PlacedDense> ChainCall::InOrder(size_t value, const MatrixLease& order, Lane& lane) {
  const Value& from = values_[value];
  if (from.order == order) return *from.placed;
  Backend& backend = *lane.backend;
  PlacedDense placed = *from.placed;
  if (from.order != nullptr) {
    const absl::StatusOr<std::shared_ptr<const Array>> indices =
        backend.PlaceIndices(from.order->caller_order());
    if (!indices.ok()) return indices.status();
    absl::StatusOr<PlacedDense> to = NewTemporary(from.shape, lane);
    if (!to.ok()) return to.status();
    used_.push_back(to->array);
    used_.push_back(*indices);
    if (absl::Status s = backend.Scatter(placed, indices->get(), *to, lane); !s.ok()) return s;
    placed = *std::move(to);
  }
  if (order != nullptr) {
    const absl::StatusOr<std::shared_ptr<const Array>> indices =
        backend.PlaceIndices(order->caller_order());
    if (!indices.ok()) return indices.status();
    absl::StatusOr<PlacedDense> to =
        backend.Gather(placed, **indices, backend.MemoryFor(MemoryUse::kRequests, owner_), lane);
    if (!to.ok()) return to.status();
    used_.push_back(to->array);
    used_.push_back(*indices);
    placed = *std::move(to);
  }
  return placed;
}

absl::StatusOr<PlacedDense> ChainCall::NewValue(size_t i, Lane& lane) {
  const Value& value = values_[value_of(i)];
  if (!value.result) return NewTemporary(value.shape, lane);
  return results_[*value.result].New("dense", owner_, lane);
}

absl::StatusOr<PlacedDense> ChainCall::NewTemporary(const DenseShape& shape, Lane& lane) {
  const auto same = std::ranges::find_if(free_, [&](const PlacedDense& free) {
    return free.shape.rows == shape.rows && free.shape.cols == shape.cols &&
           free.shape.type == shape.type;
  });
  if (same != free_.end()) {
    PlacedDense taken = std::move(*same);
    free_.erase(same);
    return taken;
  }
  Backend& backend = *lane.backend;
  MemorySource& memory = backend.MemoryFor(MemoryUse::kRequests, owner_);
  return backend.NewDense("dense", shape, memory, lane);
}

void ChainCall::Recycle(size_t i) {
  const auto recycle = [&](size_t index) {
    Value& value = values_[index];
    if (value.last_use != i || !value.placed) return;
    if (index < spec_.operands.size()) {
      kept_.push_back(value.placed->array);
    } else {
      free_.push_back(*std::move(value.placed));
    }
    value.placed.reset();
  };
  for (const size_t value : UsesOf(spec_.steps[i])) recycle(value);
  recycle(value_of(i));
}

absl::Status ChainCall::Send(Lane& lane) {
  Backend& backend = *lane.backend;
  const auto began = Clock::now();
  const DenseShape& first = results_[0].shape();
  CallBegin begin{fmt::format("chain of {}: {}", steps_.size(), steps_[0].done.plan),
                  0,
                  first.rows,
                  first.cols,
                  {}};
  for (const DenseResult& result : results_) {
    if (!result.streamed()) continue;
    begin.arrays.push_back(
        {begin.arrays.empty() ? "dense" : fmt::format("dense {}", begin.arrays.size()),
         result.shape().type, result.shape().elements()});
  }
  free_.clear();
  // What takes memory of the device first: until something was sent, all of it may run elsewhere.
  std::vector<PlacedDense> ready;
  for (size_t i = 0; i < results_.size(); ++i) {
    const size_t index = spec_.results[i].value;
    const Value& value = values_[index];
    if (value.result == i) {
      ready.push_back(*value.placed);
      continue;
    }
    absl::StatusOr<PlacedDense> to = results_[i].New("dense", owner_, lane);
    if (!to.ok()) return to.status();
    std::shared_ptr<const Array> order;
    if (value.order != nullptr) {
      absl::StatusOr<std::shared_ptr<const Array>> indices =
          backend.PlaceIndices(value.order->caller_order());
      if (!indices.ok()) return indices.status();
      order = *std::move(indices);
    }
    absl::Status s = backend.Scatter(*value.placed, order.get(), *to, lane);
    if (s.ok()) s = backend.ClearPadding(*to, lane);
    if (s.ok()) s = backend.Settle(lane);
    if (!s.ok()) return s;
    ready.push_back(*std::move(to));
  }
  sent_ = true;
  sink().OnBegin(std::move(begin));
  // Held ones last: others see them.
  uint32_t array = 0;
  for (const bool held : {false, true}) {
    for (size_t i = 0; i < results_.size(); ++i) {
      if (results_[i].kept() != held) continue;
      const bool streamed = results_[i].streamed();
      absl::Status s = results_[i].Send(std::move(ready[i]), backend, lane, array, host_memory(),
                                        impl_->budget.Source(MemoryUse::kBuffers, &owner_), sink());
      if (!s.ok()) return s;
      if (streamed) ++array;
    }
  }
  if (backend.id().kind != DeviceKind::kCpu) {
    end_.timings.from_device_ns += NanosecondsSince(began);
  }
  return absl::OkStatus();
}

}  // namespace sparsed::engine
