#include "client/cli/suggestion.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace sparsed::cli {
namespace {

/// No name is longer, and nobody waits for what is.
constexpr size_t kLongest = 255;

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return lower;
}

/// But for the dashes that flags begin with.
char FirstLetter(std::string_view word) {
  const size_t first = word.find_first_not_of('-');
  return first == word.npos ? '\0' : word[first];
}

/// Edits within which one that begins alike, or not, is near.
size_t Near(size_t letters, bool alike) {
  if (!alike) return letters > 3 ? std::min<size_t>(3, letters / 3) : 0;
  return std::min<size_t>(3, std::max<size_t>(1, letters / 2));
}

/// The only one of `known` that the word begins; null: none or several, or it is too short to tell.
const std::string* OnlyBegunBy(std::string_view word, std::span<const std::string> known) {
  const std::string* begun = nullptr;
  for (const std::string& candidate : known) {
    if (word.size() < 3 || !Lower(candidate).starts_with(word)) continue;
    if (begun != nullptr) return nullptr;
    begun = &candidate;
  }
  return begun;
}

}  // namespace

size_t Distance(std::string_view a, std::string_view b) {
  // Rows of the table of prefixes: of a's before the last, the last, and this one.
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::string Nearest(std::string_view word, std::span<const std::string> known) {
  if (word.size() > kLongest) return "";
  const std::string wanted = Lower(word);
  const std::string* nearest = nullptr;
  size_t least = kLongest;
  for (const std::string& candidate : known) {
    if (candidate.size() > kLongest) continue;
    const size_t distance = Distance(wanted, Lower(candidate));
    const bool alike = FirstLetter(wanted) == FirstLetter(Lower(candidate));
    // Something of the word has to stay: of names of one letter any would be near.
    if (distance < least && distance <= Near(word.size(), alike) &&
        distance < std::max(word.size(), candidate.size())) {
      least = distance;
      nearest = &candidate;
    }
  }
  if (nearest == nullptr) nearest = OnlyBegunBy(wanted, known);
  return nearest == nullptr ? "" : *nearest;
}

std::string NearestListed(std::string_view sentence) {
  const size_t begin = sentence.find('\'');
  const size_t end = sentence.find('\'', begin + 1);
  const size_t colon = sentence.rfind(": ");
  if (begin == sentence.npos || end == sentence.npos || colon == sentence.npos || colon < end) {
    return "";
  }
  std::vector<std::string> listed;
  for (size_t at = colon + 2; at <= sentence.size();) {
    const size_t comma = std::min(sentence.find(", ", at), sentence.size());
    listed.emplace_back(sentence.substr(at, comma - at));
    if (listed.back().find(' ') != std::string::npos) return "";  // no list of words
    at = comma + 2;
  }
  const std::string_view word = sentence.substr(begin + 1, end - begin - 1);
  const std::string nearest = Nearest(word, listed);
  return nearest == word ? "" : nearest;
}

std::string DidYouMean(std::string_view word, std::span<const std::string> known) {
  const std::string nearest = Nearest(word, known);
  return nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest);
}

}  // namespace sparsed::cli
