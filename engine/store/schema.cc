#include "engine/store/schema.h"

#include <fmt/format.h>

#include <array>
#include <optional>

namespace sparsed::engine {
namespace {

// "sprd": marks the file as ours (`PRAGMA application_id`).
constexpr int64_t kApplicationId = 0x73707264;

// Checks stand in the tables, so that what is read back need not be checked again: opening verifies
// them all. An array is a blob file and belongs to exactly one pattern, matrix, layout or buffer;
// AUTOINCREMENT because the number of a blob is never used again.
constexpr const char* kVersion1 = R"sql(
CREATE TABLE patterns(
  id INTEGER PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  rows INTEGER NOT NULL CHECK(rows >= 0),
  cols INTEGER NOT NULL CHECK(cols >= 0),
  nnz INTEGER NOT NULL CHECK(nnz >= 0),
  preparation_state TEXT NOT NULL DEFAULT '',
  preparation_detail TEXT NOT NULL DEFAULT '',
  preparation_seconds REAL NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE matrices(
  id INTEGER PRIMARY KEY,
  tenant TEXT NOT NULL,
  name TEXT NOT NULL,
  pattern INTEGER NOT NULL REFERENCES patterns(id),
  version INTEGER NOT NULL,
  created_unix_ns INTEGER NOT NULL,
  UNIQUE(tenant, name)
) STRICT;
CREATE INDEX matrices_of_pattern ON matrices(pattern);

CREATE TABLE layouts(
  id INTEGER PRIMARY KEY,
  pattern INTEGER NOT NULL REFERENCES patterns(id) ON DELETE CASCADE,
  recipe TEXT NOT NULL,
  kind TEXT NOT NULL,
  rows INTEGER NOT NULL CHECK(rows >= 0),
  cols INTEGER NOT NULL CHECK(cols >= 0),
  nnz INTEGER NOT NULL CHECK(nnz >= 0),
  transposed INTEGER NOT NULL CHECK(transposed IN (0, 1)),
  value_slots INTEGER NOT NULL CHECK(value_slots >= 0),
  build_seconds REAL NOT NULL,
  UNIQUE(pattern, recipe)
) STRICT;

CREATE TABLE layout_parameters(
  layout INTEGER NOT NULL REFERENCES layouts(id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  name TEXT NOT NULL,
  value INTEGER NOT NULL,
  PRIMARY KEY(layout, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE buffers(
  id INTEGER PRIMARY KEY,
  tenant TEXT NOT NULL,
  name TEXT NOT NULL,
  rows INTEGER NOT NULL CHECK(rows >= 0),
  cols INTEGER NOT NULL CHECK(cols >= 0),
  leading_dimension INTEGER NOT NULL CHECK(leading_dimension >= cols),
  version INTEGER NOT NULL,
  UNIQUE(tenant, name)
) STRICT;

CREATE TABLE arrays(
  blob INTEGER PRIMARY KEY AUTOINCREMENT,
  pattern INTEGER REFERENCES patterns(id) ON DELETE CASCADE,
  matrix INTEGER REFERENCES matrices(id) ON DELETE CASCADE,
  layout INTEGER REFERENCES layouts(id) ON DELETE CASCADE,
  buffer INTEGER REFERENCES buffers(id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  name TEXT NOT NULL,
  type INTEGER NOT NULL CHECK(type BETWEEN 1 AND 4),
  length INTEGER NOT NULL CHECK(length BETWEEN 0 AND 1125899906842624),
  CHECK((pattern IS NOT NULL) + (matrix IS NOT NULL) + (layout IS NOT NULL) +
        (buffer IS NOT NULL) = 1)
) STRICT;
CREATE INDEX arrays_of_pattern ON arrays(pattern);
CREATE INDEX arrays_of_matrix ON arrays(matrix);
CREATE INDEX arrays_of_layout ON arrays(layout);
CREATE INDEX arrays_of_buffer ON arrays(buffer);

CREATE TABLE plans(
  pattern INTEGER NOT NULL REFERENCES patterns(id) ON DELETE CASCADE,
  class TEXT NOT NULL,
  recipe TEXT NOT NULL,
  kernel TEXT NOT NULL,
  baseline_ms REAL NOT NULL,
  plan_ms REAL NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY(pattern, class)
) STRICT, WITHOUT ROWID;

CREATE TABLE measurements(
  id INTEGER PRIMARY KEY,
  pattern INTEGER NOT NULL REFERENCES patterns(id) ON DELETE CASCADE,
  class TEXT NOT NULL,
  recipe TEXT NOT NULL,
  kernel TEXT NOT NULL,
  device TEXT NOT NULL,
  median_ms REAL NOT NULL,
  runs INTEGER NOT NULL CHECK(runs BETWEEN 0 AND 2147483647),
  measured_unix_ns INTEGER NOT NULL,
  UNIQUE(pattern, class, recipe, kernel, device)
) STRICT;
)sql";

constexpr const char* kVersion2 = R"sql(
CREATE TABLE wanted(
  pattern INTEGER NOT NULL REFERENCES patterns(id) ON DELETE CASCADE,
  class TEXT NOT NULL,
  PRIMARY KEY(pattern, class)
) STRICT, WITHOUT ROWID;
)sql";

// The width that was timed was the signature's, but for want of memory. The new table is made when
// the old one is gone, from its pages: what is in unused ones could be damaged unnoticed.
constexpr const char* kVersion3 = R"sql(
CREATE TEMP TABLE measurements_without_k AS SELECT * FROM main.measurements;
DROP TABLE main.measurements;
CREATE TABLE measurements(
  id INTEGER PRIMARY KEY,
  pattern INTEGER NOT NULL REFERENCES patterns(id) ON DELETE CASCADE,
  class TEXT NOT NULL,
  recipe TEXT NOT NULL,
  kernel TEXT NOT NULL,
  device TEXT NOT NULL,
  k INTEGER NOT NULL CHECK(k >= 0),
  median_ms REAL NOT NULL,
  runs INTEGER NOT NULL CHECK(runs BETWEEN 0 AND 2147483647),
  measured_unix_ns INTEGER NOT NULL,
  UNIQUE(pattern, class, recipe, kernel, device, k)
) STRICT;
INSERT INTO measurements
  SELECT id, pattern, class, recipe, kernel, device,
         CAST(substr(class, instr(class, '<=') + 2) AS INTEGER), median_ms, runs, measured_unix_ns
    FROM temp.measurements_without_k;
DROP TABLE temp.measurements_without_k;
)sql";

constexpr const char* kVersion4 = R"sql(
CREATE TABLE scrubs(
  id INTEGER PRIMARY KEY CHECK(id = 1),
  ended_unix_ns INTEGER NOT NULL
) STRICT;
)sql";

// The 16-bit types, 5 and 6. Blobs are numbered on from where they were; as in version 3, the new
// table is made when the old one is gone.
constexpr const char* kVersion5 = R"sql(
CREATE TEMP TABLE arrays_of_four_types AS SELECT * FROM main.arrays;
CREATE TEMP TABLE last_blob AS SELECT seq FROM main.sqlite_sequence WHERE name = 'arrays';
DROP TABLE main.arrays;
CREATE TABLE arrays(
  blob INTEGER PRIMARY KEY AUTOINCREMENT,
  pattern INTEGER REFERENCES patterns(id) ON DELETE CASCADE,
  matrix INTEGER REFERENCES matrices(id) ON DELETE CASCADE,
  layout INTEGER REFERENCES layouts(id) ON DELETE CASCADE,
  buffer INTEGER REFERENCES buffers(id) ON DELETE CASCADE,
  position INTEGER NOT NULL,
  name TEXT NOT NULL,
  type INTEGER NOT NULL CHECK(type BETWEEN 1 AND 6),
  length INTEGER NOT NULL CHECK(length BETWEEN 0 AND 1125899906842624),
  CHECK((pattern IS NOT NULL) + (matrix IS NOT NULL) + (layout IS NOT NULL) +
        (buffer IS NOT NULL) = 1)
) STRICT;
CREATE INDEX arrays_of_pattern ON arrays(pattern);
CREATE INDEX arrays_of_matrix ON arrays(matrix);
CREATE INDEX arrays_of_layout ON arrays(layout);
CREATE INDEX arrays_of_buffer ON arrays(buffer);
INSERT INTO arrays SELECT * FROM temp.arrays_of_four_types ORDER BY blob;
DELETE FROM sqlite_sequence WHERE name = 'arrays';
INSERT INTO sqlite_sequence(name, seq) SELECT 'arrays', seq FROM temp.last_blob;
DROP TABLE temp.last_blob;
DROP TABLE temp.arrays_of_four_types;
)sql";

// A number of the pattern is a REAL, counts are a BLOB of little-endian integers: as
// kernels/features names them. What is missing, as from older catalogs, is computed when the
// pattern is prepared.
constexpr const char* kVersion6 = R"sql(
CREATE TABLE features(
  id INTEGER PRIMARY KEY,
  pattern INTEGER NOT NULL REFERENCES patterns(id) ON DELETE CASCADE,
  name TEXT NOT NULL,
  value ANY NOT NULL CHECK(typeof(value) IN ('real', 'blob')),
  UNIQUE(pattern, name)
) STRICT;
)sql";

// What a measurement was compared with, and what became of pipelines that were not measured. A
// preparation's detail said that too, in sentences about all matrices of the pattern.
constexpr const char* kVersion7 = R"sql(
ALTER TABLE measurements ADD COLUMN baseline_ms REAL NOT NULL DEFAULT 0;
ALTER TABLE measurements ADD COLUMN floor_ms REAL NOT NULL DEFAULT 0;
ALTER TABLE measurements ADD COLUMN preparation_ms REAL NOT NULL DEFAULT 0;
CREATE TABLE decisions(
  id INTEGER PRIMARY KEY,
  pattern INTEGER NOT NULL REFERENCES patterns(id) ON DELETE CASCADE,
  class TEXT NOT NULL,
  recipe TEXT NOT NULL,
  tried INTEGER NOT NULL CHECK(tried IN (0, 1)),
  reason TEXT NOT NULL,
  UNIQUE(pattern, class, recipe)
) STRICT;
UPDATE patterns SET preparation_detail = '' WHERE preparation_state = 'READY';
)sql";

