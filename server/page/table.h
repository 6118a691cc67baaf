// A page of a table: filtered, sorted and cut by the server.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
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

/// A table of the page.
template <typename Row>
struct PageTable {
  struct Column {
    std::string_view name;
    SortKey (*key)(const Row&);
  };
  /// That callers may sort by, the first one unless they say so.
  std::vector<Column> columns;
  /// What is searched in.
  std::string (*text)(const Row&);
  /// How it is sorted where there are no columns; null: as the rows come.
  SortKey (*order)(const Row&) = nullptr;

  absl::StatusOr<TableQuery> Parse(std::string_view text_of_query,
                                   const std::vector<std::string_view>& more = {}) const {
    std::vector<std::string_view> names;
    for (const Column& column : columns) names.push_back(column.name);
    return TableQuery::Parse(text_of_query, names, more);
  }

  /// {"total", "offset", "rows"}: those of `all` that are `shown(row)` and match the search, sorted
  /// and cut, each as `to_json(row)`.
  template <typename Shown, typename ToJson>
  nlohmann::json Answer(const PageOf& page, const std::vector<Row>& all, const Shown& shown,
                        const ToJson& to_json) const {
    const auto cut = CutPage(
        all, page,
        [&](const Row& row) {
          return shown(row) && (page.search.empty() ||
                                LowerCase(text(row)).find(page.search) != std::string::npos);
        },
        [&](const Row& row) {
          if (!columns.empty()) return columns[page.sort].key(row);
          return order == nullptr ? SortKey() : order(row);
        });
    nlohmann::json rows = nlohmann::json::array();
    for (const Row* row : cut.rows) rows.push_back(to_json(*row));
    return {{"total", cut.total}, {"offset", page.offset}, {"rows", std::move(rows)}};
  }
};

}  // namespace sparsed::server
