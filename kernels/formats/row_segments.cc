#include "kernels/formats/row_segments.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/permute.h"
#include "kernels/scratch.h"

namespace sparsed {
namespace {

/// What a part of the rows has in a panel; then where that goes.
struct Count {
  int64_t segments;
  int64_t entries;
};

/// Calls heavy(panel, begin, end) for every run of at least `least` of a row's columns in one panel
/// of `width` columns, ascending.
template <typename Heavy>
void ForEachHeavyRun(std::span<const int32_t> columns, int64_t width, int64_t least, Heavy heavy) {
  const auto size = static_cast<int64_t>(columns.size());
  for (int64_t begin = 0; begin + least <= size;) {
    // The test of section 5.2, without a division for nonzeros far apart: neither this one nor,
    // since the others of its panel are fewer still, the next ones are in a heavy run.
    if (int64_t{columns[begin + least - 1]} - columns[begin] >= width) {
      ++begin;
      continue;
    }
    const int64_t panel = columns[begin] / width;
    const int64_t panel_end = (panel + 1) * width;
    int64_t end = begin + 1;
    while (end < size && columns[end] < panel_end) ++end;
    if (end - begin >= least) heavy(panel, begin, end);
    begin = end;
  }
}

class Builder {
 public:
  Builder(const CsrView& csr, const RowSegmentsOptions& options, const BuildContext& context)
      : csr_(csr),
        options_(options),
        context_(context),
        panels_((csr.cols + options.panel - 1) / options.panel) {}

  absl::StatusOr<Layout> Build();

 private:
  int64_t MatrixRow(int64_t r) const { return csr_.row_order.empty() ? r : csr_.row_order[r]; }
  std::span<const int32_t> Columns(int64_t r) const {
    const int64_t row = MatrixRow(r);
    return csr_.column_indices.subspan(csr_.row_offsets[row],
                                       csr_.row_offsets[row + 1] - csr_.row_offsets[row]);
  }
  Count* CountsOf(int part) { return counts_.data() + part * panels_; }
  /// Calls visit(part, row) for the rows of every part, in their order.
  template <typename Visit>
  void ForEachRowOfParts(Visit visit) {
#pragma omp parallel for num_threads(parts_) schedule(static, 1)
    for (int part = 0; part < parts_; ++part) {
      const RowRange rows = PartOfRows(offsets_, part, parts_);
      for (int64_t r = rows.begin; r < rows.end && !context_.stopped(); ++r) visit(part, r);
    }
  }
  absl::Status Allocate(Array& array, std::string_view name, ElementType type, int64_t length) {
    absl::StatusOr<Array> allocated = AllocateArray(*context_.memory, name, type, length);
    if (!allocated.ok()) return allocated.status();
    array = *std::move(allocated);
    return absl::OkStatus();
  }

  absl::Status CutIntoParts();
  absl::Status CountHeavy();
  /// Turns counts into positions, or kNone for panels that do not pay.
  void PlacePanels();
  absl::Status CountLight();
  absl::Status Fill();
  absl::Status CutChunks();

  static constexpr int64_t kNone = -1;

