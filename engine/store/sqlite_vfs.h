// SQLite over our file interface, so that the catalog's files fail, fill up and forget in tests
// like all others; and a checksum for every page of a database, which SQLite itself does not have.
#pragma once

#include <sqlite3.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/file_system.h"

namespace sparsed::engine {

/// A SQLite VFS, registered under a name of its own while it lives; every connection that uses it
/// must be closed before. Calls come from one thread at a time. A database is locked against all
/// others from its opening to its closing, with a lock that its file itself has; there is no shared
/// memory: use it with `PRAGMA locking_mode = EXCLUSIVE`, by one connection a database.
///
/// Databases have pages of kPageBytes, and SQLite leaves us the last kChecksumBytes of each
/// (SQLITE_FCNTL_RESERVE_BYTES): they hold the XXH3-128 of the rest, seeded with the page's offset.
/// Reading a page that does not match fails with DATA_LOSS. The log's frames have SQLite's own
/// checksums.
class SqliteVfs {
 public:
  static constexpr int kPageBytes = 4096;
  static constexpr int kChecksumBytes = 16;

  explicit SqliteVfs(FileSystem& files);
  ~SqliteVfs();
  SqliteVfs(const SqliteVfs&) = delete;
  SqliteVfs& operator=(const SqliteVfs&) = delete;

  /// For sqlite3_open_v2.
  const char* name() const { return name_.c_str(); }

  /// SQLite reports a bare code. This is the file system's own error behind the last failed call
  /// since ForgetError; OK if no call failed.
  const absl::Status& last_error() const { return last_error_; }
  /// True if a sync has failed since ForgetError.
  bool sync_failed() const { return sync_failed_; }
  void ForgetError();
  /// False if the open database's path names another file by now, or none.
  absl::StatusOr<bool> InPlace() const;

 private:
  struct OpenFile;
  friend struct SqliteVfsCalls;

  /// Remembers `status`; returns `code`, or SQLITE_FULL if the disk is full.
  int Remember(const absl::Status& status, int code);

  FileSystem& files_;
  const std::string name_;
  sqlite3_vfs vfs_;
  absl::Status last_error_;
  bool sync_failed_ = false;
  OpenFile* database_ = nullptr;  ///< while one is open
};

}  // namespace sparsed::engine
