#include "engine/preparation/pattern_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/catalog/busy_trials.h"
#include "engine/catalog/signature.h"
#include "engine/execution/distributions.h"
#include "engine/planning/candidates.h"
#include "engine/preparation/distribution_trial.h"
#include "kernels/features/features.h"
#include "kernels/formats/csr.h"

namespace sparsed::engine {
namespace {

/// The outcome of a pipeline that was timed (Observer::OnPipeline).
constexpr std::string_view kTried = "tried";
constexpr std::string_view kThereAlready = "it was there already";

/// The layout of the pipeline, with the skip rules of its steps or without; null if there is none.
const Pattern::BuiltEntry* EntryOf(const std::vector<Pattern::BuiltEntry>& entries,
                                   const std::string& pipeline) {
  const auto found = std::ranges::find_if(entries, [&](const Pattern::BuiltEntry& entry) {
    return WithoutSkipRules(entry.description->pipeline) == WithoutSkipRules(pipeline);
  });
  return found == entries.end() ? nullptr : &*found;
}

/// What a plan's reason says of it.
std::string WhereBest(const std::optional<TriedDistribution>& tried) {
  if (!tried || tried->best == Distribution::kWhole) return "";
  return fmt::format("; operands had best lie in {} over {} GPUs, {}", Name(tried->best),
                     tried->gpus, Compared(tried->whole_ms / tried->best_ms));
}

}  // namespace

std::string Compared(double speedup) {
  if (IsFaster(speedup)) return fmt::format("{:.2f}x faster", speedup);
  return IsFaster(1 / speedup) ? fmt::format("{:.2f}x slower", 1 / speedup) : "as fast";
}

PatternJob::PatternJob(const JobModules& modules, std::shared_ptr<Pattern> pattern,
                       std::set<ProblemSignature> again, AskedOf asked,
                       const std::atomic<bool>& stop)
    : modules_(modules),
      pattern_(std::move(pattern)),
      again_(std::move(again)),
      asked_(std::move(asked)),
      stop_(stop),
      progress_(*pattern_, modules.observer),
      deadline_(modules.options.seconds),
      gpu_(modules.executor.IdlestGpu()) {
  if (gpu_ == nullptr) return;
  scope_.emplace(gpu_->id().ordinal);
  absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create(cuda::StreamPriority::kLow);
  if (!stream.ok()) return;
  stream_ = *std::move(stream);
  // Nothing is evicted for what the CPU can do, too.
  accelerator_.emplace(*stream_, gpu_->device().budget().SpareSource(MemoryUse::kPreparation));
}

BuildContext PatternJob::MakeContext() {
  BuildContext context;
  context.threads = modules_.options.threads_per_worker;
  context.memory = &modules_.budget.Source(MemoryUse::kPreparation);
  context.stop = &stop_;
  if (accelerator_) context.accelerator = &*accelerator_;
  return context;
}

absl::Status PatternJob::LoadCsr() {
  if (csr_ != nullptr) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<const Layout>> csr = pattern_->Csr(&stop_);
  if (!csr.ok()) return csr.status();
  csr_ = *std::move(csr);
  builder_.emplace(*pattern_, csr_, MakeContext(), gpu_ == nullptr ? DeviceId{} : gpu_->id(),
                   progress_, deadline_);
  return absl::OkStatus();
}

absl::Status PatternJob::FindFeatures() {
  if (pattern_->features() != nullptr) return absl::OkStatus();
  progress_.At("features", 0, 0);
  absl::StatusOr<Features> features = ComputeFeatures(ViewCsr(*csr_), MakeContext());
  if (absl::IsCancelled(features.status())) return features.status();
  absl::Status status = features.status();
  if (status.ok()) {
    absl::StatusOr<DensityMap> map = DensityMap::FromPacked(
        features->density_map.packed(), modules_.budget.Source(MemoryUse::kLayouts));
    status = map.status();
    if (map.ok()) features->density_map = *std::move(map);
  }
  if (!status.ok()) {
    notes_.push_back(fmt::format("features are not known: {}", Sentence(status)));
    return absl::OkStatus();
  }
  pattern_->SetFeatures(std::make_shared<const Features>(*std::move(features)));
  status = modules_.store.PutFeatures(pattern_->hash(), *pattern_->features());
  // NOT_FOUND: the pattern has been deleted meanwhile.
  if (!status.ok() && !absl::IsNotFound(status)) {
    notes_.push_back(fmt::format("features are known but not stored: {}", Sentence(status)));
  }
  return absl::OkStatus();
}

absl::Status PatternJob::WithoutCard() const {
  // Wanted by an earlier run of the server, with another device; or all are lost.
  const std::deque<GpuBackend>& gpus = modules_.executor.gpus();
  return gpus.empty() ? absl::OkStatus() : gpus.front().status();
}

MatrixLease PatternJob::MatrixOf(const Pattern& pattern, ElementType type) const {
  for (const MatrixLease& matrix : modules_.catalog.MatricesOf(pattern)) {
    if (matrix->type() == type) return matrix;
  }
  return nullptr;
}

absl::Status PatternJob::Checked(absl::Status status) {
  const bool of_card = gpu_ != nullptr && !IsStoreGone(status);
  return of_card ? gpu_->Checked(std::move(status)) : status;
}

absl::Status PatternJob::Prepare(const std::set<ProblemSignature>& signatures) {
  if (absl::Status s = LoadCsr(); !s.ok()) return s;
  if (absl::Status s = FindFeatures(); !s.ok()) return s;
  for (auto c = signatures.begin(); c != signatures.end(); ++c) {
    if (stop_) return absl::CancelledError("the preparation was cancelled");
    if (absl::Status s = TrySignature(*c, std::next(c) == signatures.end()); !s.ok()) return s;
  }
  builder_->DropAllBut({});
  StoreOutcome(signatures);
  DropUnusedLayouts(*pattern_);
  return absl::OkStatus();
}

std::string_view PatternJob::WhyNothingIsTried(const ProblemSignature& c) const {
  if (c.operation == Operation::kSpgemm) return "; kernels are tried for each pair of matrices";
  if (pattern_->nnz() == 0) return ", there is nothing else to try";
  // And operands of all rows and columns would fill the memory for the trial.
  const bool almost_empty = pattern_->nnz() < std::min(pattern_->rows(), pattern_->cols()) / 16;
  return almost_empty && AskedFor(c).empty()
             ? ": with less than a nonzero in 16 rows and columns no layout gains anything"
             : "";
}

absl::Status PatternJob::TrySignature(const ProblemSignature& c, bool last) {
  SignatureSearch search;
  search.matrix = MatrixOf(c.type);
  // None of this type is left: it was deleted, or replaced, meanwhile.
  if (search.matrix == nullptr) return absl::OkStatus();
  if (c.device == DeviceKind::kCuda && gpu_ == nullptr) return WithoutCard();
  const std::vector<std::string_view> kernels = KernelsFor(ProblemOf(c), *csr_);
  if (kernels.empty()) {
    notes_.push_back(fmt::format("{}: there is no kernel for it", SignatureText(c)));
    return absl::OkStatus();
  }
  search.plain.signature = c;
  search.plain.kernel = kernels.front();
  search.only_asked = OnlyAsked(c, pattern_->plans().Find(c));
  if (const std::string_view why = WhyNothingIsTried(c); !why.empty()) {
    search.plain.reason = fmt::format("plain CSR{}", why);
    Activate(search.plain);
    return absl::OkStatus();
  }
  absl::StatusOr<Array> values = search.matrix->Values(&stop_);
  if (!values.ok()) return values.status();
  if (again_.contains(c)) pattern_->trials().Forget(c);
  if (c.device == DeviceKind::kCpu) {
    if (absl::Status s = modules_.executor.SettleMemoryRate(&stop_); !s.ok()) return s;
  }
  absl::StatusOr<std::unique_ptr<Trial>> trial =
      Trial::Begin(c, pattern_->rows(), pattern_->cols(), pattern_->nnz(), BackendOf(c),
                   modules_.executor, &stop_, deadline_.ForTrials());
  if (EndsJob(trial.status())) return trial.status();
  if (!trial.ok() && search.only_asked) {
    notes_.push_back(fmt::format("{}: what was asked for was not tried: {}", SignatureText(c),
                                 Sentence(trial.status())));
    return absl::OkStatus();
  }
  if (!trial.ok()) {
    search.plain.reason = fmt::format("plain CSR is kept untried: {}", Sentence(trial.status()));
    search.plain.provisional =
        absl::IsResourceExhausted(trial.status()) || absl::IsDeadlineExceeded(trial.status());
    Activate(search.plain);
    return absl::OkStatus();
  }
  search.trial = *std::move(trial);
  search.trial->set_baseline({csr_, *values, search.plain.kernel});
  search.k = search.trial->problem().k;
  if (search.k < c.k_bucket) {
    search.short_of_memory = true;
    AddNote(search, fmt::format("timed at K = {} for want of memory", search.k));
  }
  if (absl::Status s = TryCandidates(search, last); !s.ok()) return s;
  if (search.only_asked) KeepEarlierDecisions(search);
  pattern_->trials().SetDecisions(c, search.decisions);
  search.trial.reset();  // Its operands make room for what follows.
  if (!search.only_asked) {
    JudgeModels(c, pattern_->features().get(), pattern_->trials().measurements());
  }
  Decide(search);
  return search.only_asked ? absl::OkStatus() : TryDistributions(search);
}

absl::Status PatternJob::TryCandidates(SignatureSearch& search, bool last) {
  std::vector<Candidate> candidates;
  if (const std::shared_ptr<const Features> features = pattern_->features()) {
    // All that there are, where a client explores.
    const ProblemSignature& c = search.plain.signature;
    const DeviceConstants constants = BackendOf(c).constants();
    candidates = AskedFor(c).contains(Asked())
                     ? CandidatesFor(c, *features, constants)
                     : modules_.selector.CandidatesFor(c, *features, constants);
  } else {
    AddNote(search, "only plain CSR: there was no memory for the pattern's features");
    search.short_of_memory = true;
  }
  AddAsked(AskedFor(search.plain.signature), search.only_asked, candidates);
  const std::vector<Pattern::BuiltEntry> existing = pattern_->Layouts();
  search.share_ms =
      modules_.options.trial_budget_ms /
      static_cast<double>(existing.size() + 1 +
                          std::ranges::count(candidates, true, &Candidate::worth_trying));
  const bool estimated = std::ranges::any_of(
      candidates, [](const Candidate& candidate) { return candidate.promise.has_value(); });
  if (estimated) return TryEstimated(search, std::move(candidates), existing, last);
  if (absl::Status s = TryLayout(search, csr_, 0, ""); !s.ok()) return s;
  for (const Pattern::BuiltEntry& entry : existing) {
    if (absl::Status s = TryExisting(search, entry, kThereAlready); !s.ok()) return s;
  }
  const std::vector<Pattern::BuiltEntry> tried = pattern_->Layouts();  // a damaged one is gone
  for (const Candidate& candidate : candidates) {
    if (EntryOf(tried, candidate.pipeline) != nullptr) continue;
    if (absl::Status s = TryCandidate(search, candidate, last); !s.ok()) return s;
  }
  return search.baseline_ms > 0 ? absl::OkStatus() : TryBaseline(search);
}

absl::Status PatternJob::TryEstimated(SignatureSearch& search, std::vector<Candidate> candidates,
                                      const std::vector<Pattern::BuiltEntry>& existing, bool last) {
  const ProblemSignature& c = search.plain.signature;
  if (absl::Status s = TryBaseline(search); !s.ok()) return s;
  // What a client asked for of plain CSR's kernels, and what serves the signature now.
  const bool all_of_plain =
      std::ranges::any_of(AskedFor(c), [](const Asked& asked) { return asked.pipeline == kCsr; });
  if (all_of_plain) {
    if (absl::Status s = TryLayout(search, csr_, 0, ""); !s.ok()) return s;
  }
  const PlanTable::Found present = pattern_->plans().Find(c);
  const Pattern::BuiltEntry* const serving =
      present.exact ? EntryOf(existing, present.plan->plan.pipeline) : nullptr;
  if (serving != nullptr) {
    if (absl::Status s = TryExisting(search, *serving, kThereAlready); !s.ok()) return s;
  }
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return (all_of_plain && candidate.pipeline == kCsr) ||
           (serving != nullptr && EntryOf(existing, candidate.pipeline) == serving);
  });
  // What no model promises comes first: clients asked for it, or it is left out.
  for (const Candidate& candidate : candidates) {
    if (candidate.promise) continue;
    const Pattern::BuiltEntry* const there = EntryOf(existing, candidate.pipeline);
    const absl::Status s = there != nullptr && candidate.worth_trying
                               ? TryExisting(search, *there, kThereAlready)
                               : TryCandidate(search, candidate, last);
    if (!s.ok()) return s;
  }
  std::erase_if(candidates, [](const Candidate& candidate) { return !candidate.promise; });
  search.requests = ExpectedRequests(c, std::nullopt);
  while (!candidates.empty()) {
    if (!search.shared_error) search.shared_error.emplace(candidates[0].promise->shared_deviation);
    std::vector<Worth> worths;
    for (const Candidate& candidate : candidates) {
      worths.push_back(WorthOf(search, candidate, existing));
    }
    const auto best = std::ranges::max_element(worths, {}, &Worth::net_ms) - worths.begin();
    Worth& worth = worths[static_cast<size_t>(best)];
    if (!worth.worth_trying) {
      for (size_t i = 0; i < candidates.size(); ++i) {
        // Plain CSR's other kernels are no pipeline of their own.
        if (candidates[i].pipeline == kCsr) continue;
        RecordDecision(search, candidates[i].pipeline,
                       search.baseline_ms > 0 ? "ruled_out" : "no_time",
                       std::move(worths[i].reason));
      }
      return absl::OkStatus();
    }
    Candidate& candidate = candidates[static_cast<size_t>(best)];
    candidate.reason = std::move(worth.reason);
    if (absl::Status s = TryPromising(search, candidate, existing, last); !s.ok()) return s;
    candidates.erase(candidates.begin() + best);
  }
  return absl::OkStatus();
}

