#include "tests/matrix_pack.h"

#include <fmt/format.h>
#include <lzma.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

namespace sparsed::test {
namespace {

constexpr std::string_view kMagic = "sparsed patterns 1\n";
constexpr uint64_t kLongestName = 255;
constexpr uint64_t kMostRows = std::numeric_limits<int32_t>::max();
constexpr size_t kMostBytes = size_t{4} << 30;  ///< decompressed: what a reader puts up with

void AppendVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

uint64_t Zigzag(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
}
int64_t Unzigzag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

void Append(std::string& out, const NamedPattern& named) {
  const Pattern& pattern = named.pattern;
  AppendVarint(out, named.name.size());
  out += named.name;
  AppendVarint(out, pattern.rows);
  AppendVarint(out, pattern.cols);
  AppendVarint(out, pattern.nnz());
  for (int64_t row = 0; row < pattern.rows; ++row) {
    AppendVarint(out, pattern.row_offsets[row + 1] - pattern.row_offsets[row]);
  }
  int64_t first_before = 0;
  for (int64_t row = 0; row < pattern.rows; ++row) {
    const int64_t begin = pattern.row_offsets[row], end = pattern.row_offsets[row + 1];
    for (int64_t p = begin; p < end; ++p) {
      const int64_t column = pattern.column_indices[p];
      if (p == begin) {
        AppendVarint(out, Zigzag(column - first_before));
        first_before = column;
      } else {
        AppendVarint(out, column - pattern.column_indices[p - 1] - 1);
      }
    }
  }
}

/// Reads what `Append` wrote. Whatever is not as it should be makes `failed` true for good.
class Parser {
 public:
  explicit Parser(std::string_view bytes) : bytes_(bytes) {}

  bool failed() const { return failed_; }
  bool at_end() const { return bytes_.empty(); }

  uint64_t Varint(uint64_t most) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        if (value > most) failed_ = true;
        return failed_ ? 0 : value;
      }
    }
    failed_ = true;
    return 0;
  }
  /// A count of things of which each takes a byte or more here: never more than there are bytes.
  int64_t Count(uint64_t most) {
    const uint64_t count = Varint(most);
    if (count > bytes_.size()) failed_ = true;
    return failed_ ? 0 : static_cast<int64_t>(count);
  }
  std::string Text(int64_t length) {
    std::string text(bytes_.substr(0, length));
    bytes_.remove_prefix(text.size());
    return text;
  }

  std::optional<NamedPattern> Next() {
    NamedPattern named;
    named.name = Text(Count(kLongestName));
    Pattern& pattern = named.pattern;
    pattern.rows = Count(kMostRows);
    pattern.cols = static_cast<int64_t>(Varint(kMostRows));
    const int64_t nnz = Count(std::numeric_limits<int64_t>::max());
    pattern.row_offsets.reserve(pattern.rows + 1);
    for (int64_t row = 0; row < pattern.rows && !failed_; ++row) {
      pattern.row_offsets.push_back(pattern.row_offsets.back() +
                                    static_cast<int64_t>(Varint(pattern.cols)));
    }
    if (failed_ || pattern.row_offsets.back() != nnz) return std::nullopt;
    pattern.column_indices.reserve(nnz);
    int64_t first = 0;
    for (int64_t row = 0; row < pattern.rows; ++row) {
      int64_t column = first;
      for (int64_t p = pattern.row_offsets[row]; p < pattern.row_offsets[row + 1]; ++p) {
        if (p == pattern.row_offsets[row]) {
          first = column = first + Unzigzag(Varint(2 * kMostRows));
        } else {
          column += 1 + static_cast<int64_t>(Varint(kMostRows));
        }
        if (failed_ || column < 0 || column >= pattern.cols) return std::nullopt;
        pattern.column_indices.push_back(static_cast<int32_t>(column));
      }
    }
    return named;
  }

 private:
  std::string_view bytes_;
  bool failed_ = false;
};

/// Nothing if it is damaged, cut short, or too large.
std::optional<std::string> Decompress(const std::string& compressed) {
  lzma_stream stream = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&stream, uint64_t{1} << 30, 0) != LZMA_OK) return std::nullopt;
  std::string out;
  std::string piece(size_t{1} << 20, '\0');
  stream.next_in = reinterpret_cast<const uint8_t*>(compressed.data());
  stream.avail_in = compressed.size();
  lzma_ret state = LZMA_OK;
  while (state == LZMA_OK && out.size() <= kMostBytes) {
    stream.next_out = reinterpret_cast<uint8_t*>(piece.data());
    stream.avail_out = piece.size();
    state = lzma_code(&stream, LZMA_FINISH);
    out.append(piece, 0, piece.size() - stream.avail_out);
  }
  const bool whole = state == LZMA_STREAM_END && stream.avail_in == 0;
  lzma_end(&stream);
  if (!whole) return std::nullopt;
  return out;
}

}  // namespace

absl::Status WriteMatrixPack(const std::string& path, std::span<const NamedPattern> patterns) {
  std::string bytes(kMagic);
  for (const NamedPattern& named : patterns) {
    if (named.name.size() > kLongestName) {
      return absl::InvalidArgumentError(fmt::format("the name {} is too long", named.name));
    }
    Append(bytes, named);
  }
  std::string compressed(lzma_stream_buffer_bound(bytes.size()), '\0');
  size_t size = 0;
  const lzma_ret state = lzma_easy_buffer_encode(
      LZMA_PRESET_DEFAULT, LZMA_CHECK_CRC64, nullptr,
      reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(),
      reinterpret_cast<uint8_t*>(compressed.data()), &size, compressed.size());
  if (state != LZMA_OK) return absl::ResourceExhaustedError("no memory for compressing the pack");
  std::ofstream file(path, std::ios::binary);
  file.write(compressed.data(), static_cast<std::streamsize>(size));
  file.close();
  if (!file) return absl::UnavailableError(fmt::format("cannot write {}", path));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NamedPattern>> ReadMatrixPack(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(fmt::format("cannot open {}", path));
  const std::string compressed((std::istreambuf_iterator<char>(file)), {});
  const std::optional<std::string> bytes = Decompress(compressed);
  if (!bytes) {
    return absl::InvalidArgumentError(
        fmt::format("{} is no xz file, or it is damaged or cut short", path));
  }
  if (!std::string_view(*bytes).starts_with(kMagic)) {
    return absl::InvalidArgumentError(fmt::format("{} is no pack of matrices", path));
  }
  Parser parser(std::string_view(*bytes).substr(kMagic.size()));
  std::vector<NamedPattern> patterns;
  while (!parser.at_end()) {
    std::optional<NamedPattern> named = parser.Next();
    if (!named || parser.failed()) {
      return absl::InvalidArgumentError(
          fmt::format("{} has no proper pattern after its first {}", path, patterns.size()));
    }
    patterns.push_back(*std::move(named));
  }
  return patterns;
}

}  // namespace sparsed::test
