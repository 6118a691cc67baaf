#include "client/cli/quota_waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "client/cli/report.h"

namespace sparsed::cli {
namespace {

/// "the quota requests_per_second" of a sentence with "(quota requests_per_second)"; what has no
/// quota is the server's own memory, or a queue.
std::string CauseOf(std::string_view sentence) {
  constexpr std::string_view kBegin = "(quota ";
  const size_t begin = sentence.find(kBegin);
  const size_t end = sentence.find(')', begin);
  if (begin == sentence.npos || end == sentence.npos) return "room at the server";
  const size_t name = begin + kBegin.size();
  return fmt::format("the quota {}", sentence.substr(name, end - name));
}

}  // namespace

void QuotaWaits::Add(const absl::Status& why, std::chrono::nanoseconds pause,
                     Clock::time_point now) {
  if (!absl::IsResourceExhausted(why)) return;
  const MutexLock lock(mutex_);
  Wait& wait = by_cause_[CauseOf(std::string(why.message()))];
  ++wait.refusals;
  const Clock::time_point until = now + std::chrono::duration_cast<Clock::duration>(pause);
  wait.time += std::max(Clock::duration(0), until - std::max(now, wait.until));
  wait.until = std::max(wait.until, until);
}

std::string QuotaWaits::Text() const {
  const MutexLock lock(mutex_);
  std::string text;
  for (const auto& [cause, wait] : by_cause_) {
    text += fmt::format("waited {} for {} (refused {})\n", ShortTime(wait.time), cause,
                        wait.refusals == 1 ? "once" : fmt::format("{} times", wait.refusals));
  }
  return text;
}

}  // namespace sparsed::cli