Worth PatternJob::WorthOf(const SignatureSearch& search, const Candidate& candidate,
                          const std::vector<Pattern::BuiltEntry>& existing) const {
  if (search.baseline_ms <= 0) return {false, 0, "plain CSR was not timed"};
  const bool plain = candidate.pipeline == kCsr;
  const bool more_memory = !plain && (!search.best || search.best->layout == csr_);
  return Weigh(*candidate.promise,
               {.default_ms = search.baseline_ms,
                .best_ms = search.baseline_ms / (search.best ? search.best->times.speedup() : 1),
                .is_built = plain || EntryOf(existing, candidate.pipeline) != nullptr ||
                            builder_->Has(candidate.pipeline),
                .least_speedup = more_memory ? kLeastSpeedup : 1,
                .requests = search.requests,
                .shared_error = search.shared_error->mean(),
                .shared_variance = search.shared_error->variance()});
}

absl::Status PatternJob::TryPromising(SignatureSearch& search, const Candidate& candidate,
                                      const std::vector<Pattern::BuiltEntry>& existing, bool last) {
  if (candidate.pipeline == kCsr) {
    return TryLayout(search, csr_, 0, candidate.reason, "", &*candidate.promise);
  }
  if (const Pattern::BuiltEntry* const there = EntryOf(existing, candidate.pipeline)) {
    absl::Status s = TryExisting(search, *there, candidate.reason, &*candidate.promise);
    // One that is damaged is gone now, and built again.
    const bool is_there = pattern_->FindLayout(there->description->pipeline) != nullptr;
    if (!s.ok() || is_there) return s;
  }
  return TryCandidate(search, candidate, last);
}

