// Operands of products with matrices in shards that stay on the nodes: each shard's node has the
// rows of a buffer that are the shard's, and gets those of the others' that its columns name. As
// the processes of Mukhopadhyay et al., "Sparsity-Aware Communication for Distributed Graph Neural
// Network Training" (ICPP 2024), section 3, but that who receives says what it needs.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "engine/memory/budget.h"
#include "server/cluster/cluster.h"
#include "server/cluster/shard_rows.h"
#include "server/cluster/shards.h"

namespace sparsed::server {
namespace {

/// Of one request to a node: what it takes to say them is below wire::kMaxControlBytes, which every
/// server takes, and what comes is made at once.
constexpr size_t kMostRowsAsked = size_t{1} << 17;
constexpr size_t kMostBytesAsked = size_t{64} << 20;

/// A part of the buffer.
struct PartOfBuffer {
  std::string name;
  std::string address;                    ///< of the node that has it; empty: it is here
  engine::HeldDenseLease here = nullptr;  ///< then
};

/// An operand that is put together.
struct Gather {
  std::string tenant;
  std::shared_ptr<const ShardRows> rows;
  size_t own = 0;                   ///< the shard whose product it is for
  std::vector<PartOfBuffer> parts;  ///< by shard
  uint64_t version = 0;
  engine::DenseShape shape;
  Transport& transport;
  RowTraffic& traffic;
  const std::function<bool()>& stopped;

