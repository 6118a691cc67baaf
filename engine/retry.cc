#include "engine/retry.h"

#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"

namespace sparsed::engine {
namespace {
constexpr char kPayload[] = "sparsed/retry_after_ms";
}  // namespace

absl::Status RetryLater(absl::Status status, std::chrono::milliseconds delay) {
  status.SetPayload(kPayload, absl::Cord(std::to_string(delay.count())));
  return status;
}

std::optional<std::chrono::milliseconds> RetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  int64_t milliseconds = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &milliseconds)) return std::nullopt;
  return std::chrono::milliseconds(milliseconds);
}

}  // namespace sparsed::engine
