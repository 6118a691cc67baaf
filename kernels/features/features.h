// What is known of a pattern at a glance: the features that published models choose kernels,
// formats and row orders by, and a map of its density. Symbols: S is M x N with nnz nonzeros.
//
// Papers:
//   [RP]  Mehrabi et al., "Learning Sparse Matrix Row Permutations for Efficient SpMM on GPU
//         Architectures": Table II, with sections II.B, II.C and III.B
//   [MN]  Xie et al., "A Pattern-Based SpGEMM Library for Multi-Core and Many-Core Architectures"
//         (MatNet): section 4.1 with Table 4, Fig. 2 and Table 3; section 4.2 for the density map
//   [RS]  "Efficient Sparse-Matrix Multi-Vector Product on GPUs" (RS-SpMM): section 4.2
//   [RT]  Jiang, Hong, Agrawal, "A Novel Data Transformation and Execution Strategy for
//   Accelerating
//         Sparse Matrix Multiplication on GPUs" (PPoPP'20): section 4
//
// The platform of [RP] is taken as in its section II: 32 warps (N_w) of 32 threads (N_t) each; row
// i is computed by warp i mod 32; a cache line of B holds 32 consecutive rows of a column, so that
// columns of S fall into aligned blocks of 32, and a row of S asks once for each line whose block
// holds one of its nonzeros.
//
// What the papers leave open is decided here, at the field.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/features/density_map.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"

namespace sparsed {

/// Bins of Features::distance_histogram.
inline constexpr int kDistanceBins = 17;
/// The least distance of bin `i`, for i in [0, kDistanceBins]; that of bin i + 1 ends bin i.
constexpr int64_t DistanceBinBegin(int i) {
  return i == 0 ? 1 : i == 1 ? 2 : int64_t{1} << (2 * (i - 1));
}

/// Least, mean and greatest value over rows, warps or lines are 0 where there are none. Counts are
/// exact up to 2^53.
struct Features {
  // [RP] and [MN]
  double rows = 0;
  double cols = 0;
  double density = 0;  ///< nnz / (M * N); nnz_ratio in [MN]; 0 if M * N is
  double row_nonzeros_min = 0, row_nonzeros_mean = 0, row_nonzeros_max = 0;

  // [RP]
  double row_blocks_min = 0, row_blocks_mean = 0, row_blocks_max = 0;
  /// Over the 32 warps, those without a row included; so are the two groups of lines per warp.
  double warp_load_min = 0, warp_load_mean = 0, warp_load_max = 0;
  /// Over all ceil(N / 32) lines of a column of B, those that no row asks for included.
  double same_lines_min = 0, same_lines_mean = 0, same_lines_max = 0;
  double warp_distinct_lines_min = 0, warp_distinct_lines_mean = 0, warp_distinct_lines_max = 0;
  double warp_lines_min = 0, warp_lines_mean = 0, warp_lines_max = 0;
  /// Adjacent rows are i and i + 1, as in the paper's CTA-aware sort.
  double adjacent_distance_min = 0, adjacent_distance_mean = 0, adjacent_distance_max = 0;

  // [MN]: with the six that both papers have, all 15 names of its table, which the text counts as
  // 13. "Ratio of padding data" is the share in [0, 1) of what the format stores as or beside
  // values that is no nonzero; 0 if it stores nothing.
  double nnz = 0;
  double row_nonzeros_variance = 0;  ///< of the population: over M
  double diagonals = 0;              ///< with at least one nonzero
  double diagonal_ratio = 0;         ///< of all M + N - 1 diagonals
  double dia_padding = 0;            ///< M slots a diagonal, as in Fig. 2
  double ell_padding = 0;            ///< row_nonzeros_max slots a row
  /// InCSR adds counters, not zeros: for each section of S = 8 columns of each row one, and one for
  /// each of its blocks of b = 2 columns (Fig. 2; S and b that win most often in Table 3).
  double incsr_padding = 0;
  double bcsr_padding = 0;     ///< aligned blocks of 2 x 2, as in Fig. 2
  double row_nonzeros_cv = 0;  ///< standard deviation / mean; 0 if the mean is

  /// [RT] Share of the nonzeros that tiling alone puts into dense tiles (DenseTileRatio of the
  /// tiles that "aspt" has by default).
  double dense_ratio = 0;
  // Of none of them.
  double empty_rows = 0;  ///< share of the rows that have no nonzero
  double col_nonzeros_max = 0;
  double col_nonzeros_cv = 0;  ///< standard deviation / mean; 0 if the mean is
  double heavy_columns = 0;    ///< share of the nonzeros in the fullest ceil(N / 100) columns
  /// In so many aligned rows, nonzeros of a column that has one, mean: 1 where they share none.
  double panel_fill_8 = 0, panel_fill_16 = 0, panel_fill_64 = 0;
  /// Share of the rows that share their least column by each of two hash functions with another
  /// row, which rows with a Jaccard similarity of J do in J^2 of all cases; and how many rows that
  /// are, mean over rows.
  double like_rows = 0, like_rows_mean = 0;
  /// Of S * S, 0 if M is not N: multiplications, and those of a row of it, most and deviation.
  double square_products = 0, square_products_max = 0, square_products_cv = 0;
  /// Multiplications for a nonzero of S * S, in at most 512 rows of it.
  double square_compression = 0;

