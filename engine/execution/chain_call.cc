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

/// Short steps that are queued behind the one that the host waits for, which it does when there are
/// twice as many: enough for the device never to wait. Of others one, so that a chain that is
/// cancelled ends soon.
constexpr size_t kAhead = 8;
constexpr double kShortMilliseconds = 1;

}  // namespace

/// While it lives the worker slot queues; then it waits for what is queued.
class ChainCall::Queue {
 public:
  explicit Queue(WorkerSlot& slot) : slot_(slot) { slot.queues = true; }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue() { Settle().IgnoreError(); }

  absl::Status Settle() {
    if (!std::exchange(slot_.queues, false)) return absl::OkStatus();
    return slot_.backend->Settle(slot_);
  }

 private:
  WorkerSlot& slot_;
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
  const int priority = spec.priority;
  auto call = std::make_shared<ChainCall>(std::move(impl), std::move(spec), std::move(sink));
  call->priority = priority;
  absl::Status status = call->Check();
  if (status.ok()) status = call->SetResults();
  if (status.ok()) status = call->ChooseDevice();
  if (status.ok()) status = call->operands_.ExpectStreams(call->impl_->gpu(call->device()));
  if (status.ok() && call->device().kind == DeviceKind::kCpu) {
    status = call->impl_->budget.MayFit(call->operands_.streamed_bytes() + call->PeakBytes(),
                                        MemoryUse::kRequests, &call->owner_);
  }
  if (status.ok()) status = call->Start(timeout_ns);
  if (!status.ok()) return status;
  return call;
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
    std::set<size_t> last;
    for (size_t made = steps_[i].value; made < values_end(i); ++made) {
      now += bytes_of(made);
      last.insert(made);
    }
    peak = std::max(peak, now);
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
    if (!step.planned()) continue;
    step.plan = step.matrix->pattern()->plans().Find(SignatureOf(step.problem));
    if (!step.reduces || step.plan.plan == nullptr) continue;
    const std::optional<LayoutKernel> kernel =
        FindLayoutKernel(Operation::kSpmm, step.plan.plan->plan.kernel);
    step.plain = !kernel || !kernel->reduces();
  }
}

absl::Status ChainCall::ChooseDevice() {
  TakePlans(impl_->first_choice());
  std::shared_ptr<const Layout> layout;
  for (const Step& step : steps_) {
    if (step.matrix == nullptr) continue;
    const bool planned = step.plan.plan != nullptr && step.plan.plan->layout != nullptr;
    layout = planned ? step.plan.plan->layout->Resident() : step.matrix->pattern()->resident_csr();
    break;
  }
  const absl::StatusOr<Backend*> backend =
      impl_->Place(spec_.part.device, layout, operands_.held());
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
      if (!step.planned()) {
        loaders.push_back(LoaderOf(matrix));
        if (step.on_transpose) loaders.push_back(LoaderOfTransposed(matrix));
      } else if (step.plain) {
        loaders.push_back(LoaderOf(matrix));
      } else if (seen.insert(step.plan.plan.get()).second) {
        loaders.push_back(LoaderOf(*impl_, device(), matrix, step.plan));
      }
    }
    if (matrix->caller_order() != nullptr) loaders.push_back(LoaderOf(matrix->caller_order()));
  }
  for (const ChainStep& step : spec_.steps) {
    const auto* const place = std::get_if<PlaceStep>(&step);
    if (place == nullptr) continue;
    for (const auto& order : place->orders) loaders.push_back(LoaderOf(order));
  }
  operands_.AppendLoaders(impl_->gpu(device()), loaders);
  return LoaderOf(std::move(loaders));
}

Job::Loader ChainCall::LoaderOfTransposed(const MatrixLease& matrix) const {
  // A worker slot of the CPU has more threads for it.
  if (device().kind == DeviceKind::kCpu ||
      impl_->derived->FindTransposed(matrix->pattern()) != nullptr) {
    return nullptr;
  }
  return [impl = impl_, matrix](const std::atomic<bool>* stop) -> Held {
    BuildContext context;
    context.stop = stop;
    absl::StatusOr<std::shared_ptr<const Layout>> built =
        impl->derived->Transposed(matrix->pattern(), context);
    // Whoever runs the call afterwards meets the same error and reports it.
    return built.ok() ? Held{*std::move(built)} : Held();
  };
}

