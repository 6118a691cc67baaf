// Calls whose operands are distributed over GPUs by columns or by rows: each GPU computes with its
// own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/execution/dense_result.h"
#include "engine/execution/executor_impl.h"
#include "engine/execution/row_phases.h"

namespace sparsed::engine {

/// A call for each block, on a GPU of its own, and one end. Blocks of columns are multiplied with
/// all of S: SpMM, sums, reductions over rows and steps of several heads have nothing to exchange.
/// SDDMM adds up a value for each nonzero and GPU, on one of them. Of blocks of rows see RowPhases:
/// one group of parts after the other. The parts are calls as any other: each waits for its turn,
/// and is its tenant's, on its own GPU.
class DistributedCall final : public Call, public std::enable_shared_from_this<DistributedCall> {
 public:
  // As Executor::Begin. Null where one device is to compute all: no operand is distributed, or the
  // request has operands or results elsewhere than in buffers, or steps that are not computed so; a
  // buffer that is distributed is put together for it then, on the host.
  static absl::StatusOr<std::shared_ptr<Call>> Begin(const std::shared_ptr<Executor::Impl>& impl,
                                                     const SpmmSpec& spec,
                                                     const std::shared_ptr<ResultSink>& sink);
  static absl::StatusOr<std::shared_ptr<Call>> Begin(const std::shared_ptr<Executor::Impl>& impl,
                                                     const SddmmSpec& spec,
                                                     const std::shared_ptr<ResultSink>& sink);
  static absl::StatusOr<std::shared_ptr<Call>> Begin(const std::shared_ptr<Executor::Impl>& impl,
                                                     const ChainSpec& spec,
                                                     const std::shared_ptr<ResultSink>& sink);
  DistributedCall(std::shared_ptr<Executor::Impl> impl, std::shared_ptr<ResultSink> sink)
      : impl_(std::move(impl)), sink_(std::move(sink)) {}

  /// All operands are held.
  absl::StatusOr<ClaimedBytes> Claim(uint32_t array, uint64_t offset, uint64_t size) override;
  bool complete() const override { return true; }
  void Submit() override;
  void Cancel() override { Fail(absl::CancelledError("the request was cancelled")); }
  void Fail(absl::Status status) override;
  void Release(int64_t /*bytes*/) override {}

 private:
  class Part;
  class Last;
  using Calls = std::vector<std::shared_ptr<Call>>;
  using BeginCall =
      std::function<absl::StatusOr<std::shared_ptr<Call>>(std::shared_ptr<ResultSink>)>;
  using BeginPart =
      std::function<absl::StatusOr<std::shared_ptr<Call>>(size_t i, std::shared_ptr<ResultSink>)>;

  /// Begins `count` parts. The call; null if one of them says that the request is wrong, which one
  /// call for all of it says in the right words.
  static absl::StatusOr<std::shared_ptr<Call>> Begun(std::shared_ptr<DistributedCall> call,
                                                     size_t count, const BeginPart& begin);
  /// Of a chain whose operands lie in rows, or of an SpMM or SDDMM; null as above. `name`: of what
  /// is sent.
  static absl::StatusOr<std::shared_ptr<Call>> BeginRows(
      const std::shared_ptr<Executor::Impl>& impl, const ChainSpec& spec,
      std::vector<HeldDenseLease> held, bool is_chain, std::string_view name,
      const std::shared_ptr<ResultSink>& sink);
  static absl::StatusOr<std::shared_ptr<Call>> BeginInRows(
      const std::shared_ptr<Executor::Impl>& impl, const SpmmSpec& spec, const HeldDenseLease& b,
      const std::shared_ptr<ResultSink>& sink);
  static absl::StatusOr<std::shared_ptr<Call>> BeginInRows(
      const std::shared_ptr<Executor::Impl>& impl, const SddmmSpec& spec, const HeldDenseLease& a,
      const HeldDenseLease& b, const std::shared_ptr<ResultSink>& sink);
  /// Begins that many parts; what was begun of them has ended, or ends unheard, where one fails.
  absl::Status BeginParts(size_t count, const BeginPart& begin);
  /// Begins the next phase, if there is one and all is well; else the end is `*end`.
  bool GoOn(CallEnd* end);
  /// What it waits for now.
  Calls Waiting();
  /// Has the parts that run end with `why`.
  void StopParts(const absl::Status& why);
  void PartBegan(const std::string& plan);
  void PartEnded(CallEnd end);
  /// After the last part: with its own last call, if all is well, or with the end.
  void Finish(CallEnd end);
  void LastEnded(CallEnd end);
  void End(CallEnd end);

  const std::shared_ptr<Executor::Impl> impl_;
  const std::shared_ptr<ResultSink> sink_;
  // Set before it begins; looked at by who ends it.
  std::vector<HeldDenseLease> used_;                    ///< operands: they do not expire meanwhile
  std::vector<std::shared_ptr<BlockResults>> results_;  ///< what is published in the end
  BeginCall
      begin_last_;   ///< what makes one result of all parts' and sends it; null: nothing is left
  CallBegin begin_;  ///< but for the plan
  size_t gpus_ = 0;
  bool is_trial_ = false;
  std::unique_ptr<RowPhases> rows_;  ///< null: its parts are one group
  bool is_chain_ = true;
  std::string last_name_ = "values";  ///< of what the last call sends

  Mutex mutex_;
  Calls calls_ ABSL_GUARDED_BY(mutex_);
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;    ///< parts of the group that was begun last
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;  ///< of them
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<PartExchange> exchange_ ABSL_GUARDED_BY(mutex_);  ///< of the group; may be null
  std::string plan_ ABSL_GUARDED_BY(mutex_);                        ///< of one of them
  CallEnd end_ ABSL_GUARDED_BY(mutex_);         ///< of the slowest, with the first error
  CallTimings before_ ABSL_GUARDED_BY(mutex_);  ///< of the groups before
};

}  // namespace sparsed::engine
