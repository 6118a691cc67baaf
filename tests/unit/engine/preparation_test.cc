// Preparations from the upload to the plan, over a catalog and worker slots that really run.
#include "engine/preparation/preparation.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "engine/execution/executor.h"
#include "engine/planning/candidates.h"
#include "engine/preparation/fair_time.h"
#include "engine/preparation/job.h"
#include "engine/preparation/trial.h"
#include "kernels/formats/diagonals.h"
#include "kernels/pipeline.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kK = 32;

ProblemSignature Signature(Operation operation, bool transposed = false, int64_t k = kK) {
  return SignatureOf({operation, transposed, ElementType::kF32, k, DeviceKind::kCpu});
}

/// Remembers what the engine reports.
class Listener final : public Observer {
 public:
  void OnPreparationStage(std::string_view stage, double seconds) override {
    EXPECT_GE(seconds, 0);
    std::lock_guard lock(mutex_);
    ++stages_[std::string(stage)];
  }
  void OnLayoutBuilt(std::string_view kind, std::string_view device, double seconds) override {
    EXPECT_GE(seconds, 0);
    std::lock_guard lock(mutex_);
    built_.insert(std::string(kind) + " by " + std::string(device));
  }
  void OnPreparationEnd(std::string_view state) override {
    std::lock_guard lock(mutex_);
    ++ends_[std::string(state)];
  }
  void OnPipeline(std::string_view outcome) override {
    std::lock_guard lock(mutex_);
    ++pipelines_[std::string(outcome)];
  }
  void OnPreparationReport(const PreparationReport& report) override {
    std::lock_guard lock(mutex_);
    reports_.push_back(report);
    if (report.state == "failed") {
      failures_.push_back(fmt::format("{}: {}", report.pattern, report.sentence));
    }
  }
  std::vector<PreparationReport> reports() {
    std::lock_guard lock(mutex_);
    return reports_;
  }
  std::vector<std::string> failures() {
    std::lock_guard lock(mutex_);
    return failures_;
  }
  void OnDamage(std::string_view) override { ++damaged; }
  void OnModelChoice(std::string_view model, std::string_view role, double share) override {
    EXPECT_GT(share, 0);
    EXPECT_LE(share, 1);
    std::lock_guard lock(mutex_);
    choices_.push_back(fmt::format("{} {} {}", model, role, share));
  }
  /// "MODEL ROLE SHARE"
  std::vector<std::string> choices() {
    std::lock_guard lock(mutex_);
    return choices_;
  }

  int stages(const std::string& stage) {
    std::lock_guard lock(mutex_);
    return stages_[stage];
  }
  int pipelines(const std::string& outcome) {
    std::lock_guard lock(mutex_);
    return pipelines_[outcome];
  }
  int ends(const std::string& state) {
    std::lock_guard lock(mutex_);
    return ends_[state];
  }
  std::set<std::string> built() {
    std::lock_guard lock(mutex_);
    return built_;
  }
  std::atomic<int> damaged = 0;
  void OnTrialWait(std::string_view device, double seconds) override {
    EXPECT_EQ(device, "cpu");
    EXPECT_GE(seconds, 0);
    ++trial_waits;
  }
  std::atomic<int> trial_waits = 0;

 private:
  std::mutex mutex_;
  std::map<std::string, int> stages_, ends_, pipelines_;
  std::set<std::string> built_;
  std::vector<PreparationReport> reports_;
  std::vector<std::string> failures_, choices_;
};

PreparationOptions Quick() {
  PreparationOptions options;
  options.default_signatures = {Signature(Operation::kSpmm)};
  options.trial_budget_ms = 20;
  options.light_nonzeros = 0;  // what the only worker does others wait for
  return options;
}

struct Site : Modules {
  explicit Site(const std::string& directory = "", const PreparationOptions& options = Quick(),
                int64_t memory = kPlenty, int64_t preparation_memory = kPlenty)
      : Modules(directory, memory, preparation_memory),
        executor(ExecutorOptions(), catalog, dense, budget, listener),
        preparation(options, catalog, *store, budget, executor, listener) {
    catalog.on_published = [this](MatrixLease matrix,
                                  const std::vector<ProblemSignature>& signatures,
                                  const Requester& requester) {
      preparation.Prepare(std::move(matrix), signatures, requester);
    };
    catalog.on_pattern_gone = [this](const std::shared_ptr<Pattern>& pattern) {
      preparation.Forget(pattern);
    };
    preparation.Restore(contents);
    contents = StoreContents();
  }
  ~Site() { executor.Close(); }

  bool Idle() {
    return Eventually([this] { return preparation.pending() == 0; });
  }

  Listener listener;
  Executor executor;
  Preparation preparation;
};

