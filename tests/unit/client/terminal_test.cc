// What people see: pictures, tables, bars.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/explain_report.h"
#include "client/cli/features_report.h"
#include "client/cli/json.h"
#include "client/cli/matrix_market.h"
#include "client/cli/measurements_report.h"
#include "client/cli/npy.h"
#include "client/cli/product_text.h"
#include "client/cli/progress_bar.h"
#include "client/cli/report.h"
#include "client/cli/spy_picture.h"
#include "client/cli/top_page.h"

namespace sparsed::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

CsrMatrix Diagonal(int64_t n, int64_t cols) {
  CsrMatrix matrix;
  matrix.rows = n;
  matrix.cols = cols;
  matrix.row_offsets = {0};
  for (int64_t i = 0; i < n; ++i) {
    if (i < cols) matrix.column_indices.push_back(static_cast<int32_t>(i));
    matrix.row_offsets.push_back(matrix.nnz());
  }
  matrix.values = std::vector<float>(matrix.column_indices.size(), 1);
  return matrix;
}

TEST(SpyPicture, SmallMatricesHaveADotAnElement) {
  const SpyDrawing drawing = SpyPicture(Diagonal(8, 8), {.max_width = 40, .max_height = 20});
  EXPECT_THAT(drawing.lines,
              ElementsAre("   0  7", "  ┌────┐", "0 │⠑⢄  │", "7 │  ⠑⢄│", "  └────┘"));
  EXPECT_EQ(drawing.dot_threshold, 1);
}

TEST(SpyPicture, Ascii) {
  const SpyDrawing drawing =
      SpyPicture(Diagonal(8, 8), {.max_width = 40, .max_height = 20, .ascii = true});
  EXPECT_THAT(drawing.lines,
              ElementsAre("   0  7", "  +----+", "0 |@@  |", "7 |  @@|", "  +----+"));
}

TEST(SpyPicture, FitsAnyMatrixIntoAnySize) {
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 0}, {0, 5}, {5, 0}, {1, 1}, {100000, 3}, {3, 100000}, {1000, 1000}}) {
    for (const bool ascii : {false, true}) {
      const SpyDrawing drawing =
          SpyPicture(Diagonal(rows, cols), {.max_width = 30, .max_height = 10, .ascii = ascii});
      EXPECT_LE(drawing.lines.size(), 13u);
      EXPECT_GE(drawing.lines.size(), 4u);
      if (!ascii) continue;
      for (const std::string& line : drawing.lines) EXPECT_LE(line.size(), 30u) << line;
    }
  }
}

TEST(SpyPicture, DensityDecidesWhereAllDotsWouldBeOn) {
  CsrMatrix full;
  full.rows = full.cols = 400;
  full.row_offsets = {0};
  for (int row = 0; row < 400; ++row) {
    for (int col = 0; col < 400; ++col) {
      if (row % 40 != 0 && col >= 200 && col % 2 == 0) continue;  // the right half is thinner
      full.column_indices.push_back(col);
    }
    full.row_offsets.push_back(full.nnz());
  }
  full.values = std::vector<float>(full.column_indices.size(), 1);
  const SpyDrawing drawing = SpyPicture(full, {.max_width = 46, .max_height = 10});
  EXPECT_GT(drawing.dot_threshold, 1);
  EXPECT_THAT(drawing.lines[4], HasSubstr("⣿⣿⣿⣿⣿"));
  EXPECT_THAT(drawing.lines[4], HasSubstr("⠀⠀⠀⠀⠀"));
}

TEST(SpyPicture, Colours) {
  const SpyDrawing drawing =
      SpyPicture(Diagonal(8, 8), {.max_width = 40, .max_height = 20, .colour = true});
  EXPECT_THAT(drawing.lines[2], HasSubstr("\033[38;5;"));
  EXPECT_THAT(drawing.lines[2], HasSubstr("\033[0m"));
}

/// Ten nonzeros in each tile of the diagonal.
MatrixFeatures DiagonalFeatures() {
  MatrixFeatures features;
  features.values = {{"rows", "One paper, Table 1", "rows", 1280},
                     {"density", "One paper, Table 1", "nonzeros / (rows x columns)", 0.000078125},
                     {"nnz", "Another, Table 2", "nonzeros", 1280}};
  features.distances = {{1, 1, 30}, {2, 3, 10}, {4, 15, 0}};
  features.density_map.resize(128 * 128);
  for (int i = 0; i < 128; ++i) features.density_map[i * 129] = 10;
  return features;
}

TEST(DensityPicture, DrawsTilesWhereTheyAre) {
  const SpyDrawing drawing = DensityPicture(DiagonalFeatures(), 1280, 1280, {});
  // 128 x 128 dots.
  ASSERT_EQ(drawing.lines.size(), 32u + 3u);
  EXPECT_THAT(drawing.lines[2], HasSubstr("0 │⠑⢄ "));
  EXPECT_THAT(drawing.lines[33], HasSubstr(" ⠑⢄│"));
  MatrixFeatures small;
  small.density_map.resize(128 * 128);
  for (int i = 0; i < 8; ++i) small.density_map[i * 16 * 129] = 1;  // 8 rows: 16 tiles each
  EXPECT_EQ(DensityPicture(small, 8, 8, {.max_width = 40, .max_height = 20}).lines,
            SpyPicture(Diagonal(8, 8), {.max_width = 40, .max_height = 20}).lines);
}

TEST(DensityPicture, TakesWhateverAServerSays) {
  MatrixFeatures features;
  features.density_map.assign(128 * 128, -1);
  features.density_map.back() = 7;
  for (const int64_t rows : {0, 1, 4, 100, 127, 128, 1'000'000}) {
    for (const int64_t cols : {0, 1, 2, 127, 1'000'000}) {
      EXPECT_GE(DensityPicture(features, rows, cols, {}).lines.size(), 4u);
    }
  }
}

