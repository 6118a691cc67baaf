#include "engine/store/sqlite_vfs.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace sparsed::engine {
namespace {

std::string NewName() {
  static std::atomic<int> count{0};
  return fmt::format("sparsed-{}", count.fetch_add(1));
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

constexpr size_t kCheckedBytes = SqliteVfs::kPageBytes - SqliteVfs::kChecksumBytes;
using Page = std::array<std::byte, SqliteVfs::kPageBytes>;

XXH128_canonical_t PageChecksum(const void* page, sqlite3_int64 offset) {
  XXH128_canonical_t checksum;
  XXH128_canonicalFromHash(
      &checksum, XXH3_128bits_withSeed(page, kCheckedBytes, static_cast<XXH64_hash_t>(offset)));
  return checksum;
}

bool PageIsIntact(const void* page, sqlite3_int64 offset) {
  const XXH128_canonical_t expected = PageChecksum(page, offset);
  return std::memcmp(static_cast<const std::byte*>(page) + kCheckedBytes, &expected,
                     sizeof(expected)) == 0;
}

bool IsPage(int bytes, sqlite3_int64 offset) {
  return bytes == SqliteVfs::kPageBytes && offset % SqliteVfs::kPageBytes == 0;
}

}  // namespace

/// SQLite allocates it as raw memory and knows its first member only.
struct SqliteVfs::OpenFile {
  sqlite3_file base;
  SqliteVfs* vfs;
  std::unique_ptr<File> file;
  std::string path;
  bool is_database;
  bool name_synced;  // a file's name is made durable with its first sync
};

/// The C functions that SQLite calls.
struct SqliteVfsCalls {
  using OpenFile = SqliteVfs::OpenFile;

  static OpenFile& Of(sqlite3_file* file) { return *reinterpret_cast<OpenFile*>(file); }
  static SqliteVfs& Of(sqlite3_vfs* vfs) { return *static_cast<SqliteVfs*>(vfs->pAppData); }
  static sqlite3_vfs* Default() { return sqlite3_vfs_find(nullptr); }

  static int Close(sqlite3_file* base) {
    OpenFile& f = Of(base);
    if (f.vfs->database_ == &f) f.vfs->database_ = nullptr;
    f.~OpenFile();
    return SQLITE_OK;
  }

  static int Read(sqlite3_file* base, void* out, int bytes, sqlite3_int64 offset) {
    OpenFile& f = Of(base);
    auto* const begin = static_cast<std::byte*>(out);
    const absl::StatusOr<size_t> n =
        f.file->Read(offset, std::span(begin, static_cast<size_t>(bytes)));
    if (!n.ok()) return f.vfs->Remember(n.status(), SQLITE_IOERR_READ);
    std::fill(begin + *n, begin + bytes, std::byte{0});  // SQLite asks for this
    if (*n > 0 && f.is_database && IsPage(bytes, offset) && !PageIsIntact(out, offset)) {
      return f.vfs->Remember(absl::DataLossError(fmt::format(
                                 "the checksum of the page at byte {} does not match", offset)),
                             SQLITE_IOERR_DATA);
    }
    return *n == static_cast<size_t>(bytes) ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
  }

  static int Write(sqlite3_file* base, const void* data, int bytes, sqlite3_int64 offset) {
    OpenFile& f = Of(base);
    std::span bytes_to_write(static_cast<const std::byte*>(data), static_cast<size_t>(bytes));
    Page page;
    if (f.is_database && IsPage(bytes, offset)) {
      std::memcpy(page.data(), data, kCheckedBytes);
      const XXH128_canonical_t checksum = PageChecksum(data, offset);
      std::memcpy(page.data() + kCheckedBytes, &checksum, sizeof(checksum));
      bytes_to_write = page;
    }
    return f.vfs->Remember(f.file->Write(offset, bytes_to_write), SQLITE_IOERR_WRITE);
  }

  static int Truncate(sqlite3_file* base, sqlite3_int64 size) {
    OpenFile& f = Of(base);
    return f.vfs->Remember(f.file->Truncate(size), SQLITE_IOERR_TRUNCATE);
  }

  static int Sync(sqlite3_file* base, int) {
    OpenFile& f = Of(base);
    absl::Status status = f.file->Sync();
    if (status.ok() && !f.name_synced) {
      status = f.vfs->files_.SyncDirectory(DirectoryOf(f.path));
      f.name_synced = status.ok();
    }
    if (!status.ok()) f.vfs->sync_failed_ = true;
    return f.vfs->Remember(status, SQLITE_IOERR_FSYNC);
  }

  static int FileSize(sqlite3_file* base, sqlite3_int64* size) {
    OpenFile& f = Of(base);
    const absl::StatusOr<int64_t> bytes = f.file->Size();
    if (!bytes.ok()) return f.vfs->Remember(bytes.status(), SQLITE_IOERR_FSTAT);
    *size = *bytes;
    return SQLITE_OK;
  }

