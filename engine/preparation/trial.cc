#include "engine/preparation/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "engine/execution/piece_run.h"
#include "kernels/bound_run.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLeastTurns = 3;
constexpr int kMostTurns = 21;
/// A contender this much slower in each of its first two turns will not win.
constexpr double kHopeless = 1.5;
/// Nor one so much slower in its first turn, whatever the machine did besides.
constexpr double kFarTooSlow = 5;

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// In [-1, 1), different enough to keep denormals and equal values away.
template <typename Value>
void FillRandom(std::span<Value> values, uint64_t seed) {
  uint64_t state = seed;
  for (Value& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    using Sum = SumOf<Value>;
    value = static_cast<Value>(static_cast<Sum>(static_cast<int32_t>(state >> 32)) *
                               static_cast<Sum>(0x1p-31));
  }
}

void FillRandom(Array& array, uint64_t seed) {
  VisitFloat(array.type, [&]<typename T>(T) { FillRandom(array.MutableAs<T>(), seed); });
}

}  // namespace

double Median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

absl::StatusOr<TrialTimes> TakeTurns(const TimedRun& baseline, const TimedRun& contender,
                                     double budget_ms, std::vector<double>& all_baseline_ms) {
  const Clock::time_point begin = Clock::now();
  std::vector<double> baseline_ms, contender_ms;
  const auto slower = [&](double times) {
    for (size_t turn = 0; turn < contender_ms.size(); ++turn) {
      // Short ones cost little to go on with.
      if (baseline_ms[turn] <= 1 || contender_ms[turn] <= times * baseline_ms[turn]) return false;
    }
    return true;
  };
  bool hopeless = false;
  while (static_cast<int>(baseline_ms.size()) < kMostTurns) {
    const int turns = static_cast<int>(baseline_ms.size());
    hopeless =
        contender && ((turns == 1 && slower(kFarTooSlow)) || (turns == 2 && slower(kHopeless)));
    if (hopeless) break;
    if (turns >= kLeastTurns && MillisecondsSince(begin) > budget_ms) break;
    absl::StatusOr<double> ms = baseline();
    if (!ms.ok()) return ms.status();
    baseline_ms.push_back(*ms);
    if (!contender) continue;
    ms = contender();
    if (!ms.ok()) return ms.status();
    contender_ms.push_back(*ms);
  }
  all_baseline_ms.insert(all_baseline_ms.end(), baseline_ms.begin(), baseline_ms.end());
  int won = 0;
  for (size_t turn = 0; turn < contender_ms.size(); ++turn) {
    won += contender_ms[turn] < baseline_ms[turn] ? 1 : 0;
  }
  const double median = Median(baseline_ms);
  return TrialTimes{median, contender ? Median(contender_ms) : median,
                    static_cast<int>(baseline_ms.size()), hopeless, won};
}

absl::StatusOr<std::unique_ptr<Trial>> Trial::Begin(const ProblemSignature& signature, int64_t rows,
                                                    int64_t cols, int64_t nnz, Backend& backend,
                                                    Executor& executor,
                                                    const std::atomic<bool>* stop,
                                                    Clock::time_point until) {
  std::unique_ptr<Trial> trial(new Trial(ProblemOf(signature), backend, executor, stop, until));
  absl::Status status = trial->AllocateOperands(rows, cols, nnz);
  // K = 1 is another signature, with kernels of its own.
  while (absl::IsResourceExhausted(status) && trial->problem_.k > 2) {
    trial->problem_.k /= 2;
    status = trial->AllocateOperands(rows, cols, nnz);
  }
  if (!status.ok()) return status;
  return trial;
}

absl::Status Trial::AllocateOperands(int64_t rows, int64_t cols, int64_t nnz) {
  tall_ = wide_ = result_ = Array();
  rows_ = rows;
  cols_ = cols;
  const int64_t k = problem_.k;
  absl::StatusOr<Array> tall = AllocateArray(memory_, "operand", problem_.type, rows * k);
  if (!tall.ok()) return tall.status();
  absl::StatusOr<Array> wide = AllocateArray(memory_, "operand", problem_.type, cols * k);
  if (!wide.ok()) return wide.status();
  const bool sddmm = problem_.operation == Operation::kSddmm;
  if (sddmm) {
    absl::StatusOr<Array> result = AllocateArray(memory_, "result", problem_.type, nnz);
    if (!result.ok()) return result.status();
    result_ = *std::move(result);
  }
  // What is only written needs no contents.
  absl::Status filled;
  if (sddmm || problem_.transposed) filled = Fill(*tall, /*seed=*/1);
  if (filled.ok() && (sddmm || !problem_.transposed)) filled = Fill(*wide, /*seed=*/2);
  if (!filled.ok()) return filled;
  tall_ = *std::move(tall);
  wide_ = *std::move(wide);
  return absl::OkStatus();
}

