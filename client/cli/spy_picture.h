// A matrix's pattern as a picture of characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparsed/types.h"

namespace sparsed::cli {

struct SpyOptions {
  int max_width = 80;   ///< characters of a line, axes included
  int max_height = 40;  ///< lines of the picture, axes not included
  bool ascii = false;   ///< densities as " .:-=+*#%@" instead of Braille dots
  bool colour = false;  ///< densities as colours, by escape sequences
};

struct SpyDrawing {
  /// A frame, with the first and last row and column at its sides.
  std::vector<std::string> lines;
  /// A Braille dot is on if so many nonzeros are under it.
  int64_t dot_threshold = 1;
};

/// Colours and ASCII characters grow with the logarithm of the density. The matrix keeps its
/// proportions unless it is more than a screen wide or tall.
SpyDrawing SpyPicture(const CsrMatrix& matrix, const SpyOptions& options);
/// The same of a rows x cols matrix's density map, which must be whole; a character is two tiles
/// wide and four tall at least.
SpyDrawing DensityPicture(const MatrixFeatures& features, int64_t rows, int64_t cols,
                          const SpyOptions& options);

}  // namespace sparsed::cli
