#include "engine/planning/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "kernels/features/dense_tiles.h"

namespace sparsed::engine {
namespace {

/// Below this everything stays in the caches whatever the order.
constexpr int64_t kLeastNonzeros = 10'000;
/// Rows shorter than this on average share too few columns to be grouped.
constexpr double kLeastRowLength = 2;
/// With so many times more columns than rows, what belongs to the rows stays in the caches.
constexpr int64_t kWide = 8;
/// Above this rows are clustered well enough: the first skip rule of Jiang, Hong, Agrawal
/// (PPoPP'20), section 4.
constexpr double kClusteredAlready = 0.10;
/// On the GPU tiles pay where the columns of a panel have so many nonzeros each, if these were
/// spread evenly.
constexpr int64_t kTilePanel = 256;
constexpr double kLeastTileUses = 4;

std::string Canonical(std::string_view recipe) {
  const absl::StatusOr<Recipe> parsed = ParseRecipe(recipe);
  return parsed.ok() ? ToString(*parsed) : std::string(recipe);
}

/// The tile shape that recipes have unless they say otherwise.
RecipeStep DefaultTiles() {
  const absl::StatusOr<Recipe> recipe = ParseRecipe(Canonical("aspt"));
  return recipe.ok() ? recipe->steps.front() : RecipeStep();
}

absl::StatusOr<double> TileRatio(const CsrView& csr, const BuildContext& context) {
  int64_t panel = 64, min_dense = 2;
  for (const auto& [key, value] : DefaultTiles().parameters) {
    if (key == "panel") panel = value;
    if (key == "min_dense") min_dense = value;
  }
  return DenseTileRatio(csr, panel, min_dense, context);
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

/// Which of these wins depends on how many columns neighbouring rows share, in the order they come
/// in or in a better one; the steps' own skip rules end what cannot pay.
CandidateList OnGpu(const ProblemClass& problem_class, const PatternFacts& facts) {
  if (problem_class.operation == Operation::kSddmm) {
    return {{{Canonical("coo_panels")},
             {Canonical("row_panels")},
             {Canonical("group_rows > row_panels")},
             {Canonical("lsh_cluster > coo_panels")}},
            "an operand's row is fetched once for a panel of rows"};
  }
  if (problem_class.transposed) {
    return {{{Canonical("transpose")},
             {Canonical("transpose > row_panels")},
             {Canonical("transpose > group_rows > row_panels")}},
            "rows of the transposed matrix can be read as they lie"};
  }
  CandidateList list = {{{Canonical("row_panels")},
                         {Canonical("group_rows")},
                         {Canonical("group_rows > row_panels")},
                         {Canonical("lsh_cluster > row_panels")}},
                        "an operand's row is fetched once for a panel of rows"};
  if (static_cast<double>(kTilePanel) * facts.mean_row_length >=
      kLeastTileUses * static_cast<double>(facts.cols)) {
    list.candidates.insert(list.candidates.begin(),
                           {Canonical(fmt::format("aspt(panel={})", kTilePanel))});
  }
  return list;
}

}  // namespace

absl::StatusOr<PatternFacts> MeasureFacts(const CsrView& csr, const Features& features,
                                          const BuildContext& context) {
  PatternFacts facts;
  facts.rows = csr.rows;
  facts.cols = csr.cols;
  facts.nnz = csr.nnz();
  facts.mean_row_length = features.row_nonzeros_mean;
  absl::StatusOr<double> ratio = TileRatio(csr, context);
  if (!ratio.ok()) return ratio.status();
  facts.dense_ratio = *ratio;
  return facts;
}

CandidateList CandidatesFor(const ProblemClass& problem_class, const PatternFacts& facts) {
  if (problem_class.operation == Operation::kSpgemm) {
    return {{}, "SpGEMM runs from plain CSR"};
  }
  if (facts.nnz < kLeastNonzeros) {
    return {{},
            fmt::format("{} nonzeros, fewer than {}: other layouts have nothing to gain", facts.nnz,
                        kLeastNonzeros)};
  }
  if (problem_class.device == DeviceKind::kCuda) return OnGpu(problem_class, facts);
  if (problem_class.transposed) {
    return {{{Canonical("transpose")}}, "rows of the transposed matrix can be read as they lie"};
  }
  if (facts.cols >= kWide * facts.rows) {
    return {{{Canonical("transpose")}},
            "few rows: column by column, the other operand is read once and in order"};
  }
  if (facts.mean_row_length < kLeastRowLength) {
    return {{},
            fmt::format("{:.1f} nonzeros a row: rows share too few columns to be grouped",
                        facts.mean_row_length)};
  }
  // No kernel computes the 16-bit types from tiles.
  const bool tiles = !IsHalf(problem_class.type);
  if (facts.dense_ratio > kClusteredAlready) {
    if (!tiles) return {{}, "rows are clustered already, and tiles are for f32 and f64"};
    return {{{Canonical("aspt")}, {Canonical("aspt > lsh_cluster(remainder)")}},
            fmt::format("dense ratio {:.2f}, above {:.2f}: rows are clustered already, tiles first",
                        facts.dense_ratio, kClusteredAlready)};
  }
  if (!tiles) return {{{Canonical("lsh_cluster")}}, "rows are to be clustered"};
  return {{{Canonical("lsh_cluster")},
           {Canonical("lsh_cluster > aspt"), /*needs_clustered_tiles=*/true},
           {Canonical("lsh_cluster > aspt > lsh_cluster(remainder)"),
            /*needs_clustered_tiles=*/true}},
          fmt::format("dense ratio {:.2f}, not above {:.2f}: rows are to be clustered first",
                      facts.dense_ratio, kClusteredAlready)};
}

absl::StatusOr<double> ClusteredTileRatio(const CsrView& csr, const CsrView& clustered,
                                          const BuildContext& context) {
  CsrView ordered = csr;
  ordered.row_order = clustered.row_order;
  return TileRatio(ordered, context);
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
  std::vector<std::string_view> names;
  for (const SpgemmKernel& kernel : SpgemmKernels()) {
    if (kernel.device == problem.device && kernel.supports(problem)) names.push_back(kernel.name);
  }
  return names;
}

}  // namespace sparsed::engine