void ChainCall::Drop() {
  Restart();
  for (DenseResult& result : results_) result.Drop();
  spec_.operands.clear();
  spec_.results.clear();
  spec_.part = {};
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
  shown_.reset();
  kept_shown_.reset();
  for (Step& step : steps_) {
    step.cut.reset();
    step.done.nanoseconds = 0;
  }
}

Job::Next ChainCall::Run(WorkerSlot& slot, absl::Status* end) {
  *end = CheckedOn(*slot.backend, token(), RunSteps(slot));
  if (end->ok() && next_ < steps_.size()) return Next::kAgain;
  if (end->ok()) {
    *end = CheckedOn(*slot.backend, token(), Send(slot));
    if (end->ok()) {
      const double seconds = 1e-9 * static_cast<double>(end_.timings.kernel_ns);
      scheduler().costs(device()).Took(Kind(), Operation::kSpmm, Work(), seconds);
      for (Step& step : steps_) end_.steps.push_back(std::move(step.done));
      return Next::kEnded;
    }
  }
  const bool elsewhere = absl::IsResourceExhausted(*end) || absl::IsUnimplemented(*end);
  // Others read what this part computes, on its GPU.
  const bool stays = device().kind == DeviceKind::kCpu || spec_.part.exchange != nullptr;
  if (stays || sent_ || !elsewhere) return Next::kEnded;
  Restart();
  // Without room on the host either, what the device said stands.
  absl::Status moved = operands_.MoveToHost(token());
  if (moved.ok()) {
    moved = impl_->budget.MayFit(operands_.streamed_bytes() + PeakBytes(), MemoryUse::kRequests,
                                 &owner_);
  }
  if (!moved.ok()) {
    if (!absl::IsResourceExhausted(moved)) *end = std::move(moved);
    return Next::kEnded;
  }
  slot.gpu->prepared.Clear();  // it may be what there is no room for
  TakePlans(DeviceKind::kCpu);
  MoveTo(DeviceId{});
  return Next::kAgain;
}

absl::Status ChainCall::PlaceOperands(WorkerSlot& slot) {
  const auto begin = Clock::now();
  for (size_t i = 0; i < operands_.size(); ++i) {
    absl::StatusOr<PlacedDense> placed = operands_[i].On(*slot.backend, slot, token());
    if (!placed.ok()) return placed.status();
    values_[i].placed = *std::move(placed);
  }
  placed_ = true;
  if (slot.backend->id().kind != DeviceKind::kCpu) {
    end_.timings.to_device_ns += NanosecondsSince(begin);
  }
  return absl::OkStatus();
}

