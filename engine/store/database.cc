#include "engine/store/database.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"

namespace sparsed::engine {
namespace {

/// What SQLite's check found, without its heading, in one line.
std::string InOneLine(std::string findings) {
  if (findings.starts_with("***")) findings.erase(0, findings.find('\n') + 1);
  std::ranges::replace(findings, '\n', ' ');
  return findings;
}

struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using StatementPtr = std::unique_ptr<sqlite3_stmt, Finalize>;

int Bind(sqlite3_stmt* statement, int index, const Database::Value& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    return sqlite3_bind_int64(statement, index, *integer);
  }
  if (const auto* real = std::get_if<double>(&value)) {
    return sqlite3_bind_double(statement, index, *real);
  }
  if (const auto* blob = std::get_if<std::span<const std::byte>>(&value)) {
    // A null pointer would bind NULL.
    const void* data = blob->empty() ? static_cast<const void*>("") : blob->data();
    return sqlite3_bind_blob64(statement, index, data, blob->size(), SQLITE_STATIC);
  }
  const auto& text = std::get<std::string_view>(value);
  // A null pointer would bind NULL.
  return sqlite3_bind_text64(statement, index, text.empty() ? "" : text.data(), text.size(),
                             SQLITE_STATIC, SQLITE_UTF8);
}

}  // namespace

