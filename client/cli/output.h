// How a command's report leaves the program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/cli/report.h"

namespace sparsed::cli {

enum class OutputFormat : uint8_t { kText, kWide, kJson, kYaml };
/// "text", "wide", "json", "yaml"; none for anything else.
std::optional<OutputFormat> ParseOutputFormat(std::string_view text);
inline bool ForPrograms(OutputFormat format) {
  return format == OutputFormat::kJson || format == OutputFormat::kYaml;
}

/// Sets Style() to what standard output is: a terminal's width, and separators in numbers for
/// people alone.
void FitOutput(OutputFormat format);

/// One line of JSON, or YAML, with its line's end.
std::string Formatted(const Json& json, OutputFormat format);

/// Writes to standard output, all of it. RESOURCE_EXHAUSTED if there is no room, else UNKNOWN.
absl::Status WriteOut(std::string_view text);

/// Writes a report.
absl::Status Print(Report report, OutputFormat format);

}  // namespace sparsed::cli