  static int Lock(sqlite3_file*, int) { return SQLITE_OK; }
  static int CheckReservedLock(sqlite3_file*, int* reserved) {
    *reserved = 0;
    return SQLITE_OK;
  }
  static int FileControl(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
  static int SectorSize(sqlite3_file*) { return 4096; }
  /// A power cut during a write damages nothing beside what was being written (as SQLite itself
  /// assumes on POSIX).
  static int DeviceCharacteristics(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

  static int Open(sqlite3_vfs* base, const char* path, sqlite3_file* file, int flags,
                  int* out_flags) {
    static const sqlite3_io_methods methods = [] {
      sqlite3_io_methods m{};
      m.iVersion = 1;  // no shared memory, no memory map
      m.xClose = Close;
      m.xRead = Read;
      m.xWrite = Write;
      m.xTruncate = Truncate;
      m.xSync = Sync;
      m.xFileSize = FileSize;
      m.xLock = Lock;
      m.xUnlock = Lock;
      m.xCheckReservedLock = CheckReservedLock;
      m.xFileControl = FileControl;
      m.xSectorSize = SectorSize;
      m.xDeviceCharacteristics = DeviceCharacteristics;
      return m;
    }();
    SqliteVfs& vfs = Of(base);
    file->pMethods = nullptr;
    // Temporary files have no name; `PRAGMA temp_store = MEMORY` keeps them away.
    if (path == nullptr) return SQLITE_CANTOPEN;
    OpenMode mode = OpenMode::kReadWrite;
    if ((flags & SQLITE_OPEN_READONLY) != 0) {
      mode = OpenMode::kRead;
    } else if ((flags & SQLITE_OPEN_EXCLUSIVE) != 0) {
      mode = OpenMode::kCreateNew;
    } else if ((flags & SQLITE_OPEN_CREATE) != 0) {
      mode = OpenMode::kCreate;
    }
    absl::StatusOr<std::unique_ptr<File>> opened = vfs.files_.Open(path, mode);
    if (!opened.ok()) return vfs.Remember(opened.status(), SQLITE_CANTOPEN);
    const bool is_database = (flags & SQLITE_OPEN_MAIN_DB) != 0;
    if (is_database) {
      const absl::Status locked = (*opened)->Lock();
      if (!locked.ok()) return vfs.Remember(locked, SQLITE_CANTOPEN);
    }
    auto* const open =
        new (file) OpenFile{{&methods},           &vfs, *std::move(opened), path, is_database,
                            /*name_synced=*/false};
    if (is_database) vfs.database_ = open;
    if (out_flags != nullptr) *out_flags = flags;
    return SQLITE_OK;
  }

  static int Delete(sqlite3_vfs* base, const char* path, int sync_directory) {
    SqliteVfs& vfs = Of(base);
    absl::Status status = vfs.files_.Remove(path);
    if (absl::IsNotFound(status)) return SQLITE_IOERR_DELETE_NOENT;
    if (status.ok() && sync_directory != 0) status = vfs.files_.SyncDirectory(DirectoryOf(path));
    return vfs.Remember(status, SQLITE_IOERR_DELETE);
  }

  static int Access(sqlite3_vfs* base, const char* path, int, int* result) {
    SqliteVfs& vfs = Of(base);
    const absl::StatusOr<bool> exists = vfs.files_.Exists(path);
    if (!exists.ok()) return vfs.Remember(exists.status(), SQLITE_IOERR_ACCESS);
    *result = *exists ? 1 : 0;
    return SQLITE_OK;
  }

  static int FullPathname(sqlite3_vfs*, const char* path, int bytes, char* out) {
    const size_t length = std::strlen(path);
    if (length >= static_cast<size_t>(bytes)) return SQLITE_CANTOPEN;
    std::memcpy(out, path, length + 1);
    return SQLITE_OK;
  }

  static int Randomness(sqlite3_vfs*, int bytes, char* out) {
    return Default()->xRandomness(Default(), bytes, out);
  }
  static int Sleep(sqlite3_vfs*, int microseconds) {
    return Default()->xSleep(Default(), microseconds);
  }
  static int CurrentTime(sqlite3_vfs*, double* days) {
    return Default()->xCurrentTime(Default(), days);
  }
  static int GetLastError(sqlite3_vfs*, int, char*) { return 0; }
};

SqliteVfs::SqliteVfs(FileSystem& files) : files_(files), name_(NewName()), vfs_{} {
  vfs_.iVersion = 1;
  vfs_.szOsFile = sizeof(OpenFile);
  vfs_.mxPathname = 4096;
  vfs_.zName = name_.c_str();
  vfs_.pAppData = this;
  vfs_.xOpen = SqliteVfsCalls::Open;
  vfs_.xDelete = SqliteVfsCalls::Delete;
  vfs_.xAccess = SqliteVfsCalls::Access;
  vfs_.xFullPathname = SqliteVfsCalls::FullPathname;
  vfs_.xRandomness = SqliteVfsCalls::Randomness;
  vfs_.xSleep = SqliteVfsCalls::Sleep;
  vfs_.xCurrentTime = SqliteVfsCalls::CurrentTime;
  vfs_.xGetLastError = SqliteVfsCalls::GetLastError;
  sqlite3_initialize();
  sqlite3_vfs_register(&vfs_, /*makeDflt=*/0);
}

SqliteVfs::~SqliteVfs() { sqlite3_vfs_unregister(&vfs_); }

int SqliteVfs::Remember(const absl::Status& status, int code) {
  if (status.ok()) return SQLITE_OK;
  last_error_ = status;
  return absl::IsResourceExhausted(status) && code == SQLITE_IOERR_WRITE ? SQLITE_FULL : code;
}

absl::StatusOr<bool> SqliteVfs::InPlace() const { return database_->file->IsAt(database_->path); }

void SqliteVfs::ForgetError() {
  last_error_ = absl::OkStatus();
  sync_failed_ = false;
}

}  // namespace sparsed::engine