/// Occupies the worker slot, so that trials wait.
class BusyWorkerSlot {
 public:
  explicit BusyWorkerSlot(Executor& executor) {
    thread_ = std::thread([this, &executor] {
      EXPECT_TRUE(executor
                      .RunIdle(
                          DeviceId{},
                          [this](WorkerSlot&) {
                            std::unique_lock lock(mutex_);
                            running_ = true;
                            changed_.notify_all();
                            changed_.wait(lock, [this] { return free_; });
                          },
                          nullptr)
                      .ok());
    });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return running_; });
  }
  void Free() {
    {
      std::lock_guard lock(mutex_);
      free_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  ~BusyWorkerSlot() { Free(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool running_ = false, free_ = false;
  std::thread thread_;
};

test::Pattern Clusters() { return test::ShuffledClusters(60, 32, 4096, 64, 16, 1, 3); }

std::vector<std::string> Tried(const Pattern& pattern) {
  std::vector<std::string> pipelines;
  for (const Measurement& m : pattern.trials().measurements()) pipelines.push_back(m.pipeline);
  return pipelines;
}

/// What must hold of a pattern however its trials ended.
void CheckConsistent(Site& site, Pattern& pattern) {
  const auto is_used = [&](const std::string& pipeline) {
    const std::vector<MatrixLease> all = site.catalog.All();
    return std::ranges::any_of(all, [&](const MatrixLease& matrix) {
      const Pattern& left = *matrix->pattern();
      return std::ranges::any_of(left.plans().List(), [&](const auto& active) {
        return UsesLayout(active->plan, left.hash(), pattern, pipeline);
      });
    });
  };
  for (const auto& active : pattern.plans().List()) {
    const Plan& plan = active->plan;
    EXPECT_NE(plan.kernel, "");
    EXPECT_NE(plan.reason, "");
    if (plan.pipeline == "csr" || plan.pair) {
      EXPECT_EQ(active->layout, nullptr);
      continue;
    }
    EXPECT_EQ(active->layout, pattern.FindLayout(plan.pipeline));
    EXPECT_LT(plan.plan_ms * 1.03, plan.baseline_ms);
    for (const MatrixLease& matrix : site.catalog.MatricesOf(pattern)) {
      EXPECT_EQ(matrix->LayoutValueBytes(plan.pipeline),
                active->layout->Resident()->value_slots * 4);
    }
  }
  for (const Pattern::BuiltEntry& entry : pattern.Layouts()) {
    EXPECT_TRUE(is_used(entry.description->pipeline)) << "kept for nobody";
  }
  EXPECT_EQ(site.budget.used(MemoryUse::kPreparation), 0);
}

/// Every pipeline that there is a rule for was timed, or there is a reason why not.
void CheckDecisions(const Pattern& pattern, const ProblemSignature& c) {
  std::map<std::string, Decision> decided;
  for (const Decision& decision : pattern.trials().decisions()) {
    EXPECT_NE(decision.reason, "") << decision.pipeline;
    if (decision.signature == c) decided[decision.pipeline] = decision;
  }
  for (const Candidate& candidate : CandidatesFor(c, {})) {
    ASSERT_TRUE(decided.contains(candidate.pipeline) ||
                decided.contains(WithoutSkipRules(candidate.pipeline)))
        << candidate.pipeline;
  }
  std::set<std::string> timed;
  for (const Measurement& m : pattern.trials().measurements()) {
    if (m.signature == c) timed.insert(m.pipeline);
  }
  for (const auto& [pipeline, decision] : decided) {
    EXPECT_EQ(decision.tried, timed.contains(pipeline)) << pipeline;
  }
}

TEST(Preparation, PlansForTheMatrixsOwnType) {
  Site site;
  const test::Pattern s = test::Rmat(10, 16, 3);
  UploadHeader header = HeaderOf("m", s);
  header.type = ElementType::kF16;
  header.expected = {Signature(Operation::kSpmm), Signature(Operation::kSpmm, /*transposed=*/true),
                     Signature(Operation::kSddmm)};
  for (ProblemSignature& c : header.expected) c.allow_tf32 = true;  // on a CPU no difference
  const std::vector<float> floats = FloatsOf(s);
  std::vector<Float16> values;
  for (const float value : floats) values.emplace_back(value);
  auto matrix = Send(site.catalog, header, s.row_offsets, s.column_indices, values);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  ASSERT_TRUE(site.Idle());
  EXPECT_EQ((*matrix)->pattern()->progress().status().state, PreparationState::kReady)
      << (*matrix)->pattern()->progress().status().detail;
  const auto plans = (*matrix)->pattern()->plans().List();
  ASSERT_EQ(plans.size(), 3u);
  for (const auto& active : plans) {
    EXPECT_EQ(active->plan.signature.type, ElementType::kF16);
    EXPECT_FALSE(active->plan.signature.allow_tf32);
    EXPECT_GT(active->plan.plan_ms, 0);
  }
}

TEST(Preparation, ItsEndSaysWhoAskedForIt) {
  Site site;
  const test::Pattern s = test::Rmat(8, 8, 3);
  UploadHeader header = HeaderOf("m", s);
  header.requester = {"tenant", "token t", "request-1", "m"};
  auto matrix = Send(site.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s));
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  ASSERT_TRUE(site.Idle());
  ASSERT_EQ(site.listener.reports().size(), 1u);
  const PreparationReport report = site.listener.reports().front();
  EXPECT_EQ(report.state, "ready");
  EXPECT_EQ(report.pattern, (*matrix)->pattern()->hash());
  EXPECT_TRUE(report.asked_for);
  EXPECT_EQ(report.requester.request_id, "request-1");
  EXPECT_EQ(report.requester.caller, "token t");
  EXPECT_EQ(report.requester.matrix, "m");
  ASSERT_TRUE(site.preparation
                  .Request(*matrix, {Signature(Operation::kSddmm)}, /*again=*/false, std::nullopt,
                           {"tenant", "token t", "request-2", "m"})
                  .ok());
  ASSERT_TRUE(site.Idle());
  ASSERT_EQ(site.listener.reports().size(), 2u);
  EXPECT_EQ(site.listener.reports().back().requester.request_id, "request-2");
}

TEST(Preparation, TriesReorderingOnShuffledClusters) {
  Site site;
  // Enough clusters that few rows of a panel happen to be alike before they are reordered.
  auto matrix = SendMatrix(site.catalog, "m", test::ShuffledClusters(600, 16, 65536, 24, 12, 1, 3));
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  ASSERT_TRUE(site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const PreparationStatus status = pattern.progress().status();
  EXPECT_EQ(status.state, PreparationState::kReady) << status.detail;
  EXPECT_THAT(status.message, HasSubstr("spmm K=32 f32 cpu"));
  EXPECT_EQ(status.detail, "") << "plans and decisions say it all";
  EXPECT_GT(status.seconds, 0);
  const PlanTable::Found found = pattern.plans().Find(Signature(Operation::kSpmm));
  ASSERT_TRUE(found.exact);
  EXPECT_GT(found.plan->plan.baseline_ms, 0);
  const std::vector<std::string> tried = Tried(pattern);
  EXPECT_THAT(tried, Contains("csr"));
  EXPECT_THAT(tried, Contains(HasSubstr("lsh_cluster(")));
  EXPECT_THAT(tried, Contains(HasSubstr("> aspt(")));
  CheckConsistent(site, pattern);
  CheckDecisions(pattern, Signature(Operation::kSpmm));
  EXPECT_GT(site.listener.pipelines("tried"), 0);
  EXPECT_GT(site.listener.pipelines("ruled_out"), 0);
  for (const char* stage : {"features", "lsh_cluster", "aspt", "trial", "store"}) {
    EXPECT_GT(site.listener.stages(stage), 0) << stage;
  }
  EXPECT_EQ(site.listener.ends("ready"), 1);
  // Rows in another order are CSR; without a GPU all is built by the CPU.
  EXPECT_THAT(site.listener.built(), ElementsAre("aspt by cpu", "csr by cpu"));
}

TEST(Preparation, KeepsPlainCsrWhereNothingIsGained) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", test::Uniform(500, 500, 10, 1));
  ASSERT_TRUE(matrix.ok());
  ASSERT_TRUE(site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  EXPECT_THAT(pattern.progress().status().message,
              HasSubstr("plain CSR is kept, 5000 nonzeros, fewer than 10000"));
  CheckDecisions(pattern, Signature(Operation::kSpmm));
  const auto plans = pattern.plans().List();
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_EQ(plans[0]->plan.pipeline, "csr");
  EXPECT_GT(plans[0]->plan.plan_ms, 0);
  EXPECT_THAT(Tried(pattern), ElementsAre("csr"));
  CheckConsistent(site, pattern);
}

TEST(Preparation, AlmostEmptyMatricesAreTriedWhenAskedForAlone) {
  Site site;
  auto matrix =
      SendMatrix(site.catalog, "m", test::FromCoordinates(40000, 30000, {{0, 0}, {9, 9}}));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  const auto plans = pattern.plans().List();
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_THAT(plans[0]->plan.reason, HasSubstr("plain CSR: with less than a nonzero in 16 rows"));
  EXPECT_THAT(Tried(pattern), testing::IsEmpty());
  ASSERT_TRUE(
      site.preparation.Request(*matrix, {Signature(Operation::kSpmm)}, false, Asked()).ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_THAT(Tried(pattern), testing::Not(testing::IsEmpty()));
  CheckConsistent(site, pattern);
}

TEST(Preparation, ManyColumnsAreNotAlmostEmpty) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", test::Uniform(100, 400000, 40, 1));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  EXPECT_THAT(Tried(*(*matrix)->pattern()), testing::Not(testing::IsEmpty()));
}

TEST(Preparation, OddMatrices) {
  Site site;
  const std::vector<test::Pattern> patterns = {
      test::FromCoordinates(0, 0, {}),       test::FromCoordinates(0, 5, {}),
      test::FromCoordinates(5, 0, {}),       test::FromCoordinates(7, 9, {}),
      test::FromCoordinates(1, 1, {{0, 0}}), test::Uniform(1, 20000, 15000, 3),
      test::Uniform(20000, 1, 1, 3)};
  const std::vector<ProblemSignature> signatures = {
      Signature(Operation::kSpmm), Signature(Operation::kSpmm, true), Signature(Operation::kSddmm),
      Signature(Operation::kSpgemm)};
  for (size_t i = 0; i < patterns.size(); ++i) {
    UploadHeader header = HeaderOf(std::to_string(i), patterns[i]);
    header.expected = signatures;
    ASSERT_TRUE(Send(site.catalog, header, patterns[i].row_offsets, patterns[i].column_indices,
                     FloatsOf(patterns[i]))
                    .ok());
  }
  ASSERT_TRUE(site.Idle());
  for (const MatrixLease& matrix : site.catalog.All()) {
    EXPECT_EQ(matrix->pattern()->progress().status().state, PreparationState::kReady)
        << matrix->name();
    // ... and one of the product with itself, where there is one.
    const bool square = matrix->pattern()->rows() == matrix->pattern()->cols();
    EXPECT_EQ(matrix->pattern()->plans().List().size(), square ? 5u : 4u) << matrix->name();
    CheckConsistent(site, *matrix->pattern());
  }
}

TEST(Preparation, TransposedSignaturesTryTheTransposedLayout) {
  Site site;
  const test::Pattern s = test::Uniform(2000, 3000, 10, 1);
  UploadHeader header = HeaderOf("m", s);
  header.expected = {Signature(Operation::kSpmm, true)};
  auto matrix = Send(site.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s));
  ASSERT_TRUE(matrix.ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_THAT(Tried(*(*matrix)->pattern()), Contains("transpose"));
  EXPECT_TRUE((*matrix)->pattern()->plans().Find(Signature(Operation::kSpmm, true)).exact);
  CheckConsistent(site, *(*matrix)->pattern());
}

/// Kernels that were timed for a pair, with the fastest of them.
struct Timed {
  std::vector<std::string> kernels;
  std::string fastest;
};
Timed TimedOf(const Pattern& pattern, const std::string& pair_pipeline) {
  Timed timed;
  double best = 0;
  for (const Measurement& m : pattern.trials().measurements()) {
    if (!m.pair || ToString(*m.pair, pattern.hash()) != pair_pipeline) continue;
    EXPECT_GT(m.median_ms, 0);
    EXPECT_GT(m.baseline_ms, 0);
    EXPECT_GT(m.roofline_ms, 0);
    timed.kernels.push_back(m.kernel);
    // As the plan sees it: another kernel must be 3 % faster than the default.
    const double speedup =
        m.baseline_ms / m.median_ms * (m.kernel == "cpu.csr.row_groups" ? 1.03 : 1);
    if (speedup > best) {
      best = speedup;
      timed.fastest = m.kernel;
    }
  }
  return timed;
}

TEST(Preparation, AFirstProductOfAPairQueuesOneTrial) {
  Site site;
  auto s = SendMatrix(site.catalog, "S", test::Band(4000, 9));
  auto t = SendMatrix(site.catalog, "T", test::Uniform(4000, 3000, 8, 1));
  ASSERT_TRUE(s.ok() && t.ok());
  ASSERT_TRUE(site.Idle());
  Pattern& pattern = *(*s)->pattern();
  const std::string t_hash = (*t)->pattern()->hash();
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  {
    BusyWorkerSlot busy(site.executor);
    for (int i = 0; i < 100; ++i)
      site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
    site.preparation.RequestTrial({(*s)->pattern(), (*t)->pattern()}, problem);
    EXPECT_LE(site.preparation.pending(), 2) << "one that began before the second pair came";
    EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady)
        << "what is there stays usable";
  }
  ASSERT_TRUE(site.Idle());
  const Timed square = TimedOf(pattern, "csr * csr");
  EXPECT_THAT(square.kernels, Contains("cpu.csr.row_groups"));
  EXPECT_THAT(square.kernels, Contains("cpu.dia.diagonals"));
  const PlanTable::Found found =
      pattern.plans().Find(SignatureOf(problem), PatternPair{pattern.hash()});
  ASSERT_TRUE(found.exact);
  EXPECT_EQ(found.plan->plan.kernel, square.fastest);
  const SpgemmKernel& fastest = *FindSpgemmKernel(square.fastest);
  EXPECT_EQ(found.plan->plan.pipeline.substr(0, fastest.layout_kind.size()), fastest.layout_kind);
  EXPECT_TRUE(FindFactorLayouts({(*s)->pattern(), (*s)->pattern()}, found.plan->plan));
  for (const Measurement& m : pattern.trials().measurements()) {
    if (m.kernel == "cpu.dia.diagonals") {
      EXPECT_EQ(m.pipeline, "dia");
    }
  }
  const Timed with_t = TimedOf(pattern, "csr * " + t_hash);
  EXPECT_THAT(with_t.kernels, Not(Contains("cpu.dia.diagonals")));
  const PlanTable::Found found_t = pattern.plans().Find(SignatureOf(problem), PatternPair{t_hash});
  ASSERT_TRUE(found_t.exact);
  EXPECT_EQ(found_t.plan->plan.kernel, with_t.fastest);
  std::set<std::pair<std::string, std::string>> ruled_out;
  for (const Decision& decision : pattern.trials().decisions()) {
    EXPECT_NE(decision.reason, "");
    if (decision.pair && !decision.tried) ruled_out.emplace(decision.pair->right, decision.kernel);
  }
  EXPECT_THAT(ruled_out, Contains(std::pair(pattern.hash(), "cpu.csr.hash")));
  EXPECT_THAT(ruled_out, Contains(std::pair(t_hash, "cpu.csr.hash"))) << "of each pair";
  const int ends = site.listener.ends("ready");
  site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
  ASSERT_TRUE(site.Idle());
  EXPECT_EQ(site.listener.ends("ready"), ends) << "there is nothing left to find out";
  EXPECT_EQ(site.budget.used(MemoryUse::kPreparation), 0);
}

TEST(Preparation, PairsThatFindNoMemoryAreTriedAgainLater) {
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  // Too little for any trial; too little for some of the kernels.
  for (const int64_t memory : {40'000, 600'000}) {
    TemporaryDirectory directory;
    {
      Site site(directory.path(), Quick(), kPlenty, memory);
      auto s = SendMatrix(site.catalog, "S", test::Band(4000, 9));
      ASSERT_TRUE(s.ok() && site.Idle());
      Pattern& pattern = *(*s)->pattern();
      const auto find = [&] {
        return pattern.plans().Find(SignatureOf(problem), PatternPair{pattern.hash()});
      };
      site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
      ASSERT_TRUE(site.Idle());
      ASSERT_TRUE(find().exact) << memory;
      EXPECT_FALSE(find().decided()) << memory;
      EXPECT_EQ(TimedOf(pattern, "csr * csr").kernels.empty(), memory < 100'000);
      EXPECT_THAT(find().plan->plan.reason, HasSubstr("memory"));
      const auto stored = site.store->Load();
      ASSERT_TRUE(stored.ok());
      for (const MeasurementRecord& m : stored->measurements) {
        EXPECT_FALSE(m.pair) << "it would pass for all that there is to know";
      }
      EXPECT_FALSE(find().due()) << "or every request would try";
      site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
      EXPECT_EQ(site.preparation.pending(), 0);
      ActivePlan old = *find().plan;
      old.since -= std::chrono::hours(1);
      pattern.plans().Replace(std::make_shared<const ActivePlan>(old));
      EXPECT_TRUE(find().due());
      const int trials = site.listener.stages("trial");
      site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
      ASSERT_TRUE(site.Idle());
      EXPECT_GT(site.listener.stages("trial"), trials);
      EXPECT_FALSE(find().due());
    }
    Site site(directory.path());
    ASSERT_TRUE(site.Idle());
    auto s = site.catalog.Find("t", "S");
    ASSERT_TRUE(s.ok());
    site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
    ASSERT_TRUE(site.Idle());
    Pattern& pattern = *(*s)->pattern();
    EXPECT_TRUE(pattern.plans().Find(SignatureOf(problem), PatternPair{pattern.hash()}).decided());
    EXPECT_THAT(TimedOf(pattern, "csr * csr").kernels, Contains("cpu.dia.diagonals"));
  }
}

/// Slow for what came before, of a kernel that there is not.
Measurement Imaginary(const ProblemSignature& c, const std::string& pipeline) {
  Measurement m;
  m.signature = c;
  m.pipeline = pipeline;
  m.kernel = "cpu.imaginary";
  m.k = c.k_bucket;
  m.median_ms = 1000;
  m.baseline_ms = 1;
  return m;
}

/// Whatever was fastest on this machine, the product's next plan is by diagonals.
void MakeDiagonalsFastest(const std::shared_ptr<Pattern>& left,
                          const std::shared_ptr<Pattern>& right) {
  std::vector<Measurement> measurements = left->trials().measurements();
  for (Measurement& m : measurements) {
    if (!m.pair || m.pair->right != right->hash()) continue;
    m.baseline_ms = 1;
    m.median_ms = m.kernel == "cpu.dia.diagonals" ? 0.5 : 1;
  }
  left->trials().SetMeasurements(measurements);
}

TEST(Preparation, LayoutsOfFactorsStayWhileAPlanReadsThem) {
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  TemporaryDirectory directory;
  const test::Pattern band = test::Band(4000, 9), narrow = test::Band(4000, 8);
  {
    Site site(directory.path());
    auto s = SendMatrix(site.catalog, "S", narrow);
    auto t = SendMatrix(site.catalog, "T", band);
    ASSERT_TRUE(s.ok() && t.ok() && site.Idle());
    const PatternProduct pair = {(*s)->pattern(), (*t)->pattern()};
    site.preparation.RequestTrial(pair, problem);
    ASSERT_TRUE(site.Idle());
    MakeDiagonalsFastest(pair.left, pair.right);
    // The plan is to be found anew, from what was measured.
    const auto plan = [&] {
      return pair.left->plans().Find(SignatureOf(problem), pair.pair()).plan;
    };
    ActivePlan lost = *plan();
    lost.plan.pipeline = "dia";
    lost.plan.kernel = "cpu.dia.diagonals";
    pair.left->plans().Replace(std::make_shared<const ActivePlan>(lost));
    pair.right->DropLayout("dia");
    site.preparation.RequestTrial(pair, problem);
    ASSERT_TRUE(site.Idle());
    EXPECT_EQ(plan()->plan.kernel, "cpu.dia.diagonals");
    EXPECT_EQ(plan()->plan.pipeline, "dia");
    const auto layout = pair.right->FindLayout("dia");
    ASSERT_NE(layout, nullptr);
    EXPECT_TRUE(layout->resident());
    EXPECT_EQ(pair.left->FindLayout("dia"), nullptr) << "S is read from plain CSR";
    // A preparation of the right pattern knows whose it is.
    ASSERT_TRUE(site.preparation.Request(*t, {Signature(Operation::kSddmm)}, false, {}).ok());
    ASSERT_TRUE(site.Idle());
    EXPECT_EQ(pair.right->FindLayout("dia"), layout);
    CheckConsistent(site, *pair.right);
    const auto stored = site.store->Load();
    ASSERT_TRUE(stored.ok());
    EXPECT_TRUE(std::ranges::any_of(stored->layouts, [](const LayoutRecord& record) {
      return record.layout.pipeline == "dia";
    }));
  }
  Site site(directory.path());
  ASSERT_TRUE(site.Idle());
  auto s = site.catalog.Find("t", "S"), t = site.catalog.Find("t", "T");
  ASSERT_TRUE(s.ok() && t.ok());
  const PatternProduct pair = {(*s)->pattern(), (*t)->pattern()};
  const auto layout = pair.right->FindLayout("dia");
  ASSERT_NE(layout, nullptr) << "it was stored";
  EXPECT_FALSE(layout->resident()) << "nobody needs it yet";
  site.preparation.RequestTrial(pair, problem);
  ASSERT_TRUE(site.Idle());
  const auto found = pair.left->plans().Find(SignatureOf(problem), pair.pair());
  ASSERT_TRUE(found.decided());
  EXPECT_EQ(found.plan->plan.kernel, "cpu.dia.diagonals");
  EXPECT_EQ(pair.right->FindLayout("dia"), layout) << "nothing was built again";
  // Nobody multiplies with it any more.
  ASSERT_TRUE(site.catalog.Delete("t", "S").ok());
  ASSERT_TRUE(site.preparation.Request(*t, {Signature(Operation::kSddmm)}, true, {}).ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_EQ(pair.right->FindLayout("dia"), nullptr);
  const auto stored = site.store->Load();
  ASSERT_TRUE(stored.ok());
  EXPECT_TRUE(std::ranges::none_of(
      stored->layouts, [](const LayoutRecord& record) { return record.layout.pipeline == "dia"; }));
}

/// Of a pair whose left pattern was timed, with a plan by diagonals and the layout that it reads.
void PlanDiagonals(Site& site, const PatternProduct& pair, const Problem& problem) {
  site.preparation.RequestTrial(pair, problem);
  ASSERT_TRUE(site.Idle());
  MakeDiagonalsFastest(pair.left, pair.right);
  // The plan is to be found anew, from what was measured.
  ActivePlan lost = *pair.left->plans().Find(SignatureOf(problem), pair.pair()).plan;
  lost.plan.pipeline = "dia";
  lost.plan.kernel = "cpu.dia.diagonals";
  pair.left->plans().Replace(std::make_shared<const ActivePlan>(lost));
  pair.right->DropLayout("dia");
  site.preparation.RequestTrial(pair, problem);
  ASSERT_TRUE(site.Idle());
  ASSERT_NE(pair.right->FindLayout("dia"), nullptr);
}

TEST(Preparation, AProductsLayoutIsThereBeforeItsPatternIsRestored) {
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  TemporaryDirectory directory;
  {
    Site site(directory.path());
    auto s = SendMatrix(site.catalog, "S", test::Band(4000, 8));
    auto t = SendMatrix(site.catalog, "T", test::Band(4000, 9));
    ASSERT_TRUE(s.ok() && t.ok() && site.Idle());
    PlanDiagonals(site, {(*s)->pattern(), (*t)->pattern()}, problem);
    // As if it had been stored: that it is by diagonals, on any machine.
    std::vector<MeasurementRecord> measured = site.store->Load()->measurements;
    for (MeasurementRecord& m : measured) {
      if (m.pair) m.median_ms = m.kernel == "cpu.dia.diagonals" ? 0.5 : m.baseline_ms;
    }
    ASSERT_TRUE(site.store->PutMeasurements(measured).ok());
  }
  Modules modules(directory.path());
  Listener listener;
  Executor executor(ExecutorOptions(), modules.catalog, modules.dense, modules.budget, listener);
  Preparation preparation(Quick(), modules.catalog, *modules.store, modules.budget, executor,
                          listener);
  const MatrixLease s = *modules.catalog.Find("t", "S"), t = *modules.catalog.Find("t", "T");
  const PatternProduct pair = {s->pattern(), t->pattern()};
  std::shared_ptr<LazyLayout> layout;
  {
    // The only worker waits for the worker slot, while patterns wait to be restored.
    BusyWorkerSlot busy(executor);
    auto other = SendMatrix(modules.catalog, "other", test::Uniform(3000, 3000, 10, 1));
    ASSERT_TRUE(other.ok());
    preparation.Prepare(*other, {});
    preparation.Restore(modules.contents);
    layout = pair.right->FindLayout("dia");
    ASSERT_NE(layout, nullptr);
    EXPECT_FALSE(layout->resident()) << "nobody needs it yet";
    preparation.RequestTrial(pair, problem);
  }
  ASSERT_TRUE(Eventually([&] { return preparation.pending() == 0; }));
  EXPECT_EQ(pair.left->plans().Find(SignatureOf(problem), pair.pair()).plan->plan.pipeline, "dia");
  EXPECT_EQ(pair.right->FindLayout("dia"), layout);
  EXPECT_THAT(listener.built(), Not(Contains("dia by cpu"))) << "nothing was built again";
  executor.Close();
}

TEST(Preparation, LostLayoutsAreNotAskedForByEveryRequestWhileMemoryIsShort) {
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  Site site;
  auto s = SendMatrix(site.catalog, "S", test::Band(4000, 8));
  ASSERT_TRUE(s.ok() && site.Idle());
  const PatternProduct pair = {(*s)->pattern(), (*s)->pattern()};
  PlanDiagonals(site, pair, problem);
  // What it was chosen by is gone, too: it could not be tried again.
  pair.left->trials().Forget(SignatureOf(problem), pair.pair());
  pair.right->DropLayout("dia");
  site.budget.SetRefuse([](size_t, MemoryUse use) { return use == MemoryUse::kPreparation; });
  site.preparation.RequestTrial(pair, problem);
  ASSERT_TRUE(site.Idle());
  const auto found = pair.left->plans().Find(SignatureOf(problem), pair.pair());
  EXPECT_EQ(found.plan->plan.kernel, "cpu.csr.row_groups");
  EXPECT_FALSE(found.decided());
  const int ends = site.listener.ends("ready") + site.listener.ends("failed");
  site.preparation.RequestTrial(pair, problem);
  ASSERT_TRUE(site.Idle());
  EXPECT_EQ(site.listener.ends("ready") + site.listener.ends("failed"), ends);
}

TEST(Preparation, LostLayoutsAreBuiltAgainHoweverSmallAndHoweverManyPairs) {
  const ProblemSignature c = Signature(Operation::kSpgemm, false, 0);
  Site site;
  auto s = SendMatrix(site.catalog, "S", test::Band(300, 3));
  ASSERT_TRUE(s.ok() && site.Idle());
  const PatternProduct square = {(*s)->pattern(), (*s)->pattern()};
  Pattern& pattern = *square.left;
  ActivePlan active;
  active.plan.signature = c;
  active.plan.pipeline = "dia";
  active.plan.kernel = "cpu.dia.diagonals";
  active.plan.pair = square.pair();
  pattern.plans().Replace(std::make_shared<const ActivePlan>(active));
  Measurement measurement = Imaginary(c, "dia");
  measurement.kernel = active.plan.kernel;
  measurement.pair = active.plan.pair;
  measurement.median_ms = 0.5;
  pattern.trials().Add(measurement);
  // Of as many others as there may be.
  for (int i = 0; i < 16; ++i) {
    auto t = SendMatrix(site.catalog, "T" + std::to_string(i), test::Band(300, 4 + i));
    ASSERT_TRUE(t.ok());
    for (int way = 0; way < 4; ++way) {
      active.plan.kernel = "cpu.csr.row_groups";
      active.plan.pipeline = "csr";
      active.plan.pair = {(*t)->pattern()->hash(), way / 2 == 1, way % 2 == 1};
      pattern.plans().Replace(std::make_shared<const ActivePlan>(active));
    }
  }
  ASSERT_TRUE(site.Idle());
  site.preparation.RequestTrial(square, ProblemOf(c));
  ASSERT_TRUE(site.Idle());
  EXPECT_NE(pattern.FindLayout("dia"), nullptr);
  EXPECT_EQ(pattern.plans().Find(c, square.pair()).plan->plan.kernel, "cpu.dia.diagonals");
  // A new one is too many, unless others are gone.
  auto large = SendMatrix(site.catalog, "large", test::Uniform(300, 3000, 100, 1));
  ASSERT_TRUE(large.ok() && site.Idle());
  const PatternProduct with_large = {square.left, (*large)->pattern()};
  const auto is_planned = [&] {
    site.preparation.RequestTrial(with_large, ProblemOf(c));
    EXPECT_TRUE(site.Idle());
    return pattern.plans().Find(c, with_large.pair()).exact;
  };
  EXPECT_FALSE(is_planned());
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(site.catalog.Delete("t", "T" + std::to_string(i)).ok());
  }
  EXPECT_TRUE(is_planned());
}

TEST(Preparation, WhatIsAskedForOfAPairLeavesItsPlanAndItsFigures) {
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  const ProblemSignature c = SignatureOf(problem);
  Site site;
  auto s = SendMatrix(site.catalog, "S", test::Band(4000, 8));
  ASSERT_TRUE(s.ok() && site.Idle());
  const PatternProduct pair = {(*s)->pattern(), (*s)->pattern()};
  Pattern& pattern = *pair.left;
  PlanDiagonals(site, pair, problem);
  const auto plan = [&] { return pattern.plans().Find(c, pair.pair()); };
  const auto runs_of_default = [&] {
    for (const Measurement& m : pattern.trials().measurements()) {
      if (m.pair && m.kernel == "cpu.csr.row_groups") return m.runs;
    }
    return -1;
  };
  std::vector<Measurement> measurements = pattern.trials().measurements();
  for (Measurement& m : measurements) m.runs = 1'000'000;
  pattern.trials().SetMeasurements(measurements);
  // No memory for what is asked for, but for the trial.
  constexpr size_t kPartOffsets = 3 * 4001 * sizeof(int64_t);
  site.budget.SetRefuse([](size_t bytes, MemoryUse use) {
    return bytes == kPartOffsets && use == MemoryUse::kPreparation;
  });
  const auto ask = [&] {
    const auto asked = ParseAsked("column_parts(parts=3)", "cpu.coo.column_parts");
    EXPECT_TRUE(asked.ok());
    EXPECT_TRUE(site.preparation.Request(*s, {c}, /*again=*/false, *asked).ok());
    EXPECT_TRUE(site.Idle());
  };
  ask();
  EXPECT_EQ(plan().plan->plan.kernel, "cpu.dia.diagonals");
  EXPECT_TRUE(plan().decided()) << plan().plan->plan.reason;
  EXPECT_THAT(pattern.progress().status().detail,
              HasSubstr("not all that was asked for could be tried"));
  EXPECT_EQ(runs_of_default(), 1'000'000) << "the better-founded figure";
  site.budget.SetRefuse(nullptr);
  ask();
  EXPECT_TRUE(plan().decided());
  EXPECT_EQ(runs_of_default(), 1'000'000);
  EXPECT_THAT(TimedOf(pattern, "csr * csr").kernels, Contains("cpu.coo.column_parts"));
}

TEST(Preparation, LayoutsOfPairsWhosePatternIsGoneAreDropped) {
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  Site site;
  auto s = SendMatrix(site.catalog, "S", test::Band(4000, 8));
  auto t = SendMatrix(site.catalog, "T", test::Band(4000, 9));
  ASSERT_TRUE(s.ok() && t.ok() && site.Idle());
  Pattern& pattern = *(*s)->pattern();
  // Of a kernel that reads both factors so.
  const auto kernel = std::ranges::find_if(SpgemmKernels(), [](const SpgemmKernel& k) {
    return k.left_too && k.layout_kind == kDiagonals;
  });
  if (kernel == SpgemmKernels().end()) GTEST_SKIP() << "only kernels of GPUs read both factors so";
  const std::string pipeline(kernel->layout_kind);
  ActivePlan active;
  active.plan.signature = SignatureOf(problem);
  active.plan.kernel = kernel->name;
  active.plan.pipeline = pipeline;
  active.plan.pair = {(*t)->pattern()->hash()};
  pattern.plans().Replace(std::make_shared<const ActivePlan>(active));
  BuildContext context;
  context.memory = &HeapMemory();
  auto built = BuildLayout(*ParsePipeline(pipeline), ViewCsr(**pattern.Csr()), context);
  ASSERT_TRUE(built.ok() && !built->skipped);
  built->layout.pipeline = pipeline;
  pattern.AddLayout(std::make_shared<const Layout>(std::move(built->layout)), 0);
  ASSERT_TRUE(site.preparation.Request(*s, {Signature(Operation::kSddmm)}, true).ok() &&
              site.Idle());
  EXPECT_NE(pattern.FindLayout(pipeline), nullptr);
  t = MatrixLease();
  ASSERT_TRUE(site.catalog.Delete("t", "T").ok());
  ASSERT_TRUE(site.preparation.Request(*s, {Signature(Operation::kSddmm)}, true).ok() &&
              site.Idle());
  EXPECT_EQ(pattern.FindLayout(pipeline), nullptr);
}

TEST(Preparation, LayoutsThatLostToWhatWasMeasuredBeforeAreDropped) {
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  TemporaryDirectory directory;
  {
    Site site(directory.path());
    auto s = SendMatrix(site.catalog, "S", test::Band(4000, 8));
    auto t = SendMatrix(site.catalog, "T", test::Band(4000, 9));
    ASSERT_TRUE(s.ok() && t.ok() && site.Idle());
    PlanDiagonals(site, {(*s)->pattern(), (*t)->pattern()}, problem);
    // The default was fastest, as was found out before the restart.
    std::vector<MeasurementRecord> measured = site.store->Load()->measurements;
    for (MeasurementRecord& m : measured) {
      if (m.pair) m.median_ms = (m.kernel == "cpu.csr.row_groups" ? 1 : 2) * m.baseline_ms;
    }
    ASSERT_TRUE(site.store->PutMeasurements(measured).ok());
  }
  Site site(directory.path());
  ASSERT_TRUE(site.Idle());
  auto s = site.catalog.Find("t", "S"), t = site.catalog.Find("t", "T");
  ASSERT_TRUE(s.ok() && t.ok());
  ASSERT_NE((*t)->pattern()->FindLayout("dia"), nullptr);
  site.preparation.RequestTrial({(*s)->pattern(), (*t)->pattern()}, problem);
  ASSERT_TRUE(site.Idle());
  EXPECT_EQ((*t)->pattern()->FindLayout("dia"), nullptr);
}

TEST(Preparation, JobsOfOtherPatternsDropNothingThatIsBeingPublished) {
  Site site;
  auto s = SendMatrix(site.catalog, "S", test::Band(4000, 8));
  auto t = SendMatrix(site.catalog, "T", test::Band(4000, 9));
  ASSERT_TRUE(s.ok() && t.ok() && site.Idle());
  Pattern& right = *(*t)->pattern();
  const PreparationOptions options = Quick();
  Mutex publishing;
  const JobModules modules = {site.catalog,  *site.store,   site.budget,
                              site.executor, site.listener, site.preparation.selector(),
                              options,       publishing};
  BuildContext context;
  context.memory = &HeapMemory();
  auto built = BuildLayout(*ParsePipeline("dia"), ViewCsr(**right.Csr()), context);
  ASSERT_TRUE(built.ok() && !built->skipped);
  const int stored = site.listener.stages("store");
  std::thread job_of_right;
  {
    const MutexLock lock(publishing);
    right.AddLayout(std::make_shared<const Layout>(std::move(built->layout)), 0);
    job_of_right = std::thread([&] {
      const std::atomic<bool> stop = false;
      PatternJob job(modules, (*t)->pattern(), {}, {}, stop);
      EXPECT_TRUE(job.Prepare({}).ok());
    });
    // All that it does besides is done.
    EXPECT_TRUE(Eventually([&] { return site.listener.stages("store") > stored; }));
    EXPECT_TRUE(SendMatrix(site.catalog, "other", test::Band(4000, 10)).ok());
    ActivePlan active;
    active.plan.signature = Signature(Operation::kSpgemm, false, 0);
    active.plan.kernel = "cpu.dia.diagonals";
    active.plan.pipeline = "dia";
    active.plan.pair = {right.hash()};
    (*s)->pattern()->plans().Replace(std::make_shared<const ActivePlan>(active));
  }
  job_of_right.join();
  EXPECT_NE(right.FindLayout("dia"), nullptr);
  ASSERT_TRUE(site.Idle());
}

/// Changes a byte in the middle of every blob that is at least `size` bytes long.
void Damage(const std::string& directory, uintmax_t size) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file() || entry.file_size() < size) continue;
    if (entry.path().string().find("catalog") != std::string::npos) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
    file.seekg(middle);
    const char byte = static_cast<char>(file.get());
    file.seekp(middle);
    file.put(static_cast<char>(~byte));
  }
}

