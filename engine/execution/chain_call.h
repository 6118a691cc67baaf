// Chains: operations whose intermediate values stay on the device. What they are checked for is in
// chain_check.cc, how they run in chain_call.cc; both of attention in chain_attention.cc.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/execution/dense_result.h"
#include "engine/execution/executor_impl.h"
#include "engine/execution/part_exchange.h"
#include "engine/execution/piece_run.h"
#include "engine/execution/request_operands.h"

namespace sparsed::engine {

/// Checked as a whole before it begins, with one version of each matrix. On a GPU steps are queued
/// a few ahead of the device; after some milliseconds others may run in between, on the CPU within
/// a product or attention, too. What a GPU has no room or no kernel for is computed on the CPU,
/// from the first step on.
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
  /// For which a chain has the worker slot while others wait.
  static constexpr double kTurnSeconds = kPieceSeconds;
  /// A kernel on what is placed; goes on from the options' progress, if there is one.
  using Pass = std::function<absl::Status(WorkerSlot&, const RunOptions&)>;
  /// A pass that others were let before.
  struct CutPass {
    Pass pass;
    std::vector<PlacedDense> results;
    std::vector<std::shared_ptr<const void>> used;  ///< besides values
    PieceRun pieces;
    Buffer workspace = {};
  };
  /// An operation, with all that was looked up for it.
  struct Step {
    MatrixLease matrix = nullptr;  ///< null: a sum
    size_t value = 0;              ///< the first that it makes; there may be another behind it
    bool product = false;          ///< an SpMM or SDDMM, of which `problem` and `heads` speak
    bool reduces = false;          ///< an SpMM that is no sum: by the sum's plan, on a GPU alone
    bool plain = false;            ///< then, by plain CSR's first kernel: the plan's does not
    Problem problem = {};
    int64_t heads = 1;
    int64_t width = 1;          ///< multiplications of each nonzero, about
    bool on_transpose = false;  ///< without a plan: runs on the CSR of S^T, or on both
    PlanTable::Found plan;      ///< as it was when the call began, or moved to the CPU
    StepEnd done = {};
    std::string_view kernel = {};  ///< that computed it
    std::unique_ptr<CutPass> cut = nullptr;

    /// Multiplications, about.
    double Work() const;
    /// By the plan of its signature; other operations run on plain CSR.
    bool planned() const {
      return product && heads == 1 && !(reduces && problem.device == DeviceKind::kCpu);
    }
  };
  struct Value {
    DenseShape shape;  ///< without gaps
    /// Values of its nonzeros, in the order of its CSR; null: not nonzeros, or in the order of the
    /// upload.
    MatrixLease order;
    size_t made = 0;                    ///< the step that makes it; of an operand, none
    size_t last_use = 0;                ///< a step, or behind them all
    std::optional<size_t> result = {};  ///< it is computed where that goes
    std::optional<PlacedDense> placed = {};
  };
  /// Plain CSR on a device, and values of its nonzeros.
  struct PlacedRows {
    std::shared_ptr<const Layout> layout;
    ConstDense values;  ///< no data: it only masks
    bool by_slot;       ///< in the layout's order; else in that of S's CSR
  };
  class Queue;
  /// Of values of nonzeros: kernels do something for each of them in each row.
  static constexpr int64_t kMostHeads = 1024;

  /// `status`, whose sentence names the step from then on.
  static absl::Status OfStep(size_t i, const absl::Status& status);
  /// The values that a step uses.
  static std::vector<size_t> UsesOf(const ChainStep& step);

  Next Run(WorkerSlot& slot, absl::Status* end) override;
  Cost Predict() const override;
  /// Multiplications, about, and what chains that take equally long have in common.
  double Work() const;
  uint64_t Kind() const;
  void Drop() override;
  Loader ToLoad() const override;

