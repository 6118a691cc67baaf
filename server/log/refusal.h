// The line of the log that says that somebody was refused.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "server/log/log_limit.h"

namespace sparsed::server {

/// What is known of a call, a request or a page that was refused before it began.
struct RefusalLine {
  std::string_view op{}, tenant{}, caller{}, request_id{};
  std::string_view subject{};  ///< the matrix or buffer, where it is known
  std::string_view from{};     ///< a peer's address, or by which door it came
  absl::Status why;
};

/// Whether it is about who calls, and not about what he may use.
bool IsDenied(const absl::Status& why);

/// A warning where it is about who calls, else information; nothing where `limit` has no room.
void LogRefusal(const RefusalLine& refusal, LogLimit& limit);

}  // namespace sparsed::server
