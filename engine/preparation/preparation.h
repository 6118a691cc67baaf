// Autotuning: builds layouts and finds plans while requests are already answered from plain CSR.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/catalog/catalog.h"
#include "engine/execution/derived_patterns.h"
#include "engine/execution/executor.h"
#include "engine/memory/budget.h"
#include "engine/observer.h"
#include "engine/planning/asked.h"
#include "engine/planning/selector.h"
#include "engine/requester.h"
#include "engine/store/store.h"
#include "kernels/problem.h"

namespace sparsed::engine {

struct PreparationOptions {
  bool enabled = true;
  int workers = 1;  ///< jobs at once
  int64_t light_nonzeros =
      /// Jobs of fewer, over all signatures, have a worker besides; 0: none.
      400'000;
  int threads_per_worker = 1;  ///< OpenMP team of each; they run at low priority (nice)
  int max_queued = 4096;       ///< jobs waiting; of the tenant that has most the least important is
                               ///< dropped, with a word in its status
  std::vector<ProblemSignature> default_signatures;  ///< for uploads that name none (the type is
                                                     ///< the matrix's); empty: SpMM K = 128
  double trial_budget_ms = 2000;                     ///< for all trials of one signature
  /// Of one preparation, after which no further layout is built or tried; 0: no limit.
  double seconds = 0;
  /// That a signature is expected to serve: what a model's candidate is to gain over all of them
  /// must be more than building and trying it takes.
  double expected_requests = 20'000;
  /// Nothing is tried besides plain CSR's default kernel but what is asked for.
  bool only_asked = false;
};

/// Tenants have equal seconds of the workers, or as their weights say. Of a tenant's jobs go those
/// that clients asked for before trials before what a restart brings back, of equal ones the
/// shortest first, but that none waits for ever; one a pattern at a time. A job that is asked for
/// while another waits is merged with it. Small jobs have a worker of their own besides.
/// Thread-safe.
class Preparation {
 public:
  Preparation(const PreparationOptions& options, Catalog& catalog, Store& store, Budget& budget,
              Executor& executor, Observer& observer);
  /// Cancels and waits.
  ~Preparation();

  /// Tenants' parts of the workers, from now on.
  void SetWeights(const TenantWeights& weights);

  /// After an upload: features, candidate pipelines, layouts, trials for each signature, plans. The
  /// signatures' type is the matrix's.
  void Prepare(MatrixLease matrix, std::vector<ProblemSignature> signatures,
               Requester requester = {});
  /// A client asks for further signatures; if it names none, for those that there are plans for or
  /// that are on their way, else for the default ones. `again`: what was measured for them is
  /// forgotten and every candidate is timed anew, while the present plans serve; one that finds no
  /// memory or time for that stays. `asked`: it is built and timed beside plain CSR, whatever the
  /// rules say, and is the plan if it is the fastest; where no signature is named, for those that
  /// it serves. It is forgotten by a restart. Returns at once but for the disk. Errors:
  /// FAILED_PRECONDITION (preparation is switched off; a kernel of SpGEMM, and no product to try it
  /// on is known), INVALID_ARGUMENT (it does not serve a signature), RESOURCE_EXHAUSTED (too many
  /// jobs wait).
  absl::Status Request(MatrixLease matrix, std::vector<ProblemSignature> signatures, bool again,
                       const std::optional<Asked>& asked = std::nullopt, Requester requester = {});
  /// After a restart, once: reads back the layouts that plans use, then activates the plans, for
  /// every pattern in the catalog. What had not been finished is prepared again.
  void Restore(const StoreContents& contents);
  /// A request of an unknown signature ran: trials for it, layouts that it may need.
  void RequestTrial(MatrixLease matrix, const Problem& problem);
  /// Two patterns that no kernel was chosen for were multiplied, without a mask: trials of SpGEMM's
  /// kernels on a sample of the product. What becomes of them is kept with the left one.
  void RequestTrial(const PatternProduct& product, const Problem& problem);
  /// The matrix is multiplied with rows that several GPUs have, divided at `bounds`: the layouts of
  /// its parts. False if nobody prepares anything, or too many jobs wait.
  bool RequestRows(const MatrixLease& matrix, const Problem& problem,
                   const std::vector<int64_t>& bounds);
  /// The pattern's last matrix is gone: its job is cancelled.
  void Forget(const std::shared_ptr<Pattern>& pattern);

  int64_t pending() const;  ///< waiting or under way
  /// Which models choose what is tried, from now on.
  Selector& selector();

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsed::engine
