// The log: one line an event on standard error, as text or as JSON.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/config/config.h"

namespace sparsed::server {

struct Field {
  std::string_view key;
  std::variant<std::string, int64_t, double> value;
};

/// Lines are written by a thread of their own, so that nobody waits for a stalled reader; when 8192
/// of them wait, the oldest are dropped. Call once, before other threads; without it only warnings
/// are written, by the caller's thread.
void StartLog(LogLevel level, LogFormat format);
/// Writes what waits.
void StopLog();

bool LogEnabled(LogLevel level);
/// Thread-safe. Keys are literals; values may be anything a client sent.
void Log(LogLevel level, std::string_view event, const std::vector<Field>& fields = {});

}  // namespace sparsed::server
