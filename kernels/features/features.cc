#include "kernels/features/features.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/features/columns.h"
#include "kernels/features/dense_tiles.h"
#include "kernels/formats/aspt.h"
#include "kernels/scratch.h"

namespace sparsed {
namespace {

constexpr int kWarps = 32;
constexpr int64_t kWarpThreads = 32;
constexpr int kLineShift = 5;   // 32 columns of S, 32 rows of a column of B
constexpr int64_t kAhead = 24;  // nonzeros; time enough for a line of the last level cache
constexpr int64_t kSectionColumns = 8;
constexpr int64_t kSectionCounters = 1 + kSectionColumns / 2;

/// What the rows seen so far know of one cache line of a column of B.
struct Line {
  uint32_t requests;   ///< rows that ask for it
  uint32_t warps;      ///< a bit for each warp that asks for it
  int32_t last_row;    ///< that asked for it; -2: none
  uint32_t last_mask;  ///< that row's nonzeros in the block, a bit a column
};

/// A thread's notes on the whole width of the pattern.
struct Notes {
  Scratch<Line> lines;
  Scratch<uint64_t> diagonals;  ///< a bit for each, the lower left one first
};

struct Extent {
  int64_t count = 0;
  int64_t sum = 0;
  int64_t min = std::numeric_limits<int64_t>::max();
  int64_t max = 0;

  void Add(int64_t value) { Add({1, value, value, value}); }
  void Add(const Extent& other) {
    count += other.count;
    sum += other.sum;
    min = std::min(min, other.min);
    max = std::max(max, other.max);
  }
  double Mean() const {
    return count == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(count);
  }
  void Put(double& least, double& mean, double& most) const {
    least = count == 0 ? 0 : static_cast<double>(min);
    mean = Mean();
    most = static_cast<double>(max);
  }
};

/// What a part of the rows adds up to.
struct Sums {
  Extent row_nonzeros, row_blocks, adjacent_distance;
  double square_deviations = 0;  ///< of row_nonzeros
  std::array<int64_t, kWarps> warp_load{}, warp_lines{};
  int64_t square_blocks = 0;            ///< of 2 x 2, with a nonzero
  std::array<int64_t, 33> distances{};  ///< by bit width

  void Add(const Sums& other) {
    row_nonzeros.Add(other.row_nonzeros);
    row_blocks.Add(other.row_blocks);
    adjacent_distance.Add(other.adjacent_distance);
    square_deviations += other.square_deviations;
    for (int warp = 0; warp < kWarps; ++warp) {
      warp_load[warp] += other.warp_load[warp];
      warp_lines[warp] += other.warp_lines[warp];
    }
    square_blocks += other.square_blocks;
    for (size_t width = 0; width < distances.size(); ++width) {
      distances[width] += other.distances[width];
    }
  }
};

/// Which tile column a column is in, without a division.
class TileColumns {
 public:
  explicit TileColumns(int64_t cols)
      : scale_((uint64_t{kDensityMapSide} << 32) / std::max<int64_t>(cols, 1)) {
    for (int64_t i = 0; i <= kDensityMapSide; ++i) begin_[i] = DensityTileBegin(i, cols);
  }
  int64_t Of(int32_t column) const {
    // One too low at most: scale_ is less than 1 below what it should be, column below 2^31.
    const auto low = static_cast<int64_t>(static_cast<uint64_t>(column) * scale_ >> 32);
    return low + (column >= begin_[low + 1] ? 1 : 0);
  }

 private:
  uint64_t scale_;
  std::array<int64_t, kDensityMapSide + 1> begin_;
};

/// Bit 2j is set if column 2j or 2j + 1 of the block is.
uint32_t ColumnPairs(uint32_t mask) { return (mask | mask >> 1) & 0x55555555U; }

/// Reads the pattern in 128 parts of rows, the tile rows of the density map; each is the work of
/// one thread, so that sums over parts depend on nobody's number of threads.
class Scan {
 public:
  explicit Scan(const CsrView& csr)
      : csr_(csr),
        end_(csr.column_indices.data() + csr.nnz()),
        tile_columns_(csr.cols),
        mean_(csr.rows == 0 ? 0 : static_cast<double>(csr.nnz()) / static_cast<double>(csr.rows)) {}

