#include "engine/store/catalog_remains.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "engine/store/database.h"

namespace sparsed::engine {
namespace {

using Kind = ArrayOwner::Kind;

/// Reads the rows of `table` whose pages are whole, in the order of their ids. Column 0 of
/// `on_row`'s rows is the id.
void ReadWholeRows(Database& database, std::string_view columns, std::string_view table,
                   std::string_view id, const std::function<void(const Row&)>& on_row) {
  const std::string sql = fmt::format("SELECT {}, {} FROM {} NOT INDEXED WHERE {} > ? ORDER BY {}",
                                      id, columns, table, id, id);
  // Rows beyond a damaged page are found by looking farther and farther ahead.
  constexpr int64_t kFarthest = int64_t{1} << 32;
  int64_t last = -1;
  for (int64_t step = 0; step <= kFarthest; step = step == 0 ? 1 : 2 * step) {
    const absl::Status status = database.Query(sql, {last + step}, [&](const Row& row) {
      last = row.Integer(0);
      step = 0;
      on_row(row);
    });
    if (status.ok()) return;
  }
}

/// Descriptions of the owners of one kind, by their row's id.
using Owners = std::map<int64_t, ArrayDescription>;

Owners ReadPatterns(Database& database) {
  Owners patterns;
  ReadWholeRows(database, "hash, rows, cols, nnz", "patterns", "id", [&](const Row& row) {
    ArrayDescription& d = patterns[row.Integer(0)];
    d.owner.pattern_hash = row.Text(1);
    d.rows = row.Integer(2);
    d.cols = row.Integer(3);
    d.nnz = row.Integer(4);
  });
  return patterns;
}

Owners ReadMatrices(Database& database, const Owners& patterns) {
  Owners matrices;
  ReadWholeRows(database, "pattern, tenant, name, version, created_unix_ns", "matrices", "id",
                [&](const Row& row) {
                  const auto pattern = patterns.find(row.Integer(1));
                  if (pattern == patterns.end()) return;
                  ArrayDescription& d = matrices[row.Integer(0)];
                  d = pattern->second;
                  d.owner.kind = Kind::kMatrix;
                  d.owner.tenant = row.Text(2);
                  d.owner.name = row.Text(3);
                  d.version = static_cast<uint64_t>(row.Integer(4));
                  d.created_unix_ns = row.Integer(5);
                });
  return matrices;
}

Owners ReadBuffers(Database& database) {
  Owners buffers;
  ReadWholeRows(database, "tenant, name, rows, cols, leading_dimension, version", "buffers", "id",
                [&](const Row& row) {
                  ArrayDescription& d = buffers[row.Integer(0)];
                  d.owner = {Kind::kBuffer, "", row.Text(1), row.Text(2), ""};
                  d.rows = row.Integer(3);
                  d.cols = row.Integer(4);
                  d.leading_dimension = row.Integer(5);
                  d.version = static_cast<uint64_t>(row.Integer(6));
                });
  return buffers;
}

}  // namespace

absl::StatusOr<std::map<int64_t, ArrayDescription>> ReadCatalogRemains(FileSystem& files,
                                                                       const std::string& path) {
  std::map<int64_t, ArrayDescription> arrays;
  const absl::StatusOr<bool> there = files.Exists(path);
  if (!there.ok()) return there.status();
  if (!*there) return arrays;
  absl::StatusOr<std::unique_ptr<Database>> database = Database::OpenDamaged(files, path);
  if (absl::IsFailedPrecondition(database.status())) return database.status();
  if (!database.ok()) return arrays;
  const Owners patterns = ReadPatterns(**database);
  Owners matrices = ReadMatrices(**database, patterns);
  const Owners buffers = ReadBuffers(**database);
  const auto take = [&](const Owners& owners, const Row& row, int column) {
    const auto owner = owners.find(row.Integer(column));
    if (row.IsNull(column) || owner == owners.end()) return;
    ArrayDescription& d = arrays[row.Integer(0)];
    d = owner->second;
    d.array = row.Text(4);
  };
  const auto read_arrays = [&](const std::function<void(const Row&)>& on_row) {
    ReadWholeRows(**database, "pattern, matrix, buffer, name", "arrays", "blob", on_row);
  };
  read_arrays([&](const Row& row) {
    const auto matrix = matrices.find(row.Integer(2));
    if (matrix != matrices.end() && row.Text(4) == "value_order") {
      matrix->second.has_value_order = true;
    }
  });
  read_arrays([&](const Row& row) {
    take(patterns, row, 1);
    take(matrices, row, 2);
    take(buffers, row, 3);
  });
  return arrays;
}

}  // namespace sparsed::engine
