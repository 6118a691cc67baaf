// The CPU: everything is in host memory already.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/execution/backend.h"
#include "engine/memory/processor.h"

namespace sparsed::engine {

class CpuBackend final : public Backend {
 public:
  /// `budget` outlives it. Measures the memory's rate, some 50 ms.
  CpuBackend(Budget& budget, int slots, int threads_per_slot);

  MemoryRate& memory_rate() { return memory_rate_; }
  int threads_per_slot() const { return threads_per_slot_; }

  double bytes_per_second() const override { return memory_rate_.bytes_per_second(); }
  int64_t cache_bytes() const override { return LastLevelCacheBytes(); }
  MemorySource& memory(MemoryUse use) override { return budget_.Source(use); }
  MemorySource& MemoryFor(MemoryUse use, MemoryOwner& owner) override {
    return budget_.Source(use, &owner);
  }
  std::vector<WorkerSlot> NewWorkerSlots() override;
  size_t kept_workspace() const override;

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
  absl::Status Settle(WorkerSlot& /*slot*/) override { return absl::OkStatus(); }
  Context ContextOf(WorkerSlot& slot, const std::atomic<bool>* stop) const override;
  absl::Status Timed(WorkerSlot& slot, const std::function<absl::Status()>& work,
                     double* milliseconds) override;
  bool shares_host_memory() const override { return true; }
  absl::Status CopyIn(WorkerSlot& slot, void* to, const void* from, size_t bytes) override;
  absl::Status CopyOut(WorkerSlot& slot, void* to, const void* from, size_t bytes) override;

 private:
  /// With a workspace of as many bytes, the options'.
  absl::StatusOr<Context> ContextWith(size_t workspace, WorkerSlot& slot,
                                      const RunOptions& options) const;
  void RaiseRate(double bytes_per_second) override { memory_rate_.Saw(bytes_per_second); }

  Budget& budget_;
  const int slots_, threads_per_slot_;
  MemoryRate memory_rate_;
};

}  // namespace sparsed::engine