// Versions of a matrix that were used, or may have been, by values that were not stored; and the
// highest that a deleted matrix had. Blobs have descriptions from here on, which older programs
// take for damage.
constexpr const char* kVersion8 = R"sql(
ALTER TABLE matrices ADD COLUMN used_version INTEGER NOT NULL DEFAULT 0;
CREATE TABLE deleted_versions(
  id INTEGER PRIMARY KEY CHECK(id = 1),
  highest INTEGER NOT NULL
) STRICT;
INSERT INTO deleted_versions(id, highest) VALUES(1, 0);
)sql";

// The name of the processor or the card that a measurement was taken on.
constexpr const char* kVersion9 = R"sql(
ALTER TABLE measurements ADD COLUMN model TEXT NOT NULL DEFAULT '';
)sql";

// The pair of patterns that SpGEMM's kernels were tried on, in columns; it was in the pipeline's
// text. What is known of pairs is found anew.
constexpr const char* kVersion10 = R"sql(
CREATE TEMP TABLE measurements_without_pair AS
  SELECT * FROM main.measurements WHERE class NOT LIKE 'spgemm%';
DROP TABLE main.measurements;
CREATE TABLE measurements(
  id INTEGER PRIMARY KEY,
  pattern INTEGER NOT NULL REFERENCES patterns(id) ON DELETE CASCADE,
  class TEXT NOT NULL,
  recipe TEXT NOT NULL,
  kernel TEXT NOT NULL,
  device TEXT NOT NULL,
  k INTEGER NOT NULL CHECK(k >= 0),
  median_ms REAL NOT NULL,
  runs INTEGER NOT NULL CHECK(runs BETWEEN 0 AND 2147483647),
  measured_unix_ns INTEGER NOT NULL,
  baseline_ms REAL NOT NULL,
  floor_ms REAL NOT NULL,
  preparation_ms REAL NOT NULL,
  model TEXT NOT NULL,
  right_pattern TEXT NOT NULL,
  transposed INTEGER NOT NULL CHECK(transposed BETWEEN 0 AND 3),
  UNIQUE(pattern, class, recipe, kernel, device, k, right_pattern, transposed)
) STRICT;
INSERT INTO measurements
  SELECT id, pattern, class, recipe, kernel, device, k, median_ms, runs, measured_unix_ns,
         baseline_ms, floor_ms, preparation_ms, model, '', 0
    FROM temp.measurements_without_pair;
