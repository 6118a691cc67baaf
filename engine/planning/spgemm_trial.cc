#include "engine/planning/spgemm_trial.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string_view>
#include <utility>

#include "engine/execution/scheduler.h"
#include "engine/memory/device.h"
#include "kernels/formats/csr.h"
#include "kernels/spgemm_blocks.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// Ranges of rows, and entries (by their bounds) of each, that a sample has at most.
struct SampleSize {
  int64_t ranges, entries;
};
/// On the CPU so much work that a moment without the processor does not make another kernel of it.
/// On the GPU each range must fill it, however long its rows are.
SampleSize SizeOn(DeviceKind device) {
  return device == DeviceKind::kCuda ? SampleSize{4, int64_t{1} << 24}
                                     : SampleSize{8, int64_t{1} << 21};
}
/// A range of fewer is not worth timing, where memory is short.
constexpr int64_t kLeastRangeEntries = int64_t{1} << 16;

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

int64_t Sum(std::span<const int64_t> bounds, RowRange range) {
  return std::accumulate(bounds.begin() + range.begin, bounds.begin() + range.end, int64_t{0});
}

}  // namespace

SpgemmArguments SpgemmOperands::arguments() const {
  return {ViewCsr(*left), left_values.buffer.data(), ViewCsr(*right), right_values.buffer.data()};
}

SpgemmTrial::SpgemmTrial(const Problem& problem, SpgemmOperands operands,
                         const SpgemmKernel& baseline, MemorySource& memory, Device* gpu,
                         Executor& executor, const std::atomic<bool>* stop, Clock::time_point until)
    : problem_(problem),
      operands_(std::move(operands)),
      baseline_(baseline),
      host_memory_(memory),
      gpu_(problem.device == DeviceKind::kCuda ? gpu : nullptr),
      executor_(executor),
      memory_(gpu_ == nullptr ? memory : gpu_->budget().Source(MemoryUse::kPreparation)),
      stop_(stop),
      until_(until) {}

absl::StatusOr<std::unique_ptr<SpgemmTrial>> SpgemmTrial::Begin(
    const Problem& problem, SpgemmOperands operands, const SpgemmKernel& baseline,
    MemorySource& memory, Device* gpu, Executor& executor, const std::atomic<bool>* stop,
    Clock::time_point until) {
  std::unique_ptr<SpgemmTrial> trial(
      new SpgemmTrial(problem, std::move(operands), baseline, memory, gpu, executor, stop, until));
  absl::Status status = trial->bounds_.Allocate(memory, trial->operands_.left->rows);
  if (status.ok()) {
    status = trial->OnLane([&](const SpgemmArguments& arguments, Lane& lane) {
      return trial->FindBounds(arguments, lane);
    });
  }
  if (!status.ok()) return status;
  const SampleSize size = SizeOn(problem.device);
  int64_t entries = size.entries;
  status = trial->TakeSample(size.ranges, entries);
  while (absl::IsResourceExhausted(status) && entries > kLeastRangeEntries) {
    entries /= 4;
    status = trial->TakeSample(size.ranges, entries);
  }
  if (!status.ok()) return status;
  return trial;
}

absl::StatusOr<SpgemmOperands> SpgemmTrial::OnDevice() const {
  Residency& residency = gpu_->residency();
  SpgemmOperands there;
  const auto place = [&](const std::shared_ptr<const Layout>& csr, const Array& values,
                         std::shared_ptr<const Layout>& layout_there, Array& values_there) {
    absl::StatusOr<std::shared_ptr<const Layout>> layout = residency.Place(csr);
    if (!layout.ok()) return layout.status();
    absl::StatusOr<std::shared_ptr<const Array>> placed =
        residency.PlaceValues(values, csr, host_memory_);
    if (!placed.ok()) return placed.status();
    layout_there = *std::move(layout);
    values_there = **placed;
    return absl::OkStatus();
  };
  absl::Status status = place(operands_.left, operands_.left_values, there.left, there.left_values);
  if (status.ok()) {
    status = place(operands_.right, operands_.right_values, there.right, there.right_values);
  }
  if (!status.ok()) return status;
  return there;
}

absl::Status SpgemmTrial::OnLane(
    const std::function<absl::Status(const SpgemmArguments&, Lane&)>& use) {
  absl::StatusOr<SpgemmOperands> placed = operands_;
  if (gpu_ != nullptr) placed = OnDevice();
  if (!placed.ok()) return placed.status();
  absl::Status status;
  const absl::Status ran = executor_.RunIdle(
      IdOf(gpu_), [&](Lane& lane) { status = use(placed->arguments(), lane); }, stop_, until_);
  return ran.ok() ? status : ran;
}

