#include "client/cli/metis_writer.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "client/cli/metis.h"

namespace sparsed::cli {
namespace {

/// "VERTICES EDGES 001", as wide as it can get.
constexpr size_t kHeaderWidth = 10 + 1 + 19 + 1 + 3;

/// The finaliser of MurmurHash3: every bit of the result depends on all of `x`.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccd;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53;
  return x ^ (x >> 33);
}

uint64_t Hash(int64_t row, int64_t col, double value) {
  return Mix(Mix(static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(col)) ^
             std::bit_cast<uint64_t>(value));
}

}  // namespace

absl::StatusOr<MetisWriter> MetisWriter::Open(const std::string& path) {
  absl::StatusOr<PackedFile> file = PackedFile::Create(path);
  if (!file.ok()) return file.status();
  const absl::Status written =
      file->Write(std::string(kMetisComment) + '\n' + std::string(kHeaderWidth, ' ') + '\n');
  if (!written.ok()) return written;
  return MetisWriter(path, *std::move(file));
}

absl::Status MetisWriter::Add(int64_t row, int64_t col, double value, std::string& text) {
  if (row == col) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: a METIS graph has no entries on its diagonal, and there is one in row {}, counted "
        "from 0; write another format, such as .npz",
        path_, row));
  }
  constexpr double kGreatest = 0x1p53;
  if (!(value >= 1 && value <= kGreatest) || value != std::floor(value)) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: weights of a METIS graph are positive integers, and the value in row {}, column {}, "
        "counted from 0, is {}; write another format, such as .npz",
        path_, row, col, value));
  }
  asymmetry_ += row < col ? Hash(row, col, value) : 0 - Hash(col, row, value);
  fmt::format_to(std::back_inserter(text), "{} {} ", col + 1, static_cast<int64_t>(value));
  return absl::OkStatus();
}

absl::Status MetisWriter::Add(const RowBlock& block) {
  constexpr size_t kFlushBytes = size_t{1} << 16;
  std::string text;
  const int64_t first = block.row_offsets.front();
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t i = block.row_offsets[row] - first; i < block.row_offsets[row + 1] - first; ++i) {
      const double value = std::visit(
          [i](const auto& values) { return static_cast<double>(values[i]); }, block.values);
      const absl::Status added = Add(block.row_begin + row, block.column_indices[i], value, text);
      if (!added.ok()) return added;
      if (text.size() < kFlushBytes) continue;
      if (absl::Status status = file_.Write(text); !status.ok()) return status;
      text.clear();
    }
    text += '\n';
  }
  rows_ = block.row_begin + block.rows;
  return file_.Write(text);
}

absl::Status MetisWriter::Finish(int64_t rows, int64_t cols, int64_t nnz) {
  if (rows != cols || asymmetry_ != 0 || nnz % 2 != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{}: a METIS graph is square and symmetric, and this matrix of {} x {} is not; "
                    "write another format, such as .npz",
                    path_, rows, cols));
  }
  const absl::Status rest = file_.Write(std::string(static_cast<size_t>(rows - rows_), '\n'));
  if (!rest.ok()) return rest;
  const absl::Status status =
      file_.Patch(kMetisComment.size() + 1, fmt::format("{} {} 001", rows, nnz / 2));
  return status.ok() ? file_.Commit() : status;
}

}  // namespace sparsed::cli
