#include "server/page/pattern_picture.h"

#include <algorithm>
#include <cmath>

#include "kernels/pipeline_steps.h"

namespace sparsed::server {
namespace {

/// What a picture looks at, of rows and of nonzeros, and of one row.
constexpr int64_t kMostRows = 4'000'000, kMostNonzeros = 8'000'000, kMostOfRow = 1'000'000;

PatternPicture Shaded(int64_t width, int64_t height, const std::vector<double>& counts) {
  PatternPicture picture;
  picture.width = width;
  picture.height = height;
  const double most = counts.empty() ? 0 : *std::ranges::max_element(counts);
  picture.shades.reserve(counts.size());
  for (const double count : counts) {
    const double share = most <= 1 ? 1 : std::log1p(count) / std::log1p(most);
    picture.shades.push_back(
        count <= 0 ? 0 : static_cast<uint8_t>(std::clamp(1 + share * 254, 1.0, 255.0)));
  }
  return picture;
}

}  // namespace

PatternPicture PictureOf(const CsrView& csr, std::span<const int32_t> order,
                         std::span<const int32_t> column_order) {
  const int64_t width = std::clamp<int64_t>(csr.cols, 1, PatternPicture::kSide);
  // The pixel of each column: a byte each.
  static_assert(PatternPicture::kSide <= 256);
  std::vector<uint8_t> pixels(column_order.size());
  for (size_t i = 0; i < column_order.size(); ++i) {
    pixels[static_cast<size_t>(column_order[i])] =
        static_cast<uint8_t>(static_cast<int64_t>(i) * width / csr.cols);
  }
  const int64_t height = std::clamp<int64_t>(csr.rows, 1, PatternPicture::kSide);
  std::vector<double> counts(static_cast<size_t>(width * height));
  const int64_t step =
      std::max<int64_t>(1, std::max((csr.rows + kMostRows - 1) / kMostRows,
                                    (csr.nnz() + kMostNonzeros - 1) / kMostNonzeros));
  bool sampled = step > 1;
  for (int64_t r = 0; r < csr.rows; r += step) {
    const int64_t row = order.empty() ? r : order[static_cast<size_t>(r)];
    const int64_t begin = csr.row_offsets[static_cast<size_t>(row)];
    const int64_t end = csr.row_offsets[static_cast<size_t>(row) + 1];
    const int64_t stride = (end - begin) / kMostOfRow + 1;
    sampled = sampled || stride > 1;
    double* const line = &counts[static_cast<size_t>(r * height / csr.rows * width)];
    for (int64_t i = begin; i < end; i += stride) {
      const int32_t column = csr.column_indices[static_cast<size_t>(i)];
      const int64_t pixel = pixels.empty() ? int64_t{column} * width / csr.cols
                                           : int64_t{pixels[static_cast<size_t>(column)]};
      line[pixel] += static_cast<double>(stride);
    }
  }
  PatternPicture picture = Shaded(width, height, counts);
  picture.sampled = sampled;
  return picture;
}

PatternPicture PictureOf(const DensityMap& map, int64_t rows, int64_t cols) {
  const std::vector<int32_t> tiles = map.Tiles();
  // Tile rows that no row of a small matrix is in are no pixels.
  const auto used = [](int64_t size) {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < kDensityMapSide; ++i) {
      if (DensityTileBegin(i, size) < DensityTileBegin(i + 1, size)) places.push_back(i);
    }
    return places;
  };
  const std::vector<int64_t> down = used(rows), across = used(cols);
  std::vector<double> counts;
  for (const int64_t y : down) {
    for (const int64_t x : across) {
      counts.push_back(tiles[static_cast<size_t>(y * kDensityMapSide + x)]);
    }
  }
  return Shaded(static_cast<int64_t>(across.size()), static_cast<int64_t>(down.size()), counts);
}

bool Reorders(const std::string& pipeline) {
  const absl::StatusOr<Pipeline> parsed = ParsePipeline(pipeline);
  return parsed.ok() && std::ranges::any_of(parsed->steps, [](const PipelineStep& step) {
           const StepDefinition* const definition = FindStep(step);
           return definition != nullptr && definition->phase == Phase::kReorder;
         });
}

}  // namespace sparsed::server
