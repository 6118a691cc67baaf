#include "client/cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "client/cli/progress_bar.h"
#include "client/cli/yaml.h"

namespace sparsed::cli {

std::optional<OutputFormat> ParseOutputFormat(std::string_view text) {
  if (text == "text") return OutputFormat::kText;
  if (text == "wide") return OutputFormat::kWide;
  if (text == "json") return OutputFormat::kJson;
  if (text == "yaml") return OutputFormat::kYaml;
  return std::nullopt;
}

void FitOutput(OutputFormat format) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  Style().separators = terminal;
  Style().width = terminal ? TerminalWidth(STDOUT_FILENO) : 0;
  Style().wide = format == OutputFormat::kWide;
}

std::string Formatted(const Json& json, OutputFormat format) {
  if (format == OutputFormat::kYaml) return ToYaml(json);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::Status WriteOut(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  const std::string sentence =
      fmt::format("cannot write to standard output: {}", std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(sentence)
                                            : absl::UnknownError(sentence);
}

absl::Status Print(Report report, OutputFormat format) {
  if (report.written) return absl::OkStatus();
  if (report.listing.has_value()) {
    report.json.update(report.listing->ToJson());
    report.text += report.listing->Text() + report.below;
  }
  return WriteOut(ForPrograms(format) ? Formatted(report.json, format) : report.text);
}

}  // namespace sparsed::cli
