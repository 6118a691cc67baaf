#include "server/page/query.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace sparsed::server {
namespace {

constexpr size_t kMaxBytes = 512;
constexpr int64_t kMaxOffset = 1'000'000'000;

std::optional<int> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

absl::StatusOr<std::string> Decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+') {
      decoded += ' ';
      continue;
    }
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const auto high = i + 2 < text.size() ? HexDigit(text[i + 1]) : std::nullopt;
    const auto low = i + 2 < text.size() ? HexDigit(text[i + 2]) : std::nullopt;
    if (!high || !low) {
      return absl::InvalidArgumentError("a '%' of the address has no two hexadecimal digits");
    }
    decoded += static_cast<char>(*high * 16 + *low);
    i += 2;
  }
  return decoded;
}

}  // namespace

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower;
}

absl::StatusOr<Query> Query::Parse(std::string_view text,
                                   const std::vector<std::string_view>& known) {
  Query query;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    const auto place = std::ranges::find(known, name);
    if (place == known.end()) {
      return absl::InvalidArgumentError(
          fmt::format("there is no such parameter; there are: {}", fmt::join(known, ", ")));
    }
    absl::StatusOr<std::string> value =
        Decoded(equals == std::string_view::npos ? "" : part.substr(equals + 1));
    if (!value.ok()) return value.status();
    if (value->size() > kMaxBytes) {
      return absl::InvalidArgumentError(
          fmt::format("{} has {} bytes, at most {} may be", *place, value->size(), kMaxBytes));
    }
    if (!query.parameters_.emplace(name, *std::move(value)).second) {
      return absl::InvalidArgumentError(fmt::format("{} is given twice", *place));
    }
  }
  return query;
}

const std::string& Query::Text(std::string_view name) const {
  static const std::string none;
  const auto found = parameters_.find(name);
  return found == parameters_.end() ? none : found->second;
}

absl::StatusOr<int64_t> Query::Number(std::string_view name, int64_t if_missing, int64_t least,
                                      int64_t most) const {
  const auto found = parameters_.find(name);
  if (found == parameters_.end()) return if_missing;
  int64_t number = 0;
  if (!absl::SimpleAtoi(found->second, &number) || number < least || number > most) {
    return absl::InvalidArgumentError(
        fmt::format("{} must be a whole number from {} to {}", name, least, most));
  }
  return number;
}

absl::StatusOr<size_t> Query::OneOf(std::string_view name,
                                    std::span<const std::string_view> options) const {
  const auto found = parameters_.find(name);
  if (found == parameters_.end()) return 0;
  const auto option = std::ranges::find(options, found->second);
  if (option == options.end()) {
    return absl::InvalidArgumentError(
        fmt::format("{} must be one of: {}", name, fmt::join(options, ", ")));
  }
  return static_cast<size_t>(option - options.begin());
}

absl::StatusOr<TableQuery> TableQuery::Parse(std::string_view text,
                                             std::span<const std::string_view> columns,
                                             const std::vector<std::string_view>& more) {
  std::vector<std::string_view> known = {"offset", "limit", "search"};
  if (!columns.empty()) known.insert(known.end(), {"sort", "order"});
  known.insert(known.end(), more.begin(), more.end());
  absl::StatusOr<Query> query = Query::Parse(text, known);
  if (!query.ok()) return query.status();
  const absl::StatusOr<int64_t> offset = query->Number("offset", 0, 0, kMaxOffset);
  if (!offset.ok()) return offset.status();
  const absl::StatusOr<int64_t> limit = query->Number("limit", PageOf::kUsual, 1, PageOf::kMost);
  if (!limit.ok()) return limit.status();
  const absl::StatusOr<size_t> sort = query->OneOf("sort", columns);
  if (!sort.ok()) return sort.status();
  static constexpr std::array<std::string_view, 2> kOrders = {"asc", "desc"};
  const absl::StatusOr<size_t> order = query->OneOf("order", kOrders);
  if (!order.ok()) return order.status();
  PageOf page{.offset = *offset,
              .limit = *limit,
              .search = LowerCase(query->Text("search")),
              .sort = *sort,
              .descending = *order == 1};
  return TableQuery{*std::move(query), std::move(page)};
}

}  // namespace sparsed::server
