#include "engine/execution/row_blocks.h"

#include <algorithm>
#include <utility>

#include "kernels/spgemm_blocks.h"

namespace sparsed::engine {

std::unique_ptr<RowBlocks> RowBlocks::Of(BoundSpgemm product, std::optional<ProductSizes> found,
                                         const RowBlockOptions& options) {
  return product.backend().shares_host_memory()
             ? CpuRowBlocks(std::move(product), std::move(found), options)
             : GpuRowBlocks(std::move(product), std::move(found), options);
}

RowBlocks::RowBlocks(BoundSpgemm product, std::optional<ProductSizes> found,
                     const RowBlockOptions& options)
    : product_(std::move(product)),
      options_(options),
      found_(found.has_value()),
      sizes_(std::move(found).value_or(ProductSizes())) {}

double RowBlocks::TakeKernelMilliseconds() { return std::exchange(kernel_ms_, 0); }

uint64_t RowBlocks::TakeFromDeviceNanoseconds() { return std::exchange(from_device_ns_, 0); }

absl::Status RowBlocks::AllocateRows() {
  const int64_t block_rows = std::min(rows(), kMaxBlockRows);
  // One that has room for some of them alone is not to wait for what is its own.
  const int64_t together = (found_ ? 0 : rows()) + 2 * block_rows + 1;
  const absl::Status room = options_.host
                                .Count(static_cast<size_t>(together) * sizeof(int64_t),
                                       MemoryUse::kRequests, &options_.owner)
                                .status();
  if (!room.ok()) return room;
  const auto allocate = [&](std::string_view name, int64_t length, Array& array) {
    absl::StatusOr<Array> allocated = AllocateArray(host_memory(), name, ElementType::kI64, length);
    if (allocated.ok()) array = *std::move(allocated);
    return allocated.status();
  };
  absl::Status status;
  if (!found_) status = allocate("row sizes", rows(), sizes_.rows);
  if (status.ok()) status = allocate("row begins", block_rows + 1, block_row_begin_);
  if (status.ok()) status = allocate("row counts", block_rows, block_row_nnz_);
  return status;
}

absl::StatusOr<ResultBlock> RowBlocks::NewBlock(RowRange range, std::span<const int64_t> row_nnz) {
  MemorySource& memory = host_memory();
  ResultBlock block;
  block.rows = range;
  block.nnz_begin = nnz_;
  absl::StatusOr<Array> offsets =
      AllocateArray(memory, "row_offsets", ElementType::kI64, range.end - range.begin);
  if (!offsets.ok()) return offsets.status();
  block.row_offsets = *std::move(offsets);
  const auto ends = block.row_offsets.MutableAs<int64_t>();
  int64_t nnz = 0;
  for (size_t i = 0; i < row_nnz.size(); ++i) {
    nnz += row_nnz[i];
    ends[i] = nnz_ + nnz;
  }
  absl::StatusOr<Array> columns = AllocateArray(memory, "column_indices", ElementType::kI32, nnz);
  if (!columns.ok()) return columns.status();
  absl::StatusOr<Array> values = AllocateArray(memory, "values", product_.type(), nnz);
  if (!values.ok()) return values.status();
  block.column_indices = *std::move(columns);
  block.values = *std::move(values);
  return block;
}

ResultBlock RowBlocks::HandOut(ResultBlock block) {
  next_row_ = block.rows.end;
  nnz_ += block.column_indices.length;
  return block;
}

}  // namespace sparsed::engine
