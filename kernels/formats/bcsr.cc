#include "kernels/formats/bcsr.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/formats/csr_build.h"
#include "kernels/formats/permute.h"

namespace sparsed {
namespace {

/// With fewer nonzeros among the places of blocks, single nonzeros do better.
constexpr double kLeastFill = 0.5;
/// Of a sample.
struct SampleSize {
  int64_t block_rows;
  int64_t blocks;  // of each of them
};
constexpr SampleSize kOfSquares = {1024, 128}, kOfShapes = {256, 64};

int64_t BlocksIn(int64_t size, int64_t width) { return (size + width - 1) / width; }

/// Calls visit(block column, row in the block, its bits, where its first nonzero there is) for each
/// row of the blocks of a row of blocks from a column of them on, `most` at most, block by block.
/// How many blocks.
template <typename Visit>
int64_t VisitBlocks(const CsrView& csr, BlockShape shape, int64_t block_row, int64_t from_block,
                    int64_t most, Visit visit) {
  const auto [height, width] = shape;
  std::array<int64_t, kMostBlockSide> at = {}, end = {};
  const int64_t first = block_row * height;
  const int64_t rows = std::min(height, csr.rows - first);
  for (int64_t i = 0; i < rows; ++i) {
    at[i] = csr.row_offsets[first + i];
    end[i] = csr.row_offsets[first + i + 1];
    if (from_block == 0) continue;
    const auto columns = csr.column_indices.subspan(at[i], end[i] - at[i]);
    at[i] += std::ranges::lower_bound(columns, from_block * width) - columns.begin();
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
double BytesOfBlock(BlockShape shape, size_t value_bytes) {
  return static_cast<double>(static_cast<size_t>(shape.places()) * value_bytes + sizeof(uint64_t) +
                             sizeof(int32_t));
}

struct Sample {
  int64_t blocks = 0, nonzeros = 0;

  double nonzeros_of_block() const {
    return static_cast<double>(nonzeros) / static_cast<double>(blocks);
  }
};

/// Of rows of blocks that are spread evenly, the blocks of a stretch: the first ones of short rows,
/// of long ones those from some column on, which is another one for each.
Sample SampleBlocks(const CsrView& csr, BlockShape shape, SampleSize size) {
  constexpr double kGoldenRatio = 0.6180339887498949;
  Sample sample;
  const int64_t block_rows = BlocksIn(csr.rows, shape.height);
  const int64_t block_columns = BlocksIn(csr.cols, shape.width);
  for (int64_t i = 0; i < std::min(block_rows * size.blocks, size.block_rows); ++i) {
    const int64_t block_row = i * block_rows / std::min(block_rows, size.block_rows) % block_rows;
    const int64_t row = block_row * shape.height;
    const int64_t length = csr.row_offsets[row + 1] - csr.row_offsets[row];
    const double place = static_cast<double>(i) * kGoldenRatio;
    const int64_t from =
        length > size.blocks * shape.width
            ? static_cast<int64_t>((place - std::floor(place)) * static_cast<double>(block_columns))
            : 0;
    sample.blocks += VisitBlocks(csr, shape, block_row, from, size.blocks,
                                 [&](int64_t, int64_t, int64_t, unsigned bits, int64_t) {
                                   sample.nonzeros += std::popcount(bits);
                                 });
  }
  return sample;
}

/// What a block costs in a product with a dense operand of many columns, in times of what a nonzero
/// costs from CSR: `width` rows of the operand are read, its places multiplied, and all of it once
/// for each column block whose sums fit 32 registers of the CPU, 8, 4 or 2 vectors. Fitted to
/// what bench_block_shapes measured (docs/results-cpu.md).
double CostOfBlock(BlockShape shape) {
  constexpr double kStart = 0.35, kOperandRow = 0.85, kPlace = 0.3, kSlab = 1.8;
  const double vectors = shape.height <= 2 ? 8 : shape.height <= 6 ? 4 : 2;
  return kStart + kOperandRow * static_cast<double>(shape.width) +
         kPlace * static_cast<double>(shape.places()) + kSlab / vectors;
}

absl::Status NoBlocks() {
  return absl::FailedPreconditionError("a matrix without nonzeros has no blocks");
}

}  // namespace

BcsrView ViewBcsr(const Layout& layout) {
  BcsrView view;
  view.rows = layout.rows;
  view.cols = layout.cols;
  view.shape = {layout.Parameter("height"), layout.Parameter("width")};
  // What was stored when all blocks were square does not say so.
  if (view.shape.height < 0) view.shape.height = view.shape.width;
  view.block_offsets = layout.Elements<int64_t>("block_offsets");
  view.block_columns = layout.Elements<int32_t>("block_columns");
  view.masks = layout.Elements<int64_t>("masks");
  return view;
}

absl::StatusOr<int64_t> ChooseBlockWidth(std::span<const CsrView> patterns, size_t value_bytes) {
  int64_t chosen = 0;
  double least_bytes = 0, best_fill = 0;
  for (int64_t width = kLeastSquareBlock; width <= kMostBlockSide; ++width) {
    const BlockShape shape = {width, width};
    double bytes = 0, fill = 1;
    for (const CsrView& csr : patterns) {
      const Sample sample = SampleBlocks(csr, shape, kOfSquares);
      if (sample.nonzeros == 0) return NoBlocks();
      const double of_block = sample.nonzeros_of_block();
      fill = std::min(fill, of_block / static_cast<double>(shape.places()));
      bytes += static_cast<double>(csr.nnz()) / of_block * BytesOfBlock(shape, value_bytes);
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
      kLeastSquareBlock, kMostBlockSide, 100 * best_fill, 100 * kLeastFill));
}

absl::StatusOr<ChosenBlocks> ChooseBlockShape(const CsrView& csr) {
  std::optional<ChosenBlocks> chosen;
  for (int64_t height = 1; height <= kMostBlockSide; ++height) {
    for (int64_t width = 1; width <= kMostBlockSide; ++width) {
      const BlockShape shape = {height, width};
      const Sample sample = SampleBlocks(csr, shape, kOfShapes);
      if (sample.nonzeros == 0) continue;
      const double of_block = sample.nonzeros_of_block();
      const double fill = of_block / static_cast<double>(shape.places());
      const double cost = CostOfBlock(shape) / of_block;
      if (fill < kLeastFill || (chosen && cost >= chosen->cost)) continue;
      chosen = {shape, fill, cost};
    }
  }
  if (!chosen) return NoBlocks();
  return *chosen;
}

absl::StatusOr<Layout> BuildBcsr(const CsrView& csr, BlockShape shape,
                                 const BuildContext& context) {
  MemorySource& memory = *context.memory;
  const int64_t height = shape.height, width = shape.width;
  const int64_t block_rows = BlocksIn(csr.rows, height);
  auto offsets = AllocateArray(memory, "block_offsets", ElementType::kI64, block_rows + 1);
  if (!offsets.ok()) return offsets.status();
  const auto begins = offsets->MutableAs<int64_t>();
  begins[0] = 0;
  ForEachRow(block_rows, context, [&](int64_t i) {
    begins[i + 1] = VisitBlocks(csr, shape, i, 0, std::numeric_limits<int64_t>::max(),
                                [](int64_t, int64_t, int64_t, unsigned, int64_t) {});
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  const int64_t blocks = begins[block_rows];
  const int64_t places = shape.places();
  if (static_cast<double>(csr.nnz()) < kLeastFill * static_cast<double>(blocks * places)) {
    return absl::FailedPreconditionError(
        fmt::format("{} of the {} places in {} blocks of {} x {} are nonzeros, fewer than {:.0f} %",
                    csr.nnz(), blocks * places, blocks, height, width, 100 * kLeastFill));
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
      VisitBlocks(csr, shape, i, 0, std::numeric_limits<int64_t>::max(),
                  [&](int64_t block, int64_t column, int64_t row, unsigned bits, int64_t from) {
                    const int64_t at = begins[i] + block;
                    const auto mask = static_cast<int64_t>(uint64_t{bits} << (8 * row));
                    to_columns[at] = static_cast<int32_t>(column);
                    to_masks[at] = row == 0 ? mask : to_masks[at] | mask;
                    for (int64_t j = 0; j < width; ++j) {
                      if ((bits >> j & 1) == 0) continue;
                      slots[at * places + row * width + j] = static_cast<Source>(from++);
                    }
                  });
    });
  });
  if (context.stopped()) return absl::CancelledError("the build was stopped");

  Layout layout;
  layout.kind = kBcsr;
  layout.parameters = {{"height", height}, {"width", width}};
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
