// Chains whose values lie in rows over GPUs, step by step: each GPU computes its rows of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/execution/dense_result.h"
#include "engine/execution/executor_impl.h"
#include "engine/execution/part_exchange.h"
#include "engine/execution/row_distribution.h"
#include "engine/execution/time_left.h"

namespace sparsed::engine {

/// A chain of SpMM and sums, and maybe an SDDMM as the last, a phase a step: a part for each GPU,
/// all of which end before the next phase begins, because they read each other's rows; or, where
/// the GPUs read each other's memory and what each has of all matrices is known, a part for each
/// GPU that runs all steps. Where it is not known yet what each GPU has of a step's matrix, a phase
/// before that finds out. A part multiplies with the rows that its GPU has while those that it
/// fetches are on their way. Used by one thread at a time, but Release.
class RowPhases {
 public:
  ~RowPhases();

  /// Looks everything up, as Executor::Begin; `held` are the operands. Null: one device is to
  /// compute all, because of an operation, an operand or a result that does not lie in rows, or
  /// shapes that do not fit, of which a call of all of it speaks.
  static absl::StatusOr<std::unique_ptr<RowPhases>> Begin(
      const std::shared_ptr<Executor::Impl>& impl, const ChainSpec& spec,
      const std::vector<HeldDenseLease>& held);

  /// After all parts of the phase before ended well, the slowest with `took`: how many the next
  /// has; 0: all is computed.
  absl::StatusOr<size_t> Next(const std::vector<StepEnd>& took = {});
  /// They are all steps at once: each GPU reads what its peers have computed as soon as that is
  /// written (FetchStep). Null: they are a phase.
  std::shared_ptr<PartExchange> exchange() const;
  /// Goes on step by step, from the first one, after parts of all steps failed.
  void GoApart();
  /// Begins one of them.
  absl::StatusOr<std::shared_ptr<Call>> BeginPart(size_t i, std::shared_ptr<ResultSink> sink);

  /// Of the first result.
  const DenseShape& shape() const { return values_[spec_.results[0].value].shape; }
  /// After the last phase. What is to be published; none: the only result is sent.
  const std::vector<std::shared_ptr<BlockResults>>& results() const { return published_; }
  /// The result, the only one, is to be sent, or is of nonzeros: its rows are to be brought
  /// together on one GPU.
  bool gathers() const;
  /// That.
  ChainSpec Gathered() const;
  /// What each step did.
  std::vector<StepEnd> TakeSteps() { return std::move(steps_); }
  /// For people: what it exchanged, and what it had to cut.
  std::string Describe() const;
  /// Buffers may be written by others. Not while a part runs.
  void Release();

 private:
  struct Value {
    DenseShape shape;
    HeldDenseLease held;             ///< an operand
    std::vector<int64_t> bounds;     ///< empty: known when it is computed
    std::vector<DenseBlock> blocks;  ///< once it is computed
    size_t last_use = 0;             ///< a step, or behind all
    std::optional<size_t> result = {};
    MatrixLease nonzeros = nullptr;  ///< whose it has a value for each of
  };
  class Derive;
  struct Together;
  /// What a phase before a step's finds out.
  struct Derived;

  RowPhases(std::shared_ptr<Executor::Impl> impl, ChainSpec spec);

  // Of Begin. False: not in rows.
  absl::StatusOr<bool> AddOperands(const std::vector<HeldDenseLease>& held);
  absl::StatusOr<bool> AddStep(size_t i);
  absl::StatusOr<bool> AddStep(const SpmmStep& spmm);
  absl::StatusOr<bool> AddStep(const SddmmStep& sddmm);
  bool AddStep(const SumStep& sum);
  absl::StatusOr<bool> AddResults();
  absl::StatusOr<MatrixLease> FindMatrix(const std::string& name);

  /// A multiplication with a matrix, whose rows are divided for it.
  struct Product {
    MatrixLease matrix;
    size_t b = 0;  ///< whose rows the matrix's columns name
    Problem problem;
  };
  /// None: the step is a sum.
  std::optional<Product> ProductOf(const ChainStep& step) const;
  std::shared_ptr<const ActivePlan> PlanOf(const Product& product) const;
  /// The parts have plans. Asks for layouts that they lack, as what was to build them may have been
  /// dropped.
  bool HasPlans(const Product& product, const std::shared_ptr<const ActivePlan>& plan,
                RowDistribution& rows) const;
  /// All that is needed for all steps is known, and the GPUs read each other's memory.
  bool CanRunTogether();
  bool BeginTogether();
  ChainSpec PartTogether(size_t i);
  void EndTogether(const std::vector<StepEnd>& took);
  /// Others may.
  void LeaveTogether();
  size_t made() const { return spec_.operands.size() + step_; }
  /// Makes ready for the step's parts.
  absl::Status Prepare();
  /// A value's rows as they are needed: an operand's are cut out of the whole if they lie
  /// otherwise.
  std::vector<DenseBlock> BlocksOf(size_t value, const std::vector<int64_t>& bounds);
  ChainSpec NewPart(size_t i) const;
  ChainSpec PartOf(const SpmmStep& spmm, size_t i);
  ChainSpec PartOf(const SddmmStep& sddmm, size_t i);
  /// What it fetches, as an operand of the part.
  OperandSpec FetchedFor(size_t i, const std::vector<DenseBlock>& of) const;
  ChainSpec PartOf(const SumStep& sum, size_t i);

  const std::shared_ptr<Executor::Impl> impl_;
  const ChainSpec spec_;
  const TimeLeft time_;
  std::map<std::string, MatrixLease> matrices_;
  std::vector<Value> values_;
  std::vector<std::optional<DenseWrite>> writes_;  ///< of results, until they are computed
  std::vector<std::shared_ptr<BlockResults>> published_;

  // Of the phase.
  size_t step_ = 0;
  bool runs_ = false;  ///< parts of the step were begun
  std::shared_ptr<Derived> derived_;
  std::shared_ptr<RowDistribution> rows_;                       ///< the last product's
  std::pair<const Pattern*, bool> rows_of_ = {nullptr, false};  ///< whether of the transpose
  std::vector<RowDistribution::Matrices> part_matrices_;
  std::shared_ptr<BlockResults> out_;
  std::vector<std::vector<DenseBlock>> in_;  ///< for each part's operands: blocks by part

  std::unique_ptr<Together> together_;  ///< null: phases
  bool apart_ = false;                  ///< they are to stay that
  bool at_once_ = false;                ///< all steps ran so

  std::vector<StepEnd> steps_;  ///< so far
  int64_t exchanged_bytes_ = 0, cut_bytes_ = 0;
};

}  // namespace sparsed::engine
