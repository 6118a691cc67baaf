// SpMM and SDDMM calls: dense operands in, one kernel run, a dense result out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/execution/executor_impl.h"
#include "engine/execution/operand.h"

namespace sparsed::engine {

/// Runs on the backend that it was given; what a GPU has no room or no kernel for runs there in
/// slabs, or moves to the CPU.
class DenseCall final : public Job {
 public:
  /// Looks everything up, checks it and reserves: as Executor::Begin.
  static absl::StatusOr<std::shared_ptr<Call>> Begin(std::shared_ptr<Executor::Impl> impl,
                                                     const SpmmSpec& spec,
                                                     std::shared_ptr<ResultSink> sink);
  static absl::StatusOr<std::shared_ptr<Call>> Begin(std::shared_ptr<Executor::Impl> impl,
                                                     const SddmmSpec& spec,
                                                     std::shared_ptr<ResultSink> sink);
  DenseCall(std::shared_ptr<Executor::Impl> impl, Backend& backend, std::string tenant,
            std::shared_ptr<ResultSink> sink, MatrixLease matrix, const Problem& problem);

  absl::StatusOr<std::byte*> Claim(uint32_t array, uint64_t offset, uint64_t size) override;
  absl::Status Commit() override;
  bool complete() const override;
  std::string Missing() const override;
  size_t announced() const override;
  size_t counted() const override;

 private:
  Next Run(Lane& lane, absl::Status* end) override;
  void Drop() override;
  Loader ToLoad() const override;

  template <typename Spec>
  static absl::StatusOr<std::shared_ptr<Call>> BeginOf(std::shared_ptr<Executor::Impl> impl,
                                                       const Spec& spec,
                                                       std::shared_ptr<ResultSink> sink);
  absl::Status Set(const SpmmSpec& spec);
  absl::Status Set(const SddmmSpec& spec);
  /// Resolves one operand and prepares for its bytes. `cols` is -1 where the operand itself defines
  /// it.
  absl::Status AddOperand(std::string_view what, const OperandSpec& spec, int64_t rows,
                          int64_t cols);
  /// Where the result goes.
  absl::Status SetResult(const std::string& held, DenseShape shape);
  /// RESOURCE_EXHAUSTED if its streamed operands and (if it is `new_result`) its result together
  /// are more than the host ever has; on a GPU, parts may do.
  absl::Status MayFit(bool new_result) const;

  Problem ProblemOn(DeviceKind device) const;
  /// Its plan on the lane's device.
  absl::StatusOr<Resolved> FindPlan(const Lane& lane) const;
  absl::StatusOr<PlacedSparse> PlaceMatrix(const Resolved& plan, Lane& lane);
  /// RESOURCE_EXHAUSTED or UNIMPLEMENTED before anything was sent: it runs elsewhere instead.
  absl::Status RunWhole(Lane& lane);
  /// Likewise, its operands being on the host.
  absl::Status RunInSlabs(Lane& lane);
  absl::Status MoveToHost();
  /// Memory for the result, with C's old value in it if beta asks for it.
  absl::StatusOr<PlacedDense> NewResult(Lane& lane);
  /// SDDMM's kernels write one value after the other, in canonical CSR's order: where the result is
  /// to have another order, or gaps, that is elsewhere first.
  bool writes_in_order(const PlacedDense& result) const {
    return problem_.operation != Operation::kSddmm ||
           (matrix_->caller_order() == nullptr && result.shape.leading_dimension <= 1);
  }
  MemoryUse result_use() const { return keep_result_ ? MemoryUse::kBuffers : MemoryUse::kRequests; }

  void SendBegin(const std::string& plan);
  /// Sends the result, or publishes it; it is where the kernels of `from` wrote it.
  absl::Status Send(PlacedDense result, Backend& from, Lane& lane);
  void AddKernelTime(double milliseconds);
  /// Tells the observer of a product that `kernel` computed.
  void Observe(std::string_view kernel);

  const std::shared_ptr<Executor::Impl> impl_;
  Backend& backend_;  ///< where it begins
  MatrixLease matrix_;
  const Problem problem_;  ///< on no device in particular; its K is known with the operands
  double alpha_ = 1, beta_ = 0;
  bool unscaled_ = false;
  int64_t k_ = 0;
  std::vector<Operand> operands_;       ///< SpMM: B, and C's old value; SDDMM: A, B
  StreamedOperand* claimed_ = nullptr;  ///< by the last Claim
  DenseShape result_shape_;             ///< where the result goes; SetResult alone sets it
  DenseWrite destination_;
  bool keep_result_ = false;
  bool sent_ = false;  ///< something of the result
};

}  // namespace sparsed::engine
