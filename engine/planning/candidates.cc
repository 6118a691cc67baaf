#include "engine/planning/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

#include "kernels/features/dense_tiles.h"
#include "kernels/formats/aspt.h"
#include "kernels/formats/product_format.h"

namespace sparsed::engine {
namespace {

/// Below this everything stays in the caches whatever the order.
constexpr double kLeastNonzeros = 10'000;
/// Rows shorter than this on average share too few columns to be grouped.
constexpr double kLeastRowLength = 2;
/// With so many times more columns than rows, what belongs to the rows stays in the caches.
constexpr double kWide = 8;
/// Above this rows are clustered well enough: the first skip rule of Jiang, Hong, Agrawal
/// (PPoPP'20), section 4.
constexpr double kClusteredAlready = 0.10;
/// A layout that was this much slower than plain CSR for one signature is not built again for
/// another.
constexpr double kClearlySlower = 1.1;
/// Nor is one that refines a layout that was this much slower for the same signature.
constexpr double kBeyondRefining = 1.3;
/// Clustering pays for tiles where it brings so great a share of the nonzeros into them.
constexpr double kWorthTiling = 0.05;
/// On the GPU tiles pay where the columns of a panel have many nonzeros each, if these were spread
/// evenly: a column's row of B is copied once from the cache to shared memory, and read there.
constexpr int64_t kTilePanel = 256;
/// Times of what reading and copying take, with all else that tiles take.
constexpr double kTileOverhead = 2.7;
/// On the GPU rows are sorted where their lengths deviate by more than the mean: a power law.
constexpr double kUneven = 1;
/// Above this share of empty rows they are left out.
constexpr double kMostlyEmpty = 0.5;
/// Of blocks of 2 x 2: single columns of 3 rows make 0.625, single nonzeros 0.75.
constexpr double kMostSquarePadding = 0.65;
/// What heavy row segments need: so great a share of nonzeros near the one before it, rows long
/// enough for a segment, and so great a share of their columns to themselves.
constexpr double kInRuns = 0.6;
constexpr double kLeastRunLength = 16;
constexpr double kUnlike = 0.5;

std::string Canonical(std::string_view pipeline) {
  const absl::StatusOr<Pipeline> parsed = ParsePipeline(pipeline);
  return parsed.ok() ? ToString(*parsed) : std::string(pipeline);
}

template <typename Kernel>
std::vector<std::string_view> Supporting(std::span<const Kernel> kernels, const Problem& problem,
                                         const Layout& layout) {
  std::vector<std::string_view> names;
  for (const Kernel& kernel : kernels) {
    if (kernel.device == problem.device && kernel.layout_kind == layout.kind &&
        kernel.supports(SeenThrough(layout, problem), layout)) {
      names.push_back(kernel.name);
    }
  }
  return names;
}

std::vector<std::string_view> SpgemmKernelsFor(const Problem& problem) {
  std::vector<std::string_view> names;
  for (const SpgemmKernel& kernel : SpgemmKernels()) {
    if (kernel.device == problem.device && kernel.supports(problem)) names.push_back(kernel.name);
  }
  return names;
}

/// Times of plain CSR that a contender took; 0 if that is not known.
double Slowdown(const Measurement& tried) {
  return tried.baseline_ms > 0 ? tried.median_ms / tried.baseline_ms : 0;
}

/// The pipeline that `pipeline` refines, if that was far too slow for the signature; else empty.
std::string HopelessBase(const std::string& pipeline, const ProblemSignature& signature,
                         const std::vector<Measurement>& measured) {
  std::map<std::string, double> least;  // slowdown of a base, by its fastest kernel
  for (const Measurement& tried : measured) {
    if (tried.signature != signature || !pipeline.starts_with(tried.pipeline + " > ")) continue;
    const double slowdown = Slowdown(tried);
    const auto [base, first] = least.emplace(tried.pipeline, slowdown);
    if (!first) base->second = std::min(base->second, slowdown);
  }
  for (const auto& [base, slowdown] : least) {
    if (slowdown > kBeyondRefining) return base;
  }
  return "";
}

/// Whether the pipeline's layout was clearly slower than plain CSR for every signature that differs
/// in K alone.
bool WasSlower(const std::string& pipeline, const ProblemSignature& signature,
               const std::vector<Measurement>& measured) {
  bool slower = false;
  // Of a signature that other kernels serve it says nothing.
  const auto alike = [&](ProblemSignature c) {
    c.k_bucket = signature.k_bucket;
    return c == signature;
  };
  for (const Measurement& tried : measured) {
    if (tried.pipeline != pipeline || !alike(tried.signature)) continue;
    const double slowdown = Slowdown(tried);
    if (slowdown == 0) continue;
    if (slowdown <= kClearlySlower) return false;
    slower = true;
  }
  return slower;
}

/// What a rule comes to.
struct Verdict {
  bool worth_trying = false;
  std::string reason;
  bool is_limit = false;  ///< what is not worth trying by it must not be
};

bool IsPlain(const ProblemSignature& c) { return !c.transposed; }
bool IsTransposed(const ProblemSignature& c) { return c.transposed; }
bool IsPlainSpmm(const ProblemSignature& c) {
  return IsPlain(c) && c.operation == Operation::kSpmm;
}
bool IsSddmm(const ProblemSignature& c) { return c.operation == Operation::kSddmm; }
/// With a single column there is too little of an operand's row to be worth sharing its fetch.
bool HasRowsToShare(const ProblemSignature& c) {
  return c.k_bucket > 1 || c.operation == Operation::kSddmm;
}
bool IsTransposedAndShares(const ProblemSignature& c) {
  return IsTransposed(c) && HasRowsToShare(c);
}
bool IsPlainSpmmAndShares(const ProblemSignature& c) { return IsPlainSpmm(c) && HasRowsToShare(c); }
bool IsPlainSpmmAndSharesNotHalf(const ProblemSignature& c) {
  return IsPlainSpmmAndShares(c) && !IsHalf(c.type);
}
/// No CPU kernel computes the 16-bit types from tiles.
bool IsPlainAndSharesNotHalf(const ProblemSignature& c) {
  return IsPlain(c) && HasRowsToShare(c) && !IsHalf(c.type);
}

Verdict Transposing(const Features&, const DeviceConstants&) {
  return {true, "rows of the transposed matrix can be read as they lie"};
}

bool HasFewRows(const Features& features) { return features.cols >= kWide * features.rows; }

Verdict ColumnByColumn(const Features& features, const DeviceConstants&) {
  if (HasFewRows(features)) {
    return {true, "few rows: column by column, the other operand is read once and in order"};
  }
  return {false, fmt::format("{} columns are not {} times as many as the {} rows", features.cols,
                             kWide, features.rows)};
}

/// Why neither order nor tiles can bring anything on a CPU; empty if they can.
std::string NothingShared(const Features& features) {
  if (HasFewRows(features)) return "few rows: what belongs to them stays in the caches";
  if (features.row_nonzeros_mean < kLeastRowLength) {
    return fmt::format("{:.1f} nonzeros a row: rows share too few columns to be grouped",
                       features.row_nonzeros_mean);
  }
  return "";
}

Verdict Clustering(const Features& features, const DeviceConstants&) {
  if (std::string why = NothingShared(features); !why.empty()) return {false, std::move(why)};
  if (features.dense_ratio > kClusteredAlready) {
    return {false, fmt::format("dense ratio {:.2f}, above {:.2f}: rows are clustered already",
                               features.dense_ratio, kClusteredAlready)};
  }
  return {true, fmt::format("dense ratio {:.2f}, not above {:.2f}: rows are to be clustered",
                            features.dense_ratio, kClusteredAlready)};
}

Verdict Tiling(const Features& features, const DeviceConstants&) {
  if (std::string why = NothingShared(features); !why.empty()) return {false, std::move(why)};
  if (features.dense_ratio > kClusteredAlready) {
    return {true, fmt::format("dense ratio {:.2f}, above {:.2f}: there are tiles as it is",
                              features.dense_ratio, kClusteredAlready)};
  }
  return {false, fmt::format("dense ratio {:.2f}, not above {:.2f}: too few tiles as it is",
                             features.dense_ratio, kClusteredAlready)};
}

/// A shape of blocks is found when they are built, by a sample; this spares looking for it.
Verdict MultiplyingBlocks(const Features& features, const DeviceConstants&) {
  const double padding = features.bcsr_padding;
  const bool blocks = padding <= kMostSquarePadding;
  return {blocks,
          fmt::format("blocks of 2 x 2 would be padding by {:.0f} %, {} {:.0f}: {}", 100 * padding,
                      blocks ? "not above" : "above", 100 * kMostSquarePadding,
                      blocks ? "an operand's row is read once for all rows of a block"
                             : "nonzeros lie scattered")};
}

Verdict SharingFetches(const Features&, const DeviceConstants&) {
  return {true, "an operand's row is fetched once for a panel of rows"};
}

Verdict SharingOnceGrouped(const Features&, const DeviceConstants&) {
  return {true, "rows that share columns come together, and an operand's row is fetched for all"};
}

/// u uses take u reads of the cache without tiles, with them one, as long a copy and u reads of
/// shared memory: with shared memory r times as fast as the cache tiles pay from (r + 1) / (r - 1)
/// uses on, and later by what else they take.
double LeastTileUses(const DeviceConstants& constants) {
  constexpr double kLeastRatio = 1.5;
  const double ratio = constants.shared_bytes_per_second / constants.cache_bytes_per_second;
  const double r = std::max(ratio, kLeastRatio);
  return kTileOverhead * (r + 1) / (r - 1);
}

Verdict TilingOnGpu(const Features& features, const DeviceConstants& constants) {
  const double uses =
      static_cast<double>(kTilePanel) * features.row_nonzeros_mean / std::max(features.cols, 1.0);
  const double least = LeastTileUses(constants);
  return {uses >= least,
          fmt::format(
              "{:.2g} nonzeros for each column of {} rows, {} {:.2g}: {}", uses, kTilePanel,
              uses >= least ? "at least" : "fewer than", least,
              uses >= least ? "tiles pay for their copies" : "tiles do not pay for their copies")};
}

/// Rows that run at the same time should be equally long, and the longest should not come last:
/// sorting by load is the row swizzle of Sputnik (Gale et al., SC 2020) and the plain sort of
/// Mehrabi et al. Their other sorts for balance are for warps that keep their rows; CPU kernels cut
/// equal parts whatever the order.
Verdict Balancing(const Features& features, const DeviceConstants&) {
  const bool uneven = features.row_nonzeros_cv > kUneven;
  return {uneven,
          fmt::format("rows are {}: their lengths deviate by {:.2g} times the mean, {} {}",
                      uneven ? "uneven, the heaviest go first" : "even enough",
                      features.row_nonzeros_cv, uneven ? "more than" : "not more than", kUneven)};
}

Verdict LeavingOutEmptyRows(const Features& features, const DeviceConstants&) {
  const bool most = features.empty_rows > kMostlyEmpty;
  return {most,
          fmt::format("{:.0f} % of the rows are empty, {} {:.0f} %", 100 * features.empty_rows,
                      most ? "more than" : "not more than", 100 * kMostlyEmpty)};
}

/// Heavy row segments pay for the way of their sums to C where rows have runs of near columns (by
/// the distances of RS-SpMM, section 4.2) that their neighbours do not share: what these share is
/// in the nearest cache, which is as fast as the shared memory that segments are multiplied from.
Verdict StreamingSegments(const Features& features, const DeviceConstants&) {
  if (features.near_nonzeros() < kInRuns || features.row_nonzeros_mean < kLeastRunLength) {
    return {false,
            fmt::format("{:.2f} of the nonzeros are near another, {:.3g} a row: no runs of columns",
                        features.near_nonzeros(), features.row_nonzeros_mean)};
  }
  const bool unlike = features.unlike_neighbours() >= kUnlike;
  return {unlike,
          fmt::format(
              "rows have runs of columns, of which {:.2f} are theirs alone, {} "
              "{:.2f}: {}",
              features.unlike_neighbours(), unlike ? "at least" : "less than", kUnlike,
              unlike ? "what they read is kept close for other rows" : "the cache does as well")};
}

struct Rule {
  std::string_view pipeline;
  DeviceKind device;
  /// The signatures that there are kernels for.
  bool (*is_for)(const ProblemSignature&);
  Verdict (*judge)(const Features&, const DeviceConstants&);
  bool needs_clustered_tiles = false;
};

/// What the rules of SpGEMM look at.
struct PairFacts {
  const Features& left;
  const Features& right;
  double value_bytes;