  const CsrView& csr_;
  const RowSegmentsOptions& options_;
  const BuildContext& context_;
  int64_t panels_;
  int parts_ = 1;
  std::optional<Array> permuted_offsets_;
  std::span<const int64_t> offsets_;  ///< of the rows in their order
  Scratch<Count> counts_;             ///< of each part and panel
  int64_t segments_ = 0, heavy_ = 0;
  Array chunk_panels_, chunk_offsets_, segment_rows_, segment_layout_rows_, segment_offsets_;
  Array heavy_columns_, light_row_offsets_, light_columns_, value_source_;
};

absl::Status Builder::CutIntoParts() {
  offsets_ = csr_.row_offsets;
  if (!csr_.row_order.empty()) {
    auto permuted = PermuteOffsets(csr_.row_offsets, csr_.row_order, context_);
    if (!permuted.ok()) return permuted.status();
    permuted_offsets_ = *std::move(permuted);
    offsets_ = permuted_offsets_->As<int64_t>();
  }
  const int64_t room = 2 * csr_.nnz() / std::max<int64_t>(panels_, 1);
  parts_ = static_cast<int>(std::clamp<int64_t>(room, 1, context_.TeamFor(csr_.rows)));
  if (absl::Status status = counts_.Allocate(*context_.memory, parts_ * panels_); !status.ok()) {
    return status;
  }
  std::fill(counts_.data(), counts_.data() + counts_.size(), Count{0, 0});
  return absl::OkStatus();
}

absl::Status Builder::CountHeavy() {
  ForEachRowOfParts([&](int part, int64_t r) {
    ForEachHeavyRun(Columns(r), options_.panel, options_.min_heavy,
                    [counts = CountsOf(part)](int64_t panel, int64_t begin, int64_t end) {
                      ++counts[panel].segments;
                      counts[panel].entries += end - begin;
                    });
  });
  return context_.stopped() ? absl::CancelledError("the build was stopped") : absl::OkStatus();
}

void Builder::PlacePanels() {
  for (int64_t panel = 0; panel < panels_; ++panel) {
    int64_t entries = 0;
    for (int part = 0; part < parts_; ++part) entries += CountsOf(part)[panel].entries;
    const int64_t columns = std::min(options_.panel, csr_.cols - panel * options_.panel);
    const bool pays = entries >= row_segments::kLeastUses * columns;
    for (int part = 0; part < parts_; ++part) {
      Count& count = CountsOf(part)[panel];
      if (!pays) {
        count = {kNone, kNone};
        continue;
      }
      segments_ += std::exchange(count.segments, segments_);
      heavy_ += std::exchange(count.entries, heavy_);
    }
  }
}

absl::Status Builder::CountLight() {
  absl::Status status =
      Allocate(light_row_offsets_, "light_row_offsets", ElementType::kI64, csr_.rows + 1);
  if (!status.ok()) return status;
  const auto light = light_row_offsets_.MutableAs<int64_t>();
  light[0] = 0;
  ForEachRowOfParts([&](int part, int64_t r) {
    const auto columns = Columns(r);
    auto left = static_cast<int64_t>(columns.size());
    ForEachHeavyRun(columns, options_.panel, options_.min_heavy,
                    [&, counts = CountsOf(part)](int64_t panel, int64_t begin, int64_t end) {
                      if (counts[panel].segments != kNone) left -= end - begin;
                    });
    light[r + 1] = left;
  });
  if (context_.stopped()) return absl::CancelledError("the build was stopped");
  std::partial_sum(light.begin(), light.end(), light.begin());
  return absl::OkStatus();
}

absl::Status Builder::Fill() {
  const bool permuted = !csr_.row_order.empty();
  absl::Status status = Allocate(segment_rows_, "segment_rows", ElementType::kI32, segments_);
  if (status.ok() && permuted) {
    status = Allocate(segment_layout_rows_, "segment_layout_rows", ElementType::kI32, segments_);
  }
  if (status.ok()) {
    status = Allocate(segment_offsets_, "segment_offsets", ElementType::kI64, segments_ + 1);
  }
  if (status.ok()) status = Allocate(heavy_columns_, "heavy_columns", ElementType::kI32, heavy_);
  if (status.ok()) {
    status = Allocate(light_columns_, "light_columns", ElementType::kI32, csr_.nnz() - heavy_);
  }
  if (status.ok()) {
    status = Allocate(value_source_, kValueSource, SourceType(csr_.nnz()), csr_.nnz());
  }
  if (!status.ok()) return status;
  const auto segment_rows = segment_rows_.MutableAs<int32_t>();
  const auto layout_rows = segment_layout_rows_.MutableAs<int32_t>();
  const auto segment_offsets = segment_offsets_.MutableAs<int64_t>();
  const auto heavy_columns = heavy_columns_.MutableAs<int32_t>();
  const auto light_columns = light_columns_.MutableAs<int32_t>();
  const auto light_offsets = light_row_offsets_.As<int64_t>();
  segment_offsets[segments_] = heavy_;
  WithSource(value_source_, [&](auto source) {
    using Source = typename decltype(source)::value_type;
    ForEachRowOfParts([&](int part, int64_t r) {
      const int64_t row = MatrixRow(r);
      const auto columns = Columns(r);
      const int64_t first = csr_.row_offsets[row];
      int64_t light = light_offsets[r], done = 0;
      const auto put_light = [&](int64_t end) {
        for (; done < end; ++done, ++light) {
          light_columns[light] = columns[done];
          source[heavy_ + light] = static_cast<Source>(first + done);
        }
      };
      ForEachHeavyRun(columns, options_.panel, options_.min_heavy,
                      [&, next = CountsOf(part)](int64_t panel, int64_t begin, int64_t end) {
                        Count& at = next[panel];
                        if (at.segments == kNone) return;
                        put_light(begin);
                        segment_rows[at.segments] = static_cast<int32_t>(row);
                        if (permuted) layout_rows[at.segments] = static_cast<int32_t>(r);
                        segment_offsets[at.segments++] = at.entries;
                        for (; done < end; ++done, ++at.entries) {
                          heavy_columns[at.entries] =
                              static_cast<int32_t>(columns[done] - panel * options_.panel);
                          source[at.entries] = static_cast<Source>(first + done);
                        }
                      });
      put_light(static_cast<int64_t>(columns.size()));
    });
  });
  return context_.stopped() ? absl::CancelledError("the build was stopped") : absl::OkStatus();
}

/// Cuts each panel's segments into chunks of about equal work. After Fill() the last part's counts
/// say where each panel ends.
absl::Status Builder::CutChunks() {
  const auto offsets = segment_offsets_.As<int64_t>();
  const auto work = [&](int64_t segment) {
    return offsets[segment] + row_segments::kSegmentWork * segment;
  };
  const int64_t chunk_work = row_segments::ChunkWork(work(segments_));
  // The first pass counts, the second one fills.
  int64_t chunks = 0;
  const auto for_each_chunk = [&](auto visit) {
    int64_t segment = 0;
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const int64_t panel_end = CountsOf(parts_ - 1)[panel].segments;
      if (segment >= panel_end) continue;
      const int64_t first = work(segment), all = work(panel_end) - first;
      const int64_t pieces = row_segments::Pieces(all, chunk_work);
      for (int64_t piece = 0; segment < panel_end; ++piece) {
        visit(panel, segment);
        const int64_t end = first + row_segments::PieceEnd(all, pieces, piece);
        do {
          ++segment;
        } while (segment < panel_end && work(segment) < end);
      }
    }
  };
  for_each_chunk([&](int64_t, int64_t) { ++chunks; });
  absl::Status status = Allocate(chunk_panels_, "chunk_panels", ElementType::kI32, chunks);
  if (status.ok()) {
    status = Allocate(chunk_offsets_, "chunk_offsets", ElementType::kI64, chunks + 1);
  }
  if (!status.ok()) return status;
  const auto chunk_panels = chunk_panels_.MutableAs<int32_t>();
  const auto chunk_offsets = chunk_offsets_.MutableAs<int64_t>();
  int64_t chunk = 0;
  for_each_chunk([&](int64_t panel, int64_t segment) {
    chunk_panels[chunk] = static_cast<int32_t>(panel);
    chunk_offsets[chunk++] = segment;
  });
  chunk_offsets[chunk] = segments_;
  return absl::OkStatus();
}

absl::StatusOr<Layout> Builder::Build() {
  constexpr std::string_view kStage = kRowSegments;
  if (context_.progress) context_.progress(kStage, 0, 3);
  absl::Status status = CutIntoParts();
  if (status.ok()) status = CountHeavy();
  if (!status.ok()) return status;
  PlacePanels();
  if (context_.progress) context_.progress(kStage, 1, 3);
  if (status = CountLight(); !status.ok()) return status;
  if (context_.progress) context_.progress(kStage, 2, 3);
  if (status = Fill(); !status.ok()) return status;
  if (status = CutChunks(); !status.ok()) return status;

  Layout layout = RowSegmentsWithoutArrays(csr_, options_);
  std::vector<Array*> arrays = {&chunk_panels_,    &chunk_offsets_, &segment_rows_,
                                &segment_offsets_, &heavy_columns_, &light_row_offsets_,
                                &light_columns_,   &value_source_};
  Array row_order;
  if (!csr_.row_order.empty()) {
    status = Allocate(row_order, "row_order", ElementType::kI32, csr_.rows);
    if (!status.ok()) return status;
    std::copy(csr_.row_order.begin(), csr_.row_order.end(), row_order.MutableAs<int32_t>().begin());
    arrays.insert(arrays.end(), {&row_order, &segment_layout_rows_});
  }
  for (Array* array : arrays) layout.arrays.push_back(std::move(*array));
  return layout;
}

}  // namespace

