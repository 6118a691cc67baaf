// Any command line and any configuration file make settings, which print as a file that makes the
// same, or are refused in a sentence.
#include <sstream>
#include <variant>
#include <vector>

#include "server/config/command_line.h"
#include "tests/fuzz/check.h"

namespace {

using sparsed::fuzz::Check;
using sparsed::server::Config;
using sparsed::server::Settings;

/// The exit code, or none if it would start. What it says goes to `*out`.
std::variant<Settings, int> Parse(const std::vector<std::string>& words, std::string* out) {
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  std::ostringstream standard, errors;
  auto parsed = sparsed::server::ParseCommandLine(static_cast<int>(arguments.size()),
                                                  arguments.data(), standard, errors);
  if (const int* code = std::get_if<int>(&parsed)) {
    Check(*code == 0 || (*code == sparsed::server::kExitWrongUse && !errors.str().empty()));
  } else if (const auto& settings = std::get<Settings>(parsed); !settings.check) {
    const Config& config = settings.config;
    Check(settings.problems.empty());
    Check(config.host_memory_bytes > 0 && config.threads > 0 && config.worker_slots > 0);
    Check(config.preparation_memory_bytes >= 0 && config.max_queued > 0);
  }
  *out = standard.str();
  return parsed;
}

}  // namespace

/// Words of the command line, each to a zero byte, an empty one, and the file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sparsed::fuzz::Input input(data, size);
  std::vector<std::string> words = {"sparsed", "--devices=cpu"};
  while (!input.empty() && words.size() < 12) {
    std::string word(input.Word());
    if (word.empty()) break;
    // Another file would be whatever lies there.
    if (word.find("config") == std::string::npos) words.push_back(std::move(word));
  }
  const std::string_view file = input.Rest();
  if (!file.empty()) {
    words.push_back("--config=" + sparsed::fuzz::FileOf(
                                      reinterpret_cast<const uint8_t*>(file.data()), file.size()));
  }
  std::string out;
  const auto parsed = Parse(words, &out);
  if (std::holds_alternative<int>(parsed) || std::get<Settings>(parsed).check) return 0;
  words.insert(words.begin() + 1, "--print-config");
  const auto printed = Parse(words, &out);
  Check(std::holds_alternative<int>(printed) && std::get<int>(printed) == 0);
  const std::string text = out;
  const std::string& path =
      sparsed::fuzz::FileOf(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  const auto again = Parse({"sparsed", "--print-config", "--config=" + path}, &out);
  Check(std::holds_alternative<int>(again) && std::get<int>(again) == 0 && out == text);
  return 0;
}