  /// A row of the right one that a nonzero of the left one asks for is long more often than not, if
  /// long rows are those of popular columns, too.
  double products_of_row() const {
    if (right.row_nonzeros_mean == 0) return 0;
    return left.row_nonzeros_mean *
           (right.row_nonzeros_mean + right.row_nonzeros_variance / right.row_nonzeros_mean);
  }
  /// Of the right one, to a block of 32 columns that has any.
  double nonzeros_of_block() const {
    return right.row_nonzeros_mean / std::max(right.row_blocks_mean, 1.0);
  }
  double csr_bytes(const Features& f) const {
    return f.nnz * (sizeof(int32_t) + value_bytes) + (f.rows + 1) * sizeof(int64_t);
  }
};

/// Windows of sums up to this stay in the second-level cache.
constexpr double kCachedColumns = 1 << 19;
/// Wider ones stay in no cache.
constexpr double kUncachedColumns = 1 << 22;
/// A heap of so few rows has next to no depth.
constexpr double kFewTerms = 3;
/// Below this a row's entries do not pay for reading its terms once for each part.
constexpr double kManyProducts = 1024;
constexpr double kWideWindow = 1 << 14;
/// Nonzeros of a block of 32 columns that has any: then half of it is worth a vector.
constexpr double kGrouped = 2.5;
/// Of a slot of a format: where its value comes from. Matrices that take more are no candidates.
constexpr double kSourceBytes = sizeof(int32_t);

/// On the GPU, more are no candidates.
constexpr double kMostMaskBits = 64;
/// Of a row, which a thread keeps as a list.
constexpr double kMostEvenProducts = 64;
/// A lane for each term.
constexpr double kMostLanes = 32;
/// The bitmap of a row's words lies in shared memory.
constexpr double kMostBitmapColumns = 1 << 20;
/// Of a row: those of fewer are added up in tables by every kernel over bins.
constexpr double kBitmapProducts = 64;
/// Nonzeros of a block of 32 columns that has any: then there is less to look at in words of them.
constexpr double kWordNonzeros = 1.5;
/// Of blocks of 2 x 2, which isolated blocks of 3 x 3 pad by 0.44.
constexpr double kMostBlockPadding = 0.5;
/// Of a row: a block that sorts them has several rows, and no row is too long for it.
constexpr double kFewProducts = 256;

/// More products take so long that who waits for the worker slot notices.
constexpr double kMostUnstopped = 3e7;

Verdict OneWindow(const PairFacts& facts) {
  const bool cached = facts.right.cols <= kCachedColumns;
  return {cached,
          fmt::format("{:.0f} columns, {} {:.0f}: a window of sums {}", facts.right.cols,
                      cached ? "not above" : "above", kCachedColumns,
                      cached ? "for every row stays in the cache" : "for every row is too wide")};
}

Verdict Hashing(const PairFacts& facts) {
  const bool wide = facts.right.cols > kUncachedColumns;
  return {wide, fmt::format("{:.0f} columns, {} {:.0f}: {}", facts.right.cols,
                            wide ? "above" : "not above", kUncachedColumns,
                            wide ? "no cache holds a window of sums"
                                 : "windows of sums do better than tables")};
}

Verdict Merging(const PairFacts& facts) {
  const double terms = facts.left.row_nonzeros_mean;
  return {terms <= kFewTerms,
          fmt::format("{:.1f} rows to be merged for each of the result, {} {}", terms,
                      terms <= kFewTerms ? "not above" : "above", kFewTerms)};
}

Verdict ByDiagonals(const PairFacts& facts) {
  const auto growth = [&](const Features& f) {
    return f.diagonals * f.rows * (facts.value_bytes + kSourceBytes) / facts.csr_bytes(f);
  };
  const double most = std::max(growth(facts.left), growth(facts.right));
  return {most <= kMostFormatGrowth,
          fmt::format("by diagonals, {:.0f} and {:.0f} of them, the larger one takes {:.2g} times "
                      "CSR's memory, {} {}",
                      facts.left.diagonals, facts.right.diagonals, most,
                      most <= kMostFormatGrowth ? "not above" : "above", kMostFormatGrowth)};
}

Verdict ByColumnParts(const PairFacts& facts) {
  const double products = facts.products_of_row();
  const bool many = products >= kManyProducts, wide = facts.right.cols >= kWideWindow;
  return {many && wide, fmt::format("some {:.0f} products a row in {:.0f} columns: {}", products,
                                    facts.right.cols,
                                    !many  ? "too few to go through the rows once for each part"
                                    : wide ? "parts of the window stay in a closer cache"
                                           : "all of the window is in a close cache")};
}

Verdict WithEvenRows(const PairFacts& facts) {
  const auto growth = [&](const Features& f) {
    return f.rows * f.row_nonzeros_max * (sizeof(int32_t) + facts.value_bytes + kSourceBytes) /
           facts.csr_bytes(f);
  };
  const double most = std::max(growth(facts.left), growth(facts.right));
  return {most <= kMostFormatGrowth,
          fmt::format("with rows of one length the larger one takes {:.2g} times CSR's memory, {} "
                      "{}",
                      most, most <= kMostFormatGrowth ? "not above" : "above", kMostFormatGrowth)};
}

Verdict BySections(const PairFacts& facts) {
  const double grouped = facts.nonzeros_of_block();
  return {grouped >= kGrouped,
          fmt::format("{:.1f} nonzeros of the right one to a block of 32 columns, {} {}", grouped,
                      grouped >= kGrouped ? "at least" : "fewer than", kGrouped)};
}

Verdict AtOnce(const PairFacts& facts) {
  const double products = facts.left.rows * facts.products_of_row();
  const bool few = products <= kMostUnstopped;
  return {few,
          fmt::format("some {:.2g} products, {} {:.2g}: {}", products, few ? "not above" : "above",
                      kMostUnstopped,
                      few ? "made at once they block nobody for long" : "it cannot be stopped"),
          /*is_limit=*/true};
}

Verdict ByDiagonalsOnGpu(const PairFacts& facts) {
  const double most = std::max(facts.left.diagonals, facts.right.diagonals);
  return {
      most <= kMostMaskBits,
      fmt::format("{:.0f} and {:.0f} diagonals, {} {}", facts.left.diagonals, facts.right.diagonals,
                  most <= kMostMaskBits ? "not above" : "above", kMostMaskBits)};
}

Verdict WithEvenRowsOnGpu(const PairFacts& facts) {
  const double left = facts.left.row_nonzeros_max, right = facts.right.row_nonzeros_max;
  const double most = std::max({left * right, left, right});
  return {most <= kMostEvenProducts,
          fmt::format("up to {:.0f} products a row, {} {}", most,
                      most <= kMostEvenProducts ? "not above" : "above", kMostEvenProducts)};
}

Verdict MergingOnGpu(const PairFacts& facts) {
  const double terms = facts.left.row_nonzeros_max;
  return {terms <= kMostLanes,
          fmt::format("up to {:.0f} rows to be merged for each of the result, {} {}", terms,
                      terms <= kMostLanes ? "not above" : "above", kMostLanes)};
}

Verdict ByBlocks(const PairFacts& facts) {
  const double most = std::max(facts.left.bcsr_padding, facts.right.bcsr_padding);
  const double uneven = std::max(facts.left.row_nonzeros_cv, facts.right.row_nonzeros_cv);
  if (uneven > kUneven) {
    return {false, fmt::format("row lengths deviate by {:.2f} of their mean, above {}: the longest "
                               "would hold up the others",
                               uneven, kUneven)};
  }
  return {
      most <= kMostBlockPadding,
      fmt::format("blocks of 2 x 2 would be padding by {:.0f} and {:.0f} %, {} {:.0f}: {}",
                  100 * facts.left.bcsr_padding, 100 * facts.right.bcsr_padding,
                  most <= kMostBlockPadding ? "not above" : "above", 100 * kMostBlockPadding,
                  most <= kMostBlockPadding ? "nonzeros lie in blocks" : "nonzeros lie scattered")};
}

Verdict ByBitmaps(const PairFacts& facts) {
  if (facts.right.cols > kMostBitmapColumns) {
    return {false, fmt::format("{:.0f} columns, above {:.0f}: too many for bitmaps of rows",
                               facts.right.cols, kMostBitmapColumns)};
  }
  const double products = facts.products_of_row();
  const bool enough = products >= kBitmapProducts;
  return {enough,
          fmt::format("some {:.0f} products a row, {} {}: {}", products,
                      enough ? "at least" : "fewer than", kBitmapProducts,
                      enough ? "bitmaps of long rows may pay" : "tables do for short rows")};
}

Verdict ByWords(const PairFacts& facts) {
  Verdict bitmaps = ByBitmaps(facts);
  if (!bitmaps.worth_trying) return bitmaps;
  const double grouped = facts.nonzeros_of_block();
  const bool enough = grouped >= kWordNonzeros;
  return {enough, fmt::format("{:.1f} nonzeros of the right one to a word of 32 columns, {} {}",
                              grouped, enough ? "at least" : "fewer than", kWordNonzeros)};
}

Verdict BySorting(const PairFacts& facts) {
  const double products = facts.products_of_row();
  return {products <= kFewProducts,
          fmt::format("some {:.0f} products a row, {} {}", products,
                      products <= kFewProducts ? "not above" : "above", kFewProducts)};
}

Verdict FromTheVendor(const PairFacts& /*facts*/) {
  return {true, "the vendor's library always takes part"};
}

struct SpgemmRule {
  std::string_view kernel;
  Verdict (*judge)(const PairFacts&);
};

/// A kernel without one is always tried.
constexpr SpgemmRule kSpgemmRules[] = {
    {"cpu.csr.dense", OneWindow},
    {"cpu.csr.hash", Hashing},
    {"cpu.csr.heap", Merging},
    {"cpu.dia.diagonals", ByDiagonals},
    {"cpu.coo.column_parts", ByColumnParts},
    {"cpu.ell.even_rows", WithEvenRows},
    {"cpu.incsr.sections", BySections},
    {"cpu.graphblas.mxm", AtOnce},
    {"cuda.csr.row_bitmaps", ByBitmaps},
    {"cuda.csr.row_words", ByWords},
    {"cuda.dia.diagonals", ByDiagonalsOnGpu},
    {"cuda.ell.even_rows", WithEvenRowsOnGpu},
    {"cuda.bcsr.blocks", ByBlocks},
    {"cuda.csr.expand_sort", BySorting},
    {"cuda.csr.merged_rows", MergingOnGpu},
    {"cuda.cusparse.spgemm_alg1", FromTheVendor},
    {"cuda.cusparse.spgemm_alg2", FromTheVendor},
};

Verdict JudgeSpgemm(const Problem& problem, std::string_view kernel, const Features* left,
                    const Features* right) {
  const auto rule = std::ranges::find(kSpgemmRules, kernel, &SpgemmRule::kernel);
  if (rule == std::end(kSpgemmRules)) return {true, "there is no rule for it"};
  if (left == nullptr || right == nullptr) return {true, "features are not known"};
  return rule->judge({*left, *right, static_cast<double>(SizeOf(problem.type))});
}

/// For each signature, cheapest to build first. On the GPU, which wins depends on how many columns
/// neighbouring rows share, in the order they come in or in a better one; the steps' own skip rules
/// end what cannot pay.
constexpr Rule kRules[] = {
    {"transpose", DeviceKind::kCpu, IsTransposed, Transposing},
    {"transpose", DeviceKind::kCpu, IsPlain, ColumnByColumn},
    {"dcsr", DeviceKind::kCpu, IsPlainSpmm, LeavingOutEmptyRows},
    {"bcsr", DeviceKind::kCpu, IsPlainSpmmAndShares, MultiplyingBlocks},
    {"transpose > bcsr", DeviceKind::kCpu, IsTransposedAndShares, MultiplyingBlocks},
    {"lsh_cluster", DeviceKind::kCpu, IsPlain, Clustering},
    {"aspt", DeviceKind::kCpu, IsPlainAndSharesNotHalf, Tiling},
    {"aspt > lsh_cluster(remainder)", DeviceKind::kCpu, IsPlainAndSharesNotHalf, Tiling},
    {"lsh_cluster > aspt", DeviceKind::kCpu, IsPlainAndSharesNotHalf, Clustering,
     /*needs_clustered_tiles=*/true},
    {"lsh_cluster > aspt > lsh_cluster(remainder)", DeviceKind::kCpu, IsPlainAndSharesNotHalf,
     Clustering,
     /*needs_clustered_tiles=*/true},

    {"transpose", DeviceKind::kCuda, IsTransposed, Transposing},
    {"transpose > row_panels", DeviceKind::kCuda, IsTransposedAndShares, SharingFetches},
    {"transpose > group_rows > row_panels", DeviceKind::kCuda, IsTransposedAndShares,
     SharingOnceGrouped},
    {"dcsr", DeviceKind::kCuda, IsPlainSpmm, LeavingOutEmptyRows},
    {"row_segments", DeviceKind::kCuda, IsPlainSpmmAndSharesNotHalf, StreamingSegments},
    {"aspt(panel=256)", DeviceKind::kCuda, IsPlainSpmmAndShares, TilingOnGpu},
    {"row_panels", DeviceKind::kCuda, IsPlainSpmmAndShares, SharingFetches},
    {"plain_sort", DeviceKind::kCuda, IsPlainSpmmAndShares, Balancing},
    {"hybrid1_sort", DeviceKind::kCuda, IsPlainSpmmAndShares, Balancing},
    {"group_rows", DeviceKind::kCuda, IsPlainSpmm, SharingOnceGrouped},
    {"group_rows > row_panels", DeviceKind::kCuda, IsPlainSpmmAndShares, SharingOnceGrouped},
    {"lsh_cluster > row_panels", DeviceKind::kCuda, IsPlainSpmmAndShares, SharingOnceGrouped},
    {"coo_panels", DeviceKind::kCuda, IsSddmm, SharingFetches},
    {"row_panels", DeviceKind::kCuda, IsSddmm, SharingFetches},
    {"row_panels(rows=16)", DeviceKind::kCuda, IsSddmm, SharingFetches},
    {"group_rows > row_panels", DeviceKind::kCuda, IsSddmm, SharingOnceGrouped},
    {"group_rows(size=16) > row_panels(rows=16)", DeviceKind::kCuda, IsSddmm, SharingOnceGrouped},
    {"lsh_cluster", DeviceKind::kCuda, IsSddmm, SharingOnceGrouped},
    {"lsh_cluster > coo_panels", DeviceKind::kCuda, IsSddmm, SharingOnceGrouped},
};

}  // namespace

std::vector<Candidate> CandidatesFor(const ProblemSignature& signature, const Features& features,
                                     const DeviceConstants& measured) {
  const DeviceConstants constants = WithDefaults(measured, signature.device, /*threads=*/1);
  std::vector<Candidate> candidates;
  if (signature.operation == Operation::kSpgemm) return candidates;
  for (const Rule& rule : kRules) {
    if (rule.device != signature.device || !rule.is_for(signature)) continue;
    Verdict verdict = rule.judge(features, constants);
    if (features.nnz < kLeastNonzeros) {
      verdict = {false,
                 fmt::format("{} nonzeros, fewer than {}: other layouts have nothing to gain",
                             features.nnz, kLeastNonzeros)};
    }
    candidates.push_back({Canonical(rule.pipeline), verdict.worth_trying, std::move(verdict.reason),
                          rule.needs_clustered_tiles});
  }
  return candidates;
}

std::vector<Candidate> SpgemmCandidatesFor(const Problem& problem, const Features* left,
                                           const Features* right) {
  std::vector<Candidate> candidates;
  for (const std::string_view kernel : SpgemmKernelsFor(problem)) {
    Verdict verdict = JudgeSpgemm(problem, kernel, left, right);
    Candidate candidate;
    candidate.kernel = kernel;
    candidate.worth_trying = verdict.worth_trying;
    candidate.reason = std::move(verdict.reason);
    candidate.forbidden = !verdict.worth_trying && verdict.is_limit;
    candidates.push_back(std::move(candidate));
  }
  if (!candidates.empty()) candidates.erase(candidates.begin());
  return candidates;
}

bool HasRule(DeviceKind device, std::string_view pipeline) {
  return std::ranges::any_of(kRules, [&](const Rule& rule) {
    return rule.device == device && Canonical(rule.pipeline) == pipeline;
  });
}

absl::StatusOr<double> ClusteredTileRatio(const CsrView& csr, const CsrView& clustered,
                                          const BuildContext& context) {
  CsrView ordered = csr;
  ordered.row_order = clustered.row_order;
  const AsptOptions tiles;
  return DenseTileRatio(ordered, tiles.panel, tiles.min_dense, context);
}

std::optional<std::string> RuledOutByOthers(const Candidate& candidate,
                                            const ProblemSignature& signature,
                                            const std::vector<Measurement>& measured, bool again,
                                            std::optional<double> clustered_ratio) {
  if (!again && WasSlower(candidate.pipeline, signature, measured)) {
    return "it was slower for another K";
  }
  if (const std::string base = HopelessBase(candidate.pipeline, signature, measured);
      !base.empty()) {
    return fmt::format("{} alone was far slower", base);
  }
  if (!candidate.needs_clustered_tiles) return std::nullopt;
  if (!clustered_ratio) return "rows were not clustered";
  if (*clustered_ratio >= kWorthTiling) return std::nullopt;
  return fmt::format(
      "clustering brings {:.1f} % of the nonzeros into dense tiles, less than {:.0f}",
      100 * *clustered_ratio, 100 * kWorthTiling);
}

std::vector<std::string_view> KernelsFor(const Problem& problem, const Layout& layout) {
  switch (problem.operation) {
    case Operation::kSpmm:
      return Supporting(SpmmKernels(), problem, layout);
    case Operation::kSddmm:
      return Supporting(SddmmKernels(), problem, layout);
    case Operation::kSpgemm:
      break;
  }
  return SpgemmKernelsFor(problem);
}

Layout PlainCsrWithoutArrays(int64_t rows, int64_t cols, int64_t nnz) {
  Layout layout;
  layout.kind = layout.pipeline = kCsr;
  layout.rows = rows;
  layout.cols = cols;
  layout.nnz = layout.value_slots = nnz;
  return layout;
}

std::optional<Plan> OnPlainCsr(Plan plan, const Layout& csr, std::string_view why) {
  const std::vector<std::string_view> kernels = KernelsFor(ProblemOf(plan.signature), csr);
  if (kernels.empty()) return std::nullopt;
  plan.reason = fmt::format("plain CSR serves {} {} ({})", why, plan.pipeline, plan.reason);
  plan.pipeline = kCsr;
  plan.kernel = kernels.front();
  plan.plan_ms = plan.baseline_ms;
  plan.provisional = true;
  return plan;
}

}  // namespace sparsed::engine
