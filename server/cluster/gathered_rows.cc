// Operands of products with matrices in shards that stay on the nodes: each shard's node has the
// rows of a buffer that are the shard's, and gets those of the others' that its columns name. As
// the processes of Mukhopadhyay et al., "Sparsity-Aware Communication for Distributed Graph Neural
// Network Training" (ICPP 2024), section 3, but that who receives says what it needs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/memory/budget.h"
#include "server/cluster/cluster.h"
#include "server/cluster/shards.h"

namespace sparsed::server {
namespace {

/// Of one request to a node: what it takes to say them is below wire::kMaxControlBytes, which every
/// server takes, and what comes is made at once.
constexpr size_t kMostRowsAsked = size_t{1} << 17;
constexpr size_t kMostBytesAsked = size_t{64} << 20;

/// Row r of what shard i has of an operand is number i * kRowsOfShard + r, which an f64 holds.
constexpr int64_t kRowsOfShard = int64_t{1} << 31;

/// Rows of a part that this node or another one has, and where in the operand they go.
struct RowsOf {
  std::vector<uint32_t> rows;
  std::vector<uint32_t> places;
};

/// A part of the buffer.
struct PartOfBuffer {
  std::string name;
  std::string address;                    ///< of the node that has it; empty: it is here
  engine::HeldDenseLease here = nullptr;  ///< then
};

/// An operand that is put together.
struct Gather {
  std::string tenant;
  engine::MatrixLease columns;
  std::vector<PartOfBuffer> parts;  ///< by shard
  uint64_t version = 0;
  engine::DenseShape shape;
  Transport& transport;
  RowTraffic& traffic;
  engine::Budget& budget;
};

absl::Status PutAgain(std::string_view buffer, std::string_view why) {
  return absl::FailedPreconditionError(
      fmt::format("\"{}\" {}: put it for the matrix (again)", buffer, why));
}

/// By shard. FAILED_PRECONDITION if the columns' matrix does not say where their rows are.
absl::StatusOr<std::vector<RowsOf>> RowsByPart(const Gather& gather) {
  const absl::StatusOr<Array> values = gather.columns->Values();
  if (!values.ok()) return values.status();
  const auto unknown = [] {
    return absl::FailedPreconditionError(
        "the matrix was uploaded before its shards said where rows of operands are: upload it "
        "again to use buffers with it");
  };
  // As many as it has rows, or a row of it has several.
  if (values->type != ElementType::kF64 || values->length != gather.shape.rows) return unknown();
  std::vector<RowsOf> by_part(gather.parts.size());
  uint32_t place = 0;
  for (const double value : values->As<double>()) {
    const double shard = std::floor(value / static_cast<double>(kRowsOfShard));
    if (!(shard >= 0 && shard < static_cast<double>(by_part.size())) ||
        value != std::floor(value)) {
      return unknown();
    }
    RowsOf& of = by_part[static_cast<size_t>(shard)];
    of.rows.push_back(static_cast<uint32_t>(value - shard * static_cast<double>(kRowsOfShard)));
    of.places.push_back(place++);
  }
  return by_part;
}

/// Rows of an operand that a shard's node has, as clients put it.
int64_t RowsOfPart(const MatrixRecord& whole, size_t shard) {
  if (whole.rows == whole.cols) return whole.shards[shard].rows;
  const auto i = static_cast<int64_t>(shard), count = static_cast<int64_t>(whole.shards.size());
  return whole.cols * (i + 1) / count - whole.cols * i / count;
}

absl::StatusOr<Array> LoadRows(const Gather& gather, const std::function<bool()>& stopped) {
  const absl::StatusOr<std::vector<RowsOf>> by_part = RowsByPart(gather);
  if (!by_part.ok()) return by_part.status();
  const auto row_bytes = static_cast<size_t>(gather.shape.cols) * SizeOf(gather.shape.type);
  MemorySource& memory =
      gather.budget.Source(engine::MemoryUse::kRequests, &gather.budget.OwnerOf(gather.tenant));
  absl::StatusOr<Array> whole =
      AllocateArray(memory, "elements", gather.shape.type, gather.shape.elements());
  if (!whole.ok()) return whole;
  std::byte* const to = whole->buffer.mutable_data();

  const size_t at_once =
      std::clamp(kMostBytesAsked / std::max(row_bytes, size_t{1}), size_t{1}, kMostRowsAsked);
  WantedRows wanted{gather.tenant, gather.version, gather.shape.cols, gather.shape.type, {}};
  std::vector<std::vector<uint32_t>> places;  // of what is wanted
  for (size_t i = 0; i < gather.parts.size(); ++i) {
    const PartOfBuffer& part = gather.parts[i];
    const RowsOf& of = (*by_part)[i];
    if (part.here != nullptr) continue;
    for (size_t first = 0; first < of.rows.size(); first += at_once) {
      const auto begin = static_cast<std::ptrdiff_t>(first);
      const auto end = static_cast<std::ptrdiff_t>(std::min(first + at_once, of.rows.size()));
      wanted.from.push_back(
          {part.address, part.name, {of.rows.begin() + begin, of.rows.begin() + end}});
      places.emplace_back(of.places.begin() + begin, of.places.begin() + end);
    }
  }
  const std::unique_ptr<Transport::Fetch> fetch =
      wanted.from.empty() ? nullptr : gather.transport.Begin(std::move(wanted));
  // Those that are here, while the others come.
  for (size_t i = 0; i < gather.parts.size(); ++i) {
    const engine::HeldDenseLease& here = gather.parts[i].here;
    if (here == nullptr) continue;
    const absl::StatusOr<Array> elements = here->elements->Get();
    if (!elements.ok()) return elements.status();
    const std::byte* const from = elements->buffer.data();
    const size_t stride =
        static_cast<size_t>(std::max(here->shape.leading_dimension, here->shape.cols)) *
        SizeOf(here->shape.type);
    const RowsOf& of = (*by_part)[i];
    for (size_t j = 0; j < of.rows.size(); ++j) {
      if (of.rows[j] >= here->shape.rows) {
        return PutAgain(gather.parts[i].name, "has too few rows");
      }
      std::memcpy(to + of.places[j] * row_bytes, from + of.rows[j] * stride, row_bytes);
    }
  }
  if (fetch == nullptr) return whole;
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
  if (absl::Status come = fetch->Finish(take, stopped); !come.ok()) return come;
  return whole;
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
  Gather gather{tenant, nullptr, {}, 0, {}, *transport_, rows_, engine_.budget()};
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
  const engine::HeldDenseLease mine = gather.parts[static_cast<size_t>(own->shard.index)].here;
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
  ShardName columns = own->shard;
  columns.part = ShardName::Part::kColumns;
  const auto numbers = engine_.catalog().Find(tenant, ToString(columns));
  if (!numbers.ok()) {
    return absl::UnavailableError(fmt::format(
        "the node {} has not got the column numbers of {} yet", options_.self.name, matrix));
  }
  gather.columns = *numbers;
  gather.shape = {.rows = (*numbers)->pattern()->rows(),
                  .cols = mine->shape.cols,
                  .leading_dimension = mine->shape.cols,
                  .type = mine->shape.type};
  if (absl::Status valid = engine::ValidateSizes("the operand", gather.shape); !valid.ok()) {
    return valid;
  }
  absl::StatusOr<Array> rows = LoadRows(gather, stopped);
  if (!rows.ok()) return rows.status();
  engine::HeldDense gathered;
  gathered.tenant = tenant;
  gathered.name = operand.held;
  gathered.shape = gather.shape;
  gathered.version = mine->version;
  gathered.elements = std::make_shared<engine::LazyArray>(*std::move(rows));
  operand.shape.reset();
  operand.held.clear();
  operand.found = std::make_shared<const engine::HeldDense>(std::move(gathered));
  return absl::OkStatus();
}

}  // namespace sparsed::server
