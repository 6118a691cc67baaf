#include "client/cli/edge_list_writer.h"

#include <fmt/format.h>

#include "client/cli/compress.h"
#include "client/cli/edge_list.h"

namespace sparsed::cli {
namespace {

/// "ROWSxCOLUMNS", as wide as it can get.
constexpr size_t kShapeWidth = 10 + 1 + 10;

}  // namespace

absl::StatusOr<EdgeListWriter> EdgeListWriter::Open(const std::string& path) {
  absl::StatusOr<PackedFile> file = PackedFile::Create(path);
  if (!file.ok()) return file.status();
  const std::string_view plain = WithoutCompression(path);
  const bool csv = plain.ends_with(".csv");
  std::string head = std::string(kShapeComment) + std::string(kShapeWidth, ' ') + '\n';
  if (csv) head += "row,column,value\n";
  if (absl::Status status = file->Write(head); !status.ok()) return status;
  return EdgeListWriter(*std::move(file), csv ? ',' : plain.ends_with(".tsv") ? '\t' : ' ');
}

absl::Status EdgeListWriter::Add(const RowBlock& block) {
  return WriteEntries(block, /*first_index=*/0, delimiter_, file_);
}

absl::Status EdgeListWriter::Finish(int64_t rows, int64_t cols, int64_t) {
  const absl::Status status = file_.Patch(kShapeComment.size(), fmt::format("{}x{}", rows, cols));
  return status.ok() ? file_.Commit() : status;
}

}  // namespace sparsed::cli
