#include "server/cluster/shard_rows.h"

#include <cmath>

namespace sparsed::server {
namespace {

/// Row r of what shard i has of an operand is number i * kRowsOfShard + r, which an f64 holds.
constexpr int64_t kRowsOfShard = int64_t{1} << 31;

/// Whether it is all of so many rows, one after the other in the operand.
bool IsWhole(const ShardRows::Part& part, int64_t rows) {
  if (rows == 0 || static_cast<int64_t>(part.rows.size()) != rows) return false;
  for (size_t j = 0; j < part.rows.size(); ++j) {
    if (part.rows[j] != j || part.places[j] != part.places.front() + j) return false;
  }
  return true;
}

}  // namespace

int64_t ShardRows::bytes() const {
  size_t bytes = sizeof(ShardRows) + parts.size() * sizeof(Part);
  for (const Part& part : parts) {
    bytes += (part.rows.capacity() + part.places.capacity()) * sizeof(uint32_t);
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<ShardRows> ReadShardRows(const engine::Matrix& columns, size_t shards, size_t own,
                                        int64_t own_rows) {
  const absl::StatusOr<Array> values = columns.Values();
  if (!values.ok()) return values.status();
  const auto unknown = [] {
    return absl::FailedPreconditionError(
        "the matrix was uploaded before its shards said where rows of operands are: upload it "
        "again to use buffers with it");
  };
  const int64_t count = columns.pattern()->rows();
  // As many as it has rows, or a row of it has several.
  if (values->type != ElementType::kF64 || values->length != count) return unknown();
  ShardRows read;
  read.parts.resize(shards);
  read.count = count;
  uint32_t place = 0;
  for (const double value : values->As<double>()) {
    const double shard = std::floor(value / static_cast<double>(kRowsOfShard));
    if (!(shard >= 0 && shard < static_cast<double>(shards)) || value != std::floor(value)) {
      return unknown();
    }
    ShardRows::Part& of = read.parts[static_cast<size_t>(shard)];
    of.rows.push_back(static_cast<uint32_t>(value - shard * static_cast<double>(kRowsOfShard)));
    of.places.push_back(place++);
  }
  ShardRows::Part& mine = read.parts[own];
  if (count <= 2 * own_rows && IsWhole(mine, own_rows)) {
    const int64_t above = mine.places.front();
    read.halo = engine::Halo{above, count - above - own_rows};
    mine = {};
  }
  for (ShardRows::Part& part : read.parts) {
    part.rows.shrink_to_fit();
    part.places.shrink_to_fit();
  }
  return read;
}

}  // namespace sparsed::server
