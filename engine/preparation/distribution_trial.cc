#include "engine/preparation/distribution_trial.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "engine/execution/dense_result.h"
#include "engine/execution/derived_patterns.h"
#include "engine/execution/executor_impl.h"
#include "engine/execution/gpu_backend.h"
#include "engine/execution/row_distribution.h"

namespace sparsed::engine {
namespace {

constexpr int kWarmUp = 3;
constexpr std::chrono::milliseconds kWarmUpTime{50};
/// Whether the preparation is to stop.
constexpr std::chrono::milliseconds kBetweenLooks{20};

/// Waits for a request's end.
class Waiter final : public ResultSink {
 public:
  void OnBegin(CallBegin /*begin*/) override {}
  void OnArray(uint32_t /*index*/, uint64_t /*offset*/, Array /*part*/) override {}
  void OnBlock(ResultBlock /*block*/) override {}
  void OnEnd(CallEnd end) override { ended_.set_value(std::move(end)); }
  /// Cancels the call if `stop` becomes true.
  CallEnd Wait(Call& call, const std::atomic<bool>* stop) {
    std::future<CallEnd> end = ended_.get_future();
    while (end.wait_for(kBetweenLooks) != std::future_status::ready) {
      if (stop->load()) {
        call.Cancel();
        break;
      }
    }
    return end.get();
  }

