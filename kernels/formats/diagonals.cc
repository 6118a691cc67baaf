#include "kernels/formats/diagonals.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/permute.h"
#include "kernels/formats/product_format.h"
#include "kernels/scratch.h"

namespace sparsed {
namespace {

constexpr int64_t kMargin = DiagonalsView::kMargin;
int64_t WordsOf(int64_t rows) { return (rows + 63) / 64 + 3; }

/// An odd number of lines of f32, so that one row's values don't all fall into one set of a cache.
int64_t StrideOf(int64_t rows) {
  constexpr int64_t kLine = 16;
  return (rows + 2 * kMargin + 2 * kLine - 1) / (2 * kLine) * (2 * kLine) + kLine;
}

int32_t OffsetOf(int32_t column, int64_t row) {
  return static_cast<int32_t>(column - row);  // both are below 2^31
}

template <typename Source>
void Fill(const CsrView& csr, std::span<const int32_t> offsets, int64_t stride,
          std::span<uint64_t> present, std::span<int64_t> row_masks, std::span<Source> source,
          const BuildContext& context) {
  const int64_t words = WordsOf(csr.rows);
  const auto count = static_cast<int64_t>(offsets.size());
  std::fill(present.begin(), present.end(), 0);
  // A team's parts begin at words, so that no two write one.
  constexpr int64_t kPart = 64 * 64;
#pragma omp parallel num_threads(context.TeamFor(csr.rows))
  {
#pragma omp for schedule(static)
    for (int64_t d = 0; d < count; ++d) {
      if (!context.stopped()) std::fill_n(source.begin() + d * stride, stride, Source{-1});
    }
#pragma omp for schedule(static)
    for (int64_t part = 0; part < csr.rows; part += kPart) {
      if (context.stopped()) continue;
      for (int64_t row = part; row < std::min(part + kPart, csr.rows); ++row) {
        int64_t d = 0;
        uint64_t mask = 0;
        for (int64_t i = csr.row_offsets[row]; i < csr.row_offsets[row + 1]; ++i, ++d) {
          const int32_t offset = OffsetOf(csr.column_indices[i], row);
          if (offsets[d] != offset) {
            d = std::lower_bound(offsets.begin() + d, offsets.end(), offset) - offsets.begin();
          }
          source[d * stride + kMargin + row] = static_cast<Source>(i);
          present[d * words + (kMargin + row) / 64] |= uint64_t{1} << ((kMargin + row) % 64);
          if (!row_masks.empty()) mask |= uint64_t{1} << d;
        }
        if (!row_masks.empty()) row_masks[row] = static_cast<int64_t>(mask);
      }
    }
  }
}

}  // namespace

DiagonalsView ViewDiagonals(const Layout& layout) {
  DiagonalsView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.stride = layout.Parameter("stride");
  view.words = WordsOf(layout.rows);
  view.offsets = layout.Elements<int32_t>("offsets");
  view.row_masks = layout.Elements<int64_t>("row_masks");
  view.present = layout.Elements<int64_t>("present");
  return view;
}

absl::StatusOr<Array> FindDiagonals(const CsrView& csr, int64_t most, const BuildContext& context) {
  most = std::min(most, csr.rows + csr.cols);
  Scratch<int32_t> offsets;
  if (absl::Status status = offsets.Allocate(*context.memory, most); !status.ok()) return status;
  int64_t count = 0;
  const int32_t* before = nullptr;
  int64_t length_before = 0;
  for (int64_t row = 0; row < csr.rows; ++row) {
    if (context.stopped()) return absl::CancelledError("the build was stopped");
    const int64_t length = csr.row_offsets[row + 1] - csr.row_offsets[row];
    const int32_t* const columns = csr.column_indices.data() + csr.row_offsets[row];
    // Most rows have the diagonals of the row before them.
    bool same = length == length_before;
    if (same) {
      int32_t difference = 0;
      for (int64_t i = 0; i < length; ++i) difference |= (columns[i] - before[i]) ^ 1;
      same = difference == 0;
    }
    before = columns;
    length_before = length;
    if (same) continue;
    int32_t* at = offsets.data();
    for (int64_t i = 0; i < length; ++i) {
      const int32_t offset = OffsetOf(columns[i], row);
      at = std::lower_bound(at, offsets.data() + count, offset);
      if (at < offsets.data() + count && *at == offset) continue;
      if (count == most) {
        return absl::FailedPreconditionError(
            fmt::format("a matrix of {} nonzeros has more than {} diagonals", csr.nnz(), most));
      }
      std::copy_backward(at, offsets.data() + count, offsets.data() + count + 1);
      *at = offset;
      ++count;
    }
  }
  auto found = AllocateArray(*context.memory, "offsets", ElementType::kI32, count);
  if (found.ok()) std::copy_n(offsets.data(), count, found->MutableAs<int32_t>().begin());
  return found;
}

absl::StatusOr<Layout> BuildDiagonals(const CsrView& csr, const BuildContext& context) {
  MemorySource& memory = *context.memory;
  auto offsets = FindDiagonals(csr, kMostDiagonals, context);
  if (!offsets.ok()) return offsets.status();
  const int64_t count = offsets->length;
  const int64_t stride = StrideOf(csr.rows);
  // Padding at the ends is of no account in a matrix that is worth it.
  const absl::Status grown = CheckFormatGrowth(
      csr, "by diagonals",
      static_cast<double>(count) * static_cast<double>(csr.rows) * SlotBytes(csr));
  if (!grown.ok()) return grown;
  const int64_t masks = count <= DiagonalsView::kMostMaskBits ? csr.rows : 0;
  auto row_masks = AllocateArray(memory, "row_masks", ElementType::kI64, masks);
  if (!row_masks.ok()) return row_masks.status();
  auto present = AllocateArray(memory, "present", ElementType::kI64, count * WordsOf(csr.rows));
  if (!present.ok()) return present.status();
  auto source = AllocateArray(memory, kValueSource, SourceType(csr.nnz()), count * stride);
  if (!source.ok()) return source.status();
  const auto words = present->MutableAs<int64_t>();
  WithSource(*source, [&]<typename Source>(std::span<Source> slots) {
    Fill(csr, std::as_const(*offsets).As<int32_t>(), stride,
         {reinterpret_cast<uint64_t*>(words.data()), words.size()}, row_masks->MutableAs<int64_t>(),
         slots, context);
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");

  Layout layout;
  layout.kind = kDiagonals;
  layout.parameters = {{"stride", stride}};
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = csr.nnz();
  layout.value_slots = count * stride;
  layout.arrays.push_back(*std::move(offsets));
  if (masks > 0) layout.arrays.push_back(*std::move(row_masks));
  layout.arrays.push_back(*std::move(present));
  layout.arrays.push_back(*std::move(source));
  return layout;
}

}  // namespace sparsed
