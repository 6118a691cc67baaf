// Times attention along edges on the CPU, forward, in f32: dot products, and GATv2 whose values are
// `right`. A line of JSON a measurement on standard output; tests/bench/python/message_passing.py
// does the same with PyTorch.
//
//   bench_attention_cpu --threads=2 cora.mtx cnr-2000.mtx.gz > attention-cpu.jsonl
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/pipeline.h"
#include "tests/matrix_market.h"

namespace sparsed::test {
namespace {

constexpr int kRuns = 6;

std::vector<float> Random(int64_t elements, uint64_t seed) {
  const std::vector<double> numbers = RandomValues(elements, seed);
  return {numbers.begin(), numbers.end()};
}

/// The median of the runs.
absl::StatusOr<double> Milliseconds(const EdgeAttention& attention, int threads) {
  auto workspace = HeapMemory().Allocate(EdgeAttentionWorkspace(attention, ElementType::kF32));
  if (!workspace.ok()) return workspace.status();
  Context context;
  context.threads = threads;
  context.workspace = {workspace->mutable_data(), workspace->size()};
  std::vector<double> times;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status done = ComputeEdgeAttention(context, attention, ElementType::kF32);
    if (!done.ok()) return done;
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    times.push_back(took.count());
  }
  std::ranges::sort(times);
  return (times[kRuns / 2 - 1] + times[kRuns / 2]) / 2;
}

absl::Status Run(const std::string& name, const Pattern& pattern, int64_t heads, int64_t width,
                 int threads) {
  BuildContext build;
  build.threads = threads;
  build.memory = &HeapMemory();
  const auto built = BuildLayout(ParsePipeline("csr").value(), pattern.view(), build);
  if (!built.ok()) return built.status();
  const int64_t rows = pattern.rows, cols = pattern.cols, l = heads * width;
  const std::vector<float> q = Random(rows * l, 1), k = Random(cols * l, 2),
                           v = Random(cols * l, 3), att = Random(l, 4);
  std::vector<float> out(static_cast<size_t>(rows * l));
  EdgeAttention attention{built->layout};
  attention.scores.heads = heads;
  attention.scores.scale = 1 / std::sqrt(static_cast<double>(width));
  attention.scores.left = {q.data(), rows, l, l};
  attention.scores.right = {k.data(), cols, l, l};
  attention.values = {v.data(), cols, l, l};
  attention.out = {out.data(), rows, l, l};
  EdgeAttention gatv2 = attention;
  gatv2.scores.kind = EdgeScores::Kind::kGatv2;
  gatv2.scores.att = {att.data(), 1, l, l};
  gatv2.values = gatv2.scores.right;
  for (const auto& [what, of] :
       {std::pair("attention forward", &attention), std::pair("gatv2 forward", &gatv2)}) {
    const absl::StatusOr<double> ms = Milliseconds(*of, threads);
    if (!ms.ok()) return ms.status();
    const nlohmann::ordered_json line = {
        {"matrix", name},   {"rows", rows},       {"nnz", pattern.nnz()},
        {"heads", heads},   {"width", width},     {"what", what},
        {"how", "sparsed"}, {"threads", threads}, {"ms", *ms}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Times attention along edges on the CPU");
  std::vector<std::string> files;
  int threads = 2;
  app.add_option("files", files, "Matrix Market files")->required();
  app.add_option("--threads", threads, "of the kernels")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  for (const std::string& file : files) {
    const auto matrix = ReadMatrixMarket(file);
    if (!matrix) {
      fmt::print(stderr, "{}: not read\n", file);
      return 1;
    }
    const std::string name = std::filesystem::path(file).filename().string();
    for (const auto& [heads, width] : {std::pair(1, 64), std::pair(1, 128), std::pair(4, 32)}) {
      const absl::Status done =
          Run(name.substr(0, name.find('.')), matrix->pattern, heads, width, threads);
      if (done.ok()) continue;
      fmt::print(stderr, "{}: {}\n", name, std::string(done.message()));
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) { return sparsed::test::Main(argc, argv); }
