// The caller's arrays as bytes, checked for what the types cannot say.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/src/strided_bytes.h"
#include "proto/wire/chunk_codec.h"
#include "proto/wire/coverage.h"
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

/// An array of known length that arrives in chunks. The server is not trusted with offsets.
class IncomingArray {
 public:
  /// `bytes` must outlive this; chunk offsets count from `origin` bytes before it.
  explicit IncomingArray(std::span<std::byte> bytes, uint64_t origin = 0)
      : bytes_(bytes), origin_(origin), received_(bytes.size()) {}

  /// INTERNAL if the chunk is out of range or brings bytes again.
  absl::Status Add(const wire::ChunkView& chunk);
  bool complete() const { return received_.complete(); }

 private:
  std::span<std::byte> bytes_;
  uint64_t origin_;
  wire::Coverage received_;
};

/// INTERNAL unless `row_offsets` ascend from `nnz_begin` to `nnz_begin` + columns and every column
/// is in [0, cols).
absl::Status CheckCsr(std::span<const int64_t> row_offsets, int64_t nnz_begin,
                      std::span<const int32_t> column_indices, int64_t cols);

}  // namespace client
}  // namespace sparsed
