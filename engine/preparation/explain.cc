#include "engine/preparation/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "engine/catalog/pattern_product.h"
#include "engine/execution/calibrate.h"
#include "engine/execution/gpu_backend.h"
#include "engine/memory/budget.h"
#include "engine/memory/processor.h"
#include "engine/preparation/cpu_rates.h"
#include "kernels/cpu/memory_reads.h"
#include "kernels/cpu/multiply_add.h"
#include "kernels/pipeline_steps.h"
#include "kernels/reorder/breadth_first.h"

namespace sparsed::engine {
namespace {

/// Lines of the CPU's caches, and sectors of the GPU's.
constexpr int64_t kCpuLine = 64, kGpuSector = 32;
/// Warp schedulers of a multiprocessor: the warp that computes a row has one of them at best.
constexpr int kSchedulers = 4;
/// What is moved is the footprint, but for so much.
constexpr double kMisses = 1.2;
/// The longest row keeps the others waiting.
constexpr double kImbalance = 2;
/// What takes so much less time than the rates allow shows that they are higher.
constexpr double kFaster = 0.95;
/// What takes so many times longer than operations and bytes need waits for something else.
constexpr double kOverhead = 3;

/// In some 20 ms.
double MeasureFlops(ElementType type, int threads) {
  return CpuRates::OfThisProcess().Measure({Name(type), threads}, [&] {
    constexpr int64_t kSteps = 1 << 20;
    return cpu::MultiplyAdd(type, kSteps, threads);
  });
}

/// Likewise, of reads of `array`, which the cache holds.
double MeasureCache(std::span<const std::byte> array, int threads) {
  return CpuRates::OfThisProcess().Measure({CpuRates::kCache, threads}, [&] {
    constexpr size_t kReadBytes = size_t{256} << 20;
    const int repeats = static_cast<int>(std::max<size_t>(1, kReadBytes / array.size()));
    return cpu::ReadMemory(array, repeats, threads);
  });
}

/// f32 units of a multiprocessor; f64 units are half of them where sparse products matter.
double GpuFlops(const cuda::DeviceInfo& info, ElementType type) {
  const int units = info.compute_major == 8 && info.compute_minor == 0 ? 64 : 128;
  const double f32 = 2.0 * units * info.multiprocessors * info.clock_hz;
  return type == ElementType::kF64 ? f32 / 2 : f32;
}

/// By the device's calibration; 0: there is none. 16-bit types are computed in f32.
double MeasuredFlops(const Backend& backend, ElementType type) {
  const DeviceConstants constants = backend.constants();
  return type == ElementType::kF64 ? constants.f64_flops_per_second
                                   : constants.f32_flops_per_second;
}

void DescribeCalibration(const Backend& backend, Explanation& e) {
  e.cache_bytes_per_second = backend.constants().cache_bytes_per_second;
  const std::optional<Calibration> calibration = backend.calibration();
  if (calibration) e.calibrated_unix_ns = calibration->measured_unix_ns;
}

/// The CPU's rates that no calibration says, in a worker slot. Without free memory for it the
/// cache's stays unknown.
absl::Status MeasureMissing(Executor& executor, ElementType type, const BuildContext& context,
                            Explanation& e) {
  CpuRates& rates = CpuRates::OfThisProcess();
  const CpuRates::Key arithmetic = {Name(type), e.workers}, cache = {CpuRates::kCache, e.workers};
  double& flops = e.roofline.flops_per_second;
  double& cached = e.cache_bytes_per_second;
  const bool calibrated_flops = flops > 0, calibrated_cache = cached > 0;
  if (flops == 0) flops = rates.Known(arithmetic);
  if (cached == 0) cached = rates.Known(cache);
  const bool without_flops = flops == 0;
  absl::StatusOr<Buffer> array = Buffer();
  if (cached == 0) {
    const Budget::SpareOnly spare;  // nobody's arrays go for it
    array = context.memory->Allocate(static_cast<size_t>(CacheRateBytes(e.cache_bytes, e.workers)));
  }
  const bool without_cache = array.ok() && array->size() > 0;
  if (without_flops || without_cache) {
    absl::Status measured = executor.RunIdle(
        DeviceId{},
        [&](WorkerSlot& /*slot*/) {
          if (without_flops) flops = MeasureFlops(type, e.workers);
          if (!without_cache) return;
          std::memset(array->mutable_data(), 1, array->size());
          cached = MeasureCache({array->data(), array->size()}, e.workers);
        },
        context.stop);
    if (!measured.ok()) return measured;
  }
  e.measured_while_busy = e.measured_while_busy ||
                          (!calibrated_flops && !rates.certain(arithmetic)) ||
                          (!calibrated_cache && cached > 0 && !rates.certain(cache));
  // No cache is slower than the memory behind it: others used it meanwhile.
  if (!calibrated_cache && cached > 0 && cached < e.roofline.bytes_per_second) {
    cached = e.roofline.bytes_per_second;
    e.measured_while_busy = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<Explanation> DescribeDevice(const ExplainOptions& options, Executor& executor,
                                           ElementType type, const BuildContext& context) {
  Explanation e;
  const std::deque<GpuBackend>& gpus = executor.gpus();
  const DeviceId device = options.device.value_or(gpus.empty() ? DeviceId{} : gpus.front().id());
  if (device.kind == DeviceKind::kCuda) {
    const auto found = std::ranges::find(gpus, device, &GpuBackend::id);
    if (found == gpus.end()) {
      return absl::FailedPreconditionError(
          gpus.empty() ? std::string("the server uses no GPU; ask for cpu")
                       : fmt::format("the server does not use {}", Name(device)));
    }
    const Device& gpu = found->device();
    e.device = gpu.name();
    e.cache_bytes = static_cast<int64_t>(gpu.info().l2_bytes);
    e.line_bytes = kGpuSector;
    e.workers = gpu.info().multiprocessors * kSchedulers;
    const double measured = MeasuredFlops(*found, type);
    e.roofline = {gpu.bytes_per_second(), measured > 0 ? measured : GpuFlops(gpu.info(), type)};
    e.inner_cache_bytes = static_cast<int64_t>(gpu.info().shared_bytes_per_block);
    DescribeCalibration(*found, e);
  } else {
    e.device = "cpu";
    e.cache_bytes = LastLevelCacheBytes();
    e.line_bytes = kCpuLine;
    e.workers = executor.options().threads_per_slot;
    if (absl::Status s = executor.SettleMemoryRate(context.stop); !s.ok()) return s;
    e.roofline.bytes_per_second = executor.backend({}).bytes_per_second();
    e.measured_while_busy = !executor.memory_rate_is_sure();
    DescribeCalibration(executor.backend({}), e);
    e.roofline.flops_per_second = MeasuredFlops(executor.backend({}), type);
    if (absl::Status s = MeasureMissing(executor, type, context, e); !s.ok()) return s;
    e.inner_cache_bytes = InnerCacheBytes();
  }
  if (options.cache_bytes > 0) e.cache_bytes = options.cache_bytes;
  e.inner_cache_bytes = std::min(e.inner_cache_bytes, e.cache_bytes);
  return e;
}

Limit LimitOf(const ExplainedOperation& o, const Explanation& e) {
  const Movement& m = o.served;
  if (m.flops == 0) return Limit::kNothing;
  if (o.imbalance > kImbalance) return Limit::kImbalance;
  if (m.footprint_bytes <= static_cast<double>(e.cache_bytes)) return Limit::kCache;
  if (m.flops / m.moved_bytes > e.roofline.critical_intensity()) return Limit::kArithmetic;
  return m.moved_bytes > kMisses * m.footprint_bytes ? Limit::kCacheMisses : Limit::kBandwidth;
}

/// What the gains of another schedule are, of bytes at that rate.
void JudgeGains(const Roofline& roofline, const Movement& served, const Movement& stored,
                const Movement& reordered, ExplainedOperation& o) {
  const double now = roofline.Seconds(served.flops, served.moved_bytes);
  const double known =
      std::min({served.moved_bytes, served.partition_bytes, stored.moved_bytes,
                stored.partition_bytes, reordered.moved_bytes, reordered.partition_bytes});
  o.greatest_gain = now / roofline.Seconds(served.flops, served.footprint_bytes);
  o.known_gain = now / roofline.Seconds(served.flops, known);
}

/// Of a product in cache, whose inner movements are known. `assumed`: in a cache that is not the
/// one with which its plan was timed, so that its time says nothing.
void JudgeInCache(const Explanation& e, bool assumed, ExplainedOperation& o) {
  if (e.cache_bytes_per_second <= 0) return;
  const Roofline cache = {e.cache_bytes_per_second, e.roofline.flops_per_second};
  JudgeGains(cache, o.inner_served, o.inner, o.inner_reordered, o);
  const double seconds = cache.Seconds(o.inner_served.flops, o.inner_served.moved_bytes);
  const double measured = assumed ? 0 : 1e-3 * o.measured_ms;
  if (measured > kOverhead * seconds) {
    o.cache_limit = CacheLimit::kOverhead;
  } else if (measured > 0 && measured < kFaster * seconds) {
    o.cache_limit = CacheLimit::kUncertain;
  } else {
    const bool arithmetic =
        o.inner_served.flops / o.inner_served.moved_bytes > cache.critical_intensity();
    o.cache_limit = arithmetic ? CacheLimit::kArithmetic : CacheLimit::kBandwidth;
  }
}

void Judge(const Explanation& e, ExplainedOperation& o) {
  o.imbalance = std::max(1.0, o.served.largest_row * e.workers);
  o.limit = LimitOf(o, e);
  if (o.served.flops == 0 || o.limit == Limit::kCache) return;
  JudgeGains(e.roofline, o.served, o.stored, o.reordered, o);
}

/// The steps of a pipeline that order rows: "breadth_first"; "" if it has none.
std::string OrderOf(const std::string& pipeline) {
  Pipeline steps;
  const absl::StatusOr<Pipeline> parsed = ParsePipeline(pipeline);
  if (!parsed.ok()) return "";
  std::ranges::copy_if(parsed->steps, std::back_inserter(steps.steps),
                       [](const PipelineStep& step) {
                         const StepDefinition* const definition = FindStep(step);
                         return definition != nullptr && definition->phase == Phase::kReorder;
                       });
  return steps.steps.empty() ? "" : ToString(steps);
}

/// The order in which the plan that serves it reads rows.
struct RowOrder {
  std::string steps;
  std::shared_ptr<const Layout> layout;  ///< whose it is
  std::span<const int32_t> rows;         ///< empty: as they are stored, or not to be had now
};
RowOrder ServedOrder(const Plan& plan, LazyLayout* lazy, int64_t rows) {
  RowOrder order;
  const std::string steps = OrderOf(plan.pipeline);
  if (steps.empty() || lazy == nullptr) return order;
  const Budget::SpareOnly spare;  // nobody's arrays go for it
  absl::StatusOr<std::shared_ptr<const Layout>> layout = lazy->Get();
  if (!layout.ok() || (*layout)->transposed) return order;
  const auto elements = (*layout)->Elements<int32_t>("row_order");
  if (static_cast<int64_t>(elements.size()) != rows) return order;
  return {steps, *std::move(layout), elements};
}

/// What the plan that serves it took in its trials, and the order in which it reads rows. `judge`:
/// where that is below the roofline, too.
RowOrder FindMeasured(const Matrix& matrix, DeviceKind device, const Executor& executor, bool judge,
                      ExplainedOperation& o) {
  const ProblemSignature wanted =
      SignatureOf({.operation = o.operation, .type = matrix.type(), .k = o.k, .device = device});
  std::optional<PatternPair> with_itself;
  if (o.operation == Operation::kSpgemm) with_itself = {matrix.pattern()->hash()};
  const PlanTable::Found found = matrix.pattern()->plans().Find(wanted, with_itself);
  // Of products of other pairs none says anything of this one.
  if (found.plan == nullptr || (with_itself && !found.exact)) return {};
  const Plan& plan = found.plan->plan;
  RowOrder order = ServedOrder(plan, found.plan->layout.get(), matrix.pattern()->rows());
  o.plan = fmt::format(
      "{} on {}", plan.kernel,
      plan.pair ? FactorsText(*plan.pair, matrix.pattern()->hash(), plan.pipeline, plan.kernel)
                : plan.pipeline);
  o.request_plan = plan.ToString();
  o.plan_k = plan.signature.k_bucket;
  o.order = order.steps;
  const std::vector<Measurement> measurements = matrix.pattern()->trials().measurements();
  for (const Measurement& m : measurements) {
    const bool tried = m.signature == plan.signature && m.pair == plan.pair &&
                       OrderOf(m.pipeline) == kComparedOrder;
    if (tried && (o.reordered_ms == 0 || m.median_ms < o.reordered_ms))
      o.reordered_ms = m.median_ms;
  }
  const auto trial = std::ranges::find_if(measurements, [&plan](const Measurement& m) {
    return m.signature == plan.signature && m.pipeline == plan.pipeline &&
           m.kernel == plan.kernel && m.pair == plan.pair;
  });
  if (trial == measurements.end()) return order;
  o.trial_k = trial->k;
  o.trial_ms = plan.plan_ms;
  // Trials of a signature may have been of a narrower product.
  if (!found.exact || trial->k != o.k) return order;
  o.measured_ms = plan.plan_ms;
  o.baseline_ms = trial->baseline_ms;
  o.busy_trials = FindBusyTrials(plan, measurements);
  if (judge) o.roofline = RooflineOf(plan, measurements, executor);
  return order;
}

/// Movements of rows as they are stored, breadth first, and in the order that serves.
struct Orders {
  const CsrView& stored;
  const CsrView& reordered;
  std::span<const int32_t> served;  ///< empty: as they are stored

  absl::Status Model(const MovementSpec& spec, const BuildContext& context, Movement& as_stored,
                     Movement& as_reordered, Movement& as_served) const {
    const auto model = [&](const CsrView& csr, Movement& movement) {
      absl::StatusOr<Movement> modelled = ModelMovement(csr, spec, context);
      if (modelled.ok()) movement = *std::move(modelled);
      return modelled.status();
    };
    if (absl::Status s = model(stored, as_stored); !s.ok()) return s;
    if (absl::Status s = model(reordered, as_reordered); !s.ok()) return s;
    as_served = as_stored;
    if (served.empty()) return absl::OkStatus();
    CsrView in_order = stored;
    in_order.row_order = served;
    return model(in_order, as_served);
  }
};

}  // namespace

std::string_view Name(Limit limit) {
  switch (limit) {
    case Limit::kNothing:
      return "nothing";
    case Limit::kCache:
      return "cache";
    case Limit::kArithmetic:
      return "arithmetic";
    case Limit::kImbalance:
      return "imbalance";
    case Limit::kCacheMisses:
      return "cache_misses";
    case Limit::kBandwidth:
      return "bandwidth";
  }
  return "";
}

std::string_view Name(CacheLimit limit) {
  switch (limit) {
    case CacheLimit::kUnknown:
      return "";
    case CacheLimit::kBandwidth:
      return "cache_bandwidth";
    case CacheLimit::kArithmetic:
      return "arithmetic";
    case CacheLimit::kOverhead:
      return "overhead";
    case CacheLimit::kUncertain:
      return "uncertain";
  }
  return "";
}

absl::StatusOr<Explanation> Explain(const Matrix& matrix, const ExplainOptions& options,
                                    Executor& executor, const BuildContext& context) {
  absl::StatusOr<Explanation> explanation =
      DescribeDevice(options, executor, matrix.type(), context);
  if (!explanation.ok()) return explanation;
  const auto layout = matrix.pattern()->Csr();
  if (!layout.ok()) return layout.status();
  const CsrView stored = ViewCsr(**layout);
  const absl::StatusOr<Array> order = BreadthFirst(stored, context);
  if (!order.ok()) return order.status();
  CsrView reordered = stored;
  reordered.row_order = order->As<int32_t>();

  const bool assumed = options.cache_bytes != 0;
  const DeviceKind device = explanation->device == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda;
  std::vector<std::pair<Operation, int64_t>> problems = {{Operation::kSpmm, 1}};
  if (options.k != 1) problems.emplace_back(Operation::kSpmm, options.k);
  if (stored.rows == stored.cols) problems.emplace_back(Operation::kSpgemm, 0);
  for (const auto& [operation, k] : problems) {
    MovementSpec spec = {.operation = operation,
                         .k = k,
                         .value_bytes = static_cast<int64_t>(SizeOf(matrix.type())),
                         .cache_bytes = explanation->cache_bytes,
                         .line_bytes = explanation->line_bytes};
    ExplainedOperation o;
    o.operation = operation;
    o.k = k;
    const RowOrder served = FindMeasured(matrix, device, executor, /*judge=*/!assumed, o);
    const Orders orders = {stored, reordered, served.rows};
    absl::Status modelled = orders.Model(spec, context, o.stored, o.reordered, o.served);
    if (!modelled.ok()) return modelled;
    Judge(*explanation, o);
    if (o.limit == Limit::kCache) {
      spec.cache_bytes = explanation->inner_cache_bytes;
      modelled = orders.Model(spec, context, o.inner, o.inner_reordered, o.inner_served);
      if (!modelled.ok()) return modelled;
      JudgeInCache(*explanation, assumed, o);
    }
    if (operation == Operation::kSpmm && device == DeviceKind::kCuda) {
      absl::StatusOr<DistributionChoice> choice =
          ChooseDistribution(executor, matrix, /*transposed=*/false, k, context.stop);
      if (!choice.ok()) return choice.status();
      if (choice->gpus > 1) o.distributions = *std::move(choice);
    }
    explanation->operations.push_back(std::move(o));
  }
  return explanation;
}

}  // namespace sparsed::engine
