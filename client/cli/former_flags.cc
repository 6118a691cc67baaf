#include "client/cli/former_flags.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace sparsed::cli {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kFormer = {
    {{"--expect", "--tune-for"}, {"--again", "--retune"}, {"--recipe", "--pipeline"}}};

std::string_view FlagOf(std::string_view word) { return word.substr(0, word.find('=')); }

bool IsTyped(std::string_view flag, std::span<char* const> words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return FlagOf(word) == flag; });
}

}  // namespace

std::vector<std::string> WithPresentNames(std::span<char* const> words) {
  std::vector<std::string> present;
  for (const std::string_view word : words) {
    const std::string_view flag = FlagOf(word);
    const auto* const former =
        std::ranges::find(kFormer, flag, &decltype(kFormer)::value_type::first);
    present.emplace_back(word);
    if (former != kFormer.end()) present.back().replace(0, flag.size(), former->second);
  }
  return present;
}

std::string AsTyped(std::string sentence, std::span<char* const> words) {
  for (const auto& [former, present] : kFormer) {
    if (!IsTyped(former, words) || IsTyped(present, words)) continue;
    for (size_t at = sentence.find(present); at != sentence.npos;
         at = sentence.find(present, at + former.size())) {
      sentence.replace(at, present.size(), former);
    }
  }
  return sentence;
}

}  // namespace sparsed::cli
