// Plans, watchers and arrays that are read when they are needed.
#include "engine/catalog/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/catalog/busy_trials.h"
#include "engine/catalog/pattern_product.h"
#include "engine/planning/asked.h"
#include "engine/planning/candidates.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ProblemSignature Spmm(int64_t k, bool transposed = false, ElementType type = ElementType::kF32) {
  return SignatureOf({Operation::kSpmm, transposed, type, k, DeviceKind::kCpu});
}

std::shared_ptr<const ActivePlan> PlanFor(const ProblemSignature& c, const std::string& kernel) {
  ActivePlan active;
  active.plan.signature = c;
  active.plan.kernel = kernel;
  return std::make_shared<const ActivePlan>(active);
}

TEST(ProblemSignatureText, IsReadBack) {
  for (const ProblemSignature& c :
       {Spmm(1), Spmm(33, true), Spmm(5000, false, ElementType::kF64),
        SignatureOf({Operation::kSddmm, false, ElementType::kF32, 512, DeviceKind::kCuda}),
        SignatureOf({Operation::kSpmm, true, ElementType::kF32, 64, DeviceKind::kCuda, true}),
        Spmm(16, true, ElementType::kF16), Spmm(256, false, ElementType::kBF16),
        SignatureOf({Operation::kSpgemm, false, ElementType::kF64, 0, DeviceKind::kCpu})}) {
    EXPECT_EQ(ParseProblemSignature(ToString(c)), c) << ToString(c);
  }
  for (const char* text : {"", "spmm", "spmm f32 k<=100 cpu", "spmm f32 k<=128 cpu "}) {
    EXPECT_EQ(ParseProblemSignature(text), std::nullopt) << text;
  }
}

TEST(PlanTable, FindsTheNearestWidth) {
  PlanTable table;
  EXPECT_EQ(table.Find(Spmm(128)).plan, nullptr);
  table.Replace(PlanFor(Spmm(32), "32"));
  table.Replace(PlanFor(Spmm(512), "512"));
  table.Replace(PlanFor(Spmm(64, true), "transposed"));
  table.Replace(PlanFor(Spmm(64, false, ElementType::kF64), "f64"));
  const auto kernel = [&](int64_t k) { return table.Find(Spmm(k)).plan->plan.kernel; };
  EXPECT_TRUE(table.Find(Spmm(20)).exact);
  EXPECT_FALSE(table.Find(Spmm(64)).exact);
  EXPECT_EQ(kernel(1), "32");
  EXPECT_EQ(kernel(64), "32");
  EXPECT_EQ(kernel(128), "32") << "of two equally near the narrower";
  EXPECT_EQ(kernel(256), "512");
  EXPECT_EQ(kernel(100000), "512");
  EXPECT_EQ(table.Find(Spmm(8, true)).plan->plan.kernel, "transposed");
  EXPECT_EQ(table.Find(SignatureOf({Operation::kSddmm, false, ElementType::kF32, 64})).plan,
            nullptr);
  table.Replace(PlanFor(Spmm(32), "new"));
  EXPECT_EQ(kernel(32), "new");
  EXPECT_EQ(table.List().size(), 4u);
  EXPECT_EQ(PlanFor(Spmm(8), "cpu.csr")->plan.ToString(), "csr / cpu.csr");
}

TEST(PlanTable, FindsPlansOfF32WhereTf32IsAllowed) {
  PlanTable table;
  const auto on_gpu = [](int64_t k, bool allow_tf32) {
    return SignatureOf(
        {Operation::kSpmm, false, ElementType::kF32, k, DeviceKind::kCuda, allow_tf32});
  };
  EXPECT_EQ(table.Find(on_gpu(64, true)).plan, nullptr);
  table.Replace(PlanFor(on_gpu(64, false), "f32"));
  EXPECT_EQ(table.Find(on_gpu(64, true)).plan->plan.kernel, "f32");
  EXPECT_FALSE(table.Find(on_gpu(64, true)).exact) << "a trial would be worth it";
  table.Replace(PlanFor(on_gpu(128, true), "tf32"));
  EXPECT_EQ(table.Find(on_gpu(64, true)).plan->plan.kernel, "tf32") << "the nearest of its kind";
  EXPECT_TRUE(table.Find(on_gpu(128, true)).exact);
  EXPECT_EQ(table.Find(on_gpu(128, false)).plan->plan.kernel, "f32") << "never without leave";
}

