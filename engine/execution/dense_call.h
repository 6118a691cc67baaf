// SpMM and SDDMM calls: dense operands in, one kernel run, a dense result out.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/execution/dense_result.h"
#include "engine/execution/executor_impl.h"
#include "engine/execution/piece_run.h"
#include "engine/execution/request_operands.h"

namespace sparsed::engine {

/// Runs on the backend that it was given; what a GPU has no room or no kernel for runs there in
/// column blocks, or moves to the CPU.
class DenseCall final : public Job {
 public:
  /// Looks everything up, checks it and reserves: as Executor::Begin.
  static absl::StatusOr<std::shared_ptr<Call>> Begin(std::shared_ptr<Executor::Impl> impl,
                                                     const SpmmSpec& spec,
                                                     std::shared_ptr<ResultSink> sink);
  static absl::StatusOr<std::shared_ptr<Call>> Begin(std::shared_ptr<Executor::Impl> impl,
                                                     const SddmmSpec& spec,
                                                     std::shared_ptr<ResultSink> sink);
  DenseCall(std::shared_ptr<Executor::Impl> impl, std::string tenant,
            std::shared_ptr<ResultSink> sink, MatrixLease matrix, const Problem& problem);

  absl::StatusOr<ClaimedBytes> Claim(uint32_t array, uint64_t offset, uint64_t size) override;
  bool complete() const override;
  std::string Missing() const override;
  size_t announced() const override;
  size_t counted() const override;

 private:
  class Joined;

  Next Run(WorkerSlot& slot, absl::Status* end) override;
  /// A narrow SpMM joins others of the same matrix, values and options: their operands side by side
  /// are one.
  Joint JoinsAs() const override;
  void RunTogether(WorkerSlot& slot, std::span<Job* const> batch, const std::atomic<bool>* stop,
                   const Ended& ended) override;
  void Drop() override;
  Loader ToLoad() const override;

  template <typename Spec>
  static absl::StatusOr<std::shared_ptr<Call>> BeginOf(std::shared_ptr<Executor::Impl> impl,
                                                       const Spec& spec,
                                                       std::shared_ptr<ResultSink> sink);
  absl::Status Set(const SpmmSpec& spec);
  absl::Status Set(const SddmmSpec& spec);
  /// Finds one operand and checks it. `cols` is -1 where the operand itself defines it.
  absl::Status AddOperand(std::string_view what, const OperandSpec& spec, int64_t rows,
                          int64_t cols);
  /// Those of S that come with the request, if they do.
  absl::Status SetValues(const std::optional<OperandSpec>& spec);
  /// Where the result goes.
  absl::Status SetResult(const ResultSpec& spec, DenseShape shape);
  /// INVALID_ARGUMENT if the result would overwrite an operand; C's old value it may replace.
  absl::Status CheckApart();
  /// Takes the plan and, if none is given, by it and the operands, the device that it begins on.
  absl::Status ChooseDevice(const std::optional<DeviceId>& given);
  /// The device is its queue's. INVALID_ARGUMENT if an operand or the result is not in memory that
  /// is shared there.
  absl::Status TakeQueue();
  /// RESOURCE_EXHAUSTED if its streamed operands and (if that is not one of them) its result
  /// together are more than the host ever has; on a GPU, parts may do.
  absl::Status MayFit() const;

