// Load for `bench`: many requests, for as long as it takes to know what they take.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/latency_histogram.h"
#include "sparsed/types.h"

namespace sparsed::cli {

struct LoadOptions {
  int workers = 1;  ///< requests in flight, at most
  /// Requests a second, begun when they are due whether others have ended or not, by the worker
  /// that ended last of those that are idle: no more of them, and of their memory, are in use than
  /// it takes. 0: each worker's next one begins when its last one has ended.
  double rate = 0;
  /// In the place of `rate`: when each is due, ascending, since the first. All of them are made and
  /// count, and then it ends.
  std::vector<std::chrono::nanoseconds> schedule = {};
  double seconds = 0;        ///< for so long; 0: until it is known
  double most_seconds = 60;  ///< and if it never is
  /// Seconds, at least; five of them are for warming up, half a one anew. At a rate the warm-up has
  /// that rate, and what is measured begins when all of its requests have ended.
  double window = 0.1;
  double longest_window = 3;  ///< seconds, at most, where a request ends within them
  /// It is known when the 95 % confidence intervals of the windows' medians, of the rate (at a
  /// fixed rate: of the median latency) and of the kernel's time, are at most this part of them to
  /// each side, and the first half of the windows agrees with the second.
  double precision = 0.01;
};

/// What a request says of itself.
struct LoadSample {
  Timings timings;
  std::string plan;
  Transport transport = Transport::kStream;
  double flops = 0;  ///< operations; 0: it depends on the data
};

/// The phases of Timings, as their names say: receive, queue, setup, to_device, kernel,
/// from_device, send, total.
inline constexpr std::array<std::string_view, 8> kLoadPhases = {
    "receive", "queue", "setup", "to_device", "kernel", "from_device", "send", "total"};

/// What most of some numbers are like, whatever the others are.
struct Median {
  double value = 0;
  /// Half the width of its 95 % confidence interval, as a part of it; infinite of fewer than six.
  double interval = std::numeric_limits<double>::infinity();
};
Median MedianOf(std::vector<double> numbers);
/// Whether they may be medians of the same: they differ by no more than this part, or their
/// intervals meet.
bool Agree(const Median& a, const Median& b, double precision);

struct LoadResult {
  /// Requests a second: the windows' median, or at a rate or by a schedule all of them over the
  /// time in which they were due, or until the last of them ended if that is later.
  double rate = 0;
  /// Half the width of its 95 % confidence interval, or of the median latency's at a rate, as a
  /// part of it; infinite if it is not known.
  double interval = std::numeric_limits<double>::infinity();
  Median kernel;  ///< nanoseconds: of the windows' means
  /// At a rate or by a schedule: from when each was due until it began.
  LatencyHistogram waited;
  int64_t not_begun = 0;     ///< at a rate: that were due, and had not begun in the end
  double flops = 0;          ///< of all
  LatencyHistogram latency;  ///< the caller's; at a rate from when a request was due
  std::array<LatencyHistogram, kLoadPhases.size()> phases;  ///< the server's
  double seconds = 0;                                       ///< that were measured
  double warmup_seconds = 0;  ///< before each window, connecting and all, which are left out
  /// Of windows that are left out as later ones were unlike them; 0 where nothing became steady,
  /// and all of them count.
  double unsteady_seconds = 0;
  int windows = 0;
  /// How much this machine's own speed differed between windows: half of what is between a tenth
  /// and nine tenths of the times of a loop that does nothing else, as a part of their median; 0 of
  /// fewer than ten windows, or if they have one connection.
  double machine = 0;
  bool steady = false;                    ///< the intervals are as wanted
  std::map<std::string, int64_t> failed;  ///< by code
  std::string first_failure;
  std::map<std::string, int64_t> plans;  ///< requests by plan
  Transport transport = Transport::kStream;
};

/// One request of that worker, which has one at a time; its number counts from 0 in the order in
/// which they are due.
using LoadRequest = std::function<absl::StatusOr<LoadSample>(int worker, int64_t number)>;

/// Connects, and makes what the requests need: operands and results. How fast requests are depends
/// on the connection, too: on where its threads run and its memory lies. So each window of a closed
/// loop has one of its own; at a rate, or by a schedule, all have the same.
using LoadSetup = std::function<absl::StatusOr<LoadRequest>()>;

/// Runs until it is known, the time is over or `stop` became true. A failure that would happen
/// again ends it: INVALID_ARGUMENT, NOT_FOUND, ... ; one that might not is counted, and so is one
/// of `setup`, which ends it, after the first time. UNKNOWN if nothing was measured.
absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options, const LoadSetup& setup,
                                   const std::atomic<bool>& stop);

}  // namespace sparsed::cli
