#include "engine/preparation/spgemm_trial.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string_view>
#include <utility>

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

int64_t Sum(std::span<const int64_t> bounds, RowRange range) {
  return std::accumulate(bounds.begin() + range.begin, bounds.begin() + range.end, int64_t{0});
}

}  // namespace

SpgemmTrial::SpgemmTrial(const Problem& problem, SpgemmFactor left, SpgemmFactor right,
                         const SpgemmKernel& baseline, MemorySource& memory, Backend& backend,
                         Executor& executor, const std::atomic<bool>* stop, Clock::time_point until)
    : problem_(problem),
      left_(std::move(left)),
      right_(std::move(right)),
      baseline_(baseline),
      host_memory_(memory),
      backend_(backend),
      executor_(executor),
      memory_(backend.memory(MemoryUse::kPreparation)),
      stop_(stop),
      until_(until) {}

absl::StatusOr<std::unique_ptr<SpgemmTrial>> SpgemmTrial::Begin(
    const Problem& problem, SpgemmFactor left, SpgemmFactor right, const SpgemmKernel& baseline,
    MemorySource& memory, Backend& backend, Executor& executor, const std::atomic<bool>* stop,
    Clock::time_point until) {
  std::unique_ptr<SpgemmTrial> trial(new SpgemmTrial(problem, std::move(left), std::move(right),
                                                     baseline, memory, backend, executor, stop,
                                                     until));
  absl::Status status = trial->bounds_.Allocate(memory, trial->left_.csr->rows);
  if (status.ok()) {
    status = trial->OnSlot(baseline, trial->left_, trial->right_, [&](Run& run, WorkerSlot& slot) {
      return trial->FindBounds(run, slot);
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

absl::Status SpgemmTrial::OnSlot(
    const SpgemmKernel& kernel, const SpgemmFactor& left, const SpgemmFactor& right,
    const std::function<absl::StatusOr<bool>(Run&, WorkerSlot&)>& piece) {
  absl::StatusOr<SpgemmFactors> placed =
      PlaceFactors(backend_, left, right, /*mask=*/nullptr, host_memory_);
  if (!placed.ok()) return placed.status();
  Run run(BoundSpgemm(backend_, kernel, problem_, *std::move(placed)),
          executor_.wanted(backend_.id()), blocks_[&kernel]);
  absl::Status status;
  const absl::Status ran = executor_.RunIdlePieces(
      backend_.id(),
      [&](WorkerSlot& slot) {
        const absl::StatusOr<bool> last = piece(run, slot);
        status = last.status();
        return !last.ok() || *last;
      },
      stop_, until_);
  return ran.ok() ? status : ran;
}

absl::StatusOr<bool> SpgemmTrial::FindBounds(Run& run, WorkerSlot& slot) {
  absl::Status status;
  if (!std::exchange(run.prepared, true)) {
    status = run.product.Prepare(slot, stop_, memory_, &run.before_ms);
    if (!status.ok()) return status;
  }
  if (!backend_.shares_host_memory()) {
    status = run.product.Count(slot, Options(), /*exact=*/true, bounds_.span(), &products_,
                               &run.before_ms);
    if (!status.ok()) return status;
    return true;
  }
  if (run.analysis.finished()) return true;
  double unused = 0;
  status = run.analysis.RunPiece(
      [&](Progress& progress) {
        RunOptions options = Options();
        options.progress = &progress;
        return run.product.Count(slot, options, /*exact=*/false, bounds_.span(), &products_,
                                 &run.before_ms);
      },
      &unused);
  if (!status.ok()) return status;
  return run.analysis.finished();
}

absl::Status SpgemmTrial::TakeSample(int64_t ranges, int64_t range_entries) {
  sample_.clear();
  row_nnz_ = columns_ = values_ = device_row_begin_ = Array();
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
  if (!backend_.shares_host_memory()) {
    allocate("row begins", ElementType::kI64, most_rows + 1, device_row_begin_);
  }
  return status;
}

absl::Status SpgemmTrial::RunRows(Run& run, RowRange rows, WorkerSlot& slot) {
  const absl::StatusOr<Context> context = run.product.ContextOf(slot, Options());
  if (!context.ok()) return context.status();
  const bool shared = backend_.shares_host_memory();
  const auto count = static_cast<size_t>(rows.end - rows.begin);
  const std::span<int64_t> row_begin = row_begin_.span().first(count + 1);
  const std::span<int64_t> row_nnz = row_nnz_.MutableAs<int64_t>().first(count);
  const int64_t room = PlaceRowBlock(bounds_.span(), rows, row_begin);
  std::span<const int64_t> device_row_begin = row_begin;
  absl::Status status;
  if (!shared) {
    status = backend_.CopyIn(slot, device_row_begin_.buffer.mutable_data(), row_begin.data(),
                             row_begin.size_bytes());
    if (!status.ok()) return status;
    device_row_begin = std::as_const(device_row_begin_).As<int64_t>().first(count + 1);
  }
  double taken = 0;
  status = backend_.Timed(
      slot,
      [&] {
        return run.product.Queue(*context, rows, device_row_begin,
                                 columns_.MutableAs<int32_t>().data(),
                                 values_.buffer.mutable_data(), row_nnz);
      },
      &taken);
  if (!status.ok()) return status;
  run.rows_ms += taken;
  run.block.Took(room, taken);
  // Where the sizes are exact the room is what was filled.
  run.nnz += shared ? std::accumulate(row_nnz.begin(), row_nnz.end(), int64_t{0}) : room;
  return absl::OkStatus();
}

absl::StatusOr<bool> SpgemmTrial::RunSample(Run& run, WorkerSlot& slot) {
  if (run.range == 0 && run.row == 0) {
    const absl::StatusOr<bool> found = FindBounds(run, slot);
    if (!found.ok() || !*found) return found;
  }
  const bool shared = backend_.shares_host_memory();
  while (run.range < sample_.size()) {
    const RowRange& range = sample_[run.range];
    RowRange rows = {std::max(run.row, range.begin), range.end};
    // On the CPU in blocks, as requests have them.
    if (shared) {
      rows.end = std::min(
          rows.end, NextRowBlock(bounds_.span(), rows.begin, run.block.entries(slot.threads)).end);
    }
    if (absl::Status s = RunRows(run, rows, slot); !s.ok()) return s;
    run.row = rows.end;
    if (rows.end == range.end) ++run.range;
    if (shared && run.range < sample_.size() && executor_.wanted(backend_.id())->load()) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<double> SpgemmTrial::RunOnce(const SpgemmKernel& kernel, const SpgemmFactor& left,
                                            const SpgemmFactor& right) {
  double milliseconds = 0;
  const absl::Status ran = OnSlot(kernel, left, right, [&](Run& run, WorkerSlot& slot) {
    absl::StatusOr<bool> last = RunSample(run, slot);
    nnz_ = run.nnz;
    milliseconds = run.before_ms + run.rows_ms * scale_;
    return last;
  });
  if (!ran.ok()) return ran;
  return milliseconds;
}

absl::StatusOr<TrialTimes> SpgemmTrial::Against(const SpgemmKernel& kernel,
                                                const SpgemmFactor& left, const SpgemmFactor& right,
                                                double budget_ms) {
  // What the kernel refuses costs the baseline no run.
  if (absl::Status s = RunOnce(kernel, left, right).status(); !s.ok()) return s;
  return TakeTurns([&] { return RunBaseline(); }, [&] { return RunOnce(kernel, left, right); },
                   budget_ms, baseline_ms_);
}

absl::StatusOr<TrialTimes> SpgemmTrial::BaselineAlone(double budget_ms) {
  return TakeTurns([&] { return RunBaseline(); }, nullptr, budget_ms, baseline_ms_);
}

double SpgemmTrial::baseline_median() const {
  return baseline_ms_.empty() ? 0 : Median(baseline_ms_);
}

}  // namespace sparsed::engine
