#include "client/cli/bench_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace sparsed::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// A window has so many requests, or fewer that take longer than options allow it.
constexpr int64_t kWindowRequests = 8;
/// Of fewer nothing is known. So many are left out at once.
constexpr size_t kLeastWindows = 20, kMostParts = 16;
/// Who waits looks so often whether it is over.
constexpr std::chrono::milliseconds kAtOnce{50};
/// What begins so much later than it is due is in time.
constexpr std::chrono::milliseconds kInTime{5};

std::array<std::chrono::nanoseconds, kLoadPhases.size()> PhasesOf(const Timings& t) {
  return {t.receive, t.queue, t.setup, t.to_device, t.kernel, t.from_device, t.send, t.total};
}

/// What ended within a time.
struct Window {
  LatencyHistogram latency, waited;
  std::array<LatencyHistogram, kLoadPhases.size()> phases;
  std::map<std::string, int64_t> failed, plans;
  Transport transport = Transport::kStream;
  double seconds = 0, flops = 0;
  size_t windows = 1;  ///< that it is the sum of

  void Add(const Window& other) {
    windows += other.windows;
    latency.Add(other.latency);
    waited.Add(other.waited);
    flops += other.flops;
    for (size_t i = 0; i < phases.size(); ++i) phases[i].Add(other.phases[i]);
    for (const auto& [code, count] : other.failed) failed[code] += count;
    for (const auto& [plan, count] : other.plans) plans[plan] += count;
    if (other.latency.count() > 0) transport = other.transport;
    seconds += other.seconds;
  }
  /// No request ended in it.
  bool empty() const { return latency.count() == 0 && failed.empty(); }
  std::chrono::nanoseconds kernel() const { return phases[4].mean(); }
};

/// Whether the same request may go well the next time.
bool MayPass(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
}

/// Nanoseconds that a loop takes, about a millisecond of them.
double TimeLoop() {
  constexpr int kSteps = 300'000;
  const auto begun = Clock::now();
  volatile uint64_t kept = 1;
  for (int i = 0; i < kSteps; ++i) kept = kept * 6364136223846793005u + 1;
  return static_cast<double>(std::chrono::nanoseconds(Clock::now() - begun).count());
}

/// As LoadResult::machine.
double Spread(std::vector<double> times) {
  if (times.size() < 10) return 0;
  std::ranges::sort(times);
  const size_t tenth = times.size() / 10;
  return (times[times.size() - 1 - tenth] - times[tenth]) / 2 / times[times.size() / 2];
}

/// A number of each window.
struct Numbers {
  std::vector<double> all;

  Median median() const { return MedianOf(all); }
  bool Agree(double precision) const {
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    return cli::Agree(MedianOf({all.begin(), middle}), MedianOf({middle, all.end()}), precision);
  }
  /// Takes the first ones out.
  std::vector<double> Take(size_t count) {
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(count);
    std::vector<double> first(all.begin(), end);
    all.erase(all.begin(), end);
    return first;
  }
  void Append(const std::vector<double>& others) {
    all.insert(all.end(), others.begin(), others.end());
  }
};

class Load {
 public:
  Load(const LoadOptions& options, const LoadSetup& setup, const std::atomic<bool>& stop)
      : options_(options), setup_(setup), stop_(stop) {}

  absl::StatusOr<LoadResult> Run() {
    while (!over_ && !stop_) {
      const auto begun = Clock::now();
      // The last one's goes before another is made.
      request_ = nullptr;
      loops_.push_back(TimeLoop());
      absl::StatusOr<LoadRequest> request = setup_();
      if (!request.ok() && parts_.empty()) return request.status();
      if (!request.ok()) {
        RecordFailure(request.status());
        break;
      }
      request_ = *std::move(request);
      warmup_ += Seconds(Clock::now() - begun).count();
      RunWorkers();
    }
    const MutexLock lock(mutex_);
    if (!fatal_.ok()) return fatal_;
    return ResultLocked();
  }

 private:
  bool Ended() const { return ended_ || stop_; }

  /// With the requests that there are: a window, or all if each does not have its own.
  void RunWorkers() {
    ended_ = false;
    next_ = done_ = 0;
    begun_ = Clock::now();
    {
      const MutexLock lock(mutex_);
      window_ = Window();  // without what ended too late to count
      window_begun_ = begun_;
    }
    std::vector<std::thread> workers;
    {
      const MutexLock lock(turn_mutex_);
      places_.clear();
      for (int worker = 0; worker < options_.workers; ++worker) places_.emplace_back();
      idle_.clear();
    }
    for (int worker = 0; worker < options_.workers; ++worker) {
      workers.emplace_back([this, worker] { closed() ? Work(worker) : WorkWhenGiven(worker); });
    }
    if (closed()) {
      Measure();
    } else if (scheduled()) {
      MeasureSchedule();
    } else {
      MeasureRate();
    }
    ended_ = true;
    {
      const MutexLock lock(turn_mutex_);
      for (Place& place : places_) place.was_given.NotifyOne();
    }
    for (std::thread& worker : workers) worker.join();
  }