  static int64_t LineCount(const CsrView& csr) {
    return (csr.cols + (1 << kLineShift) - 1) >> kLineShift;
  }
  static int64_t DiagonalCount(const CsrView& csr) {
    return csr.rows == 0 || csr.cols == 0 ? 0 : csr.rows + csr.cols - 1;
  }

  /// Tile row `tile` of the pattern; `map` is the density map's row. Ends early if it is stopped.
  void TileRow(int64_t tile, const BuildContext& context, Notes& notes, Sums& sums,
               std::span<int32_t> map) const {
    std::array<int64_t, kDensityMapSide> counts{};
    const int64_t begin = DensityTileBegin(tile, csr_.rows);
    const int64_t end = DensityTileBegin(tile + 1, csr_.rows);
    int64_t above = begin < end && begin > 0 ? NoteRowAbove(begin - 1, notes) : 0;
    for (int64_t row = begin; row < end; ++row) {
      if (context.stopped()) return;
      above = Row(row, above, notes, sums, counts);
    }
    for (int64_t i = 0; i < kDensityMapSide; ++i) {
      map[i] =
          static_cast<int32_t>(std::min<int64_t>(counts[i], std::numeric_limits<int32_t>::max()));
    }
  }

 private:
  std::span<const int32_t> Columns(int64_t row) const {
    const int64_t r = csr_.row_order.empty() ? row : int64_t{csr_.row_order[row]};
    const int64_t begin = csr_.row_offsets[r];
    return csr_.column_indices.subspan(begin, csr_.row_offsets[r + 1] - begin);
  }

  /// Calls visit_column(column) for each nonzero and visit_block(block, mask) at the end of each
  /// block of 32 columns that has some.
  template <typename VisitColumn, typename VisitBlock>
  static void ForEachBlock(std::span<const int32_t> columns, VisitColumn visit_column,
                           VisitBlock visit_block) {
    for (size_t i = 0; i < columns.size();) {
      const int32_t block = columns[i] >> kLineShift;
      uint32_t mask = 0;
      do {
        mask |= uint32_t{1} << (columns[i] & ((1 << kLineShift) - 1));
        visit_column(columns[i]);
      } while (++i < columns.size() && columns[i] >> kLineShift == block);
      visit_block(block, mask);
    }
  }

  /// Asks for what the notes have on the column kAhead after this one, in this row or a later one.
  void Prefetch(const int32_t& column, uint64_t diagonal, Notes& notes) const {
    if (end_ - &column <= kAhead) return;
    const int32_t ahead = *(&column + kAhead);
    __builtin_prefetch(&notes.lines[ahead >> kLineShift], /*rw=*/1);
    __builtin_prefetch(&notes.diagonals[(diagonal + static_cast<uint64_t>(ahead)) / 64], /*rw=*/1);
  }

  /// Notes what the row after `row` is compared with, and no more: the row is another part's.
  /// Returns its blocks.
  int64_t NoteRowAbove(int64_t row, Notes& notes) const {
    int64_t blocks = 0;
    ForEachBlock(
        Columns(row), [](const int32_t&) {},
        [&](int32_t block, uint32_t mask) {
          notes.lines[block].last_row = static_cast<int32_t>(row);
          notes.lines[block].last_mask = mask;
          ++blocks;
        });
    return blocks;
  }

