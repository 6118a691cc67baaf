// Which kernel multiplies a pattern with another one.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "engine/planning/candidates.h"
#include "engine/preparation/pattern_job.h"
#include "engine/preparation/spgemm_trial.h"
#include "kernels/features/features.h"
#include "kernels/formats/csr.h"

namespace sparsed::engine {
namespace {

/// What it was may be had another time.
bool IsForNow(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status);
}

/// Without a kernel.
Plan PairPlan(const ProblemClass& problem_class, const PatternPair& pair) {
  Plan plan;
  plan.problem_class = problem_class;
  plan.pair = pair;
  return plan;
}

}  // namespace

Pairs MeasuredPairs(const Catalog& catalog, const Pattern& pattern,
                    const ProblemClass& problem_class) {
  std::map<std::string, std::shared_ptr<Pattern>> patterns;
  for (const MatrixLease& matrix : catalog.All()) {
    patterns.emplace(matrix->pattern()->hash(), matrix->pattern());
  }
  Pairs pairs;
  for (const Measurement& m : pattern.measurements()) {
    if (m.problem_class != problem_class || !m.pair) continue;
    const auto right = patterns.find(m.pair->right);
    if (right != patterns.end()) pairs[{problem_class, *m.pair}] = right->second;
  }
  return pairs;
}

absl::Status PatternJob::TryPairs(const Pairs& pairs) {
  if (absl::Status s = LoadCsr(); !s.ok()) return s;
  if (absl::Status s = FindFeatures(); !s.ok()) return s;
  std::set<ProblemClass> classes;
  absl::Status status;
  for (const auto& [key, right] : pairs) {
    if (stop_) status = absl::CancelledError("the preparation was cancelled");
    if (!status.ok()) break;
    const ProblemClass& c = key.first;
    const PatternProduct pair = {pattern_, right.lock(), key.second.transpose_left,
                                 key.second.transpose_right, /*mask=*/nullptr};
    if (pair.right == nullptr) continue;
    const PlanTable::Found found = pattern_->plans().Find(c, key.second);
    if (!again_.contains(c) && AskedFor(c).empty()) {
      if (found.decided()) continue;
      if (!found.exact && KnowsAllKernels(PairPlan(c, key.second)) &&
          ActivateFastest(c, key.second))
        continue;
    }
    status = TryPair(c, pair);
    if (status.ok()) classes.insert(c);
  }
  if (!classes.empty()) StoreOutcome(classes);
  return status;
}

absl::StatusOr<PatternJob::Factor> PatternJob::LoadFactor(const ProblemClass& c,
                                                          const std::shared_ptr<Pattern>& pattern,
                                                          const Matrix& matrix, bool transpose) {
  Factor factor;
  absl::StatusOr<std::shared_ptr<const Layout>> csr =
      transpose ? rooms_.executor.derived().Transposed(pattern, MakeContext())
                : pattern->Csr(&stop_);
  if (!csr.ok()) return csr.status();
  factor.csr = *std::move(csr);
  // From the disk, if they are there alone.
  if (absl::Status s = matrix.Values(&stop_).status(); !s.ok()) return s;
  absl::StatusOr<Array> values =
      BackendOf(c).ValuesFor(matrix, *factor.csr, rooms_.budget.Source(MemoryUse::kPreparation),
                             rooms_.options.threads_per_worker);
  if (!values.ok()) return values.status();
  factor.values = *std::move(values);
  if (!transpose) factor.features = pattern->features();
  if (factor.features != nullptr) return factor;
  absl::StatusOr<Features> features = ComputeFeatures(ViewCsr(*factor.csr), MakeContext());
  if (absl::IsCancelled(features.status())) return features.status();
  if (features.ok()) {
    factor.features = std::make_shared<const Features>(*std::move(features));
  } else {
    factor.short_of_memory = absl::IsResourceExhausted(features.status());
  }
  return factor;
}

