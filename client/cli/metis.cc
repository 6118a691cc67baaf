#include "client/cli/metis.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "client/cli/line_reader.h"
#include "client/cli/words.h"

namespace sparsed::cli {
namespace {

/// A vertex with very many neighbours has a line as long.
constexpr size_t kLongestVertex = size_t{1} << 31;
/// METIS itself has room for 32 bits' worth; more than this is no file of a person's.
constexpr int64_t kMostVertexWeights = 1000;

bool IsComment(std::string_view line) { return !line.empty() && line.front() == '%'; }

/// The line with the header, behind comments and blank lines.
std::optional<std::string_view> HeaderLine(LineReader& lines) {
  while (const std::optional<std::string_view> line = lines.Next()) {
    if (!IsComment(*line) && !IsBlank(*line)) return line;
  }
  return std::nullopt;
}

class Reader {
 public:
  Reader(LineReader lines, const ReadOptions& options)
      : lines_(std::move(lines)), options_(options), builder_(true) {}

  absl::StatusOr<MatrixFile> Read() {
    if (absl::Status status = ReadHeader(); !status.ok()) return status;
    int64_t vertex = 0;
    while (const std::optional<std::string_view> line = lines_.Next()) {
      if (IsComment(*line)) continue;
      if (vertex == header_.vertices) {
        if (IsBlank(*line)) continue;
        return lines_.Error(
            fmt::format("more lines than the {} vertices that were announced", vertex));
      }
      if (absl::Status status = ReadVertex(vertex++, *line); !status.ok()) return status;
    }
    if (!lines_.status().ok()) return lines_.status();
    if (absl::Status status = CheckCounts(vertex); !status.ok()) return status;
    absl::StatusOr<MatrixFile> read =
        Built(builder_, {header_.vertices, header_.vertices},
              options_.type.value_or(ValueType::kF32), /*first_index=*/1, lines_.name());
    if (!read.ok()) return read;
    read->format = FileFormat::kMetis;
    if (header_.sizes || header_.weights > 0) {
      read->notes.push_back(fmt::format("the {} of vertices were left out",
                                        !header_.sizes         ? "weights"
                                        : header_.weights == 0 ? "sizes"
                                                               : "sizes and weights"));
    }
    return read;
  }

 private:
  absl::Status ReadHeader() {
    const std::optional<std::string_view> line = HeaderLine(lines_);
    if (!lines_.status().ok()) return lines_.status();
    const std::optional<MetisHeader> header = ParseMetisHeader(line.value_or(""));
    if (!header) {
      return lines_.Error(
          fmt::format("expected \"VERTICES EDGES [FORMAT [WEIGHTS]]\", FORMAT being up to three "
                      "digits 0 or 1, found {}",
                      Quoted(line.value_or(""))));
    }
    if (header->vertices > options_.max_dimension) {
      return lines_.Error(fmt::format("{} vertices are too many: there can be {} at most",
                                      header->vertices, options_.max_dimension));
    }
    header_ = *header;
    builder_ = CsrBuilder(!header_.edge_weights);
    return absl::OkStatus();
  }

  absl::Status ReadVertex(int64_t vertex, std::string_view rest) {
    const int64_t skipped = header_.weights + (header_.sizes ? 1 : 0);
    for (int64_t i = 0; i < skipped; ++i) {
      const std::string_view word = NextWord(rest);
      if (!ParseReal(word)) {
        return lines_.Error(fmt::format("expected {} number{} of vertex {} first, found {}",
                                        skipped, skipped == 1 ? "" : "s", vertex + 1,
                                        word.empty() ? "the line's end" : Quoted(word)));
      }
    }
    for (std::string_view word = NextWord(rest); !word.empty(); word = NextWord(rest)) {
      const auto neighbour = ParseInteger(word);
      if (!neighbour) {
        return lines_.Error(fmt::format("expected a neighbour's number, found {}", Quoted(word)));
      }
      if (*neighbour < 1 || *neighbour > header_.vertices) {
        return lines_.Error(fmt::format("vertex {} is out of range, expected 1 to {}", *neighbour,
                                        header_.vertices));
      }
      std::optional<double> weight = 1;
      if (header_.edge_weights) {
        const std::string_view text = NextWord(rest);
        weight = ParseReal(text);
        if (!weight) {
          return lines_.Error(fmt::format("expected the weight of the edge to {}, found {}",
                                          *neighbour,
                                          text.empty() ? "the line's end" : Quoted(text)));
        }
      }
      builder_.Add(static_cast<int32_t>(vertex), static_cast<int32_t>(*neighbour - 1), *weight);
    }
    return absl::OkStatus();
  }

