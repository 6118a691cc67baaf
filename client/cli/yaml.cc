#include "client/cli/yaml.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace sparsed::cli {
namespace {

/// Whether it needs no quotes: a word that is no number, no date and no word that stands for a
/// value in YAML 1.1 or 1.2.
bool IsPlain(std::string_view text) {
  constexpr std::array<std::string_view, 11> kValues = {"true", "false", "null", "yes", "no", "on",
                                                        "off",  "y",     "n",    "inf", "nan"};
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const auto within = [&](char c) {
    return letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' || c == '/';
  };
  if (text.empty() || !letter(text.front()) || !std::ranges::all_of(text, within)) return false;
  std::string lower;
  for (const char c : text) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return std::ranges::find(kValues, lower) == kValues.end();
}

std::string Scalar(const Json& json) {
  if (json.is_string() && IsPlain(json.get_ref<const std::string&>())) return json;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool IsBlock(const Json& json) { return json.is_structured() && !json.empty(); }

void Write(const Json& json, size_t indent, std::string& text);

/// What comes behind "key:" or "-".
void WriteValue(const Json& json, size_t indent, bool in_list, std::string& text) {
  if (!IsBlock(json)) {
    text += ' ' + Scalar(json) + '\n';
  } else if (in_list) {
    // Its first line is that of the mark.
    std::string block;
    Write(json, indent, block);
    text += ' ' + block.substr(indent);
  } else {
    text += '\n';
    Write(json, indent, text);
  }
}

void Write(const Json& json, size_t indent, std::string& text) {
  const std::string spaces(indent, ' ');
  if (json.is_array()) {
    for (const Json& item : json) {
      text += spaces + '-';
      WriteValue(item, indent + 2, true, text);
    }
    return;
  }
  for (const auto& [key, value] : json.items()) {
    text += spaces + Scalar(Json(key)) + ':';
    WriteValue(value, indent + 2, false, text);
  }
}

}  // namespace

std::string ToYaml(const Json& json) {
  if (!IsBlock(json)) return Scalar(json) + '\n';
  std::string text;
  Write(json, 0, text);
  return text;
}

}  // namespace sparsed::cli
