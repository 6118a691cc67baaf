#include "kernels/formats/bcsr.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/permute.h"

namespace sparsed {
namespace {

/// With fewer nonzeros among the places of blocks, single nonzeros do better.
constexpr double kLeastFill = 0.5;
/// Of a sample: rows of blocks, and blocks of one.
constexpr int64_t kSampledRows = 1024;
constexpr int64_t kSampledBlocks = 128;

int64_t BlocksIn(int64_t size, int64_t width) { return (size + width - 1) / width; }

/// Calls visit(block column, row in the block, its bits, where its first nonzero there is) for each
/// row of the first blocks of a row of blocks, `most` at most, block by block. How many blocks.
template <typename Visit>
int64_t VisitBlocks(const CsrView& csr, int64_t width, int64_t block_row, int64_t most,
                    Visit visit) {
  std::array<int64_t, kMostBlockWidth> at = {}, end = {};
  const int64_t first = block_row * width;
  const int64_t rows = std::min(width, csr.rows - first);
  for (int64_t i = 0; i < rows; ++i) {
    at[i] = csr.row_offsets[first + i];
    end[i] = csr.row_offsets[first + i + 1];
  }
  for (int64_t blocks = 0; blocks < most; ++blocks) {
    int64_t block = std::numeric_limits<int64_t>::max();
    for (int64_t i = 0; i < rows; ++i) {
      if (at[i] < end[i]) block = std::min(block, csr.column_indices[at[i]] / width);
    }
    if (block == std::numeric_limits<int64_t>::max()) return blocks;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t from = at[i];
      unsigned bits = 0;
      while (at[i] < end[i] && csr.column_indices[at[i]] < (block + 1) * width) {
        bits |= 1u << (csr.column_indices[at[i]++] - block * width);
      }
      visit(blocks, block, i, bits, from);
    }
  }
  return most;
}

/// Values, mask and column.
double BytesOfBlock(int64_t width, size_t value_bytes) {
  return static_cast<double>(static_cast<size_t>(width * width) * value_bytes + sizeof(uint64_t) +
                             sizeof(int32_t));
}

struct Sample {
  int64_t blocks = 0, nonzeros = 0;
};

Sample SampleBlocks(const CsrView& csr, int64_t width) {
  Sample sample;
  const int64_t block_rows = BlocksIn(csr.rows, width);
  const int64_t taken = std::min(block_rows, kSampledRows);
  for (int64_t i = 0; i < taken; ++i) {
    sample.blocks += VisitBlocks(csr, width, i * block_rows / taken, kSampledBlocks,
                                 [&](int64_t, int64_t, int64_t, unsigned bits, int64_t) {
                                   sample.nonzeros += std::popcount(bits);
                                 });
  }
  return sample;
}

}  // namespace

BcsrView ViewBcsr(const Layout& layout) {
  BcsrView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.width = layout.Parameter("width");
  view.block_offsets = layout.Elements<int64_t>("block_offsets");
  view.block_columns = layout.Elements<int32_t>("block_columns");
  view.masks = layout.Elements<int64_t>("masks");
  return view;
}

absl::StatusOr<int64_t> ChooseBlockWidth(std::span<const CsrView> patterns, size_t value_bytes) {
  int64_t chosen = 0;
  double least_bytes = 0, best_fill = 0;
  for (int64_t width = kLeastBlockWidth; width <= kMostBlockWidth; ++width) {
    double bytes = 0, fill = 1;
    for (const CsrView& csr : patterns) {
      const Sample sample = SampleBlocks(csr, width);
      if (sample.nonzeros == 0) {
        return absl::FailedPreconditionError("a matrix without nonzeros has no blocks");
      }
      const double of_block =
          static_cast<double>(sample.nonzeros) / static_cast<double>(sample.blocks);
      fill = std::min(fill, of_block / static_cast<double>(width * width));
      bytes += static_cast<double>(csr.nnz()) / of_block * BytesOfBlock(width, value_bytes);
    }
    best_fill = std::max(best_fill, fill);
    if (fill < kLeastFill || (chosen != 0 && bytes >= least_bytes)) continue;
    chosen = width;
    least_bytes = bytes;
  }
  if (chosen != 0) return chosen;
  return absl::FailedPreconditionError(fmt::format(
      "of the places in blocks of {0} x {0} to {1} x {1} at most {2:.0f} % are nonzeros, fewer "
      "than {3:.0f}",
      kLeastBlockWidth, kMostBlockWidth, 100 * best_fill, 100 * kLeastFill));
}

absl::StatusOr<Layout> BuildBcsr(const CsrView& csr, int64_t width, const BuildContext& context) {
  MemorySource& memory = *context.memory;
  const int64_t block_rows = BlocksIn(csr.rows, width);
  auto offsets = AllocateArray(memory, "block_offsets", ElementType::kI64, block_rows + 1);
  if (!offsets.ok()) return offsets.status();
  const auto begins = offsets->MutableAs<int64_t>();
  begins[0] = 0;
  ForEachRow(block_rows, context, [&](int64_t i) {
    begins[i + 1] = VisitBlocks(csr, width, i, std::numeric_limits<int64_t>::max(),
                                [](int64_t, int64_t, int64_t, unsigned, int64_t) {});
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  const int64_t blocks = begins[block_rows];
  const int64_t places = width * width;
  if (static_cast<double>(csr.nnz()) < kLeastFill * static_cast<double>(blocks * places)) {
    return absl::FailedPreconditionError(
        fmt::format("{} of the {} places in {} blocks of {} x {} are nonzeros, fewer than {:.0f} %",
                    csr.nnz(), blocks * places, blocks, width, width, 100 * kLeastFill));
  }
  auto columns = AllocateArray(memory, "block_columns", ElementType::kI32, blocks);
  if (!columns.ok()) return columns.status();
  auto masks = AllocateArray(memory, "masks", ElementType::kI64, blocks);
  if (!masks.ok()) return masks.status();
  auto source = AllocateArray(memory, kValueSource, SourceType(csr.nnz()), blocks * places);
  if (!source.ok()) return source.status();
  const auto to_columns = columns->MutableAs<int32_t>();
  const auto to_masks = masks->MutableAs<int64_t>();
  WithSource(*source, [&]<typename Source>(std::span<Source> slots) {
    ForEachRow(block_rows, context, [&](int64_t i) {
      std::fill(slots.begin() + begins[i] * places, slots.begin() + begins[i + 1] * places,
                Source{-1});
      VisitBlocks(csr, width, i, std::numeric_limits<int64_t>::max(),
                  [&](int64_t block, int64_t column, int64_t row, unsigned bits, int64_t from) {
                    const int64_t at = begins[i] + block;
                    const auto mask = static_cast<int64_t>(uint64_t{bits} << (8 * row));
                    to_columns[at] = static_cast<int32_t>(column);
                    to_masks[at] = row == 0 ? mask : to_masks[at] | mask;
                    for (int64_t j = 0; j < width; ++j) {
                      if ((bits >> j & 1) == 0) continue;
                      slots[(at * width + row) * width + j] = static_cast<Source>(from++);
                    }
                  });
    });
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");

  Layout layout;
  layout.kind = kBcsr;
  layout.parameters = {{"width", width}};
  layout.rows = csr.rows;
  layout.cols = csr.cols;
  layout.nnz = csr.nnz();
  layout.value_slots = blocks * places;
  for (auto* array : {&offsets, &columns, &masks, &source}) {
    layout.arrays.push_back(**std::move(array));
  }
  return layout;
}

}  // namespace sparsed
