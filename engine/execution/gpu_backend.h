// A GPU: operands are placed there and stay while there is room, kernels run in a worker slot's
// stream and are timed by its events.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/execution/backend.h"
#include "engine/execution/call.h"
#include "engine/execution/device_queues.h"
#include "engine/memory/device.h"
#include "engine/memory/exported_memory.h"

namespace sparsed::engine {

class GpuBackend final : public Backend {
 public:
  /// Outlives it.
  explicit GpuBackend(Device& device);

  Device& device() const { return device_; }
  DeviceQueues& queues() { return queues_; }
  /// A streamed operand that was put together in the device's memory, in the shape that kernels
  /// read it in if there is room for both.
  absl::StatusOr<PlacedDense> Repacked(const Array& array, const DenseShape& shape,
                                       WorkerSlot& slot);

  /// Rows that several GPUs have, `gpus` the parts' (null: the host), into `memory` of this one.
  /// They come beside what the worker slot's stream does, and are there for what it queues after
  /// AwaitFetched. A part is read from its GPU directly; where that cannot be, its block is copied
  /// here first. What is read is kept while what is returned is.
  absl::StatusOr<PlacedDense> FetchRows(const FetchedRows& rows, std::span<GpuBackend* const> gpus,
                                        MemorySource& memory, WorkerSlot& slot);

  /// Rows of what another GPU shows (PartExchange), `rows` (i64) of them, behind `first` rows of
  /// `to`: queued in the worker slot's second stream. What is read is added to `kept`.
  absl::Status FetchShown(const PlacedDense& from, const std::shared_ptr<LazyArray>& rows,
                          int64_t count, const PlacedDense& to, int64_t first,
                          std::vector<std::shared_ptr<const void>>& kept, WorkerSlot& slot);
  /// A point in a stream of this GPU, for others to wait for.
  absl::StatusOr<std::shared_ptr<const cuda::Event>> Mark(const cuda::Stream& stream);

  /// What other processes map of a layout that was placed here, which stays for that long.
  absl::StatusOr<std::shared_ptr<const ExportedMemory>> Export(
      const std::shared_ptr<const Layout>& placed, MemoryOwner& owner);
  /// New memory for them, `bytes` that `fill` writes; its errors, too.
  absl::StatusOr<std::shared_ptr<const ExportedMemory>> ExportNew(
      size_t bytes, MemoryOwner& owner, const std::function<absl::Status(std::byte*)>& fill);

  absl::Status status() const override { return device_.status(); }
  absl::Status Checked(absl::Status status) override { return device_.Checked(std::move(status)); }
  double bytes_per_second() const override { return device_.bytes_per_second(); }
  int64_t cache_bytes() const override { return static_cast<int64_t>(device_.info().l2_bytes); }
  MemorySource& memory(MemoryUse use) override { return device_.budget().Source(use); }
  MemorySource& MemoryFor(MemoryUse use, MemoryOwner& owner) override {
    return device_.budget().Source(use, &owner);
  }
  std::vector<WorkerSlot> NewWorkerSlots() override;
  std::optional<WorkerSlot> TrialSlot() override;
  size_t kept_workspace() const override;
  void OnThread(const std::function<void()>& loop) override;
  void Tidy(bool rests) override;