TEST(Preparation, ADamagedRightPatternIsANoteOfTheLeftOne) {
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  TemporaryDirectory directory;
  {
    Site site(directory.path());
    auto s = SendMatrix(site.catalog, "S", test::Band(4000, 8));
    auto t = SendMatrix(site.catalog, "T", test::Band(4000, 12));
    ASSERT_TRUE(s.ok() && t.ok() && site.Idle());
    PlanDiagonals(site, {(*s)->pattern(), (*t)->pattern()}, problem);
    std::vector<MeasurementRecord> measured = site.store->Load()->measurements;
    for (MeasurementRecord& m : measured) {
      if (m.pair) m.median_ms = m.kernel == "cpu.dia.diagonals" ? 0.5 : m.baseline_ms;
    }
    ASSERT_TRUE(site.store->PutMeasurements(measured).ok());
    ASSERT_TRUE(site.store->DropLayout((*t)->pattern()->hash(), "dia").ok());
  }
  Damage(directory.path(), 4000 * 20 * sizeof(int32_t));
  Site site(directory.path());
  ASSERT_TRUE(site.Idle());
  auto s = site.catalog.Find("t", "S"), t = site.catalog.Find("t", "T");
  ASSERT_TRUE(s.ok() && t.ok());
  site.preparation.RequestTrial({(*s)->pattern(), (*t)->pattern()}, problem);
  site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
  ASSERT_TRUE(site.Idle());
  const Pattern& pattern = *(*s)->pattern();
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady)
      << pattern.progress().status().detail;
  EXPECT_TRUE(pattern.plans().Find(SignatureOf(problem), PatternPair{pattern.hash()}).decided());
}

TEST(Preparation, SquaresAreTriedWhereAnUploadExpectsProducts) {
  Site site;
  const test::Pattern s = test::Band(4000, 9);
  UploadHeader header = HeaderOf("S", s);
  header.expected = {Signature(Operation::kSpgemm)};
  auto matrix = Send(site.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s));
  ASSERT_TRUE(matrix.ok());
  ASSERT_TRUE(site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_THAT(TimedOf(pattern, "csr * csr").kernels, Contains("cpu.dia.diagonals"));
  EXPECT_TRUE(
      pattern.plans().Find(Signature(Operation::kSpgemm), PatternPair{pattern.hash()}).exact);
  EXPECT_THAT(pattern.progress().status().message, HasSubstr(", S * S: "));
  CheckConsistent(site, pattern);
}

TEST(Preparation, PairsOfTransposedMatrices) {
  Site site;
  auto s = SendMatrix(site.catalog, "S", test::Uniform(3000, 2000, 6, 1));
  auto t = SendMatrix(site.catalog, "T", test::Uniform(2500, 3000, 6, 2));
  ASSERT_TRUE(s.ok() && t.ok() && site.Idle());
  Pattern& pattern = *(*s)->pattern();
  const std::string& t_hash = (*t)->pattern()->hash();
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  const std::vector<std::pair<PatternProduct, std::string>> pairs = {
      {{(*s)->pattern(), (*s)->pattern(), false, true}, "csr * transpose"},
      {{(*s)->pattern(), (*s)->pattern(), true, false}, "transpose * csr"},
      {{(*s)->pattern(), (*t)->pattern(), true, true}, "transpose * transpose " + t_hash}};
  for (const auto& [pair, pipeline] : pairs) site.preparation.RequestTrial(pair, problem);
  ASSERT_TRUE(site.Idle());
  for (const auto& [pair, pipeline] : pairs) {
    const Timed timed = TimedOf(pattern, pipeline);
    EXPECT_THAT(timed.kernels, Contains("cpu.csr.row_groups")) << pipeline;
    EXPECT_THAT(timed.kernels, Contains("cpu.csr.dense")) << pipeline;
    const auto found = pattern.plans().Find(SignatureOf(problem), pair.pair());
    ASSERT_TRUE(found.decided()) << pipeline;
    EXPECT_EQ(found.plan->plan.kernel, timed.fastest);
  }
  EXPECT_FALSE(pattern.plans().Find(SignatureOf(problem), PatternPair{pattern.hash()}).exact)
      << "nobody asked";
  EXPECT_EQ(site.budget.used(MemoryUse::kPreparation), 0);
}

TEST(Preparation, PairsOfOddMatrices) {
  Site site;
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  const std::vector<std::pair<test::Pattern, test::Pattern>> pairs = {
      {test::FromCoordinates(0, 0, {}), test::FromCoordinates(0, 0, {})},
      {test::FromCoordinates(20000, 7, {}), test::Uniform(7, 20000, 15000, 1)},
      {test::Uniform(1, 20000, 15000, 3), test::Uniform(20000, 1, 1, 3)},
      {test::Uniform(20000, 1, 1, 4), test::Uniform(1, 100, 30, 4)}};
  for (size_t i = 0; i < pairs.size(); ++i) {
    auto left = SendMatrix(site.catalog, "S" + std::to_string(i), pairs[i].first);
    auto right = SendMatrix(site.catalog, "T" + std::to_string(i), pairs[i].second);
    ASSERT_TRUE(left.ok() && right.ok());
    site.preparation.RequestTrial({(*left)->pattern(), (*right)->pattern()}, problem);
    ASSERT_TRUE(site.Idle());
    const Pattern& pattern = *(*left)->pattern();
    EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady)
        << pattern.progress().status().detail;
    const auto found =
        pattern.plans().Find(SignatureOf(problem), PatternPair{(*right)->pattern()->hash()});
    if (i == 0) {
      EXPECT_FALSE(found.exact) << "too few nonzeros for a trial";
      continue;
    }
    ASSERT_TRUE(found.exact) << i;
    EXPECT_NE(found.plan->plan.reason, "");
  }
}

TEST(Preparation, AFirstRequestOfASignatureQueuesOneTrial) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok());
  ASSERT_TRUE(site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const Problem problem{Operation::kSddmm, false, ElementType::kF32, 20, DeviceKind::kCpu};
  {
    BusyWorkerSlot busy(site.executor);
    for (int i = 0; i < 100; ++i) site.preparation.RequestTrial(*matrix, problem);
    EXPECT_EQ(site.preparation.pending(), 1);
    EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady)
        << "what is there stays usable";
  }
  ASSERT_TRUE(site.Idle());
  EXPECT_TRUE(pattern.plans().Find(SignatureOf(problem)).exact);
  site.preparation.RequestTrial(*matrix, problem);
  EXPECT_EQ(site.preparation.pending(), 0);
  EXPECT_EQ(site.listener.ends("ready"), 2);
  EXPECT_THAT(pattern.progress().status().message, HasSubstr("sddmm K=32 f32 cpu"));
  CheckDecisions(pattern, Signature(Operation::kSpmm));
  CheckDecisions(pattern, SignatureOf(problem));
  CheckConsistent(site, pattern);
}