  void Work(int worker) {
    while (!Ended()) Request(worker, {next_++, Clock::now()});
  }

  /// A request, and when it begins.
  struct Due {
    int64_t number = 0;
    Clock::time_point at;
  };
  void Request(int worker, const Due& due) {
    const Clock::duration waited = Clock::now() - due.at;
    const absl::StatusOr<LoadSample> sample = request_(worker, due.number);
    Record(sample, waited, Clock::now() - due.at);
    ++done_;
  }

  void WorkWhenGiven(int worker) {
    while (true) {
      Due due;
      {
        const MutexLock lock(turn_mutex_);
        Place& place = places_[static_cast<size_t>(worker)];
        idle_.push_back(worker);
        became_idle_.NotifyOne();
        while (!place.given && !Ended()) place.was_given.WaitFor(turn_mutex_, kAtOnce);
        if (!place.given) return;
        due = *std::exchange(place.given, std::nullopt);
      }
      Request(worker, due);
    }
  }

  /// The next one; none: all that are scheduled were given.
  std::optional<Due> NextDue() const {
    Seconds since(static_cast<double>(next_ - first_) / std::max(options_.rate, 1e-9));
    if (scheduled()) {
      if (next_ >= static_cast<int64_t>(options_.schedule.size())) return std::nullopt;
      since = options_.schedule[static_cast<size_t>(next_)];
    }
    return Due{next_, begun_ + std::chrono::duration_cast<Clock::duration>(since)};
  }

