// Which kernel multiplies a pattern with another one.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "engine/catalog/signature.h"
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

/// Before all that is estimated.
constexpr double kFirst = std::numeric_limits<double>::infinity();

/// Of the layout that a pipeline of one step makes for a factor.
std::string_view KindOf(std::string_view pipeline) {
  return pipeline.substr(0, pipeline.find('('));
}

/// Without a kernel.
Plan PairPlan(const ProblemSignature& signature, const PatternPair& pair) {
  Plan plan;
  plan.signature = signature;
  plan.pair = pair;
  return plan;
}

}  // namespace

Pairs MeasuredPairs(const Catalog& catalog, const Pattern& pattern,
                    const ProblemSignature& signature) {
  std::map<std::string, std::shared_ptr<Pattern>> patterns;
  for (const MatrixLease& matrix : catalog.All()) {
    patterns.emplace(matrix->pattern()->hash(), matrix->pattern());
  }
  Pairs pairs;
  for (const Measurement& m : pattern.trials().measurements()) {
    if (m.signature != signature || !m.pair) continue;
    const auto right = patterns.find(m.pair->right);
    if (right != patterns.end()) pairs[{signature, *m.pair}] = right->second;
  }
  return pairs;
}

std::set<PatternJob::PairKey> PatternJob::SuspendLost(const Pairs& pairs) {
  std::set<PairKey> lost;
  for (const auto& [key, right] : pairs) {
    const auto& [c, pair] = key;
    const PatternProduct product = {pattern_, right.lock(), pair.transpose_left,
                                    pair.transpose_right, /*mask=*/nullptr};
    const PlanTable::Found found = pattern_->plans().Find(c, pair);
    if (product.right == nullptr || again_.contains(c) || !AskedFor(c).empty() ||
        !found.decided() || FindFactorLayouts(product, found.plan->plan)) {
      continue;
    }
    const std::vector<std::string_view> kernels = KernelsFor(ProblemOf(c), Layout());
    if (kernels.empty()) continue;
    Plan plan = PairPlan(c, pair);
    plan.kernel = kernels.front();
    plan.baseline_ms = plan.plan_ms = found.plan->plan.baseline_ms;
    plan.reason =
        fmt::format("the default serves until {} is there again", found.plan->plan.pipeline);
    plan.provisional = true;
    pattern_->plans().Replace(std::make_shared<const ActivePlan>(ActivePlan{plan, nullptr}));
    lost.insert(key);
  }
  return lost;
}

absl::Status PatternJob::TryPairs(const Pairs& pairs) {
  const std::set<PairKey> lost = SuspendLost(pairs);
  if (absl::Status s = LoadCsr(); !s.ok()) return s;
  if (absl::Status s = FindFeatures(); !s.ok()) return s;
  std::set<ProblemSignature> signatures;
  absl::Status status;
  for (const auto& [key, right] : pairs) {
    if (stop_) status = absl::CancelledError("the preparation was cancelled");
    if (!status.ok()) break;
    const ProblemSignature& c = key.first;
    const PatternProduct pair = {pattern_, right.lock(), key.second.transpose_left,
                                 key.second.transpose_right, /*mask=*/nullptr};
    if (pair.right == nullptr) continue;
    const PlanTable::Found found = pattern_->plans().Find(c, key.second);
    if (!again_.contains(c) && AskedFor(c).empty()) {
      if (found.decided()) continue;
      // After a restart, or without the layouts that it reads.
      const bool known =
          found.exact ? lost.contains(key) : KnowsAllKernels(PairPlan(c, key.second));
      const absl::StatusOr<bool> activated =
          known ? ActivateFastest(c, pair) : absl::StatusOr<bool>(false);
      if (!activated.ok()) {
        status = activated.status();
        break;
      }
      if (*activated) {
        if (pair.right != pattern_) DropUnusedLayouts(*pair.right);
        continue;
      }
    }
    status = TryPair(c, pair);
    if (status.ok()) signatures.insert(c);
    if (pair.right != pattern_) DropUnusedLayouts(*pair.right);
  }
  if (!signatures.empty()) StoreOutcome(signatures);
  DropUnusedLayouts(*pattern_);
  return status;
}