absl::Status SpgemmTrial::FindBounds(const SpgemmArguments& arguments, Lane& lane) {
  Context context{.threads = lane.threads, .workspace = {}, .stop = stop_};
  const std::span<int64_t> bounds = bounds_.span();
  if (lane.gpu == nullptr) return baseline_.analyse(context, arguments, bounds, &products_);
  absl::StatusOr<Array> counts =
      AllocateArray(memory_, "row counts", ElementType::kI64, arguments.left.rows);
  if (!counts.ok()) return counts.status();
  absl::StatusOr<Array> product_count = AllocateArray(memory_, "products", ElementType::kI64, 1);
  if (!product_count.ok()) return product_count.status();
  counts_ = *std::move(counts);
  product_count_ = *std::move(product_count);
  absl::Status status = Grow(workspace_, baseline_.workspace(problem_, arguments, 1), memory_);
  if (!status.ok()) return status;
  context = OfLane(*lane.gpu);
  std::shared_ptr<void> prepared;
  Device& device = *gpu_;
  status =
      device.Timed(*lane.gpu, [&] { return QueueCounts(baseline_, arguments, context, prepared); })
          .status();
  if (!status.ok()) return status;
  status = device.CopyOut(lane.gpu->stream, bounds.data(), counts_.buffer.data(), counts_.bytes());
  if (!status.ok()) return status;
  return device.CopyOut(lane.gpu->stream, &products_, product_count_.buffer.data(),
                        sizeof products_);
}

absl::Status SpgemmTrial::TakeSample(int64_t ranges, int64_t range_entries) {
  sample_.clear();
  row_nnz_ = columns_ = values_ = row_begin_there_ = Array();
  const std::span<int64_t> bounds = bounds_.span();
  const auto rows = static_cast<int64_t>(bounds.size());
  const int64_t all = Sum(bounds, {0, rows});
  int64_t sampled = 0, most_rows = 0, most_entries = 0;
  RowRange range;
  for (int64_t i = 0; i < ranges && range.end < rows; ++i) {
    const bool is_all = all <= ranges * range_entries;
    const int64_t begin = is_all ? range.end : std::max(range.end, rows * i / ranges);
    range = NextRowBlock(bounds, begin, range_entries);
    const int64_t entries = Sum(bounds, range);
    if (entries == 0) continue;
    sample_.push_back(range);
    sampled += entries;
    most_rows = std::max(most_rows, range.end - range.begin);
    most_entries = std::max(most_entries, entries);
  }
  scale_ = sampled == 0 ? 1 : static_cast<double>(all) / static_cast<double>(sampled);
  absl::Status status = row_begin_.Allocate(host_memory_, most_rows + 1);
  const auto allocate = [&](std::string_view name, ElementType type, int64_t length, Array& array) {
    if (!status.ok()) return;
    absl::StatusOr<Array> allocated = AllocateArray(memory_, name, type, length);
    status = allocated.status();
    if (allocated.ok()) array = *std::move(allocated);
  };
  allocate("row counts", ElementType::kI64, most_rows, row_nnz_);
  allocate("column_indices", ElementType::kI32, most_entries, columns_);
  allocate("values", problem_.type, most_entries, values_);
  if (gpu_ != nullptr) {
    allocate("row begins", ElementType::kI64, most_rows + 1, row_begin_there_);
  }
  return status;
}

absl::Status SpgemmTrial::Prepare(const SpgemmKernel& kernel, const SpgemmArguments& arguments,
                                  Context& context, std::shared_ptr<void>& prepared) {
  if (kernel.prepare == nullptr) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<void>> made =
      kernel.prepare(context, problem_, arguments, memory_);
  if (!made.ok()) return made.status();
  prepared = *std::move(made);
  context.prepared = prepared.get();
  return absl::OkStatus();
}

absl::StatusOr<double> SpgemmTrial::RunOnCpu(const SpgemmKernel& kernel,
                                             const SpgemmArguments& arguments, Lane& lane) {
  absl::Status status =
      Grow(workspace_, kernel.workspace(problem_, arguments, lane.threads), memory_);
  if (!status.ok()) return status;
  Context context{.threads = lane.threads,
                  .workspace = {workspace_.mutable_data(), workspace_.size()},
                  .stop = stop_};
  const Clock::time_point begin = Clock::now();
  std::shared_ptr<void> prepared;
  if (absl::Status s = Prepare(kernel, arguments, context, prepared); !s.ok()) return s;
  status = kernel.analyse(context, arguments, bounds_.span(), &products_);
  const double before_ms = MillisecondsSince(begin);
  double rows_ms = 0;
  nnz_ = 0;
  for (const RowRange& range : sample_) {
    if (!status.ok()) return status;
    const auto count = static_cast<size_t>(range.end - range.begin);
    const std::span<int64_t> row_begin = row_begin_.span().first(count + 1);
    const std::span<int64_t> row_nnz = row_nnz_.MutableAs<int64_t>().first(count);
    PlaceRowBlock(bounds_.span(), range, row_begin);
    const Clock::time_point rows_begin = Clock::now();
    status = kernel.numeric(context, problem_, arguments, range, row_begin,
                            columns_.MutableAs<int32_t>().data(), values_.buffer.mutable_data(),
                            row_nnz);
    rows_ms += MillisecondsSince(rows_begin);
    if (status.ok()) nnz_ += std::accumulate(row_nnz.begin(), row_nnz.end(), int64_t{0});
  }
  if (!status.ok()) return status;
  return before_ms + rows_ms * scale_;
}