absl::Status PatternJob::TryExisting(SignatureSearch& search, const Pattern::BuiltEntry& entry,
                                     std::string_view reason, const Promise* promise) {
  const std::string& pipeline = entry.description->pipeline;
  // What only products are read from.
  if (ReadsLayouts(Operation::kSpgemm, entry.description->kind)) return absl::OkStatus();
  const absl::StatusOr<std::shared_ptr<const Layout>> layout = entry.layout->Get(&stop_);
  if (layout.ok()) {
    return TryLayout(search, *layout, entry.build_seconds, std::string(reason), "", promise);
  }
  if (absl::IsDataLoss(layout.status())) {
    // What is not there is built again.
    modules_.observer.OnDamage(Sentence(layout.status()));
    DropLayout(*pattern_, pipeline);
    return absl::OkStatus();
  }
  if (!absl::IsResourceExhausted(layout.status())) return layout.status();
  search.short_of_memory = true;
  RecordDecision(search, pipeline, "no_memory", Sentence(layout.status()));
  return absl::OkStatus();
}

absl::Status PatternJob::TryCandidate(SignatureSearch& search, const Candidate& candidate,
                                      bool last) {
  if (!candidate.worth_trying) {
    RecordDecision(search, candidate.pipeline, "ruled_out", candidate.reason);
    return absl::OkStatus();
  }
  const ProblemSignature& c = search.plain.signature;
  absl::StatusOr<LayoutBuilder::Built> built = builder_->Get(candidate, c, again_.contains(c));
  if (!built.ok()) return built.status();
  if (built->layout == nullptr) {
    RecordDecision(search, candidate.pipeline,
                   built->out_of_time       ? "no_time"
                   : built->short_of_memory ? "no_memory"
                                            : "ruled_out",
                   built->note);
    search.short_of_memory |= built->short_of_memory;
    search.short_of_time |= built->out_of_time;
    return absl::OkStatus();
  }
  absl::Status tried =
      TryLayout(search, built->layout, built->seconds, candidate.reason, candidate.kernel,
                candidate.promise ? &*candidate.promise : nullptr);
  // Losers make room for the next candidate.
  if (last) {
    builder_->DropAllBut(search.best ? std::set<std::string>{search.best->layout->pipeline}
                                     : std::set<std::string>());
  }
  return tried;
}

