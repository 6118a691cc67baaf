#include "client/cli/npz_writer.h"

#include <fmt/format.h>
#include <minizip/zip.h>

#include <utility>
#include <vector>

#include "client/cli/npy.h"

namespace sparsed::cli {
namespace {

/// A zip archive being written; entries are stored, sizes beyond 4 GiB are fine.
class Archive {
 public:
  explicit Archive(const std::string& path) : zip_(zipOpen64(path.c_str(), APPEND_STATUS_CREATE)) {}
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;
  ~Archive() {
    if (zip_ != nullptr) zipClose(zip_, nullptr);
  }

  absl::Status Begin(const char* name) {
    zip_fileinfo info = {};
    info.tmz_date.tm_year = 1980;  // the same bytes for the same matrix
    info.tmz_date.tm_mday = 1;
    const int result =
        zip_ == nullptr ? ZIP_ERRNO
                        : zipOpenNewFileInZip64(zip_, name, &info, nullptr, 0, nullptr, 0, nullptr,
                                                /*method: stored*/ 0, /*level*/ 0, /*zip64*/ 1);
    return StatusOf(result);
  }
  absl::Status Write(const void* data, size_t size) {
    constexpr size_t kMostAtOnce = size_t{1} << 30;
    const auto* bytes = static_cast<const char*>(data);
    while (size > 0) {
      const size_t n = std::min(size, kMostAtOnce);
      const int result = zipWriteInFileInZip(zip_, bytes, static_cast<unsigned>(n));
      if (result != ZIP_OK) return StatusOf(result);
      bytes += n;
      size -= n;
    }
    return absl::OkStatus();
  }
  absl::Status End() { return StatusOf(zipCloseFileInZip(zip_)); }
  absl::Status Close() { return StatusOf(zipClose(std::exchange(zip_, nullptr), nullptr)); }

 private:
  static absl::Status StatusOf(int result) {
    if (result == ZIP_OK) return absl::OkStatus();
    return absl::ResourceExhaustedError("cannot write the .npz archive; is the disk full?");
  }

  zipFile zip_;
};

absl::Status AddArray(Archive& archive, const char* name, std::string_view descr,
                      std::string_view shape, std::string_view data) {
  const std::string header = NpyHeader(descr, shape);
  absl::Status status = archive.Begin(name);
  if (status.ok()) status = archive.Write(header.data(), header.size());
  if (status.ok()) status = archive.Write(data.data(), data.size());
  return status.ok() ? archive.End() : status;
}

/// The array whose bytes are in `file`.
absl::Status AddSpilled(Archive& archive, const char* name, std::string_view descr, int64_t length,
                        OutputFile& file) {
  if (absl::Status status = file.Patch(0, ""); !status.ok()) return status;  // flushes
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(
      std::fopen(file.temporary_path().c_str(), "rb"), std::fclose);
  if (!in) return absl::ResourceExhaustedError("cannot read a temporary file back");
  const std::string header = NpyHeader(descr, fmt::format("({},)", length));
  absl::Status status = archive.Begin(name);
  if (status.ok()) status = archive.Write(header.data(), header.size());
  std::vector<char> piece(size_t{1} << 20);
  while (status.ok()) {
    const size_t n = std::fread(piece.data(), 1, piece.size(), in.get());
    if (n == 0) break;
    status = archive.Write(piece.data(), n);
  }
  return status.ok() ? archive.End() : status;
}

template <typename T>
std::string_view Bytes(const T& array) {
  return {reinterpret_cast<const char*>(array.data()), array.size() * sizeof(array[0])};
}

}  // namespace

absl::StatusOr<NpzWriter> NpzWriter::Open(const std::string& path) {
  absl::StatusOr<OutputFile> offsets = OutputFile::Create(path + ".indptr");
  if (!offsets.ok()) return offsets.status();
  absl::StatusOr<OutputFile> columns = OutputFile::Create(path + ".indices");
  if (!columns.ok()) return columns.status();
  absl::StatusOr<OutputFile> values = OutputFile::Create(path + ".data");
  if (!values.ok()) return values.status();
  NpzWriter writer(path, *std::move(offsets), *std::move(columns), *std::move(values));
  const int64_t zero = 0;
  if (absl::Status status = writer.offsets_.Write(&zero, sizeof(zero)); !status.ok()) return status;
  return writer;
}

absl::Status NpzWriter::Add(const RowBlock& block) {
  type_ = TypeOf(block.values);
  if (type_ == ValueType::kBF16) {
    return absl::UnimplementedError(
        "an .npz archive cannot hold bf16; write another format, such as .mtx");
  }
  const std::string_view values =
      std::visit([](const auto& span) { return Bytes(span); }, block.values);
  absl::Status status = offsets_.Write(Bytes(block.row_offsets.subspan(1)));
  if (status.ok()) status = columns_.Write(Bytes(block.column_indices));
  if (status.ok()) status = values_.Write(values);
  return status;
}

absl::Status NpzWriter::Finish(int64_t rows, int64_t cols, int64_t nnz) {
  // Created by us first, so that the archive too is removed unless it is complete.
  absl::StatusOr<OutputFile> file = OutputFile::Create(path_);
  if (!file.ok()) return file.status();
  Archive archive(file->temporary_path());
  const std::vector<int64_t> shape = {rows, cols};
  absl::Status status = AddSpilled(archive, "indices.npy", "<i4", nnz, columns_);
  if (status.ok()) status = AddSpilled(archive, "indptr.npy", "<i8", rows + 1, offsets_);
  if (status.ok()) status = AddArray(archive, "format.npy", "|S3", "()", "csr");
  if (status.ok()) status = AddArray(archive, "shape.npy", "<i8", "(2,)", Bytes(shape));
  if (status.ok()) status = AddSpilled(archive, "data.npy", NpyDescr(type_), nnz, values_);
  if (status.ok()) status = archive.Close();
  return status.ok() ? file->Commit() : status;
}

}  // namespace sparsed::cli
