#include "client/cli/matrix_writer.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <span>
#include <system_error>
#include <type_traits>
#include <utility>

#include "client/cli/compress.h"
#include "client/cli/edge_list_writer.h"
#include "client/cli/matrix_market.h"
#include "client/cli/metis_writer.h"
#include "client/cli/npy_triples_writer.h"
#include "client/cli/npz_writer.h"

namespace sparsed::cli {
namespace {

constexpr std::array<std::pair<std::string_view, FileFormat>, 11> kEndings = {{
    {".mtx", FileFormat::kMatrixMarket},
    {".npz", FileFormat::kNpz},
    {".npy", FileFormat::kNpy},
    {".txt", FileFormat::kEdgeList},
    {".csv", FileFormat::kEdgeList},
    {".tsv", FileFormat::kEdgeList},
    {".el", FileFormat::kEdgeList},
    {".edges", FileFormat::kEdgeList},
    {".edgelist", FileFormat::kEdgeList},
    {".graph", FileFormat::kMetis},
    {".metis", FileFormat::kMetis},
}};

template <typename T>
void AppendNumber(std::string& text, T value) {
  char digits[32];
  const auto result = std::to_chars(digits, digits + sizeof(digits), value);
  text.append(digits, result.ptr);
}

template <typename Writer>
absl::StatusOr<std::unique_ptr<MatrixWriter>> Open(const std::string& path) {
  absl::StatusOr<Writer> writer = Writer::Open(path);
  if (!writer.ok()) return writer.status();
  return std::make_unique<Writer>(*std::move(writer));
}

}  // namespace

std::optional<FileFormat> FormatByName(std::string_view path) {
  path = WithoutCompression(path);
  for (const auto& [ending, format] : kEndings) {
    if (path.ends_with(ending)) return format;
  }
  return std::nullopt;
}

std::string NameOfFile(std::string_view path) {
  path.remove_prefix(path.find_last_of('/') + 1);
  if (const std::string_view plain = WithoutCompression(path); !plain.empty()) path = plain;
  for (const auto& [ending, format] : kEndings) {
    if (path.size() > ending.size() && path.ends_with(ending)) {
      path.remove_suffix(ending.size());
      break;
    }
  }
  return std::string(path);
}

std::string SuggestedName(std::string_view path) {
  std::string file = NameOfFile(path);
  for (const std::string_view ending : {".bz2", ".lz4", ".tar", ".zip", ".gr"}) {
    if (file.size() <= ending.size() || !file.ends_with(ending)) continue;
    file.resize(file.size() - ending.size());
    file = NameOfFile(file);
  }
  std::string name;
  for (const char c : file) {
    if (kNameCharacters.find(c) != kNameCharacters.npos) {
      name += c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  while (name.ends_with('-')) name.pop_back();
  return name.empty() ? "matrix" : name;
}

std::string OutputProblem(std::string_view path, std::optional<FileFormat> format) {
  if (path == "-") return "a matrix is written to a file, not to standard output";
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  if (exists(there) && !is_regular_file(there)) {
    return fmt::format("{} exists and is not a plain file", path);
  }
  if (!format) format = FormatByName(path);
  if (!format) {
    return fmt::format(
        "{} must end in .mtx, .npz, .npy, .txt, .csv, .tsv or .graph (but for .npz also with .gz, "
        ".xz or .zst behind), or --format must say what it is",
        path);
  }
  if (*format == FileFormat::kNpz && !CompressionByName(path).empty()) {
    return fmt::format("{}: SciPy reads no archives that are compressed as a whole; drop its {}",
                       path, path.substr(WithoutCompression(path).size()));
  }
  return {};
}

absl::StatusOr<std::unique_ptr<MatrixWriter>> OpenMatrixWriter(const std::string& path,
                                                               std::optional<FileFormat> format) {
  if (const std::string problem = OutputProblem(path, format); !problem.empty()) {
    return absl::InvalidArgumentError(problem);
  }
  switch (format ? *format : *FormatByName(path)) {
    case FileFormat::kNpz:
      return Open<NpzWriter>(path);
    case FileFormat::kNpy:
      return Open<NpyTriplesWriter>(path);
    case FileFormat::kEdgeList:
      return Open<EdgeListWriter>(path);
    case FileFormat::kMetis:
      return Open<MetisWriter>(path);
    case FileFormat::kMatrixMarket:
      break;
  }
  return Open<MatrixMarketWriter>(path);
}

absl::Status WriteMatrix(MatrixWriter& writer, const CsrMatrix& matrix) {
  RowBlock all;
  all.result_rows = matrix.rows;
  all.result_cols = matrix.cols;
  all.result_nnz = matrix.nnz();
  all.rows = matrix.rows;
  all.row_offsets = matrix.row_offsets;
  all.column_indices = matrix.column_indices;
  all.values = matrix.View().values;
  if (absl::Status status = writer.Add(all); !status.ok()) return status;
  return writer.Finish(matrix.rows, matrix.cols, matrix.nnz());
}

absl::Status WriteEntries(const RowBlock& block, int first_index, char delimiter,
                          PackedFile& file) {
  constexpr size_t kFlushBytes = size_t{1} << 16;
  std::string text;
  text.reserve(kFlushBytes + 128);
  const int64_t first = block.row_offsets.front();
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t i = block.row_offsets[row] - first; i < block.row_offsets[row + 1] - first; ++i) {
      AppendNumber(text, block.row_begin + row + first_index);
      text += delimiter;
      AppendNumber(text, int64_t{block.column_indices[i]} + first_index);
      text += delimiter;
      std::visit(
          [&]<typename T>(std::span<const T> values) {
            // Digits enough for a float tell 16-bit values apart too.
            using Printed = std::conditional_t<std::is_same_v<T, double>, double, float>;
            AppendNumber(text, static_cast<Printed>(values[i]));
          },
          block.values);
      text += '\n';
      if (text.size() < kFlushBytes) continue;
      if (absl::Status status = file.Write(text); !status.ok()) return status;
      text.clear();
    }
  }
  return file.Write(text);
}

}  // namespace sparsed::cli