TEST(PlanTable, SaysWhichPlanIsInUse) {
  PlanTable table;
  table.Replace(PlanFor(Spmm(32), "32"));
  table.Replace(PlanFor(Spmm(512), "512"));
  table.Replace(PlanFor(Spmm(64, false, ElementType::kF64), "f64"));
  const auto kernel_in_use = [&](ElementType type, PlanTable::Clock::time_point now) {
    std::string kernel;
    for (const PlanTable::Used& used : table.ListUsed(type, table.uses(), now)) {
      EXPECT_EQ(used.plan->plan.signature.type, type);
      if (used.in_use) kernel += used.plan->plan.kernel;
    }
    return kernel;
  };
  auto now = PlanTable::Clock::now();
  EXPECT_EQ(kernel_in_use(ElementType::kF32, now), "") << "no request yet";
  const auto count = [&](int64_t k, int requests, std::chrono::seconds apart) {
    for (int i = 0; i < requests; ++i) {
      table.uses().Count(table.Find(Spmm(k)).plan->plan, now += apart);
    }
  };
  count(512, 1, std::chrono::seconds(1));
  EXPECT_EQ(kernel_in_use(ElementType::kF32, now), "512");
  count(32, 600, std::chrono::seconds(1));
  EXPECT_EQ(kernel_in_use(ElementType::kF32, now), "32");
  EXPECT_NEAR(table.ListUsed(ElementType::kF32, table.uses(), now)[0].per_second, 1, 0.05);
  count(512, 1, std::chrono::seconds(1));
  EXPECT_EQ(kernel_in_use(ElementType::kF32, now), "32") << "one request is not most of them";
  // A plan that takes the place of one has its use.
  table.Replace(PlanFor(Spmm(32), "better"));
  EXPECT_EQ(kernel_in_use(ElementType::kF32, now), "better");
  // Of requests that nobody remembers the last one counts.
  now += std::chrono::hours(1000);
  EXPECT_EQ(kernel_in_use(ElementType::kF32, now), "512");
  EXPECT_EQ(kernel_in_use(ElementType::kF64, now), "");
}

TEST(CompulsoryBytes, HaveWhatIsStreamedAmongThem) {
  Problem problem = {.operation = Operation::kSpmm, .k = 8};
  EXPECT_EQ(StreamedBytes(problem, 10, 20, 5), 5 * 8 + 11 * 8 + 10 * 8 * 4);
  EXPECT_EQ(CompulsoryBytes(problem, 10, 20, 5), StreamedBytes(problem, 10, 20, 5) + 5 * 8 * 4);
  problem.operation = Operation::kSddmm;
  EXPECT_EQ(StreamedBytes(problem, 10, 20, 5), 5 * 8 + 11 * 8 + 5 * 4);
}

TEST(PlanTable, FindsPlansOfPairs) {
  PlanTable table;
  const ProblemSignature spgemm = SignatureOf({Operation::kSpgemm, false, ElementType::kF32, 0});
  const auto plan_for = [&](std::optional<PatternPair> pair, const std::string& kernel) {
    ActivePlan active = *PlanFor(spgemm, kernel);
    active.plan.pair = std::move(pair);
    return std::make_shared<const ActivePlan>(active);
  };
  const PatternPair with_t = {"T"}, with_u = {"U"};
  EXPECT_EQ(table.Find(spgemm, with_t).plan, nullptr);
  table.Replace(plan_for(with_t, "for T"));
  EXPECT_EQ(table.Find(spgemm, with_t).plan->plan.kernel, "for T");
  EXPECT_TRUE(table.Find(spgemm, with_t).exact);
  EXPECT_EQ(table.Find(spgemm, with_u).plan, nullptr) << "another pair's is none";
  EXPECT_EQ(table.Find(spgemm).plan, nullptr);
  table.Replace(plan_for(std::nullopt, "for any"));
  EXPECT_EQ(table.Find(spgemm, with_u).plan->plan.kernel, "for any");
  EXPECT_FALSE(table.Find(spgemm, with_u).exact);
  EXPECT_TRUE(table.Find(spgemm).exact);
  EXPECT_EQ(table.Find(spgemm, with_t).plan->plan.kernel, "for T");
  EXPECT_EQ(table.List().size(), 2u);
  EXPECT_EQ(table.Find(spgemm, PatternPair{"T", false, true}).plan->plan.kernel, "for any");
  EXPECT_EQ(ToString({"S"}, "S"), "csr * csr");
  EXPECT_EQ(ToString({"T"}, "S"), "csr * T");
  EXPECT_EQ(ToString({"S", false, true}, "S"), "csr * transpose");
  EXPECT_EQ(ToString({"S", true, false}, "S"), "transpose * csr");
  EXPECT_EQ(ToString({"T", true, true}, "S"), "transpose * transpose T");
  EXPECT_EQ(ProductText({"S"}, "S"), "S * S");
  EXPECT_EQ(ProductText({"T", true, false}, "S"), "S^T * another");
  EXPECT_EQ(ProductText({"S", false, true}, "S"), "S * S^T");
  const auto factors = [](const PatternPair& pair, std::string_view pipeline) {
    return FactorsText(pair, "S", pipeline,
                       pipeline == "csr" ? "cpu.csr.hash" : "cpu.dia.diagonals");
  };
  EXPECT_EQ(factors({"S"}, "csr"), "csr * csr");
  EXPECT_EQ(factors({"T", true, true}, "csr"), "transpose * transpose T");
  EXPECT_EQ(factors({"S"}, "dia"), "csr * dia");
  EXPECT_EQ(factors({"T"}, "dia"), "csr * dia T");
  EXPECT_EQ(factors({"T", true, true}, "dia"), "transpose * transpose > dia T");
}