/// Medians that were taken for the signature, by pipeline (of SpGEMM by pair) and kernel.
std::map<std::string, double> MediansOf(const Pattern& pattern, const ProblemSignature& c) {
  std::map<std::string, double> medians;
  for (const Measurement& m : pattern.trials().measurements()) {
    if (m.signature != c) continue;
    const std::string pipeline = m.pair ? ToString(*m.pair, pattern.hash()) : m.pipeline;
    medians[pipeline + " / " + m.kernel] = m.median_ms;
  }
  return medians;
}

TEST(Preparation, WhatIsUnderWayStaysPreparingWhileMoreIsAskedFor) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const auto state = [&pattern] { return pattern.progress().status().state; };
  {
    BusyWorkerSlot busy(site.executor);
    ASSERT_TRUE(site.preparation.Request(*matrix, {Signature(Operation::kSddmm)}, false).ok());
    ASSERT_TRUE(Eventually([&] { return state() == PreparationState::kPreparing; }));
    ASSERT_TRUE(site.preparation.Request(*matrix, {Signature(Operation::kSpmm, true)}, false).ok());
    EXPECT_EQ(state(), PreparationState::kPreparing);
    EXPECT_EQ(site.preparation.pending(), 2);
  }
  ASSERT_TRUE(site.Idle());
  EXPECT_EQ(state(), PreparationState::kReady);
  EXPECT_TRUE(pattern.plans().Find(Signature(Operation::kSpmm, true)).decided());
}

TEST(Preparation, ARequestAddsSignatures) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const auto plan = pattern.plans().Find(Signature(Operation::kSpmm)).plan;
  const auto medians = MediansOf(pattern, Signature(Operation::kSpmm));
  {
    BusyWorkerSlot busy(site.executor);
    ASSERT_TRUE(site.preparation
                    .Request(*matrix, {Signature(Operation::kSpmm), Signature(Operation::kSddmm)},
                             /*again=*/false)
                    .ok());
    EXPECT_NE(pattern.progress().status().state, PreparationState::kReady)
        << "somebody may wait for it";
  }
  ASSERT_TRUE(site.Idle());
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  EXPECT_TRUE(pattern.plans().Find(Signature(Operation::kSddmm)).decided());
  EXPECT_EQ(pattern.plans().Find(Signature(Operation::kSpmm)).plan, plan) << "left alone";
  EXPECT_EQ(MediansOf(pattern, Signature(Operation::kSpmm)), medians);
  EXPECT_TRUE(site.preparation.Request(*matrix, {}, /*again=*/false).ok());
  EXPECT_EQ(site.preparation.pending(), 0) << "all is decided";
  CheckConsistent(site, pattern);
}

TEST(Preparation, ARequestWithoutSignaturesIsForThoseOnTheirWay) {
  Site site;
  const test::Pattern s = Clusters();
  UploadHeader header = HeaderOf("m", s);
  header.expected = {Signature(Operation::kSddmm)};
  {
    BusyWorkerSlot busy(site.executor);
    auto matrix = Send(site.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s));
    ASSERT_TRUE(matrix.ok());
    EXPECT_TRUE(site.preparation.Request(*matrix, {}, /*again=*/false).ok());
    EXPECT_TRUE(site.preparation.Request(*matrix, {}, /*again=*/true).ok());
    EXPECT_TRUE(site.preparation.Request(*matrix, {}, /*again=*/true).ok());
    EXPECT_LE(site.preparation.pending(), 2) << "one under way, and one once more";
  }
  ASSERT_TRUE(site.Idle());
  const auto matrix = site.catalog.Find("t", "m");
  const auto plans = (*matrix)->pattern()->plans().List();
  ASSERT_EQ(plans.size(), 1u) << "not the default signature";
  EXPECT_EQ(plans[0]->plan.signature, Signature(Operation::kSddmm));
}

TEST(Preparation, AClientWaitsForTheTrialThatBringsItsSignature) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  {
    BusyWorkerSlot busy(site.executor);
    site.preparation.RequestTrial(*matrix, ProblemOf(Signature(Operation::kSddmm)));
    ASSERT_TRUE(Eventually([&] { return pattern.progress().status().stage == "trial"; }));
    EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
    ASSERT_TRUE(site.preparation.Request(*matrix, {Signature(Operation::kSddmm)}, false).ok());
    EXPECT_EQ(pattern.progress().status().state, PreparationState::kQueued);
  }
  ASSERT_TRUE(site.Idle());
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  EXPECT_TRUE(pattern.plans().Find(Signature(Operation::kSddmm)).decided());
}

TEST(Preparation, AgainForgetsWhatWasMeasuredAndTimesAnew) {
  TemporaryDirectory directory;
  Site site(directory.path());
  auto matrix = SendMatrix(site.catalog, "m", test::ShuffledClusters(600, 16, 65536, 24, 12, 1, 3));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const ProblemSignature c = Signature(Operation::kSpmm);
  const ProblemSignature other = Signature(Operation::kSpmm, false, 64);
  const auto plan = pattern.plans().Find(c).plan;
  std::set<std::string> tried;
  for (const Decision& decision : pattern.trials().decisions()) {
    if (decision.tried) tried.insert(decision.pipeline);
  }
  ASSERT_FALSE(tried.empty());
  // What stood in the way of a candidate: it was slow, for this K and for another.
  for (const std::string& pipeline : tried) {
    pattern.trials().Add(Imaginary(c, pipeline));
    pattern.trials().Add(Imaginary(other, pipeline));
  }
  const MeasurementRecord stale = {pattern.hash(), ToString(c), "csr", "cpu.imaginary",
                                   "cpu",          kK,          1000,  1};
  ASSERT_TRUE(site.store->PutMeasurements({&stale, 1}).ok());
  {
    BusyWorkerSlot busy(site.executor);
    ASSERT_TRUE(site.preparation.Request(*matrix, {c}, /*again=*/true).ok());
    ASSERT_TRUE(Eventually([&] { return pattern.progress().status().stage == "trial"; }));
    EXPECT_EQ(pattern.plans().Find(c).plan, plan) << "it serves until there is a new one";
  }
  ASSERT_TRUE(site.Idle());
  // A machine that had no time for a trial leaves the plan as it was.
  for (int more = 0; more < 5 && pattern.plans().Find(c).plan == plan; ++more) {
    ASSERT_TRUE(site.preparation.Request(*matrix, {c}, /*again=*/true).ok());
    ASSERT_TRUE(site.Idle());
  }
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady)
      << pattern.progress().status().detail;
  EXPECT_NE(pattern.plans().Find(c).plan, plan);
  EXPECT_TRUE(pattern.plans().Find(c).decided());
  const std::map<std::string, double> medians = MediansOf(pattern, c);
  for (const auto& [what, ms] : medians) EXPECT_THAT(what, Not(HasSubstr("imaginary")));
  for (const Decision& decision : pattern.trials().decisions()) {
    EXPECT_NE(decision.reason, "it was slower for another K") << decision.pipeline;
  }
  EXPECT_EQ(MediansOf(pattern, other).size(), tried.size()) << "nobody asked for these";
  std::map<std::string, double> stored;
  const StoreContents contents = *site.store->Load();
  for (const MeasurementRecord& m : contents.measurements) {
    if (m.signature == ToString(c)) stored[m.pipeline + " / " + m.kernel] = m.median_ms;
  }
  EXPECT_EQ(stored, medians);
  ASSERT_EQ(contents.plans.size(), 1u);
  EXPECT_EQ(contents.plans[0].plan_ms, pattern.plans().Find(c).plan->plan.plan_ms);
  EXPECT_TRUE(contents.wanted.empty());
  CheckDecisions(pattern, c);
  CheckConsistent(site, pattern);
}

Asked AskedFor(const std::string& pipeline, const std::string& kernel = "") {
  return ParseAsked(pipeline, kernel).value();
}

TEST(Preparation, SaysOfNearlyTheSameSpeedThatItIsTheSame) {
  EXPECT_EQ(Compared(1.62), "1.62x faster");
  EXPECT_EQ(Compared(1.01), "1.01x faster");
  EXPECT_EQ(Compared(1.001), "as fast");
  EXPECT_EQ(Compared(0.999), "as fast");
  EXPECT_EQ(Compared(0.5), "2.00x slower");
}

