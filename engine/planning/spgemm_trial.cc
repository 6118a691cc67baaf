#include "engine/planning/spgemm_trial.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "engine/execution/scheduler.h"
#include "kernels/spgemm_blocks.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// Ranges of rows and entries (by their bounds) of a sample: so much work that a moment without the
/// processor does not make another kernel of it.
constexpr int64_t kRanges = 8;
constexpr int64_t kSampleEntries = int64_t{1} << 24;

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

int64_t Sum(std::span<const int64_t> bounds, RowRange range) {
  return std::accumulate(bounds.begin() + range.begin, bounds.begin() + range.end, int64_t{0});
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpgemmTrial>> SpgemmTrial::Begin(
    const Problem& problem, const SpgemmArguments& arguments, const SpgemmKernel& baseline,
    MemorySource& memory, Executor& executor, const std::atomic<bool>* stop) {
  std::unique_ptr<SpgemmTrial> trial(
      new SpgemmTrial(problem, arguments, baseline, memory, executor, stop));
  absl::Status status = trial->bounds_.Allocate(memory, arguments.left.rows);
  if (!status.ok()) return status;
  const absl::Status ran = executor.RunIdle(
      problem.device, [&](Lane& lane) { status = trial->TakeSample(lane); }, stop);
  status.Update(ran);
  if (!status.ok()) return status;
  return trial;
}

absl::Status SpgemmTrial::TakeSample(Lane& lane) {
  const Context context{.threads = lane.threads, .workspace = {}, .stop = stop_};
  const std::span<int64_t> bounds = bounds_.span();
  absl::Status status = baseline_.analyse(context, arguments_, bounds, &products_);
  if (!status.ok()) return status;
  const int64_t rows = arguments_.left.rows;
  const int64_t all = Sum(bounds, {0, rows});
  int64_t sampled = 0, most_rows = 0, most_entries = 0;
  RowRange range;
  for (int64_t i = 0; i < kRanges && range.end < rows; ++i) {
    const int64_t begin =
        all <= kSampleEntries ? range.end : std::max(range.end, rows * i / kRanges);
    range = NextRowBlock(bounds, begin, all <= kSampleEntries ? all : kSampleEntries / kRanges);
    const int64_t entries = Sum(bounds, range);
    if (entries == 0) continue;
    sample_.push_back(range);
    sampled += entries;
    most_rows = std::max(most_rows, range.end - range.begin);
    most_entries = std::max(most_entries, entries);
  }
  scale_ = sampled == 0 ? 1 : static_cast<double>(all) / static_cast<double>(sampled);
  status = row_begin_.Allocate(memory_, most_rows + 1);
  status.Update(row_nnz_.Allocate(memory_, most_rows));
  status.Update(columns_.Allocate(memory_, most_entries));
  status.Update(Grow(values_, static_cast<size_t>(most_entries) * SizeOf(problem_.type), memory_));
  return status;
}

absl::StatusOr<double> SpgemmTrial::RunOnLane(const SpgemmKernel& kernel, Lane& lane) {
  absl::Status status =
      Grow(workspace_, kernel.workspace(problem_, arguments_, lane.threads), memory_);
  if (!status.ok()) return status;
  Context context{.threads = lane.threads,
                  .workspace = {workspace_.mutable_data(), workspace_.size()},
                  .stop = stop_};
  const Clock::time_point begin = Clock::now();
  std::shared_ptr<void> prepared;
  if (kernel.prepare != nullptr) {
    absl::StatusOr<std::shared_ptr<void>> made =
        kernel.prepare(context, problem_, arguments_, memory_);
    if (!made.ok()) return made.status();
    prepared = *std::move(made);
    context.prepared = prepared.get();
  }
  status = kernel.analyse(context, arguments_, bounds_.span(), &products_);
  const double before_ms = MillisecondsSince(begin);
  double rows_ms = 0;
  nnz_ = 0;
  for (const RowRange& range : sample_) {
    if (!status.ok()) return status;
    const auto count = static_cast<size_t>(range.end - range.begin);
    const std::span<int64_t> row_begin = row_begin_.span().first(count + 1);
    const std::span<int64_t> row_nnz = row_nnz_.span().first(count);
    PlaceRowBlock(bounds_.span(), range, row_begin);
    const Clock::time_point rows_begin = Clock::now();
    status = kernel.numeric(context, problem_, arguments_, range, row_begin, columns_.data(),
                            values_.mutable_data(), row_nnz);
    rows_ms += MillisecondsSince(rows_begin);
    if (status.ok()) nnz_ += std::accumulate(row_nnz.begin(), row_nnz.end(), int64_t{0});
  }
  if (!status.ok()) return status;
  return before_ms + rows_ms * scale_;
}

absl::StatusOr<double> SpgemmTrial::RunOnce(const SpgemmKernel& kernel) {
  absl::StatusOr<double> milliseconds = 0.0;
  const absl::Status ran = executor_.RunIdle(
      problem_.device, [&](Lane& lane) { milliseconds = RunOnLane(kernel, lane); }, stop_);
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
