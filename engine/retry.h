// Refusals that time mends.
#pragma once

#include <chrono>
#include <optional>

#include "absl/status/status.h"

namespace sparsed::engine {

/// After which a request is likely to have ended that holds what another one needs.
inline constexpr std::chrono::milliseconds kRetryDelay{200};

/// Marks a refusal: the same request may be served after about `delay`. Callers are told so beside
/// the sentence, as google.rpc.RetryInfo.
absl::Status RetryLater(absl::Status status, std::chrono::milliseconds delay = kRetryDelay);

/// Of a status that RetryLater marked.
std::optional<std::chrono::milliseconds> RetryDelay(const absl::Status& status);

}  // namespace sparsed::engine
