#include "engine/planning/selector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <string_view>

#include "engine/planning/booster.h"
#include "engine/planning/model_input.h"

namespace sparsed::engine {
namespace {

using ::testing::HasSubstr;

Promise Expecting(double log2_ratio, double deviation, double build_seconds = 0) {
  return {"m", {{"r", "k", log2_ratio, deviation}}, 0, build_seconds};
}

TEST(ExpectedGain, IsTheMeanOfWhatIsGained) {
  std::mt19937 random(1);
  for (const auto& [ratio, deviation, best] :
       {std::tuple(-1.0, 0.3, 10.0), std::tuple(0.2, 0.5, 10.0), std::tuple(-0.5, 0.1, 6.0)}) {
    std::normal_distribution<double> error(ratio, deviation);
    double sum = 0;
    constexpr int kDraws = 400'000;
    for (int i = 0; i < kDraws; ++i) sum += std::max(0.0, best - 10 * std::exp2(error(random)));
    EXPECT_NEAR(ExpectedGain(ratio, deviation, 10, best), sum / kDraws, 0.01 * best);
  }
}

TEST(ExpectedGain, OfWhatIsCertainIsTheDifference) {
  EXPECT_DOUBLE_EQ(ExpectedGain(-1, 0, 10, 10), 5);
  EXPECT_EQ(ExpectedGain(-1, 0, 10, 4), 0);
  EXPECT_EQ(ExpectedGain(1, 0, 10, 10), 0);
}

TEST(ExpectedGain, GrowsWithWhatIsNotKnown) {
  double last = ExpectedGain(0.1, 0.01, 10, 10);
  for (const double deviation : {0.05, 0.2, 0.5, 1.0}) {
    const double gain = ExpectedGain(0.1, deviation, 10, 10);
    EXPECT_GT(gain, last);
    last = gain;
  }
}

TEST(ExpectedGain, CountsWhatIsGainedWhereTheBestIsReplaced) {
  // 4 % is a gain of 4 % where 3 % are enough, and none where 5 % are.
  EXPECT_NEAR(ExpectedGain(std::log2(0.96), 0, 10, 10, 1.03), 0.4, 1e-9);
  EXPECT_EQ(ExpectedGain(std::log2(0.96), 0, 10, 10, 1.05), 0);
  EXPECT_LT(ExpectedGain(0, 0.1, 10, 10, 1.2), ExpectedGain(0, 0.1, 10, 10));
}

TEST(SharedError, IsWhatTrialsShowOfAllEstimates) {
  SharedError error(1);
  EXPECT_EQ(error.mean(), 0);
  EXPECT_DOUBLE_EQ(error.variance(), 1);
  // As sure as what was known before: half way.
  error.Saw(-2, 1);
  EXPECT_DOUBLE_EQ(error.mean(), -1);
  EXPECT_DOUBLE_EQ(error.variance(), 0.5);
  for (int i = 0; i < 100; ++i) error.Saw(-2, 0.1);
  EXPECT_NEAR(error.mean(), -2, 1e-3);
  EXPECT_LT(error.variance(), 1e-3);
  // Estimates that have nothing in common teach nothing of others.
  SharedError none(0);
  none.Saw(3, 0.2);
  EXPECT_NEAR(none.mean(), 0, 1e-3);
}

TEST(Weigh, TakesTheErrorThatTrialsShowed) {
  const Promise promise = Expecting(0, 0.05, 0.1);
  Stakes stakes{.default_ms = 10, .best_ms = 5, .requests = 10'000, .shared_variance = 1};
  // Nothing is known of how wrong the estimates are: it may gain.
  EXPECT_TRUE(Weigh(promise, stakes).worth_trying);
  // The best was expected to take as long as this: so it does.
  stakes.shared_error = -0.9;
  stakes.shared_variance = 0.0025;
  EXPECT_FALSE(Weigh(promise, stakes).worth_trying);
  stakes.shared_error = -1.2;
  EXPECT_TRUE(Weigh(promise, stakes).worth_trying);
}

TEST(Weigh, RefusesAnHourOfBuildingForALittle) {
  // What was built for 99 s to gain 2 % of 13 ms.
  const Promise promise = Expecting(std::log2(0.98), 0.02, 99);
  Stakes stakes{.default_ms = 13, .best_ms = 13, .requests = 100'000};
  EXPECT_FALSE(Weigh(promise, stakes).worth_trying);
  EXPECT_THAT(Weigh(promise, stakes).reason, HasSubstr("1.02x expected ("));
  EXPECT_THAT(Weigh(promise, stakes).reason, HasSubstr("99 s of building and trying"));
  // It is there already, or pays back over more requests.
  stakes.is_built = true;
  EXPECT_TRUE(Weigh(promise, stakes).worth_trying);
  stakes.is_built = false;
  stakes.requests = 1e6;
  EXPECT_TRUE(Weigh(promise, stakes).worth_trying);
  // A gain below what a layout must bring is none.
  stakes.least_speedup = 1.2;
  EXPECT_FALSE(Weigh(promise, stakes).worth_trying);
}

TEST(Weigh, ComparesWithTheBestThatWasReached) {
  const Promise promise = Expecting(-1, 0.1, 0.1);
  Stakes stakes{.default_ms = 10, .best_ms = 10, .requests = 1000};
  EXPECT_TRUE(Weigh(promise, stakes).worth_trying);
  stakes.best_ms = 3;
  const Worth worth = Weigh(promise, stakes);
  EXPECT_FALSE(worth.worth_trying);
  EXPECT_THAT(worth.reason, HasSubstr("3.33x is reached"));
}

/// The files of the model of tests/data/model.
Model::Files TinyFiles() {
  absl::StatusOr<Model::Files> files = Model::ReadFiles(SPARSED_TEST_DATA "/model/tiny");
  EXPECT_TRUE(files.ok()) << files.status();
  return files.ok() ? *std::move(files) : Model::Files();
}

bool HasLibrary() { return !absl::IsUnimplemented(Model::FromFiles(TinyFiles()).status()); }

TEST(Model, EstimatesWhatItWasTrainedTo) {
  if (!HasLibrary()) GTEST_SKIP() << "libxgboost0 is not installed";
  const auto model = Model::Load(SPARSED_TEST_DATA "/model/tiny");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->name(), "tiny");
  EXPECT_EQ((*model)->device(), DeviceKind::kCpu);
  EXPECT_EQ((*model)->patterns(), 8);
  ProblemSignature c = SignatureOf({Operation::kSpmm, false, ElementType::kF32, 128});
  ASSERT_TRUE((*model)->Covers(c));
  const auto narrow = (*model)->EstimateTimes(c, Features());
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  ASSERT_EQ(narrow->size(), 3u);
  EXPECT_EQ(narrow->front().kernel, "cpu.aspt.panel");
  EXPECT_NEAR(narrow->front().log2_ratio, -2, 1e-5);
  EXPECT_NEAR(narrow->back().log2_ratio, 0.25, 1e-5);
  const auto building = (*model)->EstimateBuilding(c, Features());
  ASSERT_TRUE(building.ok());
  EXPECT_NEAR(building->at("lsh_cluster(siglen=128,bsize=2,max_cluster=256)"), 1000, 0.1);
  // Ten times as large as any that it was trained on.
  Model::Files files = TinyFiles();
  std::string& manifest = files.at("manifest.json");
  manifest.replace(manifest.find("\"digest\""), 0, "\"most_nonzeros\": 1000, ");
  Features large;
  large.nnz = 10'000;
  const auto longer = (*Model::FromFiles(files))->EstimateBuilding(c, large);
  EXPECT_NEAR(longer->at("lsh_cluster(siglen=128,bsize=2,max_cluster=256)"), 10'000, 1);
  c.k_bucket = 512;
  EXPECT_NEAR((*model)->EstimateTimes(c, Features())->front().log2_ratio, 0.5, 1e-5);
  // Neither wider than it knows, nor of another type or device.
  c.k_bucket = 1024;
  EXPECT_FALSE((*model)->Covers(c));
  EXPECT_FALSE((*model)->Covers(SignatureOf({Operation::kSpmm, false, ElementType::kF16, 128})));
  c.k_bucket = 128;
  c.device = DeviceKind::kCuda;
  EXPECT_FALSE((*model)->Covers(c));
  EXPECT_FALSE((*model)->EstimateTimes(c, Features()).ok());
}

TEST(ModelInput, IsAProductAndQuotientFromLeftToRight) {
  const ProblemSignature c = {.operation = Operation::kSpmm,
                              .type = ElementType::kF16,
                              .k_bucket = 32,
                              .device = DeviceKind::kCuda,
                              .allow_tf32 = true};
  Features features;
  features.rows = 100;
  features.cols = 50;
  features.nnz = 1000;
  features.distance_histogram[3] = 1;
  features.distance_histogram[16] = 3;
  const auto value = [&](std::string_view text) {
    const std::optional<ModelInput> input = ModelInput::Parse(text);
    EXPECT_TRUE(input) << text;
    return input ? input->Of(c, features) : -1;
  };
  EXPECT_EQ(value("nnz"), 1000);
  EXPECT_EQ(value("k"), 32);
  EXPECT_EQ(value("value_bytes"), 2);
  EXPECT_EQ(value("tf32"), 1);
  EXPECT_EQ(value("distance_16"), 0.75);
  EXPECT_EQ(value("nnz/rows"), 10);
  EXPECT_EQ(value("cols*k*value_bytes"), 50 * 32 * 2);
  EXPECT_EQ(value("nnz/rows*cols/k"), 1000.0 / 100 * 50 / 32);
  EXPECT_EQ(value("nnz/diagonals"), 0) << "there are none";
  EXPECT_EQ(value("nnz/diagonals*rows"), 0);
  EXPECT_EQ(ModelInput::Parse("k")->Of({.operation = Operation::kSpgemm, .k_bucket = 1}, features),
            0);
  for (const char* const text : {"", "nothing", "nnz/", "/nnz", "nnz//rows", "nnz*", "nnz+rows",
                                 "distance_17", "distance_-1", "distance_", "distance_1x"}) {
    EXPECT_FALSE(ModelInput::Parse(text)) << text;
  }
}

TEST(Model, RefusesWhatDoesNotFit) {
  if (!HasLibrary()) GTEST_SKIP() << "libxgboost0 is not installed";
  struct Case {
    std::string_view from, to;
    absl::StatusCode code;
    std::string_view sentence;
  };
  const Case cases[] = {
      {"\"format\": 1", "\"format\": 2", absl::StatusCode::kFailedPrecondition, "format 2, not 1"},
      {"\"kernels\": ", "\"kernels\": 1000", absl::StatusCode::kFailedPrecondition, "version 1000"},
      {"\"row_nonzeros_mean\"", "\"row_warmth\"", absl::StatusCode::kFailedPrecondition,
       "a feature that there is none of here: \"row_warmth\""},
      {"\"distance_0\"", "\"distance_99\"", absl::StatusCode::kFailedPrecondition, "distance_99"},
      {"cpu.aspt.panel_dot", "cpu.aspt.guess", absl::StatusCode::kFailedPrecondition,
       "a kernel that there is none of here: \"cpu.aspt.guess\""},
      {"aspt(panel=64,min_dense=2)", "aspt(panel=64)", absl::StatusCode::kFailedPrecondition,
       "a transform pipeline that there is none of here"},
      {"\"name\": \"tiny\"", "\"name\": \"../tiny\"", absl::StatusCode::kInvalidArgument, "name"},
      {"\"kind\": \"cpu\"", "\"kind\": \"tpu\"", absl::StatusCode::kInvalidArgument, "tpu"},
      {"\"operation\": \"sddmm\"", "\"operation\": \"fft\"", absl::StatusCode::kInvalidArgument,
       "no operation \"fft\""},
      {"\"groups\"", "\"bands\"", absl::StatusCode::kInvalidArgument, "groups"},
      {"\"least_k\": 1", "\"least_k\": \"one\"", absl::StatusCode::kInvalidArgument, "manifest"},
      {"\"deviation\": 0.25", "\"deviation\": -1", absl::StatusCode::kInvalidArgument, "deviation"},
      {"{", "<", absl::StatusCode::kInvalidArgument, "no JSON"},
      {"\"rows\",", "", absl::StatusCode::kInvalidArgument, "inputs"},
  };
  for (const Case& one : cases) {
    Model::Files files = TinyFiles();
    std::string& manifest = files.at("manifest.json");
    const size_t at = manifest.find(one.from);
    ASSERT_NE(at, std::string::npos) << one.from;
    manifest.replace(at, one.from.size(), one.to);
    const auto model = Model::FromFiles(files);
    EXPECT_EQ(model.status().code(), one.code) << one.to << ": " << model.status();
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(std::string(one.sentence)));
  }
}

TEST(Model, RefusesDamagedFiles) {
  if (!HasLibrary()) GTEST_SKIP() << "libxgboost0 is not installed";
  Model::Files files = TinyFiles();
  files.at("sddmm.ubj")[files.at("sddmm.ubj").size() / 2] ^= 1;
  EXPECT_THAT(std::string(Model::FromFiles(files).status().message()),
              HasSubstr("sddmm.ubj is damaged"));
  files = TinyFiles();
  files.erase("spmm.ubj");
  EXPECT_THAT(std::string(Model::FromFiles(files).status().message()),
              HasSubstr("spmm.ubj is missing"));
  files = TinyFiles();
  std::string& manifest = files.at("manifest.json");
  const std::string_view one = "\"file\": \"sddmm.ubj\"";
  ASSERT_NE(manifest.find(one), std::string::npos);
  manifest.replace(manifest.find(one), one.size(), "\"file\": \"spmm.ubj\"");
  EXPECT_THAT(std::string(Model::FromFiles(files).status().message()),
              HasSubstr("spmm.ubj is named twice"));
  files = TinyFiles();
  files.erase("manifest.json");
  EXPECT_TRUE(absl::IsNotFound(Model::FromFiles(files).status()));
  EXPECT_TRUE(absl::IsNotFound(Model::Load("/nowhere").status()));
}

TEST(Booster, RefusesWhatIsNone) {
  if (!HasLibrary()) GTEST_SKIP() << "libxgboost0 is not installed";
  const std::string bytes = TinyFiles().at("spmm.ubj");
  EXPECT_TRUE(Booster::Load(bytes, 8, 3).ok());
  for (const auto& [what, inputs, outputs] :
       {std::tuple(bytes, 7, 3), std::tuple(bytes, 8, 2), std::tuple(std::string("{"), 8, 3),
        std::tuple(std::string(), 8, 3), std::tuple(bytes.substr(0, bytes.size() / 2), 8, 3)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Booster::Load(what, inputs, outputs).status()))
        << what.size() << " bytes, " << inputs << ", " << outputs;
  }
}

TEST(Selector, AModelPromisesAndNamesWhatItLeavesOut) {
  if (!HasLibrary()) GTEST_SKIP() << "libxgboost0 is not installed";
  Selector selector;
  selector.Use(DeviceKind::kCpu, *Model::Load(SPARSED_TEST_DATA "/model/tiny"));
  Features features;
  const ProblemSignature c = SignatureOf({Operation::kSpmm, false, ElementType::kF32, 128});
  const std::vector<Candidate> chosen = selector.CandidatesFor(c, features);
  const auto tiles = std::ranges::find(chosen, "aspt(panel=64,min_dense=2)", &Candidate::pipeline);
  ASSERT_NE(tiles, chosen.end());
  ASSERT_EQ(tiles->promise->kernels.size(), 1u);
  EXPECT_EQ(tiles->promise->best().kernel, "cpu.aspt.panel");
  EXPECT_NEAR(tiles->promise->build_seconds, 0.001, 1e-6);
  int left_out = 0;
  for (const Candidate& candidate : chosen) {
    if (candidate.pipeline == "csr") {
      EXPECT_EQ(candidate.promise->build_seconds, 0);
    } else if (!candidate.promise) {
      EXPECT_FALSE(candidate.worth_trying);
      EXPECT_THAT(candidate.reason, HasSubstr("left out by model tiny"));
      ++left_out;
    }
  }
  EXPECT_EQ(left_out, std::ssize(chosen) - 3);
  EXPECT_EQ(std::ranges::count(chosen, "lsh_cluster(force,siglen=128,bsize=2,max_cluster=256)",
                               &Candidate::pipeline),
            1);
  // Every pipeline that there is a rule for has a verdict.
  EXPECT_EQ(chosen.size(), CandidatesFor(c, features).size() + 1);
  // Of signatures that it does not know rules judge.
  const ProblemSignature other = SignatureOf({Operation::kSpmm, false, ElementType::kF16, 128});
  for (const Candidate& candidate : selector.CandidatesFor(other, features)) {
    EXPECT_FALSE(candidate.promise);
  }
  selector.Use(DeviceKind::kCpu, nullptr);
  EXPECT_FALSE(selector.CandidatesFor(c, features).front().promise);
}

/// A pipeline that came after a model is not left out for want of measurements.
TEST(Selector, RulesJudgeWhatAModelHasNotSeen) {
  if (!HasLibrary()) GTEST_SKIP() << "libxgboost0 is not installed";
  Model::Files files = TinyFiles();
  std::string& manifest = files.at("manifest.json");
  manifest.replace(
      manifest.find("\"transposed\""), 0,
      R"json("measured": ["csr", "dcsr", "aspt(panel=64,min_dense=2)", "transpose"], )json");
  const auto model = Model::FromFiles(files);
  ASSERT_TRUE(model.ok()) << model.status();
  const ProblemSignature c = SignatureOf({Operation::kSpmm, false, ElementType::kF32, 128});
  EXPECT_TRUE((*model)->HasSeen(c, "dcsr"));
  EXPECT_FALSE((*model)->HasSeen(c, "bcsr(width=0)"));
  EXPECT_FALSE(
      (*model)->HasSeen(SignatureOf({Operation::kSpmm, false, ElementType::kF16, 128}), "dcsr"));
  EXPECT_TRUE((*Model::Load(SPARSED_TEST_DATA "/model/tiny"))->HasSeen(c, "bcsr(width=0)"))
      << "it does not say what it has seen";
  Selector selector;
  selector.Use(DeviceKind::kCpu, *model);
  Features features;
  features.nnz = 50'000;
  const auto of = [&](std::string_view pipeline) {
    const std::vector<Candidate> chosen = selector.CandidatesFor(c, features);
    const auto found = std::ranges::find(chosen, pipeline, &Candidate::pipeline);
    EXPECT_NE(found, chosen.end()) << pipeline;
    return found == chosen.end() ? Candidate() : *found;
  };
  EXPECT_THAT(of("dcsr").reason, HasSubstr("left out by model tiny"));
  EXPECT_TRUE(of("bcsr(width=0)").worth_trying);
  EXPECT_THAT(of("bcsr(width=0)").reason, HasSubstr("blocks of 2 x 2"));
  features.bcsr_padding = 0.75;
  EXPECT_FALSE(of("bcsr(width=0)").worth_trying);
  manifest.replace(manifest.find("[\"csr\""), 1, "[7, ");
  EXPECT_TRUE(absl::IsInvalidArgument(Model::FromFiles(files).status()));
}

TEST(Selector, JudgesAModelByWhatWasMeasured) {
  if (!HasLibrary()) GTEST_SKIP() << "libxgboost0 is not installed";
  const std::shared_ptr<const Model> model = *Model::Load(SPARSED_TEST_DATA "/model/tiny");
  const ProblemSignature c = SignatureOf({Operation::kSpmm, false, ElementType::kF32, 128});
  const auto measured = [&](std::string pipeline, std::string kernel, double ms) {
    Measurement m;
    m.signature = c;
    m.pipeline = std::move(pipeline);
    m.kernel = std::move(kernel);
    m.median_ms = ms;
    m.baseline_ms = 10;
    return m;
  };
  std::vector<Measurement> all = {measured("csr", "cpu.csr.row_balanced", 10),
                                  measured("dcsr", "cpu.dcsr.row_balanced", 4)};
  EXPECT_FALSE(Selector::ChoiceOf(*model, c, Features(), all)) << "its choice was not measured";
  all.push_back(measured("aspt(panel=64,min_dense=2)", "cpu.aspt.panel", 5));
  const std::optional<Choice> choice = Selector::ChoiceOf(*model, c, Features(), all);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->kernel, "cpu.aspt.panel");
  EXPECT_DOUBLE_EQ(choice->share, 0.8);
}

TEST(Selector, WithoutAModelRulesServe) {
  const Selector selector;
  Features features;
  features.rows = features.cols = 1000;
  features.nnz = 50'000;
  features.row_nonzeros_mean = 50;
  const ProblemSignature c = SignatureOf({Operation::kSpmm, false, ElementType::kF32, 128});
  const std::vector<Candidate> rules = CandidatesFor(c, features);
  const std::vector<Candidate> chosen = selector.CandidatesFor(c, features);
  ASSERT_EQ(chosen.size(), rules.size());
  for (size_t i = 0; i < rules.size(); ++i) {
    EXPECT_EQ(chosen[i].pipeline, rules[i].pipeline);
    EXPECT_EQ(chosen[i].worth_trying, rules[i].worth_trying);
    EXPECT_FALSE(chosen[i].promise);
  }
  EXPECT_EQ(selector.used(DeviceKind::kCpu), nullptr);
}

}  // namespace
}  // namespace sparsed::engine
