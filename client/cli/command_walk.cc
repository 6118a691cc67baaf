#include "client/cli/command_walk.h"

#include <algorithm>
#include <string_view>

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
  return type.substr(0, type.find(':'));
}

std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = TypeOf(option);
  std::vector<std::string> choices;
  if (type.find('|') == std::string::npos) return choices;
  for (size_t begin = 0; begin <= type.size();) {
    const size_t end = std::min(type.find('|', begin), type.size());
    choices.push_back(type.substr(begin, end - begin));
    // One in capitals stands for any word.
    if (!choices.back().empty() && choices.back()[0] >= 'A' && choices.back()[0] <= 'Z') {
      choices.pop_back();
    }
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
