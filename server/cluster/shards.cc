#include "server/cluster/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

namespace sparsed::server {
namespace {

constexpr size_t kUploadDigits = 16;
constexpr std::string_view kColumns = "/columns", kRowNumbers = "/rows";

std::string_view SuffixOf(ShardName::Part part) {
  switch (part) {
    case ShardName::Part::kRows:
      break;
    case ShardName::Part::kColumns:
      return kColumns;
    case ShardName::Part::kRowNumbers:
      return kRowNumbers;
  }
  return {};
}

}  // namespace

bool IsUpload(std::string_view text) {
  return text.size() == kUploadDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string ToString(const ShardName& name) {
  return fmt::format("{}{}/{}{}", kShardPrefix, name.upload, name.index, SuffixOf(name.part));
}

std::optional<ShardName> ParseShardName(std::string_view name) {
  if (!name.starts_with(kShardPrefix)) return std::nullopt;
  std::string_view rest = name.substr(kShardPrefix.size());
  ShardName parsed;
  parsed.upload = std::string(rest.substr(0, kUploadDigits));
  if (!IsUpload(parsed.upload)) return std::nullopt;
  rest.remove_prefix(kUploadDigits);
  for (const auto part : {ShardName::Part::kColumns, ShardName::Part::kRowNumbers}) {
    if (!rest.ends_with(SuffixOf(part))) continue;
    parsed.part = part;
    rest.remove_suffix(SuffixOf(part).size());
    break;
  }
  if (rest.size() < 2 || rest.front() != '/') return std::nullopt;
  rest.remove_prefix(1);
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), parsed.index);
  // One name for each, without signs and leading zeros.
  if (error != std::errc() || end != rest.data() + rest.size() || parsed.index < 0 ||
      parsed.index >= kMostShards || rest != fmt::format("{}", parsed.index)) {
    return std::nullopt;
  }
  return parsed;
}

std::string ToString(const ShardBuffer& buffer) {
  return fmt::format("{}/{}", ToString(buffer.shard), buffer.name);
}

std::optional<ShardBuffer> ParseShardBuffer(std::string_view name) {
  // After the upload, and after the index.
  const size_t first = name.find('/');
  const size_t second = first == std::string_view::npos ? first : name.find('/', first + 1);
  if (second == std::string_view::npos || second + 1 == name.size()) return std::nullopt;
  const std::optional<ShardName> shard = ParseShardName(name.substr(0, second));
  if (!shard.has_value()) return std::nullopt;
  return ShardBuffer{*shard, std::string(name.substr(second + 1))};
}

}  // namespace sparsed::server
