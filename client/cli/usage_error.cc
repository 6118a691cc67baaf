#include "client/cli/usage_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/command_walk.h"
#include "client/cli/suggestion.h"

namespace sparsed::cli {
namespace {

/// The innermost command that the words were taken for.
const CLI::App& Innermost(const CLI::App& app) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  return given.empty() ? app : Innermost(*given.back());
}

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands({})) {
    if (!sub->get_name().empty() && !sub->get_group().empty()) names.push_back(sub->get_name());
  }
  return names;
}

/// Those of the command and of the commands around it, as they are typed.
std::vector<std::string> FlagsOf(const CLI::App* app) {
  std::vector<std::string> flags;
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : FlagsIn(*app)) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
  }
  return flags;
}

/// What other tools call it, and what it is here, where that is not near.
constexpr std::array<std::pair<std::string_view, std::string_view>, 24> kHabits = {{
    {"ls", "list"},         {"rm", "delete"},        {"del", "delete"},      {"remove", "delete"},
    {"cp", "copy"},         {"mv", "rename"},        {"move", "rename"},     {"ps", "top"},
    {"put", "upload"},      {"push", "upload"},      {"add", "upload"},      {"pull", "download"},
    {"get", "download"},    {"cat", "download"},     {"describe", "show"},   {"status", "info"},
    {"multiply", "spmm"},   {"matmul", "spmm"},      {"benchmark", "bench"}, {"perf", "bench"},
    {"backup", "snapshot"}, {"restore", "snapshot"}, {"devices", "info"},    {"version", "info"},
}};

/// The habit's, if there is such a command; else the nearest.
std::string CommandMeant(const std::string& word, const std::vector<std::string>& commands) {
  const auto* const habit = std::ranges::find(kHabits, word, &decltype(kHabits)::value_type::first);
  if (habit != kHabits.end() && std::ranges::find(commands, habit->second) != commands.end()) {
    return fmt::format("; did you mean \"{}\"?", habit->second);
  }
  return DidYouMean(word, commands);
}

std::string UnknownCommand(const CLI::App& command, const std::string& word) {
  const std::string before = command.get_parent() == nullptr ? "" : command.get_name() + " ";
  return fmt::format("there is no command \"{}{}\"{}", before, word,
                     CommandMeant(word, CommandsOf(command)));
}

std::string UnknownWord(const CLI::App& app, const std::string& word) {
  const CLI::App& command = Innermost(app);
  if (word.starts_with('-')) {
    const std::string flag = word.substr(0, word.find('='));
    return fmt::format("there is no flag \"{}\"{}", flag, DidYouMean(flag, FlagsOf(&command)));
  }
  return CommandsOf(command).empty() ? fmt::format("\"{}\" is one word too many", word)
                                     : UnknownCommand(command, word);
}

}  // namespace

absl::Status TakeHelp(const CLI::App& app, std::vector<std::string>& words) {
  if (words.size() < 2 || words[1] != "help") return absl::OkStatus();
  words.erase(words.begin() + 1);
  const CLI::App* command = &app;
  for (const std::string& word : std::span(words).subspan(1)) {
    if (word.starts_with('-')) continue;
    const std::vector<const CLI::App*> commands = CommandsIn(*command);
    const auto found = std::ranges::find(commands, word, &CLI::App::get_name);
    if (found == commands.end()) {
      return absl::InvalidArgumentError(commands.empty()
                                            ? fmt::format("\"{}\" is one word too many", word)
                                            : UnknownCommand(*command, word));
    }
    command = *found;
  }
  words.emplace_back("--help");
  return absl::OkStatus();
}

std::string UsageSentence(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what();
  const auto begin_of = [&text](std::string_view ending) {
    return text.ends_with(ending) ? text.substr(0, text.size() - ending.size()) : std::string();
  };
  if (const std::vector<std::string> unknown = app.remaining(/*recurse=*/true); !unknown.empty()) {
    return UnknownWord(app, unknown.front());
  }
  if (text.starts_with("A subcommand is required")) {
    const std::vector<const CLI::App*> given = app.get_subcommands({});
    const auto at = std::ranges::find_if(given, [](const CLI::App* sub) { return sub->parsed(); });
    return at == given.end() ? "a COMMAND is missing"
                             : fmt::format("{} lacks its COMMAND", (*at)->get_name());
  }
  if (text.starts_with("Exactly 1 option from")) {
    return "where the product goes is to be said once: --out, --name or --discard";
  }
  if (const std::string what = begin_of(" is required"); !what.empty()) {
    return fmt::format("{} is missing", what);
  }
  if (const size_t found = text.find(" requires "); found != std::string::npos) {
    return fmt::format("{} goes with {} only", text.substr(0, found), text.substr(found + 10));
  }
  if (const size_t found = text.find(" excludes "); found != std::string::npos) {
    return fmt::format("{} does not go with {}", text.substr(0, found), text.substr(found + 10));
  }
  if (const size_t found = text.find(": 1 required"); found != std::string::npos) {
    return fmt::format("{} lacks its value", text.substr(0, found));
  }
  if (const size_t found = text.find(": At Most 1 required"); found != std::string::npos) {
    return fmt::format("{} is there twice", text.substr(0, found));
  }
  constexpr std::string_view kNotConverted = "Could not convert: ";
  if (text.starts_with(kNotConverted)) {
    const size_t equals = text.find(" = ");
    if (equals != std::string::npos) {
      return fmt::format("{}: \"{}\" is not a number",
                         text.substr(kNotConverted.size(), equals - kNotConverted.size()),
                         text.substr(equals + 3));
    }
  }
  return text;
}

}  // namespace sparsed::cli
