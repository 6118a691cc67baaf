// Features of patterns: worked out by hand on small ones, by plain loops on random ones.
#include "kernels/features/features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/scratch.h"
#include "tests/generate.h"
#include "tests/kernels/counting_memory.h"
#include "tests/matrix_market.h"

namespace sparsed {
namespace {

using test::FromRows;
using test::Pattern;

Features Compute(const CsrView& csr, int threads = 1) {
  BuildContext context;
  context.threads = threads;
  context.memory = &HeapMemory();
  absl::StatusOr<Features> features = ComputeFeatures(csr, context);
  EXPECT_TRUE(features.ok()) << features.status();
  return features.ok() ? *features : Features();
}

/// The tiles that have nonzeros, by (row, column).
std::map<std::pair<int, int>, int32_t> Tiles(const Features& features) {
  std::map<std::pair<int, int>, int32_t> tiles;
  const auto map = features.density_map.Tiles();
  for (int i = 0; i < static_cast<int>(map.size()); ++i) {
    if (map[i] != 0) tiles[{i / kDensityMapSide, i % kDensityMapSide}] = map[i];
  }
  return tiles;
}

std::map<std::string, double> ByName(const Features& features) {
  std::map<std::string, double> values;
  for (const FeatureField& field : kFeatureFields) {
    values[std::string(field.name)] = features.*field.value;
  }
  return values;
}

void ExpectValues(const Features& features, const std::map<std::string, double>& expected) {
  const std::map<std::string, double> values = ByName(features);
  ASSERT_EQ(values.size(), expected.size());
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(values.contains(name)) << name;
    EXPECT_DOUBLE_EQ(values.at(name), value) << name;
  }
}

/// Bins given by (index, count); the others must be empty.
std::array<int64_t, kDistanceBins> Bins(const std::map<int, int64_t>& filled) {
  std::array<int64_t, kDistanceBins> bins{};
  for (const auto& [bin, count] : filled) bins[bin] = count;
  return bins;
}

/// like_rows and like_rows_mean, by the hash functions that they are defined with.
std::pair<double, double> LikeRows(const std::vector<std::vector<int32_t>>& s) {
  const auto least = [](const std::vector<int32_t>& row, uint64_t factor) {
    uint32_t least = std::numeric_limits<uint32_t>::max();
    for (const int32_t column : row) {
      const uint64_t product = (static_cast<uint64_t>(column) + 1) * factor;
      least = std::min(least, static_cast<uint32_t>(product >> 32));
    }
    return least;
  };
  std::map<std::pair<uint32_t, uint32_t>, double> alike;
  for (const auto& row : s) {
    if (!row.empty()) ++alike[{least(row, 0x9e3779b97f4a7c15), least(row, 0xc2b2ae3d27d4eb4f)}];
  }
  double rows = 0, shared = 0, together = 0;
  for (const auto& [hashes, count] : alike) {
    rows += count;
    if (count > 1) shared += count;
    together += count * count;
  }
  return rows == 0 ? std::pair(0.0, 0.0) : std::pair(shared / rows, together / rows);
}

TEST(DensityMap, IsPackedAndTakesNothingElse) {
  std::vector<int32_t> tiles(DensityMap::kTiles);
  EXPECT_EQ(DensityMap().Tiles(), tiles);
  EXPECT_EQ(DensityMap::Pack(tiles, HeapMemory())->packed().size(), 0u);
  tiles.front() = 1;
  tiles[1000] = 127;
  tiles[1001] = 128;
  tiles.back() = std::numeric_limits<int32_t>::max();
  const auto map = DensityMap::Pack(tiles, HeapMemory());
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->packed().size(), 2u + 3 + 3 + 7);
  EXPECT_EQ(map->Tiles(), tiles);
  EXPECT_EQ(DensityMap::FromPacked(map->packed(), HeapMemory())->Tiles(), tiles);
  const auto refused = [](std::vector<uint8_t> packed) {
    return !DensityMap::FromPacked(std::as_bytes(std::span(packed)), HeapMemory()).ok();
  };
  EXPECT_FALSE(refused({0, 1, 0x80, 0x01, 1}));
  EXPECT_TRUE(refused({0})) << "no count";
  EXPECT_TRUE(refused({0, 0})) << "nothing counted";
  EXPECT_TRUE(refused({0, 0x81})) << "half a number";
  EXPECT_TRUE(refused({0, 0xff, 0xff, 0xff, 0xff, 0x0f})) << "2^32 - 1";
  EXPECT_TRUE(refused({0, 0x81, 0x80, 0x80, 0x80, 0x80, 0})) << "six bytes";
  EXPECT_TRUE(refused({0x80, 0x80, 0x01, 1})) << "tile 16384";
  EXPECT_TRUE(refused({0xff, 0x7f, 1, 0, 1})) << "one tile too many";
}