  absl::StatusOr<Array> ValuesFor(const Matrix& matrix, const Layout& layout, MemorySource& memory,
                                  int threads) override;
  absl::StatusOr<PlacedSparse> Place(const std::shared_ptr<const Layout>& layout,
                                     const Array* values, MemorySource& host) override;
  absl::StatusOr<std::shared_ptr<const Array>> OrderValues(const PlacedDense& csr_values,
                                                           const Layout& layout,
                                                           MemorySource& memory,
                                                           WorkerSlot& slot) override;
  absl::StatusOr<PlacedDense> PlaceHeld(const std::shared_ptr<LazyArray>& held,
                                        const DenseShape& shape) override;
  absl::StatusOr<PlacedDense> Bring(Array host, const DenseShape& shape, WorkerSlot& slot) override;
  absl::StatusOr<PlacedDense> NewDense(std::string_view name, const DenseShape& shape,
                                       MemorySource& memory, WorkerSlot& slot) override;
  using Backend::CopyDense;
  absl::Status CopyDense(std::span<const DenseCopy> copies, WorkerSlot& slot) override;
  absl::StatusOr<std::shared_ptr<const Array>> PlaceIndices(
      const std::shared_ptr<LazyArray>& indices) override;
  absl::Status Scatter(const PlacedDense& from, const Array* order, const PlacedDense& to,
                       WorkerSlot& slot) override;
  absl::StatusOr<PlacedDense> Gather(const PlacedDense& from, const Array& order,
                                     MemorySource& memory, WorkerSlot& slot) override;
  absl::Status Sum(std::span<const WeightedTerm> terms, const PlacedDense& to,
                   WorkerSlot& slot) override;
  absl::Status Softmax(const Layout& csr, double scale, const PlacedDense& from,
                       const PlacedDense* gradient, const PlacedDense& to,
                       WorkerSlot& slot) override;
  absl::Status ComputeRowProducts(const RowProducts& products, ElementType type,
                                  WorkerSlot& slot) override;
  absl::Status ComputeHeadDots(const HeadDots& dots, ElementType type, WorkerSlot& slot) override;
  absl::Status ScaleNonzeros(const NonzeroScaling& scaling, ElementType type,
                             WorkerSlot& slot) override;
  absl::Status TotalNonzeros(const NonzeroTotals& totals, ElementType type,
                             WorkerSlot& slot) override;
  absl::Status ComputeEdgeAttention(const EdgeAttention& attention, ElementType type,
                                    WorkerSlot& slot, const RunOptions& options) override;
  absl::Status ComputeEdgeAttentionGradient(const EdgeAttentionGradient& gradient, ElementType type,
                                            WorkerSlot& slot, const RunOptions& options) override;
  absl::Status ClearPadding(const PlacedDense& dense, WorkerSlot& slot) override;
  absl::Status Repeat(const Array& period, Array& to, WorkerSlot& slot) override;
  std::shared_ptr<LazyArray> Hold(PlacedDense result, const DenseShape& shape,
                                  MemorySource& memory) override;
  absl::Status Fetch(const PlacedDense& result, const DenseShape& shape, MemorySource& memory,
                     WorkerSlot& slot, const Arrived& arrived) override;
  absl::Status FetchInto(const PlacedDense& result, const DenseShape& shape, Array& into,
                         WorkerSlot& slot) override;
  absl::Status Run(WorkerSlot& slot, const BoundRun& run, const RunOptions& options,
                   double* milliseconds) override;
  absl::StatusOr<std::unique_ptr<Moment>> Now(WorkerSlot& slot) override;
  absl::Status Settle(WorkerSlot& slot) override;
  absl::Status AwaitFetched(WorkerSlot& slot) override;
  Context ContextOf(WorkerSlot& slot, const std::atomic<bool>* stop) const override;
  absl::Status Timed(WorkerSlot& slot, const std::function<absl::Status()>& work,
                     double* milliseconds) override;
  bool shares_host_memory() const override { return false; }
  absl::Status CopyIn(WorkerSlot& slot, void* to, const void* from, size_t bytes) override;
  absl::Status CopyOut(WorkerSlot& slot, void* to, const void* from, size_t bytes) override;

 private:
  void RaiseRate(double bytes_per_second) override { device_.SawRate(bytes_per_second); }
  void OnConstants(const DeviceConstants& constants) override {
    device_.SetLinkRate(constants.link_bytes_per_second);
  }

  /// Queues one part of FetchRows; what it reads is in `kept` then.
  absl::Status FetchPart(const FetchedRows::Part& part, GpuBackend* gpu, const PlacedDense& to,
                         int64_t first, std::vector<std::shared_ptr<const void>>& kept,
                         WorkerSlot& slot);
  /// What was queued, `status` being how that went, is done when this returns, unless the worker
  /// slot queues.
  absl::Status Queued(absl::Status status, WorkerSlot& slot);
  /// Makes `workspace` so large, once what is queued does not use it any more.
  absl::Status GrowWorkspace(Buffer& workspace, size_t bytes, MemorySource& memory,
                             WorkerSlot& slot);
  /// What the worker slot's kernels run with, and a workspace of as many bytes, the options'.
  absl::StatusOr<Context> ContextWith(size_t workspace, WorkerSlot& slot,
                                      const RunOptions& options);
  absl::StatusOr<Array> NewArray(MemorySource& memory, std::string_view name,
                                 const DenseShape& shape, const std::optional<DenseShape>& padded);

  Device& device_;
  DeviceQueues queues_;
};

}  // namespace sparsed::engine
