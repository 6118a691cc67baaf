#include "server/cluster/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/cluster/shards.h"

namespace sparsed::server {
namespace {

using nlohmann::json;

/// Calls `read` with the object; INVALID_ARGUMENT for what is no such thing.
template <typename Record, typename Read>
absl::StatusOr<Record> Parse(std::string_view text, const char* what, const Read& read) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  absl::Status wrong =
      absl::InvalidArgumentError(fmt::format("the directory has no {} there", what));
  if (!object.is_object()) return wrong;
  try {
    Record record;
    read(object, record);
    return record;
  } catch (const json::exception&) {
    return wrong;
  }
}

const MatrixCopy* At(const std::vector<MatrixCopy>& copies, std::string_view node) {
  const auto found = std::ranges::find(copies, node, &MatrixCopy::node);
  return found == copies.end() ? nullptr : &*found;
}

json JsonOf(const std::vector<MatrixCopy>& copies) {
  json list = json::array();
  for (const MatrixCopy& copy : copies) {
    list.push_back({{"node", copy.node},
                    {"created_unix_ns", copy.identity.created_unix_ns},
                    {"version", copy.identity.version}});
  }
  return list;
}

std::vector<MatrixCopy> CopiesOf(const json& list) {
  std::vector<MatrixCopy> copies;
  for (const json& copy : list) {
    copies.push_back(
        {copy.at("node").get<std::string>(),
         {copy.at("created_unix_ns").get<int64_t>(), copy.at("version").get<uint64_t>()}});
  }
  return copies;
}

/// The whole's sizes are those of its shards, which no node has a copy of.
bool FitsItsShards(const MatrixRecord& record) {
  int64_t rows = 0, nnz = 0;
  for (const ShardRecord& shard : record.shards) {
    if (shard.rows < 1 || shard.rows > record.rows - rows || shard.cols < 0 ||
        shard.cols > record.cols || shard.nnz < 0 || shard.nnz > record.nnz - nnz) {
      return false;
    }
    rows += shard.rows;
    nnz += shard.nnz;
  }
  return rows == record.rows && nnz == record.nnz && IsUpload(record.upload) &&
         record.shards.size() <= kMostShards && record.copies.empty() && record.previous.empty();
}

}  // namespace

std::string ToJson(const NodeRecord& record) {
  return json{{"name", record.name},
              {"address", record.address},
              {"devices", record.devices},
              {"memory_bytes", record.memory_bytes},
              {"free_memory_bytes", record.free_memory_bytes},
              {"run", record.run}}
      .dump();
}

absl::StatusOr<NodeRecord> ParseNodeRecord(std::string_view text) {
  return Parse<NodeRecord>(text, "node", [](const json& object, NodeRecord& record) {
    object.at("name").get_to(record.name);
    object.at("address").get_to(record.address);
    object.at("devices").get_to(record.devices);
    object.at("memory_bytes").get_to(record.memory_bytes);
    object.at("free_memory_bytes").get_to(record.free_memory_bytes);
    // Servers that were before there was such a number write none.
    record.run = object.value("run", "");
  });
}

CopyIdentity IdentityOf(const engine::Matrix& matrix) {
  return {matrix.created_unix_ns(), matrix.version()};
}

const MatrixCopy* MatrixRecord::CopyAt(std::string_view node) const { return At(copies, node); }

const MatrixCopy* MatrixRecord::PreviousAt(std::string_view node) const {
  return At(previous, node);
}

bool MatrixRecord::Knows(std::string_view node) const {
  return CopyAt(node) != nullptr || PreviousAt(node) != nullptr ||
         std::ranges::find(former, node) != former.end();
}

void MatrixRecord::MoveToFormer(std::string_view node) {
  std::erase_if(copies, [&](const MatrixCopy& copy) { return copy.node == node; });
  if (std::ranges::find(former, node) == former.end()) former.emplace_back(node);
}

std::string DirectoryKey(const engine::NameKey& key) {
  return fmt::format("{}{}{}{}", kMatricesPrefix, key.first, engine::kOwnerMark, key.second);
}

std::string ToJson(const MatrixRecord& record) {
  json shares = json::array();
  for (const engine::Share& share : record.shares) {
    shares.push_back({{"with", share.with}, {"write", share.right == engine::Right::kWrite}});
  }
  json object{{"tenant", record.key.first},
              {"name", record.key.second},
              {"rows", record.rows},
              {"cols", record.cols},
              {"nnz", record.nnz},
              {"type", record.type},
              {"pattern_hash", record.pattern_hash},
              {"epoch", record.epoch},
              {"copies", JsonOf(record.copies)},
              {"previous", JsonOf(record.previous)},
              {"former", record.former},
              {"shares", std::move(shares)},
              {"deleted", record.deleted},
              {"renamed_from", record.renamed_from}};
  if (record.in_shards()) {
    json list = json::array();
    for (const ShardRecord& shard : record.shards) {
      list.push_back({{"rows", shard.rows}, {"cols", shard.cols}, {"nnz", shard.nnz}});
    }
    object["shards"] = std::move(list);
    object["upload"] = record.upload;
    object["partitioned"] = record.partitioned;
    object["created_unix_ns"] = record.made.created_unix_ns;
    object["version"] = record.made.version;
  }
  if (!record.placed_by.empty()) object["placed_by"] = record.placed_by;
  if (record.replicas != 0) object["replicas"] = record.replicas;
  return object.dump();
}

absl::StatusOr<MatrixRecord> ParseMatrixRecord(std::string_view text) {
  absl::StatusOr<MatrixRecord> parsed =
      Parse<MatrixRecord>(text, "matrix", [](const json& object, MatrixRecord& record) {
        object.at("tenant").get_to(record.key.first);
        object.at("name").get_to(record.key.second);
        object.at("rows").get_to(record.rows);
        object.at("cols").get_to(record.cols);
        object.at("nnz").get_to(record.nnz);
        object.at("type").get_to(record.type);
        object.at("pattern_hash").get_to(record.pattern_hash);
        object.at("epoch").get_to(record.epoch);
        object.at("former").get_to(record.former);
        object.at("deleted").get_to(record.deleted);
        record.renamed_from = object.value("renamed_from", "");
        record.placed_by = object.value("placed_by", "");
        record.replicas = std::clamp(object.value("replicas", 0), 0, kMostReplicas);
        record.copies = CopiesOf(object.at("copies"));
        // Records that were written before there was such a list have none.
        record.previous = CopiesOf(object.value("previous", json::array()));
        for (const json& share : object.at("shares")) {
          record.shares.push_back(
              {share.at("with").get<std::string>(),
               share.at("write").get<bool>() ? engine::Right::kWrite : engine::Right::kRead});
        }
        if (!object.contains("shards")) return;
        for (const json& shard : object.at("shards")) {
          record.shards.push_back({shard.at("rows").get<int64_t>(), shard.at("cols").get<int64_t>(),
                                   shard.at("nnz").get<int64_t>()});
        }
        object.at("upload").get_to(record.upload);
        object.at("partitioned").get_to(record.partitioned);
        object.at("created_unix_ns").get_to(record.made.created_unix_ns);
        object.at("version").get_to(record.made.version);
      });
  if (parsed.ok() && parsed->in_shards()) {
    if (!parsed->deleted && FitsItsShards(*parsed)) return parsed;
    return absl::InvalidArgumentError("the directory has a matrix that its shards do not make");
  }
  if (parsed.ok() && !parsed->deleted && parsed->copies.empty()) {
    return absl::InvalidArgumentError("the directory has a matrix that no node has");
  }
  return parsed;
}

}  // namespace sparsed::server
