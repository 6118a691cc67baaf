#include "client/cli/bench_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace sparsed::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// A window has so many requests, and takes so long, but no longer than the last.
constexpr int64_t kWindowRequests = 16;
constexpr Seconds kWindow{0.25}, kLongestWindow{3};
constexpr Seconds kWarmup{0.5};
constexpr size_t kLeastWindows = 12;

std::array<std::chrono::nanoseconds, kLoadPhases.size()> PhasesOf(const Timings& t) {
  return {t.receive, t.queue, t.setup, t.to_device, t.kernel, t.from_device, t.send, t.total};
}

/// What ended within a window.
struct Window {
  LatencyHistogram latency, waited;
  std::array<LatencyHistogram, kLoadPhases.size()> phases;
  std::map<std::string, int64_t> failed, plans;
  Transport transport = Transport::kStream;
  double seconds = 0, flops = 0;

  void Add(const Window& other) {
    latency.Add(other.latency);
    waited.Add(other.waited);
    flops += other.flops;
    for (size_t i = 0; i < phases.size(); ++i) phases[i].Add(other.phases[i]);
    for (const auto& [code, count] : other.failed) failed[code] += count;
    for (const auto& [plan, count] : other.plans) plans[plan] += count;
    if (other.latency.count() > 0) transport = other.transport;
    seconds += other.seconds;
  }
};

/// Whether the same request may go well the next time.
bool MayPass(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
}