absl::Status ChainCall::RunSteps(WorkerSlot& slot) {
  Backend& backend = *slot.backend;
  if (!placed_) {
    const absl::Status s = PlaceOperands(slot);
    if (!s.ok() && slot.fetches) backend.Settle(slot).IgnoreError();
    if (!s.ok()) return s;
  }
  const size_t first = next_;
  const auto began = Clock::now();
  Queue queue(slot);
  absl::StatusOr<std::unique_ptr<Moment>> begin = backend.Now(slot);
  if (!begin.ok()) return begin.status();
  std::vector<std::unique_ptr<Moment>> moments;
  moments.push_back(*std::move(begin));
  size_t ahead = 1, passed = 0;  // a moment that was waited for
  while (next_ < steps_.size()) {
    if (token().stopped()) return token().status();
    absl::Status ran = steps_[next_].cut ? GoOn(steps_[next_], slot) : RunStep(next_, slot);
    if (absl::IsResourceExhausted(ran) && may_repeat_ && !(free_.empty() && kept_.empty())) {
      // What steps before it used is there for it once they have ended.
      if (absl::Status s = backend.Settle(slot); !s.ok()) return s;
      free_.clear();
      kept_.clear();
      for (size_t made = steps_[next_].value; made < values_end(next_); ++made) {
        values_[made].placed.reset();
      }
      ran = RunStep(next_, slot);
    }
    if (!ran.ok()) return OfStep(next_, ran);
    std::ranges::move(used_, std::back_inserter(kept_));
    used_.clear();
    absl::StatusOr<std::unique_ptr<Moment>> end = backend.Now(slot);
    if (!end.ok()) return end.status();
    moments.push_back(*std::move(end));
    if (steps_[next_].cut != nullptr) break;  // others' turn
    Recycle(next_);
    ++next_;
    // Not for each of them: to wait costs the host a part of what a short step takes.
    if (moments.size() - 1 - passed >= 2 * ahead) {
      const size_t last = moments.size() - 1 - ahead;
      if (absl::Status s = moments[last]->Await(); !s.ok()) return s;
      const absl::StatusOr<double> ms = moments[last]->MillisecondsSince(*moments[passed]);
      const auto steps = static_cast<double>(last - passed);
      ahead = ms.ok() && *ms < kShortMilliseconds * steps ? kAhead : 1;
      passed = last;
    }
    const std::chrono::duration<double> turn = Clock::now() - began;
    if (turn.count() > kTurnSeconds && next_ < steps_.size() && GivesWay()) break;
  }
  if (absl::Status s = queue.Settle(); !s.ok()) return s;
  kept_.clear();
  operands_.Settled();
  for (size_t i = first; i - first + 1 < moments.size(); ++i) {
    const absl::StatusOr<double> ms =
        moments[i - first + 1]->MillisecondsSince(*moments[i - first]);
    if (!ms.ok()) return ms.status();
    Step& step = steps_[i];
    const auto nanoseconds = static_cast<uint64_t>(*ms * 1e6);
    step.done.nanoseconds += nanoseconds;  // one that was cut has several parts
    end_.timings.kernel_ns += nanoseconds;
    AddBusy(nanoseconds);
    if (!step.product || step.kernel.empty() || step.cut != nullptr) continue;
    const auto* const spmm = std::get_if<SpmmStep>(&spec_.steps[i]);
    RecordProduct(*impl_, device(), *step.matrix->pattern(), step.problem,
                  spmm != nullptr && spmm->beta != 0, step.kernel, step.done.nanoseconds,
                  step.heads);
  }
  return absl::OkStatus();
}

absl::Status ChainCall::RunStep(size_t i, WorkerSlot& slot) {
  may_repeat_ = true;
  used_.clear();
  // Until then steps run beside what comes from other GPUs.
  const std::vector<size_t> uses = UsesOf(spec_.steps[i]);
  // What a step shows to others is no use of it here.
  const bool shows = std::holds_alternative<FetchStep>(spec_.steps[i]);
  const bool fetched = slot.fetches && !shows &&
                       std::ranges::any_of(uses, [&](size_t value) { return IsFetched(value); });
  if (fetched) {
    if (absl::Status s = slot.backend->AwaitFetched(slot); !s.ok()) return s;
  }
  return std::visit([&](const auto& spec) { return Run(spec, i, slot); }, spec_.steps[i]);
}

bool ChainCall::IsFetched(size_t value) const {
  if (value < operands_.size()) {
    return std::holds_alternative<Operand::Fetched>(operands_[value].source);
  }
  return std::holds_alternative<FetchStep>(spec_.steps[values_[value].made]);
}

absl::StatusOr<Resolved> ChainCall::ResolveStep(const Step& step) {
  return Resolve(*impl_, device(), step.matrix, step.problem, step.plan, IsTrial(tenant()));
}

absl::StatusOr<PlacedSparse> ChainCall::PlaceMatrix(const Step& step, Resolved& plan,
                                                    const std::optional<size_t>& values, bool masks,
                                                    WorkerSlot& slot) {
  Backend& backend = *slot.backend;
  const auto place = [&] {
    return values || masks
               ? backend.Place(plan.layout, nullptr, host_memory())
               : PlaceWithValues(*impl_, *step.matrix, plan.layout, slot, host_memory());
  };
  absl::StatusOr<PlacedSparse> s = place();
  // First what can be had by waiting.
  if (absl::IsResourceExhausted(s.status()) && free_.empty() && kept_.empty() &&
      FallBackToPlain(*impl_, device(), step.matrix, plan)) {
    s = place();
  }
  if (!s.ok()) return s;
  if (values) {
    absl::StatusOr<PlacedDense> canonical = InOrder(*values, OrderOf(step.matrix), slot);
    if (!canonical.ok()) return canonical.status();
    absl::StatusOr<std::shared_ptr<const Array>> ordered = backend.OrderValues(
        *canonical, *s->layout, backend.MemoryFor(MemoryUse::kRequests, owner_), slot);
    if (!ordered.ok()) return ordered.status();
    s->values = *std::move(ordered);
  }
  used_.push_back(s->layout);
  used_.push_back(s->values);
  return s;
}

