#include "engine/execution/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "engine/execution/executor_impl.h"

namespace sparsed::engine {
namespace {

/// Derived patterns take up to this part of host memory; they go when it is needed.
constexpr int64_t kDerivedShare = 8;

/// Bytes a second that all threads together copy (read and written both count), the best of a few
/// tries over arrays larger than most caches. Takes some 30 ms.
double MeasureBandwidth(int threads) {
  constexpr size_t kBytes = 64 << 20;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  double best = 0;
  for (int run = 0; run < 3; ++run) {
    const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t block = 0; block < 64; ++block) {
      std::memcpy(to.data() + block * (kBytes / 64), from.data() + block * (kBytes / 64),
                  kBytes / 64);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 2.0 * kBytes / seconds.count());
  }
  return best;
}

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
      bytes_per_second(MeasureBandwidth(options.threads_per_lane)) {}

void Executor::Impl::Ran(const Problem& problem, std::string_view kernel, uint64_t nanoseconds,
                         double flops, double bytes) {
  const bool gpu = problem.device == DeviceKind::kCuda;
  observer.OnKernelRun({problem.operation, kernel, gpu ? Device::kName : "cpu",
                        static_cast<double>(nanoseconds) * 1e-9, flops,
                        bytes / (gpu ? device->bytes_per_second() : bytes_per_second)});
}

uint64_t NanosecondsSince(std::chrono::steady_clock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin)
          .count());
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
  return device == DeviceKind::kCuda ? impl_->device->bytes_per_second() : impl_->bytes_per_second;
}
Device* Executor::device() const { return impl_->device; }
DeviceKind Executor::first_choice() const { return impl_->first_choice(); }
const ExecutorOptions& Executor::options() const { return impl_->scheduler->options(); }

}  // namespace sparsed::engine
