// What the values of settings may be. Each refuses in a sentence that has the value and what is
// allowed in its place.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>

#include "CLI/CLI.hpp"

namespace sparsed::server {

/// Turns a size such as 4GiB, 1.5GiB, "512 MiB", 3GB or a number of bytes into bytes, by UnitBytes;
/// fractions of a byte are dropped.
CLI::Validator Size();

/// A whole number.
CLI::Validator Whole(int64_t least, int64_t most, const std::string& unit = "NUMBER");

/// A number of seconds, which may be a fraction.
CLI::Validator Seconds(double least, double most);

/// Turns a word into the number of the enumerator that it stands for.
template <typename Value>
CLI::Validator OneOf(const std::map<std::string, Value>& values) {
  const auto turn = [values](std::string& word) -> std::string {
    const auto found = values.find(word);
    if (found == values.end()) {
      std::string words;
      for (const auto& [known, value] : values) words += (words.empty() ? "" : ", ") + known;
      return fmt::format("'{}' is none of {}", word, words);
    }
    word = std::to_string(static_cast<int>(found->second));
    return {};
  };
  return {turn, ""};
}

/// As somebody writes it: "4GiB", "1536MiB", or, where none of these is exact, "123 bytes", with
/// the nearest of them from 1 MiB on: "1234567890 bytes (1.15 GiB)".
std::string SizeText(int64_t bytes);

}  // namespace sparsed::server
