#include "client/cli/npy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "client/cli/npy_stream.h"
#include "client/cli/number_range.h"

namespace sparsed::cli {
namespace {

static_assert(std::endian::native == std::endian::little);

/// A whole file, mapped for reading.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat info {};
    if (fd < 0 || fstat(fd, &info) != 0) {
      const int error = errno;
      if (fd >= 0) close(fd);
      return absl::InvalidArgumentError(
          fmt::format("cannot open {}: {}", path, std::strerror(error)));
    }
    const auto size = static_cast<size_t>(info.st_size);
    void* data = S_ISREG(info.st_mode) && size > 0
                     ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0)
                     : MAP_FAILED;
    close(fd);
    if (data == MAP_FAILED) {
      return absl::InvalidArgumentError(fmt::format("{} is empty or not a plain file", path));
    }
    return MappedFile(static_cast<const char*>(data), size);
  }

  std::string_view bytes() const { return {data_.get(), data_.get_deleter().size}; }

 private:
  struct Unmap {
    size_t size;
    void operator()(const char* data) const { munmap(const_cast<char*>(data), size); }
  };
  MappedFile(const char* data, size_t size) : data_(data, Unmap{size}) {}

  std::unique_ptr<const char, Unmap> data_;
};

struct Header : NpyArrayHeader {
  size_t data_begin = 0;
};

std::optional<Header> ReadHeader(std::string_view bytes) {
  if (bytes.size() < 12 || bytes.substr(0, 6) != kNpyMagic) return std::nullopt;
  const auto byte = [&bytes](size_t i) {
    return static_cast<size_t>(static_cast<uint8_t>(bytes[i]));
  };
  const size_t version = byte(6);
  if (version < 1 || version > 3) return std::nullopt;
  const size_t begin = version == 1 ? 10 : 12;
  const size_t length = version == 1 ? byte(8) | byte(9) << 8
                                     : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  if (length > bytes.size() - begin) return std::nullopt;
  std::optional<NpyArrayHeader> header = ParseNpyHeader(bytes.substr(begin, length));
  if (!header) return std::nullopt;
  return Header{*std::move(header), begin + length};
}

/// Copies a matrix of From at `data` into row-major `to`. Returns the index of the first number
/// that is beyond To's range, or -1.
template <typename From, typename To>
int64_t Convert(const char* data, bool swap, bool fortran_order, int64_t rows, int64_t cols,
                std::vector<To>& to) {
  if (!fortran_order && !swap && std::is_same_v<From, To>) {
    if (!to.empty()) std::memcpy(to.data(), data, to.size() * sizeof(To));
    return -1;
  }
  const int64_t row_step = fortran_order ? 1 : cols;
  const int64_t col_step = fortran_order ? rows : 1;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t from = row * row_step + col * col_step;
      const From number =
          LoadNpyElement<From>(data + from * static_cast<int64_t>(sizeof(From)), swap);
      to[row * cols + col] = static_cast<To>(number);
      if (Overflowed(number, to[row * cols + col])) return row * cols + col;
    }
  }
  return -1;
}

absl::Status Bad(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", path, what));
}

/// As float32, some at a time.
absl::Status WriteWidened(OutputFile& file, const std::vector<BFloat16>& values) {
  constexpr size_t kAtOnce = size_t{1} << 16;
  std::vector<float> wide;
  for (size_t begin = 0; begin < values.size(); begin += kAtOnce) {
    const size_t end = std::min(begin + kAtOnce, values.size());
    wide.assign(values.begin() + begin, values.begin() + end);
    const absl::Status written = file.Write(wide.data(), wide.size() * sizeof(float));
    if (!written.ok()) return written;
  }
  return absl::OkStatus();
}

absl::StatusOr<NpyArray> FromHeader(const std::string& path, const Header& header,
                                    size_t element_bytes, size_t data_bytes, ValueType type) {
  if (header.shape.empty() || header.shape.size() > 2) {
    return Bad(path,
               fmt::format("the array has {} dimensions, expected 1 or 2", header.shape.size()));
  }
  const int64_t rows = header.shape[0];
  const int64_t cols = header.shape.size() == 2 ? header.shape[1] : 1;
  if (cols == 0) return Bad(path, "the array has no columns");
  const auto elements = static_cast<int64_t>(data_bytes / element_bytes);
  if (rows > elements / cols ||
      rows * cols * static_cast<int64_t>(element_bytes) != static_cast<int64_t>(data_bytes)) {
    return Bad(path, fmt::format("a shape of {} x {} does not go with {} bytes of data", rows, cols,
                                 data_bytes));
  }
  return NpyArray::Zeros(type, rows, cols, header.shape.size() == 1);
}

}  // namespace

