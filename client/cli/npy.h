// NumPy's .npy files (numpy.lib.format, versions 1 to 3) and .npz archives of sparse matrices.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
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
  std::variant<std::vector<float>, std::vector<double>> values;

  ValueType type() const { return values.index() == 0 ? ValueType::kF32 : ValueType::kF64; }
  DenseView View() const;
  MutableDenseView MutableView();
  /// Zeros, ready to receive a result.
  static absl::StatusOr<NpyArray> Zeros(ValueType type, int64_t rows, int64_t cols,
                                        bool one_dimensional);
};

/// Reads one or two dimensions of float32 or float64 in any byte order, C or Fortran, as `type`.
/// INVALID_ARGUMENT with the file and a sentence for everything else.
absl::StatusOr<NpyArray> ReadNpy(const std::string& path, ValueType type);

absl::Status WriteNpy(const std::string& path, const NpyArray& array);

/// The bytes before an array's elements. `descr` is as in "<f4", `shape` as in "(3, 4)".
std::string NpyHeader(std::string_view descr, std::string_view shape);

}  // namespace sparsed::cli