absl::Status PatternJob::TryLayout(SignatureSearch& search,
                                   const std::shared_ptr<const Layout>& layout,
                                   double build_seconds, const std::string& reason,
                                   std::string_view only, const Promise* promise) {
  const ProblemSignature& c = search.plain.signature;
  std::vector<std::string_view> kernels = KernelsFor(search.trial->problem(), *layout);
  const bool plain = layout == csr_;
  const std::string_view default_kernel = kernels.empty() ? "" : kernels.front();
  if (plain) kernels.erase(kernels.begin());
  if (!only.empty()) {
    std::erase_if(kernels, [&](std::string_view kernel) { return kernel != only; });
  }
  const auto estimate_of = [&](std::string_view kernel) -> const Estimate* {
    if (promise == nullptr) return nullptr;
    const auto found = std::ranges::find(promise->kernels, kernel, &Estimate::kernel);
    return found == promise->kernels.end() ? nullptr : &*found;
  };
  // Where none of those that the model knows serves, all are tried; but not where it is the default
  // alone that it expects something of.
  std::string why_not = kernels.empty() ? "there is no kernel for it" : "";
  if (std::ranges::any_of(kernels, estimate_of)) {
    std::erase_if(kernels, [&](std::string_view kernel) { return estimate_of(kernel) == nullptr; });
  } else if (plain && estimate_of(default_kernel) != nullptr) {
    kernels.clear();
    why_not = "the default is expected to be the fastest of its kernels";
  }
  std::string_view outcome = "ruled_out";
  // Plain CSR's kernels cost nothing but the trial.
  if (!plain && deadline_.passed()) {
    why_not = deadline_.Sentence();
    outcome = "no_time";
    search.short_of_time = true;
    kernels.clear();
  }
  if (kernels.empty()) {
    if (!plain) RecordDecision(search, layout->pipeline, outcome, why_not);
    return absl::OkStatus();
  }
  progress_.At("trial", 0, 0);
  progress_.Say(fmt::format("trying {} for {}", layout->pipeline, SignatureText(c)));
  absl::StatusOr<Array> values = BackendOf(c).ValuesFor(
      *search.matrix, *layout, modules_.budget.Source(MemoryUse::kPreparation),
      modules_.options.threads_per_worker);
  if (absl::IsDataLoss(values.status())) return values.status();
  for (std::string_view name : kernels) {
    const std::string kernel(name);
    const double budget_ms = plain ? search.share_ms : deadline_.LeftOf(search.share_ms);
    absl::StatusOr<TrialTimes> times =
        values.ok() ? search.trial->Against({layout, *values, kernel}, budget_ms)
                    : absl::StatusOr<TrialTimes>(values.status());
    if (EndsJob(times.status())) return times.status();
    if (!times.ok()) {
      why_not = fmt::format("{}: {}", kernel, Sentence(times.status()));
      if (absl::IsResourceExhausted(times.status())) {
        search.short_of_memory = true;
        if (outcome != kTried) outcome = "no_memory";
      } else if (absl::IsDeadlineExceeded(times.status())) {
        search.short_of_time = true;
        if (outcome != kTried) outcome = "no_time";
      }
      continue;
    }
    outcome = kTried;
    RecordBaseline(search);
    RecordMeasurement(search, layout->pipeline, kernel, *times, build_seconds);
    progress_.Say(fmt::format("{}: {} has {:.2f}x plain CSR's speed for K = {}", SignatureText(c),
                              layout->pipeline, times->speedup(), search.k));
    const Estimate* const estimate = estimate_of(name);
    if (estimate != nullptr) {
      search.shared_error->Saw(-std::log2(times->speedup()) - estimate->log2_ratio,
                               estimate->deviation);
    }
    // Another kernel costs nothing, another layout memory.
    const double best = search.best ? search.best->times.speedup() : 1;
    const bool more_memory = !plain && (!search.best || search.best->layout == csr_);
    const double least = best * (more_memory ? kLeastSpeedup : 1);
    bool won = times->speedup() > least;
    if (won &&
        (!times->WonMostTurns() || IsOfBusyMachine(search, layout->pipeline, kernel, *times))) {
      // Once more: what the machine did besides may have had it win.
      times = search.trial->Against({layout, *values, kernel}, budget_ms);
      if (EndsJob(times.status())) return times.status();
      if (!times.ok()) continue;
      RecordMeasurement(search, layout->pipeline, kernel, *times, build_seconds);
      won = times->speedup() > least && times->WonMostTurns();
      if (!won) {
        search.uncertain = fmt::format(
            "{} won at first, and was {} when it was timed once more, slower in {} of {} turns: "
            "the machine was busy",
            plain ? kernel : layout->pipeline, Compared(times->speedup()), times->runs - times->won,
            times->runs);
        progress_.Say(fmt::format("{}: {}", SignatureText(c), search.uncertain));
      }
    }
    if (won) {
      search.best = {layout, kernel, *times};
      if (estimate != nullptr) {
        search.best->model = promise->model;
        search.best->expected_speedup = std::exp2(-estimate->log2_ratio);
      }
    }
  }
  if (!plain)
    RecordDecision(search, layout->pipeline, outcome, outcome == kTried ? reason : why_not);
  return absl::OkStatus();
}