 private:
  std::promise<CallEnd> ended_;
};

/// Elements of an operand, or of a block of one, in a GPU's memory.
absl::StatusOr<std::shared_ptr<LazyArray>> NewOperand(const DenseShape& shape, GpuBackend& gpu,
                                                      Executor& executor, Budget& budget,
                                                      const std::atomic<bool>* stop,
                                                      std::chrono::steady_clock::time_point until) {
  // The same elements over and over, as in other trials.
  constexpr int64_t kPeriod = 65'521;
  absl::StatusOr<Array> period =
      AllocateArray(HeapMemory(), "operand", shape.type,
                    std::max<int64_t>(1, std::min(shape.elements(), kPeriod)));
  if (!period.ok()) return period.status();
  VisitFloat(shape.type, [&]<typename T>(T) {
    int64_t i = 0;
    for (T& value : period->MutableAs<T>()) {
      value = static_cast<T>(static_cast<float>((++i * 37) % 101 - 50) / 64.0F);
    }
  });
  absl::StatusOr<PlacedDense> placed = absl::InternalError("no worker slot ran");
  const absl::Status ran = executor.RunIdle(
      gpu.id(),
      [&](WorkerSlot& slot) {
        placed = gpu.NewDense("operand", shape, gpu.memory(MemoryUse::kPreparation), slot);
        if (!placed.ok()) return;
        Array written = *placed->array;
        absl::Status filled = gpu.Repeat(*period, written, slot);
        if (!filled.ok()) placed = std::move(filled);
      },
      stop, until);
  if (!ran.ok()) return ran;
  if (!placed.ok()) return placed.status();
  return gpu.Hold(*std::move(placed), shape, budget.Source(MemoryUse::kPreparation));
}

/// Where nobody looks it up.
std::shared_ptr<HeldDense> NewHeld(const DenseShape& shape) {
  auto held = std::make_shared<HeldDense>();
  held->tenant = kTrialTenant;
  held->name = "trial";
  held->shape = shape;
  return held;
}

/// One request on those GPUs; milliseconds.
absl::StatusOr<double> RunOnce(SpmmSpec spec, const std::vector<DeviceId>& gpus, Executor& executor,
                               const std::atomic<bool>* stop,
                               std::chrono::steady_clock::time_point until) {
  using Clock = std::chrono::steady_clock;
  if (stop->load()) return absl::CancelledError("the preparation was cancelled");
  for (const DeviceId gpu : gpus) {
    const absl::Status idle = executor.RunIdle(
        gpu, [](WorkerSlot& /*slot*/) {}, stop, until);
    if (!idle.ok()) return idle;
  }
  if (until != kNever) {
    const std::chrono::nanoseconds left = until - Clock::now();
    spec.timeout_ns = static_cast<uint64_t>(std::max<int64_t>(1, left.count()));
  }
  const auto waiter = std::make_shared<Waiter>();
  absl::StatusOr<std::shared_ptr<Call>> call = executor.Begin(std::move(spec), waiter);
  if (!call.ok()) return call.status();
  const Clock::time_point begin = Clock::now();
  (*call)->Submit();
  const CallEnd end = waiter->Wait(**call, stop);
  if (!end.status.ok()) return end.status;
  const std::chrono::nanoseconds took =
      Clock::now() - begin - std::chrono::nanoseconds(end.timings.queue_ns);
  return std::max(std::chrono::duration<double, std::milli>(took).count(), 0.0);
}

/// The layouts of the parts are there before, as they are where the server serves for a while.
absl::Status BuildRows(const DistributionTrialSpec& spec, Executor& executor, Budget& budget,
                       const std::atomic<bool>* stop) {
  const std::shared_ptr<Pattern>& pattern = spec.matrix->pattern();
  const PlanTable::Found found = pattern->plans().Find(SignatureOf(spec.problem));
  return FindOrBuildRows(executor.derived(), pattern, spec.problem, found.plan, spec.bounds,
                         /*with_layouts=*/true, budget, stop)
      .status();
}

}  // namespace

absl::StatusOr<TrialTimes> TryDistribution(const DistributionTrialSpec& spec, Executor& executor,
                                           Budget& budget, const std::atomic<bool>* stop) {
  const Pattern& pattern = *spec.matrix->pattern();
  const Problem& problem = spec.problem;
  const int64_t in = problem.transposed ? pattern.rows() : pattern.cols();
  const int64_t out = problem.transposed ? pattern.cols() : pattern.rows();
  const DenseShape operand = {in, problem.k, problem.k, problem.type};
  const DenseShape result = {out, problem.k, problem.k, problem.type};
  const bool in_rows = spec.distribution == Distribution::kRows;
  if (in_rows) {
    if (absl::Status s = BuildRows(spec, executor, budget, stop); !s.ok()) return s;
  }
  GpuBackend* const first = executor.IdlestGpu();
  if (first == nullptr) return absl::UnavailableError("no GPU serves");
  absl::StatusOr<std::shared_ptr<LazyArray>> elements =
      NewOperand(operand, *first, executor, budget, stop, spec.until);
  if (!elements.ok()) return elements.status();

  SpmmSpec whole;
  whole.tenant = kTrialTenant;
  whole.matrix = spec.matrix->name();
  whole.transpose = problem.transposed;
  whole.allow_tf32 = problem.allow_tf32;
  whole.part = {{{whole.matrix, spec.matrix}}, first->id()};
  whole.b.block = DenseBlock{0, 0, operand, *std::move(elements)};
  const auto held = NewHeld(operand);
  const auto parts = static_cast<int64_t>(executor.gpus().size());
  held->blocks = in_rows ? BlocksOfRows(operand, spec.bounds) : ColumnBlocks(operand, parts);
  for (size_t i = 0; i < held->blocks.size(); ++i) {
    auto& gpu = const_cast<GpuBackend&>(executor.gpus()[i]);
    elements = NewOperand(held->blocks[i].shape, gpu, executor, budget, stop, spec.until);
    if (!elements.ok()) return elements.status();
    held->blocks[i].elements = *std::move(elements);
  }
  held->elements = whole.b.block->elements;
  SpmmSpec distributed = whole;
  distributed.part.device.reset();
  distributed.b.block.reset();
  distributed.b.found = held;

  std::vector<DeviceId> gpus;
  for (const GpuBackend& gpu : executor.gpus()) gpus.push_back(gpu.id());
  const auto run_whole = [&]() -> absl::StatusOr<double> {
    whole.result.blocks =
        std::make_shared<BlockResults>(std::vector<DenseBlock>{{0, 0, result, nullptr}});
    return RunOnce(whole, {first->id()}, executor, stop, spec.until);
  };
  const auto run_distributed = [&]() -> absl::StatusOr<double> {
    // In rows they are those of the request's parts.
    if (!in_rows) {
      distributed.result.blocks = std::make_shared<BlockResults>(ColumnBlocks(result, parts));
    }
    return RunOnce(distributed, gpus, executor, stop, spec.until);
  };
  // Copies of S, streams and memory are there after a few, and cards that rested run as fast as
  // ever after a while.
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kWarmUp || std::chrono::steady_clock::now() - begin < kWarmUpTime; ++i) {
    if (auto s = run_whole(); !s.ok()) return s.status();
    if (auto s = run_distributed(); !s.ok()) return s.status();
  }
  std::vector<double> unused;
  return TakeTurns(run_whole, run_distributed, spec.budget_ms, unused);
}

}  // namespace sparsed::engine
