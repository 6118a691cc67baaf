#include "engine/execution/executor.h"

#include <cstring>

#include "engine/execution/executor_impl.h"

namespace sparsed::engine {
namespace {

/// Derived patterns take up to this part of host memory; they go when it is needed.
constexpr int64_t kDerivedShare = 8;

}  // namespace

Executor::Impl::Impl(
    const ExecutorOptions& options, Catalog& catalog, DenseCatalog& dense, Budget& budget,
    Observer& observer, Device* device,
    const std::function<void(const MatrixLease&, const Problem&)>& on_unknown_class,
    const std::function<void(const PatternProduct&, const Problem&)>& on_unknown_pair)
    : catalog(catalog),
      dense(dense),
      budget(budget),
      observer(observer),
      derived(std::make_shared<DerivedPatterns>(budget, budget.limit() / kDerivedShare)),
      device(device),
      on_unknown_class(on_unknown_class),
      on_unknown_pair(on_unknown_pair),
      scheduler(std::make_shared<Scheduler>(options, device)),
      memory_rate(options.threads_per_lane) {}

void Executor::Impl::Ran(const Problem& problem, std::string_view kernel, uint64_t nanoseconds,
                         double flops, double bytes) {
  const bool gpu = problem.device == DeviceKind::kCuda;
  observer.OnKernelRun(
      {problem.operation, kernel, gpu ? Device::kName : "cpu",
       static_cast<double>(nanoseconds) * 1e-9, flops,
       bytes / (gpu ? device->bytes_per_second() : memory_rate.bytes_per_second())});
}

Job::Loader LoaderOf(const MatrixLease& matrix) {
  if (matrix->resident()) return nullptr;
  // Whoever runs the call afterwards meets the same errors and reports them.
  return [matrix](Store::Stop stop) {
    if (matrix->pattern()->Csr(stop).ok()) matrix->Values(stop).status().IgnoreError();
  };
}

Executor::Executor(const ExecutorOptions& options, Catalog& catalog, DenseCatalog& dense,
                   Budget& budget, Observer& observer, Device* device)
    : impl_(std::make_shared<Impl>(options, catalog, dense, budget, observer, device,
                                   on_unknown_class, on_unknown_pair)) {
  budget.SetReclaim([weak = std::weak_ptr(impl_->derived)] {
    const std::shared_ptr<DerivedPatterns> derived = weak.lock();
    return derived != nullptr && derived->Shrink();
  });
  impl_->scheduler->Open();
}

Executor::~Executor() { Close(); }

void Executor::Close() { impl_->scheduler->Close(); }

absl::StatusOr<std::shared_ptr<Call>> Executor::Begin(SpmmSpec spec,
                                                      std::shared_ptr<ResultSink> sink) {
  return BeginSpmm(impl_, std::move(spec), std::move(sink));
}

absl::StatusOr<std::shared_ptr<Call>> Executor::Begin(SddmmSpec spec,
                                                      std::shared_ptr<ResultSink> sink) {
  return BeginSddmm(impl_, std::move(spec), std::move(sink));
}

absl::StatusOr<std::shared_ptr<Call>> Executor::Begin(SpgemmSpec spec,
                                                      std::shared_ptr<ResultSink> sink) {
  return BeginSpgemm(impl_, std::move(spec), std::move(sink));
}

absl::Status Executor::RunIdle(DeviceKind device, const std::function<void(Lane&)>& work,
                               const std::atomic<bool>* stop,
                               std::chrono::steady_clock::time_point until) {
  const auto asked = std::chrono::steady_clock::now();
  uint64_t waited = 0;
  bool began = false;
  const absl::Status ran = impl_->scheduler->RunIdle(
      device,
      [&](Lane& lane) {
        waited = NanosecondsSince(asked);
        began = true;
        work(lane);
      },
      stop, until);
  if (!began) waited = NanosecondsSince(asked);
  impl_->observer.OnTrialWait(device == DeviceKind::kCuda ? Device::kName : "cpu",
                              static_cast<double>(waited) * 1e-9);
  return ran;
}

int64_t Executor::in_flight() const { return impl_->scheduler->in_flight(); }
int64_t Executor::queue_depth(DeviceKind device) const {
  return impl_->scheduler->queue_depth(device);
}
double Executor::busy_seconds(DeviceKind device) const {
  return impl_->scheduler->busy_seconds(device);
}
DerivedPatterns& Executor::derived() const { return *impl_->derived; }
double Executor::bytes_per_second(DeviceKind device) const {
  return device == DeviceKind::kCuda ? impl_->device->bytes_per_second()
                                     : impl_->memory_rate.bytes_per_second();
}
const std::string& Executor::model(DeviceKind device) const {
  return device == DeviceKind::kCuda ? impl_->device->info().name : ProcessorName();
}

absl::Status Executor::SettleMemoryRate(const std::atomic<bool>* stop) {
  MemoryRate& rate = impl_->memory_rate;
  if (!rate.due()) return absl::OkStatus();
  MemorySource& memory = impl_->budget.Source(MemoryUse::kPreparation);
  absl::StatusOr<Buffer> from = memory.Allocate(MemoryRate::kBytes);
  absl::StatusOr<Buffer> to = memory.Allocate(MemoryRate::kBytes);
  // Another time, then.
  if (!from.ok() || !to.ok()) return absl::OkStatus();
  std::memset(from->mutable_data(), 1, from->size());
  std::memset(to->mutable_data(), 2, to->size());
  return RunIdle(
      DeviceKind::kCpu,
      [&](Lane& /*lane*/) {
        rate.Measure({from->mutable_data(), from->size()}, {to->mutable_data(), to->size()});
      },
      stop);
}
Device* Executor::device() const { return impl_->device; }
DeviceKind Executor::first_choice() const { return impl_->first_choice(); }
const ExecutorOptions& Executor::options() const { return impl_->scheduler->options(); }

}  // namespace sparsed::engine
