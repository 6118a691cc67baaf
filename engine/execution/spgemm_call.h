// SpGEMM calls: row blocks of the result, streamed as they are computed or kept as a new matrix.
// What finds no room on a GPU before the first block runs on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/catalog/pattern_product.h"
#include "engine/execution/bound_spgemm.h"
#include "engine/execution/executor_impl.h"
#include "engine/execution/kept_product.h"
#include "engine/execution/row_blocks.h"

namespace sparsed::engine {

class SpgemmCall final : public Job {
 public:
  /// Looks everything up and checks it: as Executor::Begin.
  static absl::StatusOr<std::shared_ptr<Call>> Begin(std::shared_ptr<Executor::Impl> impl,
                                                     SpgemmSpec spec,
                                                     std::shared_ptr<ResultSink> sink);
  /// `backend`: where it is to run; `mask` may be null.
  SpgemmCall(std::shared_ptr<Executor::Impl> impl, Backend& backend, SpgemmSpec spec,
             std::shared_ptr<ResultSink> sink, MatrixLease left, MatrixLease right,
             MatrixLease mask);

  absl::StatusOr<ClaimedBytes> Claim(uint32_t array, uint64_t offset, uint64_t size) override;
  bool complete() const override { return true; }

 private:
  Next Run(WorkerSlot& slot, absl::Status* end) override;
  Cost Predict() const override;
  Loader ToLoad() const override;
  void Drop() override;

  PatternProduct Patterns() const;
  /// Whether kernels are tried for such products: sums of products, all of the result.
  bool HasPlans() const { return mask_ == nullptr && problem_.semiring == Semiring::kSumProduct; }
  /// With the first of the kernels that can; OK: `blocks_` is ready to find sizes.
  absl::Status Begin(WorkerSlot& slot);
  /// Until somebody else's turn; begins to send when they are found.
  Next FindSizes(WorkerSlot& slot, absl::Status* end);
  /// On the CPU, if a GPU has no room or no kernel for it; nothing was sent yet. Else it ends.
  Next TryElsewhere(const WorkerSlot& slot, const absl::Status& why);
  /// Of the result, once the sizes of its rows are exact.
  int64_t ExactNonzeros() const;
  /// Both factors in plain CSR, those that are to be transposed if this is a worker slot of the
  /// CPU: a team does that, and no GPU waits for it. False: it must go on there.
  absl::StatusOr<bool> FindFactors(WorkerSlot& slot);
  /// A kernel, and what it reads of the factors besides plain CSR.
  struct Choice {
    const SpgemmKernel* kernel;
    std::shared_ptr<const Layout> left, right;
    FactorLayouts planned = {};  ///< where those are from
  };
  /// The plan of the pair, whose layouts may be on the disk; none without one, or if they are gone.
  struct Planned {
    const SpgemmKernel* kernel;
    FactorLayouts layouts;
  };
  std::optional<Planned> FindPlanned(const PlanTable::Found& found) const;
  /// None of them has been without room on the backend just now.
  bool MayHaveRoom(const FactorLayouts& layouts) const;
  void NoteNoRoom(const FactorLayouts& layouts);
  /// Null if there is nothing to read.
  Loader LoaderOfFactor(const std::shared_ptr<Pattern>& pattern,
                        const std::shared_ptr<LazyLayout>& layout) const;
  /// What may compute it, the first choice first: as the plan of the pair says; without one trials
  /// are asked for; then the default. UNIMPLEMENTED.
  absl::StatusOr<std::vector<Choice>> Choose() const;
  /// The factors for one of them, on the backend.
  absl::StatusOr<SpgemmFactors> PlaceFor(const Choice& choice, int threads);
  Problem ProblemOnBackend() const;
  void SendBegin();
  Next TakeBlock(ResultBlock block, absl::Status* end);
  Next End(absl::Status* end);
  /// Leaves the storing to the thread that may block.
  absl::Status Keep();
  void AddTimes();
  /// Tells the observer of a `share` of the whole product.
  void Observe(double share);
  double ShareOfNonzeros() const;
  double RooflineBytes() const;

  const std::shared_ptr<Executor::Impl> impl_;
  Backend* backend_;  ///< where it is to run
  const SpgemmSpec spec_;
  MatrixLease left_, right_;
  MatrixLease mask_;       ///< null: none
  MemoryOwner& owner_;     ///< the tenant
  const Problem problem_;  ///< on no device in particular

  std::shared_ptr<const Layout> left_csr_, right_csr_, mask_csr_;
  std::unique_ptr<RowBlocks> blocks_;        ///< once it is prepared
  Choice choice_ = {};                       ///< what computes it, once it is prepared
  std::optional<ProductSizes> found_sizes_;  ///< of an earlier request
  bool looked_for_sizes_ = false;
  bool begun_ = false;  ///< to send
  bool observed_ = false;
  std::optional<KeptProduct> kept_;  ///< none: it is streamed
};

}  // namespace sparsed::engine
