// Recorded requests: lines of JSON, as `sparsectl record` writes them and as a server's log has
// them with --log-format=json and --log-level=debug.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sparsed/client.h"

namespace sparsed::cli {

/// What tells a product from others; no operands.
struct ProductKind {
  Operation operation = Operation::kSpmm;
  std::string matrix;
  int64_t k = 0;  ///< 0: of SpGEMM
  bool transpose = false;
  bool allow_tf32 = false;
  bool unscaled = false;  ///< of SDDMM
  std::string right{};    ///< of SpGEMM, and what follows
  std::string mask{};
  bool transpose_right = false;
  bool count_first = false;
  Semiring semiring = Semiring::kSumProduct;

  auto operator<=>(const ProductKind&) const = default;
};

struct RecordedRequest {
  std::chrono::nanoseconds arrived;  ///< since the first
  size_t kind = 0;                   ///< of RequestLog::kinds
};

struct RequestLog {
  std::vector<RecordedRequest> requests;  ///< as they arrived
  std::vector<ProductKind> kinds;
  std::map<std::string, int64_t> left_out;  ///< requests that cannot be made again, by why
  std::map<std::string, int64_t> tenants;   ///< requests
};

/// A line of it.
std::string RequestLine(const SlowRequest& request);

/// Reads a log, compressed or not; "-": standard input. `tenant`: of it alone, unless empty. Lines
/// of other events are passed over. INVALID_ARGUMENT with file and line for what is none;
/// INVALID_ARGUMENT if there is no product in it.
absl::StatusOr<RequestLog> ReadRequestLog(const std::string& path, std::string_view tenant);

/// When each of these, as they arrived, is due at that multiple of the recording's speed, since the
/// first. INVALID_ARGUMENT if the last is due after more than a year.
absl::StatusOr<std::vector<std::chrono::nanoseconds>> ScheduleOf(
    std::span<const RecordedRequest> requests, double speed);

}  // namespace sparsed::cli