DROP TABLE temp.measurements_without_pair;
CREATE TEMP TABLE decisions_without_pair AS
  SELECT * FROM main.decisions WHERE class NOT LIKE 'spgemm%';
DROP TABLE main.decisions;
CREATE TABLE decisions(
  id INTEGER PRIMARY KEY,
  pattern INTEGER NOT NULL REFERENCES patterns(id) ON DELETE CASCADE,
  class TEXT NOT NULL,
  recipe TEXT NOT NULL,
  kernel TEXT NOT NULL,
  right_pattern TEXT NOT NULL,
  transposed INTEGER NOT NULL CHECK(transposed BETWEEN 0 AND 3),
  tried INTEGER NOT NULL CHECK(tried IN (0, 1)),
  reason TEXT NOT NULL,
  UNIQUE(pattern, class, recipe, kernel, right_pattern, transposed)
) STRICT;
INSERT INTO decisions
  SELECT id, pattern, class, recipe, '', '', 0, tried, reason FROM temp.decisions_without_pair;
DROP TABLE temp.decisions_without_pair;
)sql";

// Whom buffers are for, and of those that asked for a time to live how long that is;
// the others stay.
constexpr const char* kVersion11 = R"sql(
ALTER TABLE buffers ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE buffers ADD COLUMN time_to_live_ns INTEGER NOT NULL DEFAULT 0
  CHECK(time_to_live_ns >= 0);
)sql";

