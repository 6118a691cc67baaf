// Sparse matrices written to files, as they come: in row blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/matrix_file.h"
#include "client/cli/packed_file.h"
#include "sparsed/types.h"

namespace sparsed::cli {

class MatrixWriter {
 public:
  virtual ~MatrixWriter() = default;
  /// The next rows.
  virtual absl::Status Add(const RowBlock& block) = 0;
  /// Gives the file its name. Without it nothing is left.
  virtual absl::Status Finish(int64_t rows, int64_t cols, int64_t nnz) = 0;
  /// What the file cannot say of the matrix, a sentence, after Finish(); empty: nothing.
  virtual std::string Note() const { return {}; }

 protected:
  MatrixWriter() = default;
  MatrixWriter(MatrixWriter&&) = default;
};

/// The format that a name's ending stands for; none for an ending that stands for none.
std::optional<FileFormat> FormatByName(std::string_view path);
/// The name of what is in a file: without folders, compression, and the ending of its format.
std::string NameOfFile(std::string_view path);
/// What names of matrices are made of.
inline constexpr std::string_view kNameCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/@+-";
/// NameOfFile() with a "-" for what no name has: "my-graph" of "my graph.txt" and "my graph.tar".
std::string SuggestedName(std::string_view path);

/// What is wrong with writing to a file of that name: it is standard output or no plain file, its
/// ending stands for no format and none is given, or it asks for a compression that the format has
/// not. A sentence; empty: nothing.
std::string OutputProblem(std::string_view path, std::optional<FileFormat> format);

/// A writer of the format, or of the one that the name stands for. INVALID_ARGUMENT as
/// OutputProblem() says, or if the file cannot be created.
absl::StatusOr<std::unique_ptr<MatrixWriter>> OpenMatrixWriter(const std::string& path,
                                                               std::optional<FileFormat> format);

/// All of a matrix.
absl::Status WriteMatrix(MatrixWriter& writer, const CsrMatrix& matrix);

/// For writers of text: a line for each entry, row, column and value with `delimiter` in between,
/// indices counted from `first_index`, values with as many digits as tell them apart.
absl::Status WriteEntries(const RowBlock& block, int first_index, char delimiter, PackedFile& file);

}  // namespace sparsed::cli
