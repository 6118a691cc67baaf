// The bytes of a row-major matrix whose rows may have gaps, addressed as if they had none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace sparsed {
inline namespace client {

class StridedBytes {
 public:
  StridedBytes() = default;
  StridedBytes(void* data, size_t rows, size_t row_bytes, size_t stride_bytes)
      : data_(static_cast<std::byte*>(data)),
        row_bytes_(row_bytes),
        stride_bytes_(stride_bytes),
        size_(rows * row_bytes) {}
  StridedBytes(void* data, size_t size) : StridedBytes(data, 1, size, size) {}

  /// Without the gaps.
  size_t size() const { return size_; }
  bool contiguous() const { return row_bytes_ == stride_bytes_ || size_ == row_bytes_; }
  /// Only if contiguous.
  std::byte* data() const { return data_; }

  /// Copies [offset, offset + size) to `out`.
  void Read(size_t offset, size_t size, std::byte* out) const {
    ForEachPiece(offset, size, [&out](std::byte* piece, size_t n) {
      std::memcpy(out, piece, n);
      out += n;
    });
  }

  /// Copies `in` to [offset, offset + size).
  void Write(size_t offset, size_t size, const std::byte* in) const {
    ForEachPiece(offset, size, [&in](std::byte* piece, size_t n) {
      std::memcpy(piece, in, n);
      in += n;
    });
  }

 private:
  template <typename F>
  void ForEachPiece(size_t offset, size_t size, F f) const {
    if (size == 0) return;
    if (contiguous()) {
      f(data_ + offset, size);
      return;
    }
    size_t row = offset / row_bytes_;
    size_t in_row = offset % row_bytes_;
    for (; size > 0; ++row, in_row = 0) {
      const size_t n = std::min(size, row_bytes_ - in_row);
      f(data_ + row * stride_bytes_ + in_row, n);
      size -= n;
    }
  }

  std::byte* data_ = nullptr;
  size_t row_bytes_ = 0;
  size_t stride_bytes_ = 0;
  size_t size_ = 0;
};

}  // namespace client
}  // namespace sparsed
