// One preparation: what is done for a pattern, from features to plans, on a worker's thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/catalog/catalog.h"
#include "engine/execution/derived_patterns.h"
#include "engine/execution/executor.h"
#include "engine/execution/gpu_backend.h"
#include "engine/memory/budget.h"
#include "engine/observer.h"
#include "engine/planning/asked.h"
#include "engine/planning/candidates.h"
#include "engine/planning/selector.h"
#include "engine/preparation/layout_builder.h"
#include "engine/preparation/preparation.h"
#include "engine/preparation/progress.h"
#include "engine/preparation/spgemm_trial.h"
#include "engine/preparation/trial.h"
#include "engine/store/store.h"
#include "kernels/cuda/build/build.h"

namespace sparsed::engine {

/// What jobs work with; outlives them.
struct JobModules {
  Catalog& catalog;
  Store& store;
  Budget& budget;
  Executor& executor;
  Observer& observer;
  const Selector& selector;
  const PreparationOptions& options;
  /// Held while a layout that products read is published (added, stored, named by a plan) and while
  /// one is found to be unused and dropped: jobs of several patterns do so with one pattern's.
  Mutex& publishing;
};

/// What the store has of a pattern's preparation.
struct StoredPreparation {
  std::vector<LayoutRecord> layouts;
  std::vector<PlanRecord> plans;
  PreparationRecord record;
  std::set<ProblemSignature> foreign;  ///< whose plans were chosen by what another model measured
};

/// Pairs that SpGEMM's kernels are to be tried on, with the right pattern, unless that is deleted
/// meanwhile.
using Pairs = std::map<std::pair<ProblemSignature, PatternPair>, std::weak_ptr<Pattern>>;

/// What clients want tried, by signature.
using AskedOf = std::map<ProblemSignature, std::set<Asked>>;

/// Products by rows over several GPUs: problems, and the bounds of the operand's rows.
using ProductsInRows = std::set<std::pair<ProblemSignature, std::vector<int64_t>>>;

/// Those of the pattern that were measured for the signature and whose right pattern is still
/// there.
Pairs MeasuredPairs(const Catalog& catalog, const Pattern& pattern,
                    const ProblemSignature& signature);

/// The model of a kind's devices (Executor::model).
using ModelOf = std::function<const std::string&(DeviceKind)>;

/// Gives patterns (by hash) back what was measured of them here and decided. What another model of
/// processor, card, driver or kernels measured is left out: the signatures, by the pattern's hash,
/// that nothing else is known of.
std::map<std::string, std::set<ProblemSignature>> RestoreMeasurements(
    const StoreContents& contents, const std::map<std::string, std::shared_ptr<Pattern>>& patterns,
    const ModelOf& model);

/// Gives a pattern the stored layouts that only products read, of which nothing is read yet: a job
/// of any pattern may want them, before this one's is restored.
void RestoreProductLayouts(const JobModules& modules, Pattern& pattern,
                           const StoredPreparation& stored);

/// Below this many nonzeros of both operands together all of SpGEMM's kernels end before a trial
/// would pay.
inline constexpr int64_t kLeastPairNonzeros = 10'000;

/// A gain below this is not told from noise, nor worth the memory of a layout.
inline constexpr double kLeastSpeedup = 1.03;

/// By more than what two decimals show.
inline bool IsFaster(double speedup) { return speedup >= 1.005; }
/// "1.62x faster", "1.04x slower", "as fast".
std::string Compared(double speedup);

inline std::string Sentence(const absl::Status& status) { return std::string(status.message()); }

/// Nothing was found out: it is cancelled, or the device is lost.
inline bool EndsJob(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsUnavailable(status);
}

/// Used by one thread. What it publishes is usable at once: a layout of the CPU has the values
/// of every matrix of the pattern before a plan names it; one that products read gets those of a
/// matrix with its first product.
class PatternJob {
 public:
  /// Signatures in `again` are tried whatever is known of them; that is forgotten. What is `asked`
  /// for is tried for its signature, beside all else or, where the signature has its plan, beside
  /// what serves.
  PatternJob(const JobModules& modules, std::shared_ptr<Pattern> pattern,
             std::set<ProblemSignature> again, AskedOf asked, const std::atomic<bool>& stop);

  /// Reads back the layouts that stored plans use and activates the plans. A layout that is damaged
  /// is built again; one that finds no memory stays stored, and plain CSR serves meanwhile. Layouts
  /// that no plan uses are dropped. Returns the signatures whose plans are lost. Errors: CANCELLED,
  /// DATA_LOSS (the pattern itself).
  absl::StatusOr<std::set<ProblemSignature>> Restore(const StoredPreparation& stored);
  /// Computes the pattern's features, tries candidates for each signature, makes the fastest its
  /// plan, keeps what plans use and stores it. What fails for one candidate is a note. Errors:
  /// CANCELLED, DATA_LOSS (the pattern, or a matrix's values).
  absl::Status Prepare(const std::set<ProblemSignature>& signatures);

