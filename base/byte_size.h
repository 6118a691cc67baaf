// Sizes as people write them.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

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

/// "4GiB", "1.5 GiB", "3GB" or a number of bytes. nullopt: it is no size, or one that no machine
/// has.
inline std::optional<int64_t> ParseByteSize(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  long double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + digits, number);
  if (error != std::errc() || digits == 0 || end != text.data() + digits || text[0] == '.' ||
      text[digits - 1] == '.') {
    return std::nullopt;
  }
  std::string_view rest = text.substr(digits);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const std::optional<int64_t> unit = UnitBytes(rest);
  constexpr long double kMost = int64_t{1} << 60;
  if (!unit || number * *unit > kMost) return std::nullopt;
  return static_cast<int64_t>(number * *unit);
}

/// What is wrong with a text that is none, behind it.
inline constexpr std::string_view kNoByteSize =
    "is not a size: a number of bytes, or one with KiB, MiB, GiB or TiB behind it, such as 512MiB "
    "or "
    "1.5GiB; 1GB is 1000 MB and less than 1GiB";

}  // namespace sparsed
