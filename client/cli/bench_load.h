// Load for `bench`: many requests, for as long as it takes to know what they take.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
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
  /// Requests a second, begun when they are due whether others have ended or not; 0: each worker's
  /// next one begins when its last one has ended.
  double rate = 0;
  /// In the place of `rate`: when each is due, ascending, since the first. All of them are made and
  /// count, and then it ends.
  std::vector<std::chrono::nanoseconds> schedule = {};
  double seconds = 0;        ///< for so long; 0: until it is known
  double most_seconds = 60;  ///< and if it never is
  /// It is known when the standard error of the windows' rates (at a fixed rate: of their median
  /// latencies) is at most this part of their mean, and their halves differ by no more than four
  /// times that.
  double precision = 0.005;
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

struct LoadResult {
  /// At a rate or by a schedule: from when each was due until it began.
  LatencyHistogram waited;
  double flops = 0;          ///< of all
  LatencyHistogram latency;  ///< the caller's; at a rate from when a request was due
  std::array<LatencyHistogram, kLoadPhases.size()> phases;  ///< the server's
  double seconds = 0;                                       ///< that were measured
  double warmup_seconds = 0;    ///< at the beginning, which are left out
  double unsteady_seconds = 0;  ///< then, of windows that are left out as others were unlike them
  int windows = 0;
  double error = 0;  ///< standard error of the windows, as LoadOptions::precision
  double interval =
      0;  ///< half the width of the 95 % confidence interval of what it is of, likewise
  bool steady = false;                    ///< `error` is as wanted
  std::map<std::string, int64_t> failed;  ///< by code
  std::string first_failure;
  std::map<std::string, int64_t> plans;  ///< requests by plan
  Transport transport = Transport::kStream;
};

/// One request of that worker, which has one at a time; its number counts from 0 in the order in
/// which they are due.
using LoadRequest = std::function<absl::StatusOr<LoadSample>(int worker, int64_t number)>;

/// Runs until it is known, the time is over or `stop` became true. A failure that would happen
/// again ends it: INVALID_ARGUMENT, NOT_FOUND, ... ; one that might not is counted. UNKNOWN if
/// nothing was measured.
absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options, const LoadRequest& request,
                                   const std::atomic<bool>& stop);

/// What a standard error of that many windows is to be multiplied by for half the width of a 95 %
/// confidence interval: Student's t.
double ConfidenceFactor(size_t windows);

/// Whether the windows' numbers are as near to each other as `precision` wants, and the standard
/// error of their mean, as a part of it. False of fewer than 12.
bool IsSteady(const std::vector<double>& windows, double precision, double* error);

}  // namespace sparsed::cli
