#include "client/cli/npy_stream.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "sparsed/half.h"

namespace sparsed::cli {
namespace {

static_assert(std::endian::native == std::endian::little);

/// Those of structures with many members are long, others have 128 bytes.
constexpr size_t kMostHeaderBytes = size_t{1} << 20;
constexpr size_t kElementsAtOnce = size_t{1} << 15;

/// Reads the dictionary.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : rest_(text) {}

  bool Parse(NpyArrayHeader& header) {
    bool descr = false;
    bool order = false;
    bool shape = false;
    if (!Take('{')) return false;
    while (!Take('}')) {
      std::string key;
      if (!String(key) || !Take(':')) return false;
      if (key == "descr") {
        descr = String(header.descr);
        if (!descr) return false;
      } else if (key == "fortran_order") {
        order = true;
        if (Word("True")) {
          header.fortran_order = true;
        } else if (!Word("False")) {
          return false;
        }
      } else if (key == "shape") {
        shape = Shape(header.shape);
        if (!shape) return false;
      } else {
        return false;
      }
      if (!Take(',')) {
        if (!Take('}')) return false;
        break;
      }
    }
    return descr && order && shape;
  }

 private:
  void SkipBlanks() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n')) {
      rest_.remove_prefix(1);
    }
  }
  bool Take(char c) {
    SkipBlanks();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool Word(std::string_view word) {
    SkipBlanks();
    if (rest_.substr(0, word.size()) != word) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  bool String(std::string& value) {
    SkipBlanks();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) return false;
    const size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) return false;
    value = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return true;
  }
  bool Shape(std::vector<int64_t>& shape) {
    if (!Take('(')) return false;
    while (!Take(')')) {
      SkipBlanks();
      int64_t extent = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), extent);
      if (error != std::errc() || extent < 0 || shape.size() == 32) return false;
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      shape.push_back(extent);
      if (!Take(',')) return Take(')');
    }
    return true;
  }

  std::string_view rest_;
};

absl::Status Bad(std::string what) { return absl::InvalidArgumentError(std::move(what)); }

/// All of `size` bytes, or fewer at the end.
absl::StatusOr<size_t> ReadAll(ByteStream& stream, char* to, size_t size) {
  size_t length = 0;
  while (length < size) {
    const absl::StatusOr<size_t> n = stream.Read(to + length, size - length);
    if (!n.ok()) return n.status();
    if (*n == 0) break;
    length += *n;
  }
  return length;
}

absl::StatusOr<NpyArrayHeader> ReadHeader(ByteStream& stream) {
  const absl::Status damaged = Bad("this is not a .npy file, or its header is damaged");
  unsigned char fixed[12];  // magic, version, length
  char* const bytes = reinterpret_cast<char*>(fixed);
  absl::StatusOr<size_t> read = ReadAll(stream, bytes, 10);
  if (!read.ok()) return read.status();
  if (*read < 10 || std::string_view(bytes, 6) != kNpyMagic || fixed[6] < 1 || fixed[6] > 3) {
    return damaged;
  }
  size_t length = size_t{fixed[8]} | size_t{fixed[9]} << 8;
  if (fixed[6] > 1) {
    read = ReadAll(stream, bytes + 10, 2);
    if (!read.ok()) return read.status();
    if (*read < 2) return damaged;
    length |= size_t{fixed[10]} << 16 | size_t{fixed[11]} << 24;
  }
  if (length > kMostHeaderBytes) return damaged;
  std::string text(length, '\0');
  read = ReadAll(stream, text.data(), length);
  if (!read.ok()) return read.status();
  if (*read < length) return damaged;
  std::optional<NpyArrayHeader> header = ParseNpyHeader(text);
  if (header) return *std::move(header);
  if (text.find("'descr': [") != std::string::npos) {
    return Bad(
        "its elements are structures; save their columns as one array, or as a sparse "
        "matrix: scipy.sparse.save_npz");
  }
  return damaged;
}

}  // namespace

std::optional<NpyArrayHeader> ParseNpyHeader(std::string_view dictionary) {
  NpyArrayHeader header;
  return HeaderParser(dictionary).Parse(header) ? std::optional(std::move(header)) : std::nullopt;
}

std::optional<NpyElement> ParseNpyElement(std::string_view descr) {
  if (descr.size() != 3 || std::string_view("<>=|").find(descr[0]) == std::string_view::npos) {
    return std::nullopt;
  }
  NpyElement element = {descr[1], descr[2] - '0', descr[0] == '>'};
  const std::string_view kind = descr.substr(1);
  for (const std::string_view known :
       {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}) {
    if (kind == known) return element;
  }
  return std::nullopt;
}

