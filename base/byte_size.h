// Sizes as people write them.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sparsed {

/// Bytes of a unit, in letters of any case: "" and "B" are 1; "KiB" to "TiB" and "K" to "T" powers
/// of 1024; "KB" to "TB" powers of 1000. nullopt: it is no unit.
inline std::optional<int64_t> UnitBytes(std::string_view unit) {
  constexpr std::array<char, 4> kPrefixes = {'k', 'm', 'g', 't'};
  const auto letter = [&](size_t i) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(unit[i])));
  };
  const size_t length = unit.size();
  if (length == 0 || (length == 1 && letter(0) == 'b')) return 1;
  const auto* const prefix = std::ranges::find(kPrefixes, letter(0));
  const bool alone = length == 1, decimal = length == 2 && letter(1) == 'b',
             binary = length == 3 && letter(1) == 'i' && letter(2) == 'b';
  if (prefix == kPrefixes.end() || !(alone || decimal || binary)) return std::nullopt;
  int64_t bytes = 1;
  for (const auto* at = kPrefixes.begin(); at <= prefix; ++at) bytes *= decimal ? 1000 : 1024;
  return bytes;
}

}  // namespace sparsed