  /// `blocks_above` are those of the row before. Returns the row's.
  int64_t Row(int64_t row, int64_t blocks_above, Notes& notes, Sums& sums,
              std::array<int64_t, kDensityMapSide>& map) const {
    const std::span<const int32_t> columns = Columns(row);
    const auto nonzeros = static_cast<int64_t>(columns.size());
    const uint64_t diagonal = csr_.rows - 1 - row;
    const int warp = static_cast<int>(row % kWarps);
    const bool lower = row % 2 == 1;  // of two rows of 2 x 2 blocks
    int32_t last = columns.empty() ? 0 : columns.front();
    int64_t blocks = 0, common = 0;
    auto column_seen = [&](const int32_t& column) {
      Prefetch(column, diagonal, notes);
      const uint64_t d = diagonal + static_cast<uint64_t>(column);
      notes.diagonals[d / 64] |= uint64_t{1} << (d % 64);
      ++map[tile_columns_.Of(column)];
      ++sums.distances[std::bit_width(static_cast<uint32_t>(column - last))];
      sums.square_blocks += (column ^ last) > 1 ? 1 : 0;
      last = column;
    };
    auto block_seen = [&](int32_t block, uint32_t mask) {
      Line& line = notes.lines[block];
      if (line.last_row == row - 1) {
        ++common;
        if (lower) {
          sums.square_blocks -= std::popcount(ColumnPairs(mask) & ColumnPairs(line.last_mask));
        }
      }
      line = {line.requests + 1, line.warps | uint32_t{1} << warp, static_cast<int32_t>(row), mask};
      ++blocks;
    };
    ForEachBlock(columns, column_seen, block_seen);
    if (nonzeros > 0) ++sums.square_blocks;  // The first column was compared with itself.

    sums.row_nonzeros.Add(nonzeros);
    sums.row_blocks.Add(blocks);
    if (row > 0) sums.adjacent_distance.Add(blocks + blocks_above - 2 * common);
    const double deviation = static_cast<double>(nonzeros) - mean_;
    sums.square_deviations += deviation * deviation;
    sums.warp_load[warp] += (nonzeros + kWarpThreads - 1) / kWarpThreads;
    sums.warp_lines[warp] += blocks;
    return blocks;
  }