  /// Gives workers what is due, each when it is and one is idle, until `enough_`.
  void GiveOut() {
    while (const std::optional<Due> due = NextDue()) {
      if (!SleepUntil(due->at)) return;
      const MutexLock lock(turn_mutex_);
      while (idle_.empty() && !enough_ && !Ended()) became_idle_.WaitFor(turn_mutex_, kAtOnce);
      if (idle_.empty()) return;
      Place& place = places_[static_cast<size_t>(idle_.back())];
      idle_.pop_back();
      place.given = due;
      place.was_given.NotifyOne();
      ++next_;
    }
  }
  /// Until all that were given out have ended.
  void WaitForThem() const {
    while (!Ended() && done_ < next_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  bool scheduled() const { return !options_.schedule.empty(); }
  /// Each next request waits for one to end.
  bool closed() const { return options_.rate == 0 && !scheduled(); }

  /// False if it is over before that.
  bool SleepUntil(Clock::time_point due) const {
    while (!enough_ && !Ended()) {
      const auto now = Clock::now();
      if (now >= due) return true;
      std::this_thread::sleep_until(std::min<Clock::time_point>(due, now + kAtOnce));
    }
    return false;
  }

  void RecordFailure(const absl::Status& status) {
    const MutexLock lock(mutex_);
    RecordFailureLocked(status);
  }
  void RecordFailureLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (first_failure_.ok()) first_failure_ = status;
    ++window_.failed[absl::StatusCodeToString(status.code())];
  }

  void Record(const absl::StatusOr<LoadSample>& sample, Clock::duration waited,
              Clock::duration latency) {
    const MutexLock lock(mutex_);
    if (!sample.ok()) {
      RecordFailureLocked(sample.status());
      // Of a schedule each is another request.
      if (!MayPass(sample.status()) && !scheduled() && fatal_.ok()) {
        fatal_ = sample.status();
        ended_ = true;
      }
      return;
    }
    last_end_ = Clock::now();
    window_.latency.Add(latency);
    window_.waited.Add(waited);
    window_.flops += sample->flops;
    const auto phases = PhasesOf(sample->timings);
    for (size_t i = 0; i < phases.size(); ++i) window_.phases[i].Add(phases[i]);
    ++window_.plans[sample->plan];
    window_.transport = sample->transport;
  }

  /// Takes what ended since the last time. It begins and ends as a request does, so that none
  /// counts by a part: where none ended, the next one begins when this one did.
  std::unique_ptr<Window> TakeWindow() {
    const MutexLock lock(mutex_);
    auto window = std::make_unique<Window>(std::exchange(window_, Window()));
    const auto end = window->empty()               ? window_begun_
                     : window->latency.count() > 0 ? last_end_
                                                   : Clock::now();
    window->seconds = Seconds(end - window_begun_).count();
    window_begun_ = end;
    return window;
  }

  /// Waits until there is enough in it: of requests that take long at least one, or the time is
  /// over.
  void FillWindow(Seconds least, int64_t requests) const {
    const auto begun = Clock::now();
    while (!Ended()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const auto now = Clock::now();
      const Seconds took = now - begun;
      if (took < least) continue;
      const MutexLock lock(mutex_);
      const bool over = options_.seconds > 0
                            ? Measured(now) + (closed() ? took.count() : 0) >= options_.seconds
                            : Seconds(now - first_begun_).count() >= options_.most_seconds;
      if (window_.latency.count() >= requests || over) return;
      if (!window_.empty() && took.count() >= options_.longest_window) return;
    }
  }

  /// Seconds of --seconds: at a rate by the clock, else those of the windows.
  double Measured(Clock::time_point now) const {
    return closed() ? measured_ : Seconds(now - begun_).count();
  }

  /// All that is scheduled, from the first to the last.
  void MeasureSchedule() {
    GiveOut();
    WaitForThem();
    Keep(TakeWindow());
    over_ = true;
  }

  /// At the rate for a while; what that leaves is waited for, and then it counts.
  void MeasureRate() {
    const Seconds window(options_.window);
    AtTheRate([&] { FillWindow(5 * window, 2); });
    WaitForThem();
    TakeWindow();
    warmup_ += Seconds(Clock::now() - begun_).count();
    first_ = next_;
    begun_ = Clock::now();
    {
      const MutexLock lock(mutex_);
      window_begun_ = begun_;
    }
    Clock::time_point end;
    AtTheRate([&] {
      do {
        FillWindow(window, kWindowRequests);
        Keep(TakeWindow());
      } while (!Ended() && !Enough());
      end = Clock::now();
    });
    // A little later than due is in time.
    const double due = options_.rate * Seconds(end - kInTime - begun_).count();
    not_begun_ = std::max<int64_t>(0, static_cast<int64_t>(due) + 1 - (next_ - first_));
    // What began is to end: otherwise the slowest were left out.
    WaitForThem();
    std::unique_ptr<Window> last = TakeWindow();
    if (parts_.empty()) {
      Keep(std::move(last));
    } else if (!last->empty()) {
      parts_.back()->Add(*last);
    }
    over_ = true;
  }

  template <typename Wait>
  void AtTheRate(const Wait& wait) {
    enough_ = false;
    std::thread dispatcher([this] { GiveOut(); });
    wait();
    enough_ = true;
    became_idle_.NotifyOne();
    dispatcher.join();
  }

  void Measure() {
    const Seconds window(options_.window);
    FillWindow((parts_.empty() ? 5 : 0.5) * window, std::max<int64_t>(2, options_.workers));
    TakeWindow();
    warmup_ += Seconds(Clock::now() - begun_).count();
    FillWindow(window, kWindowRequests);
    std::unique_ptr<Window> ended = TakeWindow();
    // It was waited for until the time was over.
    const bool none = ended->empty();
    Keep(std::move(ended));
    over_ = Ended() || none || Enough();
  }

  void Keep(std::unique_ptr<Window> window) {
    measured_ += window->seconds;
    if (window->empty()) return;
    main_.all.push_back(closed() ? static_cast<double>(window->latency.count()) / window->seconds
                                 : static_cast<double>(window->latency.Quantile(0.5).count()));
    kernel_.all.push_back(static_cast<double>(window->kernel().count()));
    // Where none is dropped, their sum is all that is asked for.
    if (!parts_.empty() && (options_.seconds > 0 || parts_.back()->windows < kLeastWindows)) {
      parts_.back()->Add(*window);
    } else {
      parts_.push_back(std::move(window));
    }
    if (parts_.size() > kMostParts) {
      parts_[1]->Add(*parts_[0]);
      parts_.pop_front();
    }
  }

  bool Agree(double precision) const { return main_.Agree(precision) && kernel_.Agree(precision); }
  bool Steady() const {
    return main_.all.size() >= kLeastWindows && main_.median().interval <= options_.precision &&
           kernel_.median().interval <= options_.precision && Agree(options_.precision);
  }

  bool Enough() {
    if (options_.seconds > 0) return Measured(Clock::now()) >= options_.seconds;
    if (Seconds(Clock::now() - first_begun_).count() >= options_.most_seconds || Steady())
      return true;
    // The first may have been another time's: a clock that rose, a plan that was replaced. What
    // wanders by less is this time's, too.
    constexpr double kAnother = 0.05;
    if (parts_.size() > 1 && !Agree(kAnother)) {
      const Window& first = *parts_.front();
      unsteady_main_.Append(main_.Take(first.windows));
      unsteady_kernel_.Append(kernel_.Take(first.windows));
      unsteady_.Add(first);
      parts_.pop_front();
    }
    return false;
  }

  absl::StatusOr<LoadResult> ResultLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    LoadResult result;
    result.warmup_seconds = warmup_;
    result.machine = Spread(loops_);
    result.steady = Steady();
    result.first_failure = std::string(first_failure_.message());
    Numbers main = main_, kernel = kernel_;
    Window all;
    all.failed = window_.failed;
    for (const auto& part : parts_) all.Add(*part);
    if (result.steady) {
      result.unsteady_seconds = unsteady_.seconds;
    } else {
      // Where nothing became steady the last second is no better than the others.
      main.Append(unsteady_main_.all);
      kernel.Append(unsteady_kernel_.all);
      all.Add(unsteady_);
    }
    result.interval = main.median().interval;
    result.kernel = kernel.median();
    result.not_begun = not_begun_;
    result.latency = all.latency;
    result.waited = all.waited;
    result.flops = all.flops;
    result.phases = all.phases;
    result.seconds = all.seconds;
    result.failed = all.failed;
    result.plans = all.plans;
    result.transport = all.transport;
    result.windows = static_cast<int>(main.all.size());
    const auto count = static_cast<double>(result.latency.count());
    // The time in which they were due is longer than until the last one ended.
    if (options_.rate > 0) result.seconds = std::max(result.seconds, count / options_.rate);
    result.rate = closed() ? main.median().value : count / result.seconds;
    if (result.latency.count() > 0) return result;
    if (first_failure_.ok()) {
      return absl::UnknownError(fmt::format(
          "no request ended in {:.3g} s; measure for longer (--seconds, --most-seconds)",
          Seconds(Clock::now() - first_begun_).count()));
    }
    return Reworded(first_failure_,
                    fmt::format("no request went well: {}", std::string(first_failure_.message())));
  }