TEST(Preparation, TriesWhatIsAskedForBesideThePlan) {
  Site site;
  // Too few nonzeros for any rule.
  auto matrix = SendMatrix(site.catalog, "m", test::Uniform(300, 200, 20, 1));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const ProblemSignature c = Signature(Operation::kSpmm);
  EXPECT_THAT(Tried(pattern), ElementsAre("csr"));
  const size_t decisions = pattern.trials().decisions().size();
  const Asked asked = AskedFor("aspt(panel=32)", "cpu.aspt.panel");
  ASSERT_TRUE(site.preparation.Request(*matrix, {}, /*again=*/false, asked).ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady)
      << pattern.progress().status().detail;
  EXPECT_THAT(Tried(pattern), ElementsAre("csr", asked.pipeline));
  EXPECT_EQ(MediansOf(pattern, c).count(asked.pipeline + " / cpu.aspt.panel"), 1u);
  EXPECT_EQ(pattern.trials().decisions().size(), decisions + 1) << "those on others stand";
  EXPECT_TRUE(std::ranges::any_of(pattern.trials().decisions(), [&](const Decision& d) {
    return d.pipeline == asked.pipeline && d.tried && d.reason == "it was asked for";
  }));
  EXPECT_TRUE(site.store->Load()->wanted.empty());
  CheckConsistent(site, pattern);
  CheckDecisions(pattern, c);

  // A signature that there is no plan for is tried as ever, and with that.
  const ProblemSignature other = Signature(Operation::kSpmm, false, 64);
  ASSERT_TRUE(site.preparation.Request(*matrix, {other}, false, AskedFor("dcsr")).ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_TRUE(pattern.plans().Find(other).decided());
  EXPECT_EQ(MediansOf(pattern, other).count("dcsr / cpu.dcsr.row_balanced"), 1u);
  EXPECT_EQ(MediansOf(pattern, c).count("dcsr / cpu.dcsr.row_balanced"), 0u);
  CheckDecisions(pattern, other);

  // A skip rule of the pipeline's own is a decision.
  ASSERT_TRUE(site.preparation.Request(*matrix, {c}, false, AskedFor("row_segments")).ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_TRUE(std::ranges::any_of(pattern.trials().decisions(), [&](const Decision& d) {
    return d.pipeline.starts_with("row_segments") && !d.tried &&
           d.reason.find("segments skipped") != std::string::npos;
  }));
}

/// The model of tests/data/model; null where there is no library for it.
std::shared_ptr<const Model> TinyModel() {
  absl::StatusOr<std::shared_ptr<const Model>> model = Model::Load(SPARSED_TEST_DATA "/model/tiny");
  EXPECT_TRUE(model.ok() || absl::IsUnimplemented(model.status())) << model.status();
  return model.ok() ? *model : nullptr;
}

/// The decision on the pipeline, or the kernel, for the signature; empty if there is none.
Decision DecisionOn(const Pattern& pattern, const ProblemSignature& c, const std::string& what) {
  for (const Decision& decision : pattern.trials().decisions()) {
    if (decision.signature != c) continue;
    if (decision.pipeline == what || decision.kernel == what) return decision;
  }
  ADD_FAILURE() << "no decision on " << what;
  return {};
}

TEST(Preparation, AModelHasTriedWhatPays) {
  const std::shared_ptr<const Model> model = TinyModel();
  if (model == nullptr) GTEST_SKIP() << "libxgboost0 is not installed";
  Site site;
  site.preparation.selector().Use(DeviceKind::kCpu, model);
  auto matrix = SendMatrix(site.catalog, "m", test::Band(20'000, 9));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const ProblemSignature c = Signature(Operation::kSpmm);
  const std::string tiles = "aspt(panel=64,min_dense=2)";
  EXPECT_TRUE(DecisionOn(pattern, c, tiles).tried);
  EXPECT_THAT(DecisionOn(pattern, c, tiles).reason, HasSubstr("4.00x expected ("));
  // Its building would take 1,000 s.
  const Decision clustered =
      DecisionOn(pattern, c, "lsh_cluster(force,siglen=128,bsize=2,max_cluster=256)");
  EXPECT_FALSE(clustered.tried);
  EXPECT_THAT(clustered.reason, HasSubstr("0.50x expected ("));
  EXPECT_THAT(clustered.reason, HasSubstr("1e+03 s of building and trying"));
  EXPECT_THAT(DecisionOn(pattern, c, "dcsr").reason, HasSubstr("left out by model tiny"));
  // Of the layout's kernels that one alone that is expected to be fast.
  EXPECT_EQ(MediansOf(pattern, c).count(tiles + " / cpu.aspt.panel"), 1u);
  EXPECT_EQ(MediansOf(pattern, c).count(tiles + " / cpu.aspt.panel_dot"), 0u);
  EXPECT_TRUE(pattern.plans().Find(c).decided());
  if (pattern.plans().Find(c).plan->plan.pipeline == tiles) {
    EXPECT_THAT(pattern.plans().Find(c).plan->plan.reason,
                HasSubstr(", 4.00x expected by model tiny"));
  }
  const std::vector<std::string> choices = site.listener.choices();
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_THAT(choices[0], HasSubstr("tiny used "));
  CheckConsistent(site, pattern);

  // Asked for, it is tried whatever the model says.
  const ProblemSignature wide = Signature(Operation::kSpmm, false, 256);
  ASSERT_TRUE(site.preparation
                  .Request(*matrix, {wide}, /*again=*/false,
                           AskedFor("lsh_cluster", "cpu.csr.row_balanced"))
                  .ok());
  ASSERT_TRUE(site.preparation.Request(*matrix, {wide}, /*again=*/false, AskedFor("dcsr")).ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_THAT(DecisionOn(pattern, wide, "lsh_cluster(siglen=128,bsize=2,max_cluster=256)").reason,
              Not(HasSubstr("by model tiny")));
  EXPECT_TRUE(DecisionOn(pattern, wide, "dcsr").tried);
  // What serves is timed with all that is tried again, also if the model leaves it out.
  ASSERT_TRUE(site.preparation.Request(*matrix, {c}, /*again=*/true).ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_TRUE(pattern.plans().Find(c).decided());
  CheckConsistent(site, pattern);

  // Who explores has it all tried.
  ASSERT_TRUE(site.preparation.Request(*matrix, {c}, /*again=*/false, Asked()).ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_TRUE(DecisionOn(pattern, c, clustered.pipeline).tried);
  EXPECT_TRUE(DecisionOn(pattern, c, "dcsr").tried);
}

/// The model of tests/data/model/network, with networks that give always the same.
std::shared_ptr<const Model> ConstantModel(const std::vector<float>& log2_ratios,
                                           const std::vector<float>& log2_seconds) {
  Model::Files files = *Model::ReadFiles(SPARSED_TEST_DATA "/model/network");
  nlohmann::json manifest = nlohmann::json::parse(files["manifest.json"]);
  const auto put = [&](const std::string& name, const std::vector<float>& outputs) {
    std::vector<float> weights(outputs.size() * manifest["inputs"].size());
    weights.insert(weights.end(), outputs.begin(), outputs.end());
    std::string bytes = fmt::format(
        R"({{"format":1,"branches":[{{"of":"features","layers":[{{"kind":"dense","outputs":{}}}]}}],)"
        R"("layers":[]}})",
        outputs.size());
    bytes += '\n';
    bytes.append(reinterpret_cast<const char*>(weights.data()), weights.size() * sizeof(float));
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    manifest["files"][name] = fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
    files[name] = std::move(bytes);
  };
  put("spmm.network", log2_ratios);
  put("building.network", log2_seconds);
  files["manifest.json"] = manifest.dump();
  absl::StatusOr<std::shared_ptr<const Model>> model = Model::FromFiles(files);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : nullptr;
}

/// A model of networks: what it promises is tried, also a pipeline that no rule has.
TEST(Preparation, ANetworkHasTriedWhatNoRuleHas) {
  // Tiles, rows in another order, another kernel on plain CSR; a thousandth of a second each.
  const std::shared_ptr<const Model> model = ConstantModel({10, -2, 10}, {-10, -10, -10, -10, -10});
  ASSERT_NE(model, nullptr);
  Site site;
  site.preparation.selector().Use(DeviceKind::kCpu, model);
  auto matrix = SendMatrix(site.catalog, "m", test::Band(20'000, 9));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const ProblemSignature c = Signature(Operation::kSpmm);
  const std::string sorted = "plain_sort(warps=16,run=1,lanes=1)";
  EXPECT_TRUE(DecisionOn(pattern, c, sorted).tried);
  EXPECT_THAT(DecisionOn(pattern, c, sorted).reason, HasSubstr("4.00x expected ("));
  EXPECT_EQ(MediansOf(pattern, c).count(sorted + " / cpu.csr.row_balanced"), 1u);
  EXPECT_FALSE(DecisionOn(pattern, c, "aspt(panel=64,min_dense=2)").tried);
  // Of what it has not seen the rules decide.
  EXPECT_THAT(DecisionOn(pattern, c, "dcsr").reason, Not(HasSubstr("model network")));
  const std::vector<std::string> choices = site.listener.choices();
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_THAT(choices[0], HasSubstr("network used "));
  CheckConsistent(site, pattern);
}

TEST(Preparation, AModelThatIsWatchedChangesNothing) {
  const std::shared_ptr<const Model> model = TinyModel();
  if (model == nullptr) GTEST_SKIP() << "libxgboost0 is not installed";
  Site site;
  site.preparation.selector().Watch(DeviceKind::kCpu, model);
  auto matrix = SendMatrix(site.catalog, "m", test::Band(20'000, 9));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  const Pattern& pattern = *(*matrix)->pattern();
  CheckDecisions(pattern, Signature(Operation::kSpmm));
  for (const Decision& decision : pattern.trials().decisions()) {
    EXPECT_EQ(decision.reason.find("model"), std::string::npos) << decision.reason;
  }
  // Rows of a band are clustered already: by rules its first choice was tried.
  const std::vector<std::string> choices = site.listener.choices();
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_THAT(choices[0], HasSubstr("tiny watched "));
}

TEST(Preparation, AModelChoosesForSquares) {
  const std::shared_ptr<const Model> model = TinyModel();
  if (model == nullptr) GTEST_SKIP() << "libxgboost0 is not installed";
  Site site;
  site.preparation.selector().Use(DeviceKind::kCpu, model);
  auto s = SendMatrix(site.catalog, "S", test::Band(20'000, 9));
  auto t = SendMatrix(site.catalog, "T", test::Band(20'000, 3));
  ASSERT_TRUE(s.ok() && t.ok() && site.Idle());
  Pattern& pattern = *(*s)->pattern();
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  const ProblemSignature c = SignatureOf(problem);
  site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
  ASSERT_TRUE(site.Idle());
  EXPECT_TRUE(DecisionOn(pattern, c, "cpu.csr.dense").tried);
  EXPECT_FALSE(DecisionOn(pattern, c, "cpu.csr.heap").tried);
  EXPECT_THAT(DecisionOn(pattern, c, "cpu.csr.heap").reason, HasSubstr("0.25x expected ("));
  EXPECT_THAT(DecisionOn(pattern, c, "cpu.dia.diagonals").reason,
              HasSubstr("left out by model tiny"));
  EXPECT_TRUE(pattern.plans().Find(c, PatternPair{pattern.hash()}).decided());
  // Of other products it knows nothing.
  site.preparation.RequestTrial({(*s)->pattern(), (*t)->pattern()}, problem);
  ASSERT_TRUE(site.Idle());
  for (const Decision& decision : pattern.trials().decisions()) {
    if (!decision.pair || decision.pair->right == pattern.hash()) continue;
    EXPECT_EQ(decision.reason.find("model"), std::string::npos) << decision.reason;
  }
}

TEST(Preparation, NonzerosInBlocksAreTriedAsBlocks) {
  Site site;
  const test::Pattern blocks = test::InBlocks(test::Uniform(200, 200, 6, 1), 6, 6);
  auto matrix = SendMatrix(site.catalog, "m", blocks);
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const ProblemSignature c = Signature(Operation::kSpmm);
  EXPECT_TRUE(DecisionOn(pattern, c, "bcsr(width=0)").tried);
  EXPECT_EQ(MediansOf(pattern, c).count("bcsr(width=0) / cpu.bcsr.blocks"), 1u);
  // Rectangles by name, and squares by the name that they always had.
  for (const std::string pipeline : {"bcsr(width=2,height=6)", "bcsr(width=6)"}) {
    Asked asked = AskedFor(pipeline);
    ASSERT_TRUE(site.preparation.Request(*matrix, {c}, /*again=*/false, asked).ok()) << pipeline;
    ASSERT_TRUE(site.Idle());
    EXPECT_EQ(MediansOf(pattern, c).count(pipeline + " / cpu.bcsr.blocks"), 1u) << pipeline;
  }
  CheckConsistent(site, pattern);
}

TEST(Preparation, ExploringTriesWhatTheRulesLeaveOut) {
  Site site;
  // Too few nonzeros for any rule.
  auto matrix = SendMatrix(site.catalog, "m", test::Uniform(300, 200, 20, 1));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const ProblemSignature c = Signature(Operation::kSpmm);
  ASSERT_THAT(Tried(pattern), ElementsAre("csr"));
  ASSERT_TRUE(site.preparation.Request(*matrix, {c}, /*again=*/false, Asked()).ok());
  ASSERT_TRUE(site.Idle());
  const std::vector<std::string> tried = Tried(pattern);
  for (const Candidate& candidate : CandidatesFor(c, {})) {
    const std::string pipeline = WithoutSkipRules(candidate.pipeline);
    EXPECT_TRUE(std::ranges::any_of(pattern.trials().decisions(), [&](const Decision& d) {
      return d.pipeline == pipeline && d.reason.find("it was asked for") == 0 &&
             d.tried == (std::ranges::count(tried, pipeline) > 0);
    })) << pipeline;
  }
  EXPECT_GT(tried.size(), 3u);
  CheckConsistent(site, pattern);
  CheckDecisions(pattern, c);
}

/// Takes these times, one a turn, over and over.
TimedRun Taking(std::vector<double> of_turns) {
  return [of_turns, turn = size_t{0}]() mutable -> absl::StatusOr<double> {
    return of_turns[turn++ % of_turns.size()];
  };
}

TEST(Trials, AHopelessContenderHasFewTurnsAndSaysSo) {
  std::vector<double> all;
  auto times = TakeTurns(Taking({2}), Taking({10.1}), 1e9, all);
  ASSERT_TRUE(times.ok());
  EXPECT_TRUE(times->censored);
  EXPECT_EQ(times->runs, 1);
  times = TakeTurns(Taking({2}), Taking({3.1}), 1e9, all);
  ASSERT_TRUE(times.ok());
  EXPECT_TRUE(times->censored);
  EXPECT_EQ(times->runs, 2);
  times = TakeTurns(Taking({2}), Taking({2.9}), 1e9, all);
  ASSERT_TRUE(times.ok());
  EXPECT_FALSE(times->censored);
  EXPECT_GT(times->runs, 3);
}

TEST(Trials, OneTurnOfABusyMachineIsNotHopeless) {
  std::vector<double> all;
  const auto times = TakeTurns(Taking({19, 19, 19}), Taking({68, 11, 11}), 1e9, all);
  ASSERT_TRUE(times.ok());
  EXPECT_FALSE(times->censored);
  EXPECT_GT(times->speedup(), 1.5);
}

TEST(Trials, WhoWinsByAccidentDidNotWinForCertain) {
  // The machine does something else in some turns of the baseline's, and in others of both.
  std::vector<double> all;
  auto times = TakeTurns(Taking({3, 3, 9, 9, 9}), Taking({4, 4, 8, 4, 8}), 1e9, all);
  ASSERT_TRUE(times.ok());
  EXPECT_GT(times->speedup(), 1.05) << "by the medians";
  EXPECT_FALSE(times->WonMostTurns()) << times->won << " of " << times->runs;
  times = TakeTurns(Taking({3, 3, 9, 3, 4}), Taking({2, 2, 8, 2, 8}), 1e9, all);
  ASSERT_TRUE(times.ok());
  EXPECT_TRUE(times->WonMostTurns()) << times->won << " of " << times->runs;
}

TEST(Preparation, WhatWinsWhenItIsAskedForIsThePlan) {
  Site site;
  UploadHeader header = HeaderOf("m", Clusters());
  header.expected = {Signature(Operation::kSpmm, true, 128)};
  const test::Pattern s = Clusters();
  auto matrix = Send(site.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const ProblemSignature c = header.expected[0];
  // As if the transposed layout, several times as fast as scattering, had not been tried.
  Plan plain;
  plain.signature = c;
  plain.kernel = "cpu.csr.scatter";
  plain.baseline_ms = plain.plan_ms = 1;
  pattern.plans().Replace(std::make_shared<const ActivePlan>(ActivePlan{plain, nullptr}));
  ASSERT_TRUE(site.preparation.Request(*matrix, {c}, false, AskedFor("transpose")).ok());
  ASSERT_TRUE(site.Idle());
  const auto speedup = [&](std::string_view pipeline) {
    double best = 0;
    for (const Measurement& m : pattern.trials().measurements()) {
      if (m.signature == c && m.pipeline == pipeline) {
        best = std::max(best, m.baseline_ms / m.median_ms);
      }
    }
    return best;
  };
  ASSERT_GT(speedup("transpose"), 0) << "it was not tried";
  // Beside other work it need not win.
  const bool wins = speedup("transpose") > kLeastSpeedup * std::max(1.0, speedup(kCsr));
  EXPECT_EQ(pattern.plans().Find(c).plan->plan.pipeline, wins ? "transpose" : kCsr);
  CheckConsistent(site, pattern);
}

TEST(Preparation, TriesAKernelOfSpgemmThatIsAskedFor) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", test::Uniform(1000, 1000, 20, 1));
  auto wide = SendMatrix(site.catalog, "wide", test::Uniform(100, 1000, 20, 1));
  ASSERT_TRUE(matrix.ok() && wide.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const ProblemSignature c = Signature(Operation::kSpgemm, false, 0);
  const Asked heap = AskedFor("", "cpu.csr.heap");
  EXPECT_TRUE(absl::IsFailedPrecondition(site.preparation.Request(*wide, {c}, false, heap)));
  site.preparation.RequestTrial({(*matrix)->pattern(), (*matrix)->pattern()}, ProblemOf(c));
  ASSERT_TRUE(site.Idle());
  const auto before = MediansOf(pattern, c);
  const auto decided = [&] {
    return std::ranges::count(pattern.trials().decisions(), c, &Decision::signature);
  };
  const auto decisions = decided();
  ASSERT_EQ(before.count("csr * csr / cpu.csr.heap"), 0u) << "a rule spoke against it";
  ASSERT_TRUE(site.preparation.Request(*matrix, {c}, false, heap).ok());
  ASSERT_TRUE(site.Idle());
  auto after = MediansOf(pattern, c);
  EXPECT_EQ(after.count("csr * csr / cpu.csr.heap"), 1u);
  EXPECT_EQ(after.size(), before.size() + 1);
  EXPECT_EQ(decided(), decisions);
  EXPECT_TRUE(pattern.plans().Find(c, PatternPair{pattern.hash()}).decided());
}

TEST(Preparation, BoundsWhatWaitsToBeTried) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", test::Uniform(100, 100, 4, 1));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  absl::Status status;
  {
    BusyWorkerSlot busy(site.executor);
    // A job takes what waits when it begins, and then waits for the worker slot.
    for (int panel = 1; panel <= 300 && status.ok(); ++panel) {
      status = site.preparation.Request(*matrix, {Signature(Operation::kSpmm)}, false,
                                        AskedFor("aspt(panel=" + std::to_string(panel) + ")"));
    }
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("64 transform pipelines and kernels wait"));
  ASSERT_TRUE(site.Idle());
  EXPECT_EQ((*matrix)->pattern()->progress().status().state, PreparationState::kReady);
}

TEST(Preparation, RefusesWhatCannotBeTried) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  const Asked asked = AskedFor("aspt", "cpu.aspt.panel");
  const ProblemSignature spmm = Signature(Operation::kSpmm), sddmm = Signature(Operation::kSddmm);
  EXPECT_TRUE(
      absl::IsInvalidArgument(site.preparation.Request(*matrix, {spmm, sddmm}, false, asked)));
  EXPECT_EQ(site.preparation.pending(), 0);
  ASSERT_TRUE(site.preparation.Request(*matrix, {sddmm}, false).ok() && site.Idle());
  EXPECT_TRUE(site.preparation.Request(*matrix, {}, false, asked).ok()) << "for SpMM alone";
  ASSERT_TRUE(site.Idle());
  EXPECT_TRUE(absl::IsInvalidArgument(
      site.preparation.Request(*matrix, {}, false, AskedFor("row_panels"))));
}

TEST(Preparation, AgainTimesEveryPairThatIsThere) {
  Site site;
  auto s = SendMatrix(site.catalog, "S", test::Band(4000, 9));
  auto t = SendMatrix(site.catalog, "T", test::Uniform(3000, 4000, 8, 1));
  auto gone = SendMatrix(site.catalog, "gone", test::Uniform(4000, 3000, 8, 2));
  ASSERT_TRUE(s.ok() && t.ok() && gone.ok() && site.Idle());
  Pattern& pattern = *(*s)->pattern();
  const ProblemSignature c = Signature(Operation::kSpgemm, false, 0);
  const PatternPair pair_with_t = {(*t)->pattern()->hash(), false, true};
  const PatternPair pair_with_gone = {(*gone)->pattern()->hash()};
  const std::string with_t = ToString(pair_with_t, pattern.hash());
  const std::string with_gone = ToString(pair_with_gone, pattern.hash());
  site.preparation.RequestTrial({(*s)->pattern(), (*t)->pattern(), false, true}, ProblemOf(c));
  site.preparation.RequestTrial({(*s)->pattern(), (*gone)->pattern()}, ProblemOf(c));
  ASSERT_TRUE(site.Idle());
  gone = MatrixLease();
  ASSERT_TRUE(site.catalog.Delete("t", "gone").ok());
  for (const PatternPair& pair : {pair_with_t, pair_with_gone}) {
    ASSERT_FALSE(TimedOf(pattern, ToString(pair, pattern.hash())).kernels.empty());
    Measurement imaginary = Imaginary(c, "csr");
    imaginary.pair = pair;
    pattern.trials().Add(std::move(imaginary));
  }
  ASSERT_TRUE(site.preparation.Request(*s, {c}, /*again=*/true).ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_FALSE(MediansOf(pattern, c).contains(with_t + " / cpu.imaginary"));
  EXPECT_TRUE(MediansOf(pattern, c).contains(with_gone + " / cpu.imaginary")) << "nothing to try";
  const auto found = pattern.plans().Find(c, pair_with_t);
  ASSERT_TRUE(found.decided());
  EXPECT_EQ(found.plan->plan.kernel, TimedOf(pattern, with_t).fastest);
  EXPECT_TRUE(pattern.plans().Find(c, PatternPair{pattern.hash()}).decided())
      << "its square, as after an upload";
  EXPECT_EQ(site.budget.used(MemoryUse::kPreparation), 0);
}

TEST(Preparation, APlanStaysThatFindsNoMemoryToBeTriedAgain) {
  constexpr int64_t kPreparation = int64_t{64} << 20;
  TemporaryDirectory directory;
  Site site(directory.path(), Quick(), kPlenty, kPreparation);
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const ProblemSignature c = Signature(Operation::kSpmm);
  const auto plan = pattern.plans().Find(c).plan;
  ASSERT_FALSE(plan->plan.provisional);
  Buffer hog = site.budget.Source(MemoryUse::kPreparation).Allocate(kPreparation - 4096).value();
  ASSERT_TRUE(site.preparation.Request(*matrix, {}, /*again=*/true).ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  EXPECT_EQ(pattern.plans().Find(c).plan, plan);
  EXPECT_THAT(pattern.progress().status().detail, HasSubstr("stays, it could not be tried again"));
  EXPECT_EQ(site.store->Load()->plans.size(), 1u);
  hog = Buffer();
  ASSERT_TRUE(site.preparation.Request(*matrix, {}, /*again=*/true).ok());
  ASSERT_TRUE(site.Idle());
  EXPECT_NE(pattern.plans().Find(c).plan, plan);
  EXPECT_EQ(pattern.progress().status().detail, "");
  CheckConsistent(site, pattern);
}

TEST(Preparation, QueriesSeeOldOrNewPlansAllTheTime) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok());
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) {
      const PlanTable::Found found =
          (*matrix)->pattern()->plans().Find(Signature(Operation::kSpmm));
      if (found.plan == nullptr || found.plan->layout == nullptr) continue;
      EXPECT_GT((*matrix)->LayoutValueBytes(found.plan->plan.pipeline), 0);
    }
  });
  EXPECT_TRUE(site.Idle());
  done = true;
  reader.join();
}

TEST(Preparation, StatesComeInOrder) {
  Site site;
  std::vector<std::string> states, stages;
  std::mutex mutex;
  auto slot = std::make_unique<BusyWorkerSlot>(site.executor);
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok());
  const int64_t id = (*matrix)->pattern()->progress().Watch([&](const PreparationStatus& status) {
    std::lock_guard lock(mutex);
    const std::string state(Name(status.state));
    if (states.empty() || states.back() != state) states.push_back(state);
    if (!status.stage.empty() && (stages.empty() || stages.back() != status.stage)) {
      stages.push_back(status.stage);
    }
  });
  slot.reset();
  ASSERT_TRUE(site.Idle());
  (*matrix)->pattern()->progress().Unwatch(id);
  EXPECT_EQ(states.back(), "READY");
  if (states.front() == "QUEUED") states.erase(states.begin());
  EXPECT_THAT(states, ElementsAre("PREPARING", "READY"));
  EXPECT_THAT(stages, Contains("trial"));
}

TEST(Preparation, AnotherMatrixOfThePatternSharesWhatIsThere) {
  Site site;
  auto a = SendMatrix(site.catalog, "a", Clusters(), 1);
  ASSERT_TRUE(a.ok() && site.Idle());
  auto b = SendMatrix(site.catalog, "b", Clusters(), 2);
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(site.preparation.pending(), 0);
  EXPECT_EQ((*b)->pattern()->progress().status().state, PreparationState::kReady);
  CheckConsistent(site, *(*b)->pattern());
}

TEST(Preparation, DeletingTheLastMatrixCancelsIt) {
  Site site;
  {
    BusyWorkerSlot busy(site.executor);
    ASSERT_TRUE(SendMatrix(site.catalog, "running", Clusters()).ok());
    ASSERT_TRUE(SendMatrix(site.catalog, "waiting", test::Uniform(3000, 3000, 10, 1)).ok());
    EXPECT_EQ(site.preparation.pending(), 2);
    ASSERT_TRUE(site.catalog.Delete("t", "waiting").ok());
    EXPECT_EQ(site.preparation.pending(), 1);
    ASSERT_TRUE(site.catalog.Delete("t", "running").ok());
    // It ends although the worker slot never becomes free.
    EXPECT_TRUE(site.Idle());
  }
  EXPECT_EQ(site.listener.ends("cancelled"), 2);
  EXPECT_TRUE(Eventually([&] { return site.budget.used() == 0; })) << site.budget.used();
}

TEST(Preparation, ADeletedPatternThatComesBackIsPrepared) {
  Site site;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(SendMatrix(site.catalog, "m", Clusters()).ok());
    ASSERT_TRUE(site.catalog.Delete("t", "m").ok());
  }
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  EXPECT_EQ((*matrix)->pattern()->progress().status().state, PreparationState::kReady);
  EXPECT_EQ((*matrix)->pattern()->plans().List().size(), 1u);
}

TEST(Preparation, TooLittleMemoryIsNotedAndPlainCsrKept) {
  Site site("", Quick(), kPlenty, /*preparation_memory=*/4096);
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  EXPECT_THAT(pattern.progress().status().message, HasSubstr("plain CSR is kept"));
  EXPECT_THAT(pattern.progress().status().detail, HasSubstr("preparation"));
  EXPECT_TRUE(pattern.plans().Find(Signature(Operation::kSpmm)).exact);
  CheckConsistent(site, pattern);
}

TEST(Preparation, AnUploadTriesAgainWhatMemoryDidNotAllow) {
  constexpr int64_t kPreparation = int64_t{64} << 20;
  Site site("", Quick(), kPlenty, kPreparation);
  Buffer hog = site.budget.Source(MemoryUse::kPreparation).Allocate(kPreparation - 4096).value();
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  hog = Buffer();
  const auto decided = [&] {
    return (*matrix)->pattern()->plans().Find(Signature(Operation::kSpmm)).decided();
  };
  EXPECT_FALSE(decided()) << (*matrix)->pattern()->progress().status().detail;
  ASSERT_TRUE(SendMatrix(site.catalog, "n", Clusters(), 2).ok() && site.Idle());
  EXPECT_TRUE(decided()) << (*matrix)->pattern()->progress().status().detail;
  CheckConsistent(site, *(*matrix)->pattern());
}

TEST(Preparation, ARequestTriesAgainLaterWhatMemoryDidNotAllow) {
  constexpr int64_t kPreparation = int64_t{64} << 20;
  Site site("", Quick(), kPlenty, kPreparation);
  Buffer hog = site.budget.Source(MemoryUse::kPreparation).Allocate(kPreparation - 4096).value();
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  hog = Buffer();
  PlanTable& plans = (*matrix)->pattern()->plans();
  const auto find = [&] { return plans.Find(Signature(Operation::kSpmm)); };
  ASSERT_TRUE(find().exact);
  ASSERT_FALSE(find().decided());
  const Problem problem{Operation::kSpmm, false, ElementType::kF32, kK, DeviceKind::kCpu};
  site.preparation.RequestTrial(*matrix, problem);
  EXPECT_EQ(site.preparation.pending(), 0) << "or every request would try";
  ActivePlan old = *find().plan;
  old.since -= std::chrono::hours(1);
  plans.Replace(std::make_shared<const ActivePlan>(old));
  site.preparation.RequestTrial(*matrix, problem);
  ASSERT_TRUE(site.Idle());
  EXPECT_TRUE(find().decided()) << find().plan->plan.reason;
  CheckConsistent(site, *(*matrix)->pattern());
}

TEST(Preparation, ANarrowerTrialWhenMemoryIsShort) {
  // Operands of K = 32 take 770 kB; layouts and scratch find no room beside those of K = 16.
  Site site("", Quick(), kPlenty, /*preparation_memory=*/500'000);
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  EXPECT_THAT(pattern.trials().decisions(),
              Contains(::testing::Field(&Decision::reason, "timed at K = 16 for want of memory")));
  ASSERT_FALSE(pattern.trials().measurements().empty());
  EXPECT_EQ(pattern.trials().measurements()[0].k, 16);
  CheckConsistent(site, pattern);
}

/// What the pattern has, as ComputeFeatures finds it.
void ExpectFeaturesOf(const Pattern& pattern, const test::Pattern& s) {
  BuildContext context;
  context.memory = &HeapMemory();
  const Features expected = ComputeFeatures(s.view(), context).value();
  const std::shared_ptr<const Features> features = pattern.features();
  ASSERT_NE(features, nullptr);
  for (const FeatureField& field : kFeatureFields) {
    EXPECT_EQ(*features.*field.value, expected.*field.value) << field.name;
  }
  EXPECT_EQ(features->distance_histogram, expected.distance_histogram);
  EXPECT_EQ(features->density_map.Tiles(), expected.density_map.Tiles());
}

TEST(Preparation, BeginsWithFeatures) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  ExpectFeaturesOf(pattern, Clusters());
  EXPECT_GE(site.budget.used(MemoryUse::kLayouts),
            static_cast<int64_t>(pattern.features()->density_map.packed().size()));
  CheckConsistent(site, pattern);
}

TEST(Preparation, TinyMatricesTakeLittle) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", test::Uniform(50, 50, 5, 1));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  ASSERT_NE((*matrix)->pattern()->features(), nullptr);
  EXPECT_LT((*matrix)->pattern()->features()->density_map.packed().size(), 1024u);
  EXPECT_LT(site.budget.used(MemoryUse::kLayouts), 6 << 10) << "60 MiB for 10,000";
}

TEST(Preparation, GoesOnWithoutFeaturesThatFindNoMemory) {
  Site site("", Quick(), kPlenty, /*preparation_memory=*/60'000);
  const test::Pattern s = test::Band(10, 1);
  auto matrix = SendMatrix(site.catalog, "m", s);
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_EQ(pattern.features(), nullptr);
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  EXPECT_THAT(pattern.progress().status().detail, HasSubstr("features are not known: "));
  CheckConsistent(site, pattern);
}

TEST(Preparation, StopsBuildingWhenItsTimeIsUp) {
  PreparationOptions options = Quick();
  options.seconds = 1e-6;
  Site site("", options);
  auto matrix = SendMatrix(site.catalog, "m", test::ShuffledClusters(600, 16, 65536, 24, 12, 1, 3));
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  EXPECT_THAT(Tried(pattern), ::testing::Each("csr")) << "that alone is timed";
  EXPECT_FALSE(pattern.plans().Find(Signature(Operation::kSpmm)).decided()) << "it is tried again";
  EXPECT_NE(pattern.features(), nullptr);
  CheckDecisions(pattern, Signature(Operation::kSpmm));
  EXPECT_THAT(pattern.trials().decisions(),
              Contains(::testing::Field(&Decision::reason, HasSubstr("--preparation-seconds"))));
  EXPECT_GT(site.listener.pipelines("no_time"), 0);
  EXPECT_EQ(site.listener.pipelines("tried"), 0);
  CheckConsistent(site, pattern);
}

TEST(Preparation, ABuildUnderWayStopsWhenTheTimeIsUp) {
  // Long enough for the features, too short for the clustering of so many rows.
  PreparationOptions options = Quick();
  options.seconds = 0.25;
  Site site("", options);
  auto matrix =
      SendMatrix(site.catalog, "m", test::ShuffledClusters(40000, 16, 1 << 20, 24, 12, 1, 3));
  ASSERT_TRUE(matrix.ok());
  ASSERT_TRUE(site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  EXPECT_THAT(pattern.trials().decisions(),
              Contains(::testing::Field(&Decision::reason, HasSubstr("0.25 s are used up"))));
  CheckConsistent(site, pattern);
}

TEST(Preparation, MeasurementsAreWholeAndAgreeWithThePlan) {
  Site site;
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  const Plan plan = pattern.plans().Find(Signature(Operation::kSpmm)).plan->plan;
  bool found = false;
  for (const Measurement& m : pattern.trials().measurements()) {
    EXPECT_GT(m.baseline_ms, 0) << m.pipeline;
    EXPECT_GT(m.roofline_ms, 0) << m.pipeline;
    EXPECT_EQ(m.preparation_ms > 0, m.pipeline != kCsr) << m.pipeline;
    if (m.pipeline != plan.pipeline || m.kernel != plan.kernel) continue;
    found = true;
    EXPECT_EQ(m.median_ms, plan.plan_ms);
    EXPECT_EQ(m.baseline_ms, plan.baseline_ms) << "what it was compared with";
  }
  EXPECT_TRUE(found);
}

TEST(Preparation, SwitchedOff) {
  PreparationOptions options = Quick();
  options.enabled = false;
  Site site("", options);
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok());
  EXPECT_EQ(site.preparation.pending(), 0);
  EXPECT_EQ((*matrix)->pattern()->progress().status().state, PreparationState::kReady);
  EXPECT_THAT((*matrix)->pattern()->progress().status().detail, HasSubstr("switched off"));
  site.preparation.RequestTrial(*matrix, {Operation::kSddmm, false, ElementType::kF32, 8});
  EXPECT_EQ(site.preparation.pending(), 0);
  const absl::Status refused = site.preparation.Request(*matrix, {}, /*again=*/true);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ((*matrix)->pattern()->progress().status().state, PreparationState::kReady);
}

TEST(Preparation, AFullQueueDropsTheLeastImportant) {
  PreparationOptions options = Quick();
  options.max_queued = 2;
  Site site("", options);
  auto slot = std::make_unique<BusyWorkerSlot>(site.executor);
  std::vector<MatrixLease> matrices;
  for (int i = 0; i < 5; ++i) {
    auto matrix = SendMatrix(site.catalog, std::to_string(i), test::Uniform(400, 400, 30, i));
    ASSERT_TRUE(matrix.ok());
    matrices.push_back(*matrix);
    // The first is under way before the others queue up.
    if (i == 0) {
      ASSERT_TRUE(Eventually([&] {
        return matrices[0]->pattern()->progress().status().state == PreparationState::kPreparing;
      }));
    }
  }
  EXPECT_EQ(site.preparation.pending(), 3);
  for (int i : {3, 4}) {
    EXPECT_EQ(matrices[i]->pattern()->progress().status().state, PreparationState::kFailed);
    EXPECT_THAT(matrices[i]->pattern()->progress().status().detail,
                HasSubstr("2 preparations are waiting"));
    const absl::Status refused = site.preparation.Request(matrices[i], {}, /*again=*/false);
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  }
  EXPECT_TRUE(site.preparation.Request(matrices[1], {}, /*again=*/true).ok()) << "it has a place";
  slot.reset();
  ASSERT_TRUE(site.Idle());
  for (int i : {3, 4}) {
    EXPECT_TRUE(site.preparation.Request(matrices[i], {}, /*again=*/false).ok());
  }
  ASSERT_TRUE(site.Idle());
  for (const MatrixLease& matrix : matrices) {
    EXPECT_EQ(matrix->pattern()->progress().status().state, PreparationState::kReady);
    EXPECT_TRUE(matrix->pattern()->plans().Find(Signature(Operation::kSpmm)).decided());
  }
}

TEST(Preparation, UploadsComeBeforeTrials) {
  Site site;
  auto first = SendMatrix(site.catalog, "first", test::Uniform(400, 400, 30, 1));
  auto second = SendMatrix(site.catalog, "second", test::Uniform(400, 400, 30, 2));
  ASSERT_TRUE(first.ok() && second.ok() && site.Idle());
  std::vector<std::string> order;
  std::mutex mutex;
  const auto watch = [&](const MatrixLease& matrix) {
    matrix->pattern()->progress().Watch(
        [&, name = matrix->name()](const PreparationStatus& status) {
          std::lock_guard lock(mutex);
          if (status.stage == "trial" && !::testing::Value(order, Contains(name))) {
            order.push_back(name);
          }
        });
  };
  {
    BusyWorkerSlot busy(site.executor);
    // Occupies the worker.
    site.preparation.RequestTrial(*first, {Operation::kSddmm, false, ElementType::kF32, 8});
    ASSERT_TRUE(
        Eventually([&] { return (*first)->pattern()->progress().status().stage == "trial"; }));
    watch(*second);
    site.preparation.RequestTrial(*second, {Operation::kSddmm, false, ElementType::kF32, 8});
    auto third = SendMatrix(site.catalog, "third", test::Uniform(400, 400, 30, 3));
    ASSERT_TRUE(third.ok());
    watch(*third);
  }
  ASSERT_TRUE(site.Idle());
  EXPECT_THAT(order, ElementsAre("third", "second"));
}

absl::StatusOr<MatrixLease> SendOf(Catalog& catalog, const std::string& tenant,
                                   const std::string& name, uint64_t seed) {
  const test::Pattern s = test::Uniform(400, 400, 30, seed);
  UploadHeader header = HeaderOf(name, s);
  header.tenant = tenant;
  return Send(catalog, header, s.row_offsets, s.column_indices, FloatsOf(s));
}

TEST(FairTime, TimeGoesByWeightAndIdleTimeSavesNothingUp) {
  FairTime time;
  time.SetWeights({{{"heavy", 3}}});
  std::map<std::string, double> given;
  const auto run = [&](std::vector<std::string> tenants, int jobs) {
    for (int i = 0; i < jobs; ++i) {
      const std::string next = *std::ranges::min_element(
          tenants, {}, [&](const std::string& tenant) { return time.StartOf(tenant); });
      time.Begin(next, 100, time.StartOf(next));
      time.Correct(next, 1 - 100);  // it was expected to take much longer
      ++given[next];
    }
  };
  run({"heavy", "light"}, 400);
  EXPECT_NEAR(given["heavy"], 300, 4);
  run({"light"}, 1000);
  given.clear();
  run({"light", "new"}, 100);
  EXPECT_NEAR(given["new"], 50, 2);
  EXPECT_LE(time.tenants(), 3u);
}

TEST(FairTime, WhoWaitsBehindAnotherIsNotMovedOn) {
  FairTime time;
  time.Begin("a", 10, 0);
  // Of those that wait only jobs of "a" may run.
  time.Begin("a", 10, time.StartOf("b"));
  EXPECT_EQ(time.StartOf("a"), 20);
  EXPECT_EQ(time.StartOf("b"), 0);
}

TEST(Preparation, ATenantDoesNotWaitForAllOfAnothers) {
  Site site;
  std::vector<std::string> order;
  std::mutex mutex;
  const auto send = [&](const std::string& tenant, const std::string& name, uint64_t seed) {
    auto matrix = SendOf(site.catalog, tenant, name, seed);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    (*matrix)->pattern()->progress().Watch([&, name](const PreparationStatus& status) {
      std::lock_guard lock(mutex);
      if (status.state == PreparationState::kPreparing && !::testing::Value(order, Contains(name)))
        order.push_back(name);
    });
  };
  {
    BusyWorkerSlot busy(site.executor);
    send("t", "first", 1);
    ASSERT_TRUE(Eventually([&] {
      std::lock_guard lock(mutex);
      return !order.empty();
    }));
    for (int i = 0; i < 3; ++i) send("t", fmt::format("t{}", i), 10 + i);
    send("u", "u", 2);
  }
  ASSERT_TRUE(site.Idle());
  ASSERT_EQ(order.size(), 5u);
  EXPECT_EQ(order[1], "u");
}

TEST(Preparation, AFullQueueDropsJobsOfWhoHasMost) {
  PreparationOptions options = Quick();
  options.max_queued = 3;
  Site site("", options);
  auto slot = std::make_unique<BusyWorkerSlot>(site.executor);
  std::vector<MatrixLease> matrices;
  const std::vector<std::pair<std::string, PreparationState>> sent = {
      {"t", PreparationState::kPreparing}, {"t", PreparationState::kQueued},
      {"t", PreparationState::kQueued},    {"t", PreparationState::kFailed},
      {"u", PreparationState::kQueued},
  };
  for (const auto& [tenant, state] : sent) {
    auto matrix = SendOf(site.catalog, tenant, std::to_string(matrices.size()), matrices.size());
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    matrices.push_back(*matrix);
    if (matrices.size() > 1) continue;
    ASSERT_TRUE(Eventually([&] {
      return matrices[0]->pattern()->progress().status().state == PreparationState::kPreparing;
    }));
  }
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(matrices[i]->pattern()->progress().status().state, sent[i].second) << i;
  }
  slot.reset();
  ASSERT_TRUE(site.Idle());
}

/// Multiplies again and again: as soon as a call ends another one is submitted, before the worker
/// slot looks for the next.
class EndlessCalls {
 public:
  EndlessCalls(Site& site, std::string matrix, int64_t rows)
      : site_(site), matrix_(std::move(matrix)) {
    PutHeader header{"t", "endless", {rows, 4, 4, ElementType::kF32}, /*zeros=*/true, false};
    auto put = site_.dense.BeginPut(header);
    EXPECT_TRUE(put.ok() && (*put)->Finish().ok());
    for (int i = 0; i < 2; ++i) Submit();
  }
  /// Waits for the last.
  ~EndlessCalls() {
    stop_ = true;
    EXPECT_TRUE(Eventually([this] { return under_way_ == 0; }));
  }

 private:
  class Sink final : public ResultSink {
   public:
    explicit Sink(EndlessCalls& calls) : calls_(calls) {}
    void OnBegin(CallBegin) override {}
    void OnArray(uint32_t, uint64_t, Array) override {}
    void OnBlock(ResultBlock) override {}
    void OnEnd(CallEnd end) override {
      EXPECT_TRUE(end.status.ok()) << end.status;
      if (!calls_.stop_) calls_.Submit();
      --calls_.under_way_;
    }

   private:
    EndlessCalls& calls_;
  };

  void Submit() {
    SpmmSpec spec;
    spec.tenant = "t";
    spec.matrix = matrix_;
    spec.b.held = "endless";
    auto call = site_.executor.Begin(spec, std::make_shared<Sink>(*this));
    ASSERT_TRUE(call.ok()) << call.status();
    ++under_way_;
    (*call)->Submit();
  }

  Site& site_;
  const std::string matrix_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> under_way_ = 0;
};

TEST(Preparation, GetsItsTurnsBesideEndlessRequests) {
  Site site;
  auto busy = SendMatrix(site.catalog, "busy", test::Uniform(200, 100, 5, 1));
  ASSERT_TRUE(busy.ok() && site.Idle());
  const EndlessCalls calls(site, "busy", 100);
  auto matrix = SendMatrix(site.catalog, "m", test::Uniform(400, 400, 5, 2));
  ASSERT_TRUE(matrix.ok());
  ASSERT_TRUE(site.Idle());
  const Pattern& pattern = *(*matrix)->pattern();
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  EXPECT_THAT(Tried(pattern), Contains("csr"));
  EXPECT_TRUE(pattern.plans().Find(Signature(Operation::kSpmm)).decided());
  EXPECT_GT(site.listener.trial_waits, 0);
}

TEST(Preparation, WithoutATurnInTimePlainCsrIsKeptForNow) {
  PreparationOptions options = Quick();
  options.seconds = 0.001;
  Site site("", options);
  BusyWorkerSlot slot(site.executor);
  auto matrix = SendMatrix(site.catalog, "m", test::Uniform(400, 400, 5, 2));
  ASSERT_TRUE(matrix.ok());
  ASSERT_TRUE(site.Idle()) << "it waits for a worker slot that is never idle";
  const Pattern& pattern = *(*matrix)->pattern();
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  const PlanTable::Found found = pattern.plans().Find(Signature(Operation::kSpmm));
  ASSERT_TRUE(found.exact);
  EXPECT_FALSE(found.decided()) << "it is to be tried again";
  EXPECT_THAT(pattern.trials().decisions(),
              Contains(::testing::Field(&Decision::reason,
                                        HasSubstr("no worker slot had time for a trial"))));
}

/// Stops the first worker that has found a pattern's features until it is opened.
class StopAfterFeatures final : public Observer {
 public:
  void OnPreparationStage(std::string_view stage, double) override {
    std::unique_lock lock(mutex_);
    if (stage != "features" || std::exchange(stopped_, true)) return;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void AwaitStopped() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopped_; });
  }
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false, open_ = false;
};

TEST(Preparation, ASmallOneDoesNotWaitForALongOne) {
  StopAfterFeatures observer;
  PreparationOptions options = Quick();
  options.light_nonzeros = 20'000;
  Modules modules("", kPlenty, kPlenty);
  Executor executor(ExecutorOptions(), modules.catalog, modules.dense, modules.budget, observer);
  Preparation preparation(options, modules.catalog, *modules.store, modules.budget, executor,
                          observer);
  modules.catalog.on_published =
      [&](MatrixLease matrix, const std::vector<ProblemSignature>& signatures, const Requester&) {
        preparation.Prepare(std::move(matrix), signatures);
      };
  modules.catalog.on_pattern_gone = [&](const std::shared_ptr<Pattern>& pattern) {
    preparation.Forget(pattern);
  };
  std::vector<MatrixLease> large;
  for (int i = 0; i < 4; ++i) {
    auto matrix = SendMatrix(modules.catalog, std::to_string(i), test::Uniform(1000, 1000, 30, i));
    ASSERT_TRUE(matrix.ok());
    large.push_back(*matrix);
    if (i == 0) observer.AwaitStopped();
  }
  auto small = SendMatrix(modules.catalog, "small", test::Uniform(1000, 1000, 5, 9));
  ASSERT_TRUE(small.ok());
  EXPECT_TRUE(Eventually(
      [&] { return (*small)->pattern()->progress().status().state == PreparationState::kReady; }));
  for (const MatrixLease& matrix : large) {
    EXPECT_NE(matrix->pattern()->progress().status().state, PreparationState::kReady);
  }
  observer.Open();
  EXPECT_TRUE(Eventually([&] { return preparation.pending() == 0; }));
  for (const MatrixLease& matrix : large) {
    EXPECT_EQ(matrix->pattern()->progress().status().state, PreparationState::kReady);
  }
  executor.Close();
}

TEST(PreparationJob, GivesWayToShorterOnesForAsLongAsItTakesItself) {
  using Clock = PreparationJob::Clock;
  Modules modules;
  modules.catalog.on_published = [](auto&&...) {};
  modules.catalog.on_pattern_gone = [](const std::shared_ptr<Pattern>&) {};
  const auto job_of = [&](const std::string& name, int64_t row_nnz, double seconds) {
    PreparationJob job;
    job.pattern = (*SendMatrix(modules.catalog, name, test::Uniform(1000, 1000, row_nnz, row_nnz)))
                      ->pattern();
    job.queued = Clock::time_point(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1000 + seconds)));
    job.signatures = {Signature(Operation::kSpmm)};
    return job;
  };
  const PreparationJob longer = job_of("longer", 100, 0);  // 100,000 nonzeros: 0.2 s
  EXPECT_LT(job_of("at-once", 10, 0).would_end(), longer.would_end());
  EXPECT_LT(job_of("soon", 11, 0.17).would_end(), longer.would_end());
  EXPECT_GT(job_of("too-late", 12, 0.19).would_end(), longer.would_end());
  PreparationJob more = longer;
  more.signatures.insert(Signature(Operation::kSddmm));
  EXPECT_EQ(more.nonzeros(), 2 * longer.nonzeros());
  more.pairs[{Signature(Operation::kSpgemm), {longer.pattern->hash()}}] = longer.pattern;
  EXPECT_EQ(more.nonzeros(), 4 * longer.nonzeros());
}

TEST(Preparation, OfTwoThatWaitTheShorterOneIsFirst) {
  Site site;
  auto first = SendMatrix(site.catalog, "first", test::Uniform(400, 400, 30, 1));
  ASSERT_TRUE(first.ok() && site.Idle());
  std::vector<std::string> order;
  std::mutex mutex;
  {
    BusyWorkerSlot busy(site.executor);
    // Occupies the worker.
    site.preparation.RequestTrial(*first, {Operation::kSddmm, false, ElementType::kF32, 8});
    ASSERT_TRUE(
        Eventually([&] { return (*first)->pattern()->progress().status().stage == "trial"; }));
    // 10 s and some milliseconds of work, as the queue sees it.
    for (const bool is_long : {true, false}) {
      const test::Pattern s = test::Uniform(1000, 1000, is_long ? 200 : 10, 2);
      UploadHeader header = HeaderOf(is_long ? "long" : "short", s);
      for (const int64_t k : {8, 16, 32, 64, 128, 256, 512, 1024}) {
        if (!is_long) continue;
        header.expected.push_back(Signature(Operation::kSpmm, false, k));
        header.expected.push_back(Signature(Operation::kSpmm, true, k));
        header.expected.push_back(Signature(Operation::kSddmm, false, k));
      }
      auto matrix = Send(site.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s));
      ASSERT_TRUE(matrix.ok());
      (*matrix)->pattern()->progress().Watch(
          [&, name = header.name](const PreparationStatus& status) {
            std::lock_guard lock(mutex);
            if (status.state == PreparationState::kPreparing &&
                !::testing::Value(order, Contains(name)))
              order.push_back(name);
          });
    }
  }
  ASSERT_TRUE(Eventually([&] {
    std::lock_guard lock(mutex);
    return order.size() == 2;
  }));
  EXPECT_THAT(order, ElementsAre("short", "long"));
  site.catalog.Delete("t", "long").IgnoreError();  // nobody waits for it
  ASSERT_TRUE(site.Idle());
}

std::map<std::string, std::string> PlansOf(const Pattern& pattern) {
  std::map<std::string, std::string> plans;
  for (const auto& active : pattern.plans().List()) {
    plans[ToString(active->plan.signature)] = active->plan.ToString();
  }
  return plans;
}

/// Finishes the preparation of the clusters with a plan that needs a layout, whatever a trial on
/// this machine would say.
void StoreLayoutPlan(const std::string& directory, const std::string& pipeline) {
  Site site(directory);
  auto matrix = SendMatrix(site.catalog, "m", Clusters());
  ASSERT_TRUE(matrix.ok() && site.Idle());
  const std::string& hash = (*matrix)->pattern()->hash();
  BuildContext context;
  context.memory = &HeapMemory();
  auto csr = (*matrix)->pattern()->Csr();
  auto built = BuildLayout(ParsePipeline(pipeline).value(), ViewCsr(**csr), context);
  ASSERT_TRUE(built.ok() && !built->skipped) << built.status();
  ASSERT_TRUE(site.store->PutLayout(hash, built->layout, 0.25).ok());
  const Problem problem{Operation::kSpmm, false, ElementType::kF32, kK, DeviceKind::kCpu};
  const PlanRecord plan{hash,
                        ToString(SignatureOf(problem)),
                        built->layout.pipeline,
                        std::string(KernelsFor(problem, built->layout).front()),
                        2.0,
                        1.0,
                        "2.00x over plain CSR"};
  ASSERT_TRUE(site.store->PutPlans({&plan, 1}).ok());
}

TEST(Restart, BringsBackPlansWithoutBuilding) {
  TemporaryDirectory directory;
  StoreLayoutPlan(directory.path(), "lsh_cluster > aspt");
  Site site(directory.path());
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
  EXPECT_THAT(pattern.progress().status().message, HasSubstr("2.00x over plain CSR"));
  const auto found = pattern.plans().Find(Signature(Operation::kSpmm));
  ASSERT_TRUE(found.exact);
  EXPECT_THAT(found.plan->plan.pipeline, HasSubstr("> aspt("));
  EXPECT_NE(found.plan->layout, nullptr);
  EXPECT_EQ(pattern.Layouts().at(0).build_seconds, 0.25);
  EXPECT_FALSE(pattern.trials().measurements().empty());
  EXPECT_EQ(site.listener.stages("lsh_cluster"), 0);
  EXPECT_EQ(site.listener.stages("trial"), 0);
  EXPECT_EQ(site.listener.stages("restore"), 1);
  CheckConsistent(site, pattern);
}

TEST(Restart, PreparesAgainWhereThePlansKernelIsGone) {
  const auto with_kernel = [](const std::string& pipeline, const std::string& kernel) {
    SCOPED_TRACE(pipeline + " / " + kernel);
    TemporaryDirectory directory;
    StoreLayoutPlan(directory.path(), pipeline);
    const std::string c = ToString(Signature(Operation::kSpmm));
    {
      Modules modules(directory.path());
      ASSERT_EQ(modules.contents.plans.size(), 1u);
      PlanRecord plan = modules.contents.plans.front();
      plan.kernel = kernel;
      ASSERT_TRUE(modules.store->PutPlans({&plan, 1}).ok());
      const MeasurementRecord measured = {.pattern_hash = plan.pattern_hash,
                                          .signature = c,
                                          .pipeline = plan.pipeline,
                                          .kernel = kernel,
                                          .device = "cpu",
                                          .k = kK,
                                          .median_ms = 0.001,
                                          .runs = 5};
      ASSERT_TRUE(modules.store->PutMeasurements({&measured, 1}).ok());
    }
    Site site(directory.path());
    auto matrix = site.catalog.Find("t", "m");
    ASSERT_TRUE(matrix.ok() && site.Idle());
    Pattern& pattern = *(*matrix)->pattern();
    EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady)
        << pattern.progress().status().message;
    const auto found = pattern.plans().Find(Signature(Operation::kSpmm));
    ASSERT_TRUE(found.exact);
    EXPECT_NE(found.plan->plan.kernel, kernel);
    EXPECT_NE(FindSpmmKernel(found.plan->plan.kernel), nullptr);
    EXPECT_TRUE(std::ranges::any_of(pattern.trials().measurements(), [&](const Measurement& m) {
      return m.kernel == kernel;
    })) << "what an older program measured stays";
    EXPECT_GT(site.listener.stages("trial"), 0);
    CheckConsistent(site, pattern);
  };
  with_kernel("dcsr", "cpu.dcsr.scatter");
  with_kernel("lsh_cluster", "cuda.cusparse.alg1");
}

TEST(Restart, BringsBackWhateverATrialChose) {
  TemporaryDirectory directory;
  std::map<std::string, std::string> before;
  {
    Site site(directory.path());
    UploadHeader header = HeaderOf("m", Clusters());
    header.expected = {Signature(Operation::kSpmm), Signature(Operation::kSpmm, true),
                       Signature(Operation::kSddmm)};
    const test::Pattern s = Clusters();
    auto matrix = Send(site.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s));
    ASSERT_TRUE(matrix.ok() && site.Idle());
    before = PlansOf(*(*matrix)->pattern());
    EXPECT_EQ(before.size(), 3u);
  }
  Site site(directory.path());
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok() && site.Idle());
  EXPECT_EQ(PlansOf(*(*matrix)->pattern()), before);
  EXPECT_EQ(site.listener.stages("trial"), 0);
  CheckConsistent(site, *(*matrix)->pattern());
}

