#include "server/log/refusal.h"

#include <optional>
#include <string>
#include <vector>

#include "server/log/log.h"

namespace sparsed::server {

bool IsDenied(const absl::Status& why) {
  return absl::IsUnauthenticated(why) || absl::IsPermissionDenied(why);
}

void LogRefusal(const RefusalLine& refusal, LogLimit& limit) {
  const LogLevel level = IsDenied(refusal.why) ? LogLevel::kWarn : LogLevel::kInfo;
  if (!LogEnabled(level)) return;
  const std::optional<int64_t> not_logged = limit.Admit();
  if (!not_logged.has_value()) return;
  std::vector<Field> fields;
  const auto text = [&fields](std::string_view key, std::string_view value) {
    if (!value.empty()) fields.push_back({key, std::string(value)});
  };
  text("op", refusal.op);
  text("tenant", refusal.tenant);
  text("caller", refusal.caller);
  text("request_id", refusal.request_id);
  text("subject", refusal.subject);
  text("from", refusal.from);
  text("code", absl::StatusCodeToString(refusal.why.code()));
  text("message", std::string(refusal.why.message()));
  if (*not_logged > 0) fields.push_back({"not_logged", *not_logged});
  Log(level, "refused", fields);
}

}  // namespace sparsed::server