RowRange RowSegmentsView::SegmentsOf(int64_t chunk, RowRange rows) const {
  const auto first = segment_layout_rows.begin() + chunk_offsets[chunk];
  const auto last = segment_layout_rows.begin() + chunk_offsets[chunk + 1];
  const auto begin = std::lower_bound(first, last, rows.begin);
  return {begin - segment_layout_rows.begin(),
          std::lower_bound(begin, last, rows.end) - segment_layout_rows.begin()};
}

RowSegmentsView ViewRowSegments(const Layout& layout) {
  RowSegmentsView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.panel = layout.Parameter("panel");
  view.coarsen = layout.Parameter("coarsen");
  view.row_order = layout.Elements<int32_t>("row_order");
  view.chunk_panels = layout.Elements<int32_t>("chunk_panels");
  view.chunk_offsets = layout.Elements<int64_t>("chunk_offsets");
  view.segment_rows = layout.Elements<int32_t>("segment_rows");
  view.segment_layout_rows =
      view.row_order.empty() ? view.segment_rows : layout.Elements<int32_t>("segment_layout_rows");
  view.segment_offsets = layout.Elements<int64_t>("segment_offsets");
  view.heavy_columns = layout.Elements<int32_t>("heavy_columns");
  return view;
}

Layout LightRows(const Layout& layout) {
  Layout csr = MakeCsrLayout(layout.rows, layout.cols, *layout.Find("light_row_offsets"),
                             *layout.Find("light_columns"));
  if (const Array* row_order = layout.Find("row_order")) csr.arrays.push_back(*row_order);
  csr.transposed = layout.transposed;
  return csr;
}

