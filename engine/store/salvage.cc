#include "engine/store/salvage.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "engine/store/blob.h"
#include "engine/store/catalog_remains.h"
#include "engine/store/data_directory.h"
#include "engine/store/description.h"
#include "engine/store/disk_store.h"
#include "engine/store/schema.h"

namespace sparsed::engine {
namespace {

using Kind = ArrayOwner::Kind;

/// A blob that is whole.
struct Found {
  int64_t number = 0;
  ElementType type = ElementType::kI32;
  int64_t length = 0;
  std::optional<ArrayDescription> description;  ///< none: nobody knows what it is
};

/// The arrays of a pattern.
struct FoundPattern {
  const Found* row_offsets = nullptr;
  const Found* column_indices = nullptr;
};

/// What its description says that it is, of that type and length.
bool Is(const Found& blob, std::string_view array, ElementType type, int64_t length) {
  return blob.description->array == array && blob.type == type && blob.length == length;
}

Array WithoutBytes(const Found& blob) {
  Array array;
  array.type = blob.type;
  array.length = blob.length;
  return array;
}

std::string NameOf(const ArrayOwner& owner) {
  return owner.tenant.empty() ? fmt::format("'{}'", owner.name)
                              : fmt::format("'{}' of tenant '{}'", owner.name, owner.tenant);
}

class Salvage {
 public:
  Salvage(FileSystem& files, DataDirectory& directory,
          const std::function<std::string(const CsrView&)>& hash_pattern)
      : files_(files),
        directory_(directory),
        hash_pattern_(hash_pattern),
        folder_(std::make_shared<BlobFolder>(files, directory.blobs())) {}

  absl::StatusOr<SalvageReport> Run() {
    absl::Status status = FindBlobs();
    if (status.ok()) status = Begin();
    if (status.ok()) status = SaveMatrices();
    if (status.ok()) status = SaveBuffers();
    if (status.ok()) status = SaveNameless();
    if (status.ok()) status = Finish();
    if (!status.ok()) return status;
    return std::move(report_);
  }

 private:
  std::string new_catalog() const { return directory_.catalog() + ".salvage"; }

  /// Reads every blob; those that are whole and known go to their places.
  absl::Status FindBlobs() {
    absl::StatusOr<std::vector<int64_t>> numbers = folder_->List();
    if (!numbers.ok()) return numbers.status();
    if (numbers->empty()) {
      return absl::FailedPreconditionError(
          fmt::format("{} has no arrays that a catalog could be rebuilt from; restore the data "
                      "directory from a backup, or move it away to start empty",
                      directory_.blobs()));
    }
    std::ranges::sort(*numbers);
    absl::StatusOr<std::map<int64_t, ArrayDescription>> remains =
        ReadCatalogRemains(files_, OldCatalog());
    if (!remains.ok()) return remains.status();
    for (const int64_t number : *numbers) {
      absl::StatusOr<Found> found = Read(number);
      if (absl::IsDataLoss(found.status())) {
        report_.lost.emplace_back(found.status().message());
        unused_.insert(number);
        continue;
      }
      if (!found.ok()) return found.status();
      const auto known = remains->find(number);
      if (!found->description && known != remains->end()) found->description = known->second;
      blobs_[number] = *std::move(found);
      unused_.insert(number);
    }
    return absl::OkStatus();
  }

  /// One whose salvage did not come to its end may have moved it already.
  std::string OldCatalog() {
    const absl::StatusOr<bool> there = files_.Exists(directory_.catalog());
    if (!there.ok() || *there) return directory_.catalog();
    std::string last = directory_.catalog();
    for (int i = 1;; ++i) {
      std::string moved = fmt::format("{}/damaged-{}/catalog.sqlite", directory_.path(), i);
      const absl::StatusOr<bool> moved_there = files_.Exists(moved);
      if (!moved_there.ok() || !*moved_there) return last;
      last = std::move(moved);
    }
  }

  /// DATA_LOSS unless all of it is as it was written.
  absl::StatusOr<Found> Read(int64_t number) {
    absl::StatusOr<BlobReader> reader = BlobReader::Open(*folder_, number);
    if (!reader.ok()) return reader.status();
    std::vector<std::byte> block(BlobReader::kBlockBytes);
    for (int64_t i = 0; i < reader->blocks(); ++i) {
      absl::Status status = reader->ReadBlock(i, std::span(block).first(reader->BlockBytes(i)));
      if (!status.ok()) return status;
    }
    Found found{number, reader->type(), reader->length(), std::nullopt};
    if (!reader->description().empty()) {
      found.description = DecodeDescription(reader->description());
    }
    return found;
  }

