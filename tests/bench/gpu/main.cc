// Every GPU kernel on given and generated matrices, side by side in one run: a line of JSON for
// each measurement with the median of single event-timed calls. Caches are not flushed. Results are
// checked on sampled rows against float64 sums; a wrong one ends the program with 1.
//
//   sparsed_bench spmm|sddmm [--matrix FILE...] [--generated NAME...] [--k 32,128,512] [--type f32]
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "kernels/recipe.h"
#include "tests/bench/gpu/generated.h"
#include "tests/gpu/gpu.h"
#include "tests/matrix_market.h"

namespace sparsed::test {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> files;
  std::vector<std::string> generated;
  std::vector<std::string> recipes;
  std::vector<int64_t> widths = {32, 128, 512};
  std::string type = "f32";
  int rounds = 15;
  double copy_rate = 3010;  ///< GB/s, read and written: what the floor is counted with
};

/// A dense operand whose element i is pool[i % period], so that any part of it is known here.
template <typename T>
class Pooled {
 public:
  Pooled(Gpu& gpu, int64_t count, uint64_t seed) : buffer_(gpu.Allocate(count * sizeof(T))) {
    for (const double value : RandomValues(kPeriod, seed)) pool_.push_back(static_cast<T>(value));
    const Buffer pool = gpu.Upload(pool_.data(), kPeriod * sizeof(T));
    for (int64_t i = 0; i < count; i += kPeriod) {
      Must(gpu.stream().Copy(buffer_.mutable_data() + i * sizeof(T), pool.data(),
                             std::min(kPeriod, count - i) * sizeof(T)));
    }
    Must(gpu.stream().Synchronize());
  }
  const T* device() const { return reinterpret_cast<const T*>(buffer_.data()); }
  double at(int64_t i) const { return pool_[i % kPeriod]; }

 private:
  static constexpr int64_t kPeriod = 1'000'003;
  std::vector<T> pool_;
  Buffer buffer_;
};

struct Subject {
  std::string name;
  Pattern pattern;
};

