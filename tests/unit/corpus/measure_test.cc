// Patterns are measured as a server prepares them.
#include "tools/corpus/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "tools/corpus/meshes.h"
#include "tools/corpus/records.h"

namespace sparsed::corpus {
namespace {

MeasureOptions Quick(const std::vector<std::string>& signatures) {
  MeasureOptions options;
  options.trial_budget_ms = 5;
  for (const std::string& text : signatures) {
    options.signatures.push_back(ParseSignature(text, "f32").value());
  }
  return options;
}

TEST(ParseSignature, TakesWhatClientsWrite) {
  EXPECT_EQ(ToString(ParseSignature("spmm:128", "f32").value()), "spmm f32 k<=128 cpu");
  EXPECT_EQ(ToString(ParseSignature("spmm^T:64", "f64").value()), "spmm^T f64 k<=64 cpu");
  EXPECT_EQ(ToString(ParseSignature("spmm:64:tf32", "f32").value()), "spmm tf32 k<=64 cuda");
  EXPECT_EQ(ToString(ParseSignature("sddmm:32", "bf16").value()), "sddmm bf16 k<=32 cpu");
  EXPECT_EQ(ToString(ParseSignature("spgemm", "f32").value()), "spgemm f32 cpu");
  for (const char* const text : {"", "spmm", "spmm:", "spmm:100", "spmm:128:", "spmm:64:tf16",
                                 "spgemm:8", "sddmm^T:8", "dense:8", "spmm:8:tf32:tf32"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseSignature(text, "f32").status())) << text;
  }
  EXPECT_FALSE(ParseSignature("spmm:64:tf32", "f64").ok());
  EXPECT_FALSE(ParseSignature("spmm:64", "i64").ok());
}

TEST(Measurer, MeasuresEverySignature) {
  const MeasureOptions options = Quick({"spmm:32", "sddmm:32", "spgemm"});
  const auto measurer = Measurer::Open(options).value();
  EXPECT_NE(measurer->device_model(), "");
  EXPECT_TRUE(measurer->device_status().ok());
  const Pattern pattern = Stencil({60, 60}, Neighbours::kBox);
  // Twice: nothing is left of the first time.
  for (int i = 0; i < 2; ++i) {
    const Measured measured = measurer->Measure(pattern).value();
    ASSERT_NE(measured.features, nullptr);
    EXPECT_EQ(measured.features->nnz, pattern.nnz());
    std::set<std::string> signatures;
    for (const engine::Measurement& m : measured.measurements) {
      signatures.insert(ToString(m.signature));
      EXPECT_GT(m.median_ms, 0);
      EXPECT_GT(m.runs, 0);
    }
    EXPECT_EQ(signatures.size(), 3U);
  }
}

TEST(Measurer, ExploresWhatRulesLeaveOut) {
  MeasureOptions options = Quick({"spmm:32", "spgemm"});
  // So few nonzeros that rules let nothing through.
  const Pattern pattern = Stencil({30, 30}, Neighbours::kStar);
  const auto pipelines_of = [&](const Measured& measured) {
    std::set<std::string> pipelines;
    for (const engine::Measurement& m : measured.measurements) {
      pipelines.insert(m.signature.operation == Operation::kSpmm ? m.pipeline : m.kernel);
    }
    return pipelines;
  };
  const auto by_rules = pipelines_of((*Measurer::Open(options))->Measure(pattern).value());
  options.explore = true;
  const auto all = pipelines_of((*Measurer::Open(options))->Measure(pattern).value());
  EXPECT_FALSE(by_rules.contains("transpose"));
  EXPECT_TRUE(all.contains("transpose"));
  EXPECT_TRUE(std::ranges::any_of(
      all, [](const std::string& pipeline) { return pipeline.starts_with("lsh_cluster(force,"); }));
  EXPECT_GT(all.size(), by_rules.size() + 4);
}

TEST(Measurer, SaysWhatDidNotFit) {
  MeasureOptions options = Quick({"spmm:32"});
  options.memory_bytes = 1 << 20;
  const auto measurer = Measurer::Open(options).value();
  EXPECT_TRUE(
      absl::IsResourceExhausted(measurer->Measure(Stencil({400, 400}, Neighbours::kBox)).status()));
  EXPECT_TRUE(measurer->Measure(Stencil({20, 20}, Neighbours::kBox)).ok());
}

TEST(Measurer, NeedsItsDevice) {
  MeasureOptions options = Quick({"spmm:32"});
  options.device = {DeviceKind::kCuda, 63};
  EXPECT_FALSE(Measurer::Open(options).ok());
}

TEST(Records, NameWhatTheyHold) {
  engine::Measurement measurement;
  measurement.signature = ParseSignature("spmm:32", "f32").value();
  measurement.k = 24;
  measurement.pipeline = "aspt";
  measurement.median_ms = 0.5;
  measurement.baseline_ms = 1.5;
  const nlohmann::ordered_json json = ToJson(measurement);
  EXPECT_EQ(json["operation"], "spmm");
  EXPECT_EQ(json["class"], 32);
  EXPECT_EQ(json["k"], 24);
  EXPECT_EQ(json["csr_ms"], 1.5);
  BuildContext context;
  context.memory = &HeapMemory();
  const Pattern pattern = Stencil({256, 1}, Neighbours::kStar);
  const Features features = ComputeFeatures(pattern.view(), context).value();
  EXPECT_FALSE(ToJson(features, false).contains("density_map"));
  const nlohmann::ordered_json with_map = ToJson(features, true);
  EXPECT_EQ(with_map["nnz"], pattern.nnz());
  EXPECT_EQ(with_map["distance_histogram"][0], pattern.nnz() - pattern.rows);
  // Two rows and columns to a tile.
  int64_t tiles = 0, sum = 0;
  const auto& map = with_map["density_map"];
  for (size_t i = 0; i < map.size(); i += 2) {
    tiles += map[i].get<int64_t>() + 1;
    sum += map[i + 1].get<int64_t>();
  }
  EXPECT_EQ(tiles, DensityMap::kTiles);
  EXPECT_EQ(sum, pattern.nnz());
}

}  // namespace
}  // namespace sparsed::corpus
