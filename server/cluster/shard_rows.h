// Which rows of operands that stay on the nodes a shard's product takes, and from which of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/catalog/haloed_dense.h"
#include "engine/catalog/matrix.h"
#include "engine/memory/budget.h"

namespace sparsed::server {

/// Of one shard. The operand of its product has a row for each of its columns.
struct ShardRows {
  /// Rows of what another shard's node, or its own, has, and where in the operand they go.
  struct Part {
    std::vector<uint32_t> rows;
    std::vector<uint32_t> places;
  };
  std::vector<Part> parts;  ///< by shard
  int64_t count = 0;        ///< of the operand's rows
  /// All rows of its own node are one after the other in the operand, from row `halo->above` on;
  /// its own part has none. They may be multiplied with where they lie, as there are no more others
  /// than these. None: its own part says which, and where.
  std::optional<engine::Halo> halo;
  engine::Budget::Charge charge;  ///< null: nothing counts it

  int64_t bytes() const;
};

/// `columns`: the matrix of the shard's columns, whose value in row j says where row j of operands
/// is (UploadOptions::shards); there are `shards`, and the node of shard `own` has `own_rows` rows.
/// FAILED_PRECONDITION if it says no such thing, as it was uploaded by an earlier version. May read
/// the disk.
absl::StatusOr<ShardRows> ReadShardRows(const engine::Matrix& columns, size_t shards, size_t own,
                                        int64_t own_rows);

}  // namespace sparsed::server
