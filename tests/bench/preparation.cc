// What it costs to make the layouts of row reordering and adaptive sparse tiling, and what they
// bring: a line of JSON for each matrix and pipeline, with the seconds of each stage, the peak of
// memory (matrix included) over the matrix's own (f32 CSR), dense ratios, and the medians of SpMM
// and SDDMM (f32) next to those of plain CSR, alternating in one run.
//
//   bench_preparation [--data=DIR_OF_MTX_FILES] [--only=NAME] [--threads=2] [--k=32]
//   bench_preparation --sorts [--only=SORT]
//                                 seconds and distances of the row sorts, from 0.1 million rows on
//   bench_preparation --caps      what the caps of LSH lose, on small matrices
//   bench_preparation --features  what the features of a pattern cost, over 0.1, 1 and 10 million
//                                 rows with 10 nonzeros each
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kernels/features/dense_tiles.h"
#include "kernels/features/features.h"
#include "kernels/features/similarity.h"
#include "kernels/formats/aspt.h"
#include "kernels/kernel_table.h"
#include "kernels/pipeline.h"
#include "kernels/reorder/lsh_cluster.h"
#include "kernels/reorder/sort_rows.h"
#include "tests/generate.h"
#include "tests/kernels/counting_memory.h"
#include "tests/matrix_market.h"

namespace sparsed {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using test::Pattern;

constexpr const char* kPipelines[] = {"lsh_cluster", "aspt", "lsh_cluster > aspt",
                                      "lsh_cluster > aspt > lsh_cluster(remainder)"};

struct Options {
  std::string data;
  std::vector<std::string> only;
  std::vector<int64_t> widths = {32, 128, 512};
  int threads = 2;
  int rounds = 7;
  bool caps = false;
  bool features = false;
  bool growth = false;
  bool sorts = false;
  int64_t most_rows = 10'000'000;
};

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A layout and how it came to be.
struct Prepared {
  BuiltLayout built;
  Json line;
};

Prepared Prepare(const std::string& name, const char* text, const Pattern& pattern,
                 const Options& options) {
  test::CountingMemory memory;
  BuildContext context;
  context.threads = options.threads;
  context.memory = &memory;
  std::vector<std::pair<std::string, double>> stages = {{"features", 0}};
  const auto begin = Clock::now();
  auto last = begin;
  context.progress = [&](std::string_view stage, int64_t, int64_t) {
    stages.back().second += SecondsSince(last);
    last = Clock::now();
    if (stages.back().first != stage) stages.emplace_back(stage, 0);
  };
  const std::clock_t cpu_begin = std::clock();
  Prepared result{BuildLayout(ParsePipeline(text).value(), pattern.view(), context).value(), {}};
  const double cpu_seconds = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  stages.back().second += SecondsSince(last);
  const double csr = static_cast<double>(8 * pattern.nnz() + 8 * (pattern.rows + 1));
  Json by_stage = Json::array();
  for (const auto& [stage, seconds] : stages) by_stage.push_back({{stage, seconds}});
  result.line = {{"matrix", name},
                 {"recipe", text},
                 {"rows", pattern.rows},
                 {"nnz", pattern.nnz()},
                 {"seconds", SecondsSince(begin)},
                 {"cpu_seconds", cpu_seconds},
                 {"stages", by_stage},
                 {"peak_over_csr", (csr + static_cast<double>(memory.peak())) / csr},
                 {"skipped", result.built.skipped},
                 {"notes", result.built.notes}};
  // Measured after `memory` is gone, so the arrays move to the heap.
  for (Array& array : result.built.layout.arrays) {
    Array copy = AllocateArray(HeapMemory(), array.name, array.type, array.length).value();
    std::copy(array.buffer.data(), array.buffer.data() + array.bytes(), copy.buffer.mutable_data());
    array = std::move(copy);
  }
  return result;
}

/// One layout's values and kernels for one width.
class Runner {
 public:
  Runner(const Layout& layout, int64_t k, int threads) : layout_(layout), k_(k), threads_(threads) {
    const std::vector<float> ones(layout.nnz, 1);
    values_.resize(layout.value_slots);
    PlaceValues(layout, ElementType::kF32, ones.data(), values_.data(), threads);
  }