absl::StatusOr<PatternJob::Factor> PatternJob::LoadFactor(const ProblemSignature& c,
                                                          MatrixLease matrix, bool transpose) {
  Factor factor;
  factor.pattern = matrix->pattern();
  factor.matrix = std::move(matrix);
  factor.transposed = transpose;
  absl::StatusOr<std::shared_ptr<const Layout>> csr =
      transpose ? modules_.executor.derived().Transposed(factor.pattern, MakeContext())
                : factor.pattern->Csr(&stop_);
  if (!csr.ok()) return csr.status();
  factor.operand.csr = *std::move(csr);
  // From the disk, if they are there alone.
  if (absl::Status s = factor.matrix->Values(&stop_).status(); !s.ok()) return s;
  absl::StatusOr<Array> values = BackendOf(c).ValuesFor(
      *factor.matrix, *factor.operand.csr, modules_.budget.Source(MemoryUse::kPreparation),
      modules_.options.threads_per_worker);
  if (!values.ok()) return values.status();
  factor.operand.values = *std::move(values);
  if (!transpose) factor.features = factor.pattern->features();
  if (factor.features != nullptr) return factor;
  absl::StatusOr<Features> features = ComputeFeatures(ViewCsr(*factor.operand.csr), MakeContext());
  if (absl::IsCancelled(features.status())) return features.status();
  if (features.ok()) {
    factor.features = std::make_shared<const Features>(*std::move(features));
  } else {
    factor.short_of_memory = absl::IsResourceExhausted(features.status());
  }
  return factor;
}

absl::StatusOr<LayoutBuilder*> PatternJob::BuilderOf(const std::shared_ptr<Pattern>& pattern) {
  if (pattern == pattern_) return &*builder_;
  if (right_pattern_ != pattern) {
    absl::StatusOr<std::shared_ptr<const Layout>> csr = pattern->Csr(&stop_);
    if (!csr.ok()) return csr.status();
    right_pattern_ = pattern;
    right_builder_.emplace(*right_pattern_, *std::move(csr), MakeContext(),
                           gpu_ == nullptr ? DeviceId{} : gpu_->id(), progress_, deadline_);
  }
  return &*right_builder_;
}

absl::StatusOr<SpgemmFactor> PatternJob::FormatFactor(const ProblemSignature& c,
                                                      const Factor& factor,
                                                      const std::string& pipeline,
                                                      double& seconds) {
  const std::string of_pattern = FactorPipeline(pipeline, factor.transposed);
  std::shared_ptr<const Layout> layout;
  if (const auto there = factor.pattern->FindLayout(of_pattern)) {
    const absl::StatusOr<std::shared_ptr<const Layout>> read = there->Get(&stop_);
    if (absl::IsDataLoss(read.status())) {
      // What is not there is built again.
      modules_.observer.OnDamage(Sentence(read.status()));
      factor.pattern->DropLayout(there);
    } else if (!read.ok()) {
      return read.status();
    } else {
      layout = *read;
    }
  }
  if (layout == nullptr) {
    const absl::StatusOr<LayoutBuilder*> builder = BuilderOf(factor.pattern);
    if (!builder.ok()) return builder.status();
    const absl::StatusOr<LayoutBuilder::Built> built = (*builder)->GetInTime(of_pattern);
    if (!built.ok()) return built.status();
    if (built->layout == nullptr) {
      return built->out_of_time       ? absl::DeadlineExceededError(built->note)
             : built->short_of_memory ? absl::ResourceExhaustedError(built->note)
                                      : absl::FailedPreconditionError(built->note);
    }
    layout = built->layout;
    seconds += built->seconds;
  }
  SpgemmFactor operand = factor.operand;
  const absl::Status set = SetFormat(BackendOf(c), *factor.matrix, std::move(layout),
                                     modules_.budget.Source(MemoryUse::kPreparation),
                                     modules_.options.threads_per_worker, operand);
  if (!set.ok()) return set;
  return operand;
}