absl::StatusOr<NpyStream> NpyStream::Open(ByteStream& stream) {
  absl::StatusOr<NpyArrayHeader> header = ReadHeader(stream);
  if (!header.ok()) return header.status();
  const std::optional<NpyElement> element = ParseNpyElement(header->descr);
  if (!element) {
    const bool is_complex = header->descr.find('c') != std::string::npos;
    return Bad(
        fmt::format("its elements are \"{}\", expected integers, booleans, float16, float32 "
                    "or float64; in NumPy: {}",
                    header->descr.substr(0, 40),
                    is_complex ? "save a.real and a.imag as two" : "save a.astype(float)"));
  }
  int64_t elements = 1;
  for (const int64_t extent : header->shape) {
    if (extent != 0 && elements > std::numeric_limits<int64_t>::max() / 8 / extent) {
      return Bad(fmt::format("its shape, ({}), is impossible", fmt::join(header->shape, ", ")));
    }
    elements *= extent;
  }
  return NpyStream(stream, *std::move(header), *element, elements);
}

std::optional<ValueType> NpyStream::type() const {
  if (element_.integer()) return std::nullopt;
  return element_.bytes == 2   ? ValueType::kF16
         : element_.bytes == 4 ? ValueType::kF32
                               : ValueType::kF64;
}

template <typename T>
void NpyStream::Convert(size_t count) {
  const char* at = bytes_.data();
  if constexpr (std::is_integral_v<T>) {
    wholes_.resize(count);
    for (size_t i = 0; i < count; ++i, at += sizeof(T)) {
      const T value = LoadNpyElement<T>(at, element_.swap);
      wholes_[i] = static_cast<int64_t>(value);
      if (std::is_same_v<T, uint64_t> && wholes_[i] < 0) {
        status_ = Bad(fmt::format("{} is beyond 64 bits with a sign", value));
      }
      if (element_.kind == 'b') wholes_[i] = wholes_[i] != 0 ? 1 : 0;
    }
  } else {
    reals_.resize(count);
    for (size_t i = 0; i < count; ++i, at += sizeof(T)) {
      reals_[i] = static_cast<double>(LoadNpyElement<T>(at, element_.swap));
    }
  }
}

bool NpyStream::Fill() {
  if (!status_.ok() || read_ == elements_) return false;
  const auto wanted =
      static_cast<size_t>(std::min(elements_ - read_, static_cast<int64_t>(kElementsAtOnce)));
  const auto size = static_cast<size_t>(element_.bytes);
  bytes_.resize(wanted * size);
  const absl::StatusOr<size_t> length = ReadAll(*stream_, bytes_.data(), bytes_.size());
  if (!length.ok()) {
    status_ = length.status();
    return false;
  }
  if (*length < bytes_.size()) {
    status_ = Bad(fmt::format("the array ends after {} of {} elements",
                              read_ + static_cast<int64_t>(*length / size), elements_));
    return false;
  }
  const auto of = [this](char kind, int bytes) {
    return element_.kind == kind && element_.bytes == bytes;
  };
  if (of('f', 8)) Convert<double>(wanted);
  if (of('f', 4)) Convert<float>(wanted);
  if (of('f', 2)) Convert<Float16>(wanted);
  if (of('i', 8)) Convert<int64_t>(wanted);
  if (of('i', 4)) Convert<int32_t>(wanted);
  if (of('i', 2)) Convert<int16_t>(wanted);
  if (of('i', 1)) Convert<int8_t>(wanted);
  if (of('u', 8)) Convert<uint64_t>(wanted);
  if (of('u', 4)) Convert<uint32_t>(wanted);
  if (of('u', 2)) Convert<uint16_t>(wanted);
  if (of('u', 1) || of('b', 1)) Convert<uint8_t>(wanted);
  next_ = 0;
  read_ += static_cast<int64_t>(wanted);
  if (!status_.ok()) wholes_.clear();
  return status_.ok();
}

bool NpyStream::Next(double& value) {
  if (element_.integer()) {
    if (next_ == wholes_.size() && !Fill()) return false;
    value = static_cast<double>(wholes_[next_++]);
  } else {
    if (next_ == reals_.size() && !Fill()) return false;
    value = reals_[next_++];
  }
  return true;
}

bool NpyStream::Next(int64_t& value) {
  if (element_.integer()) {
    if (next_ == wholes_.size() && !Fill()) return false;
    value = wholes_[next_++];
    return true;
  }
  if (next_ == reals_.size() && !Fill()) return false;
  const double real = reals_[next_++];
  if (!(std::abs(real) <= 0x1p53) || real != std::floor(real)) {
    status_ = Bad(fmt::format("{} is not a whole number", real));
    return false;
  }
  value = static_cast<int64_t>(real);
  return true;
}

absl::Status NpyStream::Skip(int64_t elements) {
  double value = 0;
  for (; elements > 0 && Next(value); --elements) {
  }
  if (status_.ok() && elements > 0) return Bad("the array is too short");
  return status_;
}

}  // namespace sparsed::cli