absl::StatusOr<std::shared_ptr<const Layout>> ChainCall::RowsOf(const MatrixLease& matrix,
                                                                bool transposed, WorkerSlot& slot) {
  if (!transposed) return matrix->pattern()->Csr();
  BuildContext context;
  context.threads = slot.threads;
  context.stop = token().flag();
  return impl_->derived->Transposed(matrix->pattern(), context);
}

absl::StatusOr<std::shared_ptr<const Layout>> ChainCall::PlacePattern(const MatrixLease& matrix,
                                                                      bool transposed,
                                                                      WorkerSlot& slot) {
  const absl::StatusOr<std::shared_ptr<const Layout>> rows = RowsOf(matrix, transposed, slot);
  if (!rows.ok()) return rows.status();
  absl::StatusOr<PlacedSparse> placed = slot.backend->Place(*rows, nullptr, host_memory());
  if (!placed.ok()) return placed.status();
  used_.push_back(placed->layout);
  return std::move(placed->layout);
}

absl::StatusOr<ChainCall::PlacedRows> ChainCall::PlaceRows(const Step& step,
                                                           const std::optional<size_t>& values,
                                                           bool masks, WorkerSlot& slot) {
  const absl::StatusOr<std::shared_ptr<const Layout>> rows =
      RowsOf(step.matrix, step.on_transpose, slot);
  if (!rows.ok()) return rows.status();
  const absl::StatusOr<PlacedSparse> s =
      values || masks ? slot.backend->Place(*rows, nullptr, host_memory())
                      : PlaceWithValues(*impl_, *step.matrix, *rows, slot, host_memory());
  if (!s.ok()) return s.status();
  used_.push_back(s->layout);
  used_.push_back(s->values);
  PlacedRows placed = {s->layout, {}, /*by_slot=*/true};
  if (values) {
    absl::StatusOr<PlacedDense> canonical = InOrder(*values, OrderOf(step.matrix), slot);
    if (!canonical.ok()) return canonical.status();
    placed.values = canonical->View(canonical->shape.cols);
    placed.by_slot = false;
  } else if (!masks) {
    placed.values = {s->values->buffer.data(), s->layout->nnz, 1, 1};
  }
  return placed;
}

absl::Status ChainCall::Run(const SpmmStep& spmm, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  if (!step.planned()) return RunHeads(spmm, i, slot);
  absl::StatusOr<Resolved> plan = ResolveStep(step);
  if (!plan.ok()) return plan.status();
  const absl::StatusOr<PlacedSparse> s = PlaceMatrix(step, *plan, spmm.values, false, slot);
  if (!s.ok()) return s.status();
  const absl::StatusOr<PlacedDense> b = InOrder(spmm.b, nullptr, slot);
  if (!b.ok()) return b.status();
  const absl::StatusOr<PlacedDense> c = NewResult(spmm, i, slot);
  if (!c.ok()) return c.status();
  return Multiply(step, *plan, *s, *b, nullptr, *c, spmm.alpha, spmm.beta, Reduction::kSum, slot);
}

absl::Status ChainCall::RunHeads(const SpmmStep& spmm, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  const absl::StatusOr<PlacedRows> s = PlaceRows(step, spmm.values, false, slot);
  if (!s.ok()) return s.status();
  const absl::StatusOr<PlacedDense> b = InOrder(spmm.b, nullptr, slot);
  if (!b.ok()) return b.status();
  const absl::StatusOr<PlacedDense> c = NewResult(spmm, i, slot);
  if (!c.ok()) return c.status();
  const bool on_cpu = slot.backend->id().kind == DeviceKind::kCpu;
  step.kernel = on_cpu ? "cpu.csr.head_products" : "cuda.csr.head_products";
  step.done.plan = fmt::format("{} / {}", s->layout->pipeline, step.kernel);
  RowProducts products{*s->layout};
  products.values = s->values;
  products.values_by_slot = s->by_slot;
  products.b = b->View(b->shape.cols);
  products.c = c->MutableView(c->shape.cols);
  products.alpha = spmm.alpha;
  products.beta = spmm.beta;
  absl::Status done = slot.backend->ComputeRowProducts(products, c->shape.type, slot);
  return done.ok() ? slot.backend->ClearPadding(*c, slot) : done;
}

