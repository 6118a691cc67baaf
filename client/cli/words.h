// The words and numbers of text files.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace sparsed::cli {

inline bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

/// Takes the next word off `line`; empty at its end.
inline std::string_view NextWord(std::string_view& line) {
  size_t begin = 0;
  while (begin < line.size() && IsBlank(line[begin])) ++begin;
  size_t end = begin;
  while (end < line.size() && !IsBlank(line[end])) ++end;
  const std::string_view word = line.substr(begin, end - begin);
  line.remove_prefix(end);
  return word;
}

inline bool IsBlank(std::string_view line) { return NextWord(line).empty(); }

inline std::string_view WithoutPlus(std::string_view word) {
  if (word.size() > 1 && word[0] == '+' && word[1] != '-') word.remove_prefix(1);
  return word;
}

inline std::optional<int64_t> ParseInteger(std::string_view word) {
  word = WithoutPlus(word);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

/// None for what is no number or is beyond the range of a double; too small for it is zero.
inline std::optional<double> ParseReal(std::string_view word) {
  word = WithoutPlus(word);
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || end != word.data() + word.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) {
    value = std::strtod(std::string(word).c_str(), nullptr);
    return std::isinf(value) ? std::nullopt : std::optional(value);
  }
  if (error != std::errc()) return std::nullopt;
  return value;
}

/// A number, but none that a double holds.
inline bool IsTooLarge(std::string_view word) {
  word = WithoutPlus(word);
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return end == word.data() + word.size() && error == std::errc::result_out_of_range;
}

/// What a person sees of a word that makes no sense.
inline std::string Quoted(std::string_view word) {
  std::string quoted = "\"";
  for (const char c : word.substr(0, 40)) quoted += c >= ' ' && c <= '~' ? c : '?';
  return quoted + (word.size() > 40 ? "...\"" : "\"");
}

}  // namespace sparsed::cli