  void Spmm(std::vector<float>& b, std::vector<float>& c) {
    const Problem problem{.operation = Operation::kSpmm, .k = k_};
    for (const SpmmKernel& kernel : SpmmKernels()) {
      if (kernel.layout_kind != layout_.kind || !kernel.supports(problem, layout_)) continue;
      Check(kernel.run(ContextFor(kernel.workspace(problem, layout_, threads_)), problem,
                       {layout_,
                        values_.data(),
                        {b.data(), layout_.cols, k_, k_},
                        {c.data(), layout_.rows, k_, k_}}));
      return;
    }
  }
  void Sddmm(std::vector<float>& a, std::vector<float>& b, std::vector<float>& out) {
    const Problem problem{.operation = Operation::kSddmm, .k = k_};
    for (const SddmmKernel& kernel : SddmmKernels()) {
      if (kernel.layout_kind != layout_.kind || !kernel.supports(problem, layout_)) continue;
      Check(kernel.run(ContextFor(kernel.workspace(problem, layout_, threads_)), problem,
                       {layout_,
                        values_.data(),
                        {a.data(), layout_.rows, k_, k_},
                        {b.data(), layout_.cols, k_, k_},
                        out.data()}));
      return;
    }
  }

 private:
  static void Check(const absl::Status& status) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  }
  Context ContextFor(size_t bytes) {
    if (workspace_.size() < bytes) workspace_ = HeapMemory().Allocate(bytes).value();
    return {.threads = threads_, .workspace = {workspace_.mutable_data(), bytes}};
  }

  const Layout& layout_;
  const int64_t k_;
  const int threads_;
  std::vector<float> values_;
  Buffer workspace_;
};

/// Median milliseconds of works that take turns; the first round warms up.
std::vector<double> MedianTimes(const std::vector<std::function<void()>>& works, int rounds) {
  std::vector<std::vector<double>> times(works.size());
  for (int round = 0; round <= rounds; ++round) {
    for (size_t i = 0; i < works.size(); ++i) {
      const auto start = Clock::now();
      works[i]();
      if (round > 0) times[i].push_back(1e3 * SecondsSince(start));
    }
  }
  std::vector<double> medians;
  for (auto& list : times) {
    std::nth_element(list.begin(), list.begin() + list.size() / 2, list.end());
    medians.push_back(list[list.size() / 2]);
  }
  return medians;
}

/// Adds the times of every layout at one width, and plain CSR's, to the lines.
void Measure(const Pattern& pattern, const Layout& plain, std::vector<Prepared>& prepared,
             int64_t k, const Options& options) {
  std::vector<float> a(pattern.rows * k, 0.5F), b(pattern.cols * k, 0.25F);
  std::vector<float> c(pattern.rows * k), out(pattern.nnz());
  std::vector<Runner> runners;
  std::vector<Prepared*> measured;
  runners.emplace_back(plain, k, options.threads);
  for (Prepared& each : prepared) {
    if (each.built.skipped) continue;
    runners.emplace_back(each.built.layout, k, options.threads);
    measured.push_back(&each);
  }
  std::vector<std::function<void()>> spmm, sddmm;
  for (Runner& runner : runners) {
    spmm.emplace_back([&] { runner.Spmm(b, c); });
    sddmm.emplace_back([&] { runner.Sddmm(a, b, out); });
  }
  const std::vector<double> spmm_ms = MedianTimes(spmm, options.rounds);
  const std::vector<double> sddmm_ms = MedianTimes(sddmm, options.rounds);
  const std::string width = std::to_string(k);
  for (size_t i = 0; i < measured.size(); ++i) {
    measured[i]->line["spmm_ms"][width] = {spmm_ms[i + 1], spmm_ms[0]};
    measured[i]->line["sddmm_ms"][width] = {sddmm_ms[i + 1], sddmm_ms[0]};
  }
}

