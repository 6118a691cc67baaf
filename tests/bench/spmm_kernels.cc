// The CPU's SpMM and SDDMM kernels from CSR, f32, next to Eigen and to plain loops, alternating in
// one run. A line of JSON for each measurement, then one for each group with the geometric mean of
// the rival's time over ours, and the smallest such ratio.
//
//   bench_kernels --data=DIR_OF_MTX_FILES [--op=spmm] [--k=32] [--threads=2] [--only=NAME]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/sddmm/sddmm.h"
#include "kernels/cpu/spmm/spmm.h"
#include "tests/bench/dense_rivals.h"
#include "tests/generate.h"
#include "tests/matrix_market.h"

namespace sparsed {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string data;
  std::vector<std::string> only;
  std::vector<std::string> operations = {"spmm", "spmm^T", "spmm^T layout", "sddmm"};
  std::vector<int64_t> widths = {32, 128, 512};
  std::vector<int> threads = {1, 2};
  int rounds = 30;
  double seconds = 0.5;
  int64_t min_nnz = 100'000;
};

/// Dense elements, aligned as the engine's are.
class Elements {
 public:
  explicit Elements(int64_t count, uint64_t seed = 0)
      : buffer_(HeapMemory().Allocate(count * sizeof(float)).value()) {
    for (int64_t i = 0; i < count; ++i) {
      data()[i] =
          static_cast<float>((static_cast<uint64_t>(i) + seed) * 2654435761u % 2000) / 1000.0f -
          1.0f;
    }
  }
  float* data() { return reinterpret_cast<float*>(buffer_.mutable_data()); }

 private:
  Buffer buffer_;
};

/// Smallest milliseconds of each of several works, run in turns so that noise meets all: what the
/// work takes when nothing else runs.
std::map<std::string, double> SmallestTimes(
    const std::vector<std::pair<std::string, std::function<void()>>>& works,
    const Options& options) {
  std::map<std::string, std::vector<double>> times;
  const auto begin = Clock::now();
  // The first round only warms up.
  for (int round = 0; round <= options.rounds; ++round) {
    for (const auto& [name, work] : works) {
      const auto start = Clock::now();
      work();
      const std::chrono::duration<double, std::milli> elapsed = Clock::now() - start;
      if (round > 0) times[name].push_back(elapsed.count());
    }
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    if (round >= 5 && elapsed.count() > options.seconds) break;
  }
  std::map<std::string, double> smallest;
  for (const auto& [name, list] : times) {
    smallest[name] = *std::min_element(list.begin(), list.end());
  }
  return smallest;
}

/// Ratios by group.
struct Summary {
  std::map<std::string, std::vector<double>> ratios;

  void Print() const {
    for (const auto& [group, values] : ratios) {
      double logarithms = 0;
      for (const double v : values) logarithms += std::log(v);
      const Json line = {{"summary", group},
                         {"measurements", values.size()},
                         {"geometric_mean_ratio", std::exp(logarithms / values.size())},
                         {"min_ratio", *std::min_element(values.begin(), values.end())}};
      std::printf("%s\n", line.dump().c_str());
    }
  }
};

/// Bytes per millisecond of a large "scale" with this team: what the rooflines are made of.
double Bandwidth(int threads) {
  static std::map<int, double> measured;
  if (!measured.contains(threads)) {
    const int64_t count = 64 << 20;
    Elements from(count), to(count);
    Options options;
    options.rounds = 5;
    const double ms = SmallestTimes(
        {{"scale", [&] { rivals::StreamScale(from.data(), 3, count, threads, to.data()); }}},
        options)["scale"];
    // Read, written, and read before it is written.
    measured[threads] = 12.0 * static_cast<double>(count) / ms;
    std::printf("%s\n",
                Json({{"threads", threads}, {"scale_gb_per_second", measured[threads] / 1e6}})
                    .dump()
                    .c_str());
  }
  return measured[threads];
}

class MatrixBench {
 public:
  MatrixBench(std::string name, const test::Pattern& pattern, const std::vector<double>& values,
              const Options& options, Summary& summary)
      : name_(std::move(name)),
        pattern_(pattern),
        values_(values.begin(), values.end()),
        layout_(test::PlainLayout(pattern)),
        options_(options),
        summary_(summary) {}