  absl::Status CheckCounts(int64_t vertices) const {
    if (vertices < header_.vertices) {
      return lines_.Error(
          fmt::format("the file ends after {} of {} vertices", vertices, header_.vertices));
    }
    if (builder_.entries() != 2 * header_.edges) {
      return lines_.Error(fmt::format(
          "{} edges were announced, each of which comes at both of its ends, but there are {} "
          "neighbours and not {}",
          header_.edges, builder_.entries(), 2 * header_.edges));
    }
    return absl::OkStatus();
  }

  LineReader lines_;
  const ReadOptions& options_;
  MetisHeader header_;
  CsrBuilder builder_;
};

int64_t CountWords(std::string_view line) {
  int64_t words = 0;
  while (!NextWord(line).empty()) ++words;
  return words;
}

/// The next line of `text`, taken off it, without its end; none behind the last, which counts only
/// where it is ended or `whole`.
std::optional<std::string_view> TakeLine(std::string_view& text, bool whole) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos && (!whole || text.empty())) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

}  // namespace

std::optional<MetisHeader> ParseMetisHeader(std::string_view line) {
  MetisHeader header;
  const auto vertices = ParseInteger(NextWord(line)), edges = ParseInteger(NextWord(line));
  if (!vertices || !edges || *vertices < 0 || *edges < 0 || *edges > int64_t{1} << 61) {
    return std::nullopt;
  }
  header.vertices = *vertices;
  header.edges = *edges;
  const std::string_view format = NextWord(line);
  if (format.size() > 3 || format.find_first_not_of("01") != std::string_view::npos) {
    return std::nullopt;
  }
  const auto digit = [&format](size_t from_end) {
    return format.size() >= from_end && format[format.size() - from_end] == '1';
  };
  header.edge_weights = digit(1);
  header.weights = digit(2) ? 1 : 0;
  header.sizes = digit(3);
  if (const std::string_view count = NextWord(line); !count.empty()) {
    const auto weights = ParseInteger(count);
    if (!weights || *weights < 0 || *weights > kMostVertexWeights) return std::nullopt;
    if (header.weights > 0) header.weights = *weights;
  }
  return IsBlank(line) ? std::optional(header) : std::nullopt;
}

bool LooksLikeMetis(std::string_view text, bool whole) {
  if (text.starts_with(kMetisComment)) return true;
  std::optional<std::string_view> line;
  do {
    line = TakeLine(text, whole);
  } while (line && (IsComment(*line) || IsBlank(*line)));
  const std::optional<MetisHeader> header = ParseMetisHeader(line.value_or(""));
  if (!header) return false;
  const int64_t header_words = CountWords(*line);
  const int64_t skipped = header->weights + (header->sizes ? 1 : 0);
  const int64_t step = header->edge_weights ? 2 : 1;
  int64_t vertices = 0, neighbours = 0;
  bool lengths_differ = false;
  while ((line = TakeLine(text, whole))) {
    if (IsComment(*line)) continue;
    if (vertices == header->vertices) {
      if (IsBlank(*line)) continue;
      return false;
    }
    ++vertices;
    int64_t words = 0;
    for (std::string_view word = NextWord(*line); !word.empty(); word = NextWord(*line), ++words) {
      if (words < skipped || (words - skipped) % step != 0) continue;
      const auto neighbour = ParseInteger(word);
      if (!neighbour || *neighbour < 1 || *neighbour > header->vertices) return false;
    }
    if (words == 0) continue;
    if (words < skipped || (words - skipped) % step != 0) return false;
    neighbours += (words - skipped) / step;
    lengths_differ = lengths_differ || words != header_words;
  }
  // Of a list of edges every line is as long as the first.
  return lengths_differ || (whole && neighbours > 0 && vertices == header->vertices &&
                            neighbours == 2 * header->edges);
}

absl::StatusOr<MatrixFile> ReadMetis(ByteSource source, const ReadOptions& options) {
  return Reader(LineReader(std::move(source), kLongestVertex), options).Read();
}

}  // namespace sparsed::cli