bool PatternJob::IsOfBusyMachine(const SignatureSearch& search, const std::string& pipeline,
                                 const std::string& kernel, const TrialTimes& times) const {
  Plan plan = search.plain;
  plan.pipeline = pipeline;
  plan.kernel = kernel;
  plan.plan_ms = times.median;
  return FindBusyTrials(plan, pattern_->trials().measurements()).has_value();
}

absl::Status PatternJob::TryBaseline(SignatureSearch& search) {
  progress_.At("trial", 0, 0);
  const absl::Status alone = search.trial->BaselineAlone(search.share_ms).status();
  if (EndsJob(alone)) return alone;
  if (!alone.ok()) {
    AddNote(search, fmt::format("plain CSR was not timed: {}", Sentence(alone)));
    search.short_of_time |= absl::IsDeadlineExceeded(alone);
    search.short_of_memory |= absl::IsResourceExhausted(alone);
    return absl::OkStatus();
  }
  RecordBaseline(search);
  return absl::OkStatus();
}

void PatternJob::RecordBaseline(SignatureSearch& search) {
  search.baseline_ms = search.trial->baseline_median();
  RecordMeasurement(search, std::string(kCsr), search.plain.kernel,
                    {search.baseline_ms, search.baseline_ms, search.trial->baseline_runs(), false},
                    0);
}

double PatternJob::MovedForCertain(const Problem& problem) const {
  const double streamed =
      StreamedBytes(problem, pattern_->rows(), pattern_->cols(), pattern_->nnz());
  const auto csr = pattern_->resident_csr();
  if (problem.operation != Operation::kSpmm || problem.transposed || csr == nullptr) {
    return streamed;
  }
  // Columns without a nonzero leave rows of the operand out.
  std::vector<bool> used(static_cast<size_t>(pattern_->cols()));
  int64_t rows = 0;
  for (const int32_t column : ViewCsr(*csr).column_indices) {
    rows += used[static_cast<size_t>(column)] ? 0 : 1;
    used[static_cast<size_t>(column)] = true;
  }
  return streamed + static_cast<double>(rows) * static_cast<double>(problem.k) *
                        static_cast<double>(SizeOf(problem.type));
}

void PatternJob::RecordMeasurement(const SignatureSearch& search, const std::string& pipeline,
                                   const std::string& kernel, const TrialTimes& times,
                                   double build_seconds) {
  const ProblemSignature& c = search.plain.signature;
  Measurement measurement;
  measurement.signature = c;
  measurement.k = search.k;
  measurement.pipeline = pipeline;
  measurement.kernel = kernel;
  measurement.device = Name(BackendOf(c).id());
  measurement.median_ms = times.median;
  measurement.gflops = Gflops(pattern_->nnz(), search.k, times.median);
  measurement.runs = times.runs;
  measurement.baseline_ms = times.baseline_median;
  const Problem& problem = search.trial->problem();
  measurement.compulsory_bytes =
      CompulsoryBytes(problem, pattern_->rows(), pattern_->cols(), pattern_->nnz());
  if (pipeline == kCsr) BackendOf(c).SawMoved(MovedForCertain(problem), times.median);
  measurement.roofline_ms = 1e3 * measurement.compulsory_bytes / BackendOf(c).bytes_per_second();
  measurement.preparation_ms = 1e3 * build_seconds;
  measurement.model = BackendOf(c).model();
  measurement.censored = times.censored;
  pattern_->trials().Add(std::move(measurement));
}

void PatternJob::RecordDecision(SignatureSearch& search, const std::string& pipeline,
                                std::string_view outcome, std::string reason) {
  const ProblemSignature& c = search.plain.signature;
  const bool tried = outcome == kTried;
  if (!tried) {
    progress_.Say(fmt::format("{}: {} not tried: {}", SignatureText(c), pipeline, reason));
  }
  modules_.observer.OnPipeline(outcome);
  search.decisions.push_back({c, pipeline, tried, std::move(reason)});
}

void PatternJob::AddNote(SignatureSearch& search, std::string what) {
  const ProblemSignature& c = search.plain.signature;
  progress_.Say(fmt::format("{}: {}", SignatureText(c), what));
  const auto note = std::ranges::find(search.decisions, "", &Decision::pipeline);
  if (note != search.decisions.end()) {
    note->reason += "; " + what;
  } else {
    search.decisions.push_back({c, "", false, std::move(what)});
  }
}

