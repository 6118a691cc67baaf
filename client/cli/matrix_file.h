// Files of sparse matrices in any of the formats that are read. docs/formats.md says what is made
// of each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/byte_source.h"
#include "client/cli/csr_builder.h"
#include "sparsed/types.h"

namespace sparsed::cli {

enum class FileFormat : uint8_t { kMatrixMarket, kNpz, kNpy, kEdgeList, kMetis };

/// What flags call it: "mtx", "npz", "npy", "edges", "metis".
std::string_view Name(FileFormat format);
/// "mtx" and so on; INVALID_ARGUMENT for anything else.
absl::StatusOr<FileFormat> ParseFileFormat(std::string_view name);
/// For people: "Matrix Market file" and so on.
std::string_view Description(FileFormat format);

struct MatrixShape {
  int64_t rows = 0;
  int64_t cols = 0;
};

/// "300x200"; none for anything else, or beyond `most`.
std::optional<MatrixShape> ParseShape(std::string_view text, int64_t most = kMaxDimension);

struct ReadOptions {
  std::optional<FileFormat> format;  ///< none: as the content says
  std::optional<ValueType> type;     ///< none: the file's own, f32 where it has none
  /// Of files that do not say how large their matrix is (edges, npy), where it is not as large as
  /// their greatest index wants. Others have to agree.
  std::optional<MatrixShape> shape;

  // Of edges and npy alone.
  bool one_based = false;   ///< indices count from 1
  bool undirected = false;  ///< an entry is also one of the transpose
  /// Which column, counted from 1, has the values; 0: none. Without it the third, if there are
  /// three.
  std::optional<int> weight_column;

  int64_t max_dimension = kMaxDimension;
  /// Told of a Matrix Market file whose header wants far more memory than its entries, before that
  /// is taken; one of the file's notes.
  std::function<void(const std::string& note)> announce = {};
};

/// A file that was read.
struct MatrixFile {
  CsrMatrix matrix;
  FileFormat format = FileFormat::kMatrixMarket;
  std::string_view compression;  ///< as ByteSource::compression()
  int64_t duplicates = 0;        ///< entries that were added to others at their places
  int64_t nan = 0;
  int64_t infinite = 0;
  bool ones = false;               ///< all values are 1
  std::vector<std::string> notes;  ///< what of the file was guessed or left out, sentences
};

/// Reads a file, or standard input ("-"), into canonical CSR: rows sorted, duplicates summed in
/// f64, explicit zeros kept. INVALID_ARGUMENT with file and place if it is not what it should be,
/// or is of a format that is not read, which is named then together with a command that converts
/// it. Memory grows with what the file holds, and with its number of rows.
absl::StatusOr<MatrixFile> ReadMatrixFile(const std::string& path, const ReadOptions& options);

/// All that is to be told of a file: its notes, what was summed, what is no finite number.
std::vector<std::string> Sentences(const MatrixFile& file);

/// Whether nearly all of its memory, and not little, would be the offsets of rows without entries.
bool IsMostlyOffsets(int64_t rows, int64_t entries);
/// The note on one that is.
std::string OffsetsNote(int64_t rows, int64_t entries);

/// For readers: the matrix of all entries, `first_index` being the number of the file's first row
/// in messages, and what there is to be told of its values. The messages name the file.
absl::StatusOr<MatrixFile> Built(CsrBuilder& builder, MatrixShape shape, ValueType type,
                                 int first_index, std::string_view file);

}  // namespace sparsed::cli
