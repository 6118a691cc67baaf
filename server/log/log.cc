#include "server/log/log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/async.h>
#include <spdlog/async_logger.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

namespace sparsed::server {
namespace {

constexpr size_t kMaxWaiting = 8192;

struct Logger {
  Logger() : spdlog(std::make_shared<spdlog::logger>("", Sink())) {
    spdlog->set_level(spdlog::level::warn);
    spdlog->set_pattern("%v");
  }
  static spdlog::sink_ptr Sink() { return std::make_shared<spdlog::sinks::stderr_sink_mt>(); }

  std::shared_ptr<spdlog::logger> spdlog;
  LogFormat format = LogFormat::kText;
};

Logger& TheLogger() {
  static Logger logger;
  return logger;
}

spdlog::level::level_enum Level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

std::string Now() {
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
                     (now - seconds).count());
}

/// Quoted if a reader, or a line-based tool, could take it for something else.
std::string Quoted(const std::string& value) {
  const bool plain = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > ' ' && c < 127 && c != '"' && c != '=' && c != '\\';
  });
  if (plain) return value;
  return nlohmann::json(value).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string Text(std::string_view level, std::string_view event, const std::vector<Field>& fields) {
  std::string line = fmt::format("{} {:<5} {}", Now(), level, event);
  for (const Field& field : fields) {
    const std::string value = std::visit(
        [](const auto& v) -> std::string {
          if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::string>) {
            return Quoted(v);
          } else if constexpr (std::is_same_v<std::decay_t<decltype(v)>, double>) {
            return fmt::format("{:.6g}", v);
          } else {
            return fmt::format("{}", v);
          }
        },
        field.value);
    line += fmt::format(" {}={}", field.key, value);
  }
  return line;
}

std::string Json(std::string_view level, std::string_view event, const std::vector<Field>& fields) {
  nlohmann::ordered_json line = {{"time", Now()}, {"level", level}, {"event", event}};
  for (const Field& field : fields) {
    std::visit([&](const auto& value) { line[std::string(field.key)] = value; }, field.value);
  }
  return line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void StartLog(LogLevel level, LogFormat format) {
  Logger& logger = TheLogger();
  spdlog::init_thread_pool(kMaxWaiting, 1);
  logger.spdlog = std::make_shared<spdlog::async_logger>(
      "", Logger::Sink(), spdlog::thread_pool(), spdlog::async_overflow_policy::overrun_oldest);
  logger.spdlog->set_pattern("%v");
  logger.spdlog->set_level(Level(level));
  logger.spdlog->flush_on(spdlog::level::info);
  logger.format = format;
}

void StopLog() {
  TheLogger() = Logger();
  spdlog::shutdown();
}

bool LogEnabled(LogLevel level) { return TheLogger().spdlog->should_log(Level(level)); }

void Log(LogLevel level, std::string_view event, const std::vector<Field>& fields) {
  const Logger& logger = TheLogger();
  if (!logger.spdlog->should_log(Level(level))) return;
  const auto name = spdlog::level::to_string_view(Level(level));
  const std::string_view level_name(name.data(), name.size());
  logger.spdlog->log(Level(level), "{}",
                     logger.format == LogFormat::kJson ? Json(level_name, event, fields)
                                                       : Text(level_name, event, fields));
}

}  // namespace sparsed::server
