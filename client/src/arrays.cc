#include "client/src/arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>

#include "client/src/convert.h"
#include "client/src/dense_rows.h"

namespace sparsed {
inline namespace client {
namespace {

template <typename View>
absl::StatusOr<StridedBytes> DenseBytes(const View& view, std::string_view what) {
  const int64_t stride = Stride(view);
  if (view.rows < 0 || view.cols < 1 || stride < view.cols) {
    return absl::InvalidArgumentError(
        fmt::format("{} is {} x {} with leading dimension {}; rows must be 0 or more, columns 1 or "
                    "more, the leading dimension at least the columns",
                    what, view.rows, view.cols, stride));
  }
  const auto size = static_cast<int64_t>(SizeOf(view.type));
  if (stride > std::numeric_limits<int64_t>::max() / size / std::max<int64_t>(1, view.rows)) {
    return absl::InvalidArgumentError(fmt::format("{} is larger than any memory", what));
  }
  if (view.data == nullptr && view.rows > 0) {
    return absl::InvalidArgumentError(fmt::format("{} has no data", what));
  }
  return StridedBytes(const_cast<void*>(static_cast<const void*>(view.data)),
                      static_cast<size_t>(view.rows), static_cast<size_t>(view.cols * size),
                      static_cast<size_t>(stride * size));
}

}  // namespace

absl::StatusOr<StridedBytes> BytesOf(const DenseView& view, std::string_view what) {
  return DenseBytes(view, what);
}

absl::StatusOr<StridedBytes> BytesOf(const MutableDenseView& view, std::string_view what) {
  return DenseBytes(view, what);
}

StridedBytes BytesOf(const ConstValues& values) {
  return std::visit([](const auto& span) { return BytesOf(span); }, values);
}

absl::Status IncomingArray::Add(const wire::ChunkView& chunk) {
  if (chunk.offset != origin_ + received_ || chunk.size > size_ - received_) {
    return absl::InternalError(
        fmt::format("the server sent {} bytes at {} of array {}, expected at most {} at {}",
                    chunk.size, chunk.offset, chunk.array, size_ - received_, origin_ + received_));
  }
  try {
    wire::CopyTo(chunk, grow_(received_ + chunk.size) + received_);
  } catch (const std::exception&) {
    return absl::ResourceExhaustedError(
        fmt::format("no memory for {} bytes of array {}", received_ + chunk.size, chunk.array));
  }
  received_ += chunk.size;
  return absl::OkStatus();
}

bool Plausible(int64_t rows, int64_t cols, int64_t nnz) {
  constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max() - 1;
  constexpr int64_t kMaxNonzeros = std::numeric_limits<int64_t>::max() / 16;
  return rows >= 0 && rows <= kMaxExtent && cols >= 0 && cols <= kMaxExtent && nnz >= 0 &&
         nnz <= std::min(rows * cols, kMaxNonzeros);
}

absl::Status CheckCsr(std::span<const int64_t> row_offsets, int64_t nnz_begin,
                      std::span<const int32_t> column_indices, int64_t cols) {
  const auto nnz_end = nnz_begin + static_cast<int64_t>(column_indices.size());
  if (row_offsets.front() != nnz_begin || row_offsets.back() != nnz_end ||
      !std::is_sorted(row_offsets.begin(), row_offsets.end())) {
    return absl::InternalError("the server sent row offsets that do not ascend to the nonzeros");
  }
  // Negative ones are large as unsigned.
  uint32_t largest = 0;
  for (const int32_t column : column_indices) {
    largest = std::max(largest, static_cast<uint32_t>(column));
  }
  if (!column_indices.empty() && largest >= static_cast<uint64_t>(cols)) {
    return absl::InternalError("the server sent column indices out of range");
  }
  return absl::OkStatus();
}

}  // namespace client
}  // namespace sparsed
