#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/execution/piece_run.h"
#include "engine/execution/row_blocks.h"
#include "kernels/spgemm_blocks.h"

namespace sparsed::engine {
namespace {

class OnCpu final : public RowBlocks {
 public:
  OnCpu(BoundSpgemm product, std::optional<ProductSizes> found, const RowBlockOptions& options)
      : RowBlocks(std::move(product), std::move(found), options) {}

  absl::Status Begin(WorkerSlot& slot) override {
    if (absl::Status s = AllocateRows(); !s.ok()) return s;
    absl::Status status = product_.Prepare(slot, options_.token.flag(), host_memory(), &kernel_ms_);
    return status.ok() ? product_.ContextOf(slot, OfSlot(slot)).status() : status;
  }

  absl::StatusOr<bool> FindSizes(WorkerSlot& slot) override {
    if (sizes_.exact) return true;
    if (!analysis_.finished()) {
      double taken = 0;
      RunOptions options = OfSlot(slot);
      const absl::Status status = analysis_.RunPiece(
          [&](Progress& progress) {
            double unused = 0;
            options.progress = &progress;
            return product_.Count(slot, options, /*exact=*/false, sizes_.rows.MutableAs<int64_t>(),
                                  &sizes_.products, &unused);
          },
          &taken);
      kernel_ms_ += taken;
      if (!status.ok()) return status;
      if (!analysis_.finished() || !options_.count_first) return analysis_.finished();
    }
    // Block by block, by their bounds, which exact sizes take the place of.
    while (counted_ < rows()) {
      const RowRange range = NextRowBlock(row_sizes(), counted_, count_.entries(slot.threads));
      const auto sizes =
          sizes_.rows.MutableAs<int64_t>().subspan(range.begin, range.end - range.begin);
      const int64_t bounds = std::reduce(sizes.begin(), sizes.end());
      double taken = 0;
      const absl::Status status = product_.CountRows(slot, OfSlot(slot), range, sizes, &taken);
      kernel_ms_ += taken;
      if (!status.ok()) return status;
      count_.Took(bounds, taken);
      counted_ = range.end;
      if (options_.wanted->load(std::memory_order_relaxed)) break;
    }
    sizes_.exact = counted_ == rows();
    return sizes_.exact;
  }

  absl::StatusOr<std::optional<ResultBlock>> Next(WorkerSlot& slot) override {
    const RowRange range = NextRowBlock(
        row_sizes(), next_row(), std::min(block_.entries(slot.threads), options_.most_entries));
    const auto row_begin = block_row_begin_.MutableAs<int64_t>().first(range.end - range.begin + 1);
    const auto row_nnz = block_row_nnz_.MutableAs<int64_t>().first(range.end - range.begin);
    const int64_t room = PlaceRowBlock(row_sizes(), range, row_begin);
    // Another call may have taken the worker slot's workspace in between.
    const absl::StatusOr<Context> context = product_.ContextOf(slot, OfSlot(slot));
    if (!context.ok()) return context.status();
    const auto compute = [&](Array& columns, Array& values) {
      const double before = kernel_ms_;
      absl::Status status = Timed(slot, [&] {
        return product_.Queue(*context, range, row_begin, columns.MutableAs<int32_t>().data(),
                              values.buffer.mutable_data(), row_nnz);
      });
      block_.Took(room, kernel_ms_ - before);
      return status;
    };
    if (sizes_.exact) {
      absl::StatusOr<ResultBlock> block = NewBlock(range, sizes_of(range));
      if (!block.ok()) return block.status();
      if (absl::Status s = compute(block->column_indices, block->values); !s.ok()) return s;
      return HandOut(*std::move(block));
    }
    if (absl::Status s = EnsureScratch(room); !s.ok()) return s;
    if (absl::Status s = compute(scratch_columns_, scratch_values_); !s.ok()) return s;
    std::ranges::copy(row_nnz, sizes_.rows.MutableAs<int64_t>().begin() + range.begin);
    absl::StatusOr<ResultBlock> block = NewBlock(range, row_nnz);
    if (!block.ok()) return block.status();
    const RowBlock scratch{row_begin, row_nnz, std::as_const(scratch_columns_).As<int32_t>().data(),
                           scratch_values_.buffer.data(), product_.type()};
    const absl::Status moved = Timed(slot, [&] {
      CompactRowBlock(scratch, slot.threads, block->column_indices.MutableAs<int32_t>().data(),
                      block->values.buffer.mutable_data());
      return absl::OkStatus();
    });
    if (!moved.ok()) return moved;
    return HandOut(*std::move(block));
  }

 private:
  RunOptions OfSlot(WorkerSlot& slot) {
    return {slot.workspace, host_memory(), options_.token.flag()};
  }

  absl::Status Timed(WorkerSlot& slot, const std::function<absl::Status()>& work) {
    double taken = 0;
    absl::Status status = product_.backend().Timed(slot, work, &taken);
    kernel_ms_ += taken;
    return status;
  }

  /// Memory for a block of `entries`, kept from block to block.
  absl::Status EnsureScratch(int64_t entries) {
    if (scratch_columns_.length >= entries) return absl::OkStatus();
    MemorySource& memory = host_memory();
    scratch_columns_ = scratch_values_ = Array();
    absl::StatusOr<Array> columns =
        AllocateArray(memory, "column_indices", ElementType::kI32, entries);
    if (!columns.ok()) return columns.status();
    absl::StatusOr<Array> values = AllocateArray(memory, "values", product_.type(), entries);
    if (!values.ok()) return values.status();
    scratch_columns_ = *std::move(columns);
    scratch_values_ = *std::move(values);
    return absl::OkStatus();
  }

  PieceRun analysis_{options_.wanted};
  BlockOfPiece count_, block_;
  int64_t counted_ = 0;                     ///< rows
  Array scratch_columns_, scratch_values_;  ///< rows with room for their bounds
};

}  // namespace

std::unique_ptr<RowBlocks> CpuRowBlocks(BoundSpgemm product, std::optional<ProductSizes> found,
                                        const RowBlockOptions& options) {
  return std::make_unique<OnCpu>(std::move(product), std::move(found), options);
}

}  // namespace sparsed::engine
