#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <utility>

#include "engine/execution/gpu_backend.h"
#include "engine/execution/row_blocks.h"
#include "engine/execution/scheduler.h"
#include "kernels/spgemm_blocks.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// Entries of a block: enough that starting a block does not count beside copying it.
constexpr int64_t kBlockEntries = int64_t{1} << 22;
/// Smaller ones are not worth it, where memory is short.
constexpr int64_t kLeastBlockEntries = int64_t{1} << 16;

class OnGpu final : public RowBlocks {
 public:
  OnGpu(BoundSpgemm product, std::optional<ProductSizes> found, const RowBlockOptions& options)
      : RowBlocks(std::move(product), std::move(found), options),
        memory_(product_.backend().MemoryFor(MemoryUse::kRequests, options.owner)) {}

  absl::Status Begin(WorkerSlot& slot) override {
    if (absl::Status s = AllocateRows(); !s.ok()) return s;
    absl::Status status = product_.Prepare(slot, options_.token.flag(), memory_, &kernel_ms_);
    if (status.ok()) status = options_.token.status();
    if (status.ok()) status = Allocate("row begins", block_row_begin_.length, row_begin_);
    if (status.ok()) status = Allocate("row counts", block_row_nnz_.length, row_nnz_);
    if (status.ok() && !sizes_.exact) {
      status = product_.Count(slot, OfCall(), /*exact=*/true, sizes_.rows.MutableAs<int64_t>(),
                              &sizes_.products, &kernel_ms_);
      sizes_.exact = status.ok();
    }
    // Before the first block, so that no later one finds too little.
    if (status.ok()) status = product_.ContextOf(slot, OfCall()).status();
    return status.ok() ? AllocateBlocks() : status;
  }

  /// To find memory for blocks it has found them before.
  absl::StatusOr<bool> FindSizes(WorkerSlot& /*slot*/) override { return true; }

  /// Queues the next rows, hands the ones before on meanwhile, and waits for both.
  absl::StatusOr<std::optional<ResultBlock>> Next(WorkerSlot& slot) override {
    Device& device = static_cast<GpuBackend&>(product_.backend()).device();
    DeviceSlot& gpu = *slot.gpu;
    const RowRange leaving = computed_;
    const Entries& from = blocks_[turn_];
    RowRange range = {leaving.end, leaving.end};
    absl::Status status;
    if (leaving.end < rows()) {
      turn_ = 1 - turn_;
      range = NextRowBlock(row_sizes(), leaving.end, block_entries_);
      status = Queue(slot, range);
    }
    std::optional<ResultBlock> block;
    if (status.ok() && leaving.begin < leaving.end) {
      absl::StatusOr<ResultBlock> brought = Bring(device, gpu, leaving, from);
      status = brought.status();
      if (brought.ok()) block = HandOut(*std::move(brought));
    }
    // Also after an error: what is queued uses memory that is about to go.
    const absl::Status done = device.Settle(gpu.stream);
    status.Update(done);
    if (status.ok() && range.begin < range.end) {
      const absl::StatusOr<float> milliseconds = gpu.end.MillisecondsSince(gpu.begin);
      status = milliseconds.status();
      if (milliseconds.ok()) kernel_ms_ += *milliseconds;
    }
    if (!status.ok()) return status;
    computed_ = range;
    return block;
  }

 private:
  struct Entries {
    Array columns, values;
  };

  RunOptions OfCall() { return {workspace_, memory_, options_.token.flag()}; }

  absl::Status Allocate(std::string_view name, int64_t length, Array& array) {
    absl::StatusOr<Array> allocated = AllocateArray(memory_, name, ElementType::kI64, length);
    if (allocated.ok()) array = *std::move(allocated);
    return allocated.status();
  }

  /// Two blocks, of the size of the largest that there is; smaller ones if that is too much.
  absl::Status AllocateBlocks() {
    for (int64_t entries = std::min(kBlockEntries, options_.most_entries);; entries /= 4) {
      int64_t largest = 0;
      RowRange block;
      for (int64_t row = 0; row < rows(); row = block.end) {
        block = NextRowBlock(row_sizes(), row, entries);
        const auto sizes = sizes_of(block);
        largest = std::max(largest, std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
      }
      absl::Status status;
      for (Entries& scratch : blocks_) {
        scratch = Entries();
        absl::StatusOr<Array> columns =
            AllocateArray(memory_, "column_indices", ElementType::kI32, largest);
        if (columns.ok()) scratch.columns = *std::move(columns);
        absl::StatusOr<Array> values = AllocateArray(memory_, "values", product_.type(), largest);
        if (values.ok()) scratch.values = *std::move(values);
        status.Update(columns.status());
        status.Update(values.status());
      }
      block_entries_ = entries;
      if (!absl::IsResourceExhausted(status) || entries / 4 < kLeastBlockEntries) return status;
    }
  }

  absl::Status Queue(WorkerSlot& slot, RowRange range) {
    const auto count = static_cast<size_t>(range.end - range.begin);
    const auto row_begin = block_row_begin_.MutableAs<int64_t>().first(count + 1);
    PlaceRowBlock(row_sizes(), range, row_begin);
    absl::Status status = product_.backend().CopyIn(slot, row_begin_.buffer.mutable_data(),
                                                    row_begin.data(), row_begin.size_bytes());
    if (status.ok()) status = slot.gpu->begin.Record(slot.gpu->stream);
    if (!status.ok()) return status;
    const absl::StatusOr<Context> context = product_.ContextOf(slot, OfCall());
    if (!context.ok()) return context.status();
    Entries& to = blocks_[turn_];
    status = product_.Queue(*context, range, row_begin_.MutableAs<int64_t>().first(count + 1),
                            to.columns.MutableAs<int32_t>().data(), to.values.buffer.mutable_data(),
                            row_nnz_.MutableAs<int64_t>().first(count));
    return status.ok() ? slot.gpu->end.Record(slot.gpu->stream) : status;
  }

  /// Rows that are computed, in host memory.
  absl::StatusOr<ResultBlock> Bring(Device& device, DeviceSlot& gpu, RowRange range,
                                    const Entries& from) {
    const auto begin = Clock::now();
    absl::StatusOr<ResultBlock> block = NewBlock(range, sizes_of(range));
    if (!block.ok()) return block;
    absl::Status status = device.CopyOut(gpu.second, block->column_indices.buffer.mutable_data(),
                                         from.columns.buffer.data(), block->column_indices.bytes());
    if (status.ok()) {
      status = device.CopyOut(gpu.second, block->values.buffer.mutable_data(),
                              from.values.buffer.data(), block->values.bytes());
    }
    from_device_ns_ += NanosecondsSince(begin);
    if (!status.ok()) return status;
    return block;
  }

  MemorySource& memory_;
  Buffer workspace_;
  Array row_begin_, row_nnz_;      ///< of the block that is being computed
  std::array<Entries, 2> blocks_;  ///< one leaves while the other is computed
  int64_t block_entries_ = 0;      ///< of a block, but for single rows of more
  size_t turn_ = 0;                ///< of the blocks, which one was computed last
  RowRange computed_;              ///< its rows; empty before the first
};

}  // namespace

std::unique_ptr<RowBlocks> GpuRowBlocks(BoundSpgemm product, std::optional<ProductSizes> found,
                                        const RowBlockOptions& options) {
  return std::make_unique<OnGpu>(std::move(product), std::move(found), options);
}

}  // namespace sparsed::engine