absl::Status ChainCall::Run(const SddmmStep& sddmm, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  if (!step.planned()) return RunHeads(sddmm, i, slot);
  absl::StatusOr<Resolved> plan = ResolveStep(step);
  if (!plan.ok()) return plan.status();
  const absl::StatusOr<PlacedSparse> s =
      PlaceMatrix(step, *plan, sddmm.values, sddmm.unscaled, slot);
  if (!s.ok()) return s.status();
  const absl::StatusOr<PlacedDense> a = InOrder(sddmm.a, nullptr, slot);
  if (!a.ok()) return a.status();
  const absl::StatusOr<PlacedDense> b = InOrder(sddmm.b, nullptr, slot);
  if (!b.ok()) return b.status();
  const absl::StatusOr<PlacedDense> o = NewValue(step.value, slot);
  if (!o.ok()) return o.status();
  return Multiply(step, *plan, *s, *a, &*b, *o, 1, 0, Reduction::kSum, slot);
}

absl::Status ChainCall::RunHeads(const SddmmStep& sddmm, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  const absl::StatusOr<PlacedRows> s = PlaceRows(step, sddmm.values, sddmm.unscaled, slot);
  if (!s.ok()) return s.status();
  const absl::StatusOr<PlacedDense> a = InOrder(sddmm.a, nullptr, slot);
  if (!a.ok()) return a.status();
  const absl::StatusOr<PlacedDense> b = InOrder(sddmm.b, nullptr, slot);
  if (!b.ok()) return b.status();
  const absl::StatusOr<PlacedDense> o = NewValue(step.value, slot);
  if (!o.ok()) return o.status();
  const bool on_cpu = slot.backend->id().kind == DeviceKind::kCpu;
  step.kernel = on_cpu ? "cpu.csr.head_dots" : "cuda.csr.head_dots";
  step.done.plan = fmt::format("{} / {}", s->layout->pipeline, step.kernel);
  HeadDots dots{*s->layout};
  dots.values = s->values;
  dots.a = a->View(a->shape.cols);
  dots.b = b->View(b->shape.cols);
  dots.out = o->MutableView(o->shape.cols);
  absl::Status done = slot.backend->ComputeHeadDots(dots, o->shape.type, slot);
  return done.ok() ? slot.backend->ClearPadding(*o, slot) : done;
}

absl::Status ChainCall::Run(const ReduceStep& reduce, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  if (!step.planned()) return RunRows(reduce, i, slot);
  absl::StatusOr<Resolved> plan =
      step.plain ? ResolvePlain(step.matrix, step.problem) : ResolveStep(step);
  if (!plan.ok()) return plan.status();
  const absl::StatusOr<PlacedSparse> s =
      PlaceMatrix(step, *plan, reduce.values, reduce.unscaled, slot);
  if (!s.ok()) return s.status();
  const absl::StatusOr<PlacedDense> b = InOrder(reduce.b, nullptr, slot);
  if (!b.ok()) return b.status();
  const absl::StatusOr<PlacedDense> c = NewValue(step.value, slot);
  if (!c.ok()) return c.status();
  return Multiply(step, *plan, *s, *b, nullptr, *c, 1, 0, reduce.reduction, slot);
}

