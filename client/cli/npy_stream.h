// The elements of a NumPy array one after another, as it is stored in a .npy file or in a member of
// an .npz archive (numpy.lib.format, versions 1 to 3).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/byte_source.h"
#include "sparsed/types.h"

namespace sparsed::cli {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

struct NpyArrayHeader {
  std::string descr;  ///< "<f4" and so on
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

/// Parses the Python dictionary that numpy writes, and nothing more general; none if it is
/// anything else.
std::optional<NpyArrayHeader> ParseNpyHeader(std::string_view dictionary);

/// What an array is made of.
struct NpyElement {
  char kind = 0;  ///< 'b', 'i', 'u' or 'f'
  int bytes = 0;
  bool swap = false;  ///< of the other byte order

  bool integer() const { return kind != 'f'; }
};
/// None for what is no real number, or one that C++ has not.
std::optional<NpyElement> ParseNpyElement(std::string_view descr);

/// The one whose bytes are at `at`, wherever that is; `swap`: they are in the other order.
template <typename T>
T LoadNpyElement(const char* at, bool swap) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, at, sizeof(T));
  if (swap) std::reverse(bytes, bytes + sizeof(T));
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

class NpyStream {
 public:
  /// Reads the header. `stream` has to outlive it. Messages do not name the file.
  static absl::StatusOr<NpyStream> Open(ByteStream& stream);

  const NpyArrayHeader& header() const { return header_; }
  /// Of the whole array.
  int64_t elements() const { return elements_; }
  bool integer() const { return element_.integer(); }
  /// f64, f32 or f16, where that is what it is made of.
  std::optional<ValueType> type() const;

  /// The next element; false at the end of the array, or after an error, which status() then has.
  bool Next(double& value);
  /// Likewise, of a whole number; another is an error.
  bool Next(int64_t& value);
  absl::Status Skip(int64_t elements);
  const absl::Status& status() const { return status_; }

 private:
  NpyStream(ByteStream& stream, NpyArrayHeader header, NpyElement element, int64_t elements)
      : stream_(&stream), header_(std::move(header)), element_(element), elements_(elements) {}

  /// Reads and converts some more of them; false as with Next().
  bool Fill();
  template <typename T>
  void Convert(size_t count);

  ByteStream* stream_;
  NpyArrayHeader header_;
  NpyElement element_;
  int64_t elements_;
  int64_t read_ = 0;  ///< of them
  std::vector<char> bytes_;
  std::vector<double> reals_;    ///< of floating point numbers
  std::vector<int64_t> wholes_;  ///< of integers
  size_t next_ = 0;              ///< of them
  absl::Status status_;
};

}  // namespace sparsed::cli
