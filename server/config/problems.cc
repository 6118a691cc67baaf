#include "server/config/problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sparsed::server {
namespace {

constexpr size_t kMostSentences = 50;

}  // namespace

std::string KeyOf(std::string_view flag) {
  std::string key(flag);
  std::ranges::replace(key, '-', '_');
  return key;
}

std::optional<Place> Problems::PlaceOf(std::string_view flag) const {
  const auto found = places_.find(std::string(flag));
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

void Problems::AddAt(Place place, std::string sentence) {
  found_.push_back({place, {}, std::move(sentence)});
}

void Problems::AddAt(Place place, std::string_view flag, std::string sentence) {
  found_.push_back({place, std::string(flag), std::move(sentence)});
}

void Problems::Add(std::string_view flag, std::string sentence) {
  found_.push_back({PlaceOf(flag), std::string(flag), std::move(sentence)});
}

bool Problems::Has(std::string_view flag) const {
  return std::ranges::any_of(found_, [&](const Problem& found) { return found.flag == flag; });
}

std::string Problems::NameOf(std::string_view flag) const {
  const std::optional<Place> place = PlaceOf(flag);
  return place ? fmt::format("{} (line {})", KeyOf(flag), place->line) : fmt::format("--{}", flag);
}

std::vector<std::string> Problems::Sentences() const {
  std::vector<Problem> sorted = found_;
  std::ranges::stable_sort(sorted, {}, [](const Problem& problem) {
    return problem.place ? std::tuple(0, problem.place->line, problem.place->column)
                         : std::tuple(1, 0, 0);
  });
  std::vector<std::string> sentences;
  for (const Problem& problem : sorted) {
    if (sentences.size() == kMostSentences) {
      sentences.push_back(fmt::format("and {} more", sorted.size() - kMostSentences));
      break;
    }
    std::string text =
        problem.place ? fmt::format("{}:{}:{}: ", file_, problem.place->line, problem.place->column)
                      : std::string();
    if (!problem.flag.empty()) {
      text += problem.place ? KeyOf(problem.flag) + ": " : fmt::format("--{}: ", problem.flag);
    }
    sentences.push_back(text + problem.sentence);
  }
  return sentences;
}

}  // namespace sparsed::server
