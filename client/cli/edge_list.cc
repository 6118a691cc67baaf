#include "client/cli/edge_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "client/cli/triples.h"
#include "client/cli/words.h"

namespace sparsed::cli {
namespace {

/// More columns than that are no list of edges.
constexpr size_t kMostColumns = 64;

bool IsComment(std::string_view line) {
  while (!line.empty() && IsBlank(line.front())) line.remove_prefix(1);
  return line.empty() || line.front() == '#' || line.front() == '%';
}

/// A whole number, which programs that know no others write as 3.0 or 3e0, too.
std::optional<int64_t> ParseNode(std::string_view word) {
  if (const std::optional<int64_t> whole = ParseInteger(word)) return whole;
  constexpr double kMost = int64_t{1} << 53;
  const std::optional<double> real = ParseReal(word);
  if (!real || std::abs(*real) > kMost || *real != std::trunc(*real)) return std::nullopt;
  return static_cast<int64_t>(*real);
}

/// The columns of a line.
class Columns {
 public:
  /// What lies between them: ',', ';', or ' ' for blanks and tabs.
  void SetDelimiter(std::string_view line) {
    delimiter_ = line.find(',') != std::string_view::npos   ? ','
                 : line.find(';') != std::string_view::npos ? ';'
                                                            : ' ';
  }

  void Split(std::string_view line) {
    count_ = 0;
    if (delimiter_ == ' ') {
      for (std::string_view word = NextWord(line); !word.empty() && !IsComment(word);
           word = NextWord(line)) {
        Add(word);
      }
      return;
    }
    while (true) {
      const size_t end = line.find(delimiter_);
      Add(Trimmed(line.substr(0, end)));
      if (end == std::string_view::npos) return;
      line.remove_prefix(end + 1);
    }
  }

  char delimiter() const { return delimiter_; }
  size_t count() const { return count_; }
  std::string_view operator[](size_t i) const { return words_[i]; }

 private:
  /// Without blanks and quotation marks around it.
  static std::string_view Trimmed(std::string_view word) {
    while (!word.empty() && IsBlank(word.front())) word.remove_prefix(1);
    while (!word.empty() && IsBlank(word.back())) word.remove_suffix(1);
    if (word.size() >= 2 && word.front() == '"' && word.back() == '"') {
      word = word.substr(1, word.size() - 2);
    }
    return word;
  }
  void Add(std::string_view word) {
    if (count_ < kMostColumns) words_[count_] = word;
    ++count_;
  }

  char delimiter_ = ' ';
  std::string_view words_[kMostColumns];
  size_t count_ = 0;
};

class Reader {
 public:
  Reader(LineReader lines, const ReadOptions& options)
      : lines_(std::move(lines)), options_(options) {}

  absl::StatusOr<MatrixFile> Read() {
    std::optional<std::string_view> line = FirstLine();
    if (!line && !lines_.status().ok()) return lines_.status();
    if (line) {
      if (absl::Status status = ChooseColumns(); !status.ok()) return status;
    }
    Triples triples(options_, weight_ == 0);
    if (shape_) triples.SetShape(*shape_);
    for (; line; line = lines_.Next()) {
      if (IsComment(*line)) continue;
      if (absl::Status status = ReadEdge(*line, triples); !status.ok()) return status;
    }
    if (!lines_.status().ok()) return lines_.status();
    if (absl::Status status = CheckFirst(); !status.ok()) return status;
    absl::StatusOr<MatrixFile> read = triples.Build(
        FileFormat::kEdgeList, options_.type.value_or(ValueType::kF32), lines_.name());
    if (read.ok() && !header_.empty() && !shape_) {
      read->notes.push_back(fmt::format("the first line, {}, was taken for names", header_));
    }
    if (read.ok() && weight_ != 0 && !options_.weight_column && !shape_) {
      read->notes.push_back("values are those of the third column (--weight-column=0: ones)");
    }
    return read;
  }

 private:
  /// The first line of an edge; none if there is none.
  std::optional<std::string_view> FirstLine() {
    while (const std::optional<std::string_view> line = lines_.Next()) {
      if (IsComment(*line)) {
        ReadComment(*line);
        continue;
      }
      columns_.SetDelimiter(*line);
      columns_.Split(*line);
      if (!header_.empty() || !IsHeader()) return line;
      header_ = Quoted(*line);
      header_line_ = lines_.line_number();
      header_names_columns_ = NamesColumns();
    }
    return std::nullopt;
  }

  /// A line of names: none of its words is a number.
  bool IsHeader() const {
    for (size_t i = 0; i < std::min(columns_.count(), kMostColumns); ++i) {
      if (ParseReal(columns_[i])) return false;
    }
    return columns_.count() >= 2;
  }

  /// Among nodes that are words: whether a line of words is no edge. An edge has a number in its
  /// third column, and nodes that are not called what columns are.
  bool NamesColumns() const {
    constexpr std::array<std::string_view, 14> kNames = {"from",  "source", "src",  "start", "head",
                                                         "row",   "i",      "u",    "node",  "n1",
                                                         "node1", "node_1", "user", "id1"};
    std::string first(columns_[0]);
    std::ranges::transform(first, first.begin(), absl::ascii_tolower);
    return columns_.count() > 2 || std::ranges::find(kNames, first) != kNames.end();
  }

  void ReadComment(std::string_view line) {
    if (!line.starts_with(kShapeComment)) return;
    line.remove_prefix(kShapeComment.size());
    shape_ = ParseShape(NextWord(line), options_.max_dimension);
  }