absl::Status ChainCall::RunRows(const ReduceStep& reduce, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  const absl::StatusOr<PlacedRows> s = PlaceRows(step, reduce.values, reduce.unscaled, slot);
  if (!s.ok()) return s.status();
  const absl::StatusOr<PlacedDense> b = InOrder(reduce.b, nullptr, slot);
  if (!b.ok()) return b.status();
  const absl::StatusOr<PlacedDense> c = NewValue(step.value, slot);
  if (!c.ok()) return c.status();
  RowProducts products{*s->layout};
  products.reduction = reduce.reduction;
  products.values = s->values;
  products.values_by_slot = s->by_slot;
  products.b = b->View(b->shape.cols);
  products.c = c->MutableView(c->shape.cols);
  absl::StatusOr<PlacedDense> arguments = PlacedDense();
  if (reduce.arguments) {
    arguments = NewValue(step.value + 1, slot);
    if (!arguments.ok()) return arguments.status();
    products.arguments = arguments->MutableView(arguments->shape.cols);
    if (step.matrix->caller_order() != nullptr) {
      const absl::StatusOr<std::shared_ptr<const Array>> order =
          slot.backend->PlaceIndices(step.matrix->caller_order());
      if (!order.ok()) return order.status();
      used_.push_back(*order);
      products.positions = (*order)->As<int64_t>();
    }
  }
  step.done.plan = Name(reduce.reduction);
  absl::Status done = slot.backend->ComputeRowProducts(products, c->shape.type, slot);
  if (done.ok()) done = slot.backend->ClearPadding(*c, slot);
  if (done.ok() && reduce.arguments) done = slot.backend->ClearPadding(*arguments, slot);
  return done;
}

absl::Status ChainCall::Run(const ScaleStep& scale, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  const absl::StatusOr<PlacedRows> s = PlaceRows(step, scale.value, false, slot);
  if (!s.ok()) return s.status();
  NonzeroScaling scaling{*s->layout};
  scaling.x = s->values;
  const auto place = [&](const std::optional<size_t>& value, ConstDense& factors) {
    if (!value) return absl::OkStatus();
    const absl::StatusOr<PlacedDense> placed = InOrder(*value, nullptr, slot);
    if (placed.ok()) factors = placed->View(placed->shape.cols);
    return placed.status();
  };
  absl::Status done = place(scale.rows, scaling.rows);
  if (done.ok()) done = place(scale.cols, scaling.cols);
  if (!done.ok()) return done;
  const absl::StatusOr<PlacedDense> y = NewValue(step.value, slot);
  if (!y.ok()) return y.status();
  scaling.y = y->MutableView(y->shape.cols);
  step.done.plan = "scale";
  done = slot.backend->ScaleNonzeros(scaling, y->shape.type, slot);
  return done.ok() ? slot.backend->ClearPadding(*y, slot) : done;
}

absl::Status ChainCall::Run(const TotalStep& total, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  const absl::StatusOr<PlacedRows> s = PlaceRows(step, total.value, false, slot);
  if (!s.ok()) return s.status();
  const absl::StatusOr<PlacedDense> y = NewValue(step.value, slot);
  if (!y.ok()) return y.status();
  NonzeroTotals totals{*s->layout};
  totals.x = s->values;
  totals.x_by_slot = s->by_slot;
  totals.y = y->MutableView(y->shape.cols);
  step.done.plan = "total";
  absl::Status done = slot.backend->TotalNonzeros(totals, y->shape.type, slot);
  return done.ok() ? slot.backend->ClearPadding(*y, slot) : done;
}

absl::Status ChainCall::Run(const SumStep& sum, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  std::vector<WeightedTerm> terms;
  for (const SumStep::Term& term : sum.terms) {
    const absl::StatusOr<PlacedDense> placed = InOrder(term.value, values_[step.value].order, slot);
    if (!placed.ok()) return placed.status();
    terms.push_back({term.factor, placed->View(placed->shape.cols)});
  }
  const absl::StatusOr<PlacedDense> to = NewValue(step.value, slot);
  if (!to.ok()) return to.status();
  step.done.plan = "sum";
  if (absl::Status s = slot.backend->Sum(terms, *to, slot); !s.ok()) return s;
  return slot.backend->ClearPadding(*to, slot);
}

absl::Status ChainCall::Run(const PlaceStep& place, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  const absl::StatusOr<PlacedDense> to = NewValue(step.value, slot);
  if (!to.ok()) return to.status();
  step.done.plan = "place";
  for (size_t j = 0; j < place.values.size(); ++j) {
    const absl::StatusOr<PlacedDense> from = InOrder(place.values[j], nullptr, slot);
    if (!from.ok()) return from.status();
    const absl::StatusOr<std::shared_ptr<const Array>> order =
        slot.backend->PlaceIndices(place.orders[j]);
    if (!order.ok()) return order.status();
    used_.push_back(*order);
    if (absl::Status s = slot.backend->Scatter(*from, order->get(), *to, slot); !s.ok()) return s;
  }
  return slot.backend->ClearPadding(*to, slot);
}