  void Run() {
    for (const std::string& operation : options_.operations) {
      for (const int64_t k : options_.widths) {
        for (const int threads : options_.threads) {
          if (operation == "sddmm") {
            Sddmm(k, threads);
          } else {
            Spmm(operation, k, threads);
          }
        }
      }
    }
  }

 private:
  /// "spmm": S * B. "spmm^T": S^T * B by scattering. "spmm^T layout": from a layout of S^T.
  void Spmm(const std::string& operation, int64_t k, int threads) {
    const bool transposed = operation != "spmm";
    const bool scatter = operation == "spmm^T";
    const SpmmKernel kernel = scatter ? cpu::CsrTransposedSpmm() : cpu::CsrSpmm();
    const Layout layout =
        transposed && !scatter ? test::PermutedLayout(pattern_, {}, true) : layout_;
    std::vector<float> slots(layout.value_slots);
    PlaceValues(layout, ElementType::kF32, values_.data(), slots.data(), threads);
    const int64_t in = transposed ? pattern_.rows : pattern_.cols;
    const int64_t out = transposed ? pattern_.cols : pattern_.rows;
    Elements b(in * k, 1), c(out * k), rival_c(out * k);
    const Problem problem = {.transposed = scatter, .k = k};
    std::vector<std::byte> workspace;
    std::vector<std::pair<std::string, std::function<void()>>> works;
    const auto add = [&](std::string_view what, const SpmmKernel& contender) {
      workspace.resize(std::max(workspace.size(), contender.workspace(problem, layout, threads)));
      works.emplace_back(what, [&, run = contender.run] {
        const absl::Status status =
            run({.threads = threads, .workspace = workspace}, problem,
                {layout, slots.data(), {b.data(), in, k, k}, {c.data(), out, k, k}});
        if (!status.ok()) std::abort();
      });
    };
    add("ours", kernel);
    for (const SpmmKernel& other : SpmmKernels()) {
      if (other.name != kernel.name && other.supports(problem, layout)) add(other.name, other);
    }
    std::optional<rivals::EigenSpmm> eigen;
    if (rivals::EigenSpmm::Available()) {
      eigen.emplace(pattern_.view(), values_.data(), transposed);
      works.emplace_back("eigen", [&] { eigen->Run(b.data(), k, threads, rival_c.data()); });
    }
    if (!transposed) {
      works.emplace_back("plain", [&] {
        rivals::PlainSpmm(pattern_.view(), values_.data(), b.data(), k, threads, rival_c.data());
      });
    }
    Report(operation, std::string(kernel.name), k, threads, works, eigen ? "eigen" : "plain",
           4.0 * static_cast<double>(in + out) * static_cast<double>(k));
  }

  void Sddmm(int64_t k, int threads) {
    const SddmmKernel kernel = cpu::CsrSddmm();
    Elements a(pattern_.rows * k, 1), b(pattern_.cols * k, 2), out(pattern_.nnz()),
        rival_out(pattern_.nnz());
    const Problem problem = {.operation = Operation::kSddmm, .k = k};
    std::vector<std::byte> workspace;
    std::vector<std::pair<std::string, std::function<void()>>> works;
    const auto add = [&](std::string_view what, const SddmmKernel& contender) {
      workspace.resize(std::max(workspace.size(), contender.workspace(problem, layout_, threads)));
      works.emplace_back(what, [&, run = contender.run] {
        const absl::Status status = run({.threads = threads, .workspace = workspace}, problem,
                                        {layout_,
                                         values_.data(),
                                         {a.data(), pattern_.rows, k, k},
                                         {b.data(), pattern_.cols, k, k},
                                         out.data()});
        if (!status.ok()) std::abort();
      });
    };
    add("ours", kernel);
    for (const SddmmKernel& other : SddmmKernels()) {
      if (other.name != kernel.name && other.supports(problem, layout_)) add(other.name, other);
    }
    works.emplace_back("plain", [&] {
      rivals::PlainSddmm(pattern_.view(), values_.data(), a.data(), b.data(), k, threads,
                         rival_out.data());
    });
    Report("sddmm", std::string(kernel.name), k, threads, works, "plain",
           4.0 * static_cast<double>(pattern_.rows + pattern_.cols) * static_cast<double>(k) +
               4.0 * static_cast<double>(pattern_.nnz()));
  }

