#include "kernels/pipeline_steps.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "kernels/build_accelerator.h"
#include "kernels/features/dense_tiles.h"
#include "kernels/features/similarity.h"
#include "kernels/formats/aspt.h"
#include "kernels/formats/bcsr.h"
#include "kernels/formats/column_parts.h"
#include "kernels/formats/coo_panels.h"
#include "kernels/formats/csr_build.h"
#include "kernels/formats/dcsr.h"
#include "kernels/formats/diagonals.h"
#include "kernels/formats/ell.h"
#include "kernels/formats/incsr.h"
#include "kernels/formats/row_panels.h"
#include "kernels/formats/row_segments.h"
#include "kernels/formats/row_words.h"
#include "kernels/reorder/breadth_first.h"
#include "kernels/reorder/group_rows.h"
#include "kernels/reorder/lsh_cluster.h"
#include "kernels/reorder/sort_rows.h"

namespace sparsed {
namespace {

// The skip rules of Jiang, Hong, Agrawal, PPoPP'20, sections 4 and 5.2.
constexpr double kDenseRatioThreshold = 0.10;
constexpr double kSimilarityThreshold = 0.10;
/// "Few candidate pairs": fewer than one for each so many rows move nothing worth the effort.
constexpr int64_t kRowsPerCandidate = 100;
/// With a smaller share of nonzeros in dense tiles, tiling "has little or no advantage" (section
/// 1).
constexpr double kLeastDenseRatio = 0.01;
/// Row panels that save fewer of the operand's rows do not pay for their padding, nor for the
/// memory.
constexpr double kLeastSharing = 1.3;
/// With a smaller share of nonzeros in heavy segments, row segments are CSR with a detour.
constexpr double kLeastHeavyRatio = 0.2;
/// With more threads the CPU has built row segments before those of the GPU are copied back.
constexpr int kFewThreads = 8;

absl::Status Plain(const PipelineStep&, Draft&) { return absl::OkStatus(); }

absl::Status Transpose(const PipelineStep&, Draft& draft) {
  auto transposed = TransposeCsr(draft.csr, draft.context);
  if (!transposed.ok()) return transposed.status();
  draft.transposed = *std::move(transposed);
  draft.csr = ViewCsr(*draft.transposed);
  return absl::OkStatus();
}

/// The order that Algorithm 3 gives, or nothing, with a note, if it has too few pairs to work with.
absl::StatusOr<std::optional<Array>> Cluster(const PipelineStep& step, const CsrView& csr,
                                             std::string_view what, Draft& draft) {
  LshOptions lsh;
  lsh.siglen = static_cast<int>(ValueOf(step, "siglen", lsh.siglen));
  lsh.bsize = static_cast<int>(ValueOf(step, "bsize", lsh.bsize));
  ClusterOptions cluster;
  cluster.max_cluster = ValueOf(step, "max_cluster", cluster.max_cluster);
  auto order = LshClusterRows(csr, lsh, cluster, draft.context);
  if (!order.ok()) return order.status();
  const std::string found =
      fmt::format("{} candidate pairs for {} rows of {}", order->candidate_pairs, csr.rows, what);
  if (order->candidate_pairs < csr.rows / kRowsPerCandidate || order->candidate_pairs == 0) {
    draft.Note(fmt::format("{}, too few: left as they were", found));
    return std::nullopt;
  }
  draft.Note(fmt::format("{}: {} were merged into clusters", found, order->moved));
  return std::move(order->row_order);
}

/// Of the step that makes the layout; null if it will be CSR.
const PipelineStep* FormatStep(const Pipeline& pipeline) {
  for (const PipelineStep& step : pipeline.steps) {
    const StepDefinition* definition = FindStep(step);
    if (definition != nullptr && definition->phase == Phase::kFormat) return &step;
  }
  return nullptr;
}

AsptOptions TilingOf(const PipelineStep& step) {
  AsptOptions options;
  options.panel = ValueOf(step, "panel", options.panel);
  options.min_dense = ValueOf(step, "min_dense", options.min_dense);
  return options;
}

/// Whether the rows are clustered well enough as they are: for tiles, by the dense ratio (the
/// paper's rule for the first round); for CSR, which reuses through the cache as the remainder
/// does, and for row panels by the similarity of consecutive rows (the rule for the second).
absl::StatusOr<bool> RowsAreClustered(Draft& draft) {
  if (const PipelineStep* format = FormatStep(draft.pipeline);
      format != nullptr && format->name == kAspt) {
    const AsptOptions tiling = TilingOf(*format);
    const auto ratio = DenseTileRatio(draft.csr, tiling.panel, tiling.min_dense, draft.context);
    if (!ratio.ok()) return ratio.status();
    const bool high = *ratio > kDenseRatioThreshold;
    draft.Note(fmt::format("dense ratio {:.3f} {} {:.2f}: first round {}", *ratio,
                           high ? ">" : "<=", kDenseRatioThreshold, high ? "skipped" : "needed"));
    return high;
  }
  const double similarity = AverageConsecutiveSimilarity(draft.csr, draft.context.threads);
  const bool high = similarity > kSimilarityThreshold;
  draft.Note(fmt::format("average similarity of consecutive rows {:.3f} {} {:.2f}: reordering {}",
                         similarity, high ? ">" : "<=", kSimilarityThreshold,
                         high ? "skipped" : "needed"));
  return high;
}

absl::Status ClusterRowsStep(const PipelineStep& step, Draft& draft) {
  std::optional<Array> order;
  const auto clustered = RowsAreClustered(draft);
  if (!clustered.ok()) return clustered.status();
  if (!*clustered || ValueOf(step, "force", 0) != 0) {
    auto found = Cluster(step, draft.csr, "the matrix", draft);
    if (!found.ok()) return found.status();
    order = *std::move(found);
  }
  if (order.has_value()) {
    draft.row_order = std::move(order);
    draft.csr.row_order = draft.row_order->As<int32_t>();
  } else if (FormatStep(draft.pipeline) == nullptr) {
    draft.skipped = true;
  }
  return absl::OkStatus();
}

absl::Status BreadthFirstStep(const PipelineStep& /*step*/, Draft& draft) {
  auto order = BreadthFirst(draft.csr, draft.context);
  if (!order.ok()) return order.status();
  draft.row_order = *std::move(order);
  draft.csr.row_order = draft.row_order->As<int32_t>();
  return absl::OkStatus();
}

absl::Status GroupRowsStep(const PipelineStep& step, Draft& draft) {
  auto order = GroupRows(draft.csr, ValueOf(step, "size", 8), draft.context);
  if (!order.ok()) return order.status();
  draft.row_order = *std::move(order);
  draft.csr.row_order = draft.row_order->As<int32_t>();
  return absl::OkStatus();
}

template <RowSort kSort>
absl::Status SortRowsStep(const PipelineStep& step, Draft& draft) {
  RowPolicy policy;
  policy.warps = ValueOf(step, "warps", policy.warps);
  policy.run = ValueOf(step, "run", policy.run);
  policy.lanes = ValueOf(step, "lanes", policy.lanes);
  policy.mask_columns = ValueOf(step, "mask_columns", policy.mask_columns);
  auto order = SortRows(draft.csr, kSort, policy, draft.context);
  if (!order.ok()) return order.status();
  draft.row_order = *std::move(order);
  draft.csr.row_order = draft.row_order->As<int32_t>();
  return absl::OkStatus();
}

absl::Status Tile(const PipelineStep& step, Draft& draft) {
  auto layout = BuildAspt(draft.csr, TilingOf(step), draft.context);
  if (!layout.ok()) return layout.status();
  draft.csr.row_order = {};
  draft.row_order.reset();
  const int64_t dense = ViewAspt(*layout).dense_nnz();
  const double ratio =
      layout->nnz == 0 ? 0.0 : static_cast<double>(dense) / static_cast<double>(layout->nnz);
  draft.skipped = ratio < kLeastDenseRatio;
  draft.Note(fmt::format("{} of {} nonzeros ({:.3f}) in dense tiles{}", dense, layout->nnz, ratio,
                         draft.skipped ? ": tiling skipped" : ""));
  draft.layout = *std::move(layout);
  return absl::OkStatus();
}

absl::Status CutIntoPanels(const PipelineStep& step, Draft& draft) {
  const int64_t panel_rows = ValueOf(step, "rows", 8);
  const auto slots = CountPanelSlots(draft.csr, panel_rows, draft.context);
  if (!slots.ok()) return slots.status();
  const double sharing = draft.csr.nnz() == 0
                             ? 0.0
                             : static_cast<double>(draft.csr.nnz()) / static_cast<double>(*slots);
  draft.skipped = sharing < kLeastSharing && ValueOf(step, "force", 0) == 0;
  draft.Note(fmt::format("{:.2f} nonzeros for each column of a panel of {} rows{}", sharing,
                         panel_rows, draft.skipped ? ": panels skipped" : ""));
  if (draft.skipped) return absl::OkStatus();
  auto layout = BuildRowPanels(draft.csr, panel_rows, draft.context);
  if (!layout.ok()) return layout.status();
  draft.csr.row_order = {};
  draft.row_order.reset();
  draft.layout = *std::move(layout);
  return absl::OkStatus();
}

absl::Status ListPanels(const PipelineStep& step, Draft& draft) {
  auto layout = BuildCooPanels(draft.csr, ValueOf(step, "rows", 16), draft.context);
  if (!layout.ok()) return layout.status();
  draft.csr.row_order = {};
  draft.row_order.reset();
  draft.layout = *std::move(layout);
  return absl::OkStatus();
}

absl::Status LeaveOutEmptyRows(const PipelineStep&, Draft& draft) {
  auto layout = BuildDcsr(draft.csr, draft.transposed.has_value(), draft.context);
  if (!layout.ok()) return layout.status();
  draft.csr.row_order = {};
  draft.row_order.reset();
  draft.Note(fmt::format("{} of {} rows are empty", EmptyRows(*layout).size(), layout->rows));
  draft.layout = *std::move(layout);
  return absl::OkStatus();
}

absl::Status Skip(const absl::Status& why, Draft& draft) {
  draft.Note(std::string(why.message()));
  draft.skipped = true;
  return absl::OkStatus();
}

/// A layout whose rows keep their order, and whose builder refuses patterns that it does not suit.
template <typename Build>
absl::Status FormatForProducts(const PipelineStep& step, Draft& draft, const Build& build) {
  if (!draft.csr.row_order.empty()) {
    draft.Note(fmt::format("{}: its rows are not put into another order", step.name));
    draft.skipped = true;
    return absl::OkStatus();
  }
  absl::StatusOr<Layout> layout = build();
  if (absl::IsFailedPrecondition(layout.status())) return Skip(layout.status(), draft);
  if (!layout.ok()) return layout.status();
  draft.layout = *std::move(layout);
  return absl::OkStatus();
}

template <absl::StatusOr<Layout> (*kBuild)(const PipelineStep&, const CsrView&,
                                           const BuildContext&)>
absl::Status FormatForProducts(const PipelineStep& step, Draft& draft) {
  return FormatForProducts(step, draft, [&] { return kBuild(step, draft.csr, draft.context); });
}

absl::StatusOr<Layout> Diagonals(const PipelineStep&, const CsrView& csr,
                                 const BuildContext& context) {
  return BuildDiagonals(csr, context);
}

absl::StatusOr<Layout> Ell(const PipelineStep& step, const CsrView& csr,
                           const BuildContext& context) {
  return BuildEll(csr, step.name, context);
}

absl::Status CutIntoBlocks(const PipelineStep& step, Draft& draft) {
  const int64_t width = ValueOf(step, "width", 0);
  BlockShape shape = {ValueOf(step, "height", width), width};
  if (width == 0 && draft.csr.row_order.empty()) {
    const absl::StatusOr<ChosenBlocks> chosen = ChooseBlockShape(draft.csr);
    if (!chosen.ok()) return Skip(chosen.status(), draft);
    shape = chosen->shape;
    draft.skipped = chosen->cost >= 1 && ValueOf(step, "force", 0) == 0;
    draft.Note(fmt::format(
        "by a sample blocks of {} x {} suit best, {:.0f} % of whose places are nonzeros{}",
        shape.height, shape.width, 100 * chosen->fill,
        draft.skipped ? ": no better than single nonzeros" : ""));
    if (draft.skipped) return absl::OkStatus();
  }
  return FormatForProducts(step, draft, [&] { return BuildBcsr(draft.csr, shape, draft.context); });
}

absl::StatusOr<Layout> Words(const PipelineStep&, const CsrView& csr, const BuildContext& context) {
  return BuildRowWords(csr, context);
}

absl::StatusOr<Layout> Parts(const PipelineStep& step, const CsrView& csr,
                             const BuildContext& context) {
  return BuildColumnParts(csr, ValueOf(step, "parts", 2), context);
}

absl::StatusOr<Layout> Sections(const PipelineStep& step, const CsrView& csr,
                                const BuildContext& context) {
  const int64_t columns = ValueOf(step, "columns", 16);
  return BuildIncsr(csr, {columns, ValueOf(step, "block", columns)}, context);
}

absl::Status CutIntoSegments(const PipelineStep& step, Draft& draft) {
  RowSegmentsOptions options;
  options.panel = ValueOf(step, "panel", options.panel);
  options.min_heavy = ValueOf(step, "min_heavy", options.min_heavy);
  options.coarsen = ValueOf(step, "coarsen", options.coarsen);
  absl::StatusOr<Layout> layout = absl::UnavailableError("no GPU");
  BuildAccelerator* const accelerator = draft.context.accelerator;
  if (accelerator != nullptr && draft.context.threads <= kFewThreads) {
    if (draft.context.progress) draft.context.progress(kRowSegments, 0, 1);
    layout = accelerator->BuildRowSegments(draft.csr, options, draft.context);
    draft.Note(layout.ok()
                   ? "built on the GPU"
                   : fmt::format("built on the CPU ({})", std::string(layout.status().message())));
  }
  // Without room there, or a GPU that answers: whoever uses it next finds that out too.
  if (!layout.ok()) layout = BuildRowSegments(draft.csr, options, draft.context);
  if (!layout.ok()) return layout.status();
  draft.csr.row_order = {};
  draft.row_order.reset();
  const RowSegmentsView view = ViewRowSegments(*layout);
  const double ratio =
      layout->nnz == 0 ? 0.0
                       : static_cast<double>(view.heavy_nnz()) / static_cast<double>(layout->nnz);
  draft.skipped = ratio < kLeastHeavyRatio && ValueOf(step, "force", 0) == 0;
  draft.Note(fmt::format("{} of {} nonzeros ({:.3f}) in {} heavy segments{}", view.heavy_nnz(),
                         layout->nnz, ratio, view.segments(),
                         draft.skipped ? ": segments skipped" : ""));
  draft.layout = *std::move(layout);
  return absl::OkStatus();
}

absl::Status ClusterRemainderStep(const PipelineStep& step, Draft& draft) {
  const CsrView remainder = ViewAspt(*draft.layout).Remainder();
  const double similarity = AverageConsecutiveSimilarity(remainder, draft.context.threads);
  const bool high = similarity > kSimilarityThreshold;
  draft.Note(fmt::format(
      "average similarity of the remainder's rows {:.3f} {} {:.2f}: second "
      "round {}",
      similarity, high ? ">" : "<=", kSimilarityThreshold, high ? "skipped" : "needed"));
  if (high && ValueOf(step, "force", 0) == 0) return absl::OkStatus();
  auto order = Cluster(step, remainder, "the remainder", draft);
  if (!order.ok()) return order.status();
  if (!order->has_value()) return absl::OkStatus();
  return PermuteRemainder(*draft.layout, **std::move(order), draft.context);
}

// The steps, in the order in which they may follow each other:
//   csr                                            plain CSR; stands alone
//   transpose                                      S^T
//   lsh_cluster(siglen=,bsize=,max_cluster=)       reorders rows; CSR if no layout follows
//   breadth_first                                  orders rows so that those that share columns
//                                                  come soon after each other
//   group_rows(size=)                              orders rows in groups that share columns
//   plain_sort(warps=,run=,lanes=)                 orders rows by load; so do flipped_sort and
//                                                  lpt_sort, which balance the warps' loads
//   warp_sort(warps=,run=,lanes=,mask_columns=)    orders rows so that neighbours in a warp are
//                                                  alike; cta_sort: neighbours in a block of warps;
//                                                  hybrid1_sort, hybrid21_sort, hybrid22_sort and
//                                                  hybrid23_sort: and by load. See sort_rows.h
//   aspt(panel=,min_dense=)                        adaptive sparse tiling
//   row_panels(rows=)                              panels of rows, dense over their columns
//   coo_panels(rows=)                              panels of rows, nonzeros listed by column
//   dcsr                                           CSR without its empty rows
//   row_segments(panel=,min_heavy=,coarsen=)       heavy row segments by column panel, light rows
//   dia                                            values by diagonals; this and what follows keep
//                                                  the order of the rows and are for SpGEMM, bcsr
//                                                  for SpMM as well
//   ell, ellpack_r                                 rows of one length, by row and by entry
//   bcsr(width=,height=)                           dense blocks; square but for a height, of a
//                                                  shape that a sample finds but for a width
//   row_words                                      columns as bits of words
//   column_parts(parts=)                           ranges of columns
//   incsr(columns=,block=)                         sections of columns in blocks, one but for a
//                                                  block that is given
//   lsh_cluster(remainder,siglen=,...)             reorders the rows of what tiling left
std::vector<StepDefinition> Definitions() {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const std::vector<ParameterDefinition> by_load = {
      {"warps", 32, 1, kMost}, {"run", 1, 1, kMost}, {"lanes", 1, 1, kMost}};
  std::vector<ParameterDefinition> by_mask = by_load;
  by_mask.push_back({"mask_columns", 1, 1, kMost});
  const RowSegmentsOptions segments;
  return {
      {"csr", Phase::kPlain, "", {}, {}, Plain},
      {"transpose", Phase::kTranspose, "", {}, {}, Transpose},
      {"lsh_cluster",
       Phase::kReorder,
       "",
       {"force"},
       {{"siglen", 128, 1, 4096}, {"bsize", 2, 1, 16}, {"max_cluster", 256, 2, kMost}},
       ClusterRowsStep},
      {"lsh_cluster",
       Phase::kRefine,
       "remainder",
       {"remainder", "force"},
       {{"siglen", 128, 1, 4096}, {"bsize", 2, 1, 16}, {"max_cluster", 256, 2, kMost}},
       ClusterRemainderStep},
      {"breadth_first", Phase::kReorder, "", {}, {}, BreadthFirstStep},
      {"group_rows", Phase::kReorder, "", {}, {{"size", 8, 2, 1024}}, GroupRowsStep},
      {"plain_sort", Phase::kReorder, "", {}, by_load, SortRowsStep<RowSort::kPlain>},
      {"flipped_sort", Phase::kReorder, "", {}, by_load, SortRowsStep<RowSort::kFlipped>},
      {"lpt_sort", Phase::kReorder, "", {}, by_load, SortRowsStep<RowSort::kLpt>},
      {"warp_sort", Phase::kReorder, "", {}, by_mask, SortRowsStep<RowSort::kWarpAware>},
      {"cta_sort", Phase::kReorder, "", {}, by_mask, SortRowsStep<RowSort::kCtaAware>},
      {"hybrid1_sort", Phase::kReorder, "", {}, by_mask, SortRowsStep<RowSort::kHybrid1>},
      {"hybrid21_sort", Phase::kReorder, "", {}, by_mask, SortRowsStep<RowSort::kHybrid21>},
      {"hybrid22_sort", Phase::kReorder, "", {}, by_mask, SortRowsStep<RowSort::kHybrid22>},
      {"hybrid23_sort", Phase::kReorder, "", {}, by_mask, SortRowsStep<RowSort::kHybrid23>},
      {"aspt", Phase::kFormat, "", {}, {{"panel", 64, 1, kMost}, {"min_dense", 2, 1, kMost}}, Tile},
      {"row_panels", Phase::kFormat, "", {"force"}, {{"rows", 8, 1, 32}}, CutIntoPanels},
      {"coo_panels", Phase::kFormat, "", {}, {{"rows", 16, 1, kMost}}, ListPanels},
      {"dcsr", Phase::kFormat, "", {}, {}, LeaveOutEmptyRows},
      {"row_segments",
       Phase::kFormat,
       "",
       {"force"},
       {{"panel", segments.panel, 32, kMost},
        {"min_heavy", segments.min_heavy, 0, kMost},
        {"coarsen", segments.coarsen, 0, 4}},
       CutIntoSegments},
      {kDiagonals, Phase::kFormat, "", {}, {}, FormatForProducts<Diagonals>},
      {kEll, Phase::kFormat, "", {}, {}, FormatForProducts<Ell>},
      {kEllpackR, Phase::kFormat, "", {}, {}, FormatForProducts<Ell>},
      {kBcsr,
       Phase::kFormat,
       "",
       {"force"},
       {{"width", 0, 0, kMostBlockSide}, {"height", 0, 1, kMostBlockSide, /*like=*/"width"}},
       CutIntoBlocks},
      {kRowWords, Phase::kFormat, "", {}, {}, FormatForProducts<Words>},
      {kColumnParts, Phase::kFormat, "", {}, {{"parts", 2, 1, 64}}, FormatForProducts<Parts>},
      {kIncsr,
       Phase::kFormat,
       "",
       {},
       {{"columns", 16, 2, kMostSectionColumns},
        {"block", 0, 2, kMostSectionColumns, /*like=*/"columns"}},
       FormatForProducts<Sections>},
  };
}

}  // namespace

std::span<const StepDefinition> StepDefinitions() {
  static const auto* const definitions = new std::vector(Definitions());
  return *definitions;
}

const StepDefinition* FindStep(const PipelineStep& step) {
  const StepDefinition* found = nullptr;
  for (const StepDefinition& definition : StepDefinitions()) {
    if (definition.name != step.name) continue;
    if (definition.variant.empty() ? found == nullptr : ValueOf(step, definition.variant, 0) != 0) {
      found = &definition;
    }
  }
  return found;
}

int64_t ValueOf(const PipelineStep& step, std::string_view key, int64_t fallback) {
  for (const auto& [name, value] : step.parameters) {
    if (name == key) return value;
  }
  return fallback;
}

void Draft::Note(std::string_view sentence) {
  if (!notes.empty()) notes += "; ";
  notes += sentence;
}

Pipeline Forced(Pipeline pipeline) {
  for (PipelineStep& step : pipeline.steps) {
    const StepDefinition* const definition = FindStep(step);
    if (definition == nullptr || std::ranges::count(definition->flags, "force") == 0) continue;
    if (ValueOf(step, "force", 0) == 0) step.parameters.emplace_back("force", 1);
  }
  return pipeline;
}

}  // namespace sparsed