  absl::StatusOr<Array> Load(const Found& blob) {
    absl::StatusOr<BlobReader> reader = BlobReader::Open(*folder_, blob.number);
    if (!reader.ok()) return reader.status();
    absl::StatusOr<Array> array = AllocateArray(HeapMemory(), "", blob.type, blob.length);
    if (!array.ok()) return array;
    std::byte* data = array->buffer.mutable_data();
    for (int64_t i = 0; i < reader->blocks(); ++i) {
      absl::Status status = reader->ReadBlock(i, {data, reader->BlockBytes(i)});
      if (!status.ok()) return status;
      data += reader->BlockBytes(i);
    }
    return array;
  }

  /// An empty catalog beside the old one.
  absl::Status Begin() {
    for (const char* log : {"", "-wal"}) {  // of a salvage that did not come to its end
      const absl::Status removed = files_.Remove(new_catalog() + log);
      if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
    }
    absl::StatusOr<std::unique_ptr<Database>> database = Database::Open(files_, new_catalog());
    if (!database.ok()) return database.status();
    absl::Status status = PrepareSchema(**database, /*had_data=*/false);
    if (status.ok()) store_ = DiskStore::Over(files_, *std::move(database), folder_);
    return status;
  }

  /// The newest whole blobs of each pattern, by hash.
  std::map<std::string, FoundPattern> Patterns() const {
    std::map<std::string, FoundPattern> patterns;
    for (const auto& [number, blob] : blobs_) {
      if (!blob.description || blob.description->owner.kind != Kind::kPattern) continue;
      const ArrayDescription& d = *blob.description;
      FoundPattern& pattern = patterns[d.owner.pattern_hash];
      if (Is(blob, "row_offsets", ElementType::kI64, d.rows + 1)) pattern.row_offsets = &blob;
      if (Is(blob, "column_indices", ElementType::kI32, d.nnz)) pattern.column_indices = &blob;
    }
    return patterns;
  }

  /// By tenant and name, the newest first.
  std::map<std::pair<std::string, std::string>, std::vector<const Found*>> Named(
      Kind kind, std::string_view array) const {
    std::map<std::pair<std::string, std::string>, std::vector<const Found*>> named;
    for (const auto& [number, blob] : blobs_) {
      if (!blob.description || blob.description->owner.kind != kind ||
          blob.description->array != array) {
        continue;
      }
      named[{blob.description->owner.tenant, blob.description->owner.name}].push_back(&blob);
    }
    for (auto& [name, versions] : named) {
      std::ranges::sort(versions, [](const Found* a, const Found* b) {
        return std::pair(a->description->version, a->number) >
               std::pair(b->description->version, b->number);
      });
    }
    return named;
  }

  absl::Status SaveMatrices() {
    const std::map<std::string, FoundPattern> patterns = Patterns();
    const auto orders = Named(Kind::kMatrix, "value_order");
    for (const auto& [name, versions] : Named(Kind::kMatrix, "values")) {
      std::string why_not;
      bool saved = false;
      for (const Found* values : versions) {
        const ArrayDescription& d = *values->description;
        const auto pattern = patterns.find(d.owner.pattern_hash);
        const Found* order = nullptr;
        if (const auto found = orders.find(name); found != orders.end() && d.has_value_order) {
          order = OrderOf(d, found->second);
        }
        if (pattern == patterns.end() || pattern->second.row_offsets == nullptr ||
            pattern->second.column_indices == nullptr) {
          why_not = fmt::format("its pattern {} is damaged or missing", d.owner.pattern_hash);
        } else if (!IsFloat(values->type) || values->length != d.nnz) {
          why_not = "its values are not those of its pattern";
        } else if (d.has_value_order && order == nullptr) {
          why_not = "the order that its values were uploaded in is damaged or missing";
        } else {
          absl::Status status = SaveMatrix(*values, pattern->second, order);
          if (!status.ok()) return status;
          saved = true;
          break;
        }
      }
      const ArrayOwner& owner = versions.front()->description->owner;
      if (!saved) report_.lost.push_back(fmt::format("matrix {}: {}", NameOf(owner), why_not));
    }
    return absl::OkStatus();
  }

  /// The order of the values that `d` describes; null if there is none.
  static const Found* OrderOf(const ArrayDescription& d, const std::vector<const Found*>& orders) {
    for (const Found* order : orders) {
      const ArrayDescription& o = *order->description;
      if (o.owner.pattern_hash == d.owner.pattern_hash && o.created_unix_ns == d.created_unix_ns &&
          order->length == d.nnz) {
        return order;
      }
    }
    return nullptr;
  }