const std::set<Asked>& PatternJob::AskedFor(const ProblemSignature& c) const {
  static const std::set<Asked> kNothing;
  const auto asked = asked_.find(c);
  return asked == asked_.end() ? kNothing : asked->second;
}

bool PatternJob::OnlyAsked(const ProblemSignature& c, const PlanTable::Found& found) const {
  if (modules_.options.only_asked) return true;
  return found.decided() && !again_.contains(c) && !AskedFor(c).empty();
}

void PatternJob::KeepEarlierDecisions(SignatureSearch& search) const {
  for (Decision& earlier : pattern_->trials().decisions()) {
    if (earlier.signature != search.plain.signature || earlier.pipeline.empty()) continue;
    const std::set<Asked>& asked_for = AskedFor(earlier.signature);
    const bool is_new =
        asked_for.contains(Asked())
            ? std::ranges::any_of(search.decisions,
                                  [&](const Decision& decision) {
                                    return decision.pipeline == WithoutSkipRules(earlier.pipeline);
                                  })
            : std::ranges::any_of(asked_for, [&](const Asked& asked) {
                return asked.pipeline == earlier.pipeline;
              });
    if (is_new) continue;
    std::erase_if(search.decisions,
                  [&](const Decision& decision) { return decision.pipeline == earlier.pipeline; });
    search.decisions.push_back(std::move(earlier));
  }
}

void PatternJob::Decide(SignatureSearch& search) {
  Plan plan = search.plain;
  plan.baseline_ms = plan.plan_ms = search.baseline_ms;
  plan.reason = fmt::format("plain CSR is kept, {}", WhyPlain(search));
  if (search.best && pattern_->FindLayout(search.best->layout->pipeline) == nullptr &&
      search.best->layout != csr_) {
    const std::string pipeline = search.best->layout->pipeline;
    LayoutBuilder::Built built = builder_->Take(pipeline);
    absl::Status added =
        MoveTo(modules_.budget.Source(MemoryUse::kLayouts, pattern_->payer()), *built.layout);
    if (added.ok())
      added = AddLayout(built.layout, built.seconds, plan.signature.device == DeviceKind::kCpu);
    if (added.ok()) {
      unstored_.insert(pipeline);
    } else {
      plan.reason = fmt::format("plain CSR is kept: no memory to keep a layout that is {} ({})",
                                Compared(search.best->times.speedup()), Sentence(added));
      search.short_of_memory |= absl::IsResourceExhausted(added);
      search.best.reset();
    }
  }
  if (search.best) {
    plan.pipeline = search.best->layout->pipeline;
    plan.kernel = search.best->kernel;
    plan.baseline_ms = search.best->times.baseline_median;
    plan.plan_ms = search.best->times.median;
    plan.reason = fmt::format("{:.2f}x over plain CSR", search.best->times.speedup());
    if (!search.best->model.empty()) {
      plan.reason += fmt::format(", {:.2f}x expected by model {}", search.best->expected_speedup,
                                 search.best->model);
    }
  }
  if (!search.best && !search.uncertain.empty()) {
    // What may have won by accident is no proof against what serves.
    const PlanTable::Found present = pattern_->plans().Find(plan.signature);
    if (present.exact && present.plan->plan.pipeline != kCsr) {
      notes_.push_back(
          fmt::format("{}: the plan stays, {}", SignatureText(plan.signature), search.uncertain));
      return;
    }
  }
  plan.provisional = plan.pipeline == kCsr && (search.short_of_memory || search.short_of_time);
  if (search.only_asked) {
    // How operands had best lie is not asked again.
    const PlanTable::Found present = pattern_->plans().Find(plan.signature);
    if (present.exact) plan.distribution = present.plan->plan.distribution;
    plan.reason += WhereBest(plan.distribution);
  }
  if (search.only_asked && plan.provisional) {
    notes_.push_back(fmt::format("{}: the plan stays, not all could be tried beside it",
                                 SignatureText(plan.signature)));
    return;
  }
  Activate(plan);
}

