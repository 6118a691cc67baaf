// The caller's matrices, as products here see them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "client/attached/exported_product.h"
#include "client/src/convert.h"
#include "sparsed/attached.h"
#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

template <typename View>
int64_t LeadingDimension(const View& view) {
  return view.leading_dimension == 0 ? view.cols : view.leading_dimension;
}

template <typename View>
DenseMemory MemoryOf(const View& view) {
  return {const_cast<void*>(static_cast<const void*>(view.data)), view.rows, view.cols,
          LeadingDimension(view)};
}

template <typename View>
bool Fits(const View& view, int64_t rows, int64_t cols, v1::ElementType type) {
  return view.rows == rows && view.cols == cols && ToProto(view.type) == type &&
         LeadingDimension(view) >= cols &&
         (view.data != nullptr || view.rows == 0 || view.cols == 0);
}

template <typename View>
std::pair<const std::byte*, const std::byte*> Extent(const View& view) {
  const auto* const begin = static_cast<const std::byte*>(view.data);
  const int64_t elements =
      view.rows == 0 ? 0 : (view.rows - 1) * LeadingDimension(view) + view.cols;
  return {begin, begin + elements * static_cast<int64_t>(SizeOf(view.type))};
}

template <typename A, typename B>
bool Overlap(const A& a, const B& b) {
  const auto [a_begin, a_end] = Extent(a);
  const auto [b_begin, b_end] = Extent(b);
  return a_begin < b_end && b_begin < a_end;
}

template <typename A, typename B>
bool Same(const A& a, const B& b) {
  return a.data == b.data && LeadingDimension(a) == LeadingDimension(b);
}

template <typename View>
uint64_t Bytes(const View& view) {
  return static_cast<uint64_t>(view.rows * view.cols) * SizeOf(view.type);
}

inline absl::Status NotOnGpu() {
  return absl::FailedPreconditionError(
      "the matrix is not attached on a GPU (AttachOptions::gpu), so nothing runs in a stream");
}

/// A copy in host memory of a matrix of a GPU's, without gaps.
class HostCopy {
 public:
  HostCopy(int gpu, GpuStream stream) : gpu_(gpu), stream_(stream) {}

  absl::Status Take(const DenseView& there) {
    if (absl::Status s = Resize(there); !s.ok()) return s;
    const size_t row = RowBytes();
    return CopyBetween(bytes_.get(), row, there.data, Pitch(there), row, Rows(), gpu_,
                       stream_.handle);
  }
  /// Its elements are not set.
  template <typename View>
  absl::Status Resize(const View& there) {
    rows_ = there.rows;
    cols_ = there.cols;
    type_ = there.type;
    if (LeadingDimension(there) < cols_) {
      return absl::InvalidArgumentError(fmt::format(
          "a matrix of {} columns has a leading dimension of {}", cols_, LeadingDimension(there)));
    }
    size_t bytes = 0;
    if (__builtin_mul_overflow(std::max<int64_t>(rows_, 0), std::max<int64_t>(cols_, 0), &bytes) ||
        __builtin_mul_overflow(bytes, SizeOf(type_), &bytes)) {
      return TooLarge();
    }
    bytes_.reset(new (std::nothrow) std::byte[bytes]);
    return bytes_ == nullptr ? TooLarge() : absl::OkStatus();
  }
  absl::Status Put(const MutableDenseView& there) const {
    const size_t row = RowBytes();
    return CopyBetween(there.data, Pitch(there), bytes_.get(), row, row, Rows(), gpu_,
                       stream_.handle);
  }
  DenseView view() const { return {bytes_.get(), type_, rows_, cols_}; }
  MutableDenseView mutable_view() { return {bytes_.get(), type_, rows_, cols_}; }

 private:
  template <typename View>
  static size_t Pitch(const View& view) {
    return static_cast<size_t>(LeadingDimension(view)) * SizeOf(view.type);
  }
  absl::Status TooLarge() const {
    return absl::ResourceExhaustedError(fmt::format(
        "the product runs on the server, and for a matrix of {} x {} there is no host memory",
        rows_, cols_));
  }
  size_t Rows() const { return static_cast<size_t>(std::max<int64_t>(rows_, 0)); }
  size_t RowBytes() const {
    return static_cast<size_t>(std::max<int64_t>(cols_, 0)) * SizeOf(type_);
  }

  const int gpu_;
  const GpuStream stream_;
  int64_t rows_ = 0, cols_ = 0;
  ValueType type_{};
  std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace client
}  // namespace sparsed
