// SpMM from dense blocks of every shape, 1 x 1 to 8 x 8, next to the kernels over plain CSR, f32,
// in turns within one run. A line of JSON for each matrix, width and team: median milliseconds by
// kernel and shape (rows x columns), which share of the shape's places are nonzeros, and the shape
// that the service would take by its estimate. Matrices without blocks have none.
//
//   bench_block_shapes MATRIX.mtx[.gz]... [--k=8,32,128,512] [--threads=1]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "kernels/cpu/spmm/spmm.h"
#include "kernels/formats/bcsr.h"
#include "tests/generate.h"
#include "tests/matrix_market.h"

namespace sparsed {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// A contender so many times slower than the fastest one of the first round is not run again.
constexpr double kHopeless = 2.5;
constexpr int kLeastRounds = 5;

struct Options {
  std::vector<std::string> files;
  std::vector<int64_t> widths = {8, 32, 128, 512};
  std::vector<int> threads = {1};
  int rounds = 50;
  double seconds = 2;
  int64_t min_nnz = 10'000;
  bool generated = true;
};

struct Contender {
  std::string name;
  SpmmKernel kernel;
  Layout layout;
  std::vector<float> values;
};

std::string NameOf(BlockShape shape) { return fmt::format("{} x {}", shape.height, shape.width); }

/// Of one thread's processor, which other programs take nothing from; of a team's, by the clock.
double Milliseconds(int threads) {
  if (threads == 1) {
    timespec used = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return 1e3 * static_cast<double>(used.tv_sec) + 1e-6 * static_cast<double>(used.tv_nsec);
  }
  return std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

Contender Enter(std::string name, const SpmmKernel& kernel, Layout layout,
                const std::vector<float>& values) {
  std::vector<float> slots(layout.value_slots);
  PlaceValues(layout, ElementType::kF32, values.data(), slots.data(), 1);
  return {std::move(name), kernel, std::move(layout), std::move(slots)};
}

/// Median milliseconds of each.
std::map<std::string, double> Time(const std::vector<Contender>& contenders, int64_t k, int threads,
                                   const Options& options) {
  const Layout& shape = contenders.front().layout;
  const std::vector<double> random = test::RandomValues(shape.cols * k, 5);
  const std::vector<float> b(random.begin(), random.end());
  const Buffer result =
      HeapMemory().Allocate(static_cast<size_t>(shape.rows * k) * sizeof(float)).value();
  auto* const c = const_cast<std::byte*>(result.data());
  std::vector<std::byte> workspace;
  std::map<std::string, std::vector<double>> times;
  std::set<std::string> hopeless;
  const auto begin = Clock::now();
  for (int round = 0; round <= options.rounds; ++round) {
    double fastest = 0;
    for (const Contender& one : contenders) {
      if (hopeless.contains(one.name)) continue;
      const Problem problem = {.k = k};
      if (!one.kernel.supports(problem, one.layout)) continue;
      const size_t bytes = one.kernel.workspace(problem, one.layout, threads);
      if (bytes > workspace.size()) workspace.resize(bytes);
      const double start = Milliseconds(threads);
      const absl::Status status = one.kernel.run(
          {.threads = threads, .workspace = workspace}, problem,
          {one.layout, one.values.data(), {b.data(), shape.cols, k, k}, {c, shape.rows, k, k}});
      const double elapsed = Milliseconds(threads) - start;
      if (!status.ok()) std::abort();
      times[one.name].push_back(elapsed);
      fastest = fastest == 0 ? elapsed : std::min(fastest, elapsed);
    }
    // The first round warms up; the second one shows who need not come again.
    if (round == 0) times.clear();
    if (round == 1) {
      for (const auto& [name, list] : times) {
        if (list.front() > kHopeless * fastest) hopeless.insert(name);
      }
    }
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    if (round >= kLeastRounds && elapsed.count() > options.seconds) break;
  }
  std::map<std::string, double> medians;
  for (const auto& [name, list] : times) medians[name] = Median(list);
  return medians;
}

void Measure(const std::string& name, const test::Pattern& pattern, const Options& options) {
  const std::vector<double> random = test::RandomValues(pattern.nnz(), 2);
  const std::vector<float> values(random.begin(), random.end());
  BuildContext context;
  context.memory = &HeapMemory();
  std::vector<Contender> contenders;
  for (const SpmmKernel& kernel : SpmmKernels()) {
    if (kernel.device != DeviceKind::kCpu || kernel.layout_kind != kCsr) continue;
    contenders.push_back(
        Enter(std::string(kernel.name), kernel, test::PlainLayout(pattern), values));
  }
  Json fills;
  for (int64_t height = 1; height <= kMostBlockSide; ++height) {
    for (int64_t width = 1; width <= kMostBlockSide; ++width) {
      const BlockShape shape = {height, width};
      absl::StatusOr<Layout> layout = BuildBcsr(pattern.view(), shape, context);
      if (!layout.ok()) continue;
      fills[NameOf(shape)] =
          static_cast<double>(layout->nnz) / static_cast<double>(layout->value_slots);
      contenders.push_back(Enter(NameOf(shape), cpu::BcsrSpmm(), *std::move(layout), values));
    }
  }
  if (fills.size() < 2) return;
  const auto begin = Clock::now();
  const absl::StatusOr<ChosenBlocks> chosen = ChooseBlockShape(pattern.view());
  const std::chrono::duration<double, std::milli> choosing = Clock::now() - begin;
  for (const int64_t k : options.widths) {
    for (const int threads : options.threads) {
      Json line = {{"matrix", name},
                   {"rows", pattern.rows},
                   {"nnz", pattern.nnz()},
                   {"type", "f32"},
                   {"k", k},
                   {"threads", threads},
                   {"chosen", nullptr},
                   {"choosing_ms", choosing.count()}};
      if (chosen.ok() && chosen->cost < 1) {
        line["chosen"] = NameOf(chosen->shape);
        line["estimated_fill"] = chosen->fill;
      }
      line["fill"] = fills;
      line["ms"] = Time(contenders, k, threads, options);
      std::printf("%s\n", line.dump().c_str());
      std::fflush(stdout);
    }
  }
}

/// Blocks of one shape at random places.
void MeasureGenerated(const Options& options) {
  for (const BlockShape shape :
       {BlockShape{2, 1}, {3, 1}, {1, 2}, {1, 3}, {2, 2}, {3, 3}, {4, 4}, {6, 6}, {8, 8}}) {
    const int64_t side = std::max(shape.height, shape.width);
    const test::Pattern places = test::Uniform(24'000 / side, 24'000 / side, 16, 1);
    Measure(fmt::format("blocks-{}x{}", shape.height, shape.width),
            test::InBlocks(places, static_cast<int32_t>(shape.height),
                           static_cast<int32_t>(shape.width)),
            options);
  }
}

}  // namespace
}  // namespace sparsed

int main(int argc, char** argv) {
  sparsed::Options options;
  CLI::App app("SpMM from dense blocks of every shape next to plain CSR");
  app.add_option("matrices", options.files, "Matrix Market files, plain or .gz");
  app.add_flag("--generated,!--not-generated", options.generated,
               "blocks of one shape at random places");
  app.add_option("--k", options.widths, "widths of the dense operand")->delimiter(',');
  app.add_option("--threads", options.threads, "team sizes")->delimiter(',');
  app.add_option("--rounds", options.rounds, "rounds at most");
  app.add_option("--seconds", options.seconds, "seconds for a measurement, at least 5 rounds");
  app.add_option("--min-nnz", options.min_nnz, "smallest matrix");
  CLI11_PARSE(app, argc, argv);
  if (options.generated) sparsed::MeasureGenerated(options);
  for (const std::string& file : options.files) {
    const auto matrix = sparsed::test::ReadMatrixMarket(file);
    if (!matrix || matrix->pattern.nnz() < options.min_nnz) continue;
    const std::string name = std::filesystem::path(file).filename();
    sparsed::Measure(name.substr(0, name.find(".mtx")), matrix->pattern, options);
  }
  return 0;
}