void RunMatrix(const std::string& name, const Pattern& pattern, const Options& options) {
  if (!options.only.empty() &&
      std::find(options.only.begin(), options.only.end(), name) == options.only.end()) {
    return;
  }
  BuildContext context;
  context.threads = options.threads;
  context.memory = &HeapMemory();
  const double before = DenseTileRatio(pattern.view(), 64, 2, context).value();
  std::vector<Prepared> prepared;
  for (const char* pipeline : kPipelines) {
    prepared.push_back(Prepare(name, pipeline, pattern, options));
    Prepared& each = prepared.back();
    each.line["dense_ratio_before"] = before;
    if (each.built.skipped) continue;
    CsrView view = pattern.view();
    if (const Array* order = each.built.layout.Find("row_order"); order != nullptr) {
      view.row_order = order->As<int32_t>();
    }
    each.line["dense_ratio_after"] = DenseTileRatio(view, 64, 2, context).value();
  }
  const Layout plain = test::PlainLayout(pattern);
  for (const int64_t k : options.widths) Measure(pattern, plain, prepared, k, options);
  for (const Prepared& each : prepared) std::printf("%s\n", each.line.dump().c_str());
  std::fflush(stdout);
}

/// Pairs of all rows that share a column: what LSH stands in for.
CandidatePairs AllPairs(const Pattern& pattern) {
  PairSet set;
  (void)set.Allocate(HeapMemory(), pattern.rows * pattern.rows / 2 + 1);
  for (int64_t i = 0; i < pattern.rows; ++i) {
    for (int64_t j = i + 1; j < pattern.rows; ++j) {
      const float similarity = JaccardSimilarity(pattern.view(), i, j);
      if (similarity > 0) set.Insert(RowPair::Make(i, j), similarity);
    }
  }
  return set.Take(HeapMemory(), pattern.rows, 1).value();
}

/// Dense ratio and mean similarity of consecutive rows after Algorithm 3 on capped buckets, on
/// whole buckets and on all pairs.
void RunCaps(const std::string& name, const Pattern& pattern, const Options& options) {
  BuildContext context;
  context.threads = options.threads;
  context.memory = &HeapMemory();
  LshOptions whole;
  whole.neighbours = pattern.rows;
  whole.pairs_per_row = pattern.rows;
  auto print = [&](const char* pairs, const std::optional<RowOrder>& order) {
    CsrView view = pattern.view();
    if (order.has_value()) view.row_order = order->row_order.As<int32_t>();
    const Json line = {{"matrix", name},
                       {"pairs", pairs},
                       {"count", order.has_value() ? order->candidate_pairs : 0},
                       {"dense_ratio", DenseTileRatio(view, 64, 2, context).value()},
                       {"similarity", AverageConsecutiveSimilarity(view, options.threads)}};
    std::printf("%s\n", line.dump().c_str());
  };
  print("none: original order", std::nullopt);
  print("capped buckets", LshClusterRows(pattern.view(), {}, {}, context).value());
  print("whole buckets", LshClusterRows(pattern.view(), whole, {}, context).value());
  print("all pairs", ClusterRows(pattern.view(), AllPairs(pattern), {}, context).value());
  ClusterOptions ascending;
  ascending.order = ClusterOrder::kAscending;
  print("capped buckets, clusters in ascending order",
        LshClusterRows(pattern.view(), {}, ascending, context).value());
}