TEST(LazyArray, IsReadOnceItSucceeds) {
  int reads = 0;
  LazyArray array([&](LazyArray::Stop) -> absl::StatusOr<Array> {
    if (++reads == 1) return absl::DataLossError("damaged");
    return test::MakeArray<float>("values", {1, 2});
  });
  EXPECT_FALSE(array.resident());
  EXPECT_TRUE(absl::IsDataLoss(array.Get().status()));
  EXPECT_FALSE(array.resident());
  EXPECT_EQ(array.Get()->length, 2);
  EXPECT_EQ(array.Get()->length, 2);
  EXPECT_TRUE(array.resident());
  EXPECT_EQ(reads, 2);
}

/// An array that is read slowly, until the flag that the reader looks at becomes true.
class SlowArray {
 public:
  LazyArray& array() { return array_; }
  std::atomic<int> reads = 0;
  std::atomic<bool> finish = false;

 private:
  LazyArray array_{[this](LazyArray::Stop stop) -> absl::StatusOr<Array> {
    ++reads;
    while (!finish) {
      if (stop != nullptr && *stop) return absl::CancelledError("stopped");
      std::this_thread::yield();
    }
    return test::MakeArray<float>("values", {1, 2});
  }};
};

TEST(LazyArray, AReaderThatStopsHarmsNobodyWhoWaits) {
  SlowArray slow;
  std::atomic<bool> stop = false;
  absl::Status stopped;
  absl::StatusOr<Array> read;
  std::thread first([&] { stopped = slow.array().Get(&stop).status(); });
  while (slow.reads == 0) std::this_thread::yield();
  std::atomic<bool> never = false;
  std::thread second([&] { read = slow.array().Get(&never); });
  stop = true;
  first.join();
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  while (slow.reads == 1) std::this_thread::yield();
  slow.finish = true;
  second.join();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->length, 2);
  EXPECT_TRUE(slow.array().resident());
}

TEST(LazyArray, WhoWaitsForAnotherReaderStopsToo) {
  SlowArray slow;
  std::thread first([&] { EXPECT_TRUE(slow.array().Get().ok()); });
  while (slow.reads == 0) std::this_thread::yield();
  std::atomic<bool> stop = false;
  absl::Status stopped;
  std::thread second([&] { stopped = slow.array().Get(&stop).status(); });
  stop = true;
  second.join();
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  EXPECT_EQ(slow.reads, 1);
  slow.finish = true;
  first.join();
}

TEST(Watch, SeesEveryChangeInOrder) {
  Modules modules;
  auto matrix = SendMatrix(modules.catalog, "m", test::Band(10, 1));
  ASSERT_TRUE(matrix.ok());
  Pattern& pattern = *(*matrix)->pattern();
  std::vector<int64_t> seen;
  const int64_t id = pattern.progress().Watch(
      [&](const PreparationStatus& status) { seen.push_back(status.done); });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        pattern.progress().Update([](PreparationStatus& status) { ++status.done; });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  pattern.progress().Unwatch(id);
  pattern.progress().Update([](PreparationStatus& status) { status.done = -1; });
  ASSERT_EQ(seen.size(), 401u);
  for (int64_t i = 0; i <= 400; ++i) EXPECT_EQ(seen[i], i);
  EXPECT_EQ(pattern.progress().status().done, -1);
}

TEST(Measurements, ABusyMachinesDifferByMoreThanThePlanGains) {
  Plan plan;
  plan.signature = Spmm(128);
  plan.pipeline = "aspt";
  plan.kernel = "cpu.aspt";
  plan.plan_ms = 44;
  std::vector<Measurement> measurements;
  EXPECT_FALSE(FindBusyTrials(plan, measurements)) << "nothing was timed";
  const auto measured = [&](const char* pipeline, const char* kernel, double baseline_ms) {
    Measurement& m = measurements.emplace_back();
    m.signature = plan.signature;
    m.pipeline = pipeline;
    m.kernel = kernel;
    m.k = 128;
    m.baseline_ms = baseline_ms;
  };
  measured("aspt", "cpu.aspt", 48);
  measured("csr", "cpu.csr.rows", 47);
  EXPECT_FALSE(FindBusyTrials(plan, measurements));
  measured("csr", "cpu.csr.slab", 3.2);
  const std::optional<BusyTrials> found = FindBusyTrials(plan, measurements);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->least_baseline_ms, 3.2);
  EXPECT_EQ(found->most_baseline_ms, 48);
  plan.plan_ms = 1;
  EXPECT_FALSE(FindBusyTrials(plan, measurements)) << "it gains more than that";
  plan.plan_ms = 44;
  measurements.back().signature.type = ElementType::kF64;
  EXPECT_FALSE(FindBusyTrials(plan, measurements)) << "of another matrix's values";
  measurements.back().signature = plan.signature;
  measurements.back().model = "another processor";
  EXPECT_FALSE(FindBusyTrials(plan, measurements));
}

TEST(Measurements, OnePerSignatureAndContender) {
  Modules modules;
  auto matrix = SendMatrix(modules.catalog, "m", test::Band(10, 1));
  ASSERT_TRUE(matrix.ok());
  Pattern& pattern = *(*matrix)->pattern();
  Measurement measurement{Spmm(32), 32, "csr", "cpu.csr", "cpu", 1.0, Gflops(1000, 32, 1.0), 3};
  EXPECT_DOUBLE_EQ(measurement.gflops, 0.064);
  pattern.trials().Add(measurement);
  measurement.median_ms = 2;
  pattern.trials().Add(measurement);
  measurement.pipeline = "aspt";
  pattern.trials().Add(measurement);
  measurement.k = 16;
  measurement.median_ms = 3;
  pattern.trials().Add(measurement);
  const auto known = pattern.trials().measurements();
  ASSERT_EQ(known.size(), 3u);
  EXPECT_EQ(known[0].median_ms, 2);
  EXPECT_EQ(known[1].median_ms, 2);
  EXPECT_EQ(known[2].median_ms, 3);
}

