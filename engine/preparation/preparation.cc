#include "engine/preparation/preparation.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "engine/preparation/pattern_job.h"

namespace sparsed::engine {
namespace {

/// Added to the niceness of workers and of the OpenMP teams that they start.
constexpr int kNiceness = 10;

/// Right operands of a pattern that kernels of SpGEMM are tried with.
constexpr int64_t kMostPairs = 64;

/// Least important first.
enum class Priority : uint8_t { kRestore, kTrial, kUpload };

struct Job {
  std::shared_ptr<Pattern> pattern;
  Priority priority = Priority::kTrial;
  uint64_t number = 0;  ///< older jobs have lower ones
  std::set<ProblemClass> classes;
  std::optional<StoredPreparation> stored;  ///< to be restored before anything else
  Pairs pairs;

  bool wants_nothing() const { return classes.empty() && pairs.empty(); }
};

/// What is known of a pattern's job under way.
struct Running {
  std::set<ProblemClass> classes;
  Pairs pairs;
  std::atomic<bool> stop{false};
};

}  // namespace

class Preparation::Impl {
 public:
  Impl(const PreparationOptions& options, Catalog& catalog, Store& store, Budget& budget,
       Executor& executor, Observer& observer)
      : options_(options), rooms_{catalog, store, budget, executor, observer, options_} {
    if (!options_.enabled) return;
    for (int i = 0; i < std::max(options_.workers, 1); ++i) {
      workers_.emplace_back([this] { Work(); });
    }
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      queued_.clear();
      for (auto& [pattern, running] : running_) running->stop = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void Prepare(const MatrixLease& matrix, const std::vector<ProblemClass>& classes) {
    const std::shared_ptr<Pattern>& pattern = matrix->pattern();
    Job job{pattern, Priority::kUpload, 0, {}, std::nullopt, {}};
    for (ProblemClass c : classes.empty() ? DefaultClasses() : classes) {
      Problem problem = ProblemOf(c);
      problem.type = matrix->type();
      problem.device = rooms_.executor.first_choice();
      c = ClassOf(problem);
      if (!pattern->plans().Find(c).decided()) job.classes.insert(c);
      // What it will be multiplied with is not known; its own square is the likeliest.
      if (c.operation == Operation::kSpgemm && !IsHalf(c.type) &&
          pattern->rows() == pattern->cols() &&
          !pattern->plans().Find(c, pattern->hash()).decided()) {
        job.pairs.insert({{c, pattern->hash()}, {pattern}});
      }
    }
    if (job.wants_nothing() && pattern->features() != nullptr) return;
    Want(*pattern, job.classes);
    if (!options_.enabled) return Skip(*pattern);
    Enqueue(std::move(job));
  }

  void Restore(const StoreContents& contents);

  void RequestTrial(const MatrixLease& matrix, const Problem& problem) {
    const ProblemClass c = ClassOf(problem);
    if (!options_.enabled || matrix->pattern()->plans().Find(c).exact) return;
    Enqueue({matrix->pattern(), Priority::kTrial, 0, {c}, std::nullopt, {}});
  }

  void RequestTrial(const PatternProduct& product, const Problem& problem) {
    const PlanTable& plans = product.left->plans();
    const ProblemClass c = ClassOf(problem);
    const std::string key =
        PairKey(product.right->hash(), product.transpose_left, product.transpose_right);
    if (!options_.enabled || !plans.Find(c, key).due()) return;
    if (product.left->nnz() + product.right->nnz() < kLeastPairNonzeros) return;
    // A matrix that meets a new one each time is better off without trials.
    const auto is_pair = [](const auto& active) { return !active->plan.right.empty(); };
    if (std::ranges::count_if(plans.List(), is_pair) >= kMostPairs) return;
    Pairs pairs = {{{c, key}, {product.right, product.transpose_left, product.transpose_right}}};
    Enqueue({product.left, Priority::kTrial, 0, {}, std::nullopt, std::move(pairs)});
  }

  void Forget(const std::shared_ptr<Pattern>& pattern) {
    {
      std::lock_guard lock(mutex_);
      // An upload may have brought it back meanwhile.
      if (!rooms_.catalog.MatricesOf(*pattern).empty()) return;
      if (const auto running = running_.find(pattern.get()); running != running_.end()) {
        running->second->stop = true;
      }
      if (queued_.erase(pattern.get()) == 0) return;
    }
    rooms_.observer.OnPreparationEnd("cancelled");
  }

  int64_t pending() const {
    std::lock_guard lock(mutex_);
    return static_cast<int64_t>(queued_.size() + running_.size());
  }

 private:
  std::vector<ProblemClass> DefaultClasses() const {
    if (!options_.default_classes.empty()) return options_.default_classes;
    return {
        ClassOf({Operation::kSpmm, false, ElementType::kF32, 128, rooms_.executor.first_choice()})};
  }

  /// Remembers the classes over a restart, until there are plans.
  void Want(Pattern& pattern, const std::set<ProblemClass>& classes) {
    std::vector<WantedRecord> wanted;
    wanted.reserve(classes.size());
    for (const ProblemClass& c : classes) wanted.push_back({pattern.hash(), ToString(c)});
    const absl::Status stored = rooms_.store.PutWanted(wanted);
    // NOT_FOUND: the pattern has been deleted meanwhile.
    if (stored.ok() || absl::IsNotFound(stored)) return;
    pattern.UpdateStatus([&](PreparationStatus& status) {
      status.message = fmt::format("a restart would forget what is to be prepared: {}",
                                   std::string(stored.message()));
    });
  }

  static void Skip(Pattern& pattern) {
    pattern.UpdateStatus([](PreparationStatus& status) {
      status.state = PreparationState::kReady;
      status.detail = status.message = "preparation is switched off; plain CSR is used";
    });
  }

  /// Merges the job with one of the same pattern that waits, or drops what is under way already.
  void Enqueue(Job job);
  /// Takes the least important job out of a queue that is too long.
  std::optional<Job> TakeExcessLocked();
  /// The most important job whose pattern has none under way.
  std::map<const Pattern*, Job>::iterator NextLocked();
  void Work();
  void Run(const Job& job, const std::atomic<bool>& stop);
  /// Publishes how a job ended. The pattern stays QUEUED if an upload asks for more of it.
  void End(const Job& job, const PatternJob& work, PreparationState state,
           const std::string& detail);

  const PreparationOptions options_;
  const JobRooms rooms_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  uint64_t next_number_ = 0;
  std::map<const Pattern*, Job> queued_;
  std::map<const Pattern*, std::shared_ptr<Running>> running_;
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
  std::map<std::string, std::set<ProblemClass>> wanted;
  for (const WantedRecord& record : contents.wanted) {
    const std::optional<ProblemClass> c = ParseProblemClass(record.problem_class);
    if (c) wanted[record.pattern_hash].insert(*c);
  }
  std::map<std::string, std::shared_ptr<Pattern>> patterns;
  for (const MatrixLease& matrix : rooms_.catalog.All()) {
    patterns[matrix->pattern()->hash()] = matrix->pattern();
  }
  for (const MeasurementRecord& record : contents.measurements) {
    const auto pattern = patterns.find(record.pattern_hash);
    const std::optional<ProblemClass> c = ParseProblemClass(record.problem_class);
    if (pattern == patterns.end() || !c) continue;
    pattern->second->AddMeasurement(
        {*c, record.k, record.recipe, record.kernel, record.device, record.median_ms,
         Gflops(pattern->second->nnz(), record.k, record.median_ms), record.runs,
         record.baseline_ms, record.floor_ms, record.preparation_ms});
  }
  std::map<std::pair<std::string, std::string>, std::vector<Decision>> decisions;
  for (const DecisionRecord& record : contents.decisions) {
    const std::optional<ProblemClass> c = ParseProblemClass(record.problem_class);
    if (!c) continue;
    decisions[{record.pattern_hash, record.problem_class}].push_back(
        {*c, record.recipe, record.tried, record.reason});
  }
  for (auto& [key, of_class] : decisions) {
    const auto pattern = patterns.find(key.first);
    if (pattern == patterns.end()) continue;
    const ProblemClass c = of_class.front().problem_class;
    pattern->second->SetDecisions(c, std::move(of_class));
  }
  for (const auto& [hash, pattern] : patterns) {
    if (!options_.enabled) {
      Skip(*pattern);
      continue;
    }
    StoredPreparation& stored = by_hash[hash];
    pattern->UpdateStatus([&](PreparationStatus& status) {
      status.detail = stored.record.detail;
      status.seconds = stored.record.seconds;
    });
    std::lock_guard lock(mutex_);
    queued_[pattern.get()] = {pattern,           Priority::kRestore,
                              next_number_++,    std::move(wanted[hash]),
                              std::move(stored), {}};
  }
  changed_.notify_all();
}

void Preparation::Impl::Enqueue(Job job) {
  const std::shared_ptr<Pattern> pattern = job.pattern;
  std::optional<Job> excess;
  {
    std::lock_guard lock(mutex_);
    if (closing_) return;
    const auto running = running_.find(pattern.get());
    if (running != running_.end() && !running->second->stop) {
      std::erase_if(job.classes,
                    [&](const ProblemClass& c) { return running->second->classes.contains(c); });
      std::erase_if(job.pairs,
                    [&](const auto& pair) { return running->second->pairs.contains(pair.first); });
      if (job.wants_nothing()) return;
    }
    // Its last matrix may have been deleted before this call; Forget has then come already.
    if (rooms_.catalog.MatricesOf(*pattern).empty()) return;
    if (job.priority == Priority::kUpload) {
      pattern->UpdateStatus(
          [](PreparationStatus& status) { status.state = PreparationState::kQueued; });
    }
    if (const auto waiting = queued_.find(pattern.get()); waiting != queued_.end()) {
      waiting->second.priority = std::max(waiting->second.priority, job.priority);
      waiting->second.classes.merge(job.classes);
      Pairs& pairs = waiting->second.pairs;
      std::erase_if(pairs, [](const auto& pair) { return pair.second.right.expired(); });
      if (static_cast<int64_t>(pairs.size()) < kMostPairs) pairs.merge(job.pairs);
      return;
    }
    job.number = next_number_++;
    queued_.emplace(pattern.get(), std::move(job));
    excess = TakeExcessLocked();
  }
  changed_.notify_one();
  if (!excess) return;
  rooms_.observer.OnPreparationEnd("cancelled");
  excess->pattern->UpdateStatus([&](PreparationStatus& status) {
    status.message = fmt::format("not prepared: {} preparations are waiting; plain CSR is used",
                                 options_.max_queued);
    if (excess->priority == Priority::kTrial) return;
    status.state = PreparationState::kFailed;
    status.detail = status.message;
  });
}

std::optional<Job> Preparation::Impl::TakeExcessLocked() {
  // Restores came all at once, at the start, and are as many as there are patterns.
  int64_t waiting = 0;
  auto least = queued_.end();
  for (auto it = queued_.begin(); it != queued_.end(); ++it) {
    const Job& job = it->second;
    if (job.stored) continue;
    ++waiting;
    if (least == queued_.end() || std::pair(job.priority, least->second.number) <
                                      std::pair(least->second.priority, job.number)) {
      least = it;
    }
  }
  if (waiting <= options_.max_queued) return std::nullopt;
  return std::move(queued_.extract(least).mapped());
}

std::map<const Pattern*, Job>::iterator Preparation::Impl::NextLocked() {
  auto next = queued_.end();
  for (auto it = queued_.begin(); it != queued_.end(); ++it) {
    if (running_.contains(it->first)) continue;
    if (next == queued_.end() || std::pair(next->second.priority, it->second.number) <
                                     std::pair(it->second.priority, next->second.number)) {
      next = it;
    }
  }
  return next;
}

void Preparation::Impl::Work() {
  // On Linux a thread has a niceness of its own, and the threads that it starts inherit it.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
  std::unique_lock lock(mutex_);
  while (!closing_) {
    const auto next = NextLocked();
    if (next == queued_.end()) {
      changed_.wait(lock);
      continue;
    }
    const Job job = std::move(queued_.extract(next).mapped());
    const auto running = std::make_shared<Running>();
    running->classes = job.classes;
    running->pairs = job.pairs;
    running_[job.pattern.get()] = running;
    lock.unlock();
    Run(job, running->stop);
    lock.lock();
    // Only now another job of the pattern may begin.
    running_.erase(job.pattern.get());
    changed_.notify_all();
  }
}

void Preparation::Impl::Run(const Job& job, const std::atomic<bool>& stop) {
  Pattern& pattern = *job.pattern;
  PatternJob work(rooms_, job.pattern, stop);
  std::set<ProblemClass> classes = job.classes;
  absl::Status status;
  if (job.priority != Priority::kTrial || job.stored) {
    pattern.UpdateStatus([](PreparationStatus& s) { s.state = PreparationState::kPreparing; });
  }
  std::string detail;
  if (job.stored) {
    absl::StatusOr<std::set<ProblemClass>> lost = work.Restore(*job.stored);
    status = lost.status();
    if (lost.ok()) classes.merge(*lost);
    if (job.stored->record.state == Name(PreparationState::kReady)) {
      detail = job.stored->record.detail;
    } else if (classes.empty()) {
      for (const MatrixLease& matrix : rooms_.catalog.MatricesOf(pattern)) {
        for (ProblemClass c : DefaultClasses()) {
          Problem problem = ProblemOf(c);
          problem.type = matrix->type();
          classes.insert(ClassOf(problem));
        }
      }
    }
  }
  std::erase_if(classes, [&](const ProblemClass& c) { return pattern.plans().Find(c).decided(); });
  // An older program computed no features.
  const bool lacks_features = job.priority == Priority::kUpload && pattern.features() == nullptr;
  if (status.ok() && (!classes.empty() || lacks_features)) {
    status = work.Prepare(classes);
    detail.clear();
  }
  if (status.ok() && !job.pairs.empty()) status = work.TryPairs(job.pairs);
  if (detail.empty() || work.has_notes()) detail = work.Detail();
  if (status.ok()) return End(job, work, PreparationState::kReady, detail);
  if (!absl::IsCancelled(status)) {
    return End(job, work, PreparationState::kFailed, std::string(status.message()));
  }
  rooms_.observer.OnPreparationEnd("cancelled");
  pattern.UpdateStatus([](PreparationStatus& s) { s.message = "the preparation was cancelled"; });
}

void Preparation::Impl::End(const Job& job, const PatternJob& work, PreparationState state,
                            const std::string& detail) {
  Pattern& pattern = *job.pattern;
  const double seconds = work.seconds();
  // Of a provisional outcome nothing is stored: a restart begins where it would have begun.
  const bool provisional = std::ranges::any_of(
      pattern.plans().List(), [](const auto& active) { return active->plan.provisional; });
  absl::Status stored;
  if (!provisional) {
    stored =
        rooms_.store.PutPreparation(pattern.hash(), {std::string(Name(state)), detail, seconds});
  }
  rooms_.observer.OnPreparationEnd(state == PreparationState::kReady ? "ready" : "failed");
  std::lock_guard lock(mutex_);
  const auto waiting = queued_.find(job.pattern.get());
  const bool more = waiting != queued_.end() && waiting->second.priority == Priority::kUpload;
  pattern.UpdateStatus([&](PreparationStatus& status) {
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

void Preparation::Prepare(MatrixLease matrix, std::vector<ProblemClass> classes) {
  impl_->Prepare(matrix, classes);
}

void Preparation::Restore(const StoreContents& contents) { impl_->Restore(contents); }

void Preparation::RequestTrial(MatrixLease matrix, const Problem& problem) {
  impl_->RequestTrial(matrix, problem);
}

void Preparation::RequestTrial(const PatternProduct& product, const Problem& problem) {
  impl_->RequestTrial(product, problem);
}

void Preparation::Forget(const std::shared_ptr<Pattern>& pattern) { impl_->Forget(pattern); }

int64_t Preparation::pending() const { return impl_->pending(); }

}  // namespace sparsed::engine