  void Report(const std::string& operation, const std::string& kernel, int64_t k, int threads,
              const std::vector<std::pair<std::string, std::function<void()>>>& works,
              const std::string& rival, double operand_bytes) {
    const double nnz = static_cast<double>(pattern_.nnz());
    // Every operand moved once; the multiplications are never the limit.
    const double roofline_ms =
        (operand_bytes + 8 * nnz + 8.0 * static_cast<double>(pattern_.rows)) / Bandwidth(threads);
    auto times = SmallestTimes(works, options_);
    Json line = {{"matrix", name_}, {"op", operation},    {"kernel", kernel},        {"k", k},
                 {"type", "f32"},   {"threads", threads}, {"ours_ms", times["ours"]}};
    for (const auto& [what, ms] : times) {
      if (what != "ours") line[what + "_ms"] = ms;
    }
    line["gflops"] = 2 * nnz * static_cast<double>(k) / times["ours"] * 1e-6;
    line["share_of_floor"] = roofline_ms / times["ours"];
    if (times.contains(rival)) {
      const double ratio = times[rival] / times["ours"];
      line["ratio"] = ratio;
      summary_.ratios[operation].push_back(ratio);
      summary_
          .ratios[operation + ", k " + std::to_string(k) + ", threads " + std::to_string(threads)]
          .push_back(ratio);
    }
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }

  const std::string name_;
  const test::Pattern& pattern_;
  const std::vector<float> values_;
  const Layout layout_;
  const Options& options_;
  Summary& summary_;
};

bool Wanted(const Options& options, const std::string& name) {
  return options.only.empty() ||
         std::find(options.only.begin(), options.only.end(), name) != options.only.end();
}

void MeasureAll(const Options& options, Summary& summary) {
  const std::pair<const char*, std::function<test::Pattern()>> generated[] = {
      {"band-200k-15", [] { return test::Band(200'000, 15); }},
      {"stencil-1024x1024", [] { return test::Stencil(1024, 1024); }},
      {"uniform-100k-16", [] { return test::Uniform(100'000, 100'000, 16, 1); }},
      {"rmat-16-8", [] { return test::Rmat(16, 8, 1); }},
  };
  for (const auto& [name, make] : generated) {
    if (!Wanted(options, name)) continue;
    const test::Pattern pattern = make();
    MatrixBench(name, pattern, test::RandomValues(pattern.nnz(), 2), options, summary).Run();
  }
  if (options.data.empty()) return;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(options.data)) {
    if (entry.path().filename().string().find(".mtx") != std::string::npos) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    const std::string name = file.filename().string();
    const std::string stem = name.substr(0, name.find(".mtx"));
    if (!Wanted(options, stem)) continue;
    const std::optional<test::Matrix> matrix = test::ReadMatrixMarket(file.string());
    if (!matrix.has_value() || matrix->pattern.nnz() < options.min_nnz) continue;
    MatrixBench(stem, matrix->pattern, matrix->values, options, summary).Run();
  }
}

}  // namespace
}  // namespace sparsed

int main(int argc, char** argv) {
  sparsed::Options options;
  CLI::App app{"Times the CPU's SpMM and SDDMM kernels next to Eigen and plain loops"};
  app.add_option("--data", options.data, "folder of Matrix Market files");
  app.add_option("--only", options.only, "names of matrices");
  app.add_option("--op", options.operations, "spmm, spmm^T, spmm^T layout, sddmm");
  app.add_option("--k", options.widths, "widths");
  app.add_option("--threads", options.threads, "team sizes");
  app.add_option("--rounds", options.rounds, "rounds at most");
  app.add_option("--seconds", options.seconds, "seconds for a measurement, at least 5 rounds");
  app.add_option("--min-nnz", options.min_nnz, "smallest matrix");
  CLI11_PARSE(app, argc, argv);
  sparsed::Summary summary;
  sparsed::MeasureAll(options, summary);
  summary.Print();
  return 0;
}
