// Chains: products and sums whose intermediate values stay on the device.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/execution/dense_result.h"
#include "engine/execution/executor_impl.h"
#include "engine/execution/request_operands.h"

namespace sparsed::engine {

/// Checked as a whole before it begins, with one version of each matrix. On a GPU steps are queued
/// a few ahead of the device; after some milliseconds others may run in between. What a GPU has no
/// room or no kernel for is computed on the CPU, from the first step on.
class ChainCall final : public Job {
 public:
  /// As Executor::Begin.
  static absl::StatusOr<std::shared_ptr<Call>> Begin(std::shared_ptr<Executor::Impl> impl,
                                                     ChainSpec spec,
                                                     std::shared_ptr<ResultSink> sink);
  ChainCall(std::shared_ptr<Executor::Impl> impl, ChainSpec spec, std::shared_ptr<ResultSink> sink);

  absl::StatusOr<ClaimedBytes> Claim(uint32_t array, uint64_t offset, uint64_t size) override {
    return operands_.Claim(array, offset, size);
  }
  bool complete() const override { return operands_.complete(); }
  std::string Missing() const override {
    std::string missing = operands_.Missing();
    return missing.empty() ? Job::Missing() : missing;
  }
  size_t announced() const override { return operands_.announced(); }
  size_t counted() const override { return operands_.counted(); }

 private:
  /// A product or sum, with all that was looked up for it.
  struct Step {
    MatrixLease matrix;  ///< null: a sum
    bool product = false;
    Problem problem;        ///< of a product, as the next two
    PlanTable::Found plan;  ///< as it was when the call began, or moved to the CPU
    StepEnd done = {};
    std::string_view kernel = {};  ///< that computed it
  };
  struct Value {
    DenseShape shape;  ///< without gaps
    /// Values of its nonzeros, in the order of its CSR; null: not nonzeros, or in the order of the
    /// upload.
    MatrixLease order;
    size_t last_use = 0;                ///< a step, or behind them all
    std::optional<size_t> result = {};  ///< it is computed where that goes
    std::optional<PlacedDense> placed = {};
  };
  class Queue;

  Next Run(Lane& lane, absl::Status* end) override;
  void Drop() override;
  Loader ToLoad() const override;

  absl::Status Check();
  absl::Status CheckStep(const SpmmStep& spmm, Step& step);
  absl::Status CheckStep(const SddmmStep& sddmm, Step& step);
  absl::Status CheckStep(const SumStep& sum, Step& step);
  absl::Status CheckStep(const SoftmaxStep& softmax, Step& step);
  absl::Status SetResults();
  absl::StatusOr<MatrixLease> FindMatrix(const std::string& name);
  /// The value that a step uses; INVALID_ARGUMENT if none before it has that number.
  absl::StatusOr<Value*> Use(std::string_view what, size_t value);
  /// ... which must be so large.
  absl::Status UseAs(std::string_view what, size_t value, ElementType type, int64_t rows,
                     int64_t cols);
  /// ... as one value for each nonzero, one after the other.
  absl::Status UseAsNonzeros(std::string_view what, size_t value, ElementType type, int64_t nnz);
  /// Those that lie in the order of a matrix's CSR are in no other.
  static MatrixLease OrderOf(const MatrixLease& matrix) {
    return matrix->caller_order() == nullptr ? nullptr : matrix;
  }

  /// Most bytes that steps' values take at once.
  size_t PeakBytes() const;
  absl::Status ChooseDevice();
  void TakePlans(DeviceKind kind);
  absl::Status PlaceOperands(Lane& lane);
  /// Steps from next_ on, until there are no more or it is somebody else's turn.
  absl::Status RunSteps(Lane& lane);
  absl::Status RunStep(size_t i, Lane& lane);
  absl::Status RunProduct(const SpmmStep& spmm, size_t i, Lane& lane);
  absl::Status RunProduct(const SddmmStep& sddmm, size_t i, Lane& lane);
  absl::Status RunSum(const SumStep& sum, size_t i, Lane& lane);
  absl::Status RunSoftmax(const SoftmaxStep& softmax, size_t i, Lane& lane);
  absl::StatusOr<Resolved> ResolveStep(const Step& step);
  absl::StatusOr<PlacedSparse> PlaceMatrix(const Step& step, Resolved& plan,
                                           const std::optional<size_t>& values, bool masks,
                                           Lane& lane);
  absl::Status Multiply(Step& step, const Resolved& plan, const PlacedSparse& s,
                        const PlacedDense& first, const PlacedDense* second,
                        const PlacedDense& result, double alpha, double beta, Lane& lane);
  /// A value in the order of another matrix's CSR; null: as the caller would have it.
  absl::StatusOr<PlacedDense> InOrder(size_t value, const MatrixLease& order, Lane& lane);
  /// Memory for what step `i` makes.
  absl::StatusOr<PlacedDense> NewValue(size_t i, Lane& lane);
  absl::StatusOr<PlacedDense> NewTemporary(const DenseShape& shape, Lane& lane);
  /// What step `i` used last is free for the next.
  void Recycle(size_t i);
  absl::Status Send(Lane& lane);
  /// Forgets what was computed.
  void Restart();
  size_t value_of(size_t step) const { return spec_.operands.size() + step; }
  MemorySource& host_memory() { return impl_->budget.Source(MemoryUse::kRequests, &owner_); }

  const std::shared_ptr<Executor::Impl> impl_;
  MemoryOwner& owner_;  ///< the tenant
  ChainSpec spec_;
  std::map<std::string, MatrixLease> matrices_;
  RequestOperands operands_;
  std::vector<Step> steps_;
  std::vector<Value> values_;  ///< operands, then what steps make
  std::vector<DenseResult> results_;
  size_t next_ = 0;  ///< step
  bool placed_ = false;
  bool sent_ = false;  ///< something of the results
  /// Memory of values that nothing uses any more.
  std::vector<PlacedDense> free_;
  /// What steps that are queued use, and the one that is being queued.
  std::vector<std::shared_ptr<const void>> kept_, used_;
  bool may_repeat_ = true;  ///< the step that is being queued: it has overwritten nothing
};

}  // namespace sparsed::engine