  absl::Status Check();
  absl::Status CheckStep(const SpmmStep& spmm, Step& step);
  absl::Status CheckStep(const SddmmStep& sddmm, Step& step);
  absl::Status CheckStep(const SumStep& sum, Step& step);
  absl::Status CheckStep(const PlaceStep& place, Step& step);
  absl::Status CheckStep(const FetchStep& fetch, Step& step);
  absl::Status CheckStep(const SoftmaxStep& softmax, Step& step);
  absl::Status CheckStep(const ReduceStep& reduce, Step& step);
  absl::Status CheckStep(const ScaleStep& scale, Step& step);
  absl::Status CheckStep(const TotalStep& total, Step& step);
  absl::Status CheckStep(const AttentionStep& attention, Step& step);
  absl::Status CheckStep(const AttentionGradientStep& of, Step& step);
  absl::Status CheckScores(const AttentionScores& scores, const Step& step);
  static absl::Status CheckHeads(std::string_view what, int64_t k, int64_t heads);
  void AddValue(const DenseShape& shape, MatrixLease order = nullptr);
  /// One of a matrix's nonzeros.
  void AddNonzeros(const MatrixLease& matrix, int64_t heads);
  absl::Status SetResults();
  /// What nothing but a step that makes a buffer's new value adds to is computed there, too.
  void AccumulateInPlace();
  /// Nothing uses what step `i` accumulates to but the step, as that, and a step made it.
  bool IsLastUse(const SpmmStep& spmm, size_t i) const;
  absl::StatusOr<MatrixLease> FindMatrix(const std::string& name);
  /// The value that a step uses; INVALID_ARGUMENT if none before it has that number.
  absl::StatusOr<Value*> Use(std::string_view what, size_t value);
  /// ... which must be so large; with cols < 0 of any width, which the sentence has as `any`.
  absl::Status UseAs(std::string_view what, size_t value, ElementType type, int64_t rows,
                     int64_t cols, std::string_view any = "K");
  /// ... as values of nonzeros; those of one head without gaps.
  static constexpr int64_t kAnyHeads = -1;
  absl::Status UseAsNonzeros(std::string_view what, size_t value, ElementType type, int64_t nnz,
                             int64_t heads);
  /// Those that lie in the order of a matrix's CSR are in no other.
  static MatrixLease OrderOf(const MatrixLease& matrix) {
    return matrix->caller_order() == nullptr ? nullptr : matrix;
  }