TEST(FeatureFields, HaveTheNumbersOfTheirPapers) {
  std::set<std::string_view> names;
  std::map<std::string_view, int> by_source;
  for (const FeatureField& field : kFeatureFields) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    ++by_source[field.source];
  }
  EXPECT_EQ(by_source[kTable2AndTable4] + by_source[kTable2], 24);
  EXPECT_EQ(by_source[kTable2AndTable4] + by_source[kTable4], 15);
}

TEST(Features, OfTheMatrixThatMatNetShowsFormatsWith) {
  // Fig. 2 of the paper: DIA and ELL have 8 slots for 7 nonzeros, 2 x 2 BCSR has 12; InCSR has a
  // section of one counter and its blocks' in each row (here of 8 columns: 5 counters).
  const std::vector<std::vector<int32_t>> rows = {{0, 1}, {1, 2}, {2, 3}, {3}};
  const Pattern pattern = FromRows(4, rows);
  const Features features = Compute(pattern.view());
  ExpectValues(features, {{"rows", 4},
                          {"cols", 4},
                          {"nnz", 7},
                          {"density", 7.0 / 16},
                          {"row_nonzeros_min", 1},
                          {"row_nonzeros_mean", 7.0 / 4},
                          {"row_nonzeros_max", 2},
                          {"row_blocks_min", 1},
                          {"row_blocks_mean", 1},
                          {"row_blocks_max", 1},
                          {"warp_load_min", 0},
                          {"warp_load_mean", 4.0 / 32},
                          {"warp_load_max", 1},
                          {"same_lines_min", 4},
                          {"same_lines_mean", 4},
                          {"same_lines_max", 4},
                          {"warp_distinct_lines_min", 0},
                          {"warp_distinct_lines_mean", 4.0 / 32},
                          {"warp_distinct_lines_max", 1},
                          {"warp_lines_min", 0},
                          {"warp_lines_mean", 4.0 / 32},
                          {"warp_lines_max", 1},
                          {"adjacent_distance_min", 0},
                          {"adjacent_distance_mean", 0},
                          {"adjacent_distance_max", 0},
                          {"dense_ratio", 6.0 / 7},  // columns 1, 2 and 3 have two each
                          {"empty_rows", 0},
                          {"row_nonzeros_variance", (3 * 0.25 * 0.25 + 0.75 * 0.75) / 4},
                          {"row_nonzeros_cv", std::sqrt(0.1875) / 1.75},
                          {"diagonals", 2},
                          {"diagonal_ratio", 2.0 / 7},
                          {"dia_padding", 1.0 / 8},
                          {"ell_padding", 1.0 / 8},
                          {"incsr_padding", 20.0 / 27},
                          {"bcsr_padding", 5.0 / 12},
                          {"col_nonzeros_max", 2},
                          {"col_nonzeros_cv", std::sqrt(0.1875) / 1.75},
                          {"heavy_columns", 2.0 / 7},
                          {"panel_fill_8", 7.0 / 4},
                          {"panel_fill_16", 7.0 / 4},
                          {"panel_fill_64", 7.0 / 4},
                          {"like_rows", LikeRows(rows).first},
                          {"like_rows_mean", LikeRows(rows).second},
                          {"square_products", 4 + 4 + 3 + 1},
                          {"square_products_max", 4},
                          {"square_products_cv", std::sqrt((1.0 + 1 + 0 + 4) / 4) / 3},
                          {"square_compression", 12.0 / (3 + 3 + 2 + 1)}});
  EXPECT_EQ(features.distance_histogram, Bins({{0, 3}}));
  // Tiles are a 32nd of a row and a column: element (r, c) is in tile (32 r, 32 c).
  EXPECT_EQ(Tiles(features), (std::map<std::pair<int, int>, int32_t>{{{0, 0}, 1},
                                                                     {{0, 32}, 1},
                                                                     {{32, 32}, 1},
                                                                     {{32, 64}, 1},
                                                                     {{64, 64}, 1},
                                                                     {{64, 96}, 1},
                                                                     {{96, 96}, 1}}));
}

