#include "engine/preparation/preparation.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "base/mutex.h"
#include "engine/catalog/signature.h"
#include "engine/preparation/fair_time.h"
#include "engine/preparation/job.h"
#include "engine/preparation/pattern_job.h"

namespace sparsed::engine {
namespace {

/// Added to the niceness of workers and of the OpenMP teams that they start.
constexpr int kNiceness = 10;

/// Right operands of a pattern that kernels of SpGEMM are tried with.
constexpr int64_t kMostPairs = 64;

/// Divisions of a pattern's rows whose parts wait for layouts.
constexpr size_t kMostRows = 64;

/// Pipelines and kernels that wait to be tried for a signature because they were asked for.
constexpr size_t kMostAsked = 64;

using Job = PreparationJob;
using Priority = Job::Priority;

/// What is known of a pattern's job under way.
struct Running {
  Priority priority = Priority::kTrial;
  std::set<ProblemSignature> signatures;
  Pairs pairs;
  std::atomic<bool> stop{false};
};

}  // namespace

class Preparation::Impl {
 public:
  Impl(const PreparationOptions& options, Catalog& catalog, Store& store, Budget& budget,
       Executor& executor, Observer& observer)
      : options_(options),
        light_options_(options),
        modules_{catalog, store, budget, executor, observer, selector_, options_, publishing_},
        light_modules_{catalog,  store,     budget,         executor,
                       observer, selector_, light_options_, publishing_} {
    if (!options_.enabled) return;
    for (int i = 0; i < std::max(options_.workers, 1); ++i) {
      workers_.emplace_back([this] { Work(modules_, /*light=*/false); });
    }
    light_options_.threads_per_worker = 1;
    if (options_.light_nonzeros <= 0) return;
    workers_.emplace_back([this] { Work(light_modules_, /*light=*/true); });
  }

  ~Impl() {
    {
      const MutexLock lock(mutex_);
      closing_ = true;
      queued_.clear();
      for (auto& [pattern, running] : running_) running->stop = true;
    }
    changed_.NotifyAll();
    for (std::thread& worker : workers_) worker.join();
  }

  void SetWeights(const TenantWeights& weights) {
    const MutexLock lock(mutex_);
    time_.SetWeights(weights);
  }

  void Prepare(const MatrixLease& matrix, const std::vector<ProblemSignature>& signatures,
               Requester requester) {
    const std::shared_ptr<Pattern>& pattern = matrix->pattern();
    Job job = JobFor(pattern, SignaturesOf(*matrix, signatures), /*all_again=*/{}, std::nullopt);
    job.requester = std::move(requester);
    if (job.wants_nothing() && pattern->features() != nullptr) return;
    Want(*pattern, job);
    if (!options_.enabled) return Skip(*pattern);
    // The pattern's status says so if it finds no place.
    Enqueue(std::move(job)).IgnoreError();
  }

  absl::Status Request(const MatrixLease& matrix, const std::vector<ProblemSignature>& named,
                       bool again, const std::optional<Asked>& asked, Requester requester) {
    if (!options_.enabled) {
      return absl::FailedPreconditionError("the server prepares nothing (--preparation-workers=0)");
    }
    const std::shared_ptr<Pattern>& pattern = matrix->pattern();
    std::set<ProblemSignature> signatures;
    if (named.empty()) signatures = KnownSignatures(*pattern, matrix->type());
    if (signatures.empty()) signatures = SignaturesOf(*matrix, named);
    if (asked) {
      if (absl::Status s = KeepServed(*pattern, *asked, !named.empty(), signatures); !s.ok())
        return s;
    }
    Job job = JobFor(pattern, signatures, again ? signatures : std::set<ProblemSignature>(), asked);
    job.requester = std::move(requester);
    if (asked && job.pairs.empty() &&
        std::ranges::all_of(signatures, [](const ProblemSignature& c) {
          return c.operation == Operation::kSpgemm;
        })) {
      return absl::FailedPreconditionError(
          "there is no product to try it on: multiply with the matrix first");
    }
    // After a failure it becomes ready, though there may be nothing left to do.
    const bool failed = pattern->progress().status().state == PreparationState::kFailed;
    if (job.wants_nothing() && !failed) return absl::OkStatus();
    Want(*pattern, job);
    return Enqueue(std::move(job));
  }

