// NumPy's .npy files (numpy.lib.format, versions 1 to 3) and .npz archives of sparse matrices.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/output_file.h"
#include "sparsed/types.h"

namespace sparsed::cli {

/// A row-major dense matrix of its own.
struct NpyArray {
  int64_t rows = 0;
  int64_t cols = 1;
  bool one_dimensional = false;  ///< cols is 1
  Values values;

  ValueType type() const { return static_cast<ValueType>(values.index()); }
  DenseView View() const;
  MutableDenseView MutableView();
  /// Zeros, ready to receive a result.
  static absl::StatusOr<NpyArray> Zeros(ValueType type, int64_t rows, int64_t cols,
                                        bool one_dimensional);
};

/// Reads one or two dimensions of float16, float32 or float64 in any byte order, C or Fortran, as
/// `type`. INVALID_ARGUMENT with the file and a sentence for everything else, and for numbers that
/// are finite and beyond the range of `type`.
absl::StatusOr<NpyArray> ReadNpy(const std::string& path, ValueType type);

/// NumPy has no bf16: it is written as float32, which holds it exactly.
absl::Status WriteNpy(const std::string& path, const NpyArray& array);

/// "<f4" and so on; that of float32 for bf16.
std::string_view NpyDescr(ValueType type);
/// Bytes of an element in memory.
int64_t SizeOf(ValueType type);

/// The bytes before an array's elements. `descr` is as in "<f4", `shape` as in "(3, 4)".
std::string NpyHeader(std::string_view descr, std::string_view shape);

}  // namespace sparsed::cli