/// How long ComputeFeatures takes, and how that grows.
void RunFeatures(const Options& options) {
  const std::pair<const char*, std::function<Pattern(int64_t rows)>> generated[] = {
      {"uniform", [](int64_t rows) { return test::Uniform(rows, rows, 10, 1); }},
      {"power-law", [](int64_t rows) { return test::PowerLaw(rows, 10 * rows, 2.5, 1); }},
      {"band", [](int64_t rows) { return test::Band(rows, 5); }}};
  for (const auto& [name, generate] : generated) {
    double before = 0;
    for (const int64_t rows : {100'000, 1'000'000, 10'000'000}) {
      const Pattern pattern = generate(rows);
      test::CountingMemory memory;
      BuildContext context;
      context.threads = options.threads;
      context.memory = &memory;
      std::vector<double> seconds;
      for (int round = 0; round <= options.rounds; ++round) {
        const auto begin = Clock::now();
        (void)ComputeFeatures(pattern.view(), context).value();
        seconds.push_back(SecondsSince(begin));
      }
      std::ranges::sort(seconds);
      Json line = {{"matrix", name},
                   {"rows", rows},
                   {"nnz", pattern.nnz()},
                   {"threads", options.threads},
                   {"median_seconds", seconds[seconds.size() / 2]},
                   {"least_seconds", seconds.front()},
                   {"peak_bytes", memory.peak()}};
      if (before > 0) line["least_over_a_tenth_of_the_rows"] = seconds.front() / before;
      before = seconds.front();
      std::printf("%s\n", line.dump().c_str());
      std::fflush(stdout);
    }
  }
}

/// How the time of each kind of preparation grows with the rows.
void RunGrowth(const Options& options) {
  for (int64_t rows = 100'000; rows <= options.most_rows; rows *= 10) {
    const Pattern pattern = test::PowerLaw(rows, 10 * rows, 2.5, 1);
    for (const char* pipeline :
         {"dcsr", "row_segments(force)", "aspt", "lsh_cluster > aspt > lsh_cluster(remainder)",
          "plain_sort", "flipped_sort", "lpt_sort", "warp_sort", "cta_sort", "hybrid1_sort",
          "hybrid21_sort", "hybrid22_sort", "hybrid23_sort"}) {
      if (!options.only.empty() && std::ranges::count(options.only, pipeline) == 0) continue;
      std::printf("%s\n", Prepare("power law", pipeline, pattern, options).line.dump().c_str());
      std::fflush(stdout);
    }
  }
}

/// Mean Hamming distance of the column sets of rows `stride` apart.
double MeanDistance(const Pattern& pattern, const int32_t* order, int64_t stride) {
  int64_t sum = 0;
  for (int64_t i = stride; i < pattern.rows; ++i) {
    const int64_t a = order == nullptr ? i - stride : order[i - stride];
    const int64_t b = order == nullptr ? i : order[i];
    const double lengths = static_cast<double>(pattern.row_offsets[a + 1] - pattern.row_offsets[a] +
                                               pattern.row_offsets[b + 1] - pattern.row_offsets[b]);
    const double jaccard = JaccardSimilarity(pattern.view(), a, b);
    sum += std::llround(lengths * (1 - jaccard) / (1 + jaccard));
  }
  return static_cast<double>(sum) /
         static_cast<double>(std::max<int64_t>(pattern.rows - stride, 1));
}

/// Every row sort alone, without the layout.
void RunSorts(const std::string& name, const Pattern& pattern, const Options& options) {
  constexpr std::pair<const char*, RowSort> kSorts[] = {
      {"plain_sort", RowSort::kPlain},       {"flipped_sort", RowSort::kFlipped},
      {"lpt_sort", RowSort::kLpt},           {"warp_sort", RowSort::kWarpAware},
      {"cta_sort", RowSort::kCtaAware},      {"hybrid1_sort", RowSort::kHybrid1},
      {"hybrid21_sort", RowSort::kHybrid21}, {"hybrid22_sort", RowSort::kHybrid22},
      {"hybrid23_sort", RowSort::kHybrid23}};
  for (const auto& [sort_name, sort] : kSorts) {
    if (!options.only.empty() &&
        std::find(options.only.begin(), options.only.end(), sort_name) == options.only.end()) {
      continue;
    }
    test::CountingMemory memory;
    BuildContext context;
    context.threads = options.threads;
    context.memory = &memory;
    const auto begin = Clock::now();
    const std::clock_t cpu_begin = std::clock();
    const Array order = SortRows(pattern.view(), sort, {}, context).value();
    const double seconds = SecondsSince(begin);
    const double cpu_seconds = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
    const bool warps = sort == RowSort::kWarpAware || sort == RowSort::kHybrid23;
    const int64_t stride = warps ? RowPolicy().warps : 1;
    const double csr = static_cast<double>(8 * pattern.nnz() + 8 * (pattern.rows + 1));
    const Json line = {{"matrix", name},
                       {"sort", sort_name},
                       {"rows", pattern.rows},
                       {"nnz", pattern.nnz()},
                       {"seconds", seconds},
                       {"cpu_seconds", cpu_seconds},
                       {"peak_over_csr", (csr + static_cast<double>(memory.peak())) / csr},
                       {"distance_before", MeanDistance(pattern, nullptr, stride)},
                       {"distance", MeanDistance(pattern, order.As<int32_t>().data(), stride)}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
}

void Run(const Options& options) {
  if (options.features) return RunFeatures(options);
  if (options.growth) return RunGrowth(options);
  if (options.sorts) {
    for (int64_t rows = 100'000; rows <= options.most_rows; rows *= 10) {
      RunSorts("power law", test::PowerLaw(rows, 10 * rows, 2.5, 1), options);
      RunSorts("uniform", test::Uniform(rows, rows, 10, 1), options);
      RunSorts("clusters", test::ShuffledClusters(rows / 16, 16, rows, 12, 9, 1, 1), options);
    }
    return;
  }
  if (options.caps) {
    RunCaps("clusters", test::ShuffledClusters(125, 16, 20'000, 36, 32, 3, 1), options);
    RunCaps("loose clusters", test::ShuffledClusters(100, 16, 20'000, 30, 14, 6, 2), options);
    RunCaps("large clusters", test::ShuffledClusters(6, 300, 20'000, 30, 20, 2, 3), options);
    RunCaps("power law", test::PowerLaw(2000, 20'000, 2.5, 4), options);
    RunCaps("R-MAT 11", test::Rmat(11, 8, 5), options);
    return;
  }
  const std::pair<const char*, std::function<Pattern()>> generated[] = {
      {"clusters-100k", [] { return test::ShuffledClusters(6250, 16, 100'000, 36, 32, 3, 1); }},
      {"rmat-16", [] { return test::Rmat(16, 8, 1); }},
      {"uniform-100k", [] { return test::Uniform(100'000, 100'000, 16, 1); }},
      {"band-200k", [] { return test::Band(200'000, 15); }},
      {"power-law-1M", [] { return test::PowerLaw(1'000'000, 10'000'000, 2.5, 1); }}};
  for (const auto& [name, generate] : generated) {
    if (options.only.empty() ||
        std::find(options.only.begin(), options.only.end(), name) != options.only.end()) {
      RunMatrix(name, generate(), options);
    }
  }
  if (options.data.empty()) return;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(options.data)) {
    if (entry.path().string().find(".mtx") != std::string::npos) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    std::string name = file.filename().string();
    name.resize(name.find(".mtx"));
    if (!options.only.empty() &&
        std::find(options.only.begin(), options.only.end(), name) == options.only.end()) {
      continue;
    }
    const auto matrix = test::ReadMatrixMarket(file.string());
    if (matrix.has_value() && matrix->pattern.nnz() >= 100'000) {
      RunMatrix(name, matrix->pattern, options);
    }
  }
}

}  // namespace
}  // namespace sparsed

int main(int argc, char** argv) {
  sparsed::Options options;
  CLI::App app("What preparing layouts costs and brings");
  app.add_option("--data", options.data, "folder of Matrix Market files, plain or .gz");
  app.add_option("--only", options.only,
                 "names of matrices; with --sorts and --growth, of sorts and pipelines");
  app.add_option("--k", options.widths, "widths");
  app.add_option("--threads", options.threads, "threads");
  app.add_option("--rounds", options.rounds, "measurements of which the median is taken");
  app.add_flag("--caps", options.caps, "compare capped buckets, whole buckets and all pairs");
  app.add_flag("--features", options.features, "time the features of patterns alone");
  app.add_flag("--growth", options.growth, "time layouts and sorts of more and more rows");
  app.add_flag("--sorts", options.sorts, "time the row sorts");
  app.add_option("--most_rows", options.most_rows, "of the largest matrix of --sorts and --growth");
  CLI11_PARSE(app, argc, argv);
  sparsed::Run(options);
  return 0;
}
