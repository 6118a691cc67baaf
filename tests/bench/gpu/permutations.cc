// The row permutations of Mehrabi et al. with the kernel that they were made for, beside cuSPARSE:
// what their figures 3 and 8 and table I show. A line of JSON a measurement on standard output.
// Square matrices of at most 30,000 rows, as there; B and C are as wide as S, up to --most-k.
//
//   bench_permutations --pack matrices.xz > permutations.jsonl
#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/pipeline.h"
#include "tests/bench/gpu/device.h"
#include "tests/bench/gpu/output_stationary.h"
#include "tests/matrix_market.h"
#include "tests/matrix_pack.h"

namespace sparsed::test {
namespace {

constexpr int64_t kMostRows = 30'000;
constexpr int kRounds = 9;
constexpr double kTolerance = 1e-5;
/// Rows dealt to 32 warps, 32 lanes to a row's nonzeros, 32 columns to a cache line.
constexpr const char* kByLoad = "lanes=32";
constexpr const char* kByMask = "lanes=32,mask_columns=32";

std::vector<std::string> Pipelines() {
  std::vector<std::string> pipelines = {"csr", "dcsr"};
  for (const char* sort : {"plain", "flipped", "lpt"}) {
    pipelines.push_back(fmt::format("{}_sort({})", sort, kByLoad));
  }
  for (const char* sort : {"warp", "cta", "hybrid1", "hybrid21", "hybrid22", "hybrid23"}) {
    pipelines.push_back(fmt::format("{}_sort({})", sort, kByMask));
  }
  return pipelines;
}

/// The element of B at `at`, column by column.
float ElementOfB(int64_t at) {
  return static_cast<float>((at * 2654435761 >> 7) % 2001 - 1000) / 1000;
}

class MatrixRun {
 public:
  MatrixRun(Device& device, const NamedPattern& matrix, int64_t k)
      : device_(device), matrix_(matrix), pattern_(matrix.pattern), k_(k) {}

