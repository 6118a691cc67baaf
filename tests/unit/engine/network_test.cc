#include "engine/planning/network.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "engine/planning/model.h"
#include "engine/planning/selector.h"
#include "kernels/array.h"

namespace sparsed::engine {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using Json = nlohmann::json;

/// A network's file.
std::string File(const std::string& branches, const std::string& layers,
                 const std::vector<float>& weights) {
  std::string bytes =
      fmt::format(R"({{"format":1,"branches":[{}],"layers":[{}]}})", branches, layers) + '\n';
  return bytes.append(reinterpret_cast<const char*>(weights.data()),
                      weights.size() * sizeof(float));
}

std::string OfFeatures(const std::string& layers) {
  return fmt::format(R"({{"of":"features","layers":[{}]}})", layers);
}
std::string OfMap(const std::string& layers) {
  return fmt::format(R"({{"of":"density_map","layers":[{}]}})", layers);
}

std::vector<double> Outputs(const std::string& bytes, const std::vector<float>& row, int outputs,
                            const DensityMap& map = DensityMap()) {
  const auto network = Network::Load(bytes, static_cast<int>(row.size()), outputs);
  EXPECT_TRUE(network.ok()) << network.status();
  if (!network.ok()) return {};
  const auto said = (*network)->Predict(row, map);
  EXPECT_TRUE(said.ok()) << said.status();
  return said.ok() ? *said : std::vector<double>();
}

DensityMap MapOf(const std::vector<int32_t>& tiles) {
  return *DensityMap::Pack(tiles, HeapMemory());
}

constexpr char kDense2[] = R"({"kind":"dense","outputs":2})";

TEST(Network, LayersComputeWhatAHandDoes) {
  EXPECT_THAT(Outputs(File(OfFeatures(kDense2), "", {1, 2, 3, 4, 5, 6, 0.5, -100}), {1, 0, -1}, 2),
              ElementsAre(1 - 3 + 0.5, 4 - 6 - 100));
  EXPECT_THAT(Outputs(File(OfFeatures(R"({"kind":"dense","outputs":2},{"kind":"relu"})"), "",
                           {1, 2, 3, 4, 5, 6, 4, -100}),
                      {1, 0, -1}, 2),
              ElementsAre(2, 0));
  // log2(1 + 7) = 3, log2(0.5 + |-3.5|) = 2, log2(1 + 0) = 0; the last is held at 5 deviations.
  EXPECT_THAT(
      Outputs(File(OfFeatures(R"({"kind":"standardise"})"), "", {1, 0.5, 1, 1, 3, -20, 2, 0.5, 10}),
              {7, -3.5, 0}, 3),
      ElementsAre(4, -0.5, 5));
}

TEST(Network, JoinsBranchesInTheirOrder) {
  const std::string bytes =
      File(OfFeatures(R"({"kind":"dense","outputs":1})") + "," + OfFeatures(R"({"kind":"relu"})"),
           kDense2, {1, 2, 10, /**/ 1, 10, 100, -1, 0, 0, 0.5, -0.5});
  // The first: 3 - 8 + 10 = 5; the second: 3, 0.
  EXPECT_THAT(Outputs(bytes, {3, -4}, 2), ElementsAre(5 + 30 + 0.5, -5.5));
}

TEST(Network, ATreeGoesLeftUpToTheThreshold) {
  const std::string bytes =
      File(OfFeatures(R"({"kind":"tree","outputs":2,"input":[1,0,0,0,0],"left":[1,-1,3,-1,-1],)"
                      R"("right":[2,0,4,1,2]})"),
           "", {1.5, 0, 7, 0, 0, /**/ 10, 11, 20, 21, 30, 31});
  EXPECT_THAT(Outputs(bytes, {0, 1.5}, 2), ElementsAre(10, 11));
  EXPECT_THAT(Outputs(bytes, {7, 2}, 2), ElementsAre(20, 21));
  EXPECT_THAT(Outputs(bytes, {std::nextafter(7.0F, 8.0F), 2}, 2), ElementsAre(30, 31));
}

TEST(Network, SoftLabelsAreInverseToTimes) {
  // Of probabilities 1/2, 1/8, 3/8 the times are 1, 4 and 4/3 times the first's.
  const std::string layer = R"({"kind":"soft_labels","default":0,"algorithms":[0,1,2]})";
  const std::vector<float> logits = {std::log(0.5F), std::log(0.125F), std::log(0.375F)};
  EXPECT_THAT(Outputs(File(OfFeatures(layer), "", {}), logits, 3),
              Pointwise(DoubleNear(1e-6), {0.0, 2.0, std::log2(4.0 / 3)}));
  // Widths 2 and 8 of the second algorithm: 4.9 is nearer to 2.
  const std::string widths =
      R"({"kind":"soft_labels","default":0,"algorithms":[1,0,1],"parameters":[2,0,8]})";
  EXPECT_THAT(Outputs(File(OfFeatures(widths), "", {}), {0, 0, 4.9F}, 3), ElementsAre(0, 0, 10));
  EXPECT_THAT(Outputs(File(OfFeatures(widths), "", {}), {0, 0, 5.1F}, 3), ElementsAre(10, 0, 0));
  EXPECT_THAT(Outputs(File(OfFeatures(widths), "", {}), {0, 0, 5}, 3), ElementsAre(0, 0, 10));
}

TEST(Network, MapsAreScaledConvolvedAndPooled) {
  std::vector<int32_t> tiles(DensityMap::kTiles);
  EXPECT_THAT(
      Outputs(File(OfMap(R"({"kind":"max_pool","size":128})"), "", {}), {0}, 1, MapOf(tiles)),
      ElementsAre(0));
  tiles[0] = 1023;              // log2(1024) = 10: the most
  tiles[127 * 128 + 127] = 31;  // 5
  const auto corners =
      Outputs(File(OfMap(R"({"kind":"max_pool","size":64})"), "", {}), {0}, 4, MapOf(tiles));
  EXPECT_THAT(corners, Pointwise(DoubleNear(1e-6), {1.0, 0.0, 0.0, 128.0 / 255}));
  // Sums over 3 x 3 in steps of two: the last corner is covered by that at 126.
  const std::string convolution =
      R"({"kind":"convolution","channels":1,"size":3,"stride":2},{"kind":"max_pool","size":32})";
  std::vector<float> ones(9, 1);
  ones.push_back(0.25);
  EXPECT_THAT(Outputs(File(OfMap(convolution), "", ones), {0}, 4, MapOf(tiles)),
              Pointwise(DoubleNear(1e-6), {1.25, 0.25, 0.25, 0.25 + 128.0 / 255}));
  // A kernel that is larger than what it covers: only its middle is not in the padding.
  std::vector<float> weights(25);
  std::iota(weights.begin(), weights.end(), 0.0F);
  weights.push_back(1);
  EXPECT_THAT(Outputs(File(OfMap(R"({"kind":"max_pool","size":128},)"
                                 R"({"kind":"convolution","channels":1,"size":5,"stride":3})"),
                           "", weights),
                      {0}, 1, MapOf(tiles)),
              ElementsAre(13));
}

Json Expected() {
  std::ifstream file(SPARSED_TEST_DATA "/model/network.json");
  return Json::parse(file, nullptr, /*allow_exceptions=*/false);
}

/// What tests/data/model/make_network.py had PyTorch and scikit-learn compute.
TEST(Network, ComputesWhatPyTorchAndScikitLearnDo) {
  const auto files = Model::ReadFiles(SPARSED_TEST_DATA "/model/network");
  ASSERT_TRUE(files.ok()) << files.status();
  const Json expected = Expected();
  std::vector<int32_t> tiles(DensityMap::kTiles);
  for (size_t i = 0; i < expected.at("tiles").size(); ++i) {
    tiles.at(expected["tiles"][i]) = expected["counts"][i];
  }
  const DensityMap map = MapOf(tiles);
  for (const char* const name : {"spmm", "sddmm", "spgemm", "building"}) {
    const Json& rows = expected.at(std::string(name) == "sddmm" ? "sddmm_rows" : "rows");
    ASSERT_GE(rows.size(), 6u);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto wanted = expected.at(name).at(i).get<std::vector<double>>();
      EXPECT_THAT(
          Outputs(files->at(std::string(name) + ".network"), rows[i], std::ssize(wanted), map),
          Pointwise(DoubleNear(1e-4), wanted))
          << name << ", row " << i;
    }
  }
}