Features FeaturesOf(double rows, double cols, double nnz, double row_nonzeros_mean,
                    double dense_ratio) {
  Features features;
  features.rows = rows;
  features.cols = cols;
  features.nnz = nnz;
  features.row_nonzeros_mean = row_nonzeros_mean;
  features.dense_ratio = dense_ratio;
  features.bcsr_padding = 0.75;  // single nonzeros
  return features;
}

/// What is worth trying.
std::vector<std::string> Pipelines(const ProblemSignature& c, const Features& facts) {
  std::vector<std::string> pipelines;
  for (const Candidate& candidate : CandidatesFor(c, facts)) {
    EXPECT_NE(candidate.reason, "") << candidate.pipeline;
    if (candidate.worth_trying) pipelines.push_back(candidate.pipeline);
  }
  return pipelines;
}

/// Why the first of these is worth trying, or is not.
std::string Reason(const ProblemSignature& c, const Features& facts, const std::string& pipeline) {
  for (const Candidate& candidate : CandidatesFor(c, facts)) {
    if (candidate.pipeline.starts_with(pipeline)) return candidate.reason;
  }
  return "no rule";
}

TEST(Candidates, FollowTheRules) {
  const Features scattered = FeaturesOf(10000, 10000, 100000, 10, 0.02);
  const Features clustered = FeaturesOf(10000, 10000, 100000, 10, 0.6);
  const Features tiny = FeaturesOf(100, 100, 900, 9, 0.02);
  const Features thin = FeaturesOf(100000, 100000, 110000, 1.1, 0);
  const Features wide = FeaturesOf(20, 10000, 100000, 5000, 0.9);
  EXPECT_EQ(Pipelines(Spmm(128), scattered).size(), 3u);
  EXPECT_THAT(Reason(Spmm(128), scattered, "lsh_cluster"),
              HasSubstr("dense ratio 0.02, not above 0.10"));
  EXPECT_THAT(Reason(Spmm(128), scattered, "aspt"), HasSubstr("too few tiles as it is"));
  EXPECT_EQ(Pipelines(Spmm(128), clustered).size(), 2u);
  for (const std::string& pipeline : Pipelines(Spmm(128), clustered)) {
    EXPECT_THAT(pipeline, ::testing::StartsWith("aspt"));
  }
  EXPECT_THAT(Reason(Spmm(128), clustered, "lsh_cluster"), HasSubstr("clustered already"));
  EXPECT_THAT(Pipelines(Spmm(128), wide), ElementsAre("transpose"));
  EXPECT_THAT(Pipelines(Spmm(128), tiny), IsEmpty());
  EXPECT_THAT(Reason(Spmm(128), tiny, "aspt"), HasSubstr("900 nonzeros"));
  EXPECT_THAT(Pipelines(Spmm(128), thin), IsEmpty());
  EXPECT_THAT(Reason(Spmm(128), thin, "aspt"), HasSubstr("1.1 nonzeros a row"));
  EXPECT_THAT(Pipelines(Spmm(128, true), thin), ElementsAre("transpose"));
  EXPECT_TRUE(CandidatesFor(SignatureOf({Operation::kSpgemm}), scattered).empty());
  EXPECT_THAT(Pipelines(Spmm(128, false, ElementType::kF16), clustered), IsEmpty())
      << "tiles are for f32 and f64";
}

TEST(Candidates, OnTheGpuUnevenRowsAreSorted) {
  const ProblemSignature spmm =
      SignatureOf({Operation::kSpmm, false, ElementType::kF32, 128, DeviceKind::kCuda});
  Features facts = FeaturesOf(10000, 10000, 100000, 10, 0.02);
  facts.row_nonzeros_cv = 0.5;
  const std::vector<std::string> even = Pipelines(spmm, facts);
  EXPECT_THAT(even, Not(Contains(HasSubstr("_sort"))));
  EXPECT_THAT(Reason(spmm, facts, "plain_sort"), HasSubstr("even enough"));
  facts.row_nonzeros_cv = 2.5;
  const std::vector<std::string> uneven = Pipelines(spmm, facts);
  EXPECT_THAT(uneven, Contains(HasSubstr("plain_sort")));
  EXPECT_EQ(uneven.size(), even.size() + 2) << "at most two more";
  EXPECT_THAT(Reason(spmm, facts, "plain_sort"), HasSubstr("2.5 times the mean"));
  EXPECT_THAT(Reason(Spmm(128), facts, "plain_sort"), "no rule") << "CPU kernels cut equal parts";
}

