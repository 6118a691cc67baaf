#include "engine/store/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace sparsed::engine {
namespace {

/// Lines of JSON of what a matrix or a buffer is.
constexpr std::string_view kContents = R"sql(
SELECT json_object('kind', 'matrix', 'tenant', m.tenant, 'name', m.name, 'rows', p.rows,
                   'cols', p.cols, 'nnz', p.nnz, 'type', CASE a.type WHEN 3 THEN 'f32' WHEN 4 THEN 'f64'
                                        WHEN 5 THEN 'f16' WHEN 6 THEN 'bf16' END,
                   'version', m.version)
  FROM matrices m JOIN patterns p ON p.id = m.pattern
                  JOIN arrays a ON a.matrix = m.id AND a.name = 'values'
  ORDER BY m.tenant, m.name
)sql";
constexpr std::string_view kHeldContents = R"sql(
SELECT json_object('kind', 'buffer', 'tenant', b.tenant, 'name', b.name, 'rows', b.rows,
                   'cols', b.cols, 'type', CASE a.type WHEN 3 THEN 'f32' WHEN 4 THEN 'f64'
                                        WHEN 5 THEN 'f16' WHEN 6 THEN 'bf16' END,
                   'version', b.version)
  FROM buffers b JOIN arrays a ON a.buffer = b.id
  ORDER BY b.tenant, b.name
)sql";

/// Of what has no blocks of its own.
constexpr size_t kPieceBytes = BlobReader::kBlockBytes;

}  // namespace

absl::StatusOr<std::unique_ptr<StoreSnapshot>> StoreSnapshot::Make(
    FileSystem& files, std::unique_ptr<Database> catalog,
    std::vector<std::shared_ptr<const Blob>> blobs, int64_t created_unix_ns,
    std::function<absl::Status()> available) {
  std::ranges::sort(blobs, {}, [](const auto& blob) { return blob->number(); });
  std::unique_ptr<StoreSnapshot> snapshot(
      new StoreSnapshot(std::move(blobs), std::move(available)));
  snapshot->facts_.created_unix_ns = created_unix_ns;
  const std::string path = catalog->path();
  absl::Status status = snapshot->ReadCatalog(*catalog);
  catalog.reset();
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<File>> file = files.Open(path, OpenMode::kRead);
    status = file.status();
    if (file.ok()) snapshot->catalog_ = *std::move(file);
  }
  // Whoever has it open goes on reading, and nothing is left behind.
  (void)files.Remove(path);
  if (!status.ok()) return status;
  const absl::StatusOr<int64_t> bytes = snapshot->catalog_->Size();
  if (!bytes.ok()) return bytes.status();
  snapshot->catalog_bytes_ = *bytes;
  return snapshot;
}

absl::Status StoreSnapshot::ReadCatalog(Database& catalog) {
  absl::Status status;
  const auto count = [&](std::string_view sql, int64_t& into) {
    if (!status.ok()) return;
    const absl::StatusOr<std::optional<int64_t>> number = catalog.QueryInteger(sql, {});
    status = number.status();
    if (number.ok()) into = number->value_or(0);
  };
  count("PRAGMA user_version", facts_.schema_version);
  count("SELECT count(*) FROM patterns", facts_.patterns);
  count("SELECT count(*) FROM matrices", facts_.matrices);
  count("SELECT count(*) FROM layouts", facts_.layouts);
  count("SELECT count(*) FROM buffers", facts_.buffers);
  count("SELECT count(*) FROM arrays", facts_.arrays);
  if (!status.ok()) return status;
  status = catalog.Query(
      "SELECT type, sum(length) FROM arrays GROUP BY type", {}, [this](const Row& row) {
        const auto type = static_cast<ElementType>(row.Integer(0));
        facts_.array_bytes += row.Integer(1) * static_cast<int64_t>(SizeOf(type));
      });
  for (const std::string_view sql : {kContents, kHeldContents}) {
    if (!status.ok()) return status;
    status = catalog.Query(sql, {}, [this](const Row& row) {
      contents_ += row.Text(0);
      contents_ += '\n';
    });
  }
  return status;
}