  /// Most bytes that steps' values take at once.
  size_t PeakBytes() const;
  absl::Status ChooseDevice();
  void TakePlans(DeviceKind kind);
  absl::Status PlaceOperands(WorkerSlot& slot);
  /// Steps from next_ on, until there are no more or it is somebody else's turn.
  absl::Status RunSteps(WorkerSlot& slot);
  absl::Status RunStep(size_t i, WorkerSlot& slot);
  absl::Status Run(const SpmmStep& spmm, size_t i, WorkerSlot& slot);
  absl::Status Run(const SddmmStep& sddmm, size_t i, WorkerSlot& slot);
  absl::Status Run(const SumStep& sum, size_t i, WorkerSlot& slot);
  absl::Status Run(const PlaceStep& place, size_t i, WorkerSlot& slot);
  absl::Status Run(const FetchStep& fetch, size_t i, WorkerSlot& slot);
  /// It comes from other GPUs, beside what the worker slot's stream does.
  bool IsFetched(size_t value) const;
  absl::Status Run(const SoftmaxStep& softmax, size_t i, WorkerSlot& slot);
  absl::Status Run(const ReduceStep& reduce, size_t i, WorkerSlot& slot);
  absl::Status Run(const ScaleStep& scale, size_t i, WorkerSlot& slot);
  absl::Status Run(const TotalStep& total, size_t i, WorkerSlot& slot);
  absl::Status Run(const AttentionStep& spec, size_t i, WorkerSlot& slot);
  absl::Status Run(const AttentionGradientStep& spec, size_t i, WorkerSlot& slot);
  absl::Status RunHeads(const SpmmStep& spmm, size_t i, WorkerSlot& slot);
  absl::Status RunHeads(const SddmmStep& sddmm, size_t i, WorkerSlot& slot);
  absl::Status RunRows(const ReduceStep& reduce, size_t i, WorkerSlot& slot);
  /// Plain CSR of S or of S^T.
  absl::StatusOr<std::shared_ptr<const Layout>> RowsOf(const MatrixLease& matrix, bool transposed,
                                                       WorkerSlot& slot);
  /// The same on the device, kept for what is being queued.
  absl::StatusOr<std::shared_ptr<const Layout>> PlacePattern(const MatrixLease& matrix,
                                                             bool transposed, WorkerSlot& slot);
  absl::Status PlaceScores(const AttentionScores& from, const Step& step, EdgeScores& to,
                           WorkerSlot& slot);
  /// As the step has it, with a value of the chain's, S's own, or none.
  absl::StatusOr<PlacedRows> PlaceRows(const Step& step, const std::optional<size_t>& values,
                                       bool masks, WorkerSlot& slot);
  /// Builds what worker slots of a GPU would build with one thread; null: it is there.
  Loader LoaderOfTransposed(const MatrixLease& matrix) const;
  absl::StatusOr<Resolved> ResolveStep(const Step& step);
  absl::StatusOr<PlacedSparse> PlaceMatrix(const Step& step, Resolved& plan,
                                           const std::optional<size_t>& values, bool masks,
                                           WorkerSlot& slot);
  absl::Status Multiply(Step& step, const Resolved& plan, const PlacedSparse& s,
                        const PlacedDense& first, const PlacedDense* second,
                        const PlacedDense& result, double alpha, double beta, Reduction reduction,
                        WorkerSlot& slot);
  /// Computes the results of a step; on the CPU, where that is long and `resumes`, in pieces.
  absl::Status Compute(Step& step, const Pass& pass, bool resumes, std::vector<PlacedDense> results,
                       WorkerSlot& slot);
  static absl::Status ClearPadding(std::span<const PlacedDense> results, WorkerSlot& slot);
  /// Goes on with a pass that was cut, which it may still be afterwards.
  absl::Status GoOn(Step& step, WorkerSlot& slot);
  /// A value in the order of another matrix's CSR; null: as the caller would have it.
  absl::StatusOr<PlacedDense> InOrder(size_t value, const MatrixLease& order, WorkerSlot& slot);
  absl::StatusOr<ConstDense> ViewOf(size_t value, const MatrixLease& order, WorkerSlot& slot);
  /// Memory for a value, which has it from then on.
  absl::StatusOr<PlacedDense> NewValue(size_t index, WorkerSlot& slot);
  /// The same for what step `i` makes, with what it accumulates to in it.
  absl::StatusOr<PlacedDense> NewResult(const SpmmStep& spmm, size_t i, WorkerSlot& slot);
  absl::StatusOr<PlacedDense> NewTemporary(const DenseShape& shape, WorkerSlot& slot);
  /// What step `i` used last is free for the next.
  void Recycle(size_t i);
  absl::Status Send(WorkerSlot& slot);
  /// Forgets what was computed.
  void Restart();
  /// Behind the last value that a step makes.
  size_t values_end(size_t step) const {
    return step + 1 < steps_.size() ? steps_[step + 1].value : values_.size();
  }
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
  /// Of a part: the last time that it read what the others showed; null: it has not.
  std::shared_ptr<const cuda::Event> read_;
  /// What it showed last, which the others may be reading: the value, and, if nothing here uses it
  /// any more, its memory.
  std::optional<size_t> shown_ = {};
  std::optional<PlacedDense> kept_shown_ = {};
  bool may_repeat_ = true;  ///< the step that is being queued: it has overwritten nothing
};

}  // namespace sparsed::engine