  const LoadOptions& options_;
  const LoadSetup& setup_;
  const std::atomic<bool>& stop_;
  LoadRequest request_;
  const Clock::time_point first_begun_ = Clock::now();
  Clock::time_point begun_;  ///< these workers; at a rate, what is measured
  bool over_ = false;
  std::atomic<bool> ended_{false}, enough_{false};
  int64_t first_ = 0, not_begun_ = 0;  ///< at a rate: the first one's number, since `begun_`
  std::atomic<int64_t> next_{0}, done_{0};
  /// The windows that count, each of them the sum of some that follow each other.
  std::deque<std::unique_ptr<Window>> parts_;
  std::vector<double> loops_;
  Numbers main_, kernel_;  ///< of each window: rate or median latency; nanoseconds
  double measured_ = 0;    ///< seconds, of windows that were dropped, too
  double warmup_ = 0;
  Window unsteady_;  ///< what was taken out of them, with its numbers
  Numbers unsteady_main_, unsteady_kernel_;

  /// What a worker is given.
  struct Place {
    std::optional<Due> given;
    CondVar was_given;
  };
  Mutex turn_mutex_;
  CondVar became_idle_;
  std::vector<int> idle_ ABSL_GUARDED_BY(turn_mutex_);     ///< the one that ended last at the back
  std::deque<Place> places_ ABSL_GUARDED_BY(turn_mutex_);  ///< by worker

  mutable Mutex mutex_;
  Window window_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point window_begun_ ABSL_GUARDED_BY(mutex_) = Clock::now();
  Clock::time_point last_end_ ABSL_GUARDED_BY(mutex_);  ///< of a request
  absl::Status fatal_ ABSL_GUARDED_BY(mutex_);
  absl::Status first_failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

Median MedianOf(std::vector<double> numbers) {
  Median median;
  if (numbers.empty()) return median;
  std::ranges::sort(numbers);
  const size_t n = numbers.size();
  median.value = (numbers[(n - 1) / 2] + numbers[n / 2]) / 2;
  if (n < 6) return median;
  // By order statistics: how many of them are below the true median is binomial.
  const auto size = static_cast<double>(n);
  const auto rank = static_cast<size_t>((size + 1) / 2 - 0.98 * std::sqrt(size));
  const double width = numbers[n - rank] - numbers[rank - 1];
  if (width == 0) {
    median.interval = 0;
  } else if (median.value > 0) {
    median.interval = width / 2 / median.value;
  }
  return median;
}

bool Agree(const Median& a, const Median& b, double precision) {
  const double apart = std::abs(a.value - b.value);
  return apart <= precision * std::max(a.value, b.value) ||
         apart <= a.interval * a.value + b.interval * b.value;
}

absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options, const LoadSetup& setup,
                                   const std::atomic<bool>& stop) {
  return Load(options, setup, stop).Run();
}

}  // namespace sparsed::cli