absl::Status StoreSnapshot::NoteDamage(const absl::Status& damage) {
  if (absl::Status there = available_(); !there.ok()) return there;
  if (blob_ == nullptr) return damage;
  blob_->FoundDamaged();
  if (!noted_) damaged_.emplace_back(damage.message());
  noted_ = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> StoreSnapshot::OpenBlob(std::shared_ptr<const Blob> blob) {
  blob_ = std::move(blob);
  noted_ = false;
  absl::StatusOr<BlobReader> checker = BlobReader::Open(blob_->folder(), blob_->number());
  checker_.reset();
  if (absl::IsDataLoss(checker.status())) {
    if (absl::Status status = NoteDamage(checker.status()); !status.ok()) return status;
  } else if (!checker.ok()) {
    return checker.status();
  } else {
    checker_ = *std::move(checker);
  }
  absl::StatusOr<std::unique_ptr<File>> file = blob_->folder().OpenFile(blob_->number());
  if (absl::IsNotFound(file.status())) {
    if (absl::Status status = NoteDamage(file.status()); !status.ok()) return status;
    return false;
  }
  if (!file.ok()) return file.status();
  file_ = *std::move(file);
  return true;
}

absl::StatusOr<std::optional<StoreSnapshot::FileInfo>> StoreSnapshot::Next() {
  file_.reset();
  piece_.clear();
  offset_ = 0;
  given_ = 0;
  FileInfo info;
  if (catalog_ != nullptr) {
    file_ = std::move(catalog_);
    info.name = "catalog.sqlite";
  }
  while (file_ == nullptr) {
    if (next_blob_ == blobs_.size()) return std::nullopt;
    // What was deleted meanwhile goes from the disk as soon as it was read.
    const absl::StatusOr<bool> open = OpenBlob(std::move(blobs_[next_blob_++]));
    if (!open.ok()) return open.status();
    const std::string path = blob_->folder().PathOf(blob_->number());
    info.name = "blobs" + path.substr(path.rfind('/'));
  }
  const absl::StatusOr<int64_t> bytes = file_->Size();
  if (!bytes.ok()) return bytes.status();
  info.bytes = bytes_ = *bytes;
  return info;
}

absl::Status StoreSnapshot::FillPiece() {
  constexpr auto kBlock = static_cast<int64_t>(kPieceBytes);
  int64_t block = -1;
  int64_t size = kBlock;
  if (checker_.has_value() && offset_ == 0) {
    size = BlobReader::kHeaderBytes;
  } else if (checker_.has_value()) {
    // What does not begin with a block is behind the last.
    const int64_t at = offset_ - BlobReader::kHeaderBytes;
    if (at % kBlock == 0 && at / kBlock < checker_->blocks()) {
      block = at / kBlock;
      size = static_cast<int64_t>(checker_->BlockBytes(block));
    }
  }
  piece_.resize(static_cast<size_t>(std::min(size, bytes_ - offset_)));
  given_ = 0;
  const absl::StatusOr<size_t> n = file_->Read(offset_, piece_);
  absl::Status damage;
  if (!n.ok()) {
    if (!absl::IsInternal(n.status())) return n.status();
    damage = n.status();  // a bad sector
  } else if (*n < piece_.size()) {
    damage = absl::DataLossError(fmt::format("it became shorter while it was read, at byte {}",
                                             offset_ + static_cast<int64_t>(*n)));
  }
  const size_t read = n.ok() ? *n : 0;
  std::fill(piece_.begin() + static_cast<std::ptrdiff_t>(read), piece_.end(), std::byte{0});
  if (damage.ok() && block >= 0) damage = checker_->CheckBlock(block, piece_);
  offset_ += static_cast<int64_t>(piece_.size());
  return damage.ok() ? damage : NoteDamage(damage);
}

absl::StatusOr<size_t> StoreSnapshot::Read(std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    if (given_ == piece_.size()) {
      if (offset_ == bytes_) break;
      if (absl::Status status = FillPiece(); !status.ok()) return status;
    }
    const size_t take = std::min(out.size() - done, piece_.size() - given_);
    std::copy_n(piece_.begin() + static_cast<std::ptrdiff_t>(given_), take,
                out.begin() + static_cast<std::ptrdiff_t>(done));
    given_ += take;
    done += take;
  }
  return done;
}

}  // namespace sparsed::engine
