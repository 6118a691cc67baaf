// The caller's arrays as bytes, checked for what the types cannot say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/src/strided_bytes.h"
#include "proto/wire/chunk_codec.h"
#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

/// INVALID_ARGUMENT, with `what` it is, if a size is negative, too large, or the pointer null.
absl::StatusOr<StridedBytes> BytesOf(const DenseView& view, std::string_view what);
absl::StatusOr<StridedBytes> BytesOf(const MutableDenseView& view, std::string_view what);
StridedBytes BytesOf(const ConstValues& values);

template <typename T>
StridedBytes BytesOf(std::span<const T> elements) {
  return StridedBytes(const_cast<T*>(elements.data()), elements.size_bytes());
}

/// Whether a sparse matrix can have these sizes. None of them is used before they were asked for;
/// afterwards an array's bytes do not overflow.
bool Plausible(int64_t rows, int64_t cols, int64_t nnz);

/// An array of known length that arrives in ascending chunks. The server is trusted neither with
/// offsets nor with the length: memory grows with the bytes that came.
class IncomingArray {
 public:
  /// Appends `length` elements to `elements`, which must outlive this. Chunk offsets count from
  /// `origin` elements before them.
  template <typename T>
  IncomingArray(std::vector<T>& elements, int64_t length, int64_t origin = 0)
      : grow_([&elements, begin = elements.size()](size_t bytes) {
          elements.resize(begin + (bytes + sizeof(T) - 1) / sizeof(T));
          return reinterpret_cast<std::byte*>(elements.data() + begin);
        }),
        size_(static_cast<uint64_t>(length) * sizeof(T)),
        origin_(static_cast<uint64_t>(origin) * sizeof(T)) {}

  /// INTERNAL unless the chunk continues what came before, RESOURCE_EXHAUSTED without memory.
  absl::Status Add(const wire::ChunkView& chunk);
  bool complete() const { return received_ == size_; }

 private:
  std::function<std::byte*(size_t bytes)> grow_;
  uint64_t size_;  // this and what follows in bytes
  uint64_t origin_;
  uint64_t received_ = 0;
};

/// INTERNAL unless `row_offsets` ascend from `nnz_begin` to `nnz_begin` + columns and every column
/// is in [0, cols).
absl::Status CheckCsr(std::span<const int64_t> row_offsets, int64_t nnz_begin,
                      std::span<const int32_t> column_indices, int64_t cols);

}  // namespace client
}  // namespace sparsed
