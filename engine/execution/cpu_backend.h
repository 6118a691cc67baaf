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
  CpuBackend(Budget& budget, int lanes, int threads_per_lane);

  MemoryRate& memory_rate() { return memory_rate_; }
  int threads_per_lane() const { return threads_per_lane_; }

  double bytes_per_second() const override { return memory_rate_.bytes_per_second(); }
  int64_t cache_bytes() const override { return LastLevelCacheBytes(); }
  MemorySource& memory(MemoryUse use) override { return budget_.Source(use); }
  MemorySource& MemoryFor(MemoryUse use, MemoryOwner& owner) override {
    return budget_.Source(use, &owner);
  }
  std::vector<Lane> NewLanes() override;
  size_t kept_workspace() const override;

  absl::StatusOr<Array> ValuesFor(const Matrix& matrix, const Layout& layout, MemorySource& memory,
                                  int threads) override;
  absl::StatusOr<PlacedSparse> Place(const std::shared_ptr<const Layout>& layout,
                                     const Array* values, MemorySource& host) override;
  absl::StatusOr<std::shared_ptr<const Array>> OrderValues(const PlacedDense& csr_values,
                                                           const Layout& layout,
                                                           MemorySource& memory,
                                                           Lane& lane) override;
  absl::StatusOr<PlacedDense> PlaceHeld(const std::shared_ptr<LazyArray>& held,
                                        const DenseShape& shape) override;
  absl::StatusOr<PlacedDense> Bring(Array host, const DenseShape& shape, Lane& lane) override;
  absl::StatusOr<PlacedDense> NewDense(std::string_view name, const DenseShape& shape,
                                       MemorySource& memory, Lane& lane) override;
  using Backend::CopyDense;
  absl::Status CopyDense(std::span<const DenseCopy> copies, Lane& lane) override;
  absl::StatusOr<std::shared_ptr<const Array>> PlaceIndices(
      const std::shared_ptr<LazyArray>& indices) override;
  absl::Status Scatter(const PlacedDense& from, const Array* order, const PlacedDense& to,
                       Lane& lane) override;
  absl::StatusOr<PlacedDense> Gather(const PlacedDense& from, const Array& order,
                                     MemorySource& memory, Lane& lane) override;
  absl::Status Sum(std::span<const WeightedTerm> terms, const PlacedDense& to, Lane& lane) override;
  absl::Status Softmax(const Layout& csr, double scale, const PlacedDense& from,
                       const PlacedDense* gradient, const PlacedDense& to, Lane& lane) override;
  absl::Status ComputeRowProducts(const RowProducts& products, ElementType type,
                                  Lane& lane) override;
  absl::Status ComputeHeadDots(const HeadDots& dots, ElementType type, Lane& lane) override;
  absl::Status ScaleNonzeros(const NonzeroScaling& scaling, ElementType type, Lane& lane) override;
  absl::Status TotalNonzeros(const NonzeroTotals& totals, ElementType type, Lane& lane) override;
  absl::Status ComputeEdgeAttention(const EdgeAttention& attention, ElementType type, Lane& lane,
                                    const RunOptions& options) override;
  absl::Status ComputeEdgeAttentionGradient(const EdgeAttentionGradient& gradient, ElementType type,
                                            Lane& lane, const RunOptions& options) override;
  absl::Status Repeat(const Array& period, Array& to, Lane& lane) override;
  std::shared_ptr<LazyArray> Hold(PlacedDense result, const DenseShape& shape,
                                  MemorySource& memory) override;
  absl::Status Fetch(const PlacedDense& result, const DenseShape& shape, MemorySource& memory,
                     Lane& lane, const Arrived& arrived) override;
  absl::Status FetchInto(const PlacedDense& result, const DenseShape& shape, Array& into,
                         Lane& lane) override;
  absl::Status Run(Lane& lane, const BoundRun& run, const RunOptions& options,
                   double* milliseconds) override;
  absl::StatusOr<std::unique_ptr<Moment>> Now(Lane& lane) override;
  absl::Status Settle(Lane& /*lane*/) override { return absl::OkStatus(); }
  Context ContextOf(Lane& lane, const std::atomic<bool>* stop) const override;
  absl::Status Timed(Lane& lane, const std::function<absl::Status()>& work,
                     double* milliseconds) override;
  bool shares_host_memory() const override { return true; }
  absl::Status CopyIn(Lane& lane, void* to, const void* from, size_t bytes) override;
  absl::Status CopyOut(Lane& lane, void* to, const void* from, size_t bytes) override;

 private:
  /// With a workspace of as many bytes, the options'.
  absl::StatusOr<Context> ContextWith(size_t workspace, Lane& lane,
                                      const RunOptions& options) const;
  void RaiseRate(double bytes_per_second) override { memory_rate_.Saw(bytes_per_second); }

  Budget& budget_;
  const int lanes_, threads_per_lane_;
  MemoryRate memory_rate_;
};

}  // namespace sparsed::engine
