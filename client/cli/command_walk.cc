#include "client/cli/command_walk.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"

namespace sparsed::cli {
namespace {

/// Words alone or flags alone, of the app and its groups.
std::vector<const CLI::Option*> OptionsIn(const CLI::App& app, bool words) {
  std::vector<const CLI::Option*> options;
  for (const CLI::Option* option : app.get_options()) {
    const bool word = option->get_positional();
    if (word == words && !option->get_group().empty()) options.push_back(option);
  }
  for (const CLI::App* group : app.get_subcommands({})) {
    if (!group->get_name().empty()) continue;
    const std::vector<const CLI::Option*> more = OptionsIn(*group, words);
    options.insert(options.end(), more.begin(), more.end());
  }
  return options;
}

}  // namespace

std::vector<const CLI::App*> CommandsIn(const CLI::App& app) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* sub : app.get_subcommands({})) {
    if (!sub->get_name().empty() && !sub->get_group().empty()) commands.push_back(sub);
  }
  return commands;
}

std::vector<const CLI::Option*> FlagsIn(const CLI::App& app) { return OptionsIn(app, false); }
std::vector<const CLI::Option*> WordsIn(const CLI::App& app) { return OptionsIn(app, true); }

std::vector<std::string> NamesOf(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::string TypeOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  // Choices may have a colon of their own: "cpu|cuda:0".
  return type.find('|') == type.npos ? type.substr(0, type.find(':')) : type;
}

std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = TypeOf(option);
  std::vector<std::string> choices;
  if (type.find('|') == std::string::npos) return choices;
  for (size_t begin = 0; begin <= type.size();) {
    const size_t end = std::min(type.find('|', begin), type.size());
    std::string choice = type.substr(begin, end - begin);
    // Capitals stand for any word: all of "TENANT", the end of "spmm:K".
    const size_t value = choice.find(':') + 1;
    if (value != 0 && absl::ascii_isupper(choice[value])) choice.resize(value);
    if (!choice.empty() && !absl::ascii_isupper(choice[0])) choices.push_back(choice);
    begin = end + 1;
  }
  return choices;
}

std::string PathOf(const CLI::App& app, const std::string& separator) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name()
                           : PathOf(*parent, separator) + separator + app.get_name();
}

}  // namespace sparsed::cli