absl::Status PatternJob::TryPair(const ProblemClass& c, const PatternProduct& pair) {
  const Problem problem = ProblemOf(c);
  const MatrixLease left_matrix = MatrixOf(c.type);
  const MatrixLease right_matrix = MatrixOf(*pair.right, c.type);
  // One was deleted meanwhile.
  if (left_matrix == nullptr || right_matrix == nullptr) return absl::OkStatus();
  if (c.device == DeviceKind::kCuda && gpu_ == nullptr) return WithoutCard();
  const std::vector<std::string_view> kernels = KernelsFor(problem, *csr_);
  if (kernels.empty()) return absl::OkStatus();
  const SpgemmKernel& baseline = *FindSpgemmKernel(kernels.front());
  Plan plan = PairPlan(c, pair.pair());
  plan.kernel = baseline.name;
  const std::string recipe = ToString(*plan.pair, pattern_->hash());
  const std::set<Asked>& asked = AskedFor(c);
  const bool only_asked = OnlyAsked(c, pattern_->plans().Find(c, plan.pair));
  const auto keep_default = [&](const std::string& why, bool for_now = false) {
    if (only_asked) {
      notes_.push_back(
          fmt::format("{}, {}: what was asked for was not tried: {}", ToString(c), recipe, why));
      return absl::OkStatus();
    }
    plan.reason = fmt::format("the default is kept: {}", why);
    plan.provisional = for_now;
    Activate(plan);
    return absl::OkStatus();
  };
  const int64_t nnz = pattern_->nnz() + pair.right->nnz();
  if (nnz < kLeastPairNonzeros && asked.empty()) {
    return keep_default(fmt::format("{} nonzeros, fewer than {}", nnz, kLeastPairNonzeros));
  }
  if (again_.contains(c)) pattern_->ForgetMeasurements(c, plan.pair);
  const absl::StatusOr<Factor> left = LoadFactor(c, pattern_, *left_matrix, pair.transpose_left);
  const absl::StatusOr<Factor> right =
      LoadFactor(c, pair.right, *right_matrix, pair.transpose_right);
  for (const absl::Status& s : {left.status(), right.status()}) {
    if (absl::IsCancelled(s)) return s;
    if (absl::IsResourceExhausted(s)) return keep_default(Sentence(s), true);
  }
  if (!left.ok()) return left.status();
  if (!right.ok()) {
    notes_.push_back(fmt::format("{}, {}: {}", ToString(c), recipe, Sentence(right.status())));
    return absl::OkStatus();
  }
  const SpgemmFactor left_factor = {left->csr, left->values},
                     right_factor = {right->csr, right->values};

  progress_.At("trial", 0, 0);
  progress_.Say(fmt::format("trying kernels for {}, {}", ToString(c), recipe));
  absl::StatusOr<std::unique_ptr<SpgemmTrial>> trial = SpgemmTrial::Begin(
      problem, left_factor, right_factor, baseline, rooms_.budget.Source(MemoryUse::kPreparation),
      BackendOf(c), rooms_.executor, &stop_, deadline_.ForTrials());
  if (EndsJob(trial.status())) return trial.status();
  if (!trial.ok()) {
    return keep_default(Sentence(trial.status()), IsForNow(trial.status()));
  }
  // Without features rules may leave out what is worth a trial.
  bool for_now = left->short_of_memory || right->short_of_memory;
  std::vector<Candidate> candidates =
      SpgemmCandidatesFor(problem, left->features.get(), right->features.get());
  if (!asked.empty()) AddAskedKernels(asked, only_asked, candidates);
  const absl::Status tried =
      TryKernels(plan, ViewCsr(*left->csr), ViewCsr(*right->csr), candidates, **trial, for_now);
  if (EndsJob(tried)) return tried;
  if (!tried.ok()) return keep_default(Sentence(tried), IsForNow(tried));
  ActivateFastest(c, *plan.pair, for_now);
  return absl::OkStatus();
}

