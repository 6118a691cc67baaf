// A bounded list of what several have, so that nobody's many push out another's few.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

namespace sparsed::server {

/// At most `most` of the elements of all lists, each of which is in the order that `before` says,
/// in that order. Each list has an equal share of the places, and what one leaves goes to the first
/// of the others.
template <typename T, typename Before>
std::vector<T> FairShare(std::vector<std::vector<T>> lists, size_t most, const Before& before) {
  std::vector<T> shares, rest;
  std::erase_if(lists, [](const std::vector<T>& list) { return list.empty(); });
  const size_t share = std::max<size_t>(1, most / std::max<size_t>(1, lists.size()));
  for (std::vector<T>& list : lists) {
    const auto middle = list.begin() + static_cast<std::ptrdiff_t>(std::min(share, list.size()));
    shares.insert(shares.end(), std::make_move_iterator(list.begin()),
                  std::make_move_iterator(middle));
    rest.insert(rest.end(), std::make_move_iterator(middle), std::make_move_iterator(list.end()));
  }
  std::ranges::stable_sort(shares, before);
  const auto cut = [](std::vector<T>& list, size_t length) {
    if (list.size() > length)
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(length), list.end());
  };
  cut(shares, most);
  std::ranges::stable_sort(rest, before);
  cut(rest, most - shares.size());
  shares.insert(shares.end(), std::make_move_iterator(rest.begin()),
                std::make_move_iterator(rest.end()));
  std::ranges::stable_sort(shares, before);
  return shares;
}

}  // namespace sparsed::server
