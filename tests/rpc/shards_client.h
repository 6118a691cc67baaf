// What a user of the C++ client does with a matrix in shards.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace sparsed::test {

struct ShardsCase {
  int shards = 3;
  bool partition = false;    ///< rows go to shards by turns, not in blocks
  const char* type = "f32";  ///< or f64, f16
};

/// By a client of the node at `address`: uploads, and takes every product there is, each checked
/// element by element (all numbers are whole and small, so that sums are exact); then all of it
/// again by a client of the node at `other`, which has to ask what the matrix is made of.
/// Downloads, renames, replaces and deletes it.
absl::Status UseShards(const std::string& address, const std::string& other,
                       const ShardsCase& with);

struct OwnRowsCase {
  int shards = 3;
  bool partition = false;  ///< runs of rows go to shards by turns
  const char* type = "f32";
  int64_t rows = 300, cols = 300;
  bool far = false;     ///< no row names a row of operands that its own shard's node has
  bool copies = false;  ///< products are to copy rows of a node's own
};
/// Bytes of rows at all nodes, by their metrics.
struct RowTraffic {
  int64_t received = 0, copied = 0;
};
/// Uploads "g", multiplies with operands and results that stay on the nodes, in turns and several
/// at once; checks results, and what each product moved. Deletes "g".
absl::Status IterateInShards(const std::string& address, const OwnRowsCase& with,
                             const std::function<RowTraffic()>& traffic);
/// Shards of a 6 x 6 matrix as clients made them that numbered only columns which are named: rows 0
/// to 2, of whose node's rows one is not named, and 3 to 5. `upload`: of their names.
absl::Status UploadShardsAsBefore(const std::string& address, const std::string& upload);
/// Of the matrix that is made of these, with 5 columns.
absl::Status HoldInShardsAsBefore(const std::string& address, const std::string& name);
/// With its buffer "x".
absl::Status MultiplyHeldInShards(const std::string& address, const std::string& name);

/// What is to be refused, is, with its code and a sentence.
absl::Status MisuseShards(const std::string& address);

/// Of a server that is no node of a cluster.
absl::Status UploadShardsTo(const std::string& address);

/// Uploads one, for the test to do something to nodes; checks products of it, by a client that
/// knows nothing of it.
absl::Status UploadInShards(const std::string& address, const std::string& name, int shards = 3);
/// Likewise, with `meanwhile` done once half of it was sent.
absl::Status UploadInShardsWith(const std::string& address, const std::string& name,
                                const std::function<void()>& meanwhile);
absl::Status MultiplyInShards(const std::string& address, const std::string& name);
/// A buffer that stays.
absl::Status PutForShards(const std::string& address, const std::string& name);
/// With operands and results that stay on the nodes.
absl::Status HoldInShards(const std::string& address, const std::string& name);

}  // namespace sparsed::test
