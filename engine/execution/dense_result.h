// Where a dense result of a request goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/execution/executor_impl.h"
#include "engine/execution/operand.h"

namespace sparsed::engine {

/// What parts of a request compute, each on a GPU of its own: the blocks of a buffer, or matrices
/// that the request needs itself. Thread-safe.
class BlockResults {
 public:
  /// `blocks` are of a matrix that is to be written into a buffer, whose type and size they are of.
  BlockResults(DenseWrite destination, std::vector<DenseBlock> blocks)
      : destination_(std::move(destination)), blocks_(std::move(blocks)) {}
  explicit BlockResults(std::vector<DenseBlock> blocks) : blocks_(std::move(blocks)) {}

  /// Of the buffer that they are to be.
  const DenseShape& whole() const { return destination_.base()->shape; }
  const DenseShape& shape(size_t block) const { return blocks_[block].shape; }
  /// A part ended well; each of them once.
  void Set(size_t block, std::shared_ptr<LazyArray> elements) {
    blocks_[block].elements = std::move(elements);
  }
  /// They are no buffer's.
  bool temporary() const { return destination_.base() == nullptr; }
  /// The right to write the buffer, which this gives up.
  DenseWrite TakeWrite() { return std::move(destination_); }
  // After the last of them.
  const std::vector<DenseBlock>& blocks() const { return blocks_; }
  /// As DenseWrite's.
  absl::Status Publish() { return destination_.Publish(blocks_); }
  /// Others may write the buffer, though parts are not gone yet. Not while one of them runs.
  void Release() { destination_ = DenseWrite(); }

 private:
  DenseWrite destination_;
  std::vector<DenseBlock> blocks_;  ///< each of one part alone until all have ended
};

/// A result of that shape may be written into the buffer. NOT_FOUND, INVALID_ARGUMENT; ABORTED if
/// somebody else writes into it.
absl::StatusOr<DenseWrite> BeginWrite(Executor::Impl& impl, std::string_view tenant,
                                      std::string_view buffer, const DenseShape& shape);

/// Into the request's stream, a matrix that is held, or memory that the caller shares.
class DenseResult {
 public:
  DenseResult() = default;
  /// For one of `shape`, whose leading dimension (0: its columns) counts where it is streamed.
  /// INVALID_ARGUMENT; NOT_FOUND; ABORTED if somebody else writes into the buffer.
  static absl::StatusOr<DenseResult> Find(Executor::Impl& impl, const std::string& tenant,
                                          const ResultSpec& spec, DenseShape shape);

  /// As it will be there.
  const DenseShape& shape() const { return shape_; }
  bool kept() const { return kept_; }
  /// Memory that the caller shares; none: it goes elsewhere.
  const std::optional<Array>& shared() const { return shared_; }
  /// Where that is; null: not in a GPU's memory.
  GpuBackend* gpu() const { return gpu_; }
  /// Kernels of the backend write where it is shared.
  bool written_in_place(const Backend& backend) const {
    return shared_.has_value() &&
           (gpu_ == nullptr ? backend.shares_host_memory() : gpu_ == &backend);
  }
  bool streamed() const { return !kept_ && !shared_.has_value(); }
  /// What its memory counts as.
  MemoryUse use() const {
    const bool lasts = kept_ && !(blocks_ != nullptr && blocks_->temporary());
    return lasts ? MemoryUse::kBuffers : MemoryUse::kRequests;
  }

  /// INVALID_ARGUMENT if writing it would overwrite an operand. One that `is_old`, C's old value,
  /// may lie exactly where the result goes: then `*in_place` becomes true.
  absl::Status CheckApart(const Operand& operand, bool is_old, bool* in_place) const;

  /// INVALID_ARGUMENT if they have a byte in common.
  absl::Status CheckApart(const DenseResult& other) const;

  /// Memory for it where the worker slot's kernels write; the caller's own, where they can.
  absl::StatusOr<PlacedDense> New(std::string_view name, MemoryOwner& owner, WorkerSlot& slot);
  /// Sends it, as array `index`, or publishes it. It is where the kernels of `from` wrote it.
  /// `memory` of the host: for requests, and for what is held.
  absl::Status Send(PlacedDense result, Backend& from, WorkerSlot& slot, uint32_t index,
                    MemorySource& memory, MemorySource& held_memory, ResultSink& sink);

  /// Lets go of what it would have been written into.
  void Drop() {
    destination_ = DenseWrite();
    haloed_.reset();
    blocks_.reset();
    shared_.reset();
  }

 private:
  /// To memory of a GPU that its kernels did not write.
  absl::Status SendToGpu(const PlacedDense& result, Backend& from, WorkerSlot& slot,
                         MemorySource& memory);

  DenseShape shape_;
  DenseWrite destination_;
  std::shared_ptr<HaloedDense> haloed_;   ///< what New made for it; null: it has no halo
  std::shared_ptr<BlockResults> blocks_;  ///< in its place
  size_t block_ = 0;
  bool kept_ = false;
  std::optional<Array> shared_;
  GpuBackend* gpu_ = nullptr;
};

}  // namespace sparsed::engine