std::string Row::Text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  if (text == nullptr) return {};
  return {text, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

std::span<const std::byte> Row::Blob(int column) const {
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement_, column));
  if (data == nullptr) return {};
  return {data, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(FileSystem& files, std::string path) {
  std::unique_ptr<Database> database(new Database(files, std::move(path)));
  absl::Status status = database->Connect(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (status.ok()) status = database->Configure();
  if (!status.ok()) return status;
  return database;
}

absl::StatusOr<std::unique_ptr<Database>> Database::OpenDamaged(FileSystem& files,
                                                                std::string path) {
  std::unique_ptr<Database> database(new Database(files, std::move(path)));
  absl::Status status = database->Connect(SQLITE_OPEN_READWRITE);
  if (status.ok()) status = database->Execute("PRAGMA locking_mode = EXCLUSIVE");
  if (!status.ok()) return status;
  // The log stays as it is.
  sqlite3_db_config(database->connection_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  return database;
}

absl::Status Database::Connect(int flags) {
  // The caller's lock keeps threads apart.
  const int code =
      sqlite3_open_v2(path_.c_str(), &connection_,
                      flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, vfs_.name());
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

Database::~Database() { sqlite3_close(connection_); }

absl::Status Database::Configure() {
  sqlite3_db_config(connection_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  // Of a new database: room for the page checksums.
  int reserved = SqliteVfs::kChecksumBytes;
  sqlite3_file_control(connection_, "main", SQLITE_FCNTL_RESERVE_BYTES, &reserved);
  // Exclusive locking lets WAL do without shared memory; FULL syncs the log at every commit.
  if (absl::Status status = Execute("PRAGMA page_size = 4096;"
                                    "PRAGMA locking_mode = EXCLUSIVE;"
                                    "PRAGMA temp_store = MEMORY;"
                                    "PRAGMA trusted_schema = OFF;"
                                    "PRAGMA cell_size_check = ON;"
                                    "PRAGMA foreign_keys = ON;"
                                    "PRAGMA synchronous = FULL;");
      !status.ok()) {
    return status;
  }
  std::string mode;
  if (absl::Status status =
          Query("PRAGMA journal_mode = WAL", {}, [&](const Row& row) { mode = row.Text(0); });
      !status.ok()) {
    return status;
  }
  if (mode != "wal") {
    return absl::InternalError(
        fmt::format("SQLite keeps the journal mode '{}' for {}, WAL is needed", mode, path_));
  }
  // Pages, types and CHECKs; then references between tables.
  std::string damage;
  absl::Status status = Query("PRAGMA quick_check(1)", {}, [&](const Row& row) {
    if (row.Text(0) != "ok") damage = InOneLine(row.Text(0));
  });
  if (!status.ok()) return status;
  status = Query("PRAGMA foreign_key_check", {}, [&](const Row& row) {
    damage = fmt::format("a row of {} refers to a missing row of {}", row.Text(0), row.Text(2));
  });
  if (!status.ok()) return status;
  if (!damage.empty()) return Damaged(damage);
  // Only tidies up: a full disk must not keep the server from starting.
  (void)Query("PRAGMA wal_checkpoint(TRUNCATE)", {});
  return absl::OkStatus();
}

absl::Status Database::Execute(const std::string& sql) {
  vfs_.ForgetError();
  const int code = sqlite3_exec(connection_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

absl::Status Database::Query(std::string_view sql, std::initializer_list<Value> values,
                             const std::function<void(const Row&)>& on_row) {
  vfs_.ForgetError();
  sqlite3_stmt* raw = nullptr;
  int code = sqlite3_prepare_v2(connection_, sql.data(), static_cast<int>(sql.size()), &raw,
                                /*pzTail=*/nullptr);
  const StatementPtr statement(raw);
  if (code != SQLITE_OK) return Error(code);
  int index = 0;
  for (const Value& value : values) {
    code = Bind(raw, ++index, value);
    if (code != SQLITE_OK) return Error(code);
  }
  while ((code = sqlite3_step(raw)) == SQLITE_ROW) {
    if (on_row) on_row(Row(raw));
  }
  return code == SQLITE_DONE ? absl::OkStatus() : Error(code);
}

absl::StatusOr<std::optional<int64_t>> Database::QueryInteger(std::string_view sql,
                                                              std::initializer_list<Value> values) {
  std::optional<int64_t> result;
  absl::Status status = Query(sql, values, [&](const Row& row) {
    if (!result) result = row.Integer(0);
  });
  if (!status.ok()) return status;
  return result;
}

absl::StatusOr<std::unique_ptr<Database::Copy>> Database::BeginCopy(FileSystem& files,
                                                                    std::string path) {
  std::unique_ptr<Copy> copy(
      new Copy(*this, files, std::unique_ptr<Database>(new Database(files, std::move(path)))));
  Database& to = *copy->database_;
  absl::Status status = to.Connect(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  int reserved = SqliteVfs::kChecksumBytes;
  if (status.ok()) {
    sqlite3_file_control(to.connection_, "main", SQLITE_FCNTL_RESERVE_BYTES, &reserved);
    // Nobody reads it after a crash.
    status = to.Execute(
        "PRAGMA page_size = 4096; PRAGMA locking_mode = EXCLUSIVE; PRAGMA temp_store = MEMORY;"
        "PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;");
  }
  if (!status.ok()) return status;
  copy->backup_ = sqlite3_backup_init(to.connection_, "main", connection_, "main");
  if (copy->backup_ == nullptr) return to.Error(sqlite3_extended_errcode(to.connection_));
  return copy;
}

Database::Copy::~Copy() {
  if (backup_ != nullptr) sqlite3_backup_finish(backup_);
  if (database_ == nullptr) return;
  const std::string path = database_->path();
  database_.reset();
  (void)files_.Remove(path);
}

absl::StatusOr<bool> Database::Copy::Step(int pages) {
  source_.vfs_.ForgetError();
  database_->vfs_.ForgetError();
  const int code = sqlite3_backup_step(backup_, pages);
  if (code == SQLITE_OK) return false;
  sqlite3_backup_finish(std::exchange(backup_, nullptr));
  if (code == SQLITE_DONE) return true;
  // SQLite does not say which of the two failed; their files do.
  return source_.vfs_.last_error().ok() ? database_->Error(code) : source_.Error(code);
}

std::unique_ptr<Database> Database::Copy::Take() { return std::move(database_); }

Database::Outcome Database::Transact(const std::function<absl::Status()>& body) {
  if (absl::Status status = Execute("BEGIN IMMEDIATE"); !status.ok()) return {status};
  absl::Status status = body();
  Outcome outcome{status};
  if (status.ok()) {
    outcome.status = Execute("COMMIT");
    if (outcome.status.ok()) return outcome;
    // The log was not written to its end: only then is it certain that no crash brings the commit
    // back. After a failed sync it may be on the disk, wholly, until another overwrites it.
    outcome.undecided = vfs_.sync_failed() || !absl::IsResourceExhausted(vfs_.last_error());
  }
  if (sqlite3_get_autocommit(connection_) == 0) {
    (void)sqlite3_exec(connection_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  return outcome;
}

absl::Status CatalogDamaged(std::string_view path, std::string_view how) {
  return absl::DataLossError(
      fmt::format("the catalog {} is damaged ({}); restore the data directory from a backup, or "
                  "rebuild what its blobs allow with --salvage, or move it away to start empty",
                  path, how));
}

absl::Status Database::Error(int code) {
  const std::string reason =
      connection_ != nullptr ? sqlite3_errmsg(connection_) : sqlite3_errstr(code);
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Damaged(reason);
    case SQLITE_NOMEM:
      return absl::ResourceExhaustedError(
          fmt::format("out of memory while using the catalog {}", path_));
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
      if (absl::IsDataLoss(vfs_.last_error())) {
        return Damaged(std::string(vfs_.last_error().message()));
      }
      if (!vfs_.last_error().ok()) {
        return Reworded(vfs_.last_error(),
                        fmt::format("the catalog could not be read or written: {}",
                                    std::string(vfs_.last_error().message())));
      }
      [[fallthrough]];
    default:
      return absl::InternalError(fmt::format("the catalog {} failed: {}", path_, reason));
  }
}

}  // namespace sparsed::engine