  const CsrView& csr_;
  const int32_t* const end_;  ///< of the column indices
  const TileColumns tile_columns_;
  const double mean_;  ///< of row_nonzeros
};

void PutLines(const Sums& sums, const Scratch<Line>& lines, Features& features) {
  Extent load, requests, distinct, same;
  std::array<int64_t, kWarps> of_warp{};
  for (const Line& line : lines.span()) {
    same.Add(line.requests);
    for (uint32_t warps = line.warps; warps != 0; warps &= warps - 1) {
      ++of_warp[std::countr_zero(warps)];
    }
  }
  for (int warp = 0; warp < kWarps; ++warp) {
    load.Add(sums.warp_load[warp]);
    requests.Add(sums.warp_lines[warp]);
    distinct.Add(of_warp[warp]);
  }
  Features& f = features;
  load.Put(f.warp_load_min, f.warp_load_mean, f.warp_load_max);
  same.Put(f.same_lines_min, f.same_lines_mean, f.same_lines_max);
  distinct.Put(f.warp_distinct_lines_min, f.warp_distinct_lines_mean, f.warp_distinct_lines_max);
  requests.Put(f.warp_lines_min, f.warp_lines_mean, f.warp_lines_max);
}

void PutRows(const CsrView& csr, const Sums& sums, Features& f) {
  f.rows = static_cast<double>(csr.rows);
  f.cols = static_cast<double>(csr.cols);
  f.nnz = static_cast<double>(csr.nnz());
  f.density = Ratio(f.nnz, f.rows * f.cols);
  sums.row_nonzeros.Put(f.row_nonzeros_min, f.row_nonzeros_mean, f.row_nonzeros_max);
  sums.row_blocks.Put(f.row_blocks_min, f.row_blocks_mean, f.row_blocks_max);
  sums.adjacent_distance.Put(f.adjacent_distance_min, f.adjacent_distance_mean,
                             f.adjacent_distance_max);
  f.row_nonzeros_variance = Ratio(sums.square_deviations, f.rows);
  f.row_nonzeros_cv = Ratio(std::sqrt(f.row_nonzeros_variance), f.row_nonzeros_mean);
  // A pair of neighbours that are column - last apart; width 0 is each row's first nonzero.
  for (int width = 1; width < static_cast<int>(sums.distances.size()); ++width) {
    f.distance_histogram[width == 1 ? 0 : (width + 1) / 2] += sums.distances[width];
  }
}

void PutFormats(const CsrView& csr, const Sums& sums, int64_t diagonals, Features& f) {
  auto padding = [&](double slots) { return Ratio(slots - f.nnz, slots); };
  f.diagonals = static_cast<double>(diagonals);
  f.diagonal_ratio = Ratio(f.diagonals, static_cast<double>(Scan::DiagonalCount(csr)));
  f.dia_padding = padding(f.diagonals * f.rows);
  f.ell_padding = padding(f.row_nonzeros_max * f.rows);
  const int64_t sections = (csr.cols + kSectionColumns - 1) / kSectionColumns;
  f.incsr_padding = padding(f.nnz + f.rows * static_cast<double>(kSectionCounters * sections));
  f.bcsr_padding = padding(4 * static_cast<double>(sums.square_blocks));
}

/// Adds what the other threads noted to the first one's notes; returns the diagonals.
int64_t Merge(std::vector<Notes>& notes) {
  Notes& all = notes.front();
  for (size_t i = 1; i < notes.size(); ++i) {
    for (int64_t line = 0; line < all.lines.size(); ++line) {
      all.lines[line].requests += notes[i].lines[line].requests;
      all.lines[line].warps |= notes[i].lines[line].warps;
    }
    for (int64_t word = 0; word < all.diagonals.size(); ++word) {
      all.diagonals[word] |= notes[i].diagonals[word];
    }
  }
  int64_t diagonals = 0;
  for (const uint64_t word : all.diagonals.span()) diagonals += std::popcount(word);
  return diagonals;
}

}  // namespace

absl::StatusOr<Features> ComputeFeatures(const CsrView& csr, const BuildContext& context) {
  const int64_t lines = Scan::LineCount(csr);
  const int64_t words = (Scan::DiagonalCount(csr) + 63) / 64;
  const auto bytes = static_cast<int64_t>(lines * sizeof(Line) + words * sizeof(uint64_t));
  const int threads =
      TeamWithScratch(context.TeamFor(csr.rows + csr.nnz()), bytes, 8 * csr.rows + 4 * csr.nnz());

  Features features;
  const AsptOptions tiles_of_aspt;
  const absl::StatusOr<double> dense_ratio =
      DenseTileRatio(csr, tiles_of_aspt.panel, tiles_of_aspt.min_dense, context);
  if (!dense_ratio.ok()) return dense_ratio.status();
  features.dense_ratio = *dense_ratio;
  if (absl::Status s = PutColumnFeatures(csr, context, features); !s.ok()) return s;
  absl::StatusOr<Array> counts =
      AllocateArray(*context.memory, "density_tiles", ElementType::kI32, DensityMap::kTiles);
  if (!counts.ok()) return counts.status();
  std::vector<Notes> notes(threads);
  for (Notes& each : notes) {
    absl::Status status = each.lines.Allocate(*context.memory, lines);
    if (status.ok()) status = each.diagonals.Allocate(*context.memory, words);
    if (!status.ok()) return status;
    std::ranges::fill(each.lines.span(), Line{0, 0, -2, 0});
    std::ranges::fill(each.diagonals.span(), 0);
  }
  std::vector<Sums> parts(kDensityMapSide);
  const std::span<int32_t> tiles = counts->MutableAs<int32_t>();
  const Scan scan(csr);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t tile = 0; tile < kDensityMapSide; ++tile) {
    scan.TileRow(tile, context, notes[omp_get_thread_num()], parts[tile],
                 tiles.subspan(tile * kDensityMapSide, kDensityMapSide));
  }
  if (context.stopped()) return absl::CancelledError("the build was stopped");

  Sums sums;
  for (const Sums& part : parts) sums.Add(part);
  const int64_t diagonals = Merge(notes);
  PutRows(csr, sums, features);
  PutLines(sums, notes.front().lines, features);
  PutFormats(csr, sums, diagonals, features);
  absl::StatusOr<DensityMap> map = DensityMap::Pack(tiles, *context.memory);
  if (!map.ok()) return map.status();
  features.density_map = *std::move(map);
  int64_t empty = 0;
  for (int64_t row = 0; row < csr.rows; ++row) {
    empty += csr.row_offsets[row] == csr.row_offsets[row + 1] ? 1 : 0;
  }
  if (csr.rows > 0) {
    features.empty_rows = static_cast<double>(empty) / static_cast<double>(csr.rows);
  }
  return features;
}

double Features::near_nonzeros() const {
  static_assert(DistanceBinBegin(3) == 16);
  const int64_t near = distance_histogram[0] + distance_histogram[1] + distance_histogram[2];
  return nnz == 0 ? 0 : static_cast<double>(near) / nnz;
}

double Features::unlike_neighbours() const {
  return row_blocks_mean == 0 ? 0 : adjacent_distance_mean / (2 * row_blocks_mean);
}

}  // namespace sparsed