  /// [RS] Share of the nonzeros that are less than 16 columns behind the one before them in their
  /// row.
  double near_nonzeros() const;
  /// Of the blocks of 32 columns that two neighbouring rows have nonzeros in, counted for each, the
  /// share that is of one of them alone.
  double unlike_neighbours() const;

  /// [RS] How many pairs of neighbouring nonzeros of a row are a distance (difference of columns)
  /// of 1 apart, of 2 to 3, of 4 to 15, of 16 to 63, ..., of 4^15 to 4^16 - 1. The paper's bins
  /// "1, 1-3, 4-15, ..., 262,144-1,048,576" are the first eleven, without the overlap of the first
  /// two.
  std::array<int64_t, kDistanceBins> distance_histogram{};
  /// [MN] Counts, not the paper's 0 to 255, which they can be scaled to.
  DensityMap density_map;
};

/// One of Features' numbers: what it is called wherever it is printed, sent or stored.
struct FeatureField {
  std::string_view name;
  std::string_view source;   ///< the paper and its table
  std::string_view meaning;  ///< with its unit
  double Features::*value;
};

inline constexpr std::string_view kTable2AndTable4 =
    "Learned row permutations, Table II, and MatNet, Table 4";
inline constexpr std::string_view kTable2 = "Learned row permutations, Table II";
inline constexpr std::string_view kTable4 = "MatNet, Table 4";
inline constexpr std::string_view kRowTiles = "Row reordering and tiling, section 4";
inline constexpr std::string_view kOurs = "sparsed";

/// What the list of counts is called.
inline constexpr std::string_view kDistanceHistogram = "distance_histogram";

/// All of them, by source.
inline constexpr std::array kFeatureFields = {
    FeatureField{"rows", kTable2AndTable4, "rows", &Features::rows},
    FeatureField{"cols", kTable2AndTable4, "columns", &Features::cols},
    FeatureField{"density", kTable2AndTable4, "nonzeros / (rows x columns)", &Features::density},
    FeatureField{"row_nonzeros_min", kTable2AndTable4, "nonzeros of a row, least",
                 &Features::row_nonzeros_min},
    FeatureField{"row_nonzeros_mean", kTable2AndTable4, "nonzeros of a row, mean",
                 &Features::row_nonzeros_mean},
    FeatureField{"row_nonzeros_max", kTable2AndTable4,
                 "nonzeros of a row, most; far above the mean: a few rows hold up the others",
                 &Features::row_nonzeros_max},
    FeatureField{"row_blocks_min", kTable2, "blocks of 32 columns with a nonzero in a row, least",
                 &Features::row_blocks_min},
    FeatureField{"row_blocks_mean", kTable2,
                 "blocks of 32 columns with a nonzero in a row, mean; near the mean of a row's "
                 "nonzeros: columns are scattered",
                 &Features::row_blocks_mean},
    FeatureField{"row_blocks_max", kTable2, "blocks of 32 columns with a nonzero in a row, most",
                 &Features::row_blocks_max},
    FeatureField{"warp_load_min", kTable2, "steps of 32 nonzeros of a warp, least",
                 &Features::warp_load_min},
    FeatureField{"warp_load_mean", kTable2, "steps of 32 nonzeros of a warp, mean",
                 &Features::warp_load_mean},
    FeatureField{
        "warp_load_max", kTable2,
        "steps of 32 nonzeros of a warp, most; far above the mean: the other warps wait for it",
        &Features::warp_load_max},
    FeatureField{"same_lines_min", kTable2, "requests for a cache line of B, least",
                 &Features::same_lines_min},
    FeatureField{
        "same_lines_mean", kTable2,
        "requests for a cache line of B, mean; about 1 or less: nothing of B is used twice",
        &Features::same_lines_mean},
    FeatureField{"same_lines_max", kTable2, "requests for a cache line of B, most",
                 &Features::same_lines_max},
    FeatureField{"warp_distinct_lines_min", kTable2, "distinct cache lines of B of a warp, least",
                 &Features::warp_distinct_lines_min},
    FeatureField{"warp_distinct_lines_mean", kTable2, "distinct cache lines of B of a warp, mean",
                 &Features::warp_distinct_lines_mean},
    FeatureField{"warp_distinct_lines_max", kTable2, "distinct cache lines of B of a warp, most",
                 &Features::warp_distinct_lines_max},
    FeatureField{"warp_lines_min", kTable2, "requests of a warp for cache lines of B, least",
                 &Features::warp_lines_min},
    FeatureField{"warp_lines_mean", kTable2,
                 "requests of a warp for cache lines of B, mean; near its distinct lines: it uses "
                 "none twice",
                 &Features::warp_lines_mean},
    FeatureField{"warp_lines_max", kTable2, "requests of a warp for cache lines of B, most",
                 &Features::warp_lines_max},
    FeatureField{"adjacent_distance_min", kTable2,
                 "blocks of 32 columns in one of two adjacent rows alone, least",
                 &Features::adjacent_distance_min},
    FeatureField{"adjacent_distance_mean", kTable2,
                 "blocks of 32 columns in one of two adjacent rows alone, mean; near twice "
                 "row_blocks_mean: neighbours share nothing, another order of rows may help",
                 &Features::adjacent_distance_mean},
    FeatureField{"adjacent_distance_max", kTable2,
                 "blocks of 32 columns in one of two adjacent rows alone, most",
                 &Features::adjacent_distance_max},
    FeatureField{"nnz", kTable4, "nonzeros", &Features::nnz},
    FeatureField{"row_nonzeros_variance", kTable4, "variance of the nonzeros of a row",
                 &Features::row_nonzeros_variance},
    FeatureField{"row_nonzeros_cv", kTable4,
                 "standard deviation of the nonzeros of a row / mean; above 1: rows are uneven",
                 &Features::row_nonzeros_cv},
    FeatureField{"diagonals", kTable4, "diagonals with a nonzero", &Features::diagonals},
    FeatureField{"diagonal_ratio", kTable4,
                 "diagonals with a nonzero / all diagonals; near 0: a band or a stencil",
                 &Features::diagonal_ratio},
    FeatureField{"dia_padding", kTable4,
                 "share of padding in DIA; near 0: stored by diagonals it wastes nothing",
                 &Features::dia_padding},
    FeatureField{"ell_padding", kTable4, "share of padding in ELL; near 0: rows are equally long",
                 &Features::ell_padding},
    FeatureField{"incsr_padding", kTable4, "share of counters in InCSR, sections of 8, blocks of 2",
                 &Features::incsr_padding},
    FeatureField{"bcsr_padding", kTable4,
                 "share of padding in BCSR, blocks of 2 x 2; 0.75: every nonzero stands alone, "
                 "near 0: dense blocks",
                 &Features::bcsr_padding},
    FeatureField{"dense_ratio", kRowTiles,
                 "share of the nonzeros in dense tiles; above 0.1: rows are clustered already",
                 &Features::dense_ratio},
    FeatureField{"empty_rows", kOurs, "share of the rows without a nonzero", &Features::empty_rows},
    FeatureField{"col_nonzeros_max", kOurs, "nonzeros of a column, most",
                 &Features::col_nonzeros_max},
    FeatureField{"col_nonzeros_cv", kOurs,
                 "standard deviation of the nonzeros of a column / mean; above 1: columns are "
                 "uneven",
                 &Features::col_nonzeros_cv},
    FeatureField{"heavy_columns", kOurs,
                 "share of the nonzeros in the fullest hundredth of the columns; near 1: a cache "
                 "holds most of what is read of B",
                 &Features::heavy_columns},
    FeatureField{"panel_fill_8", kOurs, "nonzeros of a column in 8 rows that have one there, mean",
                 &Features::panel_fill_8},
    FeatureField{"panel_fill_16", kOurs, "likewise in 16 rows", &Features::panel_fill_16},
    FeatureField{"panel_fill_64", kOurs,
                 "likewise in 64 rows; near 1: neighbouring rows share no columns",
                 &Features::panel_fill_64},
    FeatureField{"like_rows", kOurs,
                 "share of the rows that share two minhashes with another; near 1: reordering may "
                 "bring like rows together",
                 &Features::like_rows},
    FeatureField{"like_rows_mean", kOurs, "rows that share them, itself included, mean over rows",
                 &Features::like_rows_mean},
    FeatureField{"square_products", kOurs,
                 "multiplications of the pattern with itself; 0 if it is not square",
                 &Features::square_products},
    FeatureField{"square_products_max", kOurs, "likewise for a row of the result, most",
                 &Features::square_products_max},
    FeatureField{"square_products_cv", kOurs, "likewise, standard deviation / mean",
                 &Features::square_products_cv},
    FeatureField{"square_compression", kOurs,
                 "multiplications for a nonzero of the result, in some rows",
                 &Features::square_compression},
};

/// The features of a valid pattern, its rows in csr.row_order if there is one; the same bits for
/// any number of threads. Four passes over the nonzeros. Scratch: at most 8 N bytes a thread, fewer
/// threads than allowed if that would outgrow the pattern, 8 M, and 64 KiB; the map is of
/// `context.memory`, too. Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Features> ComputeFeatures(const CsrView& csr, const BuildContext& context);

}  // namespace sparsed
