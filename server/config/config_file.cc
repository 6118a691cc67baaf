#include "server/config/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/private_file.h"
#include "base/utf8.h"
#include "server/config/nearest_word.h"

namespace sparsed::server {
namespace {

constexpr size_t kMostBytes = 1 << 20;

Place PlaceOf(const YAML::Mark& mark) {
  return {std::max(mark.line, 0) + 1, std::max(mark.column, 0) + 1};
}

/// What a value of `option` is, as --help has it behind the type that holds it: "FLOAT:SECONDS".
std::string ExpectedOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "true or false";
  const std::string type = option.get_type_name();
  for (const char* held : {"INT:", "UINT:", "FLOAT:", "TEXT:"}) {
    if (type.starts_with(held)) return type.substr(std::string_view(held).size());
  }
  return type;
}

/// Yes and no as YAML 1.1 and 1.2 have them.
std::optional<bool> BooleanOf(const YAML::Node& node) {
  bool value = false;
  return YAML::convert<bool>::decode(node, value) ? std::optional(value) : std::nullopt;
}

class ConfigFile {
 public:
  ConfigFile(CLI::App& app, const std::string& path, Problems& problems)
      : app_(app), path_(path), problems_(problems) {}

  void Read() {
    problems_.SetFile(path_);
    const std::optional<std::string> text = Text();
    if (!text || !IsYamlText(*text)) return;
    std::vector<YAML::Node> documents;
    try {
      documents = YAML::LoadAll(*text);
    } catch (const YAML::Exception& error) {
      problems_.AddAt(PlaceOf(error.mark), "this is not YAML: " + error.msg);
      return;
    }
    if (documents.size() > 1) {
      problems_.AddAt(PlaceOf(documents[1].Mark()),
                      "a second document begins before this; all settings are in one");
      return;
    }
    if (documents.empty() || documents[0].IsNull()) return;
    if (!documents[0].IsMap()) {
      problems_.AddAt(PlaceOf(documents[0].Mark()), "expected a map of settings, key: value");
      return;
    }
    for (const auto& setting : documents[0]) ReadSetting(setting.first, setting.second);
  }

 private:
  std::optional<std::string> Text() {
    auto text = ReadPublicFile(path_);
    if (text.ok() && text->size() <= kMostBytes) return *std::move(text);
    problems_.Add("config", text.ok() ? path_ + ": it has more than 1 MiB"
                                      : std::string(text.status().message()));
    return std::nullopt;
  }

  /// What YAML's parser says of these helps nobody to find them.
  bool IsYamlText(std::string_view text) {
    bool fine = true;
    int number = 0;
    while (!text.empty()) {
      ++number;
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(line.size() + 1, text.size()));
      const size_t indent = std::min(line.find_first_not_of(" \t\r"), line.size());
      const size_t tab = line.substr(0, indent).find('\t');
      if (tab != std::string_view::npos && indent < line.size()) {
        problems_.AddAt({number, static_cast<int>(tab) + 1},
                        "a tab; lines of YAML are indented with spaces");
        fine = false;
      }
      if (!IsUtf8(line) || line.find('\0') != std::string_view::npos) {
        problems_.AddAt({number, 1}, "this line is no text in UTF-8");
        fine = false;
      }
    }
    return fine;
  }

  void ReadSetting(const YAML::Node& key_node, const YAML::Node& value) {
    const Place place = PlaceOf(key_node.Mark());
    if (!key_node.IsScalar()) {
      problems_.AddAt(place, "a key is one word");
      return;
    }
    const std::string key = PresentKey(key_node.Scalar());
    CLI::Option* option = OptionOf(key);
    if (option == nullptr) {
      problems_.AddAt(place, fmt::format("unknown key '{}'{}", key, Hint(key)));
      return;
    }
    const std::string& written = key_node.Scalar();
    const auto [first, is_new] = lines_.emplace(key, std::pair(place.line, written));
    if (!is_new) {
      const auto& [line, name] = first->second;
      problems_.AddAt(place,
                      fmt::format("key '{}' again, it is in line {} already{}", written, line,
                                  name == written ? "" : fmt::format(" as '{}'", name)));
      return;
    }
    const auto given = [](const CLI::Option* other) { return other->count() > 0; };
    if (given(option) || std::ranges::any_of(option->get_excludes(), [&](CLI::Option* other) {
          return given(other) && !problems_.PlaceOf(other->get_single_name());
        })) {
      return;
    }
    Set(*option, value.IsNull() ? place : PlaceOf(value.Mark()), value);
  }

