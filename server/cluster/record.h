// What the directory holds: a record of each node and of each matrix, as JSON that people can read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/catalog/matrix.h"
#include "engine/catalog/shares.h"
#include "proto/wire/status_details.h"

namespace sparsed::server {

using wire::kRedirectUrl;
/// Of all keys of clusters.
inline constexpr std::string_view kDirectoryPrefix = "/sparsed/";
inline constexpr std::string_view kNodesPrefix = "/sparsed/nodes/";
inline constexpr std::string_view kMatricesPrefix = "/sparsed/matrices/";
inline constexpr std::string_view kDrainPrefix = "/sparsed/drain/";
inline constexpr std::string_view kForgottenPrefix = "/sparsed/forgotten/";

/// Nodes that may be asked for to have a matrix.
inline constexpr int kMostReplicas = 16;

/// Under the node's lease.
struct NodeRecord {
  std::string name;
  std::string address;  ///< where clients reach it
  std::vector<std::string> devices;
  int64_t memory_bytes = 0;  ///< of the host, that it may use; its weight
  int64_t free_memory_bytes = 0;
  std::string run = {};  ///< another each time that the server starts
};
std::string ToJson(const NodeRecord& record);
absl::StatusOr<NodeRecord> ParseNodeRecord(std::string_view json);

/// A version of a matrix: every upload and every change of values makes another. It is the same on
/// all nodes, and none is used twice in a cluster.
struct CopyIdentity {
  int64_t created_unix_ns = 0;
  uint64_t version = 0;

  friend bool operator==(const CopyIdentity&, const CopyIdentity&) = default;
};
CopyIdentity IdentityOf(const engine::Matrix& matrix);

struct MatrixCopy {
  std::string node;
  CopyIdentity identity;  ///< there
};

/// Rows of a matrix that are a matrix of their own, with a record of their own: see shards.h.
struct ShardRecord {
  int64_t rows = 0, cols = 0, nnz = 0;
};

struct MatrixRecord {
  engine::NameKey key;  ///< tenant, name
  int64_t rows = 0, cols = 0, nnz = 0;
  std::string type;  ///< "f32", ...
  std::string pattern_hash;
  uint64_t epoch = 0;  ///< grows with each change of the record
  /// Nodes that have what is current. The first owns it: changes are its own to make.
  std::vector<MatrixCopy> copies;
  /// Who else has the version that was acknowledged last, while a newer one has yet to be copied:
  /// if its owner is gone before that, they go on from there.
  std::vector<MatrixCopy> previous;
  /// Nodes that may have what is not current any more, to be dropped.
  std::vector<std::string> former;
  std::vector<engine::Share> shares;
  /// It stays as long as `former` has nodes, so that none of them brings the matrix back.
  bool deleted = false;
  /// Of a deleted one: a matrix of this name, the tenant's, is about to be renamed to it by the
  /// node in `former`. Empty: none is.
  std::string renamed_from;
  /// Of a matrix in shards, which no node has as a whole; else empty.
  std::vector<ShardRecord> shards;
  std::string upload;        ///< that the shards' names begin with
  bool partitioned = false;  ///< their rows are no consecutive ones: each says which they are
  CopyIdentity made;         ///< the newest of the shards
  /// How many nodes are to have it, as its upload said, up to kMostReplicas; 0: as --replicas says.
  int replicas = 0;
  /// What placement goes by: its pattern's hash, or TENANT~NAME, as when it was uploaded. Empty: it
  /// stays where it is.
  std::string placed_by = {};
  int64_t revision = 0;  ///< the directory's, of this record; 0: it is not there. Not in the JSON.

  bool in_shards() const { return !shards.empty(); }
  /// Empty for a matrix in shards: nobody's to change.
  const std::string& owner() const {
    static const std::string kNobody;
    return copies.empty() ? kNobody : copies.front().node;
  }
  /// Who has what was acknowledged last, and serves reads: nobody is to see a version that may yet
  /// be taken back.
  const std::vector<MatrixCopy>& acknowledged() const {
    return previous.empty() ? copies : previous;
  }
  /// Whether anything of it names the node.
  bool Knows(std::string_view node) const;
  /// Null if the node has none that is current.
  const MatrixCopy* CopyAt(std::string_view node) const;
  /// Likewise, of the version that was acknowledged last.
  const MatrixCopy* PreviousAt(std::string_view node) const;
  /// `node`'s copy is current no more.
  void MoveToFormer(std::string_view node);
};
/// In the directory: "/sparsed/matrices/TENANT~NAME".
std::string DirectoryKey(const engine::NameKey& key);
std::string ToJson(const MatrixRecord& record);
/// `revision` is left to the caller.
absl::StatusOr<MatrixRecord> ParseMatrixRecord(std::string_view json);

}  // namespace sparsed::server