// How long matrices stay that nothing uses (0: for ever), and whom their owners let use them: a
// tenant, or '*' for all.
constexpr const char* kVersion12 = R"sql(
ALTER TABLE matrices ADD COLUMN time_to_live_ns INTEGER NOT NULL DEFAULT 0
  CHECK(time_to_live_ns >= 0);
CREATE TABLE shares(
  matrix INTEGER NOT NULL REFERENCES matrices(id) ON DELETE CASCADE,
  tenant TEXT NOT NULL,
  may_write INTEGER NOT NULL CHECK(may_write IN (0, 1)),
  PRIMARY KEY(matrix, tenant)
) STRICT, WITHOUT ROWID;
)sql";

// The bytes that a measurement's roofline is of: the rate of the memory is found out by and by.
constexpr const char* kVersion13 = R"sql(
ALTER TABLE measurements ADD COLUMN compulsory_bytes REAL NOT NULL DEFAULT 0;
)sql";

// Contenders that were stopped early; and what was measured on patterns that are stored no more,
// which `gone` puts in the order in which they went.
constexpr const char* kVersion14 = R"sql(
ALTER TABLE measurements ADD COLUMN censored INTEGER NOT NULL DEFAULT 0
  CHECK(censored IN (0, 1));
CREATE TABLE past_patterns(
  id INTEGER PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  gone INTEGER NOT NULL,
  bytes INTEGER NOT NULL
) STRICT;
CREATE TABLE past_features(
  pattern INTEGER NOT NULL REFERENCES past_patterns(id) ON DELETE CASCADE,
  name TEXT NOT NULL,
  value ANY NOT NULL,
  PRIMARY KEY(pattern, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE past_measurements(
  id INTEGER PRIMARY KEY,
  pattern INTEGER NOT NULL REFERENCES past_patterns(id) ON DELETE CASCADE,
  class TEXT NOT NULL,
  recipe TEXT NOT NULL,
  kernel TEXT NOT NULL,
  device TEXT NOT NULL,
  k INTEGER NOT NULL,
  median_ms REAL NOT NULL,
  runs INTEGER NOT NULL,
  measured_unix_ns INTEGER NOT NULL,
  baseline_ms REAL NOT NULL,
  floor_ms REAL NOT NULL,
  preparation_ms REAL NOT NULL,
  model TEXT NOT NULL,
  right_pattern TEXT NOT NULL,
  transposed INTEGER NOT NULL,
  compulsory_bytes REAL NOT NULL,
  censored INTEGER NOT NULL
) STRICT;
CREATE INDEX past_measurements_of_pattern ON past_measurements(pattern);
)sql";

// How operands had best lie over GPUs, as was tried with a plan, and how buffers did; the bounds of
// one in rows are a BLOB of little-endian 64-bit integers.
constexpr const char* kVersion15 = R"sql(
ALTER TABLE plans ADD COLUMN distribution TEXT NOT NULL DEFAULT '';
ALTER TABLE plans ADD COLUMN gpus INTEGER NOT NULL DEFAULT 0
  CHECK(gpus BETWEEN 0 AND 2147483647);
ALTER TABLE plans ADD COLUMN whole_ms REAL NOT NULL DEFAULT 0;
ALTER TABLE plans ADD COLUMN best_ms REAL NOT NULL DEFAULT 0;
ALTER TABLE buffers ADD COLUMN distribution TEXT NOT NULL DEFAULT '';
ALTER TABLE buffers ADD COLUMN row_bounds BLOB NOT NULL DEFAULT x'';
)sql";