absl::Status PatternJob::TryDistributions(SignatureSearch& search) {
  const ProblemSignature& c = search.plain.signature;
  const bool several = modules_.executor.gpus().size() > 1;
  if (c.operation != Operation::kSpmm || c.device != DeviceKind::kCuda || !several) {
    return absl::OkStatus();
  }
  const absl::StatusOr<DistributionChoice> choice =
      ChooseDistribution(modules_.executor, *search.matrix, c.transposed, c.k_bucket, &stop_);
  if (!choice.ok()) return EndsJob(choice.status()) ? choice.status() : absl::OkStatus();
  if (choice->gpus < 2) return absl::OkStatus();
  TriedDistribution tried = {Distribution::kWhole, choice->gpus, 0, 0};
  bool all_tried = true;
  for (const DistributionEstimate& estimate : choice->estimates) {
    if (estimate.distribution == Distribution::kWhole) continue;
    const std::string what =
        fmt::format("{} over {} GPUs", Name(estimate.distribution), choice->gpus);
    const double expected = choice->estimates.front().milliseconds / estimate.milliseconds;
    Decision decision{c, what, false, {}};
    if (expected < kLeastSpeedup || deadline_.passed()) {
      decision.reason = expected < kLeastSpeedup
                            ? fmt::format("not tried: {} by an estimate", Compared(expected))
                            : deadline_.Sentence();
      all_tried = all_tried && expected < kLeastSpeedup;
    } else {
      DistributionTrialSpec spec{search.matrix, ProblemOf(c), estimate.distribution, {}, 0, kNever};
      spec.bounds = ChosenBounds(ViewCsr(*csr_), c.transposed, choice->gpus);
      // Requests vary more than kernels: of short ones all the turns that there are at most.
      constexpr double kLeastBudgetMs = 100;
      spec.budget_ms = deadline_.LeftOf(std::max(search.share_ms, kLeastBudgetMs));
      spec.until = deadline_.ForTrials();
      const absl::StatusOr<TrialTimes> times =
          TryDistribution(spec, modules_.executor, modules_.budget, &stop_);
      if (EndsJob(times.status())) return times.status();
      if (times.ok()) {
        decision.tried = true;
        decision.reason =
            fmt::format("{}: {:.4f} ms a request, {:.4f} ms on one GPU", Compared(times->speedup()),
                        times->median, times->baseline_median);
        // All are compared with the best that one GPU did, as some met it when it had rested.
        const bool first = tried.whole_ms == 0;
        tried.whole_ms =
            first ? times->baseline_median : std::min(tried.whole_ms, times->baseline_median);
        if (first || times->median < tried.best_ms) {
          tried.best = estimate.distribution;
          tried.best_ms = times->median;
        }
      } else {
        decision.reason = fmt::format("could not be tried: {}", Sentence(times.status()));
        all_tried = false;
      }
    }
    search.decisions.push_back(std::move(decision));
  }
  pattern_->trials().SetDecisions(c, search.decisions);
  const PlanTable::Found found = pattern_->plans().Find(c);
  // Without a trial the estimate stands.
  if (!all_tried || tried.whole_ms == 0 || !found.exact) return absl::OkStatus();
  if (tried.whole_ms < kLeastSpeedup * tried.best_ms) {
    tried.best = Distribution::kWhole;
    tried.best_ms = tried.whole_ms;
  }
  ActivePlan plan = *found.plan;
  plan.plan.distribution = tried;
  plan.plan.reason += WhereBest(tried);
  pattern_->plans().Replace(std::make_shared<const ActivePlan>(std::move(plan)));
  return absl::OkStatus();
}

absl::Status PatternJob::BuildRows(const ProductsInRows& rows) {
  progress_.At("rows", 0, 0);
  for (const auto& [c, bounds] : rows) {
    const std::shared_ptr<const ActivePlan> plan = pattern_->plans().Find(c).plan;
    const auto built = FindOrBuildRows(modules_.executor.derived(), pattern_, ProblemOf(c), plan,
                                       bounds, /*with_layouts=*/true, modules_.budget, &stop_);
    if (EndsJob(built.status())) return built.status();
    if (!built.ok()) {
      notes_.push_back(
          fmt::format("parts for several GPUs have plain CSR: {}", Sentence(built.status())));
    }
  }
  progress_.Leave();
  return absl::OkStatus();
}

double PatternJob::ExpectedRequests(const ProblemSignature& c,
                                    const std::optional<PatternPair>& pair) const {
  constexpr double kSeconds = 3600;
  double seen = 0;
  // A signature without a plan is served by that of another K.
  const PlanTable& plans = pattern_->plans();
  for (const PlanTable::Used& used : plans.ListUsed(c.type, plans.uses())) {
    ProblemSignature served = used.plan->plan.signature;
    served.k_bucket = c.k_bucket;
    if (served == c && used.plan->plan.pair == pair) seen += used.per_second;
  }
  return std::max(modules_.options.expected_requests, seen * kSeconds);
}

void PatternJob::JudgeModels(const ProblemSignature& c, const Features* features,
                             const std::vector<Measurement>& measured) {
  if (features == nullptr) return;
  const auto judge = [&](const std::shared_ptr<const Model>& model, std::string_view role) {
    if (model == nullptr) return;
    const std::optional<Choice> choice = Selector::ChoiceOf(*model, c, *features, measured);
    if (choice) modules_.observer.OnModelChoice(model->name(), role, choice->share);
  };
  judge(modules_.selector.used(c.device), "used");
  judge(modules_.selector.watched(c.device), "watched");
}

std::string PatternJob::WhyPlain(const SignatureSearch& search) const {
  if (!search.uncertain.empty()) return search.uncertain;
  const Measurement* best = nullptr;
  const auto speedup = [](const Measurement& m) { return m.baseline_ms / m.median_ms; };
  const std::set<Asked>& asked = AskedFor(search.plain.signature);
  const auto was_asked_for = [&](const Measurement& m) {
    return std::ranges::any_of(asked, [&](const Asked& one) {
      return one.pipeline == m.pipeline && (one.kernel.empty() || one.kernel == m.kernel);
    });
  };
  // Who asked for one wants to know of that one.
  const auto better = [&](const Measurement& a, const Measurement& b) {
    return std::pair(was_asked_for(a), speedup(a)) > std::pair(was_asked_for(b), speedup(b));
  };
  const std::vector<Measurement> measurements = pattern_->trials().measurements();
  for (const Measurement& m : measurements) {
    const bool is_plain = m.pipeline == kCsr && m.kernel == search.plain.kernel;
    if (m.signature != search.plain.signature || is_plain || m.median_ms <= 0) continue;
    if (best == nullptr || better(m, *best)) best = &m;
  }
  if (best == nullptr) {
    // Often for one reason: there is too little of the matrix.
    const bool one_reason = !search.decisions.empty() &&
                            std::ranges::all_of(search.decisions, [&](const Decision& decision) {
                              return decision.reason == search.decisions.front().reason;
                            });
    return one_reason ? search.decisions.front().reason : "no other was tried";
  }
  return fmt::format("the {}, {}, was {}{}",
                     was_asked_for(*best) ? "one that was asked for" : "next best",
                     best->pipeline == kCsr ? best->kernel : best->pipeline,
                     IsFaster(speedup(*best)) ? "only " : "", Compared(speedup(*best)));
}

