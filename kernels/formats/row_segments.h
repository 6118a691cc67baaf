// Layout kind "row_segments": heavy row segments and light rows (RS-SpMM: Hong et al., "Efficient
// Sparse-Matrix Multi-Vector Product on GPUs", HPDC'18, section 3.1).
//
// The columns are cut into panels of `panel` columns. A row's nonzeros in a panel are a heavy
// segment if they are at least `min_heavy`; the segments are kept panel by panel in DCSR, all other
// nonzeros row by row in CSR. Unlike in the paper, a panel whose segments have too few nonzeros to
// pay for bringing its part of the operand close has none: they are light.
//
// clang-format off
//   row_order          i32, rows         layout row r is row row_order[r] of the matrix (and of C);
//                                        only if the rows are permuted
//   chunk_panels       i32, chunks       the panel of a chunk: of consecutive segments of a panel,
//                                        a block's work; ascending
//   chunk_offsets      i64, chunks + 1   where chunk c's segments begin in segment_rows
//   segment_rows       i32, segments     the segment's row of the matrix (and of C)
//   segment_layout_rows i32, segments    its layout row, ascending within a panel; only if the rows
//                                        are permuted, else it is segment_rows
//   segment_offsets    i64, segments + 1 where a segment begins in heavy_columns
//   heavy_columns      i32, heavy nnz    ascending within a segment: an entry's column is
//                                        chunk_panels[c] * panel + it
//   light_row_offsets  i64, rows + 1     where layout row r begins in light_columns
//   light_columns      i32, the others   columns, ascending within a row
//   value_source       i32/i64, nnz      the CSR nonzero of each value slot: the heavy entries'
//                                        slots come first, the light ones' after them, each in the
//                                        order of its index array
// clang-format on
//
// Parameters: panel, min_heavy (never 0), coarsen (for the GPU's kernels: elements of a row of the
// operand that a lane takes; 0: as their cost model says). There is no padding.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/formats/csr.h"
#include "kernels/layout.h"
#include "kernels/pipeline.h"
#include "kernels/problem.h"

namespace sparsed {

inline constexpr std::string_view kRowSegments = "row_segments";

/// Not owned.
struct RowSegmentsView {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t panel = 1;                   ///< columns
  int64_t coarsen = 0;                 ///< see above
  std::span<const int32_t> row_order;  ///< empty: identity
  std::span<const int32_t> chunk_panels;
  std::span<const int64_t> chunk_offsets;
  std::span<const int32_t> segment_rows;
  std::span<const int32_t> segment_layout_rows;  ///< segment_rows, if rows are not permuted
  std::span<const int64_t> segment_offsets;
  std::span<const int32_t> heavy_columns;

  int64_t chunks() const { return static_cast<int64_t>(chunk_panels.size()); }
  int64_t segments() const { return static_cast<int64_t>(segment_rows.size()); }
  int64_t heavy_nnz() const { return static_cast<int64_t>(heavy_columns.size()); }
  /// The segments of a chunk whose layout rows are in `rows`. On the host.
  RowRange SegmentsOf(int64_t chunk, RowRange rows) const;
};

/// The layout's arrays; the layout must be of kind "row_segments".
RowSegmentsView ViewRowSegments(const Layout& layout);

/// The light rows as a layout of kind "csr", for that kind's kernels: it shares the arrays; its
/// value slots are those behind the heavy ones.
Layout LightRows(const Layout& layout);

struct RowSegmentsOptions {
  /// A GPU's multiprocessor with 228 KB of shared memory (compute capability 9.0) has room for 512
  /// bytes of the operand's rows of so many columns (all of 128 f32, four a lane) in each of seven
  /// blocks. The two blocks that the paper fills it with (section 3.1; panels of 224 columns) are
  /// too few there to hide their own copies, and transposed they leave four warps.
  int64_t panel = 64;
  /// 0: by the distances between neighbouring nonzeros, LeastHeavy.
  int64_t min_heavy = 0;
  int64_t coarsen = 0;
};

/// The rules by which all builders of the layout decide.
namespace row_segments {

/// A panel pays for the copy of its part of the operand if its columns are used so often each.
inline constexpr int64_t kLeastUses = 2;
/// So many nonzeros take as long as the end of a segment.
inline constexpr int64_t kSegmentWork = 4;
/// Enough chunks to fill a GPU several times, of work that a panel's copy is short against.
inline constexpr int64_t kManyChunks = 1024;
inline constexpr int64_t kLeastChunkWork = 1024;
inline constexpr int64_t kMostChunkWork = 32'768;
/// Nonzeros are near if they are fewer columns behind the one before them.
inline constexpr int32_t kNear = 16;

/// The threshold, see LeastHeavy, for `near` of `nnz` nonzeros.
constexpr int64_t LeastHeavy(int64_t near, int64_t nnz) { return 2 * near >= nnz ? 16 : 8; }
/// Work of a chunk, about, where there is `work` in all.
constexpr int64_t ChunkWork(int64_t work) {
  return std::clamp(work / kManyChunks, kLeastChunkWork, kMostChunkWork);
}
/// Chunks that a panel with so much work is cut into, at most.
constexpr int64_t Pieces(int64_t work, int64_t chunk_work) {
  return std::max<int64_t>((work + chunk_work / 2) / chunk_work, 1);
}
/// Where piece `piece` of so many ends, in work since the panel's begin.
constexpr int64_t PieceEnd(int64_t work, int64_t pieces, int64_t piece) {
  return work / pieces * (piece + 1) + work % pieces;
}

}  // namespace row_segments

/// A threshold for heavy segments: what the end of one costs has to be earned by its nonzeros, the
/// more of them the less the light rows cost. A rule in place of the decision tree of section 4.2,
/// from the same distances: if at least half of the nonzeros are less than 16 columns behind the
/// one before them in their row, light rows find what they read in the nearest cache, and a segment
/// has to have 16; else 8.
int64_t LeastHeavy(const CsrView& csr, const BuildContext& context);

/// A layout without arrays, for either builder; `min_heavy` is not 0.
Layout RowSegmentsWithoutArrays(const CsrView& csr, const RowSegmentsOptions& options);

/// From a pattern whose rows are taken in csr.row_order. value_source speaks of csr's own nonzeros.
/// Time: proportional to rows, nonzeros and panels. Scratch: two counters for each panel and
/// thread. Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::StatusOr<Layout> BuildRowSegments(const CsrView& csr, const RowSegmentsOptions& options,
                                        const BuildContext& context);

}  // namespace sparsed
