#include "engine/execution/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "engine/execution/chain_call.h"
#include "engine/execution/dense_call.h"
#include "engine/execution/distributed_call.h"
#include "engine/execution/executor_impl.h"
#include "engine/execution/spgemm_call.h"
#include "engine/planning/candidates.h"

namespace sparsed::engine {
namespace {

/// Derived patterns take up to this part of host memory; they go when it is needed.
constexpr int64_t kDerivedShare = 8;

/// The plan's layout, if there is a plan that has one and requests may try to place it.
std::shared_ptr<LazyLayout> PlannedLayout(const Executor::Impl& impl, DeviceId device,
                                          const PlanTable::Found& found) {
  if (found.plan == nullptr || found.plan->layout == nullptr) return nullptr;
  return impl.no_room.Has(device, found.plan->layout) ? nullptr : found.plan->layout;
}

/// Says in the plan how many bytes of distributed buffers were put together for the request.
class PutTogether final : public ResultSink {
 public:
  PutTogether(std::shared_ptr<ResultSink> sink, int64_t bytes)
      : sink_(std::move(sink)), bytes_(bytes) {}
  void OnBegin(CallBegin begin) override {
    begin.plan += fmt::format(", {} bytes put together on the host", bytes_);
    sink_->OnBegin(std::move(begin));
  }
  void OnArray(uint32_t index, uint64_t offset, Array part) override {
    sink_->OnArray(index, offset, std::move(part));
  }
  void OnBlock(ResultBlock block) override { sink_->OnBlock(std::move(block)); }
  void OnEnd(CallEnd end) override { sink_->OnEnd(std::move(end)); }

