#include "client/cli/packed_file.h"

#include "client/cli/compress.h"

namespace sparsed::cli {

absl::StatusOr<PackedFile> PackedFile::Create(const std::string& path) {
  std::optional<OutputFile> compressed;
  if (!CompressionByName(path).empty()) {
    absl::StatusOr<OutputFile> created = OutputFile::Create(path);
    if (!created.ok()) return created.status();
    compressed.emplace(*std::move(created));
  }
  absl::StatusOr<OutputFile> file =
      OutputFile::Create(compressed ? compressed->temporary_path() + ".plain" : path);
  if (!file.ok()) return file.status();
  return PackedFile(*std::move(file), std::move(compressed));
}

absl::Status PackedFile::Commit() {
  if (!compressed_) return file_.Commit();
  if (absl::Status status = file_.Patch(0, ""); !status.ok()) return status;  // flushes
  const absl::Status status =
      Compress(file_.temporary_path(), CompressionByName(compressed_->path()), *compressed_);
  return status.ok() ? compressed_->Commit() : status;
}

}  // namespace sparsed::cli
