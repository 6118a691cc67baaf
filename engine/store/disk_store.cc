#include "engine/store/disk_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "engine/store/schema.h"

namespace sparsed::engine {
namespace {

using Kind = ArrayOwner::Kind;

/// Makes a directory and those above it, all of them durable.
absl::Status MakeDirectories(FileSystem& files, const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  const absl::StatusOr<bool> exists = files.Exists(path);
  if (!exists.ok()) return exists.status();
  if (!*exists) {
    if (absl::Status status = MakeDirectories(files, parent); !status.ok()) return status;
  }
  // Says so if it is no directory.
  if (absl::Status status = files.CreateDirectory(path); !status.ok()) return status;
  absl::Status status = files.SyncDirectory(parent);
  // A directory that was there may stand in one that we cannot read; whoever made it saw to it.
  return *exists && absl::IsFailedPrecondition(status) ? absl::OkStatus() : status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenStore(FileSystem& files, const std::string& directory) {
  return DiskStore::Open(files, directory);
}

absl::StatusOr<std::unique_ptr<Store>> DiskStore::Open(FileSystem& files, std::string directory) {
  while (directory.size() > 1 && directory.ends_with('/')) directory.pop_back();
  if (directory.empty()) return absl::InvalidArgumentError("the data directory has no name");
  if (absl::Status status = MakeDirectories(files, directory); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<FileLock>> lock = files.Lock(directory + "/LOCK");
  if (!lock.ok()) return lock.status();
  auto folder = std::make_shared<BlobFolder>(files, directory + "/blobs");
  if (absl::Status status = folder->Prepare(); !status.ok()) return status;
  const absl::StatusOr<std::vector<int64_t>> blob_files = folder->List();
  if (!blob_files.ok()) return blob_files.status();
  absl::StatusOr<std::unique_ptr<Database>> database =
      Database::Open(files, directory + "/catalog.sqlite");
  if (!database.ok()) return database.status();
  if (absl::Status status = PrepareSchema(**database, !blob_files->empty()); !status.ok()) {
    return status;
  }
  std::unique_ptr<DiskStore> store(
      new DiskStore(*std::move(lock), *std::move(database), std::move(folder)));
  if (absl::Status status = store->CollectBlobs(*blob_files); !status.ok()) return status;
  return store;
}

DiskStore::~DiskStore() {
  // Whether their rows are there shows at the next start.
  for (const BlobPtr& blob : undecided_) blob->set_forsaken(false);
}

absl::Status DiskStore::CollectBlobs(std::span<const int64_t> files) {
  absl::Status status = database_->Query("SELECT blob FROM arrays", {}, [&](const Row& row) {
    const int64_t number = row.Integer(0);
    blobs_[number] = std::make_shared<Blob>(folder_, number, /*forsaken=*/false);
  });
  if (!status.ok()) return status;
  const absl::StatusOr<std::optional<int64_t>> highest =
      database_->QueryInteger("SELECT seq FROM sqlite_sequence WHERE name = 'arrays'", {});
  if (!highest.ok()) return highest.status();
  next_blob_ = highest->value_or(0) + 1;
  for (const int64_t number : files) {
    if (!blobs_.contains(number)) folder_->Remove(number);
    next_blob_ = std::max(next_blob_.load(), number + 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DiskStore::BlobPtr>> DiskStore::WriteBlobs(
    std::span<const Array* const> arrays, Stop stop) {
  int64_t bytes = 0;
  for (const Array* array : arrays) bytes += static_cast<int64_t>(array->bytes());
  if (absl::Status status = folder_->CheckRoom(bytes); !status.ok()) return status;
  std::vector<BlobPtr> blobs;
  absl::Status status;
  for (const Array* array : arrays) {
    const int64_t number = next_blob_.fetch_add(1);
    status = folder_->Write(number, *array, stop);
    if (!status.ok()) break;
    blobs.push_back(std::make_shared<Blob>(folder_, number, /*forsaken=*/true));
  }
  if (status.ok()) status = folder_->Sync();
  if (absl::IsResourceExhausted(status)) {
    return absl::ResourceExhaustedError(
        fmt::format("{}; {} bytes are needed in all: delete matrices or buffers, or make room on "
                    "the disk",
                    std::string(status.message()), bytes));
  }
  if (!status.ok()) return status;
  return blobs;
}

absl::Status DiskStore::Apply(const std::function<absl::Status(BlobChanges&)>& body) {
  std::vector<BlobPtr> unused;  // files are removed after the lock is released
  const std::lock_guard lock(mutex_);
  BlobChanges changes;
  const Database::Outcome outcome = database_->Transact([&] { return body(changes); });
  if (!outcome.status.ok()) {
    if (outcome.undecided) {
      undecided_.insert(undecided_.end(), changes.added.begin(), changes.added.end());
    }
    return outcome.status;
  }
  for (const BlobPtr& blob : changes.added) {
    blob->set_forsaken(false);
    blobs_[blob->number()] = blob;
  }
  for (const int64_t number : changes.removed) {
    const auto it = blobs_.find(number);
    if (it == blobs_.end()) continue;
    it->second->set_forsaken(true);
    unused.push_back(std::move(it->second));
    blobs_.erase(it);
  }
  // This commit has overwritten theirs in the log.
  std::move(undecided_.begin(), undecided_.end(), std::back_inserter(unused));
  undecided_.clear();
  return absl::OkStatus();
}

absl::StatusOr<StoreContents> DiskStore::Load() {
  const std::lock_guard lock(mutex_);
  return LoadContents(*database_, blobs_);
}

absl::StatusOr<Array> DiskStore::ReadBlob(const StoredArray& array, MemorySource& memory,
                                          Stop stop) {
  absl::StatusOr<BlobReader> reader = BlobReader::Open(*array.blob, array.type, array.length);
  if (!reader.ok()) return reader.status();
  absl::StatusOr<Array> result = AllocateArray(memory, array.name, array.type, array.length);
  if (!result.ok()) return result;
  std::byte* data = result->buffer.mutable_data();
  for (int64_t block = 0; block < reader->blocks(); ++block) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      return absl::CancelledError("cancelled while reading from disk");
    }
    const size_t bytes = reader->BlockBytes(block);
    if (absl::Status status = reader->ReadBlock(block, {data, bytes}); !status.ok()) return status;
    data += bytes;
  }
  return result;
}

absl::StatusOr<Array> DiskStore::Read(const StoredArray& array, MemorySource& memory, Stop stop) {
  if (!array.readable()) {
    return absl::FailedPreconditionError(Describe(array) + " is not on disk");
  }
  absl::StatusOr<Array> result = ReadBlob(array, memory, stop);
  if (!result.ok()) return ReadError(array, result.status());
  return result;
}

absl::Status DiskStore::ReadError(const StoredArray& array, const absl::Status& status) {
  std::string users;
  if (absl::IsDataLoss(status) && array.owner.kind == Kind::kPattern) {
    const std::lock_guard lock(mutex_);
    const auto current = blobs_.find(array.blob->number());
    if (current != blobs_.end() && current->second == array.blob) {
      damaged_patterns_.insert(array.owner.pattern_hash);
    }
    constexpr int kNamed = 3;
    int count = 0;
    (void)database_->Query(
        "SELECT m.name FROM matrices m JOIN patterns p ON p.id = m.pattern WHERE p.hash = ?"
        " ORDER BY m.name",
        {array.owner.pattern_hash}, [&](const Row& row) {
          if (++count <= kNamed)
            users += fmt::format("{}'{}'", users.empty() ? "" : ", ", row.Text(0));
        });
    if (count > kNamed) users += fmt::format(" and {} more", count - kNamed);
    users = fmt::format(" (of matrix {})", users);
  }
  return absl::Status(status.code(), fmt::format("{}{}: {}", Describe(array), users,
                                                 std::string(status.message())));
}

absl::Status DiskStore::Scrub(
    const std::function<bool(int64_t)>& pace,
    const std::function<void(const StoredArray&, const absl::Status&)>& damaged) {
  std::vector<std::byte> buffer(BlobReader::kBlockBytes);
  for (int64_t number = 0;;) {
    absl::StatusOr<std::optional<StoredArray>> next;
    {
      const std::lock_guard lock(mutex_);
      next = NextArray(*database_, blobs_, number);
    }
    if (!next.ok()) return next.status();
    if (!*next) break;
    const StoredArray& array = **next;
    number = array.blob->number();
    absl::StatusOr<BlobReader> reader = BlobReader::Open(*array.blob, array.type, array.length);
    absl::Status status = reader.status();
    for (int64_t block = 0; status.ok() && block < reader->blocks(); ++block) {
      const size_t bytes = reader->BlockBytes(block);
      status = reader->ReadBlock(block, std::span(buffer).first(bytes));
      if (!pace(static_cast<int64_t>(bytes))) return absl::OkStatus();
    }
    if (!status.ok()) damaged(array, ReadError(array, status));
  }
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  return Apply([&](BlobChanges&) {
    return database_->Query("INSERT OR REPLACE INTO scrubs(id, ended_unix_ns) VALUES(1, ?)", {now});
  });
}

}  // namespace sparsed::engine
