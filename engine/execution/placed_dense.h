// Dense matrices where a device's kernels read and write them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "engine/catalog/dense_catalog.h"
#include "engine/memory/residency.h"
#include "kernels/array.h"
#include "kernels/problem.h"

namespace sparsed::engine {

/// How a GPU has a matrix of this shape, if not as it is: rows begin at multiples of 16 bytes, to
/// be read by so many at once, and zeros follow them; a single column has no gaps. None: as it is,
/// rows are very long, or padding would more than double them. It is the same for the same shape
/// every time.
std::optional<DenseShape> PaddedShape(const DenseShape& shape);

/// Rows of a matrix that a GPU has in another shape.
PitchedRows RowsOf(const DenseShape& host, const DenseShape& device);

/// A dense matrix on a device.
struct PlacedDense {
  std::shared_ptr<const Array> array;
  DenseShape shape;     ///< as it is there
  bool padded = false;  ///< by PaddedShape: the array has all of its last row's gap, too

  /// Columns, and the zeros behind them that may be computed with.
  int64_t width() const { return padded ? shape.leading_dimension : shape.cols; }
  /// `columns` of it, for a kernel.
  ConstDense View(int64_t columns) const {
    return {array->buffer.data(), shape.rows, columns, shape.leading_dimension};
  }
  /// The same of one that is being computed.
  Dense MutableView(int64_t columns) const {
    Array written = *array;
    return {written.buffer.mutable_data(), shape.rows, columns, shape.leading_dimension};
  }
};
/// Elements that go from one to the other.
struct DenseCopy {
  PlacedDense from, to;
};
/// Columns [first, first + count) of a matrix that has some, in its memory.
PlacedDense ColumnsOf(const PlacedDense& wide, int64_t first, int64_t count);
/// What a kernel computes: K, or, where both have as many zeros behind, up to those.
int64_t CommonWidth(const PlacedDense& one, const PlacedDense& other);

size_t BytesOf(const DenseShape& shape);

/// INTERNAL unless `array` has the elements that a request or a buffer promises, before
/// anything is read or written by `shape`.
absl::Status CheckHolds(const Array& array, const DenseShape& shape);

/// Zeros the gaps between the rows: what was in that memory before is nobody's business.
void ClearGaps(Array& array, const DenseShape& shape);

/// Copies rows of `from` into `to`, whose leading dimension may be another.
void CopyRows(const Array& from, const DenseShape& from_shape, Array& to,
              const DenseShape& to_shape);

}  // namespace sparsed::engine