  void Restore(const StoreContents& contents);

  void RequestTrial(const MatrixLease& matrix, const Problem& problem) {
    const ProblemSignature c = SignatureOf(problem);
    if (!options_.enabled || !matrix->pattern()->plans().Find(c).due()) return;
    Enqueue({matrix->pattern(), Priority::kTrial, {}, {c}, std::nullopt, {}, {}}).IgnoreError();
  }

  bool RequestRows(const MatrixLease& matrix, const Problem& problem,
                   const std::vector<int64_t>& bounds) {
    if (!options_.enabled) return false;
    Job job{matrix->pattern(), Priority::kTrial, {}, {}, std::nullopt, {}, {}};
    job.rows = {{SignatureOf(problem), bounds}};
    return Enqueue(std::move(job)).ok();
  }

  void RequestTrial(const PatternProduct& product, const Problem& problem) {
    const PlanTable& plans = product.left->plans();
    const ProblemSignature c = SignatureOf(problem);
    const PlanTable::Found found = plans.Find(c, product.pair());
    // Or a layout that the plan reads is gone.
    const bool lost = found.exact && !FindFactorLayouts(product, found.plan->plan);
    if (!options_.enabled || (!found.due() && !lost)) return;
    // Of one that has a plan that has been decided.
    if (!found.exact && !IsWorthATrial(product)) return;
    Pairs pairs = {{{c, product.pair()}, product.right}};
    Enqueue({product.left, Priority::kTrial, {}, {}, std::nullopt, std::move(pairs), {}})
        .IgnoreError();
  }

  void Forget(const std::shared_ptr<Pattern>& pattern) {
    std::optional<Job> waited;
    {
      const MutexLock lock(mutex_);
      // An upload may have brought it back meanwhile.
      if (!modules_.catalog.MatricesOf(*pattern).empty()) return;
      if (const auto running = running_.find(pattern.get()); running != running_.end()) {
        running->second->stop = true;
      }
      const auto queued = queued_.find(pattern.get());
      if (queued == queued_.end()) return;
      waited = std::move(queued->second);
      queued_.erase(queued);
    }
    Tell(*waited, "cancelled", "its last matrix was deleted", 0);
  }

  Selector& selector() { return selector_; }

  int64_t pending() const {
    const MutexLock lock(mutex_);
    return static_cast<int64_t>(queued_.size() + running_.size());
  }

 private:
  /// The observer hears how it ended.
  void Tell(const Job& job, const char* state, std::string_view sentence, double seconds) {
    modules_.observer.OnPreparationEnd(state);
    modules_.observer.OnPreparationReport({state, job.pattern->hash(), std::string(sentence),
                                           seconds, job.priority == Priority::kClient,
                                           job.requester});
  }

  bool IsWorthATrial(const PatternProduct& product) const {
    if (product.left->nnz() + product.right->nnz() < kLeastPairNonzeros) return false;
    // A matrix that meets a new one each time is better off without trials.
    return std::ranges::count_if(product.left->plans().List(), [&](const auto& active) {
             const std::optional<PatternPair>& pair = active->plan.pair;
             return pair && modules_.catalog.HasPattern(pair->right);
           }) < kMostPairs;
  }

  std::vector<ProblemSignature> DefaultSignatures() const {
    if (!options_.default_signatures.empty()) return options_.default_signatures;
    return {SignatureOf(
        {Operation::kSpmm, false, ElementType::kF32, 128, modules_.executor.first_choice()})};
  }

  /// The signatures that a client names, or the default ones, of the matrix's type and the device
  /// here.
  std::set<ProblemSignature> SignaturesOf(const Matrix& matrix,
                                          const std::vector<ProblemSignature>& named) const {
    std::set<ProblemSignature> signatures;
    for (const ProblemSignature& c : named.empty() ? DefaultSignatures() : named) {
      Problem problem = ProblemOf(c);
      problem.type = matrix.type();
      problem.device = modules_.executor.first_choice();
      signatures.insert(SignatureOf(problem));
    }
    return signatures;
  }