TEST(Restart, BringsBackWhatWasMeasuredAndDecided) {
  TemporaryDirectory directory;
  std::vector<Measurement> measured;
  std::vector<Decision> decided;
  {
    Site site(directory.path());
    auto matrix = SendMatrix(site.catalog, "m", Clusters());
    ASSERT_TRUE(matrix.ok() && site.Idle());
    measured = (*matrix)->pattern()->trials().measurements();
    decided = (*matrix)->pattern()->trials().decisions();
    ASSERT_FALSE(decided.empty());
  }
  Site site(directory.path());
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok() && site.Idle());
  const std::vector<Measurement> after = (*matrix)->pattern()->trials().measurements();
  ASSERT_EQ(after.size(), measured.size());
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].baseline_ms, measured[i].baseline_ms);
    EXPECT_EQ(after[i].roofline_ms, measured[i].roofline_ms) << "of then, whatever the rate is now";
    EXPECT_EQ(after[i].preparation_ms, measured[i].preparation_ms);
  }
  const std::vector<Decision> again = (*matrix)->pattern()->trials().decisions();
  ASSERT_EQ(again.size(), decided.size());
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].pipeline, decided[i].pipeline);
    EXPECT_EQ(again[i].tried, decided[i].tried);
    EXPECT_EQ(again[i].reason, decided[i].reason);
  }
}