  absl::Status SaveMatrix(const Found& values, const FoundPattern& pattern, const Found* order) {
    const ArrayDescription& d = *values.description;
    NewMatrix m;
    m.tenant = d.owner.tenant;
    m.name = d.owner.name;
    m.pattern_hash = d.owner.pattern_hash;
    m.rows = d.rows;
    m.cols = d.cols;
    m.nnz = d.nnz;
    m.version = d.version;
    m.created_unix_ns = d.created_unix_ns;
    m.time_to_live_ns = d.time_to_live_ns;
    return Save(m, pattern, values, order);
  }

  absl::Status Save(NewMatrix m, const FoundPattern& pattern, const Found& values,
                    const Found* order) {
    std::vector<int64_t> numbers = {pattern.row_offsets->number, pattern.column_indices->number,
                                    values.number};
    m.row_offsets = WithoutBytes(*pattern.row_offsets);
    m.column_indices = WithoutBytes(*pattern.column_indices);
    m.values = WithoutBytes(values);
    if (order != nullptr) {
      m.value_order = WithoutBytes(*order);
      numbers.push_back(order->number);
    }
    if (absl::Status status = store_->AdoptMatrix(m, numbers); !status.ok()) return status;
    for (const int64_t number : numbers) unused_.erase(number);
    report_.saved.push_back(fmt::format("matrix {}, version {}: {} x {}, {} nonzeros",
                                        NameOf({Kind::kMatrix, "", m.tenant, m.name, ""}),
                                        m.version, m.rows, m.cols, m.nnz));
    return absl::OkStatus();
  }

  absl::Status SaveBuffers() {
    for (const auto& [name, versions] : Named(Kind::kBuffer, "dense")) {
      const Found& blob = *versions.front();
      const ArrayDescription& d = *blob.description;
      const int64_t length = d.rows == 0 ? 0 : (d.rows - 1) * d.leading_dimension + d.cols;
      if (!IsFloat(blob.type) || blob.length != length) {
        report_.lost.push_back(
            fmt::format("buffer {}: its elements are not of its shape", NameOf(d.owner)));
        continue;
      }
      NewBuffer b{d.owner.tenant, d.owner.name,        d.rows,
                  d.cols,         d.leading_dimension, d.version,
                  d.buffer_owner, d.time_to_live_ns,   WithoutBytes(blob)};
      if (absl::Status status = store_->AdoptBuffer(b, blob.number); !status.ok()) return status;
      unused_.erase(blob.number);
      report_.saved.push_back(fmt::format("buffer {}, version {}: {} x {}", NameOf(d.owner),
                                          d.version, d.rows, d.cols));
    }
    return absl::OkStatus();
  }

  /// Blobs of older programs say nothing of themselves. An upload wrote row offsets, column indices
  /// and values one after the other.
  absl::Status SaveNameless() {
    for (const auto& [number, blob] : blobs_) {
      if (blob.description || blob.type != ElementType::kI64) continue;
      const auto columns = blobs_.find(number + 1);
      const auto values = blobs_.find(number + 2);
      if (columns == blobs_.end() || columns->second.description || values == blobs_.end() ||
          values->second.description || columns->second.type != ElementType::kI32 ||
          !IsFloat(values->second.type) || values->second.length != columns->second.length) {
        continue;
      }
      absl::Status status = SaveNamelessMatrix({&blob, &columns->second}, values->second);
      if (!status.ok()) return status;
    }
    for (const auto& [number, blob] : blobs_) {
      if (blob.description || !unused_.contains(number)) continue;
      report_.lost.push_back(fmt::format("blob {}, {} elements of {}: nothing says whose it is",
                                         number, blob.length, Name(blob.type)));
    }
    return absl::OkStatus();
  }

