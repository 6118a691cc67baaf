// A pattern as a small grey picture: how dense each part of it is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/features/density_map.h"
#include "kernels/formats/csr.h"

namespace sparsed::server {

struct PatternPicture {
  /// At most; a matrix with fewer rows (columns) has as many pixels.
  static constexpr int64_t kSide = 256;

  int64_t width = 0, height = 0;
  /// Row-major: 0 where there is nothing, else 1 to 255 by the logarithm of the nonzeros.
  std::vector<uint8_t> shades;
  bool sampled = false;  ///< of a large matrix: only some rows were looked at
};

/// Of the pattern with its rows in `order` and its columns in `column_order` (empty: as they are;
/// else position i is row, or column, order[i]); of as many rows as `csr` has. Looks at some
/// millions of nonzeros at most.
PatternPicture PictureOf(const CsrView& csr, std::span<const int32_t> order,
                         std::span<const int32_t> column_order = {});
/// Of its density map.
PatternPicture PictureOf(const DensityMap& map, int64_t rows, int64_t cols);

/// Whether a layout of that pipeline has its rows in another order than the upload's: others may
/// list rows, too, as those that are not empty.
bool Reorders(const std::string& pipeline);

}  // namespace sparsed::server