TEST(Restart, PreparesWhatWasExpectedWhilePreparationWasOff) {
  TemporaryDirectory directory;
  {
    PreparationOptions off = Quick();
    off.enabled = false;
    Site site(directory.path(), off);
    const test::Pattern s = Clusters();
    UploadHeader header = HeaderOf("m", s);
    header.expected = {Signature(Operation::kSddmm, false, 64)};
    ASSERT_TRUE(Send(site.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s)).ok());
  }
  Site site(directory.path());
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok() && site.Idle());
  EXPECT_TRUE((*matrix)->pattern()->plans().Find(Signature(Operation::kSddmm, false, 64)).exact);
  EXPECT_EQ((*matrix)->pattern()->plans().List().size(), 1u) << "not the default signature";
}

TEST(Restart, AnswersForPairsFromWhatWasMeasured) {
  TemporaryDirectory directory;
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  std::string kernel;
  {
    Site site(directory.path());
    auto s = SendMatrix(site.catalog, "S", test::Band(4000, 9));
    ASSERT_TRUE(s.ok());
    site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
    ASSERT_TRUE(site.Idle());
    Pattern& pattern = *(*s)->pattern();
    const auto found = pattern.plans().Find(SignatureOf(problem), PatternPair{pattern.hash()});
    ASSERT_TRUE(found.exact);
    kernel = found.plan->plan.kernel;
  }
  Site site(directory.path());
  ASSERT_TRUE(site.Idle());
  auto s = site.catalog.Find("t", "S");
  ASSERT_TRUE(s.ok());
  Pattern& pattern = *(*s)->pattern();
  EXPECT_FALSE(TimedOf(pattern, "csr * csr").kernels.empty());
  const int trials = site.listener.stages("trial");
  site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
  ASSERT_TRUE(site.Idle());
  const auto found = pattern.plans().Find(SignatureOf(problem), PatternPair{pattern.hash()});
  ASSERT_TRUE(found.exact);
  EXPECT_EQ(found.plan->plan.kernel, kernel);
  EXPECT_EQ(site.listener.stages("trial"), trials) << "nothing is timed again";
}