  /// Of a key that was called otherwise once.
  static std::string PresentKey(const std::string& key) {
    return key == kFormerWorkerSlots ? "worker_slots" : key;
  }

  CLI::Option* OptionOf(const std::string& key) const {
    if (key.empty() || key.find('-') != std::string::npos) return nullptr;
    std::string name = key;
    std::ranges::replace(name, '_', '-');
    CLI::Option* option = app_.get_option_no_throw("--" + name);
    return option != nullptr && option->get_configurable() ? option : nullptr;
  }

  std::string Hint(const std::string& key) const {
    std::string name = key;
    std::ranges::replace(name, '_', '-');
    const CLI::Option* flag = app_.get_option_no_throw("--" + name);
    if (flag != nullptr && !flag->get_configurable()) {
      return fmt::format("; --{} is for the command line alone", name);
    }
    std::vector<std::string> keys;
    for (const CLI::Option* option : app_.get_options()) {
      if (option->get_configurable()) keys.push_back(KeyOf(option->get_single_name()));
    }
    keys.emplace_back(kFormerWorkerSlots);
    const std::string nearest = PresentKey(NearestWord(KeyOf(key), keys));
    return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
  }

  void Set(CLI::Option& option, Place place, const YAML::Node& value) {
    const std::string& flag = option.get_single_name();
    const bool is_switch = option.get_items_expected_max() == 0;
    const bool takes_list = option.get_items_expected_max() > 1;
    const std::string expected = ExpectedOf(option);
    if (value.IsSequence() && takes_list) {
      SetAll(option, value);
    } else if (value.IsSequence() || value.IsMap()) {
      problems_.AddAt(
          place, flag,
          fmt::format("a {}, where one value{} is expected: {}", value.IsMap() ? "map" : "list",
                      takes_list ? " or a list of them" : "", expected));
    } else if (!value.IsScalar() || value.Scalar().empty()) {
      problems_.AddAt(place, flag, "no value; expected: " + expected);
    } else if (!is_switch) {
      if (SetOne(option, value)) problems_.SetPlace(flag, place);
    } else if (const std::optional<bool> on = BooleanOf(value); !on) {
      problems_.AddAt(place, flag, fmt::format("'{}' is neither true nor false", value.Scalar()));
    } else if (*on) {
      option.add_result("true");
      option.run_callback();
      problems_.SetPlace(flag, place);
    }
  }

  void SetAll(CLI::Option& option, const YAML::Node& list) {
    const std::string& flag = option.get_single_name();
    const Place place = PlaceOf(list.Mark());
    if (list.size() == 0) {
      problems_.AddAt(place, flag, "an empty list; expected: " + ExpectedOf(option));
    }
    std::vector<std::string> values;
    for (const YAML::Node& element : list) {
      if (!element.IsScalar() || element.Scalar().empty()) {
        problems_.AddAt(PlaceOf(element.Mark()), flag,
                        "expected in this list: " + ExpectedOf(option));
      } else if (SetOne(option, element)) {
        values.push_back(element.Scalar());
      }
    }
    option.clear();
    if (values.empty()) return;
    option.add_result(values);
    option.run_callback();
    problems_.SetPlace(flag, place);
  }

  /// Whether it takes this value alone.
  bool SetOne(CLI::Option& option, const YAML::Node& value) {
    const std::string& flag = option.get_single_name();
    option.clear();
    try {
      option.add_result(value.Scalar());
      option.run_callback();
      return true;
    } catch (const CLI::Error& error) {
      std::string_view what = error.what();  // "--threads: 'many' is ..."
      const std::string name = option.get_name() + ": ";
      if (what.starts_with(name)) what.remove_prefix(name.size());
      problems_.AddAt(PlaceOf(value.Mark()), flag, std::string(what));
      option.clear();
      return false;
    }
  }

  CLI::App& app_;
  const std::string& path_;
  Problems& problems_;
  /// Where each key is first, and how it is written there.
  std::map<std::string, std::pair<int, std::string>> lines_;
};

}  // namespace

void ReadConfigFile(CLI::App& app, const std::string& path, Problems& problems) {
  ConfigFile(app, path, problems).Read();
}

}  // namespace sparsed::server