double MeanOf(std::span<const double> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

class Load {
 public:
  Load(const LoadOptions& options, const LoadRequest& request, const std::atomic<bool>& stop)
      : options_(options), request_(request), stop_(stop) {}

  absl::StatusOr<LoadResult> Run() {
    begun_ = Clock::now();
    std::vector<std::thread> workers;
    for (int worker = 0; worker < options_.workers; ++worker) {
      workers.emplace_back([this, worker] { Work(worker); });
    }
    Measure();
    ended_ = true;
    for (std::thread& worker : workers) worker.join();
    const MutexLock lock(mutex_);
    if (!fatal_.ok()) return fatal_;
    return ResultLocked();
  }

 private:
  bool Ended() const { return ended_ || stop_; }

  void Work(int worker) {
    while (!Ended()) {
      const int64_t number = next_++;
      Clock::time_point due = Clock::now();
      if (scheduled()) {
        if (number >= static_cast<int64_t>(options_.schedule.size())) return;
        due = begun_ + options_.schedule[static_cast<size_t>(number)];
      } else if (options_.rate > 0) {
        due = begun_ + std::chrono::duration_cast<Clock::duration>(
                           Seconds(static_cast<double>(number) / options_.rate));
      }
      if (!SleepUntil(due)) return;
      const Clock::duration waited = Clock::now() - due;
      const absl::StatusOr<LoadSample> sample = request_(worker, number);
      Record(sample, waited, Clock::now() - due);
      ++done_;
    }
  }

  bool scheduled() const { return !options_.schedule.empty(); }

  /// False if it is over before that.
  bool SleepUntil(Clock::time_point due) const {
    constexpr std::chrono::milliseconds kAtOnce{50};
    while (!Ended()) {
      const auto now = Clock::now();
      if (now >= due) return true;
      std::this_thread::sleep_until(std::min<Clock::time_point>(due, now + kAtOnce));
    }
    return false;
  }

  void Record(const absl::StatusOr<LoadSample>& sample, Clock::duration waited,
              Clock::duration latency) {
    const MutexLock lock(mutex_);
    if (!sample.ok()) {
      if (first_failure_.empty()) first_failure_ = std::string(sample.status().message());
      ++window_.failed[absl::StatusCodeToString(sample.status().code())];
      // Of a schedule each is another request.
      if (!MayPass(sample.status()) && !scheduled() && fatal_.ok()) {
        fatal_ = sample.status();
        ended_ = true;
      }
      return;
    }
    window_.latency.Add(latency);
    window_.waited.Add(waited);
    window_.flops += sample->flops;
    const auto phases = PhasesOf(sample->timings);
    for (size_t i = 0; i < phases.size(); ++i) window_.phases[i].Add(phases[i]);
    ++window_.plans[sample->plan];
    window_.transport = sample->transport;
  }

  /// Takes what ended since the last time.
  std::unique_ptr<Window> TakeWindow() {
    const auto now = Clock::now();
    const MutexLock lock(mutex_);
    auto window = std::make_unique<Window>(std::exchange(window_, Window()));
    window->seconds = Seconds(now - window_begun_).count();
    window_begun_ = now;
    return window;
  }

  /// Waits until there is enough in it.
  void FillWindow() const {
    const auto begun = Clock::now();
    while (!Ended()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const Seconds took = Clock::now() - begun;
      if (took >= kLongestWindow) return;
      if (took < kWindow) continue;
      const MutexLock lock(mutex_);
      if (window_.latency.count() >= kWindowRequests) return;
    }
  }

  /// All that is scheduled, from the first to the last.
  void MeasureSchedule() {
    while (!Ended() && done_ < static_cast<int64_t>(options_.schedule.size())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    Keep(TakeWindow());
  }

  void Measure() {
    if (scheduled()) return MeasureSchedule();
    SleepUntil(begun_ + std::chrono::duration_cast<Clock::duration>(kWarmup));
    FillWindow();
    warmup_ = Seconds(Clock::now() - begun_).count();
    TakeWindow();
    while (!Ended()) {
      FillWindow();
      Keep(TakeWindow());
      if (Enough()) return;
    }
  }

  void Keep(std::unique_ptr<Window> window) {
    measured_ += window->seconds;
    numbers_.push_back(options_.rate > 0
                           ? static_cast<double>(window->latency.Quantile(0.5).count())
                           : static_cast<double>(window->latency.count()) / window->seconds);
    // Where none is dropped, their sum is all that is asked for.
    if (options_.seconds > 0 && !windows_.empty()) {
      windows_.front()->Add(*window);
    } else {
      windows_.push_back(std::move(window));
    }
  }

  bool Enough() {
    steady_ = IsSteady(numbers_, options_.precision, &error_);
    if (options_.seconds > 0) return measured_ >= options_.seconds;
    if (steady_ || measured_ >= options_.most_seconds) return true;
    // The first may have been another time's: a clock that rose, a plan that was replaced.
    if (windows_.size() > 2 * kLeastWindows) {
      unsteady_ += windows_.front()->seconds;
      windows_.erase(windows_.begin());
      numbers_.erase(numbers_.begin());
    }
    return false;
  }

  absl::StatusOr<LoadResult> ResultLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    LoadResult result;
    result.warmup_seconds = warmup_;
    result.unsteady_seconds = unsteady_;
    result.error = error_;
    result.interval = error_ * ConfidenceFactor(numbers_.size());
    result.steady = steady_;
    result.first_failure = first_failure_;
    Window all;
    for (const auto& window : windows_) all.Add(*window);
    result.latency = all.latency;
    result.waited = all.waited;
    result.flops = all.flops;
    result.phases = all.phases;
    result.seconds = all.seconds;
    result.failed = all.failed;
    result.plans = all.plans;
    result.transport = all.transport;
    result.windows = static_cast<int>(numbers_.size());
    if (result.latency.count() > 0) return result;
    return absl::UnknownError(first_failure_.empty()
                                  ? std::string("no request ended while it was measured")
                                  : fmt::format("no request went well: {}", first_failure_));
  }

  const LoadOptions& options_;
  const LoadRequest& request_;
  const std::atomic<bool>& stop_;
  Clock::time_point begun_;
  std::atomic<bool> ended_{false};
  std::atomic<int64_t> next_{0}, done_{0};
  std::vector<std::unique_ptr<Window>> windows_;  ///< those that count, or their sum
  std::vector<double> numbers_;                   ///< what says whether they are steady
  double measured_ = 0;                           ///< seconds, of those that were dropped, too
  double warmup_ = 0, unsteady_ = 0;
  double error_ = 0;
  bool steady_ = false;

  mutable Mutex mutex_;
  Window window_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point window_begun_ ABSL_GUARDED_BY(mutex_) = Clock::now();
  absl::Status fatal_ ABSL_GUARDED_BY(mutex_);
  std::string first_failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

double ConfidenceFactor(size_t windows) {
  constexpr double kNormal = 1.959964;
  const double n = std::max<double>(1, static_cast<double>(windows) - 1);
  // Cornish and Fisher's expansion: within 0.5 % from 4 degrees of freedom on.
  const double z = kNormal, z2 = z * z;
  return z + z * (z2 + 1) / (4 * n) + z * (5 * z2 * z2 + 16 * z2 + 3) / (96 * n * n) +
         z * (3 * z2 * z2 * z2 + 19 * z2 * z2 + 17 * z2 - 15) / (384 * n * n * n);
}

bool IsSteady(const std::vector<double>& windows, double precision, double* error) {
  const auto n = static_cast<double>(windows.size());
  const double mean = windows.empty() ? 0 : MeanOf(windows);
  if (mean <= 0 || windows.size() < 2) return false;
  double squares = 0;
  for (const double window : windows) squares += (window - mean) * (window - mean);
  *error = std::sqrt(squares / (n - 1) / n) / mean;
  if (windows.size() < kLeastWindows || *error > precision) return false;
  const std::span<const double> all(windows);
  const double drift = MeanOf(all.first(all.size() / 2)) - MeanOf(all.subspan(all.size() / 2));
  return std::abs(drift) <= 4 * precision * mean;
}

absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options, const LoadRequest& request,
                                   const std::atomic<bool>& stop) {
  return Load(options, request, stop).Run();
}

}  // namespace sparsed::cli
