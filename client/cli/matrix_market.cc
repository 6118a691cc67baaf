#include "client/cli/matrix_market.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "client/cli/csr_builder.h"
#include "client/cli/words.h"

namespace sparsed::cli {
namespace {

enum class Symmetry { kGeneral, kSymmetric, kSkewSymmetric };

struct Banner {
  bool array = false;
  bool pattern = false;
  Symmetry symmetry = Symmetry::kGeneral;
};

struct Size {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t entries = 0;  // that the file should have
};

std::string Lower(std::string_view word) {
  std::string lower(word);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

/// One file being read.
class Reader {
 public:
  Reader(LineReader lines, const ReadOptions& options)
      : lines_(std::move(lines)), options_(options) {}

  absl::StatusOr<MatrixFile> Read() {
    if (absl::Status status = ReadBanner(); !status.ok()) return status;
    if (absl::Status status = ReadSize(); !status.ok()) return status;
    builder_.emplace(banner_.pattern);
    absl::Status status = banner_.array ? ReadArray() : ReadEntries();
    if (status.ok()) status = ExpectEnd();
    if (!status.ok()) return status;
    absl::StatusOr<MatrixFile> read =
        Built(*builder_, {size_.rows, size_.cols}, options_.type.value_or(ValueType::kF32),
              /*first_index=*/1, lines_.name());
    if (read.ok()) read->format = FileFormat::kMatrixMarket;
    return read;
  }

 private:
  absl::Status ReadBanner() {
    const std::optional<std::string_view> line = lines_.Next();
    std::string_view rest = line.value_or("");
    if (NextWord(rest) != "%%MatrixMarket") {
      if (!lines_.status().ok()) return lines_.status();
      return lines_.Error(
          "this is not a Matrix Market file: its first line must begin with \"%%MatrixMarket "
          "matrix "
          "coordinate\" or \"%%MatrixMarket matrix array\"");
    }
    const std::string object = Lower(NextWord(rest));
    const std::string format = Lower(NextWord(rest));
    const std::string field = Lower(NextWord(rest));
    const std::string symmetry = Lower(NextWord(rest));
    if (object != "matrix") {
      return lines_.Error(fmt::format("the banner says {}, expected \"matrix\"", Quoted(object)));
    }
    if (format != "coordinate" && format != "array") {
      return lines_.Error(
          fmt::format("the format is {}, expected \"coordinate\" or \"array\"", Quoted(format)));
    }
    if (field == "complex") {
      return lines_.Error(
          "complex matrices are not supported; upload the real and the imaginary part as two "
          "matrices: python3 -c \"import scipy.io, scipy.sparse as s; m = "
          "s.csr_matrix(scipy.io.mmread('FILE')); s.save_npz('real.npz', m.real); "
          "s.save_npz('imaginary.npz', m.imag)\"");
    }
    if (field != "real" && field != "integer" && field != "pattern") {
      return lines_.Error(fmt::format(
          "the field is {}, expected \"real\", \"integer\" or \"pattern\"", Quoted(field)));
    }
    if (symmetry == "symmetric") {
      banner_.symmetry = Symmetry::kSymmetric;
    } else if (symmetry == "skew-symmetric") {
      banner_.symmetry = Symmetry::kSkewSymmetric;
    } else if (symmetry != "general") {
      return lines_.Error(fmt::format(
          "the symmetry is {}, expected \"general\", \"symmetric\" or \"skew-symmetric\"",
          Quoted(symmetry)));
    }
    banner_.array = format == "array";
    banner_.pattern = field == "pattern";
    if (banner_.array && banner_.pattern) {
      return lines_.Error("an array of pattern entries has no values to read");
    }
    if (banner_.pattern && banner_.symmetry == Symmetry::kSkewSymmetric) {
      return lines_.Error("a pattern cannot be skew-symmetric: its values would be 1 and -1");
    }
    return absl::OkStatus();
  }

  /// The next line that is neither blank nor a comment.
  std::optional<std::string_view> NextLine() {
    while (const std::optional<std::string_view> line = lines_.Next()) {
      if (!line->empty() && line->front() == '%') continue;
      if (!IsBlank(*line)) return line;
    }
    return std::nullopt;
  }

  absl::Status ReadSize() {
    const std::optional<std::string_view> line = NextLine();
    if (!line) return EndOfFile("the line with the sizes is missing");
    std::string_view rest = *line;
    const auto rows = ParseInteger(NextWord(rest));
    const auto cols = ParseInteger(NextWord(rest));
    const auto entries = banner_.array ? std::optional<int64_t>(0) : ParseInteger(NextWord(rest));
    if (!rows || !cols || !entries || *rows < 0 || *cols < 0 || *entries < 0 || !IsBlank(rest)) {
      return lines_.Error(fmt::format(
          "expected {}, found {}", banner_.array ? "\"ROWS COLUMNS\"" : "\"ROWS COLUMNS ENTRIES\"",
          Quoted(*line)));
    }
    if (*rows > options_.max_dimension || *cols > options_.max_dimension) {
      return lines_.Error(fmt::format("{} x {} is too large: rows and columns can be {} at most",
                                      *rows, *cols, options_.max_dimension));
    }
    if (banner_.symmetry != Symmetry::kGeneral && *rows != *cols) {
      return lines_.Error(
          fmt::format("a symmetric matrix must be square, this is {} x {}", *rows, *cols));
    }
    size_ = {*rows, *cols, *entries};
    if (banner_.array) size_.entries = ArrayEntries();
    if (options_.announce && IsMostlyOffsets(size_.rows, size_.entries)) {
      options_.announce(OffsetsNote(size_.rows, size_.entries));
    }
    return absl::OkStatus();
  }

  int64_t ArrayEntries() const {
    switch (banner_.symmetry) {
      case Symmetry::kSymmetric:
        return size_.rows % 2 == 0 ? size_.rows / 2 * (size_.rows + 1)
                                   : (size_.rows + 1) / 2 * size_.rows;
      case Symmetry::kSkewSymmetric:
        return size_.rows % 2 == 0 ? size_.rows / 2 * (size_.rows - 1)
                                   : (size_.rows - 1) / 2 * size_.rows;
      default:
        return size_.rows * size_.cols;
    }
  }

  absl::Status TooLarge(std::string_view word) {
    return lines_.Error(fmt::format("the value {} is too large for f64", Quoted(word)));
  }

  absl::Status ReadEntries() {
    for (int64_t i = 0; i < size_.entries; ++i) {
      const std::optional<std::string_view> line = NextLine();
      if (!line) return TooFew(i);
      std::string_view rest = *line;
      const auto row = ParseInteger(NextWord(rest));
      const auto col = ParseInteger(NextWord(rest));
      const std::string_view word = banner_.pattern ? "1" : NextWord(rest);
      const auto value = ParseReal(word);
      if (!value && IsTooLarge(word)) return TooLarge(word);
      if (!row || !col || !value || !IsBlank(rest)) {
        return lines_.Error(fmt::format("expected {}, found {}",
                                        banner_.pattern ? "\"ROW COLUMN\"" : "\"ROW COLUMN VALUE\"",
                                        Quoted(*line)));
      }
      if (*row < 1 || *row > size_.rows) {
        return lines_.Error(
            fmt::format("row {} is out of range, expected 1 to {}", *row, size_.rows));
      }
      if (*col < 1 || *col > size_.cols) {
        return lines_.Error(
            fmt::format("column {} is out of range, expected 1 to {}", *col, size_.cols));
      }
      if (banner_.symmetry == Symmetry::kSkewSymmetric && *row == *col) {
        return lines_.Error("a skew-symmetric matrix has no entries on its diagonal");
      }
      Add(*row - 1, *col - 1, *value);
    }
    return absl::OkStatus();
  }

  /// One value a line, column by column; below the diagonal only if symmetric.
  absl::Status ReadArray() {
    int64_t seen = 0;
    for (int64_t col = 0; seen < size_.entries && col < size_.cols; ++col) {
      const int64_t first = banner_.symmetry == Symmetry::kGeneral     ? 0
                            : banner_.symmetry == Symmetry::kSymmetric ? col
                                                                       : col + 1;
      for (int64_t row = first; row < size_.rows; ++row, ++seen) {
        const std::optional<std::string_view> line = NextLine();
        if (!line) return TooFew(seen);
        std::string_view rest = *line;
        const std::string_view word = NextWord(rest);
        const auto value = ParseReal(word);
        if (!value && IsTooLarge(word)) return TooLarge(word);
        if (!value || !IsBlank(rest)) {
          return lines_.Error(fmt::format("expected one value, found {}", Quoted(*line)));
        }
        if (*value != 0) Add(row, col, *value);
      }
    }
    return absl::OkStatus();
  }

  void Add(int64_t row, int64_t col, double value) {
    builder_->Add(static_cast<int32_t>(row), static_cast<int32_t>(col), value);
    if (row == col || banner_.symmetry == Symmetry::kGeneral) return;
    builder_->Add(static_cast<int32_t>(col), static_cast<int32_t>(row),
                  banner_.symmetry == Symmetry::kSymmetric ? value : -value);
  }

  absl::Status ExpectEnd() {
    if (NextLine()) {
      return lines_.Error(
          fmt::format("more entries than the {} that were announced", size_.entries));
    }
    return lines_.status();
  }

  absl::Status TooFew(int64_t seen) {
    return EndOfFile(fmt::format("the file ends after {} of {} entries", seen, size_.entries));
  }
  absl::Status EndOfFile(std::string_view what) const {
    return lines_.status().ok() ? lines_.Error(what) : lines_.status();
  }

  LineReader lines_;
  const ReadOptions& options_;
  Banner banner_;
  Size size_;
  std::optional<CsrBuilder> builder_;
};

// "ROWS COLUMNS ENTRIES", each as wide as it can get.
constexpr std::string_view kWriterBanner = "%%MatrixMarket matrix coordinate real general\n";
constexpr size_t kSizeWidth = 10 + 1 + 10 + 1 + 19;

}  // namespace

absl::StatusOr<CsrMatrix> ReadMatrixMarket(const std::string& path, ValueType type,
                                           int64_t max_dimension) {
  ReadOptions options;
  options.format = FileFormat::kMatrixMarket;
  options.type = type;
  options.max_dimension = max_dimension;
  absl::StatusOr<MatrixFile> read = ReadMatrixFile(path, options);
  if (!read.ok()) return read.status();
  return std::move(read->matrix);
}

absl::StatusOr<MatrixFile> ReadMatrixMarket(LineReader lines, const ReadOptions& options) {
  return Reader(std::move(lines), options).Read();
}

absl::StatusOr<MatrixMarketWriter> MatrixMarketWriter::Open(const std::string& path) {
  absl::StatusOr<PackedFile> file = PackedFile::Create(path);
  if (!file.ok()) return file.status();
  const std::string reserved = std::string(kWriterBanner) + std::string(kSizeWidth, ' ') + '\n';
  if (absl::Status status = file->Write(reserved); !status.ok()) return status;
  return MatrixMarketWriter(*std::move(file));
}

absl::Status MatrixMarketWriter::Add(const RowBlock& block) {
  return WriteEntries(block, /*first_index=*/1, ' ', file_);
}

absl::Status MatrixMarketWriter::Finish(int64_t rows, int64_t cols, int64_t nnz) {
  const std::string size = fmt::format("{} {} {}", rows, cols, nnz);
  if (absl::Status status = file_.Patch(kWriterBanner.size(), size); !status.ok()) return status;
  return file_.Commit();
}

absl::Status WriteMatrixMarket(const std::string& path, const CsrMatrix& matrix) {
  absl::StatusOr<MatrixMarketWriter> writer = MatrixMarketWriter::Open(path);
  if (!writer.ok()) return writer.status();
  return WriteMatrix(*writer, matrix);
}

}  // namespace sparsed::cli
