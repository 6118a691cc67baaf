#include "client/cli/features_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <string>

#include "client/cli/progress_bar.h"
#include "client/cli/spy_picture.h"

namespace sparsed::cli {
namespace {

constexpr size_t kSide = MatrixFeatures::kDensityMapSide;

/// Whole numbers with their thousands apart.
std::string Number(double value) {
  const bool whole = std::abs(value) < 1e15 && value == std::floor(value);
  return whole ? Count(static_cast<int64_t>(value)) : fmt::format("{:.6g}", value);
}

/// A table for each source.
std::string ValuesText(const MatrixFeatures& features) {
  std::string text;
  for (size_t i = 0; i < features.values.size();) {
    const std::string& source = features.values[i].source;
    Table table({"FEATURE", "VALUE", "MEANING"});
    for (; i < features.values.size() && features.values[i].source == source; ++i) {
      const Feature& feature = features.values[i];
      table.Add({feature.name, Number(feature.value), feature.meaning});
    }
    text += fmt::format("\n{}\n{}", source, table.Text());
  }
  return text;
}

/// Bins up to the last one that has something in it.
std::string DistancesText(const MatrixFeatures& features) {
  double all = 0;
  size_t bins = 0;
  for (size_t i = 0; i < features.distances.size(); ++i) {
    all += static_cast<double>(features.distances[i].count);
    if (features.distances[i].count > 0) bins = i + 1;
  }
  if (bins == 0) return "";
  Table table({"COLUMNS APART", "PAIRS", "SHARE"});
  for (size_t i = 0; i < bins; ++i) {
    const DistanceBin& bin = features.distances[i];
    table.Add({bin.least == bin.most ? Count(bin.least)
                                     : fmt::format("{} - {}", Count(bin.least), Count(bin.most)),
               Count(bin.count),
               fmt::format("{:.1f} %", 100 * static_cast<double>(bin.count) / all)});
  }
  return fmt::format("\nNeighbouring nonzeros of a row (RS-SpMM, section 4.2)\n{}", table.Text());
}

/// Rows or columns of a tile, at the most.
int64_t TileExtent(int64_t extent) {
  constexpr int64_t kTiles = MatrixFeatures::kDensityMapSide;
  return (extent + kTiles - 1) / kTiles;
}

std::string MapText(const MatrixInfo& info, const MatrixFeatures& features) {
  if (features.density_map.size() != kSide * kSide) return "";
  SpyOptions options;
  options.max_width = TerminalWidth(STDOUT_FILENO);
  options.ascii = !ShowsUnicode();
  const SpyDrawing drawing = DensityPicture(features, info.rows, info.cols, options);
  std::string text = fmt::format(
      "\nDensity (MatNet, section 4.2): rows from top to bottom, columns from left to right, "
      "numbers\n"
      "at the sides; {}\n",
      options.ascii ? "from no nonzero (blank) to most (@), by logarithm, in tiles of"
                    : "counted in tiles of");
  text += fmt::format("{} rows x {} columns\n", Count(TileExtent(info.rows)),
                      Count(TileExtent(info.cols)));
  for (const std::string& line : drawing.lines) text += line + '\n';
  if (drawing.dot_threshold > 1) {
    text += fmt::format("a dot has {} nonzeros or more under it, a blank fewer or none\n",
                        Count(drawing.dot_threshold));
  } else if (!options.ascii) {
    text += "a dot has nonzeros under it, a blank has none\n";
  }
  return text;
}

}  // namespace

void AddFeatures(const MatrixInfo& info, const MatrixFeatures& features, Report& report) {
  if (features.empty()) {
    report.json["features"] = nullptr;
    report.text += fmt::format(
        "{} has no features yet: they are computed when it is next prepared\n", info.name);
    return;
  }
  report.json.update(ToJson(features));
  report.text += fmt::format(
      "{}\nWhat the rules make of these for each transform pipeline: sparsectl show {}\n",
      info.name, info.name);
  report.text += ValuesText(features) + DistancesText(features) + MapText(info, features);
}

}  // namespace sparsed::cli