  size_t row_bytes() const { return static_cast<size_t>(shape.cols) * SizeOf(shape.type); }
};

absl::Status PutAgain(std::string_view buffer, std::string_view why) {
  return absl::FailedPreconditionError(
      fmt::format("\"{}\" {}: put it for the matrix (again)", buffer, why));
}

/// Rows of an operand that a shard's node has, as clients put it.
int64_t RowsOfPart(const MatrixRecord& whole, size_t shard) {
  if (whole.rows == whole.cols) return whole.shards[shard].rows;
  const auto i = static_cast<int64_t>(shard), count = static_cast<int64_t>(whole.shards.size());
  return whole.cols * (i + 1) / count - whole.cols * i / count;
}

/// Rows that are here, from memory whose rows begin so many bytes apart.
struct RowsHere {
  Array elements;
  size_t stride = 0;
};
absl::StatusOr<RowsHere> Read(const engine::HeldDense& held) {
  absl::StatusOr<Array> elements = held.elements->Get();
  if (!elements.ok()) return elements.status();
  const int64_t stride = std::max(held.shape.leading_dimension, held.shape.cols);
  return RowsHere{*std::move(elements), static_cast<size_t>(stride) * SizeOf(held.shape.type)};
}

/// Writes all rows into the operand that begins at `to` but those of the shard's own node that are
/// one after the other there.
absl::Status FillHalo(const Gather& gather, std::byte* to) {
  const size_t row_bytes = gather.row_bytes();
  const size_t at_once =
      std::clamp(kMostBytesAsked / std::max(row_bytes, size_t{1}), size_t{1}, kMostRowsAsked);
  WantedRows wanted{gather.tenant, gather.version, gather.shape.cols, gather.shape.type, {}};
  std::vector<std::span<const uint32_t>> places;  // of what is wanted
  for (size_t i = 0; i < gather.parts.size(); ++i) {
    const PartOfBuffer& part = gather.parts[i];
    const ShardRows::Part& of = gather.rows->parts[i];
    if (part.here != nullptr) continue;
    for (size_t first = 0; first < of.rows.size(); first += at_once) {
      const size_t count = std::min(at_once, of.rows.size() - first);
      const std::span rows = std::span(of.rows).subspan(first, count);
      wanted.from.push_back({part.address, part.name, {rows.begin(), rows.end()}});
      places.push_back(std::span(of.places).subspan(first, count));
    }
  }
  const std::unique_ptr<Transport::Fetch> fetch =
      wanted.from.empty() ? nullptr : gather.transport.Begin(std::move(wanted));
  // Those that are here, while the others come.
  for (size_t i = 0; i < gather.parts.size(); ++i) {
    const engine::HeldDenseLease& here = gather.parts[i].here;
    const ShardRows::Part& of = gather.rows->parts[i];
    if (here == nullptr || of.rows.empty()) continue;
    const absl::StatusOr<RowsHere> from = Read(*here);
    if (!from.ok()) return from.status();
    for (size_t j = 0; j < of.rows.size(); ++j) {
      if (of.rows[j] >= here->shape.rows) {
        return PutAgain(gather.parts[i].name, "has too few rows");
      }
      std::memcpy(to + of.places[j] * row_bytes,
                  from->elements.buffer.data() + of.rows[j] * from->stride, row_bytes);
    }
    gather.traffic.copied += static_cast<int64_t>(of.rows.size() * row_bytes);
  }
  if (fetch == nullptr) return absl::OkStatus();
  const auto take = [&](size_t i, uint64_t offset, std::span<const std::byte> bytes) {
    gather.traffic.received += static_cast<int64_t>(bytes.size());
    while (!bytes.empty()) {
      const size_t row = offset / row_bytes, in_row = offset % row_bytes;
      const size_t count = std::min(bytes.size(), row_bytes - in_row);
      std::memcpy(to + places[i][row] * row_bytes + in_row, bytes.data(), count);
      bytes = bytes.subspan(count);
      offset += count;
    }
  };
  return fetch->Finish(take, gather.stopped);
}

/// In memory of its own.
absl::StatusOr<std::shared_ptr<engine::LazyArray>> LoadRows(const Gather& gather,
                                                            engine::Budget& budget) {
  MemorySource& memory =
      budget.Source(engine::MemoryUse::kRequests, &budget.OwnerOf(gather.tenant));
  absl::StatusOr<Array> whole =
      AllocateArray(memory, "elements", gather.shape.type, gather.shape.elements());
  if (!whole.ok()) return whole.status();
  std::byte* const to = whole->buffer.mutable_data();
  if (gather.rows->halo.has_value()) {
    const engine::HeldDense& mine = *gather.parts[gather.own].here;
    const absl::StatusOr<RowsHere> from = Read(mine);
    if (!from.ok()) return from.status();
    const size_t row_bytes = gather.row_bytes();
    std::byte* const own = to + static_cast<size_t>(gather.rows->halo->above) * row_bytes;
    for (size_t j = 0; j < static_cast<size_t>(mine.shape.rows); ++j) {
      std::memcpy(own + j * row_bytes, from->elements.buffer.data() + j * from->stride, row_bytes);
    }
    gather.traffic.copied += mine.shape.rows * static_cast<int64_t>(row_bytes);
  }
  if (absl::Status filled = FillHalo(gather, to); !filled.ok()) return filled;
  return std::make_shared<engine::LazyArray>(*std::move(whole));
}

/// Where the shard's own rows lie, if there is room around them.
absl::StatusOr<std::shared_ptr<engine::LazyArray>> OperandOf(const Gather& gather,
                                                             engine::Budget& budget) {
  const std::shared_ptr<engine::HaloedDense>& haloed = gather.parts[gather.own].here->haloed;
  if (haloed == nullptr || gather.rows->halo != haloed->halo()) return LoadRows(gather, budget);
  return haloed->Filled([&](std::byte* operand) { return FillHalo(gather, operand); },
                        gather.stopped);
}

}  // namespace

absl::Status Cluster::RouteBuffer(const std::string& tenant, std::string_view buffer) {
  const std::optional<ShardBuffer> part = ParseShardBuffer(buffer);
  if (!part.has_value()) return absl::OkStatus();
  const std::string shard = ToString(part->shard);
  const std::optional<MatrixRecord> record = RecordOf({tenant, shard});
  if (!record.has_value() || record->deleted) return engine::NoMatrix(shard);
  if (IsMine(*record)) return absl::OkStatus();
  if (IsAlive(record->owner())) return Redirect(shard, {record->owner()}, record->epoch);
  return absl::UnavailableError(fmt::format("the node {}, which has rows of \"{}\", is not there",
                                            record->owner(), part->name));
}

void Cluster::DropBuffersOf(const engine::NameKey& shard) {
  if (!ParseShardName(shard.second).has_value()) return;
  engine::DenseCatalog& dense = engine_.dense();
  for (const engine::HeldDenseLease& held : dense.List(shard.first, shard.second + "/")) {
    dense.Delete(shard.first, held->name).IgnoreError();
  }
  const MutexLock lock(shard_rows_mutex_);
  shard_rows_.erase({shard.first, shard.second + "/columns"});
}

absl::StatusOr<std::shared_ptr<const ShardRows>> Cluster::RowsOfShard(const std::string& tenant,
                                                                      const MatrixRecord& whole,
                                                                      const ShardName& shard) {
  ShardName part = shard;
  part.part = ShardName::Part::kColumns;
  const engine::NameKey key(tenant, ToString(part));
  const auto columns = engine_.catalog().Find(tenant, key.second);
  if (!columns.ok()) {
    return absl::UnavailableError(
        fmt::format("the node {} has not got the column numbers of {} yet", options_.self.name,
                    ToString(shard)));
  }
  {
    const MutexLock lock(shard_rows_mutex_);
    const auto known = shard_rows_.find(key);
    if (known != shard_rows_.end() && known->second.columns.lock() == *columns) {
      return known->second.rows;
    }
  }
  const auto index = static_cast<size_t>(shard.index);
  absl::StatusOr<ShardRows> read =
      ReadShardRows(**columns, whole.shards.size(), index, RowsOfPart(whole, index));
  if (!read.ok()) return read.status();
  engine::Budget& budget = engine_.budget();
  const absl::StatusOr<engine::Budget::Charge> charge = budget.Count(
      static_cast<size_t>(read->bytes()), engine::MemoryUse::kMatrices, &budget.OwnerOf(tenant));
  if (charge.ok()) read->charge = *charge;
  auto rows = std::make_shared<const ShardRows>(*std::move(read));
  // Without memory for it, it is read for each product.
  if (!charge.ok()) return rows;
  {
    const MutexLock lock(shard_rows_mutex_);
    std::erase_if(shard_rows_, [](const auto& entry) { return entry.second.columns.expired(); });
    shard_rows_[key] = {*columns, rows};
  }
  // Who deletes the shard meanwhile may have looked for them before they were there.
  const auto still = engine_.catalog().Find(tenant, key.second);
  if (!still.ok() || *still != *columns) {
    const MutexLock lock(shard_rows_mutex_);
    const auto stale = shard_rows_.find(key);
    if (stale != shard_rows_.end() && stale->second.rows == rows) shard_rows_.erase(stale);
  }
  return rows;
}

absl::StatusOr<engine::Halo> Cluster::HaloOf(const std::string& tenant, std::string_view buffer,
                                             const engine::DenseShape& shape) {
  const std::optional<ShardBuffer> part = ParseShardBuffer(buffer);
  if (!part.has_value()) return engine::Halo();
  const std::string whole = WholeOf({tenant, ToString(part->shard)});
  const std::optional<MatrixRecord> record = RecordOf({tenant, whole});
  const auto index = static_cast<size_t>(part->shard.index);
  if (whole.empty() || !record.has_value()) {
    return absl::UnavailableError(
        fmt::format("the node {} has yet to hear of the matrix that {} is a shard of",
                    options_.self.name, ToString(part->shard)));
  }
  if (index >= record->shards.size() || shape.rows != RowsOfPart(*record, index)) {
    return engine::Halo();
  }
  const auto rows = RowsOfShard(tenant, *record, part->shard);
  if (absl::IsUnavailable(rows.status())) return rows.status();
  // A product says what is wrong with them.
  return rows.ok() ? (*rows)->halo.value_or(engine::Halo()) : engine::Halo();
}

absl::Status Cluster::CheckBuffer(const std::string& tenant, std::string_view buffer) const {
  const std::optional<ShardBuffer> part = ParseShardBuffer(buffer);
  if (!part.has_value() || engine_.dense().Find(tenant, buffer).ok()) return absl::OkStatus();
  return PutAgain(part->name, "is not there, or not all of it");
}

absl::Status Cluster::GatherOperand(const std::string& tenant, const std::string& matrix,
                                    engine::OperandSpec& operand,
                                    const std::function<bool()>& stopped) {
  const std::optional<ShardBuffer> own = ParseShardBuffer(operand.held);
  if (!own.has_value()) return absl::OkStatus();
  if (ToString(own->shard) != matrix) {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" has rows for the shard {}, and \"{}\" is another matrix", operand.held,
                    ToString(own->shard), matrix));
  }
  const std::string whole = WholeOf({tenant, matrix});
  const std::optional<MatrixRecord> record = RecordOf({tenant, whole});
  if (whole.empty() || !record.has_value() ||
      own->shard.index >= static_cast<int>(record->shards.size())) {
    return engine::NoMatrix(matrix);
  }
  const auto index = static_cast<size_t>(own->shard.index);
  Gather gather{tenant, nullptr, index, {}, 0, {}, *transport_, rows_, stopped};
  for (size_t i = 0; i < record->shards.size(); ++i) {
    ShardBuffer part = *own;
    part.shard.index = static_cast<int>(i);
    PartOfBuffer of{ToString(part), {}};
    const std::optional<MatrixRecord> shard = RecordOf({tenant, ToString(part.shard)});
    const std::string owner = shard.has_value() ? shard->owner() : "";
    if (owner == options_.self.name) {
      const auto held = engine_.dense().Find(tenant, of.name);
      if (!held.ok()) return PutAgain(own->name, "is not there, or not all of it");
      of.here = *held;
    } else {
      const MutexLock lock(mutex_);
      const auto node = known_.nodes.find(owner);
      if (node == known_.nodes.end()) {
        return absl::UnavailableError(
            fmt::format("the node {}, which has rows of \"{}\", is not there",
                        owner.empty() ? "of a shard" : owner, own->name));
      }
      of.address = node->second.address;
    }
    gather.parts.push_back(std::move(of));
  }
  const engine::HeldDenseLease mine = gather.parts[index].here;
  if (mine == nullptr) return engine::NoMatrix(matrix);
  gather.version = mine->version;
  for (size_t i = 0; i < gather.parts.size(); ++i) {
    const PartOfBuffer& part = gather.parts[i];
    if (part.here == nullptr) continue;
    const int64_t rows = RowsOfPart(*record, i);
    if (part.here->shape.rows != rows) {
      return absl::InvalidArgumentError(
          fmt::format("\"{}\" is no operand of the matrix, which is {} x {}: shard {} has {} of "
                      "its rows, not {}",
                      own->name, record->rows, record->cols, i, part.here->shape.rows, rows));
    }
    if (part.here->version != mine->version || part.here->shape.cols != mine->shape.cols ||
        part.here->shape.type != mine->shape.type) {
      return PutAgain(own->name, "has parts of different products");
    }
  }
  if (operand.shape.has_value() &&
      (operand.shape->cols != mine->shape.cols || operand.shape->type != mine->shape.type)) {
    return absl::InvalidArgumentError(
        fmt::format("the operand is announced as {} columns of {}, but \"{}\" has {} of {}",
                    operand.shape->cols, Name(operand.shape->type), own->name, mine->shape.cols,
                    Name(mine->shape.type)));
  }
  auto rows = RowsOfShard(tenant, *record, own->shard);
  if (!rows.ok()) return rows.status();
  gather.rows = *std::move(rows);
  gather.shape = {.rows = gather.rows->count,
                  .cols = mine->shape.cols,
                  .leading_dimension = mine->shape.cols,
                  .type = mine->shape.type};
  if (absl::Status valid = engine::ValidateSizes("the operand", gather.shape); !valid.ok()) {
    return valid;
  }
  absl::StatusOr<std::shared_ptr<engine::LazyArray>> elements = OperandOf(gather, engine_.budget());
  if (!elements.ok()) return elements.status();
  engine::HeldDense gathered;
  gathered.tenant = tenant;
  gathered.name = operand.held;
  gathered.shape = gather.shape;
  gathered.version = mine->version;
  gathered.elements = *std::move(elements);
  operand.shape.reset();
  operand.held.clear();
  operand.found = std::make_shared<const engine::HeldDense>(std::move(gathered));
  return absl::OkStatus();
}

}  // namespace sparsed::server