  /// Signatures of the type that the pattern has plans or measurements for, or that are on their
  /// way.
  std::set<ProblemSignature> KnownSignatures(const Pattern& pattern, ElementType type) const {
    std::set<ProblemSignature> signatures;
    for (const auto& active : pattern.plans().List()) signatures.insert(active->plan.signature);
    for (const Measurement& m : pattern.trials().measurements()) signatures.insert(m.signature);
    {
      const MutexLock lock(mutex_);
      if (const auto waiting = queued_.find(&pattern); waiting != queued_.end()) {
        signatures.insert(waiting->second.signatures.begin(), waiting->second.signatures.end());
      }
      if (const auto running = running_.find(&pattern); running != running_.end()) {
        signatures.insert(running->second->signatures.begin(), running->second->signatures.end());
      }
    }
    std::erase_if(signatures, [&](const ProblemSignature& c) { return c.type != type; });
    return signatures;
  }

  /// Drops signatures that what is asked for does not serve; `all`: that is an error, as it is if
  /// none is left.
  static absl::Status KeepServed(const Pattern& pattern, const Asked& asked, bool all,
                                 std::set<ProblemSignature>& signatures) {
    absl::Status refused;
    for (auto c = signatures.begin(); c != signatures.end();) {
      absl::Status status = CheckAsked(asked, *c, pattern.rows(), pattern.cols(), pattern.nnz());
      if (absl::IsInvalidArgument(status)) {
        refused = std::move(status);
        c = signatures.erase(c);
      } else if (!status.ok()) {
        return status;
      } else {
        ++c;
      }
    }
    return all || signatures.empty() ? refused : absl::OkStatus();
  }

  /// A client's job for those of the signatures that are not decided or that are in `all_again`;
  /// for all of them, if something is `asked` for.
  Job JobFor(const std::shared_ptr<Pattern>& pattern, const std::set<ProblemSignature>& signatures,
             std::set<ProblemSignature> all_again, const std::optional<Asked>& asked) const {
    Job job{pattern, Priority::kClient, {}, {}, std::nullopt, {}, std::move(all_again)};
    for (const ProblemSignature& c : signatures) {
      if (asked) job.asked[c].insert(*asked);
      const bool again = asked || job.again.contains(c);
      if (again || !pattern->plans().Find(c).decided()) job.signatures.insert(c);
      if (c.operation != Operation::kSpgemm || IsHalf(c.type)) continue;
      // What it will be multiplied with is not known; its own square is the likeliest.
      const PatternPair square = {pattern->hash()};
      if (pattern->rows() == pattern->cols() &&
          (again || !pattern->plans().Find(c, square).decided())) {
        job.pairs.insert({{c, square}, pattern});
      }
      if (again) job.pairs.merge(MeasuredPairs(modules_.catalog, *pattern, c));
    }
    return job;
  }

  /// Remembers the job's signatures over a restart, until they were tried.
  void Want(Pattern& pattern, const Job& job) {
    std::vector<WantedRecord> wanted;
    wanted.reserve(job.signatures.size());
    for (const ProblemSignature& c : job.signatures) {
      // What is asked for besides is not remembered.
      if (!job.again.contains(c) && pattern.plans().Find(c).decided()) continue;
      wanted.push_back({pattern.hash(), ToString(c)});
    }
    const absl::Status stored = modules_.store.PutWanted(wanted);
    // NOT_FOUND: the pattern has been deleted meanwhile.
    if (stored.ok() || absl::IsNotFound(stored)) return;
    pattern.progress().Update([&](PreparationStatus& status) {
      status.message = fmt::format("a restart would lose what is to be prepared: {}",
                                   std::string(stored.message()));
    });
  }

  static void Skip(Pattern& pattern) {
    pattern.progress().Update([](PreparationStatus& status) {
      status.state = PreparationState::kReady;
      status.detail = status.message = "preparation is switched off; plain CSR is used";
    });
  }