absl::Status ChainCall::Run(const FetchStep& fetch, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  step.done.plan = "fetch";
  GpuBackend* const gpu = impl_->gpu(device());
  if (gpu == nullptr) return absl::ResourceExhaustedError("others read what it computes on a GPU");
  may_repeat_ = false;  // the others would not come by again
  absl::StatusOr<std::shared_ptr<const cuda::Event>> ready = gpu->Mark(slot.gpu->stream);
  if (!ready.ok()) return ready.status();
  absl::StatusOr<std::vector<PartExchange::Shown>> all = spec_.part.exchange->Meet(
      spec_.part.index, {*values_[fetch.value].placed, *ready, std::exchange(read_, nullptr)},
      token());
  if (!all.ok()) return all.status();
  const auto shown = std::make_shared<const std::vector<PartExchange::Shown>>(*std::move(all));
  used_.push_back(shown);
  // What was shown before is read, and may be written anew.
  for (const PartExchange::Shown& of : *shown) {
    if (of.read == nullptr) continue;
    if (absl::Status s = of.read->Hold(slot.gpu->stream); !s.ok()) return s;
  }
  if (kept_shown_) free_.push_back(*std::exchange(kept_shown_, std::nullopt));
  shown_ = fetch.value;
  if (fetch.rows == 0) return absl::OkStatus();
  const absl::StatusOr<PlacedDense> to = NewValue(step.value, slot);
  if (!to.ok()) return to.status();
  absl::Status fetched = slot.backend->ClearPadding(*to, slot);
  // The memory may have been another value's.
  if (fetched.ok()) fetched = (*ready)->Hold(slot.gpu->second);
  slot.fetches = true;
  int64_t first = 0;
  for (size_t part = 0; part < fetch.from.size() && fetched.ok(); ++part) {
    const FetchStep::From& from = fetch.from[part];
    if (from.count == 0) continue;
    fetched = (*shown)[part].ready->Hold(slot.gpu->second);
    if (fetched.ok()) {
      fetched =
          gpu->FetchShown((*shown)[part].value, from.rows, from.count, *to, first, used_, slot);
    }
    first += from.count;
  }
  if (!fetched.ok()) return fetched;
  absl::StatusOr<std::shared_ptr<const cuda::Event>> read = gpu->Mark(slot.gpu->second);
  if (!read.ok()) return read.status();
  read_ = *std::move(read);
  return absl::OkStatus();
}

absl::Status ChainCall::Run(const SoftmaxStep& softmax, size_t i, WorkerSlot& slot) {
  Step& step = steps_[i];
  const absl::StatusOr<std::shared_ptr<const Layout>> rows =
      PlacePattern(step.matrix, /*transposed=*/false, slot);
  if (!rows.ok()) return rows.status();
  const MatrixLease& order = values_[step.value].order;
  const absl::StatusOr<PlacedDense> from = InOrder(softmax.value, order, slot);
  if (!from.ok()) return from.status();
  absl::StatusOr<PlacedDense> gradient = PlacedDense();
  if (softmax.gradient) gradient = InOrder(*softmax.gradient, order, slot);
  if (!gradient.ok()) return gradient.status();
  const absl::StatusOr<PlacedDense> to = NewValue(step.value, slot);
  if (!to.ok()) return to.status();
  step.done.plan = softmax.gradient ? "softmax gradient" : "softmax";
  absl::Status done = slot.backend->Softmax(**rows, softmax.scale, *from,
                                            softmax.gradient ? &*gradient : nullptr, *to, slot);
  return done.ok() ? slot.backend->ClearPadding(*to, slot) : done;
}

absl::StatusOr<PlacedDense> ChainCall::NewResult(const SpmmStep& spmm, size_t i, WorkerSlot& slot) {
  const size_t index = steps_[i].value;
  if (spmm.beta == 0) return NewValue(index, slot);
  Value& made = values_[index];
  Value& old = values_[*spmm.accumulate];
  if (IsLastUse(spmm, i) && old.result == made.result) {
    may_repeat_ = false;
    made.placed = std::exchange(old.placed, std::nullopt);
    return *made.placed;
  }
  const absl::StatusOr<PlacedDense> from = InOrder(*spmm.accumulate, nullptr, slot);
  if (!from.ok()) return from.status();
  absl::StatusOr<PlacedDense> to = NewValue(index, slot);
  if (!to.ok()) return to;
  absl::Status copied = slot.backend->CopyDense(*from, *to, slot);
  if (!copied.ok()) return copied;
  return to;
}