absl::StatusOr<TrialTimes> PatternJob::TryKernel(const ProblemSignature& c,
                                                 const Candidate& candidate, const Factor& left,
                                                 const Factor& right, SpgemmTrial& trial,
                                                 double budget_ms, std::string& pipeline,
                                                 double& seconds) {
  const SpgemmKernel& kernel = *FindSpgemmKernel(candidate.kernel);
  if (kernel.layout_kind == kCsr) {
    return trial.Against(kernel, left.operand, right.operand, budget_ms);
  }
  if (candidate.pipeline.empty()) {
    absl::StatusOr<std::string> chosen = FormatPipeline(
        kernel, ProblemOf(c), ViewCsr(*left.operand.csr), ViewCsr(*right.operand.csr));
    if (!chosen.ok()) return chosen.status();
    pipeline = *std::move(chosen);
  }
  SpgemmFactor left_operand = left.operand;
  if (kernel.left_too) {
    absl::StatusOr<SpgemmFactor> formatted = FormatFactor(c, left, pipeline, seconds);
    if (!formatted.ok()) return formatted.status();
    left_operand = *std::move(formatted);
  }
  const bool same = kernel.left_too && left.pattern == right.pattern &&
                    left.matrix == right.matrix && left.transposed == right.transposed;
  const absl::StatusOr<SpgemmFactor> right_operand =
      same ? left_operand : FormatFactor(c, right, pipeline, seconds);
  if (!right_operand.ok()) return right_operand.status();
  return trial.Against(kernel, left_operand, *right_operand, budget_ms);
}