/// Median milliseconds of single calls.
template <typename Call>
double Time(Gpu& gpu, int rounds, Call call) {
  absl::StatusOr<cuda::Event> begin = cuda::Event::Create(), end = cuda::Event::Create();
  Must(begin.status());
  Must(end.status());
  std::vector<double> times;
  for (int i = 0; i < rounds + 2; ++i) {
    Must(begin->Record(gpu.stream()));
    call();
    Must(end->Record(gpu.stream()));
    Must(end->Synchronize());
    if (i >= 2) times.push_back(*end->MillisecondsSince(*begin));
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

template <typename T>
class Bench {
 public:
  Bench(Gpu& gpu, const Options& options) : gpu_(gpu), options_(options) {}

  void Spmm(const Subject& subject, bool transposed, const Layout& host);
  void Sddmm(const Subject& subject, const Layout& host);

 private:
  Json Line(const Subject& subject, const std::string& op, std::string_view kernel,
            const Layout& layout, int64_t k, double ms, double floor_bytes) const {
    const double nnz = static_cast<double>(subject.pattern.nnz());
    return {{"matrix", subject.name},
            {"op", op},
            {"kernel", kernel},
            {"layout", layout.recipe},
            {"k", k},
            {"type", options_.type},
            {"ms", ms},
            {"gflops", 2 * nnz * static_cast<double>(k) / ms / 1e6},
            {"floor_share", floor_bytes / options_.copy_rate / 1e6 / ms},
            {"device", gpu_.info().name}};
  }
  /// The operands' rows that are read, counted once.
  static double RowsUsed(const Pattern& pattern) {
    std::vector<char> used(pattern.cols);
    for (const int32_t column : pattern.column_indices) used[column] = 1;
    return static_cast<double>(std::count(used.begin(), used.end(), 1));
  }

  Gpu& gpu_;
  const Options& options_;
};

template <typename T>
Buffer UploadValues(Gpu& gpu, const Layout& layout, const std::vector<double>& values) {
  const std::vector<T> rounded(values.begin(), values.end());
  std::vector<T> slots(layout.value_slots);
  PlaceValues(layout, ElementTypeOf<T>(), rounded.data(), slots.data(), 1);
  return gpu.Upload(slots.data(), slots.size() * sizeof(T));
}

template <typename T>
constexpr double kTolerance = sizeof(T) == 4 ? 1e-4 : 1e-11;

template <typename T>
void Bench<T>::Spmm(const Subject& subject, bool transposed, const Layout& host) {
  const Pattern shape = transposed ? Transpose(subject.pattern) : subject.pattern;
  const std::vector<double> values = RandomValues(subject.pattern.nnz(), 3);
  std::vector<int64_t> source;
  if (transposed) Transpose(subject.pattern, &source);
  const Layout layout = gpu_.Upload(host);
  const Buffer slots = UploadValues<T>(gpu_, host, values);
  const double used = RowsUsed(shape);
  for (const int64_t k : options_.widths) {
    const Pooled<T> b(gpu_, shape.cols * k, 4);
    Buffer c = gpu_.Allocate(shape.rows * k * sizeof(T));
    const Problem problem = {.operation = Operation::kSpmm,
                             .transposed = transposed != host.transposed,
                             .type = ElementTypeOf<T>(),
                             .k = k,
                             .device = DeviceKind::kCuda};
    const double floor_bytes = static_cast<double>(sizeof(T)) * k * (used + shape.rows) +
                               static_cast<double>(shape.nnz()) * (4 + sizeof(T)) +
                               8.0 * shape.rows;
    for (const SpmmKernel& kernel : SpmmKernels()) {
      if (kernel.device != DeviceKind::kCuda || kernel.layout_kind != layout.kind ||
          !kernel.supports(problem, layout)) {
        continue;
      }
      const size_t bytes = kernel.workspace(problem, layout, 1);
      Buffer workspace = gpu_.Allocate(bytes);
      Must(gpu_.stream().Fill(c.mutable_data(), 0xff, shape.rows * k * sizeof(T)));
      const auto call = [&] {
        Must(kernel.run(
            {.workspace = {workspace.mutable_data(), bytes}, .stream = gpu_.stream().handle()},
            problem,
            {layout,
             slots.data(),
             {b.device(), shape.cols, k, k},
             {c.mutable_data(), shape.rows, k, k}}));
      };
      const double ms = Time(gpu_, options_.rounds, call);
      std::vector<T> row(k);
      double worst = 0;
      for (int64_t i = 0; i < 64; ++i) {
        const int64_t r = i * (shape.rows - 1) / 63;
        gpu_.Download(row.data(), c.data() + r * k * sizeof(T), k * sizeof(T));
        for (int64_t j = 0; j < k; ++j) {
          double sum = 0, magnitude = 1e-30;
          for (int64_t p = shape.row_offsets[r]; p < shape.row_offsets[r + 1]; ++p) {
            const double term = static_cast<T>(values[transposed ? source[p] : p]) *
                                b.at(shape.column_indices[p] * k + j);
            sum += term;
            magnitude += std::abs(term);
          }
          const double error = std::abs(row[j] - sum) / magnitude;
          worst = error <= worst ? worst : error;
          if (std::isnan(error)) worst = 1;
        }
      }
      std::printf("%s\n", Line(subject, transposed ? "spmm^T" : "spmm", kernel.name, layout, k, ms,
                               floor_bytes)
                              .dump()
                              .c_str());
      std::fflush(stdout);
      if (worst > kTolerance<T>)
        Must(absl::InternalError("wrong result, error " + std::to_string(worst)));
    }
  }
}

template <typename T>
void Bench<T>::Sddmm(const Subject& subject, const Layout& host) {
  const Pattern& pattern = subject.pattern;
  const std::vector<double> values = RandomValues(pattern.nnz(), 3);
  const Layout layout = gpu_.Upload(host);
  const Buffer slots = UploadValues<T>(gpu_, host, values);
  const double used = RowsUsed(pattern);
  for (const int64_t k : options_.widths) {
    const Pooled<T> a(gpu_, pattern.rows * k, 5), b(gpu_, pattern.cols * k, 6);
    Buffer out = gpu_.Allocate(pattern.nnz() * sizeof(T));
    const Problem problem = {.operation = Operation::kSddmm,
                             .type = ElementTypeOf<T>(),
                             .k = k,
                             .device = DeviceKind::kCuda};
    const double floor_bytes = static_cast<double>(sizeof(T)) * k * (used + pattern.rows) +
                               static_cast<double>(pattern.nnz()) * (4 + 2 * sizeof(T)) +
                               8.0 * pattern.rows;
    for (const SddmmKernel& kernel : SddmmKernels()) {
      if (kernel.device != DeviceKind::kCuda || kernel.layout_kind != layout.kind ||
          !kernel.supports(problem, layout)) {
        continue;
      }
      const size_t bytes = kernel.workspace(problem, layout, 1);
      Buffer workspace = gpu_.Allocate(bytes);
      Must(gpu_.stream().Fill(out.mutable_data(), 0xff, pattern.nnz() * sizeof(T)));
      const double ms = Time(gpu_, options_.rounds, [&] {
        Must(kernel.run(
            {.workspace = {workspace.mutable_data(), bytes}, .stream = gpu_.stream().handle()},
            problem,
            {layout,
             slots.data(),
             {a.device(), pattern.rows, k, k},
             {b.device(), pattern.cols, k, k},
             out.mutable_data()}));
      });
      std::vector<T> got(pattern.nnz());
      gpu_.Download(got.data(), out.data(), got.size() * sizeof(T));
      bool wrong = false;
      for (int64_t i = 0; i < 64; ++i) {
        const int64_t r = i * (pattern.rows - 1) / 63;
        for (int64_t p = pattern.row_offsets[r]; p < pattern.row_offsets[r + 1]; ++p) {
          double sum = 0, magnitude = 1e-30;
          for (int64_t j = 0; j < k; ++j) {
            const double term = a.at(r * k + j) * b.at(pattern.column_indices[p] * k + j);
            sum += term;
            magnitude += std::abs(term);
          }
          const double value = static_cast<T>(values[p]);
          wrong |= !(std::abs(got[p] - value * sum) <=
                     kTolerance<T> * std::abs(value) * magnitude + 1e-30);
        }
      }
      std::printf("%s\n",
                  Line(subject, "sddmm", kernel.name, layout, k, ms, floor_bytes).dump().c_str());
      std::fflush(stdout);
      if (wrong) Must(absl::InternalError("wrong result"));
    }
  }
}

/// Plain CSR, and what the recipes make of it.
template <typename T>
void RunOn(Gpu& gpu, const Options& options, const std::string& op, const Subject& subject) {
  Bench<T> bench(gpu, options);
  BuildContext context;
  context.threads = omp_get_max_threads();
  context.memory = &HeapMemory();
  for (const std::string& recipe : options.recipes) {
    const auto parsed = ParseRecipe(recipe);
    Must(parsed.status());
    const auto built = BuildLayout(*parsed, subject.pattern.view(), context);
    Must(built.status());
    std::fprintf(stderr, "%s, %s: %s\n", subject.name.c_str(), recipe.c_str(),
                 built->notes.c_str());
    if (built->skipped) continue;
    if (op == "sddmm") {
      bench.Sddmm(subject, built->layout);
    } else {
      bench.Spmm(subject, op == "spmm^T", built->layout);
    }
  }
  if (op == "sddmm") {
    bench.Sddmm(subject, PlainLayout(subject.pattern));
  } else if (op == "spmm") {
    bench.Spmm(subject, false, PlainLayout(subject.pattern));
  } else {
    bench.Spmm(subject, true, PlainLayout(subject.pattern));
    bench.Spmm(subject, true, PermutedLayout(subject.pattern, {}, true));
  }
}

int Main(int argc, char** argv) {
  CLI::App app("Times the GPU kernels");
  Options options;
  std::string op;
  app.add_option("operation", op)->required()->check(CLI::IsMember({"spmm", "spmm^T", "sddmm"}));
  app.add_option("--matrix", options.files, "Matrix Market files");
  app.add_option("--generated", options.generated, "names of generated matrices, or all");
  app.add_option("--recipe", options.recipes, "layouts besides plain CSR");
  app.add_option("--k", options.widths)->delimiter(',');
  app.add_option("--type", options.type)->check(CLI::IsMember({"f32", "f64"}));
  app.add_option("--rounds", options.rounds);
  CLI11_PARSE(app, argc, argv);
  Gpu* gpu = Gpu::Get();
  if (gpu == nullptr) {
    std::fprintf(stderr, "%s\n", Gpu::WhyNot().c_str());
    return 1;
  }
  const auto run = [&](const Subject& subject) {
    if (options.type == "f32") {
      RunOn<float>(*gpu, options, op, subject);
    } else {
      RunOn<double>(*gpu, options, op, subject);
    }
  };
  for (const std::string& file : options.files) {
    std::optional<Matrix> matrix = ReadMatrixMarket(file);
    if (!matrix) {
      std::fprintf(stderr, "cannot read %s\n", file.c_str());
      return 1;
    }
    const std::string name = std::filesystem::path(file).filename();
    run({name.substr(0, name.find(".mtx")), std::move(matrix->pattern)});
  }
  if (options.generated == std::vector<std::string>{"all"}) options.generated = GeneratedNames();
  for (const std::string& name : options.generated) run({name, Generated(name)});
  return 0;
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) { return sparsed::test::Main(argc, argv); }
