// SpMM and SDDMM calls that run whole: everything is placed, then one kernel computes it; a long
// one on the CPU in pieces, between which others may have the worker slot.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "engine/execution/dense_call.h"
#include "engine/execution/dense_product.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

double DenseCall::LongWork() const {
  return engine::LongWork(impl_->cpu.constants(), DeviceKind::kCpu);
}

double DenseCall::Work() const {
  return static_cast<double>(matrix_->pattern()->nnz()) * static_cast<double>(problem_.k);
}

double DenseCall::SecondsAlone(int64_t columns) const {
  Problem problem = problem_;
  problem.k = columns;
  const PlanTable::Found found =
      columns == problem_.k ? plan_ : matrix_->pattern()->plans().Find(SignatureOf(problem));
  const bool planned = found.plan != nullptr && found.plan->layout != nullptr;
  const double times =
      columns == problem_.k ? 1 : static_cast<double>(columns) / static_cast<double>(problem_.k);
  const DeviceConstants constants = impl_->backend(device()).constants();
  double kernel = times * Work() / UsualRate(constants);
  if (found.exact && found.plan->plan.plan_ms > 0) {
    const Plan& plan = found.plan->plan;
    kernel = 1e-3 * plan.plan_ms * static_cast<double>(columns) / plan.signature.k_bucket;
  }
  // What is copied on the worker slot; what comes in the stream is there before. Memory that is
  // shared with the caller is pinned.
  double bytes_in = 0, bytes_out = 0, shared_bytes = 0;
  const Residency& residency = impl_->gpu(device())->device().residency();
  const std::shared_ptr<const Layout> layout =
      planned ? found.plan->layout->Resident() : matrix_->pattern()->resident_csr();
  if (layout == nullptr || !residency.Has(layout)) {
    bytes_in += static_cast<double>(matrix_->pattern()->nnz()) *
                static_cast<double>(sizeof(int32_t) + SizeOf(problem_.type));
  }
  for (const Operand& operand : operands_) {
    const auto* const held = std::get_if<Operand::Held>(&operand.source);
    const double bytes = times * static_cast<double>(BytesOf(operand.shape));
    if (held != nullptr && residency.PresenceOf(*held) == Residency::Presence::kNothing) {
      bytes_in += bytes;
    } else if (std::holds_alternative<Operand::Shared>(operand.source)) {
      shared_bytes += bytes;
    }
  }
  if (!result_.kept() && result_.gpu() == nullptr) {
    const double bytes = times * static_cast<double>(BytesOf(result_.shape()));
    (result_.shared() ? shared_bytes : bytes_out) += bytes;
  }
  return kernel + bytes_in / constants.to_device_bytes_per_second +
         bytes_out / constants.from_device_bytes_per_second +
         shared_bytes / constants.link_bytes_per_second;
}

uint64_t DenseCall::Kind() const {
  const ProblemSignature c = SignatureOf(problem_);
  uint64_t kind = reinterpret_cast<uintptr_t>(matrix_->pattern().get());
  for (const uint64_t part :
       {static_cast<uint64_t>(c.operation), uint64_t{c.transposed}, static_cast<uint64_t>(c.type),
        static_cast<uint64_t>(c.k_bucket), uint64_t{c.allow_tf32}, uint64_t{own_values_}}) {
    kind = MixKind(kind, part);
  }
  return kind;
}

Job::Cost DenseCall::Predict() const {
  if (queue_.queue != nullptr) return {};
  Forecast all = impl_->scheduler->costs(device()).Of(Kind(), problem_.operation, Work());
  if (!all.measured && plan_.exact && plan_.plan->plan.plan_ms > 0) {
    const Plan& plan = plan_.plan->plan;
    all = {1e-3 * plan.plan_ms * static_cast<double>(problem_.k) / plan.signature.k_bucket,
           /*measured=*/true};
  }
  Cost cost = {.next_seconds = all.seconds, .rest_seconds = all.measured ? all.seconds : 0};
  // What runs on a GPU is not cut: blocks of short ones' kernels go before its own.
  if (device().kind != DeviceKind::kCpu) {
    cost.is_long = SecondsAlone(problem_.k) > kShortOnGpuSeconds;
    return cost;
  }
  cost.is_long = Work() >= LongWork();
  if (!cost.is_long) return cost;
  cost.next_seconds = std::min(cost.next_seconds, kPieceSeconds);
  if (whole_ != nullptr) {
    const double taken = 1e-9 * static_cast<double>(end_.timings.kernel_ns);
    cost.rest_seconds = std::max(0.0, cost.rest_seconds - taken);
  }
  return cost;
}