  /// It is to run on devices of that kind, by the plan that it is there now.
  void TakePlan(DeviceKind device);
  /// Where there is no room for the plan's layout, and that is not for the operands' sake, plain
  /// CSR; `plan` is of that then, and later requests take it at once for a while.
  absl::StatusOr<PlacedSparse> PlaceMatrix(Resolved& plan, WorkerSlot& slot);
  absl::StatusOr<PlacedSparse> PlaceIn(const std::shared_ptr<const Layout>& layout,
                                       WorkerSlot& slot);
  /// The request's own, in the order of a placed layout.
  absl::StatusOr<std::shared_ptr<const Array>> PlaceOwnValues(const Layout& layout,
                                                              WorkerSlot& slot);
  Cost Predict() const override;
  bool IsOneStep() const override { return true; }
  /// Multiplications, and what requests that take equally long for each have in common.
  double Work() const;
  uint64_t Kind() const;
  /// Multiplications on the CPU from which on it is cut.
  double LongWork() const;
  /// Of the GPU that it is to run on, if nothing else ran there, as far as is known before: not by
  /// what such requests took, which is long where others were in their way. With that many columns
  /// in the place of its own.
  double SecondsAlone(int64_t columns) const;
  /// RESOURCE_EXHAUSTED or UNIMPLEMENTED before anything was sent: it runs elsewhere instead. OK
  /// with `whole_` there: it is cut, and GoOn goes on, on a worker slot of the same device.
  absl::Status RunWhole(Resolved& plan, WorkerSlot& slot);
  absl::Status GoOn(WorkerSlot& slot);
  /// Makes `whole_`.
  absl::Status PlaceWhole(Resolved& plan, WorkerSlot& slot);
  absl::Status RunKernel(WorkerSlot& slot);
  /// Until the end, or until others have the worker slot.
  absl::Status RunPieces(WorkerSlot& slot);
  /// Binds all of it, and hands it to its queue.
  absl::Status Enqueue(Resolved& plan, WorkerSlot& slot);
  /// Likewise, its operands being on the host.
  absl::Status RunInColumnBlocks(Resolved& plan, WorkerSlot& slot);
  /// Memory for the result, or the caller's.
  absl::StatusOr<PlacedDense> EmptyResult(WorkerSlot& slot);
  /// With C's old value in it if beta asks for it.
  absl::StatusOr<PlacedDense> NewResult(WorkerSlot& slot);
  /// SDDMM's kernels write one value after the other, in canonical CSR's order: where the result is
  /// to have another order, or gaps, that is elsewhere first.
  bool writes_in_order(const PlacedDense& result) const {
    return problem_.operation != Operation::kSddmm ||
           (matrix_->caller_order() == nullptr && result.shape.leading_dimension <= 1);
  }
  MemorySource& host_memory() { return impl_->budget.Source(MemoryUse::kRequests, &owner_); }

  void SendBegin(const std::string& plan);
  /// Sends the result, or publishes it; it is where the kernels of `from` wrote it.
  absl::Status Send(PlacedDense result, Backend& from, WorkerSlot& slot);
  void AddKernelTime(double milliseconds);
  /// Tells the observer of a product that `kernel` computed, of this call or of a batch.
  void Observe(const Problem& problem, std::string_view kernel, uint64_t nanoseconds);

  /// A product that is placed, and how far it is.
  struct Whole {
    std::string plan;
    PlacedSparse s;
    PlacedDense first, second;
    PlacedDense result,
        written;  ///< the same, or where the kernel writes before it is put in order
    std::shared_ptr<const Array> order;  ///< of values in the caller's order
    BoundRun run;
    std::optional<PieceRun> pieces = {};  ///< none: it is not cut
    Buffer workspace = {};                ///< of what is cut: its own
  };

  const std::shared_ptr<Executor::Impl> impl_;
  MemoryOwner& owner_;  ///< the tenant
  MatrixLease matrix_;
  Problem problem_;        ///< its K is known with the operands, its device with the plan
  PlanTable::Found plan_;  ///< as it was when the call began, or moved to a device of another kind
  double alpha_ = 1, beta_ = 0;
  bool unscaled_ = false;
  /// SpMM: B, and C's old value; SDDMM: A, B; and of both, the last, S's values.
  RequestOperands operands_;
  bool own_values_ = false;  ///< S's come with the request
  DenseResult result_;
  bool in_place_ = false;         ///< it goes where C's old value is
  bool sent_ = false;             ///< something of the result
  std::unique_ptr<Whole> whole_;  ///< from when it is placed until it is computed
  QueueSpec queue_;
  /// By when it is to begin, in a queue.
  std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::time_point::max();
};

}  // namespace sparsed::engine
