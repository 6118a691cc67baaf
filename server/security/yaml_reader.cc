#include "server/security/yaml_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace sparsed::server {
namespace {

constexpr size_t kMostTenantBytes = 64;

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

bool IsTenant(std::string_view text) {
  const auto may_be = [](char c) { return IsLetterOrDigit(c) || c == '.' || c == '_' || c == '-'; };
  return !text.empty() && text.size() <= kMostTenantBytes && IsLetterOrDigit(text.front()) &&
         std::ranges::all_of(text, may_be);
}

std::string At(const YAML::Mark& mark, std::string_view what) {
  // -1 of what is nowhere in the file.
  return fmt::format("{}:{}: {}", std::max(mark.line, 0) + 1, std::max(mark.column, 0) + 1, what);
}

void Refuse(const YAML::Node& node, const std::string& what) {
  throw Refusal{At(node.Mark(), what)};
}

std::string TextOf(const YAML::Node& node, std::string_view what) {
  if (!node.IsScalar()) Refuse(node, fmt::format("{} is no word", what));
  return node.Scalar();
}

void CheckKeys(const YAML::Node& entry, std::initializer_list<std::string_view> known) {
  std::set<std::string> seen;
  for (const auto& pair : entry) {
    const std::string key = TextOf(pair.first, "a key");
    if (std::ranges::find(known, key) == known.end()) {
      Refuse(pair.first,
             fmt::format("unknown key '{}'; there are {}", key, fmt::join(known, ", ")));
    }
    if (!seen.insert(key).second) Refuse(pair.first, fmt::format("key '{}' again", key));
  }
}

void CheckTenant(const YAML::Node& node, std::string_view name) {
  if (IsTenant(name)) return;
  Refuse(node, fmt::format("'{}' is no tenant's name: at most {} letters, digits, '.', '_' and "
                           "'-', a letter or digit first",
                           name, kMostTenantBytes));
}

}  // namespace sparsed::server