 private:
  const std::shared_ptr<ResultSink> sink_;
  const int64_t bytes_;
};

std::vector<const OperandSpec*> OperandsOf(const SpmmSpec& spec) {
  std::vector<const OperandSpec*> operands = {&spec.b};
  if (spec.beta != 0 && spec.accumulate) operands.push_back(&*spec.accumulate);
  if (spec.values) operands.push_back(&*spec.values);
  return operands;
}
std::vector<const OperandSpec*> OperandsOf(const SddmmSpec& spec) {
  std::vector<const OperandSpec*> operands = {&spec.a, &spec.b};
  if (spec.values) operands.push_back(&*spec.values);
  return operands;
}
std::vector<const OperandSpec*> OperandsOf(const ChainSpec& spec) {
  std::vector<const OperandSpec*> operands;
  for (const OperandSpec& operand : spec.operands) operands.push_back(&operand);
  return operands;
}

/// The sink of a request that one device computes with `operands`.
std::shared_ptr<ResultSink> OfOneDevice(const Executor::Impl& impl, const std::string& tenant,
                                        const std::vector<const OperandSpec*>& operands,
                                        std::shared_ptr<ResultSink> sink) {
  if (impl.gpus.size() < 2) return sink;
  int64_t bytes = 0;
  for (const OperandSpec* const operand : operands) {
    if (operand->held.empty()) continue;
    // That there is none the call says.
    const absl::StatusOr<HeldDenseLease> held = impl.dense.Find(tenant, operand->held);
    if (!held.ok()) continue;
    // A GPU may have all of it from before.
    const bool on_gpu = std::ranges::any_of(impl.gpus, [&](const GpuBackend& gpu) {
      return gpu.device().residency().PresenceOf((*held)->elements) !=
             Residency::Presence::kNothing;
    });
    if (!on_gpu) bytes += BytesToPutTogether(**held);
  }
  return bytes == 0 ? sink : std::make_shared<PutTogether>(std::move(sink), bytes);
}

std::string TextOf(const Resolved& resolved) {
  return fmt::format("{} / {}", resolved.layout->pipeline, resolved.kernel->name());
}

}  // namespace

Executor::Impl::Impl(
    const ExecutorOptions& options, Catalog& catalog, DenseCatalog& dense, Budget& budget,
    Observer& observer, const std::vector<Device*>& devices,
    const std::function<void(const MatrixLease&, const Problem&)>& on_unknown_signature,
    const std::function<bool(const MatrixLease&, const Problem&, const std::vector<int64_t>&)>&
        on_new_rows,
    const std::function<void(const PatternProduct&, const Problem&)>& on_unknown_pair)
    : catalog(catalog),
      dense(dense),
      budget(budget),
      observer(observer),
      derived(std::make_shared<DerivedPatterns>(budget, budget.limit() / kDerivedShare)),
      cpu(budget, options.slots, options.threads_per_slot),
      gpus([&] {
        std::deque<GpuBackend> backends;
        for (Device* const device : devices) backends.emplace_back(*device);
        return backends;
      }()),
      on_unknown_signature(on_unknown_signature),
      on_new_rows(on_new_rows),
      on_unknown_pair(on_unknown_pair),
      scheduler(std::make_shared<Scheduler>(options, backends())) {}

std::vector<Backend*> Executor::Impl::backends() {
  std::vector<Backend*> all = {&cpu};
  for (GpuBackend& gpu : gpus) all.push_back(&gpu);
  return all;
}

GpuBackend* Executor::Impl::gpu(DeviceId device) {
  const auto found = std::ranges::find(gpus, device, &GpuBackend::id);
  return found == gpus.end() ? nullptr : &*found;
}

absl::StatusOr<DeviceId> Executor::Impl::DeviceOf(std::string_view uuid) {
  if (uuid.empty()) return cpu.id();
  for (const GpuBackend& gpu : gpus) {
    if (gpu.device().info().uuid != uuid) continue;
    if (!gpu.status().ok()) return gpu.status();
    return gpu.id();
  }
  return absl::FailedPreconditionError(
      "the caller's GPU is none of this server's; take one that it serves from (--devices)");
}

Backend& Executor::Impl::backend(DeviceId device) {
  GpuBackend* const found = gpu(device);
  if (found == nullptr) return cpu;
  return *found;
}

absl::StatusOr<Backend*> Executor::Impl::Place(const std::optional<DeviceId>& given,
                                               const std::shared_ptr<const Layout>& layout,
                                               std::span<const std::shared_ptr<LazyArray>> held) {
  if (gpus.empty()) return &cpu;
  if (given.has_value()) {
    GpuBackend* const there = gpu(*given);
    if (there != nullptr && there->status().ok()) return there;
  }
  if (gpus.size() == 1) {
    if (absl::Status status = gpus.front().status(); !status.ok()) return status;
    return &gpus.front();
  }
  // In calls that others may be ahead by: a copy of buffers takes longer than most calls, one
  // of a layout is made once.
  constexpr double kOperandsWorth = 4, kLayoutWorth = 1;
  struct Found {
    GpuBackend* gpu = nullptr;
    int only = 0;  ///< buffers that are nowhere else
    double cost = 0;
  };
  Found best;
  const size_t first = next_gpu_++;
  for (size_t i = 0; i < gpus.size(); ++i) {
    GpuBackend& gpu = gpus[(first + i) % gpus.size()];
    if (!gpu.status().ok()) continue;
    Found found{&gpu, 0, static_cast<double>(scheduler->in_flight(gpu.id()))};
    const Residency& residency = gpu.device().residency();
    for (const std::shared_ptr<LazyArray>& operand : held) {
      const Residency::Presence presence = residency.PresenceOf(operand);
      const bool elsewhere = std::ranges::any_of(gpus, [&](GpuBackend& other) {
        return &other != &gpu &&
               other.device().residency().PresenceOf(operand) != Residency::Presence::kNothing;
      });
      found.only += presence == Residency::Presence::kOnly && !elsewhere ? 1 : 0;
      if (presence == Residency::Presence::kNothing) continue;
      found.cost -= kOperandsWorth / static_cast<double>(held.size());
    }
    if (residency.Has(layout)) found.cost -= kLayoutWorth;
    const bool better = found.only != best.only ? found.only > best.only : found.cost < best.cost;
    if (best.gpu == nullptr || better) best = found;
  }
  if (best.gpu == nullptr) return gpus.front().status();
  return best.gpu;
}

GpuBackend* Executor::Impl::IdlestGpu() {
  GpuBackend* idlest = nullptr;
  const auto calls = [this](const GpuBackend& of) { return scheduler->in_flight(of.id()); };
  const size_t first = next_gpu_++;
  for (size_t i = 0; i < gpus.size(); ++i) {
    GpuBackend& gpu = gpus[(first + i) % gpus.size()];
    if (gpu.status().ok() && (idlest == nullptr || calls(gpu) < calls(*idlest))) idlest = &gpu;
  }
  return idlest;
}

void Executor::Impl::RecordRun(DeviceId device, Operation operation, std::string_view kernel,
                               uint64_t nanoseconds, double flops, double bytes) {
  observer.OnKernelRun({operation, kernel, Name(device), static_cast<double>(nanoseconds) * 1e-9,
                        flops, bytes / backend(device).bytes_per_second()});
}

absl::StatusOr<Resolved> Resolve(Executor::Impl& impl, DeviceId device, const MatrixLease& matrix,
                                 const Problem& problem, const PlanTable::Found& found,
                                 bool is_trial) {
  Resolved resolved;
  resolved.problem = problem;
  if (const std::shared_ptr<LazyLayout> planned = PlannedLayout(impl, device, found)) {
    absl::StatusOr<std::shared_ptr<const Layout>> layout = planned->Get();
    if (absl::IsDataLoss(layout.status())) {
      impl.LayoutIsDamaged(*matrix->pattern(), *found.plan, layout.status());
    }
    if (absl::IsResourceExhausted(layout.status())) impl.no_room.Note(device, planned);
    if (layout.ok()) {
      resolved.layout = *std::move(layout);
      resolved.planned = planned;
    }
  }
  if (resolved.layout == nullptr) {
    absl::StatusOr<std::shared_ptr<const Layout>> csr = matrix->pattern()->Csr();
    if (!csr.ok()) return csr.status();
    resolved.layout = *std::move(csr);
  }
  if (found.plan != nullptr) {
    if (!is_trial) matrix->CountUse(found.plan->plan);
    resolved.kernel = FindLayoutKernel(problem.operation, found.plan->plan.kernel);
  }
  if (resolved.kernel && resolved.kernel->Serves(problem, *resolved.layout)) {
    resolved.text = TextOf(resolved);
  } else {
    absl::StatusOr<Resolved> plain = ResolvePlain(matrix, problem);
    if (!plain.ok()) return plain;
    resolved = *std::move(plain);
  }
  const bool derived = matrix->pattern()->hash().empty();
  const bool asks = found.due() && !derived && !is_trial;
  if (asks && impl.on_unknown_signature) impl.on_unknown_signature(matrix, problem);
  return resolved;
}

absl::StatusOr<Resolved> ResolvePlain(const MatrixLease& matrix, const Problem& problem) {
  absl::StatusOr<std::shared_ptr<const Layout>> csr = matrix->pattern()->Csr();
  if (!csr.ok()) return csr.status();
  Resolved resolved;
  resolved.problem = problem;
  resolved.layout = *std::move(csr);
  const std::span<const LayoutKernel> kernels = LayoutKernels(problem.operation);
  const auto first = std::ranges::find_if(kernels, [&](const LayoutKernel& kernel) {
    return kernel.Serves(problem, *resolved.layout);
  });
  if (first == kernels.end()) {
    return absl::UnimplementedError(
        fmt::format("no kernel serves {}", ToString(SignatureOf(problem))));
  }
  resolved.kernel = *first;
  resolved.text = TextOf(resolved);
  return resolved;
}

bool FallBackToPlain(Executor::Impl& impl, DeviceId device, const MatrixLease& matrix,
                     Resolved& resolved) {
  if (resolved.planned == nullptr) return false;
  impl.no_room.Note(device, resolved.planned);
  absl::StatusOr<Resolved> plain = ResolvePlain(matrix, resolved.problem);
  if (!plain.ok()) return false;
  resolved = *std::move(plain);
  return true;
}

absl::Status CheckedOn(Backend& backend, const Token& token, absl::Status status) {
  const bool of_device = !token.stopped() && !IsStoreGone(status);
  return of_device ? backend.Checked(std::move(status)) : status;
}

void Executor::Impl::LayoutIsDamaged(Pattern& pattern, const ActivePlan& damaged,
                                     const absl::Status& status) {
  observer.OnDamage(std::string(status.message()));
  const std::string& pipeline = damaged.plan.pipeline;
  if (pattern.FindLayout(pipeline) == damaged.layout) pattern.DropLayout(pipeline);
  const Layout csr = PlainCsrWithoutArrays(pattern.rows(), pattern.cols(), pattern.nnz());
  for (const auto& active : pattern.plans().List()) {
    if (active->layout != damaged.layout) continue;
    const std::optional<Plan> plain = OnPlainCsr(active->plan, csr, "in the place of a damaged");
    if (!plain) continue;
    // A new trial is due at once.
    pattern.plans().Replace(
        std::make_shared<const ActivePlan>(ActivePlan{*plain, nullptr, /*since=*/{}}));
  }
}

Job::Loader LoaderOf(const Executor::Impl& impl, DeviceId device, const MatrixLease& matrix,
                     const PlanTable::Found& found) {
  const std::shared_ptr<LazyLayout> layout = PlannedLayout(impl, device, found);
  if (layout == nullptr) return LoaderOf(matrix);
  const bool values_here =
      matrix->values_resident() ||
      (device.kind == DeviceKind::kCpu && matrix->LayoutValueBytes(found.plan->plan.pipeline) > 0);
  if (layout->resident() && values_here) return nullptr;
  return [matrix, layout, values_here](Store::Stop stop) -> Job::Held {
    const absl::StatusOr<std::shared_ptr<const Layout>> read = layout->Get(stop);
    if (!read.ok()) {
      // Plain CSR serves then.
      const Job::Loader plain = LoaderOf(matrix);
      return plain == nullptr ? Job::Held() : plain(stop);
    }
    if (values_here) return {*read};
    const absl::StatusOr<Array> values = matrix->Values(stop);
    if (!values.ok()) return {*read};
    return {*read, std::make_shared<const Array>(*values)};
  };
}

Job::Loader LoaderOf(const MatrixLease& matrix) {
  if (matrix->resident()) return nullptr;
  // Whoever runs the call afterwards meets the same errors and reports them.
  return [matrix](Store::Stop stop) -> Job::Held {
    const absl::StatusOr<std::shared_ptr<const Layout>> csr = matrix->pattern()->Csr(stop);
    if (!csr.ok()) return {};
    const absl::StatusOr<Array> values = matrix->Values(stop);
    if (!values.ok()) return {*csr};
    return {*csr, std::make_shared<const Array>(*values)};
  };
}

Job::Loader LoaderOf(const std::shared_ptr<LazyArray>& array) {
  if (!array->on_disk()) return nullptr;
  return [array](Store::Stop stop) -> Job::Held {
    const absl::StatusOr<Array> elements = array->Get(stop);
    if (!elements.ok()) return {};
    return {std::make_shared<const Array>(*elements)};
  };
}

Job::Loader LoaderOf(std::vector<Job::Loader> loaders) {
  std::erase(loaders, nullptr);
  if (loaders.empty()) return nullptr;
  return [loaders = std::move(loaders)](Store::Stop stop) {
    Job::Held all;
    for (const Job::Loader& load : loaders) std::ranges::move(load(stop), std::back_inserter(all));
    return all;
  };
}

Executor::Executor(const ExecutorOptions& options, Catalog& catalog, DenseCatalog& dense,
                   Budget& budget, Observer& observer, const std::vector<Device*>& gpus)
    : impl_(std::make_shared<Impl>(options, catalog, dense, budget, observer, gpus,
                                   on_unknown_signature, on_new_rows, on_unknown_pair)) {
  impl_->scheduler->Open();
}

Executor::~Executor() { Close(); }

void Executor::Close() {
  impl_->scheduler->Close();
  // What is in them keeps what calls share.
  for (GpuBackend& gpu : impl_->gpus) gpu.queues().Close();
}

absl::StatusOr<std::shared_ptr<Call>> Executor::Begin(SpmmSpec spec,
                                                      std::shared_ptr<ResultSink> sink) {
  auto distributed = DistributedCall::Begin(impl_, spec, sink);
  if (!distributed.ok() || *distributed != nullptr) return distributed;
  // A trial of one device is of a block.
  if (IsTrial(spec.tenant) && !spec.b.block) {
    return absl::FailedPreconditionError("operands that lie so are not multiplied where they lie");
  }
  return DenseCall::Begin(impl_, spec, OfOneDevice(*impl_, spec.tenant, OperandsOf(spec), sink));
}

absl::StatusOr<std::shared_ptr<Call>> Executor::Begin(SddmmSpec spec,
                                                      std::shared_ptr<ResultSink> sink) {
  auto distributed = DistributedCall::Begin(impl_, spec, sink);
  if (!distributed.ok() || *distributed != nullptr) return distributed;
  return DenseCall::Begin(impl_, spec, OfOneDevice(*impl_, spec.tenant, OperandsOf(spec), sink));
}

absl::StatusOr<std::shared_ptr<Call>> Executor::Begin(SpgemmSpec spec,
                                                      std::shared_ptr<ResultSink> sink) {
  return SpgemmCall::Begin(impl_, std::move(spec), std::move(sink));
}

absl::StatusOr<std::shared_ptr<Call>> Executor::Begin(ChainSpec spec,
                                                      std::shared_ptr<ResultSink> sink) {
  auto distributed = DistributedCall::Begin(impl_, spec, sink);
  if (!distributed.ok() || *distributed != nullptr) return distributed;
  std::shared_ptr<ResultSink> to =
      OfOneDevice(*impl_, spec.tenant, OperandsOf(spec), std::move(sink));
  return ChainCall::Begin(impl_, std::move(spec), std::move(to));
}

absl::StatusOr<std::shared_ptr<Attachment>> Executor::Attach(std::string_view tenant,
                                                             std::string_view matrix,
                                                             std::string_view gpu) {
  const absl::StatusOr<DeviceId> device = impl_->DeviceOf(gpu);
  if (!device.ok()) return device.status();
  absl::StatusOr<std::unique_ptr<ExportedSequence>> sequence = ExportedSequence::Make();
  if (!sequence.ok()) return sequence.status();
  auto attachment = std::make_shared<Attachment>(impl_, std::string(tenant), std::string(matrix),
                                                 *device, *std::move(sequence));
  impl_->attachments.Add(attachment);
  if (absl::Status s = attachment->Current().status(); !s.ok()) return s;
  return attachment;
}

void Executor::MatrixChanged(std::string_view tenant, std::string_view matrix) {
  impl_->attachments.Changed(tenant, matrix);
}

int64_t Executor::attachments() const { return impl_->attachments.count(); }

absl::Status Executor::RunIdle(DeviceId device, const std::function<void(WorkerSlot&)>& work,
                               const std::atomic<bool>* stop,
                               std::chrono::steady_clock::time_point until) {
  return RunIdlePieces(
      device,
      [&](WorkerSlot& slot) {
        work(slot);
        return true;
      },
      stop, until);
}

absl::Status Executor::RunIdlePieces(DeviceId device, const std::function<bool(WorkerSlot&)>& piece,
                                     const std::atomic<bool>* stop,
                                     std::chrono::steady_clock::time_point until) {
  const auto asked = std::chrono::steady_clock::now();
  uint64_t waited = 0;
  bool began = false;
  const absl::Status ran = impl_->scheduler->RunIdle(
      device,
      [&](WorkerSlot& slot) {
        if (!std::exchange(began, true)) waited = NanosecondsSince(asked);
        return piece(slot);
      },
      stop, until);
  if (!began) waited = NanosecondsSince(asked);
  impl_->observer.OnTrialWait(Name(device), static_cast<double>(waited) * 1e-9);
  return ran;
}

const std::atomic<bool>* Executor::wanted(DeviceId device) const {
  return impl_->scheduler->wanted(device);
}

void Executor::SetWeights(const TenantWeights& weights) { impl_->scheduler->SetWeights(weights); }
TenantSeconds Executor::tenant_seconds(DeviceId device) const {
  return impl_->scheduler->tenant_seconds(device);
}
int64_t Executor::in_flight() const { return impl_->scheduler->in_flight(); }
int Executor::running(DeviceId device) const { return impl_->scheduler->running(device); }
int64_t Executor::queue_depth(DeviceId device) const {
  return impl_->scheduler->queue_depth(device);
}
SlotWaits Executor::slot_waits(DeviceId device) const {
  return impl_->scheduler->slot_waits(device);
}
double Executor::busy_seconds(DeviceId device) const {
  return impl_->scheduler->busy_seconds(device);
}
DerivedPatterns& Executor::derived() const { return *impl_->derived; }
Backend& Executor::backend(DeviceId device) const { return impl_->backend(device); }
const std::string& Executor::model(DeviceKind kind) const {
  static const std::string kNone;
  if (kind == DeviceKind::kCpu) return impl_->cpu.model();
  return impl_->gpus.empty() ? kNone : impl_->gpus.front().model();
}

absl::Status Executor::SettleMemoryRate(const std::atomic<bool>* stop,
                                        std::chrono::steady_clock::time_point until) {
  MemoryRate& rate = impl_->cpu.memory_rate();
  if (!rate.due()) return absl::OkStatus();
  const Budget::SpareOnly spare;  // nobody's arrays go for it
  MemorySource& memory = impl_->budget.Source(MemoryUse::kPreparation);
  absl::StatusOr<Buffer> from = memory.Allocate(MemoryRate::kBytes);
  absl::StatusOr<Buffer> to = memory.Allocate(MemoryRate::kBytes);
  // Another time, then.
  if (!from.ok() || !to.ok()) return absl::OkStatus();
  return RunIdle(
      DeviceId{},
      [&](WorkerSlot& /*slot*/) {
        std::memset(from->mutable_data(), 1, from->size());
        std::memset(to->mutable_data(), 2, to->size());
        rate.Measure({from->mutable_data(), from->size()}, {to->mutable_data(), to->size()});
      },
      stop, until);
}
bool Executor::memory_rate_is_sure() const {
  if (impl_->cpu.memory_rate().quiet()) return true;
  const std::optional<Calibration> calibration = impl_->cpu.calibration();
  return calibration && std::max(calibration->constants.read_bytes_per_second,
                                 calibration->constants.copy_bytes_per_second) > 0;
}
const std::deque<GpuBackend>& Executor::gpus() const { return impl_->gpus; }
absl::StatusOr<GpuBackend*> Executor::GpuOf(std::string_view uuid) const {
  const absl::StatusOr<DeviceId> device = impl_->DeviceOf(uuid);
  if (!device.ok()) return device.status();
  return impl_->gpu(*device);
}
GpuBackend* Executor::IdlestGpu() const { return impl_->IdlestGpu(); }
DeviceKind Executor::first_choice() const { return impl_->first_choice(); }
const ExecutorOptions& Executor::options() const { return impl_->scheduler->options(); }

}  // namespace sparsed::engine
