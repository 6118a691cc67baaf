#include "client/cli/matrix_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <utility>

#include "client/cli/edge_list.h"
#include "client/cli/line_reader.h"
#include "client/cli/matrix_market.h"
#include "client/cli/matrix_writer.h"
#include "client/cli/metis.h"
#include "client/cli/npy_stream.h"
#include "client/cli/npy_triples.h"
#include "client/cli/npz_reader.h"
#include "client/cli/report.h"
#include "client/cli/unread_format.h"
#include "client/cli/words.h"

namespace sparsed::cli {
namespace {

struct Known {
  FileFormat format;
  std::string_view name;
  std::string_view description;
};
constexpr std::array kFormats = {
    Known{FileFormat::kMatrixMarket, "mtx", "Matrix Market file"},
    Known{FileFormat::kNpz, "npz", "SciPy archive"},
    Known{FileFormat::kNpy, "npy", "NumPy array of entries"},
    Known{FileFormat::kEdgeList, "edges", "edge list"},
    Known{FileFormat::kMetis, "metis", "METIS graph"},
};

/// What tells one text from another: graphs of METIS and lists of edges are both numbers.
constexpr size_t kTextHead = size_t{1} << 20;
constexpr size_t kMagicHead = 512;

absl::Status Bad(std::string_view file, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", file, what));
}

void Replace(std::string& text, std::string_view what, std::string_view with) {
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
}

/// Readers speak of FILE, as commands for the shell and, between quotation marks, for Python have
/// it, and of the NAME of its matrix: their sentences with both in place, so that the commands can
/// be pasted.
absl::Status WithNames(const absl::Status& status, const std::string& path,
                       std::string_view compression) {
  // What the shell or Python would take for something else, or what cannot be read again.
  if (path == ByteSource::kStandardInput || path.find_first_of("'\"\\$`!\n") != path.npos) {
    return status;
  }
  std::string text(status.message());
  const bool plain = path.find_first_not_of(kNameCharacters) == path.npos;
  const std::string word = plain ? path : fmt::format("'{}'", path);
  Replace(text, "'FILE'", fmt::format("'{}'", path));
  Replace(text, "tar -xOf FILE", fmt::format("tar -xOf {}", word));
  const std::string_view program = compression == "gzip" ? "gzip"
                                   : compression == "xz" ? "xz"
                                                         : "zstd";
  Replace(text, " FILE",
          compression.empty() ? " " + word : fmt::format(" <({} -dc {})", program, word));
  Replace(text, "--name=NAME", "--name=" + SuggestedName(path));
  return absl::Status(status.code(), text);
}

bool IsText(std::string_view head) {
  return std::ranges::none_of(
      head, [](char c) { return static_cast<unsigned char>(c) < ' ' && (c < '\t' || c > '\r'); });
}

/// The format, as the content says.
absl::StatusOr<FileFormat> FormatOf(ByteSource& source) {
  absl::StatusOr<std::string_view> head = source.Peek(kMagicHead);
  if (!head.ok()) return At(source.name(), head.status());
  if (head->empty()) return Bad(source.name(), "the file is empty");
  if (head->starts_with("PK\x03\x04") || head->starts_with("PK\x05\x06")) return FileFormat::kNpz;
  if (head->starts_with(kNpyMagic)) return FileFormat::kNpy;
  std::string_view text = *head;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (text.starts_with("%%MatrixMarket")) return FileFormat::kMatrixMarket;
  const std::string unread = UnreadFormat(text);
  if (!unread.empty()) return Bad(source.name(), unread);
  if (!IsText(text)) {
    return Bad(source.name(),
               "the format is not known: expected a Matrix Market file, a SciPy archive (.npz), a "
               "NumPy array (.npy), an edge list, or a METIS graph; in Python, "
               "scipy.sparse.save_npz writes what is read");
  }
  head = source.Peek(kTextHead);
  if (!head.ok()) return At(source.name(), head.status());
  return LooksLikeMetis(*head, head->size() < kTextHead) ? FileFormat::kMetis
                                                         : FileFormat::kEdgeList;
}

/// Options that are not for every format.
absl::Status CheckOptions(const ReadOptions& options, FileFormat format, std::string_view file) {
  if (format == FileFormat::kEdgeList || format == FileFormat::kNpy) return absl::OkStatus();
  const char* const flag = options.one_based       ? "--one-based"
                           : options.undirected    ? "--undirected"
                           : options.weight_column ? "--weight-column"
                                                   : nullptr;
  if (flag == nullptr) return absl::OkStatus();
  return Bad(file, fmt::format("{} is for edge lists and arrays of entries, this is a {}", flag,
                               Description(format)));
}

absl::StatusOr<MatrixFile> ReadAs(FileFormat format, ByteSource source,
                                  const ReadOptions& options) {
  switch (format) {
    case FileFormat::kMatrixMarket:
      return ReadMatrixMarket(LineReader(std::move(source)), options);
    case FileFormat::kNpz:
      return ReadNpz(std::move(source), options);
    case FileFormat::kNpy:
      return ReadNpyTriples(std::move(source), options);
    case FileFormat::kMetis:
      return ReadMetis(std::move(source), options);
    case FileFormat::kEdgeList:
      break;
  }
  return ReadEdgeList(LineReader(std::move(source)), options);
}

template <typename T>
void Describe(const std::vector<T>& values, MatrixFile& file) {
  file.ones = true;
  for (const T value : values) {
    const auto number = static_cast<double>(value);
    file.ones = file.ones && number == 1;
    if (std::isfinite(number)) continue;
    ++(std::isnan(number) ? file.nan : file.infinite);
  }
}

}  // namespace

std::string_view Name(FileFormat format) {
  for (const Known& known : kFormats) {
    if (known.format == format) return known.name;
  }
  return {};
}

std::string_view Description(FileFormat format) {
  for (const Known& known : kFormats) {
    if (known.format == format) return known.description;
  }
  return {};
}

absl::StatusOr<FileFormat> ParseFileFormat(std::string_view name) {
  for (const Known& known : kFormats) {
    if (known.name == name) return known.format;
  }
  return absl::InvalidArgumentError(
      fmt::format("{} is none of mtx, npz, npy, edges and metis", name));
}

std::optional<MatrixShape> ParseShape(std::string_view text, int64_t most) {
  const size_t by = text.find('x');
  if (by == std::string_view::npos) return std::nullopt;
  const auto rows = ParseInteger(text.substr(0, by)), cols = ParseInteger(text.substr(by + 1));
  if (!rows || !cols || *rows < 0 || *cols < 0 || *rows > most || *cols > most) return std::nullopt;
  return MatrixShape{*rows, *cols};
}

bool IsMostlyOffsets(int64_t rows, int64_t entries) {
  constexpr int64_t kCheapRows = int64_t{1} << 24;
  return rows > kCheapRows && rows / 1000 > entries;
}

std::string OffsetsNote(int64_t rows, int64_t entries) {
  return fmt::format(
      "{} rows for {} {}: the offsets of the rows take {} here, and many times that on the server "
      "while it is prepared",
      rows, entries, entries == 1 ? "entry" : "entries",
      Bytes(rows * static_cast<int64_t>(sizeof(int64_t))));
}

absl::StatusOr<MatrixFile> Built(CsrBuilder& builder, MatrixShape shape, ValueType type,
                                 int first_index, std::string_view file) {
  const int64_t entries = builder.entries();
  absl::StatusOr<CsrMatrix> matrix = builder.Build(shape.rows, shape.cols, type, first_index);
  if (!matrix.ok()) return At(file, matrix.status());
  MatrixFile read;
  read.matrix = *std::move(matrix);
  if (IsMostlyOffsets(shape.rows, entries)) {
    read.notes.push_back(OffsetsNote(shape.rows, entries));
  }
  read.duplicates = entries - read.matrix.nnz();
  std::visit([&read](const auto& values) { Describe(values, read); }, read.matrix.values);
  return read;
}

std::vector<std::string> Sentences(const MatrixFile& file) {
  std::vector<std::string> sentences = file.notes;
  if (file.duplicates > 0) {
    sentences.push_back(fmt::format("{} {} summed: there are entries at their places already",
                                    file.duplicates,
                                    file.duplicates == 1 ? "duplicate was" : "duplicates were"));
  }
  if (file.nan > 0) {
    sentences.push_back(
        fmt::format("{} {} NaN", file.nan, file.nan == 1 ? "value is" : "values are"));
  }
  if (file.infinite > 0) {
    sentences.push_back(fmt::format("{} {} infinite", file.infinite,
                                    file.infinite == 1 ? "value is" : "values are"));
  }
  return sentences;
}

absl::StatusOr<MatrixFile> ReadMatrixFile(const std::string& path, const ReadOptions& options) {
  try {
    absl::StatusOr<ByteSource> source = ByteSource::Open(path);
    if (!source.ok()) return WithNames(source.status(), path, "");
    const std::string name = source->name();
    const std::string_view compression = source->compression();
    const absl::StatusOr<FileFormat> format = options.format ? *options.format : FormatOf(*source);
    if (!format.ok()) return WithNames(format.status(), path, compression);
    if (absl::Status status = CheckOptions(options, *format, name); !status.ok()) return status;
    absl::StatusOr<MatrixFile> read = ReadAs(*format, *std::move(source), options);
    if (!read.ok()) return WithNames(read.status(), path, compression);
    read->compression = compression;
    const CsrMatrix& matrix = read->matrix;
    if (options.shape &&
        (matrix.rows != options.shape->rows || matrix.cols != options.shape->cols)) {
      return Bad(name, fmt::format("the matrix is {} x {}, expected {} x {}", matrix.rows,
                                   matrix.cols, options.shape->rows, options.shape->cols));
    }
    return read;
  } catch (const std::exception&) {  // of the containers
    return absl::ResourceExhaustedError(fmt::format("{} does not fit into memory", path));
  }
}

}  // namespace sparsed::cli
