// What reading the parts of the access file has in common.
#pragma once

#include <yaml-cpp/yaml.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace sparsed::server {

/// Thrown by what reads a part of the file, and caught by AccessFile::Parse: "3:5: ..." (line,
/// column).
struct Refusal {
  std::string sentence;
};

/// "3:5: what is wrong", as errors of the configuration file say where it is.
std::string At(const YAML::Mark& mark, std::string_view what);
[[noreturn]] void Refuse(const YAML::Node& node, const std::string& what);
/// The scalar, which is called `what`.
std::string TextOf(const YAML::Node& node, std::string_view what);
/// Refuses keys of a map that are not known, or there twice.
void CheckKeys(const YAML::Node& entry, std::initializer_list<std::string_view> known);
/// Refuses what is no tenant's name.
void CheckTenant(const YAML::Node& node, std::string_view name);
/// At most 64 letters, digits, '.', '_' and '-', a letter or digit first.
bool IsTenant(std::string_view text);

}  // namespace sparsed::server