  /// Chooses a kernel for the product of the pattern with each of the others: the fastest of those
  /// that the rules don't rule out, on a sample, or what was measured before a restart. What fails
  /// for one of the others is a note. Errors: as Prepare.
  absl::Status TryPairs(const Pairs& pairs);

  /// Builds the layouts of the parts that GPUs have of the matrix. Want of memory is a note.
  /// Errors: as Prepare.
  absl::Status BuildRows(const ProductsInRows& rows);

  /// Returns `status`, how a part of it ended; if it says that the card is lost, so that is from
  /// now on. What the disk says tells nothing of the card.
  absl::Status Checked(absl::Status status);

  /// What plans and decisions do not say, for people: what failed. Usually empty.
  std::string Detail() const;
  /// What came of it, for people: what each plan of the pattern brings, and Detail().
  std::string Outcome() const;
  /// This job has something to say besides the plans.
  bool has_notes() const { return !notes_.empty(); }
  /// Of this job and earlier ones of the pattern.
  double seconds() const { return progress_.seconds(); }

 private:
  /// A layout and a kernel that were tried.
  struct Tried {
    std::shared_ptr<const Layout> layout;
    std::string kernel;
    TrialTimes times;
    std::string model = {};  ///< that had it tried; empty: none
    double expected_speedup = 0;
  };
  /// The search for the plan of one signature: its trials, and what became of the candidates.
  struct SignatureSearch {
    MatrixLease matrix;
    Plan plain;  ///< the default: the signature, plain CSR and its first kernel
    std::unique_ptr<Trial> trial;
    int64_t k = 0;                 ///< that is timed
    double share_ms = 0;           ///< of the signature's budget, for each contender
    bool short_of_memory = false;  ///< something could not be tried, not as asked, or not be kept
    bool short_of_time = false;    ///< something was not tried
    bool only_asked = false;       ///< the signature has its plan: no other candidate is tried
    double baseline_ms = 0;        ///< 0: not run yet
    double requests = 0;           ///< that a promised candidate is to pay over (ExpectedRequests)
    std::optional<SharedError> shared_error;  ///< of the model's estimates
    std::optional<Tried> best;                ///< none: plain CSR
    std::string uncertain;  ///< of a contender that may have won by accident: what happened
    std::vector<Decision> decisions;
  };

  MatrixLease MatrixOf(ElementType type) const { return MatrixOf(*pattern_, type); }
  MatrixLease MatrixOf(const Pattern& pattern, ElementType type) const;
  /// What becomes of a signature of GPUs while none serves: nothing, or UNAVAILABLE if all are
  /// lost.
  absl::Status WithoutCard() const;
  /// Where a signature is tried; of a GPU's, if one serves.
  Backend& BackendOf(const ProblemSignature& signature) const {
    return signature.device == DeviceKind::kCuda ? *gpu_ : modules_.executor.backend({});
  }
  /// What builders of this job may use.
  BuildContext MakeContext();
  absl::Status LoadCsr();
  /// Unless the pattern has them; want of memory is a note.
  absl::Status FindFeatures();