  absl::Status Run() {
    std::vector<float> b(pattern_.cols * k_);
    for (size_t i = 0; i < b.size(); ++i) b[i] = ElementOfB(static_cast<int64_t>(i));
    auto on_device = device_.Upload(b.data(), b.size() * sizeof(float));
    if (!on_device.ok()) return on_device.status();
    b_ = *std::move(on_device);
    auto c = device_.Allocate(pattern_.rows * k_ * sizeof(float));
    if (!c.ok()) return c.status();
    c_ = *std::move(c);
    for (const double value : RandomValues(pattern_.nnz(), 3)) {
      values_.push_back(static_cast<float>(value));
    }
    for (const std::string& pipeline : Pipelines()) {
      const absl::Status status = RunLayout(pipeline);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status RunLayout(const std::string& pipeline) {
    BuildContext context;
    context.threads = omp_get_max_threads();
    context.memory = &HeapMemory();
    const auto begin = std::chrono::steady_clock::now();
    auto built = BuildLayout(ParsePipeline(pipeline).value(), pattern_.view(), context);
    const std::chrono::duration<double, std::milli> preparation =
        std::chrono::steady_clock::now() - begin;
    if (!built.ok()) return built.status();
    const Layout& host = built->layout;
    auto layout = device_.Upload(host);
    if (!layout.ok()) return layout.status();
    std::vector<float> slots(host.value_slots);
    PlaceValues(host, ElementType::kF32, values_.data(), slots.data(), context.threads);
    const auto values = device_.Upload(slots.data(), slots.size() * sizeof(float));
    if (!values.ok()) return values.status();
    const ColumnMajorSpmm product = {*layout, reinterpret_cast<const float*>(values->data()),
                                     reinterpret_cast<const float*>(b_.data()),
                                     reinterpret_cast<float*>(c_.mutable_data()), k_};
    for (const Strip strip : {Strip::kOneColumn, Strip::kFourColumns}) {
      absl::Status status = device_.Fill(c_.mutable_data(), 0xff, c_.size());
      if (!status.ok()) return status;
      const auto median = device_.MedianMilliseconds(
          kRounds, [&] { return RunOutputStationary(device_.ContextWith({}), strip, product); });
      if (!median.ok()) return median.status();
      status = Check();
      if (!status.ok())
        return absl::InternalError(fmt::format("{}: {}", pipeline, std::string(status.message())));
      Print(fmt::format("output_stationary.{}", static_cast<int>(strip)), pipeline, *median,
            preparation.count());
    }
    if (pipeline != "csr") return absl::OkStatus();
    const auto columns = CusparseColumnMajor(device_, product, kRounds);
    if (!columns.ok()) return columns.status();
    Print("cusparse.column_major", pipeline, *columns, 0);
    return RunCusparseRowMajor(*layout, values->data());
  }

  /// By the kernels of the table, on the same memory: what the elements are does not matter.
  absl::Status RunCusparseRowMajor(const Layout& layout, const void* values) {
    const Problem problem = {.operation = Operation::kSpmm,
                             .type = ElementType::kF32,
                             .k = k_,
                             .device = DeviceKind::kCuda};
    const SpmmArguments arguments = {layout,
                                     values,
                                     {b_.data(), pattern_.cols, k_, k_},
                                     {c_.mutable_data(), pattern_.rows, k_, k_}};
    double best = INFINITY;
    for (const SpmmKernel& kernel : SpmmKernels()) {
      if (!kernel.from_library || !kernel.supports(problem, layout)) {
        continue;
      }
      Context context = device_.ContextWith({});
      const auto prepared = kernel.prepare(context, problem, arguments, device_);
      if (!prepared.ok()) return prepared.status();
      context.prepared = prepared->get();
      const auto median = device_.MedianMilliseconds(
          kRounds, [&] { return kernel.run(context, problem, arguments); });
      if (!median.ok()) return median.status();
      best = std::min(best, *median);
    }
    Print("cusparse.row_major", "csr", best, 0);
    return absl::OkStatus();
  }

  /// Some rows of the first and the last column against sums in float64.
  absl::Status Check() {
    for (const int64_t column : {int64_t{0}, k_ - 1}) {
      std::vector<float> got(pattern_.rows);
      absl::Status status =
          device_.Copy(got.data(), c_.data() + column * pattern_.rows * sizeof(float),
                       got.size() * sizeof(float));
      if (status.ok()) status = device_.Finish();
      if (!status.ok()) return status;
      for (int64_t row = 0; row < pattern_.rows; ++row) {
        double sum = 0, magnitude = 0;
        for (int64_t p = pattern_.row_offsets[row]; p < pattern_.row_offsets[row + 1]; ++p) {
          const double term = static_cast<double>(values_[p]) *
                              ElementOfB(column * pattern_.cols + pattern_.column_indices[p]);
          sum += term;
          magnitude += std::abs(term);
        }
        if (!(std::abs(got[row] - sum) <= kTolerance * magnitude)) {
          return absl::InternalError(
              fmt::format("C[{}, {}] is {}, not {}", row, column, got[row], sum));
        }
      }
    }
    return absl::OkStatus();
  }

  void Print(const std::string& kernel, const std::string& pipeline, double ms,
             double preparation_ms) const {
    const nlohmann::ordered_json line = {{"matrix", matrix_.name},
                                         {"rows", pattern_.rows},
                                         {"nnz", pattern_.nnz()},
                                         {"k", k_},
                                         {"kernel", kernel},
                                         {"layout", pipeline},
                                         {"ms", ms},
                                         {"preparation_ms", preparation_ms},
                                         {"device", device_.name()}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }

  Device& device_;
  const NamedPattern& matrix_;
  const Pattern& pattern_;
  const int64_t k_;
  Buffer b_, c_;
  std::vector<float> values_;
};

int Main(int argc, char** argv) {
  CLI::App app("Times the papers' row permutations with the kernel that they were made for");
  std::vector<std::string> packs;
  int64_t most_k = 2048;
  app.add_option("--pack", packs, "files that `sparsed_bench pack` made")->required();
  app.add_option("--most-k", most_k, "the most columns of B")
      ->check(CLI::Range(1, 30'000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto device = Device::Open(DeviceKind::kCuda);
  if (!device.ok()) {
    std::fprintf(stderr, "bench_permutations: %s\n",
                 std::string(device.status().message()).c_str());
    return 1;
  }
  for (const std::string& pack : packs) {
    const auto patterns = ReadMatrixPack(pack);
    if (!patterns.ok()) {
      std::fprintf(stderr, "%s: %s\n", pack.c_str(),
                   std::string(patterns.status().message()).c_str());
      return 1;
    }
    for (const NamedPattern& matrix : *patterns) {
      const Pattern& s = matrix.pattern;
      if (s.rows != s.cols || s.rows > kMostRows || s.nnz() == 0) continue;
      const absl::Status status = MatrixRun(**device, matrix, std::min(s.rows, most_k)).Run();
      if (!status.ok()) {
        std::fprintf(stderr, "%s: %s\n", matrix.name.c_str(),
                     std::string(status.message()).c_str());
        return 1;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) { return sparsed::test::Main(argc, argv); }
