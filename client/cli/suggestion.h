// "Did you mean": the nearest of what there is.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sparsed::cli {

/// Letters to insert, delete, replace or swap with their neighbour to make `a` of `b`.
size_t Distance(std::string_view a, std::string_view b);

/// The nearest of `known`; empty if none is near: a third of the word's letters, if it has more
/// than three, half of them where both begin alike, and at most three; or what it alone begins.
/// Upper and lower case are the same. One that has no letter in common is not near.
std::string Nearest(std::string_view word, std::span<const std::string> known);

/// The nearest of a list that a sentence ends with, which does not have the word itself: "dcsr" of
/// "unknown step 'dcs'; known: csr, dcsr, dia"; empty if there is no such list.
std::string NearestListed(std::string_view sentence);

/// "; did you mean \"list\"?", or nothing.
std::string DidYouMean(std::string_view word, std::span<const std::string> known);

}  // namespace sparsed::cli
