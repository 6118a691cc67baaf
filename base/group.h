// Groups of users.
#pragma once

#include <grp.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sparsed {

/// Of a group's name or number; nullopt: this machine has no such name. Asks the system's database.
inline std::optional<uint32_t> GroupOf(const std::string& name) {
  uint32_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [parsed, error] = std::from_chars(name.data(), end, number);
  if (error == std::errc() && parsed == end) return number;
  std::vector<char> room(1 << 16);
  group entry = {};
  group* found = nullptr;
  if (getgrnam_r(name.c_str(), &entry, room.data(), room.size(), &found) != 0) return std::nullopt;
  return found == nullptr ? std::nullopt : std::optional<uint32_t>(found->gr_gid);
}

}  // namespace sparsed