TEST(FeaturesReport, TablesBySourceAndJsonByName) {
  MatrixInfo info;
  info.name = "m";
  info.rows = info.cols = 1280;
  Report report{Json::object(), ""};
  AddFeatures(info, DiagonalFeatures(), report);
  EXPECT_THAT(report.text, HasSubstr("One paper, Table 1\n"
                                     "FEATURE       VALUE  MEANING\n"
                                     "rows          1,280  rows\n"
                                     "density  7.8125e-05  nonzeros / (rows x columns)\n"));
  EXPECT_THAT(report.text, HasSubstr("\n\nAnother, Table 2\n"));
  EXPECT_THAT(report.text, HasSubstr("2 - 3"));
  EXPECT_THAT(report.text, HasSubstr("25.0 %"));
  EXPECT_THAT(report.text, HasSubstr("Density"));
  EXPECT_THAT(report.text, HasSubstr("10 rows x 10 columns\n")) << "of a tile";
  EXPECT_EQ(report.json["features"]["density"], 0.000078125);
  EXPECT_EQ(report.json["distance_histogram"][1]["most"], 3);
  EXPECT_EQ(report.json["density_map"].size(), 128u);
  EXPECT_EQ(report.json["density_map"][127][127], 10);

  Report none{Json::object(), ""};
  AddFeatures(info, MatrixFeatures(), none);
  EXPECT_TRUE(none.json["features"].is_null());
  EXPECT_THAT(none.text, HasSubstr("no features yet"));
}

TEST(MeasurementsCsv, ALineForEachWithTheFeaturesOfItsPattern) {
  Measurement m;
  m.signature = {Operation::kSpmm, true, 64};
  m.pipeline = "aspt(panel=64,min_dense=2)";
  m.kernel = "cpu.aspt";
  m.device = "cpu";
  m.median_ms = 1.5;
  m.runs = 9;
  m.k = 32;
  m.roofline_ms = 0.25;
  m.baseline_ms = 3;
  m.preparation_ms = 1200;
  m.roofline_share = 0.25 / 1.5;
  m.model = "A Processor, \"fast\"";
  Measurement old = m;
  old.model = "";
  old.roofline_share = 1.3;
  old.roofline_ms = old.baseline_ms = 0;
  old.type = ValueType::kF16;
  old.censored = true;
  Measurement product = m;
  product.right_pattern_hash = "cc";
  product.transpose_left = true;
  const PatternMeasurements known{"aa", DiagonalFeatures(), {m, old}};
  const PatternMeasurements unknown{"bb", {}, {product}, /*past=*/true};
  EXPECT_EQ(MeasurementsCsv({known, unknown}),
            "pattern_hash,rows,density,nnz,operation,transposed,type,allow_tf32,class,k,recipe,"
            "kernel,device,median_ms,preparation_ms,floor_ms,csr_ms,runs,model,censored,"
            "right_pattern_hash,transpose_left,transpose_right,past\n"
            "aa,1280,7.8125e-05,1280,spmm,1,f32,0,64,32,\"aspt(panel=64,min_dense=2)\",cpu.aspt,"
            "cpu,1.5,1200,0.25,3,9,\"A Processor, \"\"fast\"\"\",0,,0,0,0\n"
            "aa,1280,7.8125e-05,1280,spmm,1,f16,0,64,32,\"aspt(panel=64,min_dense=2)\",cpu.aspt,"
            "cpu,1.5,1200,,,9,,1,,0,0,0\n"
            "bb,,,,spmm,1,f32,0,64,32,\"aspt(panel=64,min_dense=2)\",cpu.aspt,cpu,1.5,1200,0.25,3,"
            "9,\"A Processor, \"\"fast\"\"\",0,cc,1,0,1\n");
  EXPECT_EQ(MeasurementsCsv({}),
            "pattern_hash,operation,transposed,type,allow_tf32,class,k,recipe,kernel,device,"
            "median_ms,preparation_ms,floor_ms,csr_ms,runs,model,censored,right_pattern_hash,"
            "transpose_left,transpose_right,past\n");
  product.factors = "csr * dia";
  EXPECT_EQ(ToJson(PatternMeasurements{"bb", {}, {product}})["measurements"][0]["factors"],
            "csr * dia");
  EXPECT_THAT(MeasurementsText({known}), HasSubstr("pattern aa\nSIGNATURE"));
  EXPECT_THAT(MeasurementsText({unknown}),
              HasSubstr("pattern bb, which no matrix has any more\nSIGNATURE"));
  EXPECT_THAT(MeasurementsText({known}), HasSubstr(" 17 % "));
  EXPECT_THAT(MeasurementsText({known}), HasSubstr(" in cache "));
  EXPECT_THAT(RooflineShare(0.5, "memory"), "50 %");
  EXPECT_THAT(RooflineShare(0.5, "cache"), "in cache") << "a share of the wrong roof says nothing";
  EXPECT_THAT(RooflineShare(0, "memory"), "");
  EXPECT_THAT(MeasurementsText({}), HasSubstr("nothing was measured yet"));
}

TEST(ProductText, SaysTheProductAndBothFactorsAndNoHash) {
  const PatternNames names = {{"left", "a"}, {"right", "b"}};
  PlanInfo plan;
  plan.signature = {Operation::kSpgemm, false, 0};
  plan.pipeline = "csr * dia right";
  plan.factors = "csr * dia";
  plan.right_pattern_hash = "right";
  EXPECT_EQ(PipelineText(plan), "csr * dia");
  EXPECT_EQ(SignatureText(plan, "left", names), "spgemm S * b");
  EXPECT_EQ(SignatureText(plan, "left", {}), "spgemm S * another");
  EXPECT_EQ(SignatureText(plan, "right", names), "spgemm S * S");
  plan.transpose_left = true;
  EXPECT_EQ(SignatureText(plan, "left", names), "spgemm S^T * b");
  plan.transpose_right = true;
  EXPECT_EQ(SignatureText(plan, "left", names), "spgemm S^T * b^T");

  Decision decision;
  decision.signature = {Operation::kSpmm, true, 64};
  decision.pipeline = "aspt(panel=64)";
  EXPECT_EQ(PipelineText(decision), "aspt(panel=64)");
  EXPECT_EQ(SignatureText(decision, "left", names), "spmm^T K=64") << "of no sparse product";

  Measurement old;  // an older server's
  old.signature = {Operation::kSpgemm, false, 0};
  old.pipeline = "csr * csr";
  EXPECT_EQ(PipelineText(old), "csr * csr");
  EXPECT_EQ(SignatureText(old, "left", names), "spgemm");
}

class GenerateTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return testing::TempDir() + name; }
};

TEST_F(GenerateTest, DenseNumbersAreTheSameForTheSameSeed) {
  const auto make = [this](uint64_t seed) {
    const auto report = GenerateDense({"7x3", Path("g.npy"), "f32", seed});
    EXPECT_TRUE(report.ok()) << report.status();
    const auto array = ReadNpy(Path("g.npy"), ValueType::kF32);
    EXPECT_TRUE(array.ok()) << array.status();
    EXPECT_EQ(array->rows, 7);
    EXPECT_EQ(array->cols, 3);
    return std::get<std::vector<float>>(array->values);
  };
  const std::vector<float> first = make(1);
  for (const float value : first) EXPECT_LT(std::abs(value), 1.0F);
  EXPECT_EQ(make(1), first);
  EXPECT_NE(make(2), first);
  for (const char* extent : {"", "7", "7x", "x3", "0x3", "7x3x1", "-1x3", "7x99999999999"}) {
    EXPECT_EQ(GenerateDense({extent, Path("no.npy")}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << extent;
  }
}

TEST_F(GenerateTest, MatricesHaveAsManyNonzerosInEachRow) {
  ASSERT_TRUE(GenerateMatrix({"50x20", {Path("g.mtx.gz")}, 6, 1}).ok());
  const auto matrix = ReadMatrixMarket(Path("g.mtx.gz"), ValueType::kF32);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_EQ(matrix->rows, 50);
  EXPECT_EQ(matrix->cols, 20);
  for (int64_t row = 0; row < 50; ++row) {
    EXPECT_EQ(matrix->row_offsets[row + 1] - matrix->row_offsets[row], 6);
  }
  for (const char* name : {"g.npz", "g.txt", "g.npy"}) {
    ASSERT_TRUE(GenerateMatrix({"50x20", {Path(name)}, 6, 1}).ok());
    ReadOptions options;
    options.shape = MatrixShape{50, 20};
    options.type = ValueType::kF32;
    const auto other = ReadMatrixFile(Path(name), options);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(other->matrix.row_offsets, matrix->row_offsets) << name;
    EXPECT_EQ(other->matrix.column_indices, matrix->column_indices) << name;
    EXPECT_TRUE(other->matrix.values == matrix->values) << name;
  }
  EXPECT_TRUE(GenerateMatrix({"5x5", {Path("g.mtx")}, 5, 1}).ok()) << "a full one";
  EXPECT_TRUE(GenerateMatrix({"5x5", {Path("g.mtx")}, 0, 1}).ok()) << "an empty one";
  EXPECT_EQ(GenerateMatrix({"5x5", {Path("g.mtx")}, 6, 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Table, AlignsNumbersRightAndTextLeft) {
  Table table({"NAME", "ROWS"});
  table.Add({"a", "7"});
  table.Add({"größe", "1,234"});
  EXPECT_EQ(table.Text(), "NAME    ROWS\na          7\ngröße  1,234\n");
}

/// As on a terminal of that many columns.
class Width {
 public:
  explicit Width(int columns) { Style().width = columns; }
  Width(const Width&) = delete;
  Width& operator=(const Width&) = delete;
  ~Width() { Style() = TextStyle(); }
};

size_t WidestLine(const std::string& text) {
  size_t widest = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    widest = std::max(widest, end - begin);
    begin = end + 1;
  }
  return widest;
}

Measurement Tried(const std::string& pipeline) {
  Measurement m;
  m.signature = {Operation::kSddmm, false, 128};
  m.pipeline = pipeline;
  m.kernel = "cpu.aspt.panel_dot";
  m.device = "cuda:0";
  m.median_ms = 1851.967;
  m.baseline_ms = 3763.894;
  m.preparation_ms = 12851.967;
  m.gflops = 1012.5;
  m.runs = 21;
  m.k = 128;
  m.roofline_share = 0.5;
  m.roof = "memory";
  return m;
}

TEST(Table, LeavesOutParametersThenColumnsWhereTheTerminalIsNarrow) {
  const std::string pipeline =
      "lsh_cluster(siglen=128,bsize=2) > aspt(panel=64,min_dense=2) > lsh_cluster(remainder)";
  const Table table = MeasurementsTable({Tried("csr"), Tried(pipeline)}, "hash");
  EXPECT_THAT(table.Text(), HasSubstr(pipeline));
  {
    const Width wide(500);
    EXPECT_THAT(table.Text(), HasSubstr(pipeline));
  }
  const Width narrow(80);
  EXPECT_LE(WidestLine(table.Text()), 80u) << table.Text();
  EXPECT_THAT(table.Text(), HasSubstr("lsh_cluster > aspt > lsh_cluster"));
  EXPECT_THAT(table.Text(), HasSubstr("MEDIAN ms"));
  Style().wide = true;
  EXPECT_THAT(table.Text(), HasSubstr(pipeline));
}

TEST(Wrapped, BreaksBetweenWords) {
  EXPECT_EQ(Wrapped("one two three", "  "), "one two three\n");
  const Width narrow(8);
  EXPECT_EQ(Wrapped("one two three", "  "), "one two\n  three\n");
  EXPECT_EQ(Wrapped("  one two", "    "), "  one\n    two\n");
  EXPECT_EQ(Wrapped("undividedword x", "  "), "undividedword\n  x\n");
  EXPECT_EQ(Wrapped("", "  "), "\n");
  EXPECT_EQ(Wrapped("12345678", ""), "12345678\n");
}

Explanation Explained() {
  Explanation e;
  e.device = "cpu";
  e.cache_bytes = 1 << 20;
  e.line_bytes = 64;
  e.bytes_per_second = 1e10;
  e.flops_per_second = 1e11;
  e.reordered_by = "breadth_first";
  ExplainedOperation o;
  o.k = 100;
  o.limit = "cache_misses";
  o.stored = {.flops = 1e9,
              .footprint_bytes = 1e9,
              .partition_bytes = 2e9,
              .moved_bytes = 4e9,
              .operand_footprint_bytes = 1e9,
              .operand_moved_bytes = 3e9,
              .estimate = true};
  o.served = o.reordered = o.stored;
  o.reordered.moved_bytes = 1.5e9;
  o.greatest_gain = 4;
  o.known_gain = 2.7;
  o.measured = "cpu.csr.row_balanced on csr";
  o.plan_k = o.trial_k = 128;
  o.trial_ms = 5.5;
  e.operations = {o};
  return e;
}

TEST(Explanation, SaysWhetherSeveralGpusPay) {
  Explanation e = Explained();
  ExplainedOperation& o = e.operations[0];
  ExplainedDistribution whole, columns;
  whole.estimated_ms = 2;
  columns.distribution = Distribution::kColumns;
  columns.gpus = 2;
  const auto says = [&](double distributed_ms, double spread_ms) {
    columns.estimated_ms = distributed_ms;
    o.distributions = {whole, columns};
    o.spread_ms = spread_ms;
    return ExplanationText("m", e, false);
  };
  const Width wide(1000);
  EXPECT_THAT(says(1, 0.5), HasSubstr("ms on one: it pays\n"));
  EXPECT_THAT(says(1, 5), HasSubstr("it does not pay; hold it distributed"));
  EXPECT_THAT(says(3, 5), HasSubstr("it does not pay, and would not if it were held distributed"));
}

TEST(Explanation, SaysWhatWasMeasuredAndOfWhichK) {
  Explanation e = Explained();
  std::string text = ExplanationText("m", e, false);
  EXPECT_THAT(text, HasSubstr("5.5000 (K=128)\n"));
  EXPECT_THAT(text, HasSubstr("  served by the plan of spmm K=128, cpu.csr.row_balanced on csr, "
                              "which took 5.5000 ms for K=128; K=100 itself was not timed"));
  e.operations[0].measured_ms = 5.5;
  e.operations[0].roofline_share = 1.7;
  e.operations[0].roof = "cache";
  text = ExplanationText("m", e, false);
  EXPECT_THAT(
      text, HasSubstr("measured when it was tuned: 5.5000 ms by cpu.csr.row_balanced on csr, where "
                      "caches"));
  EXPECT_THAT(text, HasSubstr(", cache of 1.0 MiB"));
  text = ExplanationText("m", e, true);
  EXPECT_THAT(text, HasSubstr(", assumed cache of 1.0 MiB"));
  EXPECT_THAT(text, HasSubstr("row_balanced on csr, with the device's own cache and not the one"));
  EXPECT_THAT(text, testing::Not(HasSubstr("where caches bound it")));
  e.operations[0].trial_ms = e.operations[0].measured_ms = 0;
  EXPECT_THAT(ExplanationText("m", e, false), HasSubstr("on csr, which was not timed\n"));
  const Width narrow(80);
  EXPECT_LE(WidestLine(ExplanationText("m", Explained(), false)), 80u)
      << ExplanationText("m", Explained(), false);
}

TEST(Explanation, SaysFirstOfASmallMatrixThatNothingIsWorthDoing) {
  Explanation e = Explained();
  const char* const small = "m is small: its products need 4.00 us or less";
  EXPECT_THAT(ExplanationText("m", e, false), testing::Not(HasSubstr("is small")));
  e.operations[0].served.flops = 1e3;
  e.operations[0].served.moved_bytes = 4e4;  // at 10 GB/s
  EXPECT_THAT(ExplanationText("m", e, false), testing::StartsWith(small));
  TransportTimes ring;
  ring.requests = 8;
  ring.mean.kernel = std::chrono::microseconds(100);
  ring.mean.total = std::chrono::microseconds(150);
  e.requests.requests = 8;
  EXPECT_THAT(ExplanationText("m", e, false), testing::Not(HasSubstr("where requests took")));
  e.requests.transports = {ring};
  EXPECT_THAT(ExplanationText("m", e, false),
              testing::StartsWith(std::string(small) + " where requests took 150 us in the mean"));
  e.requests.transports[0].mean.total = std::chrono::milliseconds(12);
  EXPECT_THAT(ExplanationText("m", e, false), testing::Not(HasSubstr("is small")))
      << "they wait for something";
  e.requests.transports[0].mean.total = std::chrono::microseconds(150);
  e.requests.transports[0].mean.kernel = std::chrono::milliseconds(1);
  EXPECT_THAT(ExplanationText("m", e, false), testing::Not(HasSubstr("is small")))
      << "whatever the model says";
  e.requests.transports.clear();
  e.operations[0].measured_ms = 5.5;
  EXPECT_THAT(ExplanationText("m", e, false), testing::Not(HasSubstr("is small"))) << "measured";
}

TEST(Explanation, SaysWhereRequestsTakeAnotherTimeThanTheTrial) {
  Explanation e = Explained();
  ExplainedOperation& o = e.operations[0];
  o.measured_ms = 5.5;
  const Width wide(1000);
  for (const double alike : {0.0, 4.0, 8.0}) {
    o.recent_kernel_ms = alike;
    EXPECT_THAT(ExplanationText("m", e, false), testing::Not(HasSubstr("in the last requests")));
  }
  o.recent_kernel_ms = 16.5;
  EXPECT_THAT(ExplanationText("m", e, false),
              HasSubstr("  in the last requests with this K its kernel took 16.5000 ms (the "
                        "median), 3.0 times that: "));
  o.recent_kernel_ms = 2;
  EXPECT_THAT(
      ExplanationText("m", e, false),
      HasSubstr(
          "took 2.0000 ms (the median): the machine was busy when it was tuned; have it tuned "
          "again (sparsectl prepare m --retune)"));
  e.requests.requests = 8;
  EXPECT_THAT(ExplanationText("m", e, false), testing::Not(HasSubstr("transpose")));
  e.requests.transposed = 3;
  EXPECT_THAT(ExplanationText("m", e, false), HasSubstr("3 of them multiplied with the transpose"));
}

TEST(Explanation, SaysWhatLimitsWhatIsInCache) {
  Explanation e = Explained();
  ExplainedOperation& o = e.operations[0];
  o.limit = "cache";
  o.inner = o.inner_served = o.stored;
  o.inner_reordered = o.reordered;
  const Width wide(1000);
  std::string text = ExplanationText("m", e, false);
  EXPECT_THAT(text,
              HasSubstr("in cache: all 953.7 MiB fit the last level cache, so that memory "
                        "does not bound it; what does, its own rate, arithmetic or neither, is "
                        "not known before that rate is measured: sparsectl calibrate"));
  EXPECT_THAT(text, testing::Not(HasSubstr("a reordering")));
  // Nothing is known of the roof: its columns are gone.
  EXPECT_THAT(text, testing::Not(HasSubstr("BEST ms")));
  EXPECT_THAT(text, testing::Not(HasSubstr("what the ROOF")));
  EXPECT_THAT(text, HasSubstr("MEASURED ms"));
  e.cache_bytes_per_second = 1e11;
  e.inner_cache_bytes = 2 << 20;
  o.cache_limit = "cache_bandwidth";
  EXPECT_THAT(ExplanationText("m", e, false),
              testing::AllOf(HasSubstr("bound it; perhaps the cache's own rate: 3.7 GiB go"),
                             HasSubstr("not calibrated: these rates are of a short measurement")));
  e.calibrated = std::chrono::system_clock::now();
  text = ExplanationText("m", e, false);
  EXPECT_THAT(text, HasSubstr("the cache's own rate does: 3.7 GiB go from it to the caches "
                              "before it, of 2.0 MiB each, 40.0000 ms at 100.0 GB/s"));
  EXPECT_THAT(text,
              HasSubstr("if each byte moved once: 4.00x, the most that any schedule gains; a "
                        "reordering gains at most 2.70x, by rows in the order of breadth_first "
                        "(sparsectl prepare m --pipeline=breadth_first --tune-for=spmm:100)"));
  EXPECT_THAT(text, HasSubstr("BEST ms"));
  o.measured_ms = 100;
  text = ExplanationText("m", e, false);
  EXPECT_THAT(text, HasSubstr("the cache's own rate does in part"));
  EXPECT_THAT(text, HasSubstr("of the 100.0000 ms that its plan took when it was tuned, the rest"));
  // Nor is it compared with what another cache would allow.
  EXPECT_THAT(ExplanationText("m", e, true),
              testing::AllOf(HasSubstr("the cache's own rate does:"),
                             testing::Not(HasSubstr("that its plan took when it was tuned, the"))));
  o.measured_ms = 0;
  o.cache_limit = "arithmetic";
  e.flops_per_second = 1e9;
  EXPECT_THAT(ExplanationText("m", e, false),
              HasSubstr("arithmetic does: 1e+09 operations take 1000.0000 ms at 1 GFLOP/s"));
  EXPECT_THAT(ExplanationText("m", e, false), HasSubstr("more processors (--threads)"));
  // A card has no threads to give.
  for (const char* limit : {"arithmetic", "cache_bandwidth"}) {
    Explanation on_gpu = e;
    on_gpu.device = "cuda:0";
    on_gpu.type = ValueType::kF64;
    on_gpu.operations[0].cache_limit = limit;
    EXPECT_THAT(ExplanationText("m", on_gpu, false),
                testing::AllOf(HasSubstr("/s: values of f32, at the cost of precision\n"),
                               testing::Not(HasSubstr("--threads"))))
        << limit;
  }
  o.cache_limit = "overhead";
  o.measured_ms = 9000;
  EXPECT_THAT(
      ExplanationText("m", e, false),
      testing::AllOf(HasSubstr("which need 1000.0000 ms of the 9000.0000 ms that its plan took "
                               "when it was tuned; the rest is reads"),
                     HasSubstr("csr.row_balanced on csr: 0.1 GFLOP/s\n"),
                     testing::Not(HasSubstr("short rows")), testing::Not(HasSubstr("wider")),
                     HasSubstr("that is far from what it needs: if the machine was busy"),
                     HasSubstr("a reordering gains at most")));
  o.measured_ms = 3900;
  EXPECT_THAT(ExplanationText("m", e, false),
              testing::AllOf(HasSubstr("the rest is reads"), testing::Not(HasSubstr("far from")),
                             testing::Not(HasSubstr("a reordering gains at most"))));
  o.measured_ms = 9000;
  o.k = 8;
  o.served.largest_row = 10 / (o.served.flops / 16);
  EXPECT_THAT(ExplanationText("m", e, false),
              testing::AllOf(HasSubstr("short rows"), HasSubstr("try wider products")));
  o.cache_limit = "arithmetic";
  EXPECT_THAT(ExplanationText("m", e, false), HasSubstr("GFLOP/s, 11 % of what arithmetic allows"));
  // What refutes the rates is not bounded by them.
  o.cache_limit = "uncertain";
  o.measured_ms = 500;
  EXPECT_THAT(
      ExplanationText("m", e, false),
      testing::AllOf(HasSubstr("it needs 1000.0000 ms, but its plan took 500.0000 ms when it "
                               "was tuned, so that the nearer caches keep more than this model"),
                     testing::Not(HasSubstr(" does:")), HasSubstr("a reordering gains at most")));
  e.calibrated.reset();
  EXPECT_THAT(ExplanationText("m", e, false),
              HasSubstr("so that these rates are not known well enough: sparsectl calibrate"));
}

TEST(Explanation, DoesNotRepeatAdviceThatWasFollowed) {
  Explanation e = Explained();
  ExplainedOperation& o = e.operations[0];
  const Width wide(1000);
  EXPECT_THAT(ExplanationText("m", e, false),
              HasSubstr("(sparsectl prepare m --pipeline=breadth_first --tune-for=spmm:100)"));
  // It was tried, and lost.
  o.reordered_ms = 6.25;
  std::string text = ExplanationText("m", e, false);
  EXPECT_THAT(text, HasSubstr("at most 2.70x, by rows in the order of breadth_first; the order of "
                              "breadth_first was tried: 6.2500 ms, and the plan that serves took "
                              "5.5000 ms\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("sparsectl prepare m --pipeline")));
  EXPECT_THAT(text, HasSubstr("BY ROWS: row after row as they are stored"));
  // It serves: its own bytes are what is judged.
  o.order = "breadth_first";
  o.measured = "cpu.csr.row_balanced on breadth_first";
  o.served = o.reordered;
  o.served.partition_bytes = o.served.moved_bytes;
  o.measured_ms = 5.5;
  o.baseline_ms = 6.6;
  o.greatest_gain = 1.5;
  o.known_gain = 1;
  text = ExplanationText("m", e, false);
  EXPECT_THAT(text, HasSubstr("rows are read in the order of breadth_first: 1.20x over plain CSR "
                              "when it was tuned\n"));
  EXPECT_THAT(text, HasSubstr("1.50x, the most that any schedule gains; no other known order gains "
                              "anything, nor do parts of the rows\n"));
  EXPECT_THAT(text, HasSubstr("BY ROWS: row after row in the order of the plan that serves"));
  EXPECT_THAT(text, HasSubstr("1430.51")) << "MiB that it moves";
  EXPECT_THAT(text, testing::Not(HasSubstr("sparsectl prepare m --pipeline")));
}

TEST(Explanation, PartsOfTheRowsAreNoReordering) {
  Explanation e = Explained();
  ExplainedOperation& o = e.operations[0];
  o.reordered.moved_bytes = 4.1e9;
  o.reordered.partition_bytes = 1.99e9;
  o.known_gain = 4 / 1.99;
  const Width wide(1000);
  std::string text = ExplanationText("m", e, false);
  EXPECT_THAT(
      text,
      HasSubstr("at most 2.00x by parts of the rows as they are, to which no known reordering "
                "adds; no flag asks for parts"));
  EXPECT_THAT(text, testing::Not(HasSubstr("in the order of breadth_first (")));
  EXPECT_THAT(text, testing::Not(HasSubstr("64 bytes that are")));
  o.k = 1;
  EXPECT_THAT(ExplanationText("m", e, false), HasSubstr("BY ROWS the 64 bytes that are fetched"));
  o.reordered.partition_bytes = 1e9;
  o.known_gain = 4;
  EXPECT_THAT(
      ExplanationText("m", e, false),
      HasSubstr(
          "a reordering gains at most 4.00x, by parts of rows in the order of breadth_first"));
  o.known_gain = 1;
  EXPECT_THAT(ExplanationText("m", e, false), HasSubstr("no known reordering gains anything"));
}

TEST(Explanation, TinyMatricesGetNoAdvice) {
  Explanation e = Explained();
  ExplainedOperation& o = e.operations[0];
  o.stored = {.flops = 2, .footprint_bytes = 36, .partition_bytes = 36, .moved_bytes = 104};
  o.served = o.inner = o.inner_served = o.inner_reordered = o.reordered = o.stored;
  o.greatest_gain = o.known_gain = 2.88;
  o.cache_limit = "cache_bandwidth";
  e.cache_bytes_per_second = 3e10;
  const Width wide(1000);
  for (const char* limit : {"cache", "cache_misses"}) {
    o.limit = limit;
    EXPECT_THAT(ExplanationText("m", e, false),
                testing::AllOf(HasSubstr("SpMM K=100: too small: starting and ending a product"),
                               testing::Not(HasSubstr("2.88x")), testing::Not(HasSubstr("f16"))));
  }
}

TEST(UnsureText, SaysWhichPlansWereTimedOnABusyMachine) {
  MatrixInfo info;
  info.name = "m";
  PlanInfo& plan = info.plans.emplace_back();
  plan.signature = {Operation::kSpmm, false, 128};
  EXPECT_EQ(UnsureText(info), "");
  plan.busy_trials = {3.2, 48};
  const Width wide(1000);
  EXPECT_THAT(UnsureText(info), HasSubstr("spmm K=128: timed on a busy machine: plain CSR took "
                                          "3.200 to 48.000 ms from turn to turn"));
  EXPECT_THAT(UnsureText(info), HasSubstr("(sparsectl prepare m --retune)"));
  EXPECT_EQ(ToJson(info)["plans"][0]["busy_trials"]["most_baseline_ms"], 48);
  // Where a gain is told, so is this.
  Explanation e = Explained();
  e.operations[0].measured_ms = 1;
  EXPECT_THAT(ExplanationText("m", e, false), testing::Not(HasSubstr("busy machine")));
  e.operations[0].busy_trials = {3.2, 48};
  EXPECT_THAT(ExplanationText("m", e, false), HasSubstr("  timed on a busy machine: plain CSR "));
}

TEST(Explanation, BeginsWithWhereTheTimeOfRequestsWent) {
  Explanation e = Explained();
  EXPECT_THAT(ExplanationText("m", e, false), testing::StartsWith("m on cpu: "));
  e.requests.requests = 8;
  TransportTimes times = {.transport = "stream",
                          .requests = 8,
                          .mean = {},
                          .finding = "Most of it, 70 %, is operands."};
  times.mean.total = std::chrono::milliseconds(300);
  times.mean.send = std::chrono::milliseconds(210);
  e.requests.transports = {times};
  const Width wide(1000);
  EXPECT_THAT(
      ExplanationText("m", e, false),
      testing::StartsWith("the last 8 products with m took on average (without the fastest and "
                          "the slowest quarter) 300.000 ms: send 210.000, other 90.000 (transport: "
                          "stream)\n  Most of it, 70 %, is operands.\n\nm on cpu: "));
  times.requests = e.requests.requests = 1;
  e.requests.transports = {times};
  EXPECT_THAT(ExplanationText("m", e, false),
              testing::StartsWith("the last product with m took 300.000 ms: "));
  EXPECT_EQ(ToJson("m", e)["requests"]["transports"][0]["mean_ns"]["send"], 210000000);
  Timings& mean = e.requests.transports[0].mean;
  mean.kernel = std::chrono::milliseconds(90);
  EXPECT_THAT(ExplanationText("m", e, false), HasSubstr("kernel 90.000, send 210.000 (transport"));
  mean.receive = std::chrono::milliseconds(1);
  EXPECT_THAT(ExplanationText("m", e, false), HasSubstr("send 210.000 (they overlap) (transport"));
}

TEST(Explanation, SaysWhoseItsCommandsAre) {
  EXPECT_THAT(ExplanationText("alice~m", Explained(), false),
              testing::EndsWith("These are commands of tenant alice, who calls it m\n"));
  EXPECT_THAT(ExplanationText("m", Explained(), false), testing::Not(HasSubstr("tenant")));
}

TEST(Times, SayWhoHadTheWorkerSlots) {
  Timings times;
  times.total = times.queue = std::chrono::milliseconds(100);
  EXPECT_EQ(Text(times), "100.000 ms: queue 100.000");
  times.queue_trials = std::chrono::milliseconds(70);
  EXPECT_EQ(Text(times), "100.000 ms: queue 100.000 (70.000 behind autotuning)");
  times.queue_others = std::chrono::milliseconds(20);
  EXPECT_EQ(Text(times),
            "100.000 ms: queue 100.000 (70.000 behind autotuning, 20.000 behind other tenants)");
  times.queue_trials = std::chrono::milliseconds(2);
  EXPECT_EQ(Text(times), "100.000 ms: queue 100.000 (20.000 behind other tenants)");
  EXPECT_EQ(ToJson(times)["queue_others"], 20'000'000);
}

TEST(Explanation, TimesOfTransportsAreToldApart) {
  Explanation e = Explained();
  e.requests.requests = 7;
  TransportTimes stream = {
      .transport = "stream", .requests = 5, .mean = {}, .finding = "Most of it is operands."};
  stream.mean.total = std::chrono::milliseconds(30);
  TransportTimes held = {
      .transport = "held", .requests = 2, .mean = {}, .finding = "Nothing here is slow."};
  held.mean.total = std::chrono::milliseconds(1);
  e.requests.transports = {stream, held};
  e.requests.transposed = 3;
  const Width wide(1000);
  EXPECT_THAT(
      ExplanationText("m", e, false),
      testing::StartsWith("the last 7 products with m, on average of each transport:\n"
                          "  5 took (without the fastest and the slowest quarter) 30.000 ms "
                          "(transport: stream)\n    Most of it is operands.\n"
                          "  2 took 1.000 ms (transport: held)\n    Nothing here is slow.\n"
                          "  3 of them multiplied with the transpose"));
  const Width narrow(60);
  EXPECT_LE(WidestLine(ExplanationText("m", e, false).substr(0, 400)), 60u);
}

TEST(Explanation, NarrowerTypesAreOneStepNarrowerAndLessPrecise) {
  Explanation e = Explained();
  ExplainedOperation& o = e.operations[0];
  o.limit = "cache";
  o.cache_limit = "cache_bandwidth";
  o.measured_ms = 0;
  e.cache_bytes_per_second = 1e8;
  o.inner = o.inner_served = o.inner_reordered = o.stored;
  const Width wide(1000);
  const auto of_type = [&](ValueType type) {
    e.type = type;
    return ExplanationText("m", e, false);
  };
  EXPECT_THAT(of_type(ValueType::kF64),
              testing::AllOf(HasSubstr("GB/s: values of f32, at the cost of precision, or more "
                                       "processors"),
                             testing::Not(HasSubstr("f16"))));
  EXPECT_THAT(of_type(ValueType::kF32), HasSubstr("f16 or bf16, at the cost of precision"));
  EXPECT_THAT(of_type(ValueType::kF16), testing::AllOf(HasSubstr("GB/s: more processors"),
                                                       testing::Not(HasSubstr("precision"))));
}

TEST(Explanation, AnotherProductsTimeIsNotSpMVs) {
  Explanation e = Explained();
  e.operations[0].k = 1;
  EXPECT_THAT(ExplanationText("m", e, false), testing::Not(HasSubstr("5.5000 (K=128)")));
}

TEST(Explanation, SaysThatTheRateIsOfABusyMachine) {
  Explanation e = Explained();
  const std::string warning = "these rates were measured while the machine did other work";
  EXPECT_THAT(ExplanationText("m", e, false), testing::Not(HasSubstr(warning)));
  EXPECT_THAT(
      ExplanationText("m", e, false),
      HasSubstr("\n  not calibrated: these rates are of a short measurement, and what follows"));
  EXPECT_EQ(ToJson("m", e)["measured_while_busy"], false);
  e.measured_while_busy = true;
  EXPECT_THAT(ExplanationText("m", e, false), HasSubstr(warning));
  EXPECT_EQ(ToJson("m", e)["measured_while_busy"], true);
}

TEST(TopText, LeavesOutStatusCallsThatSucceed) {
  Look look;
  const auto counted = [&](const char* operation, const char* code, int64_t count) {
    RequestCount& of = look.stats.requests.emplace_back();
    of.operation = operation;
    of.code = code;
    of.count = count;
    of.status_call = of.operation != "spmm";
  };
  counted("get_stats", "OK", 100);
  counted("list_tenants", "OK", 100);
  counted("get", "OK", 7);
  counted("get", "NOT_FOUND", 2);
  counted("spmm", "OK", 5);
  look.stats.in_flight.emplace_back().operation = "watch";
  look.stats.in_flight.back().status_call = true;
  const Json page = TopJson({}, &look, look);
  ASSERT_EQ(page["operations"].size(), 2u) << page["operations"];
  EXPECT_EQ(page["operations"][0]["operation"], "spmm") << "the busiest first";
  EXPECT_EQ(page["operations"][1]["operation"], "get");
  EXPECT_EQ(page["operations"][1]["total"], 2) << "those that failed";
  EXPECT_EQ(page["operations"][1]["failed"], 2);
  EXPECT_THAT(TopText(page), testing::Not(HasSubstr("get_stats")));
  // The heading counts what the table shows, whatever the server counts beside it.
  look.stats.requests_in_flight = 7;
  RequestsInFlight& products = look.stats.in_flight.emplace_back();
  products.operation = "spmm";
  products.count = 3;
  EXPECT_THAT(TopText(TopJson({}, &look, look)), HasSubstr("\n3 requests in flight, "));
}

TEST(Explanation, SaysWhatSeveralGpusWouldExchangeAndWhenTheyDoNotPay) {
  Explanation e = Explained();
  ExplainedOperation& o = e.operations[0];
  EXPECT_EQ(ExplanationText("m", e, false).find("GPU"), std::string::npos);
  o.distributions = {{Distribution::kWhole, 1, 0, 2.6, 0, false},
                     {Distribution::kColumns, 2, 0, 1.4, 1.45, true},
                     {Distribution::kRows, 2, 1 << 20, 1.7, 0, false}};
  o.spread_ms = 1.7;
  const std::string text = ExplanationText("m", e, false);
  for (const char* const line :
       {"one GPU: 2.6000 ms estimated", "* columns over 2 GPUs: 1.4000 ms estimated, nothing",
        "1.4500 ms tried", "rows over 2 GPUs: 1.7000 ms estimated, 1.0 MiB exchanged",
        "does not pay"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  o.spread_ms = 0.1;
  EXPECT_THAT(ExplanationText("m", e, false), HasSubstr("it pays"));
  const Width narrow(80);
  EXPECT_LE(WidestLine(ExplanationText("m", e, false)), 80u);
}

TEST(TopText, SharesItsLinesAmongItsTables) {
  Look look;
  look.stats.devices.emplace_back().name = "cpu";
  for (int i = 0; i < 30; ++i) {
    look.stats.requests.emplace_back().operation = fmt::format("op{}", i);
  }
  for (int i = 0; i < 8; ++i) look.tenants.emplace_back().name = fmt::format("tenant{}", i);
  look.stats.memory_bytes = {{"layouts", 1}, {"matrices", 1}};
  const Json page = TopJson({}, &look, look);
  const auto lines = [](const std::string& text) { return std::ranges::count(text, '\n'); };
  EXPECT_GT(lines(TopText(page)), 45);
  const std::string text = TopText(page, 23);
  EXPECT_EQ(lines(text), 23) << text;
  for (const char* word : {"cpu", "op0", "tenant0", "tenant1", "layouts", "matrices"}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
  EXPECT_THAT(text, HasSubstr("and 26 more\n")) << "of the operations";
  EXPECT_EQ(TopText(page, 100), TopText(page));
  EXPECT_THAT(TopText(page, 1), HasSubstr("tenant0")) << "a row of each";
}

TEST(Text, NumbersForPeople) {
  EXPECT_EQ(Count(0), "0");
  EXPECT_EQ(Count(999), "999");
  EXPECT_EQ(Count(1000), "1,000");
  EXPECT_EQ(Count(-1234567), "-1,234,567");
  EXPECT_EQ(Bytes(1023), "1023 B");
  EXPECT_EQ(Bytes(1536), "1.5 KiB");
  EXPECT_EQ(Bytes(int64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(Text(ProblemSignature{Operation::kSpmm, true, 64}), "spmm^T K=64");
  EXPECT_EQ(BarText("sending", 1, 4, 37), "sending [#####...............]  25%");
  EXPECT_EQ(BarText("lsh", 9, 0, 80), "lsh");
  EXPECT_EQ(BarText("x", 9, 4, 12), "x [#] 100%");
}

TEST(ExitCode, TellsFailuresApart) {
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCode(absl::InvalidArgumentError("")), 3);
  EXPECT_EQ(ExitCode(absl::NotFoundError("")), 4);
  EXPECT_EQ(ExitCode(absl::UnavailableError("")), 5);
  EXPECT_EQ(ExitCode(absl::AlreadyExistsError("")), 6);
  EXPECT_EQ(ExitCode(absl::FailedPreconditionError("")), 6);
  EXPECT_EQ(ExitCode(absl::ResourceExhaustedError("")), 7);
  EXPECT_EQ(ExitCode(absl::DeadlineExceededError("")), 8);
  EXPECT_EQ(ExitCode(absl::DataLossError("")), 9);
  EXPECT_EQ(ExitCode(absl::PermissionDeniedError("")), 10);
  EXPECT_EQ(ExitCode(absl::InternalError("")), 1);
  for (const char* code : {"   0  ", "   2  ", "   9  ", "  10  "}) {
    EXPECT_THAT(ExitCodesText(), HasSubstr(code));
  }
  EXPECT_EQ(ErrorJson("NOT_FOUND", "no \"x\"").dump(),
            R"({"error":{"code":"NOT_FOUND","message":"no \"x\""}})");
}

}  // namespace
}  // namespace sparsed::cli