int64_t LeastHeavy(const CsrView& csr, const BuildContext& context) {
  const auto columns = csr.column_indices;
  int64_t near = 0;
#pragma omp parallel for num_threads(context.TeamFor(csr.rows)) schedule(dynamic, 1024) \
    reduction(+ : near)
  for (int64_t row = 0; row < csr.rows; ++row) {
    for (int64_t p = csr.row_offsets[row] + 1; p < csr.row_offsets[row + 1]; ++p) {
      near += columns[p] - columns[p - 1] < row_segments::kNear ? 1 : 0;
    }
  }
  return row_segments::LeastHeavy(near, csr.nnz());
}

Layout RowSegmentsWithoutArrays(const CsrView& csr, const RowSegmentsOptions& options) {
  Layout layout;
  layout.kind = kRowSegments;
  layout.parameters = {
      {"panel", options.panel}, {"min_heavy", options.min_heavy}, {"coarsen", options.coarsen}};
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = layout.value_slots = csr.nnz();
  return layout;
}

absl::StatusOr<Layout> BuildRowSegments(const CsrView& csr, const RowSegmentsOptions& options,
                                        const BuildContext& context) {
  RowSegmentsOptions chosen = options;
  if (chosen.min_heavy == 0) chosen.min_heavy = LeastHeavy(csr, context);
  return Builder(csr, chosen, context).Build();
}

}  // namespace sparsed
