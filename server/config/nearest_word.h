// "Did you mean": of the words that there are, the one that somebody probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sparsed::server {

/// The one of `words` that the fewest insertions, deletions, replacements and swaps of neighbours
/// make of `word`; the first of several. Empty if all need more than a third of its letters (two of
/// a short word), or if it has more than 64 of them.
std::string NearestWord(std::string_view word, const std::vector<std::string>& words);

}  // namespace sparsed::server
