// What limits products with a matrix on a device, and what another order of its rows could gain: by
// the models of kernels/data_movement, beside what trials measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/catalog/busy_trials.h"
#include "engine/catalog/matrix.h"
#include "engine/execution/distributions.h"
#include "engine/execution/executor.h"
#include "engine/execution/roofline.h"
#include "kernels/data_movement/movement.h"
#include "kernels/pipeline.h"

namespace sparsed::engine {

struct ExplainOptions {
  int64_t k = 128;                 ///< width of SpMM's operand
  std::optional<DeviceId> device;  ///< none: a GPU if there is one
  int64_t cache_bytes = 0;         ///< of the last level cache; 0: the device's
};

/// What holds a product back.
enum class Limit : uint8_t {
  kNothing,      ///< no products
  kCache,        ///< all of it fits the last level cache: memory is no limit
  kArithmetic,   ///< operations
  kImbalance,    ///< one row that keeps one worker busy longer than the others all their rows
  kCacheMisses,  ///< rows of the other operand that are fetched more than once
  kBandwidth,    ///< bytes that any order moves
};
/// "nothing", "cache", "arithmetic", "imbalance", "cache_misses", "bandwidth".
std::string_view Name(Limit limit);

/// What holds a product back that the last level cache holds.
enum class CacheLimit : uint8_t {
  kUnknown,     ///< or it is not in cache
  kBandwidth,   ///< bytes from the last level cache to those before it
  kArithmetic,  ///< operations
  kOverhead,    ///< it was timed, and took far longer than either
  kUncertain,   ///< it was timed, and was faster than either allows: the rates are too low
};
/// "", "cache_bandwidth", "arithmetic", "overhead", "uncertain".
std::string_view Name(CacheLimit limit);

struct ExplainedOperation {
  Operation operation = Operation::kSpmm;
  int64_t k = 0;       ///< 1: SpMV; 0: SpGEMM with itself
  Movement stored;     ///< rows as they are stored
  Movement reordered;  ///< rows breadth first
  /// Steps of the serving plan's pipeline that order rows, and rows in that order; "": as they are
  /// stored. Limits and gains are of these.
  std::string order;
  Movement served;
  Limit limit = Limit::kNothing;
  /// In cache: what limits it there, and bytes between the last level cache and those before it.
  CacheLimit cache_limit = CacheLimit::kUnknown;
  Movement inner, inner_reordered, inner_served;
  /// Times that the longer of the roofline's two times would shrink: at the most, if all was moved
  /// once; and by the best schedule known, of consecutive parts or row by row, in either order. In
  /// cache, of the inner bytes at that cache's rate; 1 if it is not known.
  double greatest_gain = 1, known_gain = 1;
  double imbalance = 1;    ///< the longest row over a worker's fair share, at least 1
  double measured_ms = 0;  ///< the fastest trial of just this problem; 0: none
  /// Where that is; not judged under an assumed cache, as the trial had the device's own.
  RooflinePosition roofline;
  /// Kernel and pipeline of the plan that serves it, which may be that of a neighbouring K.
  std::string plan;
  std::string request_plan;  ///< likewise, as requests name the plan that they ran by
  /// Of the plan's signature; 0: SpGEMM, or plain CSR serves without a trial.
  int64_t plan_k = 0;
  int64_t trial_k = 0;     ///< width that the plan's trial multiplied with
  double trial_ms = 0;     ///< what it took; 0: there was none
  double baseline_ms = 0;  ///< plain CSR's default kernel beside measured_ms; 0: not known
  std::optional<BusyTrials> busy_trials;  ///< of the plan whose trial measured_ms is
  double reordered_ms = 0;  ///< the fastest trial of its signature with rows breadth first; 0: none
  /// SpMM on a GPU of several: how operand and result could lie on them.
  std::optional<DistributionChoice> distributions = std::nullopt;
};

struct Explanation {
  std::string device;
  int64_t cache_bytes = 0;
  int64_t line_bytes = 0;
  int workers = 1;  ///< threads, or warp schedulers: who computes rows at the same time
  Roofline roofline;
  /// Others computed whenever a rate was measured: it may be higher.
  bool measured_while_busy = false;
  int64_t calibrated_unix_ns = 0;              ///< 0: the rates are of a short measurement
  int64_t inner_cache_bytes = 0;               ///< of one of the caches before the last level
  double cache_bytes_per_second = 0;           ///< read from the last level cache; 0: not known
  std::vector<ExplainedOperation> operations;  ///< SpMV, SpMM and, of a square matrix, SpGEMM
};

/// The order that Explanation compares with.
inline constexpr std::string_view kComparedOrder = "breadth_first";

/// A few passes over the nonzeros, and of products in cache a few more: above
/// MovementSpec::max_steps products are sampled, the same ones for both orders. Scratch from
/// `context`: the transposed pattern, and some 24 bytes for each row and column. Errors:
/// FAILED_PRECONDITION (no such device), RESOURCE_EXHAUSTED, CANCELLED, DATA_LOSS.
absl::StatusOr<Explanation> Explain(const Matrix& matrix, const ExplainOptions& options,
                                    Executor& executor, const BuildContext& context);

}  // namespace sparsed::engine
