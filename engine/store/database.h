// A SQLite connection: RAII, statuses instead of codes, transactions.
#pragma once

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/file_system.h"
#include "engine/store/sqlite_vfs.h"

namespace sparsed::engine {

/// A row of a result, valid during the callback that gets it.
class Row {
 public:
  explicit Row(sqlite3_stmt* statement) : statement_(statement) {}
  bool IsNull(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }
  int64_t Integer(int column) const { return sqlite3_column_int64(statement_, column); }
  double Real(int column) const { return sqlite3_column_double(statement_, column); }
  std::string Text(int column) const;
  std::span<const std::byte> Blob(int column) const;

 private:
  sqlite3_stmt* statement_;
};

/// DATA_LOSS, with what to do about it.
absl::Status CatalogDamaged(std::string_view path, std::string_view how);

/// Used by one thread at a time, together with its copies under way. Errors: DATA_LOSS (the file is
/// damaged), RESOURCE_EXHAUSTED (disk
/// full, memory), otherwise as the file system said, or INTERNAL.
class Database {
 public:
  /// A parameter of a statement: integer, real, text or blob.
  using Value = std::variant<int64_t, double, std::string_view, std::span<const std::byte>>;

  /// Opens or makes the database, alone and for itself, and checks that it is whole.
  /// FAILED_PRECONDITION if somebody else has it open.
  static absl::StatusOr<std::unique_ptr<Database>> Open(FileSystem& files, std::string path);
  /// Opens one that is not whole, to look what can be read. Nothing is written to it. Errors: as
  /// Open; queries fail where they meet the damage.
  static absl::StatusOr<std::unique_ptr<Database>> OpenDamaged(FileSystem& files, std::string path);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  const std::string& path() const { return path_; }
  /// False if its path names another file by now, or none: what is written is lost.
  absl::StatusOr<bool> InPlace() const { return vfs_.InPlace(); }
  /// DATA_LOSS, with what to do about it.
  absl::Status Damaged(std::string_view how) const { return CatalogDamaged(path_, how); }

  /// Runs statements without parameters and results.
  absl::Status Execute(const std::string& sql);
  /// Runs one statement; `on_row` gets each row of its result.
  absl::Status Query(std::string_view sql, std::initializer_list<Value> values,
                     const std::function<void(const Row&)>& on_row = {});
  /// The first column of the first row, an integer; none if there is no row.
  absl::StatusOr<std::optional<int64_t>> QueryInteger(std::string_view sql,
                                                      std::initializer_list<Value> values);

  struct Outcome {
    absl::Status status;
    /// The commit failed so late that a crash before the next successful commit may bring it back.
    bool undecided = false;
  };
  /// Carries what is in the log over into the database, so that the next transaction overwrites the
  /// log from its beginning. Nothing is lost if it cannot.
  void RestartLog() { (void)Query("PRAGMA wal_checkpoint(RESTART)", {}); }
  /// A copy of this database, made step by step; what is changed between two steps is in it, too.
  class Copy;
  /// Begins one at `path`, where there is no file. Errors: as Open.
  absl::StatusOr<std::unique_ptr<Copy>> BeginCopy(FileSystem& files, std::string path);

  /// Runs `body` as a transaction, durable when this returns OK; rolled back otherwise.
  Outcome Transact(const std::function<absl::Status()>& body);

 private:
  Database(FileSystem& files, std::string path) : path_(std::move(path)), vfs_(files) {}
  absl::Status Connect(int flags);
  absl::Status Configure();
  /// What went wrong with result code `code`.
  absl::Status Error(int code);

  const std::string path_;
  SqliteVfs vfs_;  // outlives the connection
  sqlite3* connection_ = nullptr;
};

class Database::Copy {
 public:
  /// Removes the copy unless it was taken.
  ~Copy();
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

  /// Copies some pages more. True when it is whole, and of this moment: from then on it does not
  /// change. DATA_LOSS if the database that is copied is damaged.
  absl::StatusOr<bool> Step(int pages);
  /// The copy, once it is whole. It is not synced, and its file is the caller's to remove.
  std::unique_ptr<Database> Take();

 private:
  friend class Database;
  Copy(Database& source, FileSystem& files, std::unique_ptr<Database> database)
      : source_(source), files_(files), database_(std::move(database)) {}

  Database& source_;
  FileSystem& files_;
  std::unique_ptr<Database> database_;
  sqlite3_backup* backup_ = nullptr;
};

}  // namespace sparsed::engine
