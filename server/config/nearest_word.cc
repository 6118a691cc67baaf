#include "server/config/nearest_word.h"

#include <algorithm>

namespace sparsed::server {
namespace {

constexpr size_t kMostLetters = 64;

/// Insertions, deletions, replacements and swaps of neighbours between the two.
size_t Distance(std::string_view from, std::string_view to) {
  // Rows of the usual table: the one before the last, the last, and this one.
  std::vector<size_t> before, last(to.size() + 1), row(to.size() + 1);
  for (size_t j = 0; j <= to.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= from.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (from[i - 1] != to[j - 1])});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before = last;
    last = row;
  }
  return last.back();
}

}  // namespace

std::string NearestWord(std::string_view word, const std::vector<std::string>& words) {
  if (word.size() > kMostLetters) return {};
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  std::string nearest;
  for (const std::string& known : words) {
    const size_t distance = Distance(word, known);
    if (distance >= least || distance >= word.size()) continue;
    least = distance;
    nearest = known;
  }
  return nearest;
}

}  // namespace sparsed::server