  absl::Status ChooseColumns() {
    const size_t count = columns_.count();
    if (count < 2 || count > kMostColumns) {
      return lines_.Error(
          fmt::format("expected the two nodes of an edge, and perhaps its weight, in 2 to {} "
                      "columns, found {}; "
                      "is it a METIS graph (--format=metis)?",
                      kMostColumns, count));
    }
    // Prose has many columns, too.
    for (size_t i = 0; i < 2; ++i) {
      if (!ParseNode(columns_[i])) return NotANode(columns_[i]);
    }
    if (count > 3 && !options_.weight_column) {
      return lines_.Error(fmt::format(
          "there are {} columns: say which has the weights, as in --weight-column=3, or "
          "--weight-column=0 for none",
          count));
    }
    weight_ = static_cast<size_t>(options_.weight_column.value_or(count == 3 ? 3 : 0));
    if (weight_ > count) {
      return lines_.Error(fmt::format("--weight-column={}: there are {} columns", weight_, count));
    }
    expected_ = count;
    return absl::OkStatus();
  }

  absl::Status ReadEdge(std::string_view line, Triples& triples) {
    columns_.Split(line);
    if (columns_.count() != expected_) {
      return lines_.Error(fmt::format("expected {} columns as in the first line, found {} in {}",
                                      expected_, columns_.count(), Quoted(line)));
    }
    const auto row = ParseNode(columns_[0]), col = ParseNode(columns_[1]);
    if (!row || !col) return NotANode(columns_[row ? 1 : 0]);
    std::optional<double> weight = 1;
    if (weight_ != 0) {
      const std::string_view word = columns_[weight_ - 1];
      weight = ParseReal(word);
      if (!weight) {
        return lines_.Error(fmt::format("the weight {} is {}", Quoted(word),
                                        IsTooLarge(word) ? "too large for f64" : "not a number"));
      }
    }
    if (edges_++ == 0) first_ = {*row, *col, weight_ == 3 ? *weight : -1};
    within_first_ = within_first_ && *row <= first_.row && *col <= first_.col;
    if (triples.Add(*row, *col, *weight)) return absl::OkStatus();
    return lines_.Error(triples.Refusal(*row, *col));
  }

  /// No edges are no matrix. A first line that says how many rows, columns and further lines there
  /// are is no edge, either.
  absl::Status CheckFirst() const {
    if (edges_ == 0 && !shape_ && !options_.shape) {
      return absl::InvalidArgumentError(fmt::format(
          "{}: there are no edges in it{}{}; an empty matrix needs a size: --shape=ROWSxCOLUMNS",
          lines_.name(), header_.empty() ? "" : ", only the line ", header_));
    }
    if (edges_ < 2 || !within_first_ || first_.weight != static_cast<double>(edges_ - 1)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(fmt::format(
        "{}: the first line, {} {} {}, says how large the matrix is and how many lines follow, so "
        "this is a Matrix Market file without its banner: (echo '%%MatrixMarket matrix coordinate "
        "real general'; cat FILE) | sparsectl upload - --name=NAME",
        lines_.name(), first_.row, first_.col, first_.weight));
  }

  absl::Status NotANode(std::string_view word) const {
    const char delimiter = columns_.delimiter();
    if (delimiter == ',' && word.find(';') != std::string_view::npos) {
      return lines_.Error(fmt::format(
          "the node {} is not a whole number; if columns end with ; and numbers have decimal "
          "commas: tr ',;' '. ' < FILE | sparsectl upload - --name=NAME",
          Quoted(word)));
    }
    return lines_.Error(fmt::format(
        "the node {} is not a whole number; number the nodes: awk{} '{}!/^[#%]|^$/ {}{}",
        Quoted(word),
        delimiter == ' ' ? std::string() : fmt::format(" -F'{0}' -v OFS='{0}'", delimiter),
        header_names_columns_ ? fmt::format("NR != {} && ", header_line_) : std::string(),
        NumberNodes(options_), AboutHeader()));
  }

  /// What the command that numbers nodes makes of a first line without a number.
  std::string AboutHeader() const {
    if (header_line_ == 0) return {};
    return header_names_columns_
               ? fmt::format(
                     " (line {}, {}, is taken for the columns' names; leave NR != {} && "
                     "out if it is an edge)",
                     header_line_, header_, header_line_)
               : fmt::format(
                     " (line {}, {}, is taken for an edge; put NR != {} && before !/ if it "
                     "has the columns' names)",
                     header_line_, header_, header_line_);
  }

  LineReader lines_;
  const ReadOptions& options_;
  Columns columns_;
  std::string header_;       ///< as it is shown; empty: there is none
  int64_t header_line_ = 0;  ///< its number
  bool header_names_columns_ = false;
  std::optional<MatrixShape> shape_;
  struct Edge {
    int64_t row = 0, col = 0;
    double weight = 0;
  };
  Edge first_;
  int64_t edges_ = 0;
  bool within_first_ = true;  ///< no index is greater than the first edge's
  size_t expected_ = 0;       ///< columns of each line
  size_t weight_ = 0;         ///< which has the weights, counted from 1; 0: none
};

}  // namespace

absl::StatusOr<MatrixFile> ReadEdgeList(LineReader lines, const ReadOptions& options) {
  return Reader(std::move(lines), options).Read();
}

}  // namespace sparsed::cli
