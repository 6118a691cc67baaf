// Rows of dense matrices: where one lies, and their way between a matrix and a part of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "client/src/convert.h"
#include "sparsed/types.h"

namespace sparsed {
inline namespace client {

/// A dense matrix that a part of a call reads or writes.
class Scratch {
 public:
  Scratch() = default;
  Scratch(ValueType type, int64_t rows, int64_t cols)
      : bytes_(static_cast<size_t>(rows * cols) * SizeOf(type)),
        type_(type),
        rows_(rows),
        cols_(cols) {}
  DenseView View() const { return {bytes_.data(), type_, rows_, cols_}; }
  MutableDenseView MutableView() { return {bytes_.data(), type_, rows_, cols_}; }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(1);  // a pointer, also of none
  ValueType type_ = ValueType::kF32;
  int64_t rows_ = 0, cols_ = 1;
};

/// In elements, between the beginnings of two rows.
template <typename View>
int64_t Stride(const View& view) {
  return view.leading_dimension == 0 ? view.cols : view.leading_dimension;
}
inline DenseView ConstView(const MutableDenseView& view) {
  return {view.data, view.type, view.rows, view.cols, view.leading_dimension};
}

inline const std::byte* RowOf(const DenseView& view, int64_t row) {
  return static_cast<const std::byte*>(view.data) +
         row * Stride(view) * static_cast<int64_t>(SizeOf(view.type));
}
inline std::byte* RowOf(const MutableDenseView& view, int64_t row) {
  return const_cast<std::byte*>(RowOf(ConstView(view), row));
}
inline size_t RowBytes(const DenseView& view) {
  return static_cast<size_t>(view.cols) * SizeOf(view.type);
}

/// Consecutive rows of it.
inline DenseView Rows(const DenseView& view, int64_t first, int64_t count) {
  return {count == 0 ? view.data : RowOf(view, first), view.type, count, view.cols, Stride(view)};
}
inline MutableDenseView Rows(const MutableDenseView& view, int64_t first, int64_t count) {
  return {count == 0 ? view.data : RowOf(view, first), view.type, count, view.cols, Stride(view)};
}

/// Those rows, in that order, without gaps.
inline Scratch Gather(const DenseView& from, std::span<const int32_t> rows) {
  Scratch to(from.type, static_cast<int64_t>(rows.size()), from.cols);
  const MutableDenseView view = to.MutableView();
  for (size_t j = 0; j < rows.size(); ++j) {
    std::memcpy(RowOf(view, static_cast<int64_t>(j)), RowOf(from, rows[j]), RowBytes(from));
  }
  return to;
}

/// Row j of `from` to row rows[j].
inline void Scatter(const DenseView& from, std::span<const int32_t> rows,
                    const MutableDenseView& to) {
  for (size_t j = 0; j < rows.size(); ++j) {
    std::memcpy(RowOf(to, rows[j]), RowOf(from, static_cast<int64_t>(j)), RowBytes(from));
  }
}

}  // namespace client
}  // namespace sparsed