absl::Status PatternJob::AddLayout(std::shared_ptr<Layout> layout, double build_seconds,
                                   bool for_cpu) {
  const std::string pipeline = layout->pipeline;
  pattern_->AddLayout(layout, build_seconds);
  if (!for_cpu) return absl::OkStatus();
  for (const MatrixLease& matrix : modules_.catalog.MatricesOf(*pattern_)) {
    absl::Status placed =
        matrix
            ->ValuesIn(*layout, modules_.budget.Source(MemoryUse::kLayouts, matrix->payer()),
                       modules_.options.threads_per_worker)
            .status();
    if (placed.ok()) continue;
    // A matrix whose values are damaged says so to whoever asks for it; the others go on.
    if (absl::IsDataLoss(placed)) {
      notes_.push_back(Sentence(placed));
      continue;
    }
    DropLayout(*pattern_, pipeline);
    return placed;
  }
  return absl::OkStatus();
}

void PatternJob::DropLayout(Pattern& pattern, const std::string& pipeline) {
  pattern.DropLayout(pipeline);
  for (const MatrixLease& matrix : modules_.catalog.MatricesOf(pattern)) {
    matrix->DropLayout(pipeline);
  }
}

bool PatternJob::IsMeasured(const Plan& plan, int runs) const {
  return std::ranges::any_of(pattern_->trials().measurements(), [&](const Measurement& m) {
    return m.signature == plan.signature && m.pipeline == plan.pipeline &&
           m.kernel == plan.kernel && m.pair == plan.pair && m.runs > runs;
  });
}

void PatternJob::Activate(const Plan& plan) {
  const PlanTable::Found present = pattern_->plans().Find(plan.signature, plan.pair);
  if (plan.provisional && present.decided() && !IsMeasured(present.plan->plan)) {
    const std::string product =
        plan.pair ? ", " + ProductText(*plan.pair, pattern_->hash()) : std::string();
    notes_.push_back(fmt::format("{}{}: {} stays, it could not be tried again ({})",
                                 SignatureText(plan.signature), product,
                                 present.plan->plan.ToString(), plan.reason));
    return;
  }
  // A product finds its factors' layouts when it is asked for: they may come and go.
  pattern_->plans().Replace(std::make_shared<const ActivePlan>(
      ActivePlan{plan, plan.pair ? nullptr : pattern_->FindLayout(plan.pipeline)}));
}

bool PatternJob::IsUsed(const Pattern& pattern, const std::string& pipeline) const {
  const auto can_be_asked_for = [&](const std::optional<PatternPair>& pair) {
    return !pair || modules_.catalog.HasPattern(pair->right);
  };
  const auto is_used_by = [&](const Pattern& left) {
    const bool is_planned = std::ranges::any_of(left.plans().List(), [&](const auto& active) {
      return UsesLayout(active->plan, left.hash(), pattern, pipeline) &&
             can_be_asked_for(active->plan.pair);
    });
    if (is_planned) return true;
    // After a restart a product has its plan again when it is asked for.
    return std::ranges::any_of(left.trials().measurements(), [&](const Measurement& m) {
      if (!m.pair || left.plans().Find(m.signature, m.pair).exact) return false;
      Plan plan;
      plan.pipeline = m.pipeline;
      plan.kernel = m.kernel;
      plan.pair = m.pair;
      return UsesLayout(plan, left.hash(), pattern, pipeline) && can_be_asked_for(m.pair);
    });
  };
  return is_used_by(pattern) ||
         std::ranges::any_of(modules_.catalog.All(), [&](const MatrixLease& matrix) {
           return is_used_by(*matrix->pattern());
         });
}

void PatternJob::DropUnusedLayouts(Pattern& pattern) {
  for (const Pattern::BuiltEntry& entry : pattern.Layouts()) {
    // A job of that pattern may be about to use the others.
    const bool is_ours =
        &pattern == pattern_.get() || ReadsLayouts(Operation::kSpgemm, entry.description->kind);
    if (is_ours) DropIfUnused(pattern, entry);
  }
}

void PatternJob::DropIfUnused(Pattern& pattern, const Pattern::BuiltEntry& entry) {
  const std::string& pipeline = entry.description->pipeline;
  const MutexLock lock(modules_.publishing);
  if (IsUsed(pattern, pipeline) || pattern.FindLayout(pipeline) != entry.layout) return;
  DropLayout(pattern, pipeline);
  const absl::Status dropped = modules_.store.DropLayout(pattern.hash(), pipeline);
  if (dropped.ok()) pattern.SetOnDisk(pipeline, nullptr);
  if (!dropped.ok()) notes_.push_back(Sentence(dropped));
}

std::string PatternJob::Detail() const { return fmt::format("{}", fmt::join(notes_, ". ")); }

std::string PatternJob::Outcome() const {
  std::vector<std::string> sentences;
  for (const auto& active : pattern_->plans().List()) {
    const Plan& plan = active->plan;
    const std::string product =
        plan.pair ? ", " + ProductText(*plan.pair, pattern_->hash()) : std::string();
    const std::string pipeline =
        plan.pair || plan.pipeline == kCsr ? std::string() : plan.pipeline + ' ';
    sentences.push_back(
        fmt::format("{}{}: {}{}", SignatureText(plan.signature), product, pipeline, plan.reason));
  }
  sentences.insert(sentences.end(), notes_.begin(), notes_.end());
  return fmt::format("{}", fmt::join(sentences, ". "));
}

}  // namespace sparsed::engine