TEST(Features, OfWarpsWithSeveralRowsAndRowsWithSeveralLines) {
  std::vector<std::vector<int32_t>> rows(34);
  rows[0] = {0, 31, 32, 95};  // warp 0: lines 0, 1, 2
  rows[1] = {40};             // warp 1: line 1
  rows[32] = {0, 64};         // warp 0: lines 0, 2
  rows[33].resize(40);        // warp 1: lines 0, 1; two steps of 32
  std::iota(rows[33].begin(), rows[33].end(), 0);
  const Pattern pattern = FromRows(96, rows);
  const Features features = Compute(pattern.view());
  const double mean = 47.0 / 34;
  const double variance = ((4 - mean) * (4 - mean) + (1 - mean) * (1 - mean) +
                           (2 - mean) * (2 - mean) + (40 - mean) * (40 - mean) + 30 * mean * mean) /
                          34;
  std::map<std::string, double> expected = {{"rows", 34},
                                            {"cols", 96},
                                            {"nnz", 47},
                                            {"density", 47.0 / (34 * 96)},
                                            {"row_nonzeros_min", 0},
                                            {"row_nonzeros_mean", mean},
                                            {"row_nonzeros_max", 40},
                                            {"row_blocks_min", 0},
                                            {"row_blocks_mean", (3 + 1 + 2 + 2) / 34.0},
                                            {"row_blocks_max", 3},
                                            // Warp 0: 1 + 1, warp 1: 1 + 2.
                                            {"warp_load_min", 0},
                                            {"warp_load_mean", 5.0 / 32},
                                            {"warp_load_max", 3},
                                            // Line 0: rows 0, 32, 33; 1: rows 0, 1, 33; 2: 0, 32.
                                            {"same_lines_min", 2},
                                            {"same_lines_mean", 8.0 / 3},
                                            {"same_lines_max", 3},
                                            // Warp 0: lines 0, 1, 2; warp 1: lines 0, 1.
                                            {"warp_distinct_lines_min", 0},
                                            {"warp_distinct_lines_mean", 5.0 / 32},
                                            {"warp_distinct_lines_max", 3},
                                            // Warp 0: 3 + 2, warp 1: 1 + 2.
                                            {"warp_lines_min", 0},
                                            {"warp_lines_mean", 8.0 / 32},
                                            {"warp_lines_max", 5},
                                            // Rows 0-1: 0, 2; 1-2: 1; 31-32: 0, 2; 32-33: 1, 2.
                                            {"adjacent_distance_min", 0},
                                            {"adjacent_distance_mean", 7.0 / 33},
                                            {"adjacent_distance_max", 2}};
  expected["dense_ratio"] = (3 + 2 + 2) / 47.0;  // columns 0, 31 and 32 have two or more
  expected["empty_rows"] = 30.0 / 34;
  expected["row_nonzeros_variance"] = variance;
  expected["row_nonzeros_cv"] = std::sqrt(variance) / mean;
  // Row 33 is on -33 to 6, which 0 (row 0) and -32 (row 32) are of; besides 31, 32, 95, 39.
  expected["diagonals"] = 44;
  expected["diagonal_ratio"] = 44.0 / (34 + 96 - 1);
  expected["dia_padding"] = (44.0 * 34 - 47) / (44 * 34);
  expected["ell_padding"] = (40.0 * 34 - 47) / (40 * 34);
  // 12 sections of 5 counters in each row.
  expected["incsr_padding"] = 12 * 5 * 34.0 / (12 * 5 * 34 + 47);
  // Rows 0 and 1: 0, 15, 16, 47 and 20; rows 32 and 33: 0, 32 and 0 to 19.
  expected["bcsr_padding"] = (26 * 4 - 47) / (26 * 4.0);
  // Column 0 has three, 31 and 32 have two, 40 others have one; the fullest one is a hundredth.
  expected["col_nonzeros_max"] = 3;
  const double of_column = 47.0 / 96;
  expected["col_nonzeros_cv"] = std::sqrt(57.0 / 96 - of_column * of_column) / of_column;
  expected["heavy_columns"] = 3.0 / 47;
  // Five columns in rows 0 and 1, 41 in rows 32 and 33, of which 0, 31 and 32 are the same.
  expected["panel_fill_8"] = expected["panel_fill_16"] = 47.0 / 46;
  expected["panel_fill_64"] = 47.0 / 43;
  std::tie(expected["like_rows"], expected["like_rows_mean"]) = LikeRows(rows);
  for (const char* const name :
       {"square_products", "square_products_max", "square_products_cv", "square_compression"}) {
    expected[name] = 0;
  }
  ExpectValues(features, expected);
  // Row 0: 31, 1, 63; row 32: 64; row 33: 39 times 1.
  EXPECT_EQ(features.distance_histogram, Bins({{0, 40}, {3, 2}, {4, 1}}));
}