absl::StatusOr<PlacedDense> ChainCall::InOrder(size_t value, const MatrixLease& order,
                                               WorkerSlot& slot) {
  const Value& from = values_[value];
  if (from.order == order) return *from.placed;
  Backend& backend = *slot.backend;
  PlacedDense placed = *from.placed;
  if (from.order != nullptr) {
    const absl::StatusOr<std::shared_ptr<const Array>> indices =
        backend.PlaceIndices(from.order->caller_order());
    if (!indices.ok()) return indices.status();
    absl::StatusOr<PlacedDense> to = NewTemporary(from.shape, slot);
    if (!to.ok()) return to.status();
    used_.push_back(to->array);
    used_.push_back(*indices);
    absl::Status scattered = backend.Scatter(placed, indices->get(), *to, slot);
    if (scattered.ok()) scattered = backend.ClearPadding(*to, slot);
    if (!scattered.ok()) return scattered;
    placed = *std::move(to);
  }
  if (order != nullptr) {
    const absl::StatusOr<std::shared_ptr<const Array>> indices =
        backend.PlaceIndices(order->caller_order());
    if (!indices.ok()) return indices.status();
    absl::StatusOr<PlacedDense> to =
        backend.Gather(placed, **indices, backend.MemoryFor(MemoryUse::kRequests, owner_), slot);
    if (!to.ok()) return to.status();
    used_.push_back(to->array);
    used_.push_back(*indices);
    placed = *std::move(to);
  }
  return placed;
}

absl::StatusOr<PlacedDense> ChainCall::NewValue(size_t index, WorkerSlot& slot) {
  Value& value = values_[index];
  absl::StatusOr<PlacedDense> placed = value.result
                                           ? results_[*value.result].New("dense", owner_, slot)
                                           : NewTemporary(value.shape, slot);
  if (placed.ok()) value.placed = *placed;
  return placed;
}

absl::StatusOr<PlacedDense> ChainCall::NewTemporary(const DenseShape& shape, WorkerSlot& slot) {
  const auto same = std::ranges::find_if(free_, [&](const PlacedDense& free) {
    return free.shape.rows == shape.rows && free.shape.cols == shape.cols &&
           free.shape.type == shape.type;
  });
  if (same != free_.end()) {
    PlacedDense taken = std::move(*same);
    free_.erase(same);
    return taken;
  }
  Backend& backend = *slot.backend;
  MemorySource& memory = backend.MemoryFor(MemoryUse::kRequests, owner_);
  return backend.NewDense("dense", shape, memory, slot);
}

void ChainCall::Recycle(size_t i) {
  const auto recycle = [&](size_t index) {
    Value& value = values_[index];
    if (value.last_use != i || !value.placed) return;
    if (index < spec_.operands.size()) {
      kept_.push_back(value.placed->array);
    } else if (shown_ == index) {
      kept_shown_ = *std::move(value.placed);
    } else {
      free_.push_back(*std::move(value.placed));
    }
    value.placed.reset();
  };
  for (const size_t value : UsesOf(spec_.steps[i])) recycle(value);
  for (size_t made = steps_[i].value; made < values_end(i); ++made) recycle(made);
}

absl::Status ChainCall::Send(WorkerSlot& slot) {
  Backend& backend = *slot.backend;
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
    absl::StatusOr<PlacedDense> to = results_[i].New("dense", owner_, slot);
    if (!to.ok()) return to.status();
    std::shared_ptr<const Array> order;
    if (value.order != nullptr) {
      absl::StatusOr<std::shared_ptr<const Array>> indices =
          backend.PlaceIndices(value.order->caller_order());
      if (!indices.ok()) return indices.status();
      order = *std::move(indices);
    }
    absl::Status s = backend.Scatter(*value.placed, order.get(), *to, slot);
    if (s.ok()) s = backend.ClearPadding(*to, slot);
    if (s.ok()) s = backend.Settle(slot);
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
      absl::Status s = results_[i].Send(std::move(ready[i]), backend, slot, array, host_memory(),
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