  absl::Status SaveNamelessMatrix(const FoundPattern& pattern, const Found& values) {
    const absl::StatusOr<Array> row_offsets = Load(*pattern.row_offsets);
    if (!row_offsets.ok()) return row_offsets.status();
    const absl::StatusOr<Array> column_indices = Load(*pattern.column_indices);
    if (!column_indices.ok()) return column_indices.status();
    CsrView csr;
    csr.rows = row_offsets->length - 1;
    csr.row_offsets = row_offsets->As<int64_t>();
    csr.column_indices = column_indices->As<int32_t>();
    for (const int32_t column : csr.column_indices) {
      csr.cols = std::max(csr.cols, int64_t{column} + 1);
    }
    if (csr.rows < 0 || !ValidateCsr(csr, /*threads=*/1).ok()) return absl::OkStatus();
    NewMatrix m;
    m.pattern_hash = hash_pattern_(csr);
    m.name = fmt::format("salvaged-{}-{}", m.pattern_hash, values.number);
    m.rows = csr.rows;
    m.cols = csr.cols;
    m.nnz = csr.nnz();
    if (absl::Status status = Save(m, pattern, values, nullptr); !status.ok()) return status;
    report_.saved.back() +=
        "; its name is lost, and columns after the last one that is used are not known of";
    return absl::OkStatus();
  }

  /// Puts the new catalog in the old one's place.
  absl::Status Finish() {
    store_.reset();
    const absl::StatusOr<bool> log = files_.Exists(new_catalog() + "-wal");
    if (!log.ok()) return log.status();
    if (*log) {
      return absl::ResourceExhaustedError(
          fmt::format("{} could not be written to its end; make room on the disk", new_catalog()));
    }
    if (absl::Status status = files_.SyncDirectory(directory_.path()); !status.ok()) return status;
    absl::Status status = MakeFolder();
    for (const int64_t number : unused_) {
      if (!status.ok()) return status;
      const std::string path = folder_->PathOf(number);
      status = files_.Rename(path, report_.moved_to + path.substr(path.rfind('/')));
    }
    // The log first: the new catalog must not find it.
    for (const char* name : {"catalog.sqlite-wal", "catalog.sqlite"}) {
      if (!status.ok()) return status;
      status = files_.Rename(fmt::format("{}/{}", directory_.path(), name),
                             fmt::format("{}/{}", report_.moved_to, name));
      if (absl::IsNotFound(status)) status = absl::OkStatus();
      if (status.ok()) status = files_.SyncDirectory(directory_.path());
    }
    if (status.ok()) status = files_.SyncDirectory(report_.moved_to);
    if (status.ok()) status = folder_->Sync();
    if (status.ok()) status = files_.Rename(new_catalog(), directory_.catalog());
    if (!status.ok()) return status;
    return files_.SyncDirectory(directory_.path());
  }

  absl::Status MakeFolder() {
    for (int i = 1;; ++i) {
      report_.moved_to = fmt::format("{}/damaged-{}", directory_.path(), i);
      const absl::StatusOr<bool> there = files_.Exists(report_.moved_to);
      if (!there.ok()) return there.status();
      if (!*there) break;
    }
    if (absl::Status s = files_.CreateDirectory(report_.moved_to); !s.ok()) return s;
    return files_.SyncDirectory(directory_.path());
  }

  FileSystem& files_;
  DataDirectory& directory_;
  const std::function<std::string(const CsrView&)>& hash_pattern_;
  const std::shared_ptr<BlobFolder> folder_;
  std::map<int64_t, Found> blobs_;    ///< the whole ones, by number
  std::set<int64_t> unused_;          ///< numbers of those that no row of the new catalog has
  std::unique_ptr<DiskStore> store_;  ///< over the new catalog
  SalvageReport report_;
};

/// FAILED_PRECONDITION if there is nothing to salvage.
absl::Status CheckDamaged(FileSystem& files, const std::string& directory) {
  // Opening would make one.
  const absl::StatusOr<bool> exists = files.Exists(directory);
  if (!exists.ok()) return exists.status();
  if (!*exists) {
    return absl::FailedPreconditionError(
        fmt::format("there is no data directory at {}", directory));
  }
  const absl::StatusOr<std::unique_ptr<Store>> store = OpenStore(files, directory);
  absl::Status status = store.status();
  if (store.ok()) status = (*store)->Load().status();
  if (absl::IsDataLoss(status)) return absl::OkStatus();
  if (!status.ok()) return status;
  return absl::FailedPreconditionError(
      fmt::format("the catalog in {} is whole: there is nothing to salvage", directory));
}

}  // namespace

absl::StatusOr<SalvageReport> SalvageStore(
    FileSystem& files, const std::string& directory,
    const std::function<std::string(const CsrView&)>& hash_pattern) {
  if (absl::Status status = CheckDamaged(files, directory); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<DataDirectory>> locked = DataDirectory::Open(files, directory);
  if (!locked.ok()) return locked.status();
  return Salvage(files, **locked, hash_pattern).Run();
}

}  // namespace sparsed::engine