DenseView NpyArray::View() const {
  return std::visit([this](const auto& v) { return DenseView(v.data(), rows, cols); }, values);
}

MutableDenseView NpyArray::MutableView() {
  return std::visit([this](auto& v) { return MutableDenseView(v.data(), rows, cols); }, values);
}

absl::StatusOr<NpyArray> NpyArray::Zeros(ValueType type, int64_t rows, int64_t cols,
                                         bool one_dimensional) {
  NpyArray array;
  array.rows = rows;
  array.cols = cols;
  array.one_dimensional = one_dimensional;
  try {
    if (cols > std::numeric_limits<int64_t>::max() / 8 / std::max<int64_t>(1, rows)) {
      throw std::bad_alloc();
    }
    const size_t elements = static_cast<size_t>(rows) * static_cast<size_t>(cols);
    array.values = ZeroValues(type, elements);
  } catch (const std::exception&) {
    return absl::ResourceExhaustedError(
        fmt::format("no memory for a dense matrix of {} x {}", rows, cols));
  }
  return array;
}

absl::StatusOr<NpyArray> ReadNpy(const std::string& path, ValueType type) {
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  const std::optional<Header> header = ReadHeader(file->bytes());
  if (!header) return Bad(path, "this is not a .npy file, or its header is damaged");
  const std::string& descr = header->descr;
  const bool ordered =
      descr.size() == 3 && std::string_view("<>=").find(descr[0]) != std::string_view::npos;
  const std::string_view element = ordered ? std::string_view(descr).substr(1) : "";
  const size_t element_bytes = element == "f2" ? 2 : element == "f4" ? 4 : element == "f8" ? 8 : 0;
  if (element_bytes == 0) {
    return Bad(path, fmt::format("its elements are \"{}\", expected float16, float32 or float64; "
                                 "in numpy, save array.astype(numpy.float32)",
                                 descr.substr(0, 40)));
  }
  const std::string_view data = file->bytes().substr(header->data_begin);
  absl::StatusOr<NpyArray> array = FromHeader(path, *header, element_bytes, data.size(), type);
  if (!array.ok()) return array;
  const int64_t beyond = std::visit(
      [&](auto& values) {
        using To = typename std::decay_t<decltype(values)>::value_type;
        const bool swap = descr[0] == '>';
        const auto convert = element_bytes == 2   ? Convert<Float16, To>
                             : element_bytes == 4 ? Convert<float, To>
                                                  : Convert<double, To>;
        return convert(data.data(), swap, header->fortran_order, array->rows, array->cols, values);
      },
      array->values);
  if (beyond >= 0) {
    return Bad(path, fmt::format("the number at row {}, column {}, counted from 0, is beyond {}",
                                 beyond / array->cols, beyond % array->cols, Name(type)));
  }
  return array;
}

std::string_view NpyDescr(ValueType type) {
  switch (type) {
    case ValueType::kF64:
      return "<f8";
    case ValueType::kF16:
      return "<f2";
    case ValueType::kI64:
      return "<i8";
    case ValueType::kF32:
    case ValueType::kBF16:
      break;
  }
  return "<f4";
}

int64_t SizeOf(ValueType type) {
  switch (type) {
    case ValueType::kF64:
    case ValueType::kI64:
      return 8;
    case ValueType::kF16:
    case ValueType::kBF16:
      return 2;
    case ValueType::kF32:
      break;
  }
  return 4;
}

std::string NpyHeader(std::string_view descr, std::string_view shape) {
  std::string dictionary =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr, shape);
  // Magic, version and length take 10 bytes; the elements begin at a multiple of 64.
  while ((10 + dictionary.size() + 1) % 64 != 0) dictionary += ' ';
  dictionary += '\n';
  std::string header(kNpyMagic);
  header += '\x01';
  header += '\0';
  header += static_cast<char>(dictionary.size() & 0xff);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

absl::Status WriteNpy(const std::string& path, const NpyArray& array) {
  absl::StatusOr<OutputFile> file = OutputFile::Create(path);
  if (!file.ok()) return file.status();
  const std::string shape = array.one_dimensional ? fmt::format("({},)", array.rows)
                                                  : fmt::format("({}, {})", array.rows, array.cols);
  const std::string header = NpyHeader(NpyDescr(array.type()), shape);
  if (absl::Status status = file->Write(header); !status.ok()) return status;
  const absl::Status written = std::visit(
      [&file]<typename T>(const std::vector<T>& values) {
        if constexpr (std::is_same_v<T, BFloat16>) return WriteWidened(*file, values);
        return file->Write(values.data(), values.size() * sizeof(T));
      },
      array.values);
  return written.ok() ? file->Commit() : written;
}

}  // namespace sparsed::cli
