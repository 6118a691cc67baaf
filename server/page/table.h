// A page of a table: filtered, sorted and cut by the server.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>
#include <vector>

#include "server/page/query.h"

namespace sparsed::server {

/// What a row is sorted by: a number, or a text; a number of 0 that means "not known" comes last,
/// whatever the order.
struct SortKey {
  double number = 0;
  std::string_view text{};
  bool known = true;
};

template <typename Row>
struct RowsOfPage {
  std::vector<const Row*> rows;
  int64_t total = 0;  ///< that match
};

/// `shown(row)`: it is the viewer's and matches the search. `key(row)`: of the page's column. Equal
/// rows keep their order.
template <typename Row, typename Shown, typename Key>
RowsOfPage<Row> CutPage(const std::vector<Row>& all, const PageOf& page, const Shown& shown,
                        const Key& key) {
  struct Entry {
    SortKey key;
    const Row* row;
  };
  std::vector<Entry> entries;
  for (const Row& row : all) {
    if (shown(row)) entries.push_back({key(row), &row});
  }
  const auto before = [&](const Entry& a, const Entry& b) {
    if (a.key.known != b.key.known) return a.key.known;
    const Entry& first = page.descending ? b : a;
    const Entry& second = page.descending ? a : b;
    if (first.key.number != second.key.number) return first.key.number < second.key.number;
    if (first.key.text != second.key.text) return first.key.text < second.key.text;
    return a.row < b.row;
  };
  RowsOfPage<Row> result;
  result.total = static_cast<int64_t>(entries.size());
  const auto begin = std::min(result.total, page.offset);
  const auto end = std::min(result.total, page.offset + page.limit);
  std::partial_sort(entries.begin(), entries.begin() + end, entries.end(), before);
  for (int64_t i = begin; i < end; ++i) {
    result.rows.push_back(entries[static_cast<size_t>(i)].row);
  }
  return result;
}

}  // namespace sparsed::server
