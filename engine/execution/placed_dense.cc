#include "engine/execution/placed_dense.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace sparsed::engine {
namespace {

/// What GPU kernels read at once.
constexpr size_t kWideBytes = 16;
/// Elements of a row: longer ones gain nothing.
constexpr int64_t kMostPadded = 1 << 16;

}  // namespace

std::optional<DenseShape> PaddedShape(const DenseShape& shape) {
  const auto wide = static_cast<int64_t>(kWideBytes / SizeOf(shape.type));
  DenseShape padded = shape;
  if (shape.cols <= 1) {
    padded.leading_dimension = shape.cols;
    if (shape.leading_dimension == shape.cols) return std::nullopt;
    return padded;
  }
  if (shape.cols % wide == 0 && shape.leading_dimension % wide == 0) return std::nullopt;
  padded.leading_dimension = (shape.cols + wide - 1) / wide * wide;
  const bool small = padded.leading_dimension <= 2 * shape.cols;
  if (!small || padded.leading_dimension > kMostPadded) return std::nullopt;
  return padded;
}

PitchedRows RowsOf(const DenseShape& host, const DenseShape& device) {
  const size_t size = SizeOf(host.type);
  return {.rows = static_cast<size_t>(host.rows),
          .row_bytes = static_cast<size_t>(host.cols) * size,
          .host_pitch = static_cast<size_t>(host.leading_dimension) * size,
          .device_pitch = static_cast<size_t>(device.leading_dimension) * size};
}

PlacedDense ColumnsOf(const PlacedDense& wide, int64_t first, int64_t count) {
  Array part = *wide.array;
  const size_t before = static_cast<size_t>(first) * SizeOf(part.type);
  part.length -= first;
  part.buffer = wide.array->buffer.Part(before, wide.array->buffer.size() - before);
  DenseShape shape = wide.shape;
  shape.cols = count;
  return {std::make_shared<const Array>(std::move(part)), shape};
}

int64_t CommonWidth(const PlacedDense& one, const PlacedDense& other) {
  return one.width() == other.width() ? one.width() : one.shape.cols;
}

size_t BytesOf(const DenseShape& shape) {
  return static_cast<size_t>(shape.elements()) * SizeOf(shape.type);
}

absl::Status CheckHolds(const Array& array, const DenseShape& shape) {
  if (array.length >= shape.elements() && array.type == shape.type) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("an array of {} {} elements was to be {} x {} {} with a leading dimension of {}",
                  array.length, Name(array.type), shape.rows, shape.cols, Name(shape.type),
                  shape.leading_dimension));
}

void ClearGaps(Array& array, const DenseShape& shape) {
  const size_t size = SizeOf(shape.type);
  const size_t gap = (shape.leading_dimension - shape.cols) * size;
  for (int64_t row = 0; gap > 0 && row + 1 < shape.rows; ++row) {
    std::memset(array.buffer.mutable_data() + (row * shape.leading_dimension + shape.cols) * size,
                0, gap);
  }
}

void CopyRows(const Array& from, const DenseShape& from_shape, Array& to,
              const DenseShape& to_shape) {
  const size_t size = SizeOf(to_shape.type);
  for (int64_t row = 0; row < to_shape.rows; ++row) {
    std::memcpy(to.buffer.mutable_data() + row * to_shape.leading_dimension * size,
                from.buffer.data() + row * from_shape.leading_dimension * size,
                to_shape.cols * size);
  }
}

}  // namespace sparsed::engine
