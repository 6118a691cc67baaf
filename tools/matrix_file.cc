#include "tools/matrix_file.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "client/cli/matrix_file.h"
#include "client/cli/matrix_writer.h"
#include "client/cli/output_file.h"

namespace sparsed::tools {

absl::StatusOr<SparseMatrix> ReadMatrix(const std::string& path) {
  cli::ReadOptions options;
  options.type = ValueType::kF64;
  absl::StatusOr<cli::MatrixFile> file = cli::ReadMatrixFile(path, options);
  if (!file.ok()) return file.status();
  CsrMatrix& matrix = file->matrix;
  return SparseMatrix{matrix.rows, matrix.cols, std::move(matrix.row_offsets),
                      std::move(matrix.column_indices),
                      std::get<std::vector<double>>(std::move(matrix.values))};
}

bool IsMatrixFile(const std::string& path) {
  const std::optional<cli::FileFormat> format = cli::FormatByName(path);
  return format == cli::FileFormat::kMatrixMarket || format == cli::FileFormat::kNpz;
}

std::string NameOfMatrixFile(const std::string& path) { return cli::NameOfFile(path); }

absl::Status WritePattern(const std::string& path, int64_t rows, int64_t cols,
                          std::vector<int64_t> row_offsets, std::vector<int32_t> column_indices) {
  absl::StatusOr<std::unique_ptr<cli::MatrixWriter>> writer =
      cli::OpenMatrixWriter(path, std::nullopt);
  if (!writer.ok()) return writer.status();
  CsrMatrix matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.values = std::vector<float>(column_indices.size(), 1.0F);
  matrix.row_offsets = std::move(row_offsets);
  matrix.column_indices = std::move(column_indices);
  return cli::WriteMatrix(**writer, matrix);
}

absl::Status WriteOrder(const std::string& path, const std::vector<int32_t>& order) {
  absl::StatusOr<cli::OutputFile> file = cli::OutputFile::Create(path);
  if (!file.ok()) return file.status();
  std::string text;
  for (const int32_t row : order) text += fmt::format("{}\n", row);
  if (absl::Status status = file->Write(text); !status.ok()) return status;
  return file->Commit();
}

}  // namespace sparsed::tools
