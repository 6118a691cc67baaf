#include "engine/store/disk_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/status.h"
#include "engine/store/schema.h"
#include "engine/store/snapshot.h"

namespace sparsed::engine {
namespace {

using Kind = ArrayOwner::Kind;

/// For clients: where it was is no business of theirs.
absl::Status DirectoryIsGone() {
  return StoreGone(
      "the server's data directory was removed or replaced while the server runs, so nothing can "
      "be stored in it or read from it; its operator puts it back, or restores a backup and "
      "restarts the server");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenStore(FileSystem& files, const std::string& directory,
                                                 int64_t past_measurement_bytes) {
  return DiskStore::Open(files, directory, past_measurement_bytes);
}

absl::StatusOr<std::unique_ptr<Store>> DiskStore::Open(FileSystem& files, std::string path,
                                                       int64_t past_measurement_bytes) {
  absl::StatusOr<std::unique_ptr<DataDirectory>> directory =
      DataDirectory::Open(files, std::move(path));
  if (!directory.ok()) return directory.status();
  auto folder = std::make_shared<BlobFolder>(files, (*directory)->blobs());
  if (absl::Status status = folder->Prepare(); !status.ok()) return status;
  const absl::StatusOr<std::vector<int64_t>> blob_files = folder->List();
  if (!blob_files.ok()) return blob_files.status();
  absl::Status status = (*directory)->CheckCatalog(!blob_files->empty());
  if (!status.ok()) return status;
  // From here on the catalog is locked, too: nobody else is writing.
  absl::StatusOr<std::unique_ptr<Database>> database =
      Database::Open(files, (*directory)->catalog());
  if (!database.ok()) return database.status();
  const absl::StatusOr<bool> had_catalog = (*directory)->HadCatalog();
  if (!had_catalog.ok()) return had_catalog.status();
  status = PrepareSchema(**database, *had_catalog || !blob_files->empty());
  if (status.ok()) status = folder->RemoveUnfinished();
  if (status.ok()) status = (*directory)->RemoveCopies();
  if (!status.ok()) return status;
  std::unique_ptr<DiskStore> store(
      new DiskStore(files, *std::move(directory), *std::move(database), std::move(folder)));
  {
    const MutexLock lock(store->mutex_);
    status = store->CollectBlobs(*blob_files);
    if (!status.ok()) return status;
    store->directory_->RememberCatalog();
    store->directory_->MakeReserve();
  }
  store->most_past_bytes_ = past_measurement_bytes;
  // If there are too many, and no way to change that now, the next that comes does it.
  DiskStore* const opened = store.get();
  store
      ->ApplyRemoval([opened](BlobChanges&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(opened->mutex_) {
        return opened->BoundPast();
      })
      .IgnoreError();
  return store;
}

DiskStore::~DiskStore() {
  // Whether their rows are there shows at the next start.
  for (const BlobPtr& blob : undecided_) blob->set_forsaken(false);
  // Where the directory went meanwhile, a restart is not to take that for a first start.
  if (directory_ != nullptr && absl::IsUnavailable(AvailableLocked())) {
    directory_->RememberCatalog();
  }
}

absl::Status DiskStore::CollectBlobs(std::span<const int64_t> files) {
  absl::Status status = database_->Query(
      "SELECT blob FROM arrays", {}, [&](const Row& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
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

absl::Status DiskStore::Available() {
  const MutexLock lock(mutex_);
  return AvailableLocked();
}

absl::Status DiskStore::AvailableLocked() {
  absl::StatusOr<bool> there = database_->InPlace();
  if (there.ok() && *there) there = files_.Exists(folder_->path());
  if (!there.ok()) return there.status();
  return *there ? absl::OkStatus() : DirectoryIsGone();
}

absl::StatusOr<std::vector<DiskStore::BlobPtr>> DiskStore::WriteBlobs(
    std::span<const NewBlob> arrays, Stop stop) {
  absl::StatusOr<std::vector<BlobPtr>> blobs = TryWriteBlobs(arrays, stop);
  if (blobs.ok() || absl::IsCancelled(blobs.status())) return blobs;
  if (absl::Status status = Available(); !status.ok()) return status;
  return blobs;
}

absl::StatusOr<std::vector<DiskStore::BlobPtr>> DiskStore::TryWriteBlobs(
    std::span<const NewBlob> arrays, Stop stop) {
  int64_t bytes = 0;
  for (const NewBlob& blob : arrays) bytes += static_cast<int64_t>(blob.array->bytes());
  if (absl::Status status = folder_->CheckRoom(bytes); !status.ok()) return status;
  std::vector<BlobPtr> blobs;
  absl::Status status;
  for (const NewBlob& blob : arrays) {
    const int64_t number = next_blob_.fetch_add(1);
    status = folder_->Write(number, *blob.array, Encode(blob.description), stop);
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

Database::Outcome DiskStore::Transact(const std::function<absl::Status(BlobChanges&)>& body,
                                      BlobChanges& changes) {
  changes = {};
  next_past_bytes_.reset();
  return database_->Transact([&] { return body(changes); });
}

Database::Outcome DiskStore::TransactWhenFull(const std::function<absl::Status(BlobChanges&)>& body,
                                              BlobChanges& changes) {
  // What the log holds is carried over, if that takes no room, and the log begins anew in its own.
  database_->RestartLog();
  Database::Outcome outcome = Transact(body, changes);
  if (!absl::IsResourceExhausted(outcome.status)) return outcome;
  directory_->GiveReserveToLog();
  database_->RestartLog();
  return Transact(body, changes);
}

absl::Status DiskStore::Apply(const std::function<absl::Status(BlobChanges&)>& body,
                              WhenFull when_full) {
  std::vector<BlobPtr> unused;  // files are removed after the lock is released
  const MutexLock lock(mutex_);
  if (absl::Status status = AvailableLocked(); !status.ok()) return status;
  BlobChanges changes;
  Database::Outcome outcome = Transact(body, changes);
  if (absl::IsResourceExhausted(outcome.status) && when_full == WhenFull::kUseReserve) {
    disk_is_full_ = true;
    outcome = TransactWhenFull(body, changes);
    disk_is_full_ = false;
  }
  if (!outcome.status.ok()) {
    if (outcome.undecided) {
      undecided_.insert(undecided_.end(), changes.added.begin(), changes.added.end());
    }
    return outcome.status;
  }
  if (next_past_bytes_) past_bytes_ = *next_past_bytes_;
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

absl::Status DiskStore::ApplyRemoval(const std::function<absl::Status(BlobChanges&)>& body) {
  absl::Status status = Apply(body, WhenFull::kUseReserve);
  const MutexLock lock(mutex_);
  directory_->MakeReserve();
  return status;
}

absl::StatusOr<StoreContents> DiskStore::Load() {
  const MutexLock lock(mutex_);
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
  if (result.ok() || absl::IsDataLoss(result.status())) {
    // Another directory in the place of ours may have a blob of that number.
    if (absl::Status status = Available(); absl::IsUnavailable(status)) return status;
  }
  if (result.ok()) return result;
  return ReadError(array, result.status());
}

absl::Status DiskStore::ReadError(const StoredArray& array, const absl::Status& status) {
  std::string users;
  if (absl::IsDataLoss(status)) array.blob->FoundDamaged();
  if (absl::IsDataLoss(status) && array.owner.kind == Kind::kPattern) {
    const MutexLock lock(mutex_);
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
  return Reworded(status,
                  fmt::format("{}{}: {}", Describe(array), users, std::string(status.message())));
}

absl::StatusOr<std::unique_ptr<StoreSnapshot>> DiskStore::Snapshot(Stop stop) {
  // Of 4 KiB: what others wait for meanwhile takes about a millisecond. After that it is their turn
  // for as long: who locks a mutex again at once gets it before those that wait for it.
  constexpr int kPages = 256;
  constexpr std::chrono::milliseconds kOfOthers{1};
  std::unique_ptr<Database::Copy> copy;
  std::vector<std::shared_ptr<const Blob>> blobs;
  int64_t created_unix_ns = 0;
  const auto step = [&]() -> absl::StatusOr<bool> {
    const MutexLock lock(mutex_);
    absl::Status status = AvailableLocked();
    if (!status.ok()) return status;
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      return absl::CancelledError("cancelled while the catalog was copied");
    }
    if (copy == nullptr) {
      const auto pages = database_->QueryInteger("PRAGMA page_count", {});
      if (!pages.ok()) return pages.status();
      status = folder_->CheckRoom(pages->value_or(0) * SqliteVfs::kPageBytes);
      if (!status.ok()) return status;
      auto begun = database_->BeginCopy(files_, directory_->NewCopy());
      if (!begun.ok()) return begun.status();
      copy = *std::move(begun);
    }
    const absl::StatusOr<bool> whole = copy->Step(kPages);
    if (!whole.ok() || !*whole) return whole;
    // In the same moment: what it refers to.
    blobs.reserve(blobs_.size());
    for (const auto& [number, blob] : blobs_) blobs.push_back(blob);
    created_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
    return true;
  };
  absl::StatusOr<bool> whole = step();
  while (whole.ok() && !*whole) {
    std::this_thread::sleep_for(kOfOthers);
    whole = step();
  }
  if (!whole.ok()) {
    const MutexLock lock(mutex_);
    copy.reset();
    return whole.status();
  }
  return StoreSnapshot::Make(files_, copy->Take(), std::move(blobs), created_unix_ns,
                             [this] { return Available(); });
}

absl::Status DiskStore::Scrub(
    const std::function<bool(int64_t)>& pace,
    const std::function<void(const StoredArray&, const absl::Status&)>& damaged) {
  std::vector<std::byte> buffer(BlobReader::kBlockBytes);
  for (int64_t number = 0;;) {
    absl::StatusOr<std::optional<StoredArray>> next;
    {
      const MutexLock lock(mutex_);
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
    if (absl::IsDataLoss(status)) {
      if (absl::Status available = Available(); absl::IsUnavailable(available)) return available;
    }
    if (status.ok()) continue;
    const absl::Status error = ReadError(array, status);
    // Without descriptors or memory, say, nothing was found out.
    if (!absl::IsDataLoss(status)) return error;
    damaged(array, error);
  }
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  return Apply([&](BlobChanges&) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return database_->Query("INSERT OR REPLACE INTO scrubs(id, ended_unix_ns) VALUES(1, ?)", {now});
  });
}

}  // namespace sparsed::engine
