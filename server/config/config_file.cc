#include "server/config/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace sparsed::server {
namespace {

class YamlConfig : public CLI::Config {
 public:
  YamlConfig(const CLI::App& app, const CLI::Option& file_option)
      : app_(app), file_option_(file_option) {}

  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    YAML::Node root;
    try {
      root = YAML::Load(input);
    } catch (const YAML::Exception& error) {
      Refuse(error.mark, "this is not YAML: " + error.msg);
    }
    if (root.IsNull()) return {};
    if (!root.IsMap()) Refuse(root.Mark(), "expected a map of settings, key: value");
    std::vector<CLI::ConfigItem> items;
    std::map<std::string, int> lines;  // where each key is
    for (const auto& setting : root) {
      if (setting.first.IsScalar()) {
        const auto [first, is_new] =
            lines.emplace(setting.first.Scalar(), setting.first.Mark().line + 1);
        if (!is_new) {
          Refuse(setting.first.Mark(), fmt::format("key '{}' again, it is in line {} already",
                                                   first->first, first->second));
        }
      }
      if (auto item = Item(setting.first, setting.second); !item.name.empty()) {
        items.push_back(std::move(item));
      }
    }
    return items;
  }

 private:
  /// An item without a name if the command line overrides it.
  CLI::ConfigItem Item(const YAML::Node& key_node, const YAML::Node& value) const {
    const std::string key = key_node.IsScalar() ? key_node.Scalar() : std::string();
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    const CLI::Option* option = app_.get_option_no_throw("--" + name);
    if (option == nullptr || !option->get_configurable() || key.find('-') != std::string::npos) {
      Refuse(key_node.Mark(), fmt::format("unknown key '{}'", key));
    }
    CLI::ConfigItem item;
    for (const CLI::Option* excluded : option->get_excludes()) {
      if (excluded->count() > 0) return item;
    }
    item.name = name;
    if (value.IsScalar()) {
      item.inputs = {value.Scalar()};
    } else if (value.IsSequence()) {
      for (const auto& element : value) {
        if (!element.IsScalar())
          Refuse(element.Mark(), fmt::format("'{}' is no list of words", key));
        item.inputs.push_back(element.Scalar());
      }
    } else {
      Refuse(value.Mark(), fmt::format("'{}' needs a value or a list of values", key));
    }
    return item;
  }

  [[noreturn]] void Refuse(const YAML::Mark& mark, const std::string& what) const {
    throw CLI::ConfigError(
        fmt::format("{}:{}: {}", file_option_.as<std::string>(), mark.line + 1, what),
        CLI::ExitCodes::ConfigError);
  }

  const CLI::App& app_;
  const CLI::Option& file_option_;
};

}  // namespace

std::shared_ptr<CLI::Config> YamlFile(const CLI::App& app, const CLI::Option& file_option) {
  return std::make_shared<YamlConfig>(app, file_option);
}

}  // namespace sparsed::server
