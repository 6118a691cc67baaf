// What stands behind the '?' of a page's address: bounded, and nothing that is not known.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sparsed::server {

class Query {
 public:
  /// Of "a=1&b=two%20words". INVALID_ARGUMENT, with a sentence, for a parameter that is not one of
  /// `known` or comes twice, for one of more than 512 bytes, and for what is no percent-encoding.
  static absl::StatusOr<Query> Parse(std::string_view text,
                                     const std::vector<std::string_view>& known);

  /// Empty if it was not given.
  const std::string& Text(std::string_view name) const;
  /// INVALID_ARGUMENT unless it is a number from `least` to `most`.
  absl::StatusOr<int64_t> Number(std::string_view name, int64_t if_missing, int64_t least,
                                 int64_t most) const;
  /// Its place among `options`, the first if it was not given. INVALID_ARGUMENT, which lists them.
  absl::StatusOr<size_t> OneOf(std::string_view name,
                               std::span<const std::string_view> options) const;

 private:
  std::map<std::string, std::string, std::less<>> parameters_;
};

/// Which part of a table is asked for.
struct PageOf {
  static constexpr int64_t kMost = 100, kUsual = 25;

  int64_t offset = 0, limit = kUsual;
  std::string search;  ///< in lower case
  size_t sort = 0;     ///< index of the column
  bool descending = false;
};

/// What is asked of a table.
struct TableQuery {
  /// The parameters offset, limit and search; sort (one of `columns`) and order (asc, desc) where
  /// there are columns; and `more`. Errors of Query::Parse.
  static absl::StatusOr<TableQuery> Parse(std::string_view text,
                                          std::span<const std::string_view> columns,
                                          const std::vector<std::string_view>& more = {});
  Query query;
  PageOf page;
};

/// ASCII letters in lower case.
std::string LowerCase(std::string_view text);

}  // namespace sparsed::server