// kMigrations[v] takes version v to v + 1. A change of what a layout kind's arrays mean is a
// migration too: it deletes the layouts of that kind, and they are built again; likewise a change
// of what a feature means.
constexpr std::array<const char*, 15> kMigrations = {
    kVersion1, kVersion2,  kVersion3,  kVersion4,  kVersion5,  kVersion6,  kVersion7, kVersion8,
    kVersion9, kVersion10, kVersion11, kVersion12, kVersion13, kVersion14, kVersion15};

absl::StatusOr<int64_t> Pragma(Database& database, const char* name) {
  const absl::StatusOr<std::optional<int64_t>> value =
      database.QueryInteger(fmt::format("PRAGMA {}", name), {});
  if (!value.ok()) return value.status();
  return value->value_or(0);
}

}  // namespace

absl::Status PrepareSchema(Database& database, bool had_data) {
  const absl::StatusOr<int64_t> version = Pragma(database, "user_version");
  if (!version.ok()) return version.status();
  const absl::StatusOr<int64_t> application = Pragma(database, "application_id");
  if (!application.ok()) return application.status();
  const absl::StatusOr<std::optional<int64_t>> tables =
      database.QueryInteger("SELECT count(*) FROM sqlite_schema", {});
  if (!tables.ok()) return tables.status();

  const bool empty = *version == 0 && *application == 0 && tables->value_or(0) == 0;
  if (empty && had_data) return database.Damaged("it is empty, and was not");
  if (!empty && *application != kApplicationId) {
    return absl::FailedPreconditionError(
        fmt::format("{} is a database of another program; give sparsed a data directory of its own",
                    database.path()));
  }
  const auto newest = static_cast<int64_t>(kMigrations.size());
  if (*version < 0 || *version > newest) {
    return absl::FailedPreconditionError(fmt::format(
        "{} has schema version {}, written by a newer sparsed; this one knows versions up to {}: "
        "run the newer program, or restore a backup made before the upgrade",
        database.path(), *version, newest));
  }
  for (int64_t v = *version; v < newest; ++v) {
    const Database::Outcome outcome = database.Transact([&] {
      return database.Execute(fmt::format("{}PRAGMA application_id = {};PRAGMA user_version = {};",
                                          kMigrations[static_cast<size_t>(v)], kApplicationId,
                                          v + 1));
    });
    if (!outcome.status.ok()) return outcome.status;
  }
  return absl::OkStatus();
}

}  // namespace sparsed::engine