  /// Of a signature for which plain CSR serves without a trial: why, as its plan says; else empty.
  std::string_view WhyNothingIsTried(const ProblemSignature& signature) const;
  /// `last`: no later signature will want the layouts that lose.
  absl::Status TrySignature(const ProblemSignature& signature, bool last);
  absl::Status TryCandidates(SignatureSearch& search, bool last);
  /// Runs one that the pattern has.
  absl::Status TryExisting(SignatureSearch& search, const Pattern::BuiltEntry& entry,
                           std::string_view reason, const Promise* promise = nullptr);
  /// Runs what a model promises, what gains most first, until nothing pays; besides what clients
  /// ask for, and what serves now.
  absl::Status TryEstimated(SignatureSearch& search, std::vector<Candidate> candidates,
                            const std::vector<Pattern::BuiltEntry>& existing, bool last);
  Worth WorthOf(const SignatureSearch& search, const Candidate& candidate,
                const std::vector<Pattern::BuiltEntry>& existing) const;
  /// Runs one that a model promises, after building it unless it is there.
  absl::Status TryPromising(SignatureSearch& search, const Candidate& candidate,
                            const std::vector<Pattern::BuiltEntry>& existing, bool last);
  /// Builds and runs one that the rules do not rule out.
  absl::Status TryCandidate(SignatureSearch& search, const Candidate& candidate, bool last);
  /// Runs the layout's kernels; those of plain CSR except the baseline's own. `reason` is why, for
  /// the decision, `only` the one kernel that is run; empty: all, or those
  /// of `promise`.
  absl::Status TryLayout(SignatureSearch& search, const std::shared_ptr<const Layout>& layout,
                         double build_seconds, const std::string& reason,
                         std::string_view only = "", const Promise* promise = nullptr);
  /// The baseline's times of the signature's trials differ by more than this contender gains.
  bool IsOfBusyMachine(const SignatureSearch& search, const std::string& pipeline,
                       const std::string& kernel, const TrialTimes& times) const;
  absl::Status TryBaseline(SignatureSearch& search);
  using PairKey = Pairs::key_type;
  /// Those whose plans read layouts that are gone: however the job ends, the default serves until
  /// they are there again, and for a while nobody asks for them.
  std::set<PairKey> SuspendLost(const Pairs& pairs);
  absl::Status TryPair(const ProblemSignature& signature, const PatternProduct& pair);
  /// A factor of a pair as its kernels take it.
  struct Factor {
    std::shared_ptr<Pattern> pattern;
    MatrixLease matrix;
    bool transposed = false;
    SpgemmFactor operand;                      ///< in plain CSR
    std::shared_ptr<const Features> features;  ///< null: not known
    bool short_of_memory = false;              ///< that is why
  };
  absl::StatusOr<Factor> LoadFactor(const ProblemSignature& signature, MatrixLease matrix,
                                    bool transpose);
  /// The builder of layouts for a factor of the pair that is tried.
  absl::StatusOr<LayoutBuilder*> BuilderOf(const std::shared_ptr<Pattern>& pattern);
  /// The factor as the kernel wants it for a trial, in a layout of the pipeline if it reads one:
  /// what its pattern has, or a new one, whose seconds are added. FAILED_PRECONDITION: the pipeline
  /// brings nothing for it; RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, and what ends the job.
  absl::StatusOr<SpgemmFactor> FormatFactor(const ProblemSignature& signature, const Factor& factor,
                                            const std::string& pipeline, double& seconds);
  /// Times one candidate of a pair, in a layout of its pipeline or, without one, of the pipeline
  /// that the kernel has for both. `pipeline` and `seconds` of building become what was tried.
  absl::StatusOr<TrialTimes> TryKernel(const ProblemSignature& signature,
                                       const Candidate& candidate, const Factor& left,
                                       const Factor& right, SpgemmTrial& trial, double budget_ms,
                                       std::string& pipeline, double& seconds);
  /// Runs the candidates turn by turn with the plan's kernel, the default, and notes what becomes
  /// of each; `for_now`: not all could be, for want of memory or time. Errors: what ends the job,
  /// or the default's own.
  absl::Status TryKernels(const Plan& plan, const Factor& left, const Factor& right,
                          std::vector<Candidate> candidates, SpgemmTrial& trial, bool& for_now);
  /// Each kernel for the plan's pair was measured or decided on: by an older program, maybe not.
  bool KnowsAllKernels(const Plan& plan) const;
  /// Makes the fastest that is measured of a pair its plan, with the layouts that it reads. False
  /// if nothing is. `provisional`: not all could be tried, for want of memory or time. Errors: what
  /// ends the job.
  absl::StatusOr<bool> ActivateFastest(const ProblemSignature& signature,
                                       const PatternProduct& pair, bool provisional = false);
  /// A layout that a pattern lacked, in memory that may last.
  struct NewLayout {
    std::shared_ptr<Pattern> pattern;
    std::shared_ptr<const Layout> layout;
    double seconds = 0;
  };
  /// What the plan reads and the pair's patterns lack.
  absl::StatusOr<std::vector<NewLayout>> BuildFactorLayouts(const Plan& plan,
                                                            const PatternProduct& pair);
  absl::Status BuildFactorLayout(const std::shared_ptr<Pattern>& pattern,
                                 const std::string& pipeline, std::vector<NewLayout>& built);
  /// Gives the patterns what they still lack, stores it and activates the plan.
  void Publish(const Plan& plan, const std::vector<NewLayout>& layouts);
  /// Of plain CSR, in all turns so far.
  void RecordBaseline(SignatureSearch& search);
  /// Bytes that plain CSR's kernel must move, and does.
  double MovedForCertain(const Problem& problem) const;
  void RecordMeasurement(const SignatureSearch& search, const std::string& pipeline,
                         const std::string& kernel, const TrialTimes& times, double build_seconds);
  /// What becomes of a pipeline (`outcome`: as Observer::OnPipeline has it), and says so.
  void RecordDecision(SignatureSearch& search, const std::string& pipeline,
                      std::string_view outcome, std::string reason);
  /// Of the signature as a whole; says so, too.
  void AddNote(SignatureSearch& search, std::string what);
  /// What is asked for the signature.
  const std::set<Asked>& AskedFor(const ProblemSignature& signature) const;
  /// Nothing but that is to be tried: for the rest `found` is the plan.
  bool OnlyAsked(const ProblemSignature& signature, const PlanTable::Found& found) const;
  /// Adds the earlier decisions that still stand where only what was asked for was tried.
  void KeepEarlierDecisions(SignatureSearch& search) const;
  /// Makes the best the plan; plain CSR, if there is no memory to keep its layout.
  void Decide(SignatureSearch& search);
  /// Of SpMM, where there are several GPUs: how operands had best lie on them. Makes it part of the
  /// plan. Errors: what ends the job.
  absl::Status TryDistributions(SignatureSearch& search);
  /// Over which a candidate is to pay: what the options say, or those of an hour as they come now,
  /// whatever their K, if that is more.
  double ExpectedRequests(const ProblemSignature& signature,
                          const std::optional<PatternPair>& pair) const;
  /// Says how near the first choices of models came to the best that was measured for the
  /// signature.
  void JudgeModels(const ProblemSignature& signature, const Features* features,
                   const std::vector<Measurement>& measured);
  /// How near the others came, of all that were measured for the signature.
  std::string WhyPlain(const SignatureSearch& search) const;