TEST(Restart, TriesPairsAgainWhereAnOlderProgramHadFewerKernels) {
  TemporaryDirectory directory;
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  {
    Site site(directory.path());
    auto s = SendMatrix(site.catalog, "S", test::Band(4000, 9));
    ASSERT_TRUE(s.ok() && site.Idle());
    site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
    ASSERT_TRUE(site.Idle());
    // What it says of one that it did not try is all that is left of what it did not try.
    const std::string& hash = (*s)->pattern()->hash();
    const DecisionRecord only = {hash,
                                 ToString(SignatureOf(problem)),
                                 "csr",
                                 false,
                                 "long rows",
                                 "cpu.csr.heap",
                                 PatternPair{hash}};
    ASSERT_TRUE(site.store->PutDecisions({&only, 1}).ok());
  }
  Site site(directory.path());
  ASSERT_TRUE(site.Idle());
  auto s = site.catalog.Find("t", "S");
  ASSERT_TRUE(s.ok());
  const int trials = site.listener.stages("trial");
  site.preparation.RequestTrial({(*s)->pattern(), (*s)->pattern()}, problem);
  ASSERT_TRUE(site.Idle());
  EXPECT_GT(site.listener.stages("trial"), trials);
  EXPECT_TRUE((*s)->pattern()
                  ->plans()
                  .Find(SignatureOf(problem), PatternPair{(*s)->pattern()->hash()})
                  .decided());
}

TEST(Restart, BringsBackFeatures) {
  TemporaryDirectory directory;
  {
    Site site(directory.path());
    ASSERT_TRUE(SendMatrix(site.catalog, "m", Clusters()).ok() && site.Idle());
  }
  Site site(directory.path());
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok() && site.Idle());
  ExpectFeaturesOf(*(*matrix)->pattern(), Clusters());
  EXPECT_EQ(site.listener.stages("features"), 0);
}

TEST(Restart, AnUploadFindsTheFeaturesThatAnOlderProgramDidNot) {
  TemporaryDirectory directory;
  {
    Modules modules(directory.path());
    auto matrix = SendMatrix(modules.catalog, "m", Clusters());
    ASSERT_TRUE(matrix.ok());
    const std::string& hash = (*matrix)->pattern()->hash();
    const Problem problem{Operation::kSpmm, false, ElementType::kF32, kK, DeviceKind::kCpu};
    const PlanRecord plan{hash,
                          ToString(SignatureOf(problem)),
                          std::string(kCsr),
                          std::string(KernelsFor(problem, test::PlainLayout(Clusters())).front()),
                          1.0,
                          1.0,
                          "plain CSR is kept"};
    ASSERT_TRUE(modules.store->PutPlans({&plan, 1}).ok());
    ASSERT_TRUE(modules.store->PutPreparation(hash, {"READY", "done", 1}).ok());
  }
  Site site(directory.path());
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_EQ(pattern.features(), nullptr);
  EXPECT_FALSE(pattern.resident()) << "that would have read the matrix";
  ASSERT_TRUE(SendMatrix(site.catalog, "n", Clusters(), 2).ok() && site.Idle());
  ExpectFeaturesOf(pattern, Clusters());
  EXPECT_EQ(site.listener.stages("trial"), 0);
}

TEST(Restart, KeepsALayoutThatFindsNoMemory) {
  TemporaryDirectory directory;
  StoreLayoutPlan(directory.path(), "lsh_cluster");
  {
    Site site(directory.path(), Quick(), /*memory=*/200'000);
    auto matrix = site.catalog.Find("t", "m");
    ASSERT_TRUE(matrix.ok() && site.Idle());
    Pattern& pattern = *(*matrix)->pattern();
    const auto found = pattern.plans().Find(Signature(Operation::kSpmm));
    ASSERT_TRUE(found.exact);
    EXPECT_FALSE(found.decided());
    EXPECT_EQ(found.plan->plan.pipeline, "csr");
    EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady);
    EXPECT_THAT(pattern.progress().status().message, HasSubstr("want of memory for lsh_cluster"));
    EXPECT_EQ(site.listener.stages("trial"), 0) << "it was not lost";
    site.preparation.RequestTrial(
        *matrix, {Operation::kSpmm, false, ElementType::kF32, kK, DeviceKind::kCpu});
    EXPECT_EQ(site.preparation.pending(), 0) << "or every request would try";
  }
  Site site(directory.path());
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_THAT(PlansOf(pattern).begin()->second, HasSubstr("lsh_cluster"));
  EXPECT_THAT(pattern.progress().status().message, Not(HasSubstr("memory")));
  EXPECT_EQ(site.listener.stages("trial"), 0);
  CheckConsistent(site, pattern);
}

TEST(Restart, WritesNothingWhereThereIsNothingToDo) {
  TemporaryDirectory directory;
  {
    Site site(directory.path());
    ASSERT_TRUE(SendMatrix(site.catalog, "m", Clusters()).ok() && site.Idle());
  }
  Site site(directory.path());
  ASSERT_TRUE(site.Idle());
  const auto log = std::filesystem::file_size(directory.path() + "/catalog.sqlite-wal");
  EXPECT_EQ(log, 0U) << "thousands of patterns would wait for the disk, each";
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok());
  EXPECT_EQ((*matrix)->pattern()->progress().status().state, PreparationState::kReady);
}

TEST(Restart, TriesAgainWhatMemoryDidNotAllow) {
  TemporaryDirectory directory;
  {
    Site site(directory.path(), Quick(), kPlenty, /*preparation_memory=*/4096);
    auto matrix = SendMatrix(site.catalog, "m", Clusters());
    ASSERT_TRUE(matrix.ok() && site.Idle());
    EXPECT_FALSE((*matrix)->pattern()->plans().Find(Signature(Operation::kSpmm)).decided());
    EXPECT_TRUE(site.store->Load()->plans.empty());
  }
  Site site(directory.path());
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok() && site.Idle());
  EXPECT_TRUE((*matrix)->pattern()->plans().Find(Signature(Operation::kSpmm)).decided());
  EXPECT_GT(site.listener.stages("trial"), 0);
  EXPECT_EQ(site.store->Load()->plans.size(), 1u);
}

TEST(Restart, DropsStoredLayoutsThatNoPlanNames) {
  TemporaryDirectory directory;
  StoreLayoutPlan(directory.path(), "lsh_cluster");
  {
    // As a crash leaves it between a layout and its plan.
    Modules modules(directory.path());
    const LayoutRecord& stored = modules.contents.layouts.at(0);
    Layout layout = modules.store->ReadLayout(stored, HeapMemory()).value();
    layout.pipeline = "aspt";
    ASSERT_TRUE(modules.store->PutLayout(stored.pattern_hash, layout, 1).ok());
  }
  Site site(directory.path());
  ASSERT_TRUE(site.Idle());
  const StoreContents contents = *site.store->Load();
  ASSERT_EQ(contents.layouts.size(), 1u);
  EXPECT_THAT(contents.layouts[0].layout.pipeline, HasSubstr("lsh_cluster"));
}

TEST(Restart, BuildsADamagedLayoutAgain) {
  TemporaryDirectory directory;
  StoreLayoutPlan(directory.path(), "lsh_cluster");
  {
    // Damages every array of the layout, through the store's own idea of where they are.
    std::set<std::filesystem::path> others;
    Modules modules(directory.path());
    ASSERT_EQ(modules.contents.layouts.size(), 1u);
    EXPECT_EQ(modules.contents.layouts[0].arrays.size(), 4u);
  }
  int damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    // Row orders (i32, 1920 rows) exist in layouts alone.
    if (!entry.is_regular_file() || entry.file_size() < 7680 || entry.file_size() > 9000) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    file.put('\x7f');
    file.put('\x7f');
    ++damaged;
  }
  ASSERT_EQ(damaged, 1);
  for (const int round : {0, 1}) {
    Site site(directory.path());
    auto matrix = site.catalog.Find("t", "m");
    ASSERT_TRUE(matrix.ok() && site.Idle());
    Pattern& pattern = *(*matrix)->pattern();
    EXPECT_EQ(pattern.progress().status().state, PreparationState::kReady)
        << pattern.progress().status().detail;
    EXPECT_EQ(PlansOf(pattern).size(), 1u);
    EXPECT_THAT(PlansOf(pattern).begin()->second, HasSubstr("lsh_cluster"));
    EXPECT_EQ(site.listener.damaged, round == 0 ? 1 : 0);
    EXPECT_EQ(site.listener.stages("lsh_cluster"), round == 0 ? 1 : 0);
    EXPECT_EQ(site.listener.stages("trial"), 0);
    CheckConsistent(site, pattern);
  }
}

TEST(Restart, PreparesWhatWasNotFinished) {
  TemporaryDirectory directory;
  {
    Site site(directory.path());
    BusyWorkerSlot busy(site.executor);
    UploadHeader header = HeaderOf("m", Clusters());
    header.expected = {Signature(Operation::kSddmm), Signature(Operation::kSpmm, true)};
    const test::Pattern s = Clusters();
    ASSERT_TRUE(Send(site.catalog, header, s.row_offsets, s.column_indices, FloatsOf(s)).ok());
    // The server ends in the middle.
    std::thread closing([&] { site.executor.Close(); });
    EXPECT_TRUE(site.Idle());
    busy.Free();
    closing.join();
  }
  Site site(directory.path());
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok() && site.Idle());
  EXPECT_EQ((*matrix)->pattern()->progress().status().state, PreparationState::kReady);
  // What the upload named, and no other.
  const PlanTable& plans = (*matrix)->pattern()->plans();
  EXPECT_TRUE(plans.Find(Signature(Operation::kSddmm)).exact);
  EXPECT_TRUE(plans.Find(Signature(Operation::kSpmm, true)).exact);
  EXPECT_FALSE(plans.Find(Signature(Operation::kSpmm)).exact);
  EXPECT_GT(site.listener.stages("trial"), 0);
}

TEST(Restart, KeepsThePlanThatWasBeingTriedAgainAndTriesItAgain) {
  TemporaryDirectory directory;
  StoreLayoutPlan(directory.path(), "lsh_cluster");
  {
    Site site(directory.path());
    auto matrix = site.catalog.Find("t", "m");
    ASSERT_TRUE(matrix.ok() && site.Idle());
    EXPECT_EQ(site.listener.stages("trial"), 0);
    BusyWorkerSlot busy(site.executor);
    ASSERT_TRUE(site.preparation.Request(*matrix, {}, /*again=*/true).ok());
    ASSERT_TRUE(Eventually([&] { return site.preparation.pending() == 1; }));
    // The server ends in the middle.
    std::thread closing([&] { site.executor.Close(); });
    EXPECT_TRUE(site.Idle());
    busy.Free();
    closing.join();
  }
  {
    Modules modules(directory.path());
    ASSERT_EQ(modules.contents.plans.size(), 1u);
    EXPECT_THAT(modules.contents.plans[0].pipeline, HasSubstr("lsh_cluster"));
    EXPECT_EQ(modules.contents.layouts.size(), 1u);
    EXPECT_FALSE(modules.contents.measurements.empty());
  }
  Site site(directory.path());
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok() && site.Idle());
  Pattern& pattern = *(*matrix)->pattern();
  EXPECT_GT(site.listener.stages("trial"), 0);
  EXPECT_THAT(pattern.trials().decisions(),
              Contains(::testing::Field(&Decision::reason, "it was there already")));
  EXPECT_TRUE(pattern.plans().Find(Signature(Operation::kSpmm)).decided());
  EXPECT_TRUE(site.store->Load()->wanted.empty()) << "that is done";
  CheckConsistent(site, pattern);
}

TEST(Restart, FailsInWordsWhenThePatternIsDamaged) {
  TemporaryDirectory directory;
  {
    Modules modules(directory.path());
    ASSERT_TRUE(SendMatrix(modules.catalog, "m", Clusters()).ok());
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    if (!entry.is_regular_file() || entry.path().string().find("catalog") != std::string::npos) {
      continue;
    }
    if (entry.file_size() < 10'000) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    file.put('\x7f');
    file.put('\x7f');
  }
  Site site(directory.path());
  auto matrix = site.catalog.Find("t", "m");
  ASSERT_TRUE(matrix.ok() && site.Idle());
  EXPECT_EQ((*matrix)->pattern()->progress().status().state, PreparationState::kFailed);
  EXPECT_THAT((*matrix)->pattern()->progress().status().detail, HasSubstr("row_offsets"));
  EXPECT_EQ(site.listener.ends("failed"), 1);
  EXPECT_THAT(site.listener.failures(), ElementsAre(HasSubstr("row_offsets")));
}

}  // namespace
}  // namespace sparsed::engine