absl::Status SpgemmTrial::QueueCounts(const SpgemmKernel& kernel, const SpgemmArguments& arguments,
                                      Context& context, std::shared_ptr<void>& prepared) {
  if (absl::Status s = Prepare(kernel, arguments, context, prepared); !s.ok()) return s;
  const std::span<int64_t> counts = counts_.MutableAs<int64_t>();
  const absl::Status status =
      kernel.analyse(context, arguments, counts, product_count_.MutableAs<int64_t>().data());
  if (!status.ok()) return status;
  return kernel.symbolic(context, arguments, {0, arguments.left.rows}, counts);
}

absl::StatusOr<double> SpgemmTrial::RunOnDevice(const SpgemmKernel& kernel,
                                                const SpgemmArguments& arguments, DeviceLane& gpu) {
  absl::Status status = Grow(workspace_, kernel.workspace(problem_, arguments, 1), memory_);
  if (!status.ok()) return status;
  Device& device = *gpu_;
  Context context = OfLane(gpu);
  std::shared_ptr<void> prepared;  // Nothing that is queued uses it when a timed part has ended.
  absl::StatusOr<double> part_ms =
      device.Timed(gpu, [&] { return QueueCounts(kernel, arguments, context, prepared); });
  if (!part_ms.ok()) return part_ms;
  const double before_ms = *part_ms;
  double rows_ms = 0;
  nnz_ = 0;
  for (const RowRange& range : sample_) {
    const auto count = static_cast<size_t>(range.end - range.begin);
    const std::span<int64_t> row_begin = row_begin_.span().first(count + 1);
    nnz_ += PlaceRowBlock(bounds_.span(), range, row_begin);
    status = device.CopyIn(gpu.stream, row_begin_there_.buffer.mutable_data(), row_begin.data(),
                           row_begin.size_bytes());
    if (!status.ok()) return status;
    part_ms = device.Timed(gpu, [&] {
      return kernel.numeric(context, problem_, arguments, range,
                            row_begin_there_.MutableAs<int64_t>().first(count + 1),
                            columns_.MutableAs<int32_t>().data(), values_.buffer.mutable_data(),
                            row_nnz_.MutableAs<int64_t>().first(count));
    });
    if (!part_ms.ok()) return part_ms;
    rows_ms += *part_ms;
  }
  return before_ms + rows_ms * scale_;
}

Context SpgemmTrial::OfLane(DeviceLane& gpu) {
  return {.threads = 1,
          .workspace = {workspace_.mutable_data(), workspace_.size()},
          .stop = stop_,
          .stream = gpu.stream.handle()};
}

absl::StatusOr<double> SpgemmTrial::RunOnce(const SpgemmKernel& kernel) {
  absl::StatusOr<double> milliseconds = 0.0;
  const absl::Status ran = OnLane([&](const SpgemmArguments& arguments, Lane& lane) {
    milliseconds = lane.gpu == nullptr ? RunOnCpu(kernel, arguments, lane)
                                       : RunOnDevice(kernel, arguments, *lane.gpu);
    return milliseconds.status();
  });
  if (!ran.ok()) return ran;
  return milliseconds;
}

absl::StatusOr<TrialTimes> SpgemmTrial::Against(const SpgemmKernel& kernel, double budget_ms) {
  // What the format refuses costs the baseline no run.
  if (absl::Status s = RunOnce(kernel).status(); !s.ok()) return s;
  return TakeTurns([&] { return RunOnce(baseline_); }, [&] { return RunOnce(kernel); }, budget_ms,
                   baseline_ms_);
}

absl::StatusOr<TrialTimes> SpgemmTrial::BaselineAlone(double budget_ms) {
  return TakeTurns([&] { return RunOnce(baseline_); }, nullptr, budget_ms, baseline_ms_);
}

double SpgemmTrial::baseline_median() const {
  return baseline_ms_.empty() ? 0 : Median(baseline_ms_);
}

}  // namespace sparsed::engine
