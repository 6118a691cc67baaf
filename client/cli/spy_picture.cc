#include "client/cli/spy_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace sparsed::cli {
namespace {

/// Dots in a character: Braille has 2 x 4, which makes them square on most screens.
constexpr int kDotsAcross = 2;
constexpr int kDotsDown = 4;
/// Bits of U+2800 by row and column of the dot.
constexpr std::array<std::array<uint8_t, kDotsAcross>, kDotsDown> kDotBits = {
    {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
constexpr std::string_view kShades = ".:-=+*#%@";
/// Of the 256-colour palette: dark blue over green to bright yellow.
constexpr std::array<int, 7> kColours = {25, 31, 37, 71, 113, 191, 229};

struct Grid {
  int width = 0;  // characters
  int height = 0;
  std::vector<int64_t> dots;      // nonzeros under each Braille dot, row by row
  std::vector<int64_t> nonzeros;  // under each character
  int64_t threshold = 1;          // of a dot that is on

  int64_t dots_across() const { return int64_t{width} * kDotsAcross; }
  int64_t dots_down() const { return int64_t{height} * kDotsDown; }
};

Grid Size(int64_t matrix_rows, int64_t matrix_cols, int max_width, int max_height) {
  Grid grid;
  const double rows = std::max<double>(1, static_cast<double>(matrix_rows));
  const double cols = std::max<double>(1, static_cast<double>(matrix_cols));
  // One dot an element if that fits, otherwise as large as fits.
  double scale = std::min({1.0, max_width * kDotsAcross / cols, max_height * kDotsDown / rows});
  const auto characters = [](double dots, int per_character, int most) {
    return std::clamp(static_cast<int>(std::ceil(dots / per_character)), 1, most);
  };
  grid.width = characters(cols * scale, kDotsAcross, max_width);
  grid.height = characters(rows * scale, kDotsDown, max_height);
  // Very long matrices would be a line of one dot.
  grid.width = std::max(grid.width, characters(std::min(cols, 16.0), kDotsAcross, max_width));
  grid.height = std::max(grid.height, characters(std::min(rows, 16.0), kDotsDown, max_height));
  grid.dots.assign(static_cast<size_t>(grid.dots_across() * grid.dots_down()), 0);
  grid.nonzeros.assign(static_cast<size_t>(grid.width) * grid.height, 0);
  return grid;
}

/// Small matrices keep one dot an element; larger ones fill the grid.
int64_t DotOf(int64_t index, int64_t extent, int64_t dots) {
  return extent <= dots ? index : index * dots / extent;
}

/// Where most dots would be on, only those at the median or above are: otherwise all is one block.
int64_t Threshold(const Grid& grid) {
  std::vector<int64_t> counts;
  std::copy_if(grid.dots.begin(), grid.dots.end(), std::back_inserter(counts),
               [](int64_t count) { return count > 0; });
  if (counts.size() * 2 <= grid.dots.size()) return 1;
  const auto median = counts.begin() + static_cast<int64_t>(counts.size() / 2);
  std::nth_element(counts.begin(), median, counts.end());
  return *median;
}

/// A picture of a rows x cols matrix, to which nonzeros are added.
class Picture {
 public:
  Picture(int64_t rows, int64_t cols, const SpyOptions& options)
      : rows_(rows),
        cols_(cols),
        options_(options),
        margin_(LastIndex(rows).size()),
        grid_(Size(rows, cols, std::max(1, options.max_width - static_cast<int>(margin_) - 3),
                   std::max(1, options.max_height))) {}

  void Add(int64_t row, int64_t col, int64_t nonzeros) {
    const int64_t y = DotOf(row, rows_, grid_.dots_down());
    const int64_t x = DotOf(col, cols_, grid_.dots_across());
    grid_.dots[y * grid_.dots_across() + x] += nonzeros;
    grid_.nonzeros[y / kDotsDown * grid_.width + x / kDotsAcross] += nonzeros;
  }
  SpyDrawing Draw();

 private:
  /// Of a row or a column, as text; a blank if there is none.
  static std::string LastIndex(int64_t extent) {
    return extent > 0 ? std::to_string(extent - 1) : " ";
  }

  const int64_t rows_, cols_;
  const SpyOptions& options_;
  const size_t margin_;  ///< characters of the row numbers
  Grid grid_;
};

uint8_t DotBits(const Grid& grid, int64_t x, int64_t y) {
  uint8_t bits = 0;
  for (int down = 0; down < kDotsDown; ++down) {
    for (int across = 0; across < kDotsAcross; ++across) {
      const int64_t dot = (y * kDotsDown + down) * grid.dots_across() + x * kDotsAcross + across;
      if (grid.dots[dot] >= grid.threshold) bits |= kDotBits[down][across];
    }
  }
  return bits;
}

/// U+2800 and the bits, in UTF-8.
std::string Braille(uint8_t bits) {
  return {'\xe2', static_cast<char>(0xa0 | bits >> 6), static_cast<char>(0x80 | (bits & 0x3f))};
}

/// 0 for the least to `steps` - 1 for the largest count, by logarithm.
size_t Step(int64_t count, int64_t largest, size_t steps) {
  if (largest <= 1) return steps / 2;
  const double share =
      std::log(static_cast<double>(count)) / std::log(static_cast<double>(largest));
  return std::min(steps - 1, static_cast<size_t>(share * static_cast<double>(steps)));
}

std::string Line(const Grid& grid, int y, int64_t largest, const SpyOptions& options) {
  std::string line;
  int colour = -1;
  for (int x = 0; x < grid.width; ++x) {
    const auto cell =
        static_cast<size_t>(y) * static_cast<size_t>(grid.width) + static_cast<size_t>(x);
    const int64_t count = grid.nonzeros[cell];
    if (count == 0) {
      line += ' ';
      continue;
    }
    if (options.colour) {
      const int wanted = kColours[Step(count, largest, kColours.size())];
      if (wanted != colour) line += fmt::format("\033[38;5;{}m", wanted);
      colour = wanted;
    }
    if (options.ascii) {
      line += kShades[Step(count, largest, kShades.size())];
    } else {
      line += Braille(DotBits(grid, x, y));
    }
  }
  if (colour >= 0) line += "\033[0m";
  return line;
}

SpyDrawing Picture::Draw() {
  grid_.threshold = Threshold(grid_);
  const int64_t largest = *std::max_element(grid_.nonzeros.begin(), grid_.nonzeros.end());
  const std::string last_row = LastIndex(rows_), last_col = LastIndex(cols_);
  const bool ascii = options_.ascii;
  const std::string blank(margin_, ' ');
  std::string rule;
  for (int i = 0; i < grid_.width; ++i) rule += ascii ? "-" : "─";
  const std::string_view side = ascii ? "|" : "│";

  SpyDrawing drawing;
  std::vector<std::string>& lines = drawing.lines;
  drawing.dot_threshold = ascii ? 1 : grid_.threshold;
  const int gap = grid_.width - 1 - static_cast<int>(last_col.size());
  lines.push_back(blank + "  0" + (gap > 0 ? std::string(gap, ' ') + last_col : ""));
  lines.push_back(blank + " " + (ascii ? "+" : "┌") + rule + (ascii ? "+" : "┐"));
  for (int y = 0; y < grid_.height; ++y) {
    std::string label = y == 0 ? "0" : y == grid_.height - 1 ? last_row : "";
    label.insert(0, margin_ - label.size(), ' ');
    lines.push_back(fmt::format("{} {}{}{}", label, side, Line(grid_, y, largest, options_), side));
  }
  lines.push_back(blank + " " + (ascii ? "+" : "└") + rule + (ascii ? "+" : "┘"));
  return drawing;
}

}  // namespace

SpyDrawing SpyPicture(const CsrMatrix& matrix, const SpyOptions& options) {
  Picture picture(matrix.rows, matrix.cols, options);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t i = matrix.row_offsets[row]; i < matrix.row_offsets[row + 1]; ++i) {
      picture.Add(row, matrix.column_indices[i], 1);
    }
  }
  return picture.Draw();
}

SpyDrawing DensityPicture(const MatrixFeatures& features, int64_t rows, int64_t cols,
                          const SpyOptions& options) {
  constexpr int64_t kSide = MatrixFeatures::kDensityMapSide;
  SpyOptions within = options;
  const auto margin = static_cast<int>(std::to_string(rows).size()) + 3;
  within.max_width = std::min(within.max_width, static_cast<int>(kSide) / kDotsAcross + margin);
  within.max_height = std::min(within.max_height, static_cast<int>(kSide) / kDotsDown);
  Picture picture(rows, cols, within);
  // A tile is drawn where its first row and column are; what a server sends may be nonsense.
  const auto first = [](int64_t tile, int64_t extent) {
    return std::clamp<int64_t>((tile * extent + kSide - 1) / kSide, 0,
                               std::max<int64_t>(extent, 1) - 1);
  };
  for (int64_t tile = 0; tile < kSide * kSide; ++tile) {
    if (features.density_map[tile] <= 0) continue;
    picture.Add(first(tile / kSide, rows), first(tile % kSide, cols), features.density_map[tile]);
  }
  return picture.Draw();
}

}  // namespace sparsed::cli