TEST(Features, PutEveryDistanceInItsBin) {
  for (int bin = 0; bin < kDistanceBins; ++bin) {
    // A paper's bin is [least, 4 * least); bins 0 and 1 share the first.
    const int64_t least = DistanceBinBegin(bin);
    const int64_t most = std::min<int64_t>(DistanceBinBegin(bin + 1) - 1, 2'000'000'000);
    for (const int64_t distance : {least, most}) {
      const Pattern pattern = FromRows(distance + 1, {{0, static_cast<int32_t>(distance)}});
      if (distance > 5'000'000) continue;  // Columns cost memory.
      EXPECT_EQ(Compute(pattern.view()).distance_histogram, Bins({{bin, 1}})) << distance;
    }
  }
  EXPECT_EQ(DistanceBinBegin(10), 262'144);
  EXPECT_EQ(DistanceBinBegin(11), 1'048'576);
}

TEST(Features, MapSmallAndLargeSidesToTiles) {
  // 3 rows are tile rows 0, ceil(128 / 3) and ceil(256 / 3) by floor(128 r / 3); 256 columns are 2
  // a tile.
  const Pattern pattern = FromRows(256, {{0, 1, 2, 255}, {}, {127, 128}});
  EXPECT_EQ(Tiles(Compute(pattern.view())),
            (std::map<std::pair<int, int>, int32_t>{
                {{0, 0}, 2}, {{0, 1}, 1}, {{0, 127}, 1}, {{85, 63}, 1}, {{85, 64}, 1}}));
}

TEST(Features, OfNothingAreZero) {
  for (const auto& [rows, cols] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {0, 7}, {7, 0}, {7, 9}, {1, 1}}) {
    Pattern pattern;
    pattern.rows = rows;
    pattern.cols = cols;
    pattern.row_offsets.assign(rows + 1, 0);
    const Features features = Compute(pattern.view(), 4);
    for (const auto& [name, value] : ByName(features)) {
      const double expected = name == "rows"                     ? static_cast<double>(rows)
                              : name == "cols"                   ? static_cast<double>(cols)
                              : name == "empty_rows" && rows > 0 ? 1
                              : name == "incsr_padding" && rows > 0 && cols > 0 ? 1
                                                                                : 0;
      EXPECT_EQ(value, expected) << rows << " x " << cols << ": " << name;
    }
    EXPECT_EQ(features.distance_histogram, Bins({}));
    EXPECT_TRUE(Tiles(features).empty());
  }
}

/// The definitions once more, as slow as they are plain.
class ReferenceFeatures {
 public:
  explicit ReferenceFeatures(const CsrView& csr)
      : rows_(csr.rows), cols_(csr.cols), nnz_(csr.nnz()) {
    for (int64_t i = 0; i < csr.rows; ++i) {
      const int64_t r = csr.row_order.empty() ? i : int64_t{csr.row_order[i]};
      s_.emplace_back(csr.column_indices.begin() + csr.row_offsets[r],
                      csr.column_indices.begin() + csr.row_offsets[r + 1]);
      matrix_.emplace_back(csr.column_indices.begin() + csr.row_offsets[i],
                           csr.column_indices.begin() + csr.row_offsets[i + 1]);
    }
  }

  std::map<std::string, double> Values() {
    const auto rows = static_cast<double>(rows_), cols = static_cast<double>(cols_);
    const auto nnz = static_cast<double>(nnz_);
    std::vector<double> nonzeros, distances;
    std::vector<std::set<int32_t>> masks;
    std::vector<double> load(32), requests(32), same((cols_ + 31) / 32), distinct, blocks;
    std::vector<std::set<int32_t>> warp_lines(32);
    std::set<int64_t> diagonals;
    std::set<std::pair<int64_t, int32_t>> squares;
    for (int64_t i = 0; i < rows_; ++i) {
      nonzeros.push_back(static_cast<double>(s_[i].size()));
      load[i % 32] += std::ceil(nonzeros.back() / 32);
      std::set<int32_t>& mask = masks.emplace_back();
      for (const int32_t column : s_[i]) {
        mask.insert(column / 32);
        diagonals.insert(column - i);
        squares.insert({i / 2, column / 2});
      }
      blocks.push_back(static_cast<double>(mask.size()));
      requests[i % 32] += blocks.back();
      for (const int32_t line : mask) ++same[line];
      warp_lines[i % 32].insert(mask.begin(), mask.end());
      if (i == 0) continue;
      std::vector<int32_t> differ;
      std::ranges::set_symmetric_difference(masks[i - 1], mask, std::back_inserter(differ));
      distances.push_back(static_cast<double>(differ.size()));
    }
    for (const auto& lines : warp_lines) distinct.push_back(static_cast<double>(lines.size()));
    values_ = {{"rows", rows}, {"cols", cols}, {"nnz", nnz}, {"density", Over(nnz, rows * cols)}};
    Put("row_nonzeros", nonzeros);
    Put("row_blocks", blocks);
    Put("warp_load", load);
    Put("same_lines", same);
    Put("warp_distinct_lines", distinct);
    Put("warp_lines", requests);
    Put("adjacent_distance", distances);
    double squared = 0;
    for (const double n : nonzeros) {
      squared += (n - values_["row_nonzeros_mean"]) * (n - values_["row_nonzeros_mean"]);
    }
    values_["row_nonzeros_variance"] = Over(squared, rows);
    values_["row_nonzeros_cv"] = Over(std::sqrt(Over(squared, rows)), values_["row_nonzeros_mean"]);
    const auto used = static_cast<double>(diagonals.size());
    values_["diagonals"] = used;
    values_["diagonal_ratio"] = rows * cols == 0 ? 0 : used / (rows + cols - 1);
    values_["dia_padding"] = Over(used * rows - nnz, used * rows);
    const double ell = values_["row_nonzeros_max"] * rows;
    values_["ell_padding"] = Over(ell - nnz, ell);
    const double counters = rows * std::ceil(cols / 8) * 5;
    values_["incsr_padding"] = Over(counters, counters + nnz);
    const double slots = 4 * static_cast<double>(squares.size());
    values_["bcsr_padding"] = Over(slots - nnz, slots);
    PutColumns(nnz);
    PutSquare();
    return values_;
  }

  std::array<int64_t, kDistanceBins> Histogram() const {
    std::array<int64_t, kDistanceBins> bins{};
    for (const auto& row : s_) {
      for (size_t j = 1; j < row.size(); ++j) {
        int bin = 0;
        while (row[j] - row[j - 1] >= DistanceBinBegin(bin + 1)) ++bin;
        ++bins[bin];
      }
    }
    return bins;
  }

  std::vector<int32_t> Map() const {
    std::vector<int32_t> map(kDensityMapSide * kDensityMapSide);
    for (int64_t i = 0; i < rows_; ++i) {
      for (const int64_t column : s_[i]) {
        ++map[kDensityMapSide * i / rows_ * kDensityMapSide + kDensityMapSide * column / cols_];
      }
    }
    return map;
  }

 private:
  static double Over(double part, double whole) { return whole == 0 ? 0 : part / whole; }
  static double Variation(const std::vector<double>& values) {
    const auto count = static_cast<double>(values.size());
    const double mean = Over(std::accumulate(values.begin(), values.end(), 0.0), count);
    double squares = 0;
    for (const double value : values) squares += (value - mean) * (value - mean);
    return Over(std::sqrt(Over(squares, count)), mean);
  }
  void PutColumns(double nnz) {
    std::vector<double> columns(cols_);
    std::map<int64_t, std::set<std::pair<int64_t, int32_t>>> panels;
    for (int64_t i = 0; i < rows_; ++i) {
      for (const int32_t column : s_[i]) {
        ++columns[column];
        for (const int64_t rows : {8, 16, 64}) panels[rows].insert({i / rows, column});
      }
    }
    for (const int64_t rows : {8, 16, 64}) {
      values_["panel_fill_" + std::to_string(rows)] =
          Over(nnz, static_cast<double>(panels[rows].size()));
    }
    std::tie(values_["like_rows"], values_["like_rows_mean"]) = LikeRows(s_);
    std::ranges::sort(columns, std::greater());
    values_["col_nonzeros_max"] = columns.front();
    values_["col_nonzeros_cv"] = Variation(columns);
    values_["heavy_columns"] =
        Over(std::accumulate(columns.begin(), columns.begin() + (cols_ + 99) / 100, 0.0), nnz);
  }
  void PutSquare() {
    if (rows_ != cols_) return;
    std::vector<double> products(rows_);
    double sampled = 0, distinct = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      for (const int32_t j : s_[i]) products[i] += static_cast<double>(matrix_[j].size());
    }
    for (int64_t i = 0; i < 512; ++i) {
      const int64_t row = i * rows_ / 512;
      std::set<int32_t> columns;
      for (const int32_t j : s_[row]) columns.insert(matrix_[j].begin(), matrix_[j].end());
      sampled += products[row];
      distinct += static_cast<double>(columns.size());
    }
    values_["square_products"] = std::accumulate(products.begin(), products.end(), 0.0);
    values_["square_products_max"] = std::ranges::max(products);
    values_["square_products_cv"] = Variation(products);
    values_["square_compression"] = Over(sampled, distinct);
  }
  void Put(const std::string& name, const std::vector<double>& values) {
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    values_[name + "_min"] = values.empty() ? 0 : std::ranges::min(values);
    values_[name + "_mean"] = Over(sum, static_cast<double>(values.size()));
    values_[name + "_max"] = values.empty() ? 0 : std::ranges::max(values);
  }

  const int64_t rows_, cols_, nnz_;
  std::vector<std::vector<int32_t>> s_, matrix_;  ///< rows, in the layout's order and in their own
  std::map<std::string, double> values_;
};

