// What a node knows of the cluster's matrices.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "engine/catalog/name_locks.h"
#include "server/cluster/record.h"

namespace sparsed::server {

/// Records by tenant and name. Which matrix a shard is of is asked for each shard that is listed or
/// changed, and so it is not looked for among all of them.
class MatrixRecords {
 public:
  using Map = std::map<engine::NameKey, MatrixRecord>;

  Map::const_iterator begin() const { return records_.begin(); }
  Map::const_iterator end() const { return records_.end(); }
  Map::const_iterator find(const engine::NameKey& key) const { return records_.find(key); }
  Map::const_iterator lower_bound(const engine::NameKey& key) const {
    return records_.lower_bound(key);
  }

  /// In the place of the one that had its key.
  void Set(MatrixRecord record) {
    Erase(record.key);
    if (record.in_shards()) {
      wholes_[{record.key.first, record.upload}].insert(record.key.second);
    }
    engine::NameKey key = record.key;
    records_.emplace(std::move(key), std::move(record));
  }

  void Erase(const engine::NameKey& key) {
    const auto found = records_.find(key);
    if (found == records_.end()) return;
    if (const MatrixRecord& record = found->second; record.in_shards()) {
      const auto whole = wholes_.find({key.first, record.upload});
      whole->second.erase(key.second);
      if (whole->second.empty()) wholes_.erase(whole);
    }
    records_.erase(found);
  }

  /// The name of the matrix whose shards that upload of the tenant's brought, the first if there
  /// are several; empty if there is none.
  std::string WholeOf(const std::string& tenant, const std::string& upload) const {
    const auto found = wholes_.find({tenant, upload});
    return found == wholes_.end() ? std::string() : *found->second.begin();
  }

 private:
  Map records_;
  /// Names of matrices in shards, by tenant and upload.
  std::map<engine::NameKey, std::set<std::string>> wholes_;
};

}  // namespace sparsed::server
