// Shards: matrices that are rows of a larger one, by their names alone.
//
// A matrix in shards has a record that says how many there are and which upload they are of; each
// shard is a matrix like any other, with an owner, copies and a record, under a name that says the
// upload and its number. So all that nodes do for matrices they do for shards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sparsed::server {

inline constexpr std::string_view kShardPrefix = "shards:";
inline constexpr int kMostShards = 1024;

struct ShardName {
  /// The rows; which columns of the whole they name; which rows of the whole they are.
  enum class Part : uint8_t { kRows, kColumns, kRowNumbers };

  std::string upload;  ///< 16 of [0-9a-f]
  int index = 0;       ///< below kMostShards
  Part part = Part::kRows;
};
bool IsUpload(std::string_view text);
/// "shards:0123456789abcdef/7", "shards:0123456789abcdef/7/columns", ".../rows".
std::string ToString(const ShardName& name);
/// None: it is a matrix by itself.
std::optional<ShardName> ParseShardName(std::string_view name);

/// The rows of a buffer that are a shard's: a buffer by itself, at the node that owns the shard.
struct ShardBuffer {
  ShardName shard;   ///< its rows
  std::string name;  ///< that the client gave all of it
};
/// "shards:0123456789abcdef/7/x".
std::string ToString(const ShardBuffer& buffer);
/// None: it is a buffer by itself.
std::optional<ShardBuffer> ParseShardBuffer(std::string_view name);

}  // namespace sparsed::server