absl::Status Trial::Fill(Array& array, uint64_t seed) {
  if (backend_.shares_host_memory()) {
    FillRandom(array, seed);
    return absl::OkStatus();
  }
  // The same elements over and over: enough for a kernel's time.
  constexpr int64_t kPeriod = 1'000'003;
  absl::StatusOr<Array> period =
      AllocateArray(HeapMemory(), "operand", array.type, std::min(array.length, kPeriod));
  if (!period.ok()) return period.status();
  FillRandom(*period, seed);
  absl::Status status;
  const absl::Status ran = executor_.RunIdle(
      backend_.id(), [&](WorkerSlot& slot) { status = backend_.Repeat(*period, array, slot); },
      stop_, until_);
  return ran.ok() ? status : ran;
}

BoundRun Trial::Bind(const Contender& contender, const PlacedSparse& placed) {
  const int64_t k = problem_.k;
  RunArguments arguments;
  arguments.values = placed.values->buffer.data();
  if (problem_.operation == Operation::kSddmm) {
    arguments.dense = {ConstDense{tall_.buffer.data(), rows_, k, k},
                       ConstDense{wide_.buffer.data(), cols_, k, k}};
    arguments.result = {result_.buffer.mutable_data(), result_.length, 1, 1};
  } else {
    const Array& b = problem_.transposed ? tall_ : wide_;
    Array& c = problem_.transposed ? wide_ : tall_;
    arguments.dense[0] = {b.buffer.data(), problem_.transposed ? rows_ : cols_, k, k};
    arguments.result = {c.buffer.mutable_data(), problem_.transposed ? cols_ : rows_, k, k};
  }
  return BoundRun(*FindLayoutKernel(problem_.operation, contender.kernel), problem_, placed.layout,
                  arguments);
}

absl::StatusOr<double> Trial::RunOnce(const Contender& contender) {
  absl::StatusOr<PlacedSparse> placed =
      backend_.Place(contender.layout, &contender.values, HeapMemory());
  if (!placed.ok()) return placed.status();
  const BoundRun run = Bind(contender, *placed);
  const bool cut = backend_.id().kind == DeviceKind::kCpu && run.resumes();
  PieceRun pieces(executor_.wanted(backend_.id()));
  double milliseconds = 0;
  RunOptions options{workspace_, memory_, stop_};
  absl::Status status;
  const absl::Status ran = executor_.RunIdlePieces(
      backend_.id(),
      [&](WorkerSlot& slot) {
        const auto run_on = [&](Progress& progress) {
          if (cut) options.progress = &progress;
          double taken = 0;
          absl::Status done = backend_.Run(slot, run, options, &taken);
          milliseconds += taken;
          return done;
        };
        double unused = 0;
        status = pieces.RunPiece(run_on, &unused);
        return !status.ok() || !cut || pieces.finished();
      },
      stop_, until_);
  if (!ran.ok()) return ran;
  if (!status.ok()) return status;
  return milliseconds;
}

absl::StatusOr<TrialTimes> Trial::Against(const Contender& contender, double budget_ms) {
  if (!baseline_warm_) {
    if (absl::Status s = RunOnce(baseline_).status(); !s.ok()) return s;
    baseline_warm_ = true;
  }
  if (absl::Status s = RunOnce(contender).status(); !s.ok()) return s;
  return TakeTurns([&] { return RunOnce(baseline_); }, [&] { return RunOnce(contender); },
                   budget_ms, baseline_ms_);
}

double Trial::baseline_median() const { return baseline_ms_.empty() ? 0 : Median(baseline_ms_); }

absl::StatusOr<TrialTimes> Trial::BaselineAlone(double budget_ms) {
  if (absl::Status s = RunOnce(baseline_).status(); !s.ok()) return s;
  baseline_warm_ = true;
  return TakeTurns([&] { return RunOnce(baseline_); }, nullptr, budget_ms, baseline_ms_);
}

}  // namespace sparsed::engine