  /// Stores a layout that the pattern has. Why not is a note.
  bool StoreLayout(Pattern& pattern, const Pattern::BuiltEntry& entry);
  /// Gives the pattern a layout; `for_cpu`: with the values of all its matrices, which a GPU places
  /// by itself when they are first used. RESOURCE_EXHAUSTED leaves nothing behind.
  absl::Status AddLayout(std::shared_ptr<Layout> layout, double build_seconds, bool for_cpu);
  void DropLayout(Pattern& pattern, const std::string& pipeline);
  /// A plan of the pattern reads it, or one of another that is multiplied with it.
  bool IsUsed(const Pattern& pattern, const std::string& pipeline) const;
  /// In more runs than that.
  bool IsMeasured(const Plan& plan, int runs = -1) const;
  /// From now on requests use the plan. A provisional one does not take the place of one that could
  /// not be tried again.
  void Activate(const Plan& plan);
  void DropUnusedLayouts(Pattern& pattern);
  /// If it still is the pattern's and nothing uses it, in memory and in the store.
  void DropIfUnused(Pattern& pattern, const Pattern::BuiltEntry& entry);
  void StoreOutcome(const std::set<ProblemSignature>& signatures);
  /// An older program stored none: they are found when the pattern is next prepared.
  void RestoreFeatures();
  /// Says that `plan`, which is stored, cannot be used for now.
  void Suspend(const Plan& plan);
  /// Null if it is not stored.
  static const LayoutRecord* RecordOf(const StoredPreparation& stored, const std::string& pipeline);
  /// The pattern has that layout as the store does.
  void SetDiskCopy(const StoredPreparation& stored, const std::string& pipeline);
  /// There is no room for it now: it is read when it is needed. False if it never fits, or is
  /// damaged. `description` becomes its.
  bool AddUnread(const StoredPreparation& stored, const std::string& pipeline, Layout& description);
  void DropStoredLayoutsWithoutPlan(const StoredPreparation& stored);
  /// Into memory that is free, or RESOURCE_EXHAUSTED.
  absl::StatusOr<Layout> ReadSpare(const LayoutRecord& record);
  absl::StatusOr<LayoutBuilder::Built> ReadOrRebuild(const StoredPreparation& stored,
                                                     const std::string& pipeline);

  const JobModules& modules_;
  const std::shared_ptr<Pattern> pattern_;
  const std::set<ProblemSignature> again_;
  const AskedOf asked_;
  const std::atomic<bool>& stop_;
  Progress progress_;
  const Deadline deadline_;
  GpuBackend* const gpu_;  ///< that it tries signatures of GPUs on; null: none serves
  std::optional<cuda::DeviceScope> scope_;
  std::optional<cuda::Stream> stream_;                    ///< of accelerator_
  std::optional<cuda::GpuBuildAccelerator> accelerator_;  ///< where a GPU serves
  std::shared_ptr<const Layout> csr_;
  std::optional<LayoutBuilder> builder_;
  /// Of the pair's right factor, while its pattern is another one.
  std::optional<LayoutBuilder> right_builder_;
  std::shared_ptr<Pattern> right_pattern_;
  std::set<std::string> unstored_;  ///< pipelines of layouts that this job built and added
  std::vector<std::string> notes_;
};

}  // namespace sparsed::engine
