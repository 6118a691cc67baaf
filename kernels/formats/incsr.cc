#include "kernels/formats/incsr.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/permute.h"
#include "kernels/formats/product_format.h"

namespace sparsed {

namespace {

/// Calls visit(section, block of the row, column in the section, nonzero) for each nonzero of a
/// row, both counted from the row's first. How many sections and blocks.
struct Counts {
  int64_t sections = 0, blocks = 0;
};
template <typename Visit>
Counts VisitRow(const CsrView& csr, SectionShape shape, int64_t row, Visit visit) {
  Counts counts;
  int64_t last_section = -1, last_block = -1;
  for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i) {
    const int64_t column = csr.column_indices[i];
    counts.sections += column / shape.columns != last_section ? 1 : 0;
    counts.blocks += column / shape.block != last_block ? 1 : 0;
    last_section = column / shape.columns;
    last_block = column / shape.block;
    visit(counts.sections - 1, counts.blocks - 1, column, i);
  }
  return counts;
}

bool IsShape(SectionShape shape) {
  const auto power = [](int64_t n) {
    return n > 0 && std::has_single_bit(static_cast<uint64_t>(n));
  };
  return power(shape.columns) && power(shape.block) && shape.block <= shape.columns &&
         shape.columns <= kMostSectionColumns;
}

}  // namespace

IncsrView ViewIncsr(const Layout& layout) {
  IncsrView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.shape.columns = layout.Parameter("columns");
  // What was stored when all sections were one block does not say so.
  view.shape.block = layout.Parameter("block");
  if (view.shape.block < 0) view.shape.block = view.shape.columns;
  view.section_offsets = layout.Elements<int64_t>("section_offsets");
  view.block_offsets = view.shape.block == view.shape.columns
                           ? view.section_offsets
                           : layout.Elements<int64_t>("block_offsets");
  view.section_columns = layout.Elements<int32_t>("section_columns");
  view.present = layout.Elements<int32_t>("present");
  return view;
}

absl::StatusOr<Layout> BuildIncsr(const CsrView& csr, SectionShape shape,
                                  const BuildContext& context) {
  if (!IsShape(shape)) {
    return absl::FailedPreconditionError(
        fmt::format("sections of {} columns in blocks of {}: powers of two, of which the second "
                    "divides the first, are wanted",
                    shape.columns, shape.block));
  }
  MemorySource& memory = *context.memory;
  const bool one_block = shape.block == shape.columns;
  auto offsets = AllocateArray(memory, "section_offsets", ElementType::kI64, csr.rows + 1);
  if (!offsets.ok()) return offsets.status();
  auto blocks = AllocateArray(memory, "block_offsets", ElementType::kI64, csr.rows + 1);
  if (!blocks.ok()) return blocks.status();
  const auto begins = offsets->MutableAs<int64_t>();
  const auto block_begins = blocks->MutableAs<int64_t>();
  ForEachRow(csr.rows, context, [&](int64_t row) {
    const Counts counts = VisitRow(csr, shape, row, [](int64_t, int64_t, int64_t, int64_t) {});
    begins[row + 1] = counts.sections;
    block_begins[row + 1] = counts.blocks;
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");
  begins[0] = block_begins[0] = 0;
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::partial_sum(block_begins.begin(), block_begins.end(), block_begins.begin());
  const int64_t sections = begins[csr.rows], slots_needed = block_begins[csr.rows] * shape.block;
  // A section of 8 columns that is one block is a line of f64.
  const double value_bytes = one_block && shape.columns == 8 ? sizeof(double) : sizeof(float);
  const absl::Status grown = CheckFormatGrowth(
      csr, "in sections",
      static_cast<double>(sections) * 2 * sizeof(int32_t) +
          static_cast<double>(slots_needed) * (value_bytes + SizeOf(SourceType(csr.nnz()))) +
          static_cast<double>(offsets->bytes() * (one_block ? 1 : 2)));
  if (!grown.ok()) return grown;
  auto firsts = AllocateArray(memory, "section_columns", ElementType::kI32, sections);
  if (!firsts.ok()) return firsts.status();
  auto present = AllocateArray(memory, "present", ElementType::kI32, sections);
  if (!present.ok()) return present.status();
  auto source = AllocateArray(memory, kValueSource, SourceType(csr.nnz()), slots_needed);
  if (!source.ok()) return source.status();
  const auto to_columns = firsts->MutableAs<int32_t>();
  const auto to_present = present->MutableAs<int32_t>();
  WithSource(*source, [&]<typename Source>(std::span<Source> slots) {
    ForEachRow(csr.rows, context, [&](int64_t row) {
      std::fill(slots.begin() + block_begins[row] * shape.block,
                slots.begin() + block_begins[row + 1] * shape.block, Source{-1});
      std::fill(to_present.begin() + begins[row], to_present.begin() + begins[row + 1], 0);
      VisitRow(csr, shape, row, [&](int64_t section, int64_t block, int64_t column, int64_t i) {
        const int64_t at = begins[row] + section;
        to_columns[at] = static_cast<int32_t>(column / shape.columns);
        to_present[at] = static_cast<int32_t>(static_cast<uint32_t>(to_present[at]) |
                                              1u << (column % shape.columns));
        slots[(block_begins[row] + block) * shape.block + column % shape.block] =
            static_cast<Source>(i);
      });
    });
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");

  Layout layout;
  layout.kind = kIncsr;
  layout.parameters = {{"columns", shape.columns}, {"block", shape.block}};
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = csr.nnz();
  layout.value_slots = slots_needed;
  layout.arrays.push_back(*std::move(offsets));
  if (!one_block) layout.arrays.push_back(*std::move(blocks));
  for (auto* array : {&firsts, &present, &source}) layout.arrays.push_back(**std::move(array));
  return layout;
}

}  // namespace sparsed