absl::Status PatternJob::TryKernels(const Plan& plan, const CsrView& left, const CsrView& right,
                                    const std::vector<Candidate>& candidates, SpgemmTrial& trial,
                                    bool& for_now) {
  const ProblemClass& c = plan.problem_class;
  const auto measured = [&](std::string_view kernel, double median, double baseline_ms, int runs) {
    Measurement measurement;
    measurement.problem_class = c;
    measurement.recipe = plan.recipe;
    measurement.pair = plan.pair;
    measurement.kernel = kernel;
    measurement.device = Name(BackendOf(c).id());
    measurement.median_ms = median;
    measurement.gflops = Gflops(trial.products(), 1, median);
    measurement.runs = runs;
    measurement.baseline_ms = baseline_ms;
    measurement.floor_ms = 1e3 * CompulsoryBytes(c.type, left, right, trial.result_nnz()) /
                           BackendOf(c).bytes_per_second();
    measurement.model = BackendOf(c).model();
    pattern_->AddMeasurement(std::move(measurement));
  };
  const auto worth_trying = std::ranges::count(candidates, true, &Candidate::worth_trying);
  const double share_ms =
      rooms_.options.trial_budget_ms / static_cast<double>(std::max<int64_t>(worth_trying, 1));
  std::vector<Decision> decisions;
  for (const Candidate& candidate : candidates) {
    Decision decision = {c, candidate.recipe, false, candidate.reason, candidate.kernel, plan.pair};
    std::string_view outcome = "ruled_out";
    if (candidate.worth_trying) {
      const absl::StatusOr<TrialTimes> times =
          trial.Against(*FindSpgemmKernel(candidate.kernel), share_ms);
      if (EndsJob(times.status())) return times.status();
      if (times.ok()) {
        measured(candidate.kernel, times->median, times->baseline_median, times->runs);
        decision.tried = true;
        outcome = "tried";
      } else {
        decision.reason = Sentence(times.status());
        if (absl::IsResourceExhausted(times.status())) {
          outcome = "no_memory";
          // What a library takes for the whole product may never be there, and it rarely wins.
          for_now |= !FindSpgemmKernel(candidate.kernel)->from_library;
        } else if (absl::IsDeadlineExceeded(times.status())) {
          outcome = "no_time";
          for_now = true;
        }
      }
    }
    rooms_.observer.OnRecipe(outcome);
    decisions.push_back(std::move(decision));
  }
  if (trial.baseline_runs() == 0) {
    const absl::Status alone = trial.BaselineAlone(share_ms).status();
    if (!alone.ok()) return alone;
  }
  measured(plan.kernel, trial.baseline_median(), trial.baseline_median(), trial.baseline_runs());
  // Of those that were no candidates this time, because others were asked for alone.
  for (Decision& earlier : pattern_->decisions()) {
    if (earlier.problem_class == c && earlier.pair == plan.pair &&
        std::ranges::find(decisions, earlier.kernel, &Decision::kernel) == decisions.end()) {
      decisions.push_back(std::move(earlier));
    }
  }
  pattern_->SetDecisions(c, std::move(decisions), plan.pair);
  return absl::OkStatus();
}

bool PatternJob::KnowsAllKernels(const Plan& plan) const {
  const ProblemClass& c = plan.problem_class;
  const std::vector<Measurement> measurements = pattern_->measurements();
  const std::vector<Decision> decisions = pattern_->decisions();
  return std::ranges::all_of(KernelsFor(ProblemOf(c), *csr_), [&](std::string_view kernel) {
    const auto is_of_it = [&](const auto& known) {
      return known.problem_class == c && known.pair == plan.pair && known.kernel == kernel;
    };
    return std::ranges::any_of(measurements, is_of_it) || std::ranges::any_of(decisions, is_of_it);
  });
}

bool PatternJob::ActivateFastest(const ProblemClass& c, const PatternPair& pair, bool provisional) {
  Plan plan = PairPlan(c, pair);
  plan.provisional = provisional;
  const std::vector<std::string_view> kernels = KernelsFor(ProblemOf(c), *csr_);
  const Measurement* best = nullptr;
  const Measurement* next = nullptr;
  // Another kernel must be worth the change.
  const auto score = [&](const Measurement& m) {
    return (m.kernel == kernels.front() ? kLeastSpeedup : 1) * m.baseline_ms / m.median_ms;
  };
  const std::vector<Measurement> measurements = pattern_->measurements();
  for (const Measurement& m : measurements) {
    // Another build of the program may have other kernels.
    if (m.problem_class != c || m.pair != plan.pair || m.median_ms <= 0 ||
        std::ranges::find(kernels, m.kernel) == kernels.end()) {
      continue;
    }
    if (best == nullptr || score(m) > score(*best)) {
      next = std::exchange(best, &m);
    } else if (next == nullptr || score(m) > score(*next)) {
      next = &m;
    }
  }
  if (best == nullptr) return false;
  plan.kernel = best->kernel;
  plan.baseline_ms = best->baseline_ms;
  plan.plan_ms = best->median_ms;
  if (plan.kernel != kernels.front()) {
    plan.reason =
        fmt::format("{:.2f}x over {}", best->baseline_ms / best->median_ms, kernels.front());
  } else if (next == nullptr) {
    plan.reason = "the default is kept, no other was tried";
  } else {
    const double speedup = next->baseline_ms / next->median_ms;
    plan.reason = fmt::format("the default is kept, the next best, {}, was {:.2f}x {}",
                              next->kernel, std::max(speedup, 1 / speedup),
                              speedup >= 1 ? "faster, which is next to nothing" : "slower");
  }
  if (provisional) plan.reason += "; not all could be tried for want of memory or time";
  Activate(plan);
  return true;
}

}  // namespace sparsed::engine