absl::Status PatternJob::TryPair(const ProblemSignature& c, const PatternProduct& pair) {
  const Problem problem = ProblemOf(c);
  const MatrixLease left_matrix = MatrixOf(c.type);
  const MatrixLease right_matrix =
      pair.right == pattern_ ? left_matrix : MatrixOf(*pair.right, c.type);
  // One was deleted meanwhile.
  if (left_matrix == nullptr || right_matrix == nullptr) return absl::OkStatus();
  if (c.device == DeviceKind::kCuda && gpu_ == nullptr) return WithoutCard();
  const std::vector<std::string_view> kernels = KernelsFor(problem, *csr_);
  if (kernels.empty()) return absl::OkStatus();
  const SpgemmKernel& baseline = *FindSpgemmKernel(kernels.front());
  Plan plan = PairPlan(c, pair.pair());
  plan.kernel = baseline.name;
  const std::string product = ProductText(*plan.pair, pattern_->hash());
  const std::set<Asked>& asked = AskedFor(c);
  const bool only_asked = OnlyAsked(c, pattern_->plans().Find(c, plan.pair));
  const auto keep_default = [&](const std::string& why, bool for_now = false) {
    if (only_asked) {
      notes_.push_back(fmt::format("{}, {}: what was asked for was not tried: {}", SignatureText(c),
                                   product, why));
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
  if (again_.contains(c)) pattern_->trials().Forget(c, plan.pair);
  const absl::StatusOr<Factor> left = LoadFactor(c, left_matrix, pair.transpose_left);
  const absl::StatusOr<Factor> right = LoadFactor(c, right_matrix, pair.transpose_right);
  for (const absl::Status& s : {left.status(), right.status()}) {
    if (absl::IsCancelled(s)) return s;
    if (absl::IsResourceExhausted(s)) return keep_default(Sentence(s), true);
  }
  if (!left.ok()) return left.status();
  if (!right.ok()) {
    notes_.push_back(
        fmt::format("{}, {}: {}", SignatureText(c), product, Sentence(right.status())));
    return absl::OkStatus();
  }
  progress_.At("trial", 0, 0);
  progress_.Say(fmt::format("trying kernels for {}, {}", SignatureText(c), product));
  absl::StatusOr<std::unique_ptr<SpgemmTrial>> trial =
      SpgemmTrial::Begin(problem, left->operand, right->operand, baseline,
                         modules_.budget.Source(MemoryUse::kPreparation), BackendOf(c),
                         modules_.executor, &stop_, deadline_.ForTrials());
  if (EndsJob(trial.status())) return trial.status();
  if (!trial.ok()) {
    return keep_default(Sentence(trial.status()), IsForNow(trial.status()));
  }
  // Without features rules may leave out what is worth a trial.
  bool for_now = left->short_of_memory || right->short_of_memory;
  const bool square = pair.right == pattern_ && !pair.transpose_left && !pair.transpose_right;
  const bool explored = asked.contains(Asked());
  std::vector<Candidate> candidates =
      explored ? SpgemmCandidatesFor(problem, left->features.get(), right->features.get())
               : modules_.selector.SpgemmCandidatesFor(problem, square, left->features.get(),
                                                       right->features.get());
  if (!asked.empty()) AddAskedKernels(asked, only_asked, candidates);
  const absl::Status tried = TryKernels(plan, *left, *right, candidates, **trial, for_now);
  if (EndsJob(tried)) return tried;
  if (!tried.ok()) return keep_default(Sentence(tried), IsForNow(tried));
  trial->reset();  // What it holds makes room for what follows.
  if (square) {
    std::vector<Measurement> of_pair = pattern_->trials().measurements();
    std::erase_if(of_pair, [&](const Measurement& m) { return m.pair != plan.pair; });
    JudgeModels(c, left->features.get(), of_pair);
  }
  if (only_asked && for_now) {
    notes_.push_back(fmt::format("{}, {}: not all that was asked for could be tried",
                                 SignatureText(c), product));
    for_now = false;  // for the rest it is decided
  }
  return ActivateFastest(c, pair, for_now).status();
}

absl::Status PatternJob::TryKernels(const Plan& plan, const Factor& left, const Factor& right,
                                    std::vector<Candidate> candidates, SpgemmTrial& trial,
                                    bool& for_now) {
  const ProblemSignature& c = plan.signature;
  const auto measured = [&](const std::string& pipeline, std::string_view kernel,
                            const TrialTimes& times, double build_seconds) {
    Measurement measurement;
    measurement.signature = c;
    measurement.pipeline = pipeline;
    measurement.pair = plan.pair;
    measurement.kernel = kernel;
    measurement.device = Name(BackendOf(c).id());
    measurement.median_ms = times.median;
    measurement.gflops = Gflops(trial.products(), 1, times.median);
    measurement.runs = times.runs;
    measurement.baseline_ms = times.baseline_median;
    measurement.censored = times.censored;
    measurement.compulsory_bytes = CompulsoryBytes(c.type, ViewCsr(*left.operand.csr),
                                                   ViewCsr(*right.operand.csr), trial.result_nnz());
    measurement.roofline_ms = 1e3 * measurement.compulsory_bytes / BackendOf(c).bytes_per_second();
    measurement.preparation_ms = 1e3 * build_seconds;
    measurement.model = BackendOf(c).model();
    pattern_->trials().Add(std::move(measurement));
  };
  const bool estimated = std::ranges::any_of(
      candidates, [](const Candidate& candidate) { return candidate.promise.has_value(); });
  const auto worth_trying = std::ranges::count(candidates, true, &Candidate::worth_trying);
  const double share_ms =
      modules_.options.trial_budget_ms / static_cast<double>(std::max<int64_t>(worth_trying, 1));
  if (estimated) {
    if (absl::Status s = trial.BaselineAlone(share_ms).status(); !s.ok()) return s;
  }
  const double requests = ExpectedRequests(c, plan.pair);
  std::optional<SharedError> shared_error;  // of the model's estimates
  std::vector<Decision> decisions;
  std::string best_pipeline;
  double best_speedup = 0;
  const auto worth_of = [&](const Candidate& candidate) -> Worth {
    if (!candidate.promise) return {candidate.worth_trying, kFirst, candidate.reason};
    if (!shared_error) shared_error.emplace(candidate.promise->shared_deviation);
    const std::string& pipeline = candidate.promise->best().pipeline;
    const auto has = [&](const Factor& factor) {
      return factor.pattern->FindLayout(FactorPipeline(pipeline, factor.transposed)) != nullptr;
    };
    const double default_ms = trial.baseline_median();
    return Weigh(*candidate.promise, {.default_ms = default_ms,
                                      .best_ms = default_ms / std::max(best_speedup, 1.0),
                                      .is_built = pipeline == kCsr || (has(left) && has(right)),
                                      .least_speedup = best_speedup > 1 ? 1 : kLeastSpeedup,
                                      .requests = requests,
                                      .shared_error = shared_error->mean(),
                                      .shared_variance = shared_error->variance()});
  };
  // What no model promises goes first, of the rest what gains most.
  while (!candidates.empty()) {
    std::vector<Worth> worths;
    for (const Candidate& candidate : candidates) worths.push_back(worth_of(candidate));
    const auto next = std::ranges::max_element(worths, {}, &Worth::net_ms) - worths.begin();
    const Worth worth = std::move(worths[static_cast<size_t>(next)]);
    const Candidate candidate = std::move(candidates[static_cast<size_t>(next)]);
    candidates.erase(candidates.begin() + next);
    const SpgemmKernel& kernel = *FindSpgemmKernel(candidate.kernel);
    std::string pipeline =
        candidate.pipeline.empty() ? std::string(kernel.layout_kind) : candidate.pipeline;
    Decision decision = {c, pipeline, false, worth.reason, candidate.kernel, plan.pair};
    std::string_view outcome = "ruled_out";
    if (worth.worth_trying) {
      double seconds = 0;
      const absl::StatusOr<TrialTimes> times =
          TryKernel(c, candidate, left, right, trial, share_ms, pipeline, seconds);
      if (EndsJob(times.status())) return times.status();
      decision.pipeline = pipeline;
      if (times.ok()) {
        measured(pipeline, candidate.kernel, *times, seconds);
        decision.tried = true;
        outcome = "tried";
        if (candidate.promise) {
          const Estimate& estimate = candidate.promise->best();
          shared_error->Saw(-std::log2(times->speedup()) - estimate.log2_ratio, estimate.deviation);
        }
        if (times->speedup() > best_speedup) {
          best_speedup = times->speedup();
          best_pipeline = pipeline;
        }
      } else {
        decision.reason = Sentence(times.status());
        if (absl::IsResourceExhausted(times.status())) {
          outcome = "no_memory";
          // What a library takes for the whole product may never be there, and it rarely wins.
          for_now |= !kernel.from_library;
        } else if (absl::IsDeadlineExceeded(times.status())) {
          outcome = "no_time";
          for_now = true;
        }
      }
    }
    // Losers make room for the next candidate.
    const std::set<std::string> kept = {FactorPipeline(best_pipeline, left.transposed),
                                        FactorPipeline(best_pipeline, right.transposed)};
    builder_->DropAllBut(kept);
    if (right_builder_) right_builder_->DropAllBut(kept);
    modules_.observer.OnPipeline(outcome);
    // A pipeline that is asked for may be the kernel's own.
    std::erase_if(decisions, [&](const Decision& made) {
      return made.kernel == decision.kernel && made.pipeline == decision.pipeline;
    });
    decisions.push_back(std::move(decision));
  }
  if (trial.baseline_runs() == 0) {
    const absl::Status alone = trial.BaselineAlone(share_ms).status();
    if (!alone.ok()) return alone;
  }
  if (!IsMeasured(plan, trial.baseline_runs())) {
    measured(plan.pipeline, plan.kernel,
             {trial.baseline_median(), trial.baseline_median(), trial.baseline_runs(), false}, 0);
  }
  // Of what was no candidate this time, because something else was asked for alone.
  const size_t made = decisions.size();
  for (Decision& earlier : pattern_->trials().decisions()) {
    if (earlier.signature != c || earlier.pair != plan.pair || again_.contains(c)) continue;
    // Another pipeline of a kernel may have been tried before.
    const auto is_newer = [&](const Decision& decision) {
      return decision.kernel == earlier.kernel &&
             (decision.pipeline == earlier.pipeline || !earlier.tried);
    };
    if (std::none_of(decisions.begin(), decisions.begin() + static_cast<int64_t>(made), is_newer)) {
      decisions.push_back(std::move(earlier));
    }
  }
  pattern_->trials().SetDecisions(c, std::move(decisions), plan.pair);
  return absl::OkStatus();
}

bool PatternJob::KnowsAllKernels(const Plan& plan) const {
  const ProblemSignature& c = plan.signature;
  const std::vector<Measurement> measurements = pattern_->trials().measurements();
  const std::vector<Decision> decisions = pattern_->trials().decisions();
  return std::ranges::all_of(KernelsFor(ProblemOf(c), *csr_), [&](std::string_view kernel) {
    const auto is_of_it = [&](const auto& known) {
      return known.signature == c && known.pair == plan.pair && known.kernel == kernel;
    };
    return std::ranges::any_of(measurements, is_of_it) || std::ranges::any_of(decisions, is_of_it);
  });
}

absl::Status PatternJob::BuildFactorLayout(const std::shared_ptr<Pattern>& pattern,
                                           const std::string& pipeline,
                                           std::vector<NewLayout>& built) {
  if (pattern->FindLayout(pipeline) != nullptr) return absl::OkStatus();
  const absl::StatusOr<LayoutBuilder*> builder = BuilderOf(pattern);
  if (!builder.ok()) return builder.status();
  absl::StatusOr<LayoutBuilder::Built> layout = (*builder)->Take(pipeline);
  if (layout->layout == nullptr) layout = (*builder)->Build(pipeline);
  if (!layout.ok()) return layout.status();
  if (layout->layout == nullptr) return absl::FailedPreconditionError(layout->note);
  const absl::Status moved =
      MoveTo(modules_.budget.Source(MemoryUse::kLayouts, pattern->payer()), *layout->layout);
  if (moved.ok()) built.push_back({pattern, layout->layout, layout->seconds});
  return moved;
}

absl::StatusOr<std::vector<PatternJob::NewLayout>> PatternJob::BuildFactorLayouts(
    const Plan& plan, const PatternProduct& pair) {
  std::vector<NewLayout> built;
  const SpgemmKernel& kernel = *FindSpgemmKernel(plan.kernel);
  if (kernel.layout_kind == kCsr) return built;
  absl::Status status =
      BuildFactorLayout(pair.right, FactorPipeline(plan.pipeline, pair.transpose_right), built);
  const bool same = pair.left == pair.right && pair.transpose_left == pair.transpose_right;
  if (status.ok() && kernel.left_too && !same) {
    status =
        BuildFactorLayout(pair.left, FactorPipeline(plan.pipeline, pair.transpose_left), built);
  }
  if (!status.ok()) return status;
  return built;
}

void PatternJob::Publish(const Plan& plan, const std::vector<NewLayout>& layouts) {
  const MutexLock lock(modules_.publishing);
  for (const NewLayout& fresh : layouts) {
    const std::string& pipeline = fresh.layout->pipeline;
    if (fresh.pattern->FindLayout(pipeline) != nullptr) continue;
    fresh.pattern->AddLayout(fresh.layout, fresh.seconds);
    for (const Pattern::BuiltEntry& entry : fresh.pattern->Layouts()) {
      if (entry.description->pipeline == pipeline) StoreLayout(*fresh.pattern, entry);
    }
  }
  Activate(plan);
}

absl::StatusOr<bool> PatternJob::ActivateFastest(const ProblemSignature& c,
                                                 const PatternProduct& pair, bool provisional) {
  Plan plan = PairPlan(c, pair.pair());
  plan.provisional = provisional;
  const std::vector<std::string_view> kernels = KernelsFor(ProblemOf(c), *csr_);
  const Measurement* best = nullptr;
  const Measurement* next = nullptr;
  // Another kernel must be worth the change.
  const auto score = [&](const Measurement& m) {
    return (m.kernel == kernels.front() ? kLeastSpeedup : 1) * m.baseline_ms / m.median_ms;
  };
  const std::vector<Measurement> measurements = pattern_->trials().measurements();
  for (const Measurement& m : measurements) {
    // Another build of the program may have other kernels, or ones that read other layouts.
    if (m.signature != c || m.pair != plan.pair || m.median_ms <= 0 ||
        std::ranges::find(kernels, m.kernel) == kernels.end() ||
        KindOf(m.pipeline) != FindSpgemmKernel(m.kernel)->layout_kind) {
      continue;
    }
    if (best == nullptr || score(m) > score(*best)) {
      next = std::exchange(best, &m);
    } else if (next == nullptr || score(m) > score(*next)) {
      next = &m;
    }
  }
  if (best == nullptr) return false;
  plan.pipeline = best->pipeline;
  plan.kernel = best->kernel;
  plan.baseline_ms = best->baseline_ms;
  plan.plan_ms = best->median_ms;
  if (plan.kernel != kernels.front()) {
    plan.reason =
        fmt::format("{:.2f}x over {}", best->baseline_ms / best->median_ms, kernels.front());
    if (plan.pipeline != kCsr) plan.reason += fmt::format(", from {}", plan.pipeline);
  } else if (next == nullptr) {
    plan.reason = "the default is kept, no other was tried";
  } else {
    const double speedup = next->baseline_ms / next->median_ms;
    plan.reason =
        fmt::format("the default is kept, the next best, {}, was {}{}", next->kernel,
                    Compared(speedup), IsFaster(speedup) ? ", which is next to nothing" : "");
  }
  if (provisional) plan.reason += "; not all could be tried for want of memory or time";
  absl::StatusOr<std::vector<NewLayout>> layouts = BuildFactorLayouts(plan, pair);
  if (const absl::Status& kept = layouts.status(); !kept.ok()) {
    if (EndsJob(kept)) return kept;
    const PlanTable::Found present = pattern_->plans().Find(c, plan.pair);
    // The right pattern's, of which no product can be had until it is uploaded anew.
    if (absl::IsDataLoss(kept) || OnlyAsked(c, present)) {
      notes_.push_back(fmt::format("{}, {}: no plan from {}: {}", SignatureText(c),
                                   ProductText(*plan.pair, pattern_->hash()), plan.pipeline,
                                   Sentence(kept)));
      return true;
    }
    plan.reason = fmt::format("the default is kept: no memory to keep {}, which is {} ({})",
                              plan.pipeline, plan.reason, Sentence(kept));
    plan.pipeline = kCsr;
    plan.kernel = kernels.front();
    plan.plan_ms = plan.baseline_ms;
    plan.provisional = true;
  }
  builder_->DropAllBut({});
  right_builder_.reset();
  right_pattern_.reset();
  Publish(plan, layouts.ok() ? *std::move(layouts) : std::vector<NewLayout>());
  return true;
}

}  // namespace sparsed::engine
