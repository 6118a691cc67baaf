#include "client/cli/matrix_market.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/cli/csr_builder.h"
#include "client/cli/gzip.h"
#include "client/cli/line_reader.h"

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

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

/// Takes the next word off `line`; empty at its end.
std::string_view NextWord(std::string_view& line) {
  size_t begin = 0;
  while (begin < line.size() && IsBlank(line[begin])) ++begin;
  size_t end = begin;
  while (end < line.size() && !IsBlank(line[end])) ++end;
  const std::string_view word = line.substr(begin, end - begin);
  line.remove_prefix(end);
  return word;
}

bool IsBlank(std::string_view line) { return NextWord(line).empty(); }

std::string Lower(std::string_view word) {
  std::string lower(word);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view WithoutPlus(std::string_view word) {
  if (word.size() > 1 && word[0] == '+' && word[1] != '-') word.remove_prefix(1);
  return word;
}

std::optional<int64_t> ParseInteger(std::string_view word) {
  word = WithoutPlus(word);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

/// None for what is no number or is beyond the range of a double; too small for it is zero.
std::optional<double> ParseReal(std::string_view word) {
  word = WithoutPlus(word);
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || end != word.data() + word.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) {
    value = std::strtod(std::string(word).c_str(), nullptr);
    return std::isinf(value) ? std::nullopt : std::optional(value);
  }
  if (error != std::errc()) return std::nullopt;
  return value;
}

/// A number, but none that a double holds.
bool IsTooLarge(std::string_view word) {
  word = WithoutPlus(word);
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return end == word.data() + word.size() && error == std::errc::result_out_of_range;
}

/// What a person sees of a word that makes no sense.
std::string Quoted(std::string_view word) {
  std::string quoted = "\"";
  for (const char c : word.substr(0, 40)) quoted += c >= ' ' && c <= '~' ? c : '?';
  return quoted + (word.size() > 40 ? "...\"" : "\"");
}

/// One file being read.
class Reader {
 public:
  Reader(LineReader lines, ValueType type, int64_t max_dimension)
      : lines_(std::move(lines)), type_(type), max_dimension_(max_dimension) {}

  absl::StatusOr<CsrMatrix> Read() {
    if (absl::Status status = ReadBanner(); !status.ok()) return status;
    if (absl::Status status = ReadSize(); !status.ok()) return status;
    builder_.emplace(size_.rows, size_.cols, banner_.pattern);
    absl::Status status = banner_.array ? ReadArray() : ReadEntries();
    if (status.ok()) status = ExpectEnd();
    if (!status.ok()) return status;
    absl::StatusOr<CsrMatrix> matrix = builder_->Build(type_);
    if (!matrix.ok()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: {}", lines_.path(), std::string(matrix.status().message())));
    }
    return matrix;
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
          "matrices");
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
    if (*rows > max_dimension_ || *cols > max_dimension_) {
      return lines_.Error(fmt::format("{} x {} is too large: rows and columns can be {} at most",
                                      *rows, *cols, max_dimension_));
    }
    if (banner_.symmetry != Symmetry::kGeneral && *rows != *cols) {
      return lines_.Error(
          fmt::format("a symmetric matrix must be square, this is {} x {}", *rows, *cols));
    }
    size_ = {*rows, *cols, *entries};
    if (banner_.array) size_.entries = ArrayEntries();
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
  const ValueType type_;
  const int64_t max_dimension_;
  Banner banner_;
  Size size_;
  std::optional<CsrBuilder> builder_;
};

// "ROWS COLUMNS ENTRIES", each as wide as it can get.
constexpr std::string_view kWriterBanner = "%%MatrixMarket matrix coordinate real general\n";
constexpr size_t kSizeWidth = 10 + 1 + 10 + 1 + 19;

template <typename T>
void AppendNumber(std::string& text, T value) {
  char digits[32];
  const auto result = std::to_chars(digits, digits + sizeof(digits), value);
  text.append(digits, result.ptr);
}

}  // namespace

absl::StatusOr<CsrMatrix> ReadMatrixMarket(const std::string& path, ValueType type,
                                           int64_t max_dimension) {
  absl::StatusOr<LineReader> lines = LineReader::Open(path);
  if (!lines.ok()) return lines.status();
  try {
    return Reader(*std::move(lines), type, max_dimension).Read();
  } catch (const std::exception&) {  // of the containers
    return absl::ResourceExhaustedError(fmt::format("{} does not fit into memory", path));
  }
}

absl::StatusOr<MatrixMarketWriter> MatrixMarketWriter::Open(const std::string& path) {
  std::optional<OutputFile> compressed;
  if (path.ends_with(".gz")) {
    absl::StatusOr<OutputFile> created = OutputFile::Create(path);
    if (!created.ok()) return created.status();
    compressed.emplace(*std::move(created));
  }
  absl::StatusOr<OutputFile> file =
      OutputFile::Create(compressed ? compressed->temporary_path() + ".plain" : path);
  if (!file.ok()) return file.status();
  const std::string reserved = std::string(kWriterBanner) + std::string(kSizeWidth, ' ') + '\n';
  if (absl::Status status = file->Write(reserved); !status.ok()) return status;
  return MatrixMarketWriter(*std::move(file), std::move(compressed));
}

absl::Status MatrixMarketWriter::Add(const RowBlock& block) {
  constexpr size_t kFlushBytes = size_t{1} << 16;
  std::string text;
  text.reserve(kFlushBytes + 128);
  const int64_t first = block.row_offsets.front();
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t i = block.row_offsets[row] - first; i < block.row_offsets[row + 1] - first; ++i) {
      AppendNumber(text, block.row_begin + row + 1);
      text += ' ';
      AppendNumber(text, int64_t{block.column_indices[i]} + 1);
      text += ' ';
      std::visit(
          [&]<typename T>(std::span<const T> values) {
            // Digits enough for a float tell 16-bit values apart too.
            using Printed = std::conditional_t<std::is_same_v<T, double>, double, float>;
            AppendNumber(text, static_cast<Printed>(values[i]));
          },
          block.values);
      text += '\n';
      if (text.size() < kFlushBytes) continue;
      if (absl::Status status = file_.Write(text); !status.ok()) return status;
      text.clear();
    }
  }
  return file_.Write(text);
}

absl::Status MatrixMarketWriter::Finish(int64_t rows, int64_t cols, int64_t nnz) {
  const std::string size = fmt::format("{} {} {}", rows, cols, nnz);
  if (absl::Status status = file_.Patch(kWriterBanner.size(), size); !status.ok()) return status;
  if (!compressed_) return file_.Commit();
  absl::Status status = Gzip(file_.temporary_path(), *compressed_);
  return status.ok() ? compressed_->Commit() : status;
}

absl::Status WriteMatrixMarket(const std::string& path, const CsrMatrix& matrix) {
  absl::StatusOr<MatrixMarketWriter> writer = MatrixMarketWriter::Open(path);
  if (!writer.ok()) return writer.status();
  RowBlock all;
  all.rows = matrix.rows;
  all.row_offsets = matrix.row_offsets;
  all.column_indices = matrix.column_indices;
  all.values = matrix.View().values;
  if (absl::Status status = writer->Add(all); !status.ok()) return status;
  return writer->Finish(matrix.rows, matrix.cols, matrix.nnz());
}

}  // namespace sparsed::cli