absl::Status DenseCall::PlaceWhole(Resolved& plan, WorkerSlot& slot) {
  Backend& backend = *slot.backend;
  const bool sddmm = problem_.operation == Operation::kSddmm;
  const auto begin = Clock::now();
  absl::StatusOr<PlacedSparse> s = PlaceMatrix(plan, slot);
  if (!s.ok()) return s.status();
  absl::StatusOr<PlacedDense> first = operands_[0].On(backend, slot, token());
  if (!first.ok()) return first.status();
  absl::StatusOr<PlacedDense> second = PlacedDense();
  if (sddmm) {
    second = operands_[1].On(backend, slot, token());
    if (!second.ok()) return second.status();
  }
  absl::StatusOr<PlacedDense> result = NewResult(slot);
  if (!result.ok()) return result.status();
  PlacedDense written = *result;
  std::shared_ptr<const Array> order;
  if (!writes_in_order(*result)) {
    const DenseShape packed = {result_.shape().rows, 1, 1, result_.shape().type};
    absl::StatusOr<PlacedDense> canonical =
        backend.NewDense("values", packed, backend.MemoryFor(MemoryUse::kRequests, owner_), slot);
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
  const BoundRun run =
      BindProduct(plan, *s, *first, sddmm ? &*second : nullptr, written, alpha_, beta_);
  whole_ = std::make_unique<Whole>(Whole{.plan = plan.text,
                                         .s = *std::move(s),
                                         .first = *std::move(first),
                                         .second = *std::move(second),
                                         .result = *std::move(result),
                                         .written = std::move(written),
                                         .order = std::move(order),
                                         .run = run});
  const bool cut = backend.id().kind == DeviceKind::kCpu && run.resumes() && Predict().is_long;
  if (cut) whole_->pieces.emplace(wanted());
  if (backend.id().kind != DeviceKind::kCpu) end_.timings.to_device_ns = NanosecondsSince(begin);
  return absl::OkStatus();
}

absl::Status DenseCall::RunKernel(WorkerSlot& slot) {
  Backend& backend = *slot.backend;
  Whole& whole = *whole_;
  RunOptions options{slot.workspace, backend.memory(MemoryUse::kRequests), token().flag()};
  if (result_.kept()) options.behind = [&] { return backend.ClearPadding(whole.written, slot); };
  double milliseconds = 0;
  absl::Status status = backend.Run(slot, whole.run, options, &milliseconds);
  AddKernelTime(milliseconds);
  return status;
}

absl::Status DenseCall::RunPieces(WorkerSlot& slot) {
  Backend& backend = *slot.backend;
  RunOptions options{whole_->workspace, backend.MemoryFor(MemoryUse::kRequests, owner_),
                     token().flag()};
  double milliseconds = 0;
  absl::Status status = whole_->pieces->Run(
      [&](Progress& progress) {
        double unused = 0;
        options.progress = &progress;
        return backend.Run(slot, whole_->run, options, &unused);
      },
      [this] { return GivesWay(); }, &milliseconds);
  AddKernelTime(milliseconds);
  return status;
}

absl::Status DenseCall::RunWhole(Resolved& plan, WorkerSlot& slot) {
  if (whole_ == nullptr) {
    if (absl::Status status = PlaceWhole(plan, slot); !status.ok()) return status;
  }
  return GoOn(slot);
}

absl::Status DenseCall::GoOn(WorkerSlot& slot) {
  Backend& backend = *slot.backend;
  absl::Status status = whole_->pieces ? RunPieces(slot) : RunKernel(slot);
  if (status.ok() && whole_->pieces && !whole_->pieces->finished()) return status;  // others' turn
  const std::unique_ptr<Whole> whole = std::move(whole_);
  if (!status.ok()) return status;
  operands_.Settled();
  Observe(problem_, whole->run.kernel(), end_.timings.kernel_ns);

  const auto computed = Clock::now();
  if (whole->written.array != whole->result.array) {
    status = backend.Scatter(whole->written, whole->order.get(), whole->result, slot);
    if (!status.ok()) return status;
  }
  SendBegin(whole->plan);
  status = Send(std::move(whole->result), backend, slot);
  if (backend.id().kind != DeviceKind::kCpu) {
    end_.timings.from_device_ns = NanosecondsSince(computed);
  }
  const CallTimings& timings = end_.timings;
  scheduler().costs(device()).Took(
      Kind(), problem_.operation, Work(),
      1e-9 *
          static_cast<double>(timings.to_device_ns + timings.kernel_ns + timings.from_device_ns));
  return status;
}

}  // namespace sparsed::engine