TEST(Network, RefusesWhatIsNone) {
  const std::string good = File(OfFeatures(kDense2), "", {1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(Network::Load(good, 2, 2).ok());
  const auto tree = [](const std::string& nodes, int weights) {
    return File(OfFeatures(R"({"kind":"tree","outputs":1,)" + nodes + "}"), "",
                std::vector<float>(static_cast<size_t>(weights)));
  };
  const auto layer = [](const std::string& text, int weights = 0) {
    return File(OfFeatures(text), "", std::vector<float>(static_cast<size_t>(weights), 1));
  };
  ASSERT_TRUE(
      Network::Load(tree(R"("input":[0,0,0],"left":[1,-1,-1],"right":[2,0,1])", 5), 2, 1).ok());
  std::string many = R"({"kind":"relu"})";
  for (int i = 0; i < 64; ++i) many += R"(,{"kind":"relu"})";
  std::string labels = "0";
  for (int i = 0; i < 1000; ++i) labels += ",0";
  struct Case {
    std::string bytes;
    std::string sentence;
    int inputs = 2, outputs = 2;
  };
  const Case cases[] = {
      {"", "line of JSON"},
      {std::string(3'000'000, 'x'), "line of JSON"},
      {"{\n", "no JSON"},
      {"[]\n", "no network"},
      {good, "2 outputs, where 3 are said", 2, 3},
      {good, "fewer weights", 3, 2},
      {good, "more weights", 1, 2},
      {good.substr(0, good.size() - 1), "fewer weights"},
      {good + '\0', "more weights"},
      {File(OfFeatures(kDense2), "", {1, 2, 3, 4, 5, NAN}), "no number"},
      {File("", "", {}), "branches"},
      {File(R"({"of":"weather","layers":[]})", "", {}), "no branch of \"weather\""},
      {layer(R"({"kind":"guess"})"), "no layer \"guess\""},
      {layer(R"({"outputs":2})"), "kind"},
      {layer(R"({"kind":"dense","outputs":-1})"), "-1 is not 1 to"},
      {layer(R"({"kind":"dense","outputs":1.5})"), "no network"},
      {layer(R"({"kind":"dense","outputs":18446744073709551615})"), "is not 1 to"},
      {layer(R"({"kind":"dense","outputs":1000000})"), "fewer weights"},
      {File(OfFeatures(R"({"kind":"standardise"})"), "", {0, 1, 1, 1, 1, 1}), "offset"},
      {layer(many), "more than 64 layers"},
      {layer(R"({"kind":"max_pool","size":2})"), "is not 1 to 1"},
      {layer(R"({"kind":"convolution","channels":1,"size":2,"stride":1})", 5), "odd"},
      {layer(R"({"kind":"convolution","channels":1,"size":3,"stride":0})", 19), "is not 1 to 15"},
      {File(OfMap(R"({"kind":"convolution","channels":1024,"size":1,"stride":1})"), "",
            std::vector<float>(2048, 1)),
       "numbers between layers"},
      {File(OfMap(R"({"kind":"convolution","channels":1,"size":15,"stride":1})"), "",
            std::vector<float>(226, 1)),
       "covers too much"},
      {tree(R"("input":[0,0,0],"left":[1,-1,-1],"right":[2,0])", 5), "input, a left and a right"},
      {tree(R"("input":[2,0,0],"left":[1,-1,-1],"right":[2,0,1])", 5), "2 is not 0 to 1"},
      {tree(R"("input":[0,0,0],"left":[0,-1,-1],"right":[2,0,1])", 5), "before its parent"},
      {tree(R"("input":[0,0,0],"left":[1,-1,-1],"right":[0,0,1])", 5), "is not 1 to 2"},
      {tree(R"("input":[0,0,0],"left":[1,-1,-1],"right":[3,0,1])", 5), "is not 1 to 2"},
      {tree(R"("input":[0,0,0],"left":[1,-1,-1],"right":[2,0,7])", 5), "is not 1 to 1"},
      {tree(R"("input":[],"left":[],"right":[])", 0), "input, a left and a right"},
      {layer(R"({"kind":"soft_labels","default":2,"algorithms":[0,1]})"), "2 is not 0 to 1"},
      {layer(R"({"kind":"soft_labels","default":0,"algorithms":[0,2]})"), "2 is not 0 to 1"},
      {layer(R"({"kind":"soft_labels","default":0,"algorithms":[]})"), "no candidates"},
      {layer(R"({"kind":"soft_labels","default":0,"algorithms":[)" + labels + "]}"),
       "more than 1000 candidates"},
      {layer(R"({"kind":"soft_labels","default":0,"algorithms":[0,0],"parameters":[1]})"),
       "a parameter for each"},
  };
  for (const Case& one : cases) {
    const auto network = Network::Load(one.bytes, one.inputs, one.outputs);
    EXPECT_TRUE(absl::IsInvalidArgument(network.status()))
        << one.bytes.substr(0, 200) << ": " << network.status();
    EXPECT_THAT(std::string(network.status().message()), HasSubstr(one.sentence))
        << one.bytes.substr(0, 200);
  }
  const auto network = Network::Load(good, 2, 2);
  const std::vector<float> long_row(3), huge(2, 3e38F);
  EXPECT_TRUE(absl::IsInternal((*network)->Predict(long_row, DensityMap()).status()));
  EXPECT_TRUE(absl::IsInternal((*network)->Predict(huge, DensityMap()).status()))
      << "the sums are no numbers";
}

TEST(Network, ABytesDamageIsRefusedOrChangesNumbersAlone) {
  const auto files = Model::ReadFiles(SPARSED_TEST_DATA "/model/network");
  ASSERT_TRUE(files.ok()) << files.status();
  for (const char* const name : {"spgemm.network", "sddmm.network"}) {
    const std::string& good = files->at(name);
    const int outputs = std::string_view(name) == "spgemm.network" ? 4 : 2;
    for (size_t i = 0; i < good.size(); ++i) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
      const auto network = Network::Load(bytes, 8, outputs);
      if (!network.ok()) continue;
      const auto said = (*network)->Predict(std::vector<float>(8, 3), DensityMap());
      if (said.ok()) {
        EXPECT_EQ(std::ssize(*said), outputs);
      }
    }
  }
}

/// A model of networks needs no libxgboost.
TEST(NetworkModel, EstimatesThroughTheSelector) {
  const auto model = Model::Load(SPARSED_TEST_DATA "/model/network");
  ASSERT_TRUE(model.ok()) << model.status();
  Features features;
  features.rows = features.cols = 1000;
  features.nnz = 50'000;
  features.row_nonzeros_mean = 50;
  features.distance_histogram[0] = 1;
  std::vector<int32_t> tiles(DensityMap::kTiles);
  for (size_t i = 0; i < tiles.size(); i += 129) tiles[i] = 400;
  features.density_map = MapOf(tiles);

  const ProblemSignature c = SignatureOf({Operation::kSpmm, false, ElementType::kF32, 128});
  const auto estimates = (*model)->EstimateTimes(c, features);
  ASSERT_TRUE(estimates.ok()) << estimates.status();
  ASSERT_EQ(estimates->size(), 3u);
  Selector selector;
  selector.Use(DeviceKind::kCpu, *model);
  const std::vector<Candidate> chosen = selector.CandidatesFor(c, features);
  // A pipeline that no rule has is a candidate by the model alone.
  ASSERT_FALSE(HasRule(DeviceKind::kCpu, "plain_sort(warps=16,run=1,lanes=1)"));
  ASSERT_TRUE(HasRule(DeviceKind::kCpu, "aspt(panel=64,min_dense=2)"));
  for (const Estimate& estimate : *estimates) {
    const auto found = std::ranges::find(chosen, estimate.pipeline, &Candidate::pipeline);
    ASSERT_NE(found, chosen.end()) << estimate.pipeline;
    ASSERT_TRUE(found->promise);
    EXPECT_EQ(found->promise->model, "network");
    EXPECT_DOUBLE_EQ(found->promise->best().log2_ratio, estimate.log2_ratio);
  }

  // The map counts: without it the estimates are others.
  const Problem square{Operation::kSpgemm, false, ElementType::kF32, 0};
  const auto with_map = (*model)->EstimateTimes(SignatureOf(square), features);
  Features empty = features;
  empty.density_map = DensityMap();
  const auto without = (*model)->EstimateTimes(SignatureOf(square), empty);
  ASSERT_TRUE(with_map.ok() && without.ok());
  EXPECT_NE((*with_map)[1].log2_ratio, (*without)[1].log2_ratio);
  // Of a kernel with two parameters the one that the model prefers is promised.
  for (const Candidate& candidate :
       selector.SpgemmCandidatesFor(square, true, &features, &features)) {
    if (candidate.kernel != "cpu.coo.column_parts" || candidate.forbidden) continue;
    ASSERT_TRUE(candidate.promise);
    EXPECT_LT(candidate.promise->best().log2_ratio, 9);
  }
}

TEST(NetworkModel, RefusesWhatDoesNotFit) {
  const auto read = Model::ReadFiles(SPARSED_TEST_DATA "/model/network");
  ASSERT_TRUE(read.ok()) << read.status();
  Model::Files files = *read;
  files.at("spgemm.network")[files.at("spgemm.network").size() / 2] ^= 1;
  EXPECT_THAT(std::string(Model::FromFiles(files).status().message()),
              HasSubstr("spgemm.network is damaged"));
  files = *read;
  std::string& manifest = files.at("manifest.json");
  const size_t at = manifest.find("\"kind\": \"network\"");
  ASSERT_NE(at, std::string::npos);
  manifest.replace(at, 17, "\"kind\": \"oracle\"");
  EXPECT_THAT(std::string(Model::FromFiles(files).status().message()),
              HasSubstr("spmm.network is of no kind \"oracle\""));
}

}  // namespace
}  // namespace sparsed::engine