  /// Merges the job with one of the same pattern that waits, or drops what is under way already.
  /// RESOURCE_EXHAUSTED if it is the least important of too many.
  absl::Status Enqueue(Job job);
  /// Counts it as one of its tenant's. RESOURCE_EXHAUSTED.
  static absl::Status Count(Job& job);
  /// Says in the pattern's status that it is not prepared; the refusal.
  static absl::Status Reject(const Job& job, const absl::Status& why);
  /// Takes the least important job of the tenant that has most out of a queue that is too long.
  std::optional<Job> TakeExcessLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Of jobs whose pattern has none under way, or of the light ones among them: of the tenant that
  /// was given the least time, of its most important ones the one that would have ended first.
  std::map<const Pattern*, Job>::iterator NextLocked(bool light)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// A worker's thread. `light`: it takes light jobs alone, and so is soon there for the next.
  void Work(const JobModules& modules, bool light);
  /// False: a card was lost meanwhile, and another one may take its place.
  bool Run(const JobModules& modules, const Job& job, const std::atomic<bool>& stop);
  /// Publishes how a job ended. The pattern stays QUEUED if an upload asks for more of it.
  void End(const Job& job, const PatternJob& work, PreparationState state,
           const std::string& detail);

  const PreparationOptions options_;
  PreparationOptions light_options_;
  Mutex publishing_;
  Selector selector_;
  const JobModules modules_, light_modules_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<const Pattern*, Job> queued_ ABSL_GUARDED_BY(mutex_);
  std::map<const Pattern*, std::shared_ptr<Running>> running_ ABSL_GUARDED_BY(mutex_);
  FairTime time_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> workers_;
};

void Preparation::Impl::Restore(const StoreContents& contents) {
  std::map<std::string, StoredPreparation> by_hash;
  for (const PatternRecord& pattern : contents.patterns) {
    by_hash[pattern.hash].record = pattern.preparation;
  }
  for (const LayoutRecord& layout : contents.layouts) {
    by_hash[layout.pattern_hash].layouts.push_back(layout);
  }
  for (const PlanRecord& plan : contents.plans) {
    by_hash[plan.pattern_hash].plans.push_back(plan);
  }
  std::map<std::string, std::set<ProblemSignature>> wanted;
  for (const WantedRecord& record : contents.wanted) {
    const std::optional<ProblemSignature> c = ParseProblemSignature(record.signature);
    if (c) wanted[record.pattern_hash].insert(*c);
  }
  std::map<std::string, std::shared_ptr<Pattern>> patterns;
  for (const MatrixLease& matrix : modules_.catalog.All()) {
    patterns[matrix->pattern()->hash()] = matrix->pattern();
  }
  std::map<std::string, std::set<ProblemSignature>> foreign = RestoreMeasurements(
      contents, patterns,
      [this](DeviceKind kind) -> const std::string& { return modules_.executor.model(kind); });
  for (const auto& [hash, pattern] : patterns) {
    if (options_.enabled) RestoreProductLayouts(modules_, *pattern, by_hash[hash]);
  }
  for (const auto& [hash, pattern] : patterns) {
    if (!options_.enabled) {
      Skip(*pattern);
      continue;
    }
    StoredPreparation& stored = by_hash[hash];
    stored.foreign = std::move(foreign[hash]);
    pattern->progress().Update([&](PreparationStatus& status) {
      status.detail = stored.record.detail;
      status.seconds = stored.record.seconds;
    });
    std::set<ProblemSignature> again;
    for (const ProblemSignature& c : wanted[hash]) {
      const auto plan = std::ranges::find(stored.plans, ToString(c), &PlanRecord::signature);
      if (plan != stored.plans.end()) again.insert(c);
    }
    Job job = JobFor(pattern, wanted[hash], std::move(again), std::nullopt);
    job.priority = Priority::kRestore;
    job.stored = std::move(stored);
    if (pattern->payer() != nullptr) {
      job.hold = TenantOf(*pattern->payer()).HoldAnyway(Quota::kPreparations);
    }
    const MutexLock lock(mutex_);
    job.queued = Job::Clock::now();
    queued_[pattern.get()] = std::move(job);
  }
  changed_.NotifyAll();
}

absl::Status Preparation::Impl::Enqueue(Job job) {
  const std::shared_ptr<Pattern> pattern = job.pattern;
  std::optional<Job> excess;
  {
    const MutexLock lock(mutex_);
    if (closing_) return absl::OkStatus();
    const auto running = running_.find(pattern.get());
    const bool runs = running != running_.end() && !running->second->stop;
    // A trial does not show in the pattern's state, by which clients wait.
    const bool shows = runs && running->second->priority != Priority::kTrial;
    if (shows || (runs && job.priority == Priority::kTrial)) {
      const Running& under_way = *running->second;
      const auto is_anew = [&](const ProblemSignature& c) {
        return job.again.contains(c) || job.asked.contains(c);
      };
      std::erase_if(job.signatures, [&](const ProblemSignature& c) {
        return under_way.signatures.contains(c) && !is_anew(c);
      });
      std::erase_if(job.pairs, [&](const auto& pair) {
        return under_way.pairs.contains(pair.first) && !is_anew(pair.first.first);
      });
      if (job.wants_nothing()) return absl::OkStatus();
    }
    // Its last matrix may have been deleted before this call; Forget has then come already.
    if (modules_.catalog.MatricesOf(*pattern).empty()) return absl::OkStatus();
    // Of one under way the state is its own until it has ended.
    if (job.priority == Priority::kClient && !shows) {
      pattern->progress().Update(
          [](PreparationStatus& status) { status.state = PreparationState::kQueued; });
    }
    if (const auto waiting = queued_.find(pattern.get()); waiting != queued_.end()) {
      AskedOf& waits = waiting->second.asked;
      for (const auto& [c, asked] : job.asked) {
        if (waits[c].size() + asked.size() <= kMostAsked) continue;
        return absl::ResourceExhaustedError(fmt::format(
            "{} transform pipelines and kernels wait to be tried for {}; wait until the "
            "preparation has ended",
            waits[c].size(), SignatureText(c)));
      }
      waiting->second.priority = std::max(waiting->second.priority, job.priority);
      if (waiting->second.requester.request_id.empty()) {
        waiting->second.requester = std::move(job.requester);
      }
      waiting->second.signatures.merge(job.signatures);
      waiting->second.again.merge(job.again);
      for (auto& [c, asked] : job.asked) waits[c].merge(asked);
      // Of more it is asked again (RowDistribution::AsksForLayouts).
      if (waiting->second.rows.size() < kMostRows) waiting->second.rows.merge(job.rows);
      Pairs& pairs = waiting->second.pairs;
      std::erase_if(pairs, [](const auto& pair) { return pair.second.expired(); });
      if (static_cast<int64_t>(pairs.size()) < kMostPairs) pairs.merge(job.pairs);
      return absl::OkStatus();
    }
    job.queued = Job::Clock::now();
    if (absl::Status counted = Count(job); !counted.ok()) {
      // A trial does not show in the pattern's state, and is asked for again.
      if (job.priority != Priority::kTrial) Reject(job, counted).IgnoreError();
      return counted;
    }
    queued_.emplace(pattern.get(), std::move(job));
    excess = TakeExcessLocked();
  }
  changed_.NotifyAll();  // one of them may be light, or not
  if (!excess) return absl::OkStatus();
  const absl::Status why =
      absl::ResourceExhaustedError(fmt::format("{} preparations are waiting", options_.max_queued));
  Tell(*excess, "cancelled", std::string(why.message()), 0);
  const absl::Status rejected = Reject(*excess, why);
  return excess->pattern == pattern ? rejected : absl::OkStatus();
}

absl::Status Preparation::Impl::Count(Job& job) {
  if (job.pattern->payer() == nullptr) return absl::OkStatus();
  absl::StatusOr<TenantHold> hold = TenantOf(*job.pattern->payer()).Hold(Quota::kPreparations);
  if (hold.ok()) job.hold = *std::move(hold);
  return hold.status();
}

absl::Status Preparation::Impl::Reject(const Job& job, const absl::Status& why) {
  const std::string sentence = fmt::format(
      "not prepared: {}; {}", std::string(why.message()),
      job.pattern->plans().List().empty() ? "plain CSR is used" : "the present plans are used");
  job.pattern->progress().Update([&](PreparationStatus& status) {
    status.message = sentence;
    if (job.priority == Priority::kTrial) return;
    status.state = PreparationState::kFailed;
    status.detail = status.message;
  });
  return absl::ResourceExhaustedError(sentence);
}

std::optional<Job> Preparation::Impl::TakeExcessLocked() {
  // Restores came all at once, at the start, and are as many as there are patterns.
  int64_t waiting = 0, most = 0;
  std::map<std::string_view, int64_t> of_tenant;
  for (const auto& [pattern, job] : queued_) {
    if (job.stored) continue;
    ++waiting;
    most = std::max(most, ++of_tenant[job.tenant()]);
  }
  if (waiting <= options_.max_queued) return std::nullopt;
  auto least = queued_.end();
  for (auto it = queued_.begin(); it != queued_.end(); ++it) {
    const Job& job = it->second;
    if (job.stored || of_tenant[job.tenant()] < most) continue;
    if (least == queued_.end() || std::pair(job.priority, least->second.queued) <
                                      std::pair(least->second.priority, job.queued)) {
      least = it;
    }
  }
  return std::move(queued_.extract(least).mapped());
}

std::map<const Pattern*, Job>::iterator Preparation::Impl::NextLocked(bool light) {
  auto next = queued_.end();
  double next_start = 0;
  Job::Clock::time_point next_would_end;
  for (auto it = queued_.begin(); it != queued_.end(); ++it) {
    const Job& job = it->second;
    if (running_.contains(it->first) || (light && job.nonzeros() >= options_.light_nonzeros))
      continue;
    const double start = time_.StartOf(job.tenant());
    const Job::Clock::time_point would_end = job.would_end();
    if (next == queued_.end() || std::tuple(start, next->second.priority, would_end) <
                                     std::tuple(next_start, job.priority, next_would_end)) {
      next = it;
      next_start = start;
      next_would_end = would_end;
    }
  }
  return next;
}

void Preparation::Impl::Work(const JobModules& modules, bool light) {
  // On Linux a thread has a niceness of its own, and the threads that it starts inherit it.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
  while (true) {
    Job job;  // destroyed without the lock: it may be the last to hold a large pattern
    MutexLock lock(mutex_);
    auto next = NextLocked(light);
    while (!closing_ && next == queued_.end()) {
      changed_.Wait(mutex_);
      next = NextLocked(light);
    }
    if (closing_) return;
    job = std::move(queued_.extract(next).mapped());
    const auto running = std::make_shared<Running>();
    running->priority = job.priority;
    running->signatures = job.signatures;
    running->pairs = job.pairs;
    running_[job.pattern.get()] = running;
    const double expected = job.seconds().count();
    double now = time_.StartOf(job.tenant());
    for (const auto& [pattern, waiting] : queued_) {
      now = std::min(now, time_.StartOf(waiting.tenant()));
    }
    time_.Begin(job.tenant(), expected, now);
    lock.Unlock();
    const Job::Clock::time_point begin = Job::Clock::now();
    while (!Run(modules, job, running->stop)) {
    }
    const std::chrono::duration<double> taken = Job::Clock::now() - begin;
    lock.Lock();
    time_.Correct(job.tenant(), taken.count() - expected);
    // Only now another job of the pattern may begin.
    running_.erase(job.pattern.get());
    changed_.NotifyAll();
  }
}

bool Preparation::Impl::Run(const JobModules& modules, const Job& job,
                            const std::atomic<bool>& stop) {
  const auto serving = [this] {
    return std::ranges::count_if(modules_.executor.gpus(),
                                 [](const GpuBackend& gpu) { return gpu.status().ok(); });
  };
  const auto served = serving();
  Pattern& pattern = *job.pattern;
  PatternJob work(modules, job.pattern, job.again, job.asked, stop);
  std::set<ProblemSignature> signatures = job.signatures;
  absl::Status status;
  if (job.priority != Priority::kTrial || job.stored) {
    pattern.progress().Update([](PreparationStatus& s) { s.state = PreparationState::kPreparing; });
  }
  std::string detail;
  if (job.stored) {
    absl::StatusOr<std::set<ProblemSignature>> lost = work.Restore(*job.stored);
    status = lost.status();
    if (lost.ok()) signatures.merge(*lost);
    if (job.stored->record.state == Name(PreparationState::kReady)) {
      detail = job.stored->record.detail;
    } else if (signatures.empty()) {
      for (const MatrixLease& matrix : modules_.catalog.MatricesOf(pattern)) {
        signatures.merge(SignaturesOf(*matrix, {}));
      }
    }
  }
  std::erase_if(signatures, [&](const ProblemSignature& c) {
    return !job.again.contains(c) && !job.asked.contains(c) && pattern.plans().Find(c).decided();
  });
  // An older program computed no features.
  const bool lacks_features = job.priority == Priority::kClient && pattern.features() == nullptr;
  if (status.ok() && (!signatures.empty() || lacks_features)) {
    status = work.Prepare(signatures);
    detail.clear();
  }
  if (status.ok() && !job.pairs.empty()) status = work.TryPairs(job.pairs);
  if (status.ok() && !job.rows.empty()) status = work.BuildRows(job.rows);
  status = work.Checked(std::move(status));
  if (detail.empty() || work.has_notes()) detail = work.Detail();
  if (absl::IsUnavailable(status) && serving() < served && serving() > 0) return false;
  if (!absl::IsCancelled(status)) {
    const bool ready = status.ok();
    End(job, work, ready ? PreparationState::kReady : PreparationState::kFailed,
        ready ? detail : std::string(status.message()));
    return true;
  }
  Tell(job, "cancelled", "it was stopped", work.seconds());
  pattern.progress().Update(
      [](PreparationStatus& s) { s.message = "the preparation was cancelled"; });
  return true;
}

void Preparation::Impl::End(const Job& job, const PatternJob& work, PreparationState state,
                            const std::string& detail) {
  Pattern& pattern = *job.pattern;
  const double seconds = work.seconds();
  // Of a provisional outcome nothing is stored: a restart begins where it would have begun.
  const bool provisional = std::ranges::any_of(
      pattern.plans().List(), [](const auto& active) { return active->plan.provisional; });
  // A start that only brings back what is stored writes nothing: there may be thousands.
  const bool is_stored = job.stored && job.wants_nothing() &&
                         job.stored->record.state == Name(state) &&
                         job.stored->record.detail == detail;
  absl::Status stored;
  if (!provisional && !is_stored) {
    stored =
        modules_.store.PutPreparation(pattern.hash(), {std::string(Name(state)), detail, seconds});
  }
  const bool ready = state == PreparationState::kReady;
  Tell(job, ready ? "ready" : "failed", ready ? work.Outcome() : detail, seconds);
  const MutexLock lock(mutex_);
  const auto waiting = queued_.find(job.pattern.get());
  const bool more = waiting != queued_.end() && waiting->second.priority == Priority::kClient;
  pattern.progress().Update([&](PreparationStatus& status) {
    status.state = more ? PreparationState::kQueued : state;
    status.detail = detail;
    // NOT_FOUND: the pattern has been deleted meanwhile.
    if (!stored.ok() && !absl::IsNotFound(stored)) {
      status.detail += fmt::format(". Not stored: {}", std::string(stored.message()));
    }
    status.message = state == PreparationState::kReady ? work.Outcome() : status.detail;
    status.seconds = seconds;
  });
}

Preparation::Preparation(const PreparationOptions& options, Catalog& catalog, Store& store,
                         Budget& budget, Executor& executor, Observer& observer)
    : impl_(std::make_unique<Impl>(options, catalog, store, budget, executor, observer)) {}

Preparation::~Preparation() = default;

void Preparation::SetWeights(const TenantWeights& weights) { impl_->SetWeights(weights); }

void Preparation::Prepare(MatrixLease matrix, std::vector<ProblemSignature> signatures,
                          Requester requester) {
  impl_->Prepare(matrix, signatures, std::move(requester));
}

absl::Status Preparation::Request(MatrixLease matrix, std::vector<ProblemSignature> signatures,
                                  bool again, const std::optional<Asked>& asked,
                                  Requester requester) {
  return impl_->Request(matrix, signatures, again, asked, std::move(requester));
}

void Preparation::Restore(const StoreContents& contents) { impl_->Restore(contents); }

void Preparation::RequestTrial(MatrixLease matrix, const Problem& problem) {
  impl_->RequestTrial(matrix, problem);
}

void Preparation::RequestTrial(const PatternProduct& product, const Problem& problem) {
  impl_->RequestTrial(product, problem);
}

bool Preparation::RequestRows(const MatrixLease& matrix, const Problem& problem,
                              const std::vector<int64_t>& bounds) {
  return impl_->RequestRows(matrix, problem, bounds);
}

void Preparation::Forget(const std::shared_ptr<Pattern>& pattern) { impl_->Forget(pattern); }

int64_t Preparation::pending() const { return impl_->pending(); }

Selector& Preparation::selector() { return impl_->selector(); }

}  // namespace sparsed::engine