void ExpectSame(const Features& a, const Features& b) {
  EXPECT_EQ(ByName(a), ByName(b));
  EXPECT_EQ(a.distance_histogram, b.distance_histogram);
  EXPECT_EQ(a.density_map.Tiles(), b.density_map.Tiles());
}

void ExpectPlain(const CsrView& csr) {
  const Features features = Compute(csr);
  ReferenceFeatures reference(csr);
  const std::map<std::string, double> values = ByName(features);
  for (const auto& [name, value] : reference.Values()) {
    EXPECT_NEAR(values.at(name), value, 1e-11 * std::abs(value)) << name;
  }
  EXPECT_EQ(features.distance_histogram, reference.Histogram());
  EXPECT_EQ(features.density_map.Tiles(), reference.Map());
  ExpectSame(features, Compute(csr, 4));
  ExpectSame(features, Compute(csr, 3));
}

TEST(Features, AreWhatPlainLoopsFind) {
  const std::vector<test::NamedPattern> patterns = {
      {"uniform", test::Uniform(3000, 2777, 9, 1)},
      {"tall", test::Uniform(20'000, 65, 3, 2)},
      {"wide", test::Uniform(37, 50'000, 700, 3)},
      {"one row", test::Uniform(1, 9000, 4000, 4)},
      {"one column", test::Uniform(9000, 1, 1, 5)},
      {"one element", test::Uniform(1, 1, 1, 6)},
      {"power law", test::PowerLaw(6000, 50'000, 2.2, 7)},
      {"R-MAT", test::Rmat(12, 8, 8)},
      {"band", test::Band(5000, 7)},
      {"stencil", test::Stencil(61, 83)},
      {"dense", test::Uniform(129, 127, 127, 9)},
      {"clusters", test::ShuffledClusters(60, 16, 3001, 30, 14, 3, 10)},
      {"hypersparse",
       test::FromCoordinates(100'000, 100'000, {{5, 99'999}, {99'999, 0}, {6, 99'998}, {6, 3}})}};
  for (const test::NamedPattern& each : patterns) {
    SCOPED_TRACE(each.name);
    ExpectPlain(each.pattern.view());
  }
}

TEST(Features, OfManyRowsFindLikeRowsInASample) {
  std::vector<std::vector<int32_t>> rows;
  for (int32_t i = 0; i < 700'000; ++i) {
    rows.push_back({2 * i, 2 * i + 1});
    if (i % 2 == 0) rows.push_back({2 * i, 2 * i + 1});
  }
  const Features features = Compute(FromRows(1'400'000, rows).view(), 2);
  // Two of three rows are one of two.
  EXPECT_NEAR(features.like_rows, 2.0 / 3, 0.01);
  EXPECT_NEAR(features.like_rows_mean, 5.0 / 3, 0.01);
}

TEST(Features, FollowTheRowOrder) {
  const Pattern pattern = test::ShuffledClusters(60, 16, 3001, 30, 14, 3, 11);
  const std::vector<int32_t> order = test::RandomOrder(pattern.rows, 12);
  CsrView csr = pattern.view();
  csr.row_order = order;
  ExpectPlain(csr);
}

TEST(Features, OfARealMatrixAreWhatPlainLoopsFind) {
  const auto matrix =
      test::ReadMatrixMarket(std::string(SPARSED_TEST_DATA) + "/delaunay_n16.mtx.gz");
  ASSERT_TRUE(matrix.has_value());
  ExpectPlain(matrix->pattern.view());
}

TEST(Features, TakeTheirMemoryFromTheSource) {
  const Pattern pattern = test::Uniform(100'000, 200'000, 5, 1);
  test::CountingMemory memory;
  BuildContext context;
  context.threads = 4;
  context.memory = &memory;
  {
    const absl::StatusOr<Features> features = ComputeFeatures(pattern.view(), context);
    ASSERT_TRUE(features.ok());
    // What is left is the density map.
    const auto map = static_cast<int64_t>(features->density_map.packed().size());
    EXPECT_EQ(memory.held(), map);
    EXPECT_LE(memory.peak(), map + 4 * 128 * 128 + 4 * 8 * 200'000 + 8 * 100'000);
  }
  EXPECT_EQ(memory.held(), 0);
  for (const int64_t limit : {0, 100'000, 200'000}) {
    test::CountingMemory little(limit);
    context.memory = &little;
    EXPECT_TRUE(absl::IsResourceExhausted(ComputeFeatures(pattern.view(), context).status()));
    EXPECT_EQ(little.held(), 0);
  }
}

TEST(Features, StopWhenToldTo) {
  const Pattern pattern = test::Uniform(10'000, 10'000, 5, 1);
  const std::atomic<bool> stop = true;
  BuildContext context;
  context.memory = &HeapMemory();
  context.stop = &stop;
  EXPECT_TRUE(absl::IsCancelled(ComputeFeatures(pattern.view(), context).status()));
}

}  // namespace
}  // namespace sparsed