TEST(Asked, EveryPipelineThatThereIsARuleForCanBeAskedFor) {
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    if (device == DeviceKind::kCuda && FindSpmmKernel("cuda.csr.rows") == nullptr) continue;
    for (const Operation operation : {Operation::kSpmm, Operation::kSddmm}) {
      for (const bool transposed : {false, true}) {
        if (transposed && operation == Operation::kSddmm) continue;
        const ProblemSignature c =
            SignatureOf({operation, transposed, ElementType::kF32, 32, device});
        for (const Candidate& candidate : CandidatesFor(c, {})) {
          const absl::StatusOr<Asked> asked = ParseAsked(candidate.pipeline, "");
          ASSERT_TRUE(asked.ok()) << asked.status();
          EXPECT_EQ(asked->pipeline, candidate.pipeline);
          const absl::Status status = CheckAsked(*asked, c, 3000, 2000, 100'000);
          EXPECT_TRUE(status.ok()) << status;
        }
      }
    }
  }
}

TEST(Asked, SaysWhatThereIs) {
  const auto refusal = [](std::string_view pipeline, std::string_view kernel,
                          const ProblemSignature& c) {
    const absl::StatusOr<Asked> asked = ParseAsked(pipeline, kernel);
    const absl::Status status =
        asked.ok() ? CheckAsked(*asked, c, 3000, 2000, 100'000) : asked.status();
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  const ProblemSignature sddmm =
      SignatureOf({Operation::kSddmm, false, ElementType::kF32, 512, DeviceKind::kCpu});
  const ProblemSignature spgemm =
      SignatureOf({Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu});
  EXPECT_EQ(refusal("aspt(panel=256)", "cpu.aspt.panel", Spmm(32)), "");
  EXPECT_EQ(refusal("", "cpu.csr.slab_dot", sddmm), "") << "plain CSR";
  EXPECT_EQ(refusal("transpose > aspt", "cpu.aspt.panel", Spmm(32, true)), "");
  EXPECT_EQ(refusal("row_segments", "cpu.row_segments.scatter", Spmm(32, true)), "");
  EXPECT_EQ(refusal("", "cpu.csr.heap", spgemm), "");
  EXPECT_THAT(refusal("apst", "", Spmm(32)), HasSubstr("unknown step 'apst'; known: csr,"));
  EXPECT_THAT(refusal("aspt(tiles=3)", "", Spmm(32)), HasSubstr("known: min_dense, panel"));
  EXPECT_EQ(refusal("", "cpu.csr.fast", Spmm(32, true)),
            "kernel: 'cpu.csr.fast' is none; spmm^T K=32 f32 cpu from csr is computed by: "
            "cpu.csr.scatter");
  EXPECT_EQ(refusal("aspt", "cpu.csr.slab", Spmm(32)),
            "kernel: 'cpu.csr.slab' takes layouts of kind csr, not aspt; spmm K=32 f32 cpu from "
            "aspt(panel=64,min_dense=2) is computed by: cpu.aspt.panel");
  EXPECT_THAT(refusal("aspt", "cpu.aspt.panel_dot", Spmm(32)),
              HasSubstr("'cpu.aspt.panel_dot' does not do that; "));
  EXPECT_THAT(
      refusal("aspt", "cpu.aspt.panel", Spmm(32, false, ElementType::kF16)),
      HasSubstr("no kernel computes spmm K=32 f16 cpu from aspt(panel=64,min_dense=2); "
                "there are kernels for: csr, transpose, dcsr, bcsr(width=0), lsh_cluster("));
  EXPECT_THAT(refusal("aspt", "", Spmm(32, true)), HasSubstr("no kernel computes spmm^T"));
  EXPECT_THAT(refusal("aspt", "", spgemm),
              HasSubstr("no kernel of SpGEMM reads its factors from aspt(panel=64,min_dense=2); "
                        "there are kernels for: csr, dia, "));
  EXPECT_THAT(refusal("aspt(panel)", "", Spmm(32)), HasSubstr("aspt: panel needs a value"));
  EXPECT_EQ(refusal("lsh_cluster(force)", "", Spmm(32)), "") << "a flag has none";
  ProblemSignature spgemm_f64 = spgemm;
  spgemm_f64.type = ElementType::kF64;
  EXPECT_EQ(refusal("incsr(columns=16)", "", spgemm), "");
  EXPECT_EQ(refusal("incsr(columns=8)", "", spgemm_f64), "");
  EXPECT_THAT(refusal("incsr(columns=32)", "", spgemm),
              HasSubstr("of f32 kernels read incsr in blocks of 4 to 16 columns, not 32"));
  EXPECT_EQ(refusal("incsr(columns=32,block=4)", "", spgemm), "");
  EXPECT_THAT(refusal("incsr(columns=32,block=2)", "", spgemm),
              HasSubstr("4 to 16 columns, not 2"));
  EXPECT_EQ(refusal("incsr(columns=32,block=2)", "", spgemm_f64), "");
  EXPECT_THAT(refusal("incsr", "cpu.incsr.sections", spgemm_f64),
              HasSubstr("of f64 kernels read incsr in blocks of 2 to 8 columns, not 16"));
  EXPECT_EQ(refusal("bcsr(width=4,height=4)", "cpu.bcsr.blocks", Spmm(32)), "");
  EXPECT_EQ(refusal("bcsr", "cpu.bcsr.blocks", Spmm(32)), "");
  EXPECT_THAT(refusal("bcsr(width=4)", "", Spmm(32, true)),
              HasSubstr("no kernel computes spmm^T K=32 f32 cpu from bcsr(width=4)"));
  EXPECT_EQ(refusal("transpose > bcsr(width=4)", "", Spmm(32, true)), "");
  EXPECT_THAT(refusal("bcsr(width=4)", "", spgemm),
              HasSubstr("no kernel of SpGEMM reads its factors from bcsr(width=4); "));
  ProblemSignature spgemm_on_gpu = spgemm;
  spgemm_on_gpu.device = DeviceKind::kCuda;
  if (FindSpgemmKernel("cuda.bcsr.blocks") != nullptr) {
    EXPECT_EQ(refusal("bcsr(width=4)", "", spgemm_on_gpu), "");
    for (const char* other : {"bcsr", "bcsr(width=1)", "bcsr(width=1,height=3)"}) {
      EXPECT_THAT(refusal(other, "", spgemm_on_gpu),
                  HasSubstr("SpGEMM reads bcsr of squares, width = 2 to 8, not bcsr(width="));
    }
  }
  EXPECT_THAT(refusal("", "cuda.csr.row_bins", spgemm),
              HasSubstr("'cuda.csr.row_bins' is for a GPU, and this server has none; "));
  EXPECT_THAT(refusal("", "cpu.csr.slab", spgemm), HasSubstr("cpu.csr.hash, "));
}

TEST(Asked, EveryPipelineThatIsAskedForAKernelOfSpgemmIsTried) {
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  const std::vector<Candidate> by_rules = SpgemmCandidatesFor(problem, nullptr, nullptr);
  const auto of_kernel = [](const std::vector<Candidate>& candidates) {
    std::vector<std::string> pipelines;
    for (const Candidate& candidate : candidates) {
      if (candidate.kernel != "cpu.coo.column_parts") continue;
      EXPECT_TRUE(candidate.worth_trying);
      pipelines.push_back(candidate.pipeline);
    }
    return pipelines;
  };
  const std::set<Asked> asked = {*ParseAsked("column_parts(parts=2)", ""),
                                 *ParseAsked("column_parts(parts=3)", "cpu.coo.column_parts")};
  std::vector<Candidate> candidates = by_rules;
  AddAskedKernels(asked, /*nothing_else=*/true, candidates);
  EXPECT_EQ(candidates.size(), 2u);
  EXPECT_THAT(of_kernel(candidates), ElementsAre("column_parts(parts=2)", "column_parts(parts=3)"));
  candidates = by_rules;
  AddAskedKernels(asked, /*nothing_else=*/false, candidates);
  EXPECT_EQ(candidates.size(), by_rules.size() + 2);
  EXPECT_THAT(of_kernel(candidates),
              ElementsAre("", "column_parts(parts=2)", "column_parts(parts=3)"));
}

TEST(Asked, EverythingIsTriedWhateverTheRulesSay) {
  std::vector<Candidate> candidates = CandidatesFor(Spmm(32), FeaturesOf(100, 100, 500, 5, 0.02));
  const size_t count = candidates.size();
  ASSERT_GT(std::ranges::count(candidates, false, &Candidate::worth_trying), 0);
  for (const bool nothing_else : {true, false}) {
    std::vector<Candidate> all = candidates;
    AddAsked({Asked()}, nothing_else, all);
    EXPECT_EQ(all.size(), count);
    for (const Candidate& candidate : all) {
      EXPECT_TRUE(candidate.worth_trying && candidate.asked) << candidate.pipeline;
      EXPECT_EQ(candidate.kernel, "");
      EXPECT_NE(candidate.reason, "");
    }
  }
  const Problem spgemm{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  const Features facts = FeaturesOf(100, 100, 500, 5, 0.02);
  const std::vector<Candidate> kernels = SpgemmCandidatesFor(spgemm, &facts, &facts);
  ASSERT_GT(std::ranges::count(kernels, false, &Candidate::worth_trying), 0);
  candidates = kernels;
  AddAskedKernels({Asked()}, /*nothing_else=*/true, candidates);
  ASSERT_EQ(candidates.size(), kernels.size());
  for (const Candidate& candidate : candidates) EXPECT_TRUE(candidate.worth_trying);
}

TEST(Candidates, OnTheGpuSddmmTriesPanelsOfTwoHeights) {
  const ProblemSignature sddmm =
      SignatureOf({Operation::kSddmm, false, ElementType::kF32, 128, DeviceKind::kCuda});
  const std::vector<std::string> pipelines =
      Pipelines(sddmm, FeaturesOf(10000, 10000, 100000, 10, 0.02));
  for (const char* pipeline :
       {"row_panels(rows=8)", "row_panels(rows=16)", "group_rows(size=8) > row_panels(rows=8)",
        "group_rows(size=16) > row_panels(rows=16)"}) {
    EXPECT_THAT(pipelines, Contains(pipeline));
  }
}

TEST(Candidates, NonzerosInBlocksAreMultipliedAsBlocks) {
  const ProblemSignature spmm = SignatureOf({Operation::kSpmm, false, ElementType::kF16, 128});
  const ProblemSignature transposed = SignatureOf({Operation::kSpmm, true, ElementType::kF32, 128});
  const auto facts_of = [](const test::Pattern& pattern) {
    BuildContext context;
    context.memory = &HeapMemory();
    return ComputeFeatures(pattern.view(), context).value();
  };
  const test::Pattern places = test::Uniform(1000, 1000, 6, 1);
  for (const int32_t width : {1, 3}) {
    const Features facts = facts_of(test::InBlocks(places, 3, width));
    EXPECT_THAT(Pipelines(spmm, facts), Contains("bcsr(width=0)")) << width;
    EXPECT_THAT(Pipelines(transposed, facts), Contains("transpose > bcsr(width=0)")) << width;
  }
  const Features scattered = facts_of(test::Uniform(3000, 3000, 6, 1));
  EXPECT_THAT(Pipelines(spmm, scattered), Not(Contains("bcsr(width=0)")));
  EXPECT_THAT(Reason(spmm, scattered, "bcsr(width=0)"),
              HasSubstr("blocks of 2 x 2 would be padding by 75 %, above 65: nonzeros lie"));
  // With one column there is no row to read once.
  EXPECT_THAT(Pipelines(SignatureOf({Operation::kSpmm, false, ElementType::kF32, 1}),
                        facts_of(test::InBlocks(places, 3, 3))),
              Not(Contains("bcsr(width=0)")));
}

TEST(Candidates, EmptyRowsAreLeftOutWhereTheyAreMost) {
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    const ProblemSignature spmm =
        SignatureOf({Operation::kSpmm, false, ElementType::kF16, 128, device});
    Features facts = FeaturesOf(10000, 10000, 100000, 10, 0.02);
    facts.empty_rows = 0.5;
    EXPECT_THAT(Pipelines(spmm, facts), Not(Contains("dcsr")));
    EXPECT_THAT(Reason(spmm, facts, "dcsr"), HasSubstr("50 % of the rows are empty, not more"));
    facts.empty_rows = 0.51;
    EXPECT_THAT(Pipelines(spmm, facts), Contains("dcsr"));
  }
}

TEST(Candidates, RunsOfColumnsThatNeighboursDoNotShareBecomeSegments) {
  const ProblemSignature spmm =
      SignatureOf({Operation::kSpmm, false, ElementType::kF64, 128, DeviceKind::kCuda});
  const auto facts_of = [](const test::Pattern& pattern) {
    BuildContext context;
    context.memory = &HeapMemory();
    return ComputeFeatures(pattern.view(), context).value();
  };
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t row = 0; row < 2000; row += 2) {
    for (int32_t i = 0; i < 20; ++i) entries.emplace_back(row, row * 37 % 4000 + i);
  }
  Features runs = facts_of(test::FromCoordinates(2000, 5000, entries));
  EXPECT_DOUBLE_EQ(runs.empty_rows, 0.5);
  EXPECT_DOUBLE_EQ(runs.near_nonzeros(), 0.95);
  EXPECT_NEAR(runs.unlike_neighbours(), 1, 0.01);
  EXPECT_THAT(Pipelines(spmm, runs), Not(Contains(HasSubstr("row_segments")))) << "10 a row";
  EXPECT_THAT(Reason(spmm, runs, "row_segments"), HasSubstr("no runs of columns"));
  runs.row_nonzeros_mean = 20;
  EXPECT_THAT(Pipelines(spmm, runs), Contains("row_segments(panel=64,min_heavy=0,coarsen=0)"));
  EXPECT_THAT(
      Reason(SignatureOf({Operation::kSpmm, false, ElementType::kF16, 128, DeviceKind::kCuda}),
             runs, "row_segments"),
      "no rule");

  const Features band = facts_of(test::Band(2000, 16));
  EXPECT_LT(band.unlike_neighbours(), 0.1);
  EXPECT_THAT(Reason(spmm, band, "row_segments"), HasSubstr("the cache does as well"));
}

TEST(Candidates, KernelsOfSpgemmFollowTheRules) {
  constexpr const char* kGraphblas = "cpu.graphblas.mxm";
  const Problem problem{Operation::kSpgemm, false, ElementType::kF32, 0, DeviceKind::kCpu};
  const auto features_of = [](const test::Pattern& pattern) {
    BuildContext context;
    context.memory = &HeapMemory();
    return ComputeFeatures(pattern.view(), context).value();
  };
  const Features band = features_of(test::Band(3000, 7));
  const Features random = features_of(test::Uniform(3000, 3000, 6, 1));
  const Features power = features_of(test::Rmat(14, 16, 1));
  const Features thin = features_of(test::Uniform(3000, 6'000'000, 2, 1));
  const auto worth = [&](const Features* left, const Features* right) {
    std::vector<std::string> kernels;
    for (const Candidate& candidate : SpgemmCandidatesFor(problem, left, right)) {
      EXPECT_NE(candidate.reason, "");
      if (left != nullptr && right != nullptr) {
        EXPECT_NE(candidate.reason, "there is no rule for it") << candidate.kernel;
      }
      if (candidate.worth_trying) kernels.push_back(candidate.kernel);
    }
    return kernels;
  };
  // GraphBLAS may be missing.
  const auto ours = [&](const Features& left, const Features& right) {
    std::vector<std::string> kernels = worth(&left, &right);
    std::erase(kernels, kGraphblas);
    return kernels;
  };
  EXPECT_THAT(ours(band, band), ElementsAre("cpu.csr.dense", "cpu.dia.diagonals",
                                            "cpu.ell.even_rows", "cpu.incsr.sections"));
  EXPECT_THAT(ours(random, random), ElementsAre("cpu.csr.dense", "cpu.ell.even_rows"));
  EXPECT_THAT(worth(&band, &random), Not(Contains("cpu.dia.diagonals")));
  EXPECT_THAT(ours(power, power), ElementsAre("cpu.csr.dense", "cpu.coo.column_parts"));
  EXPECT_THAT(ours(thin, thin), ElementsAre("cpu.csr.hash", "cpu.csr.heap", "cpu.ell.even_rows"));
  EXPECT_EQ(worth(&band, nullptr).size(), SpgemmCandidatesFor(problem, &band, nullptr).size())
      << "what is not known is tried";

  if (FindSpgemmKernel(kGraphblas) != nullptr) {
    EXPECT_THAT(worth(&band, &band), Contains(kGraphblas));
    Features large = power;
    large.rows *= 1000;
    EXPECT_THAT(worth(&large, &power), Not(Contains(kGraphblas))) << "it cannot be stopped";
  }

  Problem on_gpu = problem;
  on_gpu.device = DeviceKind::kCuda;
  if (FindSpgemmKernel("cuda.dia.diagonals") == nullptr) return;
  std::vector<std::string> promising;
  for (const Candidate& candidate : SpgemmCandidatesFor(on_gpu, &random, &random)) {
    EXPECT_NE(candidate.reason, "there is no rule for it") << candidate.kernel;
    if (candidate.worth_trying) promising.push_back(candidate.kernel);
  }
  EXPECT_THAT(promising, testing::IsSupersetOf({"cuda.csr.expand_sort", "cuda.csr.merged_rows"}));
  EXPECT_THAT(promising, Not(Contains("cuda.dia.diagonals")));

  const auto judged = [&](std::string_view kernel, const Features& left, const Features& right) {
    for (const Candidate& candidate : SpgemmCandidatesFor(on_gpu, &left, &right)) {
      if (candidate.kernel == kernel) return candidate;
    }
    return Candidate();
  };
  constexpr std::string_view kWords = "cuda.csr.row_words", kBitmaps = "cuda.csr.row_bitmaps";
  EXPECT_TRUE(judged(kWords, band, band).worth_trying);
  EXPECT_THAT(judged(kWords, band, band).reason,
              HasSubstr("to a word of 32 columns, at least 1.5"));
  EXPECT_FALSE(judged(kWords, power, power).worth_trying);
  EXPECT_TRUE(judged(kBitmaps, power, power).worth_trying);
  EXPECT_THAT(judged(kBitmaps, thin, thin).reason, HasSubstr("too many for bitmaps"));
  EXPECT_FALSE(judged(kBitmaps, thin, thin).worth_trying);
  EXPECT_FALSE(judged(kWords, thin, thin).worth_trying);

  // Points with three unknowns each, coupled with four others.
  std::vector<std::pair<int32_t, int32_t>> entries;
  for (int32_t row = 0; row < 3000; ++row) {
    for (const int32_t other : {0, 1, 7, 90, 500}) {
      for (int32_t i = 0; i < 3; ++i) entries.emplace_back(row, (row / 3 + other) % 1000 * 3 + i);
    }
  }
  const Features blocks = features_of(test::FromCoordinates(3000, 3000, entries));
  const auto verdict_on_blocks = [&](const Features& left, const Features& right) {
    return judged("cuda.bcsr.blocks", left, right);
  };
  EXPECT_TRUE(verdict_on_blocks(blocks, blocks).worth_trying);
  EXPECT_THAT(verdict_on_blocks(blocks, blocks).reason, HasSubstr("nonzeros lie in blocks"));
  EXPECT_FALSE(verdict_on_blocks(blocks, random).worth_trying);
  EXPECT_FALSE(verdict_on_blocks(random, blocks).worth_trying);
  EXPECT_THAT(verdict_on_blocks(random, blocks).reason, HasSubstr("above 50"));
  Features uneven = blocks;
  uneven.row_nonzeros_cv = 2;
  EXPECT_THAT(verdict_on_blocks(blocks, uneven).reason, HasSubstr("row lengths deviate by 2.00"));
  EXPECT_FALSE(verdict_on_blocks(uneven, blocks).worth_trying);
}

TEST(Candidates, PipelinesAreCanonical) {
  const Features facts = FeaturesOf(10000, 10000, 100000, 10, 0.02);
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    for (const Operation operation : {Operation::kSpmm, Operation::kSddmm}) {
      for (const bool transposed : {false, true}) {
        if (transposed && operation == Operation::kSddmm) continue;
        const ProblemSignature c =
            SignatureOf({operation, transposed, ElementType::kF32, 128, device});
        EXPECT_FALSE(CandidatesFor(c, facts).empty()) << ToString(c);
        for (const Candidate& candidate : CandidatesFor(c, facts)) {
          const auto pipeline = ParsePipeline(candidate.pipeline);
          ASSERT_TRUE(pipeline.ok()) << pipeline.status();
          EXPECT_EQ(ToString(*pipeline), candidate.pipeline);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparsed::engine
