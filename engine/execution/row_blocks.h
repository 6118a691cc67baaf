// Where the rows of an SpGEMM result come from, block by block.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/execution/bound_spgemm.h"
#include "engine/execution/call.h"
#include "engine/execution/token.h"
#include "engine/memory/budget.h"

namespace sparsed::engine {

/// How many entries the rows of a product have.
struct ProductSizes {
  Array rows;          ///< i64, of each row: at most, or `exact`; of rows that are computed, exact
  bool exact = false;  ///< of all rows
  int64_t products = 0;
};

struct RowBlockOptions {
  Budget& host;
  MemoryOwner& owner;  ///< who pays
  const Token& token;
  const std::atomic<bool>* wanted;  ///< as PieceRun's
  bool count_first = false;         ///< exact sizes before anything is computed
  /// Entries of a block that leaves, but for a single row of more.
  int64_t most_entries = 0;
};

/// What computes a product, in blocks of rows. Used by one thread at a time, on any worker slot of
/// the product's backend.
class RowBlocks {
 public:
  /// `found` sizes are exact; none: to be found.
  static std::unique_ptr<RowBlocks> Of(BoundSpgemm product, std::optional<ProductSizes> found,
                                       const RowBlockOptions& options);
  virtual ~RowBlocks() = default;
  RowBlocks(const RowBlocks&) = delete;
  RowBlocks& operator=(const RowBlocks&) = delete;

  /// Prepares the kernel and takes memory: whatever may not fit or not suit (FAILED_PRECONDITION,
  /// RESOURCE_EXHAUSTED).
  virtual absl::Status Begin(WorkerSlot& slot) = 0;
  /// Finds the sizes, on the CPU until somebody waits for the worker slot: true once they are
  /// found. Errors as Next.
  virtual absl::StatusOr<bool> FindSizes(WorkerSlot& slot) = 0;
  /// The next rows, as far as they have come: none, if the first are under way. UNAVAILABLE (the
  /// device is lost), RESOURCE_EXHAUSTED, CANCELLED.
  virtual absl::StatusOr<std::optional<ResultBlock>> Next(WorkerSlot& slot) = 0;

  const ProductSizes& sizes() const { return sizes_; }
  int64_t rows() const { return product_.rows(); }
  /// Rows [0, next_row()) were handed out, with so many entries.
  int64_t next_row() const { return next_row_; }
  int64_t nnz() const { return nnz_; }
  /// Since the last call of this.
  double TakeKernelMilliseconds();
  uint64_t TakeFromDeviceNanoseconds();

 protected:
  RowBlocks(BoundSpgemm product, std::optional<ProductSizes> found, const RowBlockOptions& options);
  MemorySource& host_memory() {
    return options_.host.Source(MemoryUse::kRequests, &options_.owner);
  }
  /// Host memory for what is kept of each row, and of each row of a block.
  absl::Status AllocateRows();
  std::span<const int64_t> sizes_of(RowRange range) const {
    return sizes_.rows.As<int64_t>().subspan(range.begin, range.end - range.begin);
  }
  std::span<const int64_t> row_sizes() const { return sizes_.rows.As<int64_t>(); }
  /// Memory of its own for the block that comes next, of its exact size; without its entries.
  absl::StatusOr<ResultBlock> NewBlock(RowRange range, std::span<const int64_t> row_nnz);
  /// `block` is handed out.
  ResultBlock HandOut(ResultBlock block);

  BoundSpgemm product_;
  const RowBlockOptions options_;
  const bool found_;  ///< the sizes, before
  ProductSizes sizes_;
  Array block_row_begin_, block_row_nnz_;  ///< of the block that is being computed; on the host
  double kernel_ms_ = 0;
  uint64_t from_device_ns_ = 0;

 private:
  int64_t next_row_ = 0;
  int64_t nnz_ = 0;
};

/// In host memory, one block after the other.
std::unique_ptr<RowBlocks> CpuRowBlocks(BoundSpgemm product, std::optional<ProductSizes> found,
                                        const RowBlockOptions& options);
/// On a GPU: a block leaves while the next one is computed.
std::unique_ptr<RowBlocks> GpuRowBlocks(BoundSpgemm product, std::optional<ProductSizes> found,
                                        const RowBlockOptions& options);

}  // namespace sparsed::engine
