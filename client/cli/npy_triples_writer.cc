#include "client/cli/npy_triples_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "client/cli/npy.h"

namespace sparsed::cli {
namespace {

/// 128 bytes for every number of entries.
std::string Header(int64_t nnz) { return NpyHeader("<f8", fmt::format("({}, 3)", nnz)); }

}  // namespace

absl::StatusOr<NpyTriplesWriter> NpyTriplesWriter::Open(const std::string& path) {
  absl::StatusOr<PackedFile> file = PackedFile::Create(path);
  if (!file.ok()) return file.status();
  if (absl::Status status = file->Write(Header(0)); !status.ok()) return status;
  return NpyTriplesWriter(*std::move(file));
}

absl::Status NpyTriplesWriter::Add(const RowBlock& block) {
  constexpr size_t kFlush = size_t{1} << 13;
  std::vector<double> numbers;
  numbers.reserve(kFlush + 3);
  const auto flush = [&] {
    const absl::Status written = file_.Write(
        {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double)});
    numbers.clear();
    return written;
  };
  const int64_t first = block.row_offsets.front();
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t i = block.row_offsets[row] - first; i < block.row_offsets[row + 1] - first; ++i) {
      const int64_t index = block.row_begin + row, column = block.column_indices[i];
      greatest_ = std::max({greatest_, index, column});
      numbers.push_back(static_cast<double>(index));
      numbers.push_back(static_cast<double>(column));
      numbers.push_back(std::visit(
          [i](const auto& values) { return static_cast<double>(values[i]); }, block.values));
      if (numbers.size() < kFlush) continue;
      if (absl::Status status = flush(); !status.ok()) return status;
    }
  }
  return flush();
}

absl::Status NpyTriplesWriter::Finish(int64_t rows, int64_t cols, int64_t nnz) {
  if (rows != greatest_ + 1 || cols != greatest_ + 1) {
    note_ = fmt::format(
        "an array of entries does not say how large the matrix is: upload it with "
        "--shape={}x{}",
        rows, cols);
  }
  const absl::Status status = file_.Patch(0, Header(nnz));
  return status.ok() ? file_.Commit() : status;
}

}  // namespace sparsed::cli
