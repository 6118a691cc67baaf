#include "tests/bench/gpu/measure.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string_view>

#include "kernels/kernel_table.h"
#include "kernels/pipeline.h"
#include "tests/bench/gpu/expected.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr double kMostMilliseconds = 400;  ///< for the rounds of one kernel, if 3 took that long
constexpr std::string_view kVendor = "cuda.cusparse.";

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// A layout here and on the device.
struct Placed {
  Layout host;
  Layout device;
  double preparation_ms = 0;
  std::string notes;
};

/// A problem signature.
struct Signature {
  std::string operation;  ///< as in Settings
  int64_t k = 0;
  ElementType type = ElementType::kF32;
  bool allow_tf32 = false;

  std::string TypeName() const { return allow_tf32 ? "tf32" : std::string(Name(type)); }
  bool transposed() const { return operation == "spmm^T"; }
  bool sddmm() const { return operation == "sddmm"; }
  std::string ToString() const { return fmt::format("{} {} K={}", operation, TypeName(), k); }
};

/// Bytes that have to be moved: S's indices and values, the operands and the result, once each.
double RooflineBytes(const Pattern& pattern, const Signature& c) {
  const auto size = static_cast<double>(SizeOf(c.type));
  const auto nnz = static_cast<double>(pattern.nnz());
  const auto lines = static_cast<double>(pattern.rows + pattern.cols);
  return size * static_cast<double>(c.k) * lines + nnz * (4 + (c.sddmm() ? 2 : 1) * size) +
         8.0 * static_cast<double>(c.transposed() ? pattern.cols : pattern.rows);
}

class MatrixBench {
 public:
  MatrixBench(Device& device, const Settings& settings, Schedule& schedule,
              const NamedPattern& matrix)
      : device_(device),
        settings_(settings),
        schedule_(schedule),
        matrix_(matrix),
        values_(RandomValues(matrix.pattern.nnz(), 3)) {}

  absl::StatusOr<int> Run();

 private:
  bool Asks(std::string_view operation) const {
    return std::find(settings_.operations.begin(), settings_.operations.end(), operation) !=
           settings_.operations.end();
  }
  void LeaveOut(std::string_view what, std::string_view why) {
    schedule_.LeaveOut(fmt::format("{} {}: {}", matrix_.name, what, why));
  }
  /// Memory that is not to be had leaves `what` out; any other error is one.
  absl::Status Forgive(const absl::Status& status, std::string_view what) {
    if (!absl::IsResourceExhausted(status)) return status;
    LeaveOut(what, std::string(status.message()));
    return absl::OkStatus();
  }

  absl::Status Prepare(const std::string& pipeline);
  template <typename T>
  absl::Status RunType(bool allow_tf32);
  template <typename T>
  absl::Status RunSpmm(const Signature& c);
  template <typename T>
  absl::Status RunSddmm(const Signature& c);
  /// `error` tells how far a result is off; it is poisoned before each kernel's first call.
  template <typename Kernel, typename MakeArguments>
  absl::Status RunKernels(std::span<const Kernel> kernels, const Signature& c, Buffer& result,
                          size_t result_bytes, double tolerance, const MakeArguments& arguments,
                          const std::function<absl::StatusOr<double>()>& error);
  /// Milliseconds of single calls, ascending.
  template <typename Kernel, typename Arguments>
  absl::StatusOr<std::vector<double>> TimeKernel(const Kernel& kernel, const Problem& problem,
                                                 const Arguments& arguments);
  Json Line(const Signature& c, const Placed& placed, std::string_view kernel, bool deterministic,
            const std::vector<double>& times, double error) const;
  void Print(const Signature& c, std::vector<Json>& lines);

  Device& device_;
  const Settings& settings_;
  Schedule& schedule_;
  const NamedPattern& matrix_;
  const std::vector<double> values_;
  /// Only for spmm^T: S^T, and its nonzeros' values.
  Pattern transposed_;
  std::vector<double> transposed_values_;
  std::vector<Placed> layouts_;
  std::vector<Buffer> slots_;  ///< the values in each layout, of the type at hand
  int wrong_ = 0;
};

absl::StatusOr<int> MatrixBench::Run() {
  if (Asks("spmm^T")) {
    std::vector<int64_t> source;
    transposed_ = Transpose(matrix_.pattern, &source);
    for (const int64_t p : source) transposed_values_.push_back(values_[p]);
  }
  std::vector<std::string> pipelines = {"csr"};
  if (Asks("spmm^T")) pipelines.emplace_back("transpose");
  for (const std::string& pipeline : settings_.pipelines) {
    if (std::find(pipelines.begin(), pipelines.end(), pipeline) == pipelines.end()) {
      pipelines.push_back(pipeline);
    }
  }
  for (const std::string& pipeline : pipelines) {
    const absl::Status status = Prepare(pipeline);
    if (!status.ok()) return status;
  }
  for (const std::string& type : settings_.types) {
    const absl::Status status = type == "f64"    ? RunType<double>(false)
                                : type == "f16"  ? RunType<Float16>(false)
                                : type == "bf16" ? RunType<BFloat16>(false)
                                                 : RunType<float>(type == "tf32");
    if (!status.ok()) return status;
  }
  return wrong_;
}

absl::Status MatrixBench::Prepare(const std::string& text) {
  const std::string what = fmt::format("in layout {}", text);
  const auto pipeline = ParsePipeline(text);
  if (!pipeline.ok()) return pipeline.status();
  std::atomic<bool> stop = schedule_.over();
  BuildContext context;
  context.threads = omp_get_max_threads();
  context.memory = &HeapMemory();
  context.stop = &stop;
  context.progress = [&](std::string_view, int64_t, int64_t) { stop = schedule_.over(); };
  const auto begin = Clock::now();
  auto built = BuildLayout(*pipeline, matrix_.pattern.view(), context);
  const double milliseconds = MillisecondsSince(begin);
  if (absl::IsCancelled(built.status())) {
    LeaveOut(what, "no time");
    return absl::OkStatus();
  }
  if (!built.ok()) return Forgive(built.status(), what);
  if (built->skipped) {
    LeaveOut(what, built->notes);
    return absl::OkStatus();
  }
  auto placed = device_.Upload(built->layout);
  if (!placed.ok()) return Forgive(placed.status(), what);
  layouts_.push_back(
      {std::move(built->layout), *std::move(placed), milliseconds, std::move(built->notes)});
  return absl::OkStatus();
}

template <typename T>
absl::Status MatrixBench::RunType(bool allow_tf32) {
  std::vector<T> rounded;
  for (const double value : values_) rounded.push_back(Stored<T>(value));
  slots_.clear();
  for (const Placed& placed : layouts_) {
    std::vector<T> slots(placed.host.value_slots);
    PlaceValues(placed.host, ElementTypeOf<T>(), rounded.data(), slots.data(),
                omp_get_max_threads());
    auto uploaded = device_.Upload(slots.data(), slots.size() * sizeof(T));
    if (!uploaded.ok()) return Forgive(uploaded.status(), std::string(Name(ElementTypeOf<T>())));
    slots_.push_back(*std::move(uploaded));
  }
  for (const std::string& operation : settings_.operations) {
    for (const int64_t k : settings_.widths) {
      const Signature c{operation, k, ElementTypeOf<T>(), allow_tf32};
      if (c.sddmm() && allow_tf32) continue;  // the same as f32
      if (schedule_.over()) {
        LeaveOut(c.ToString(), "no time");
        continue;
      }
      const absl::Status status = c.sddmm() ? RunSddmm<T>(c) : RunSpmm<T>(c);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

/// Relative to the sum of the terms' magnitudes. The operands are random, and with them the
/// rounding: the bound need not grow with the number of terms. 16 bits: cuSPARSE rounds parts of
/// sums, too.
double ToleranceOf(const Signature& c) {
  switch (c.type) {
    case ElementType::kF64:
      return 1e-13;
    case ElementType::kF16:
      return 0x1.1p-11;
    case ElementType::kBF16:
      return 0x1.1p-8;
    default:
      return c.allow_tf32 ? 0x1p-10 : 5e-6;
  }
}

template <typename T>
absl::Status MatrixBench::RunSpmm(const Signature& c) {
  const Pattern& shape = c.transposed() ? transposed_ : matrix_.pattern;
  const size_t bytes = shape.rows * c.k * sizeof(T);
  const auto b = Operand<T>::Make(device_, shape.cols, c.k, 0);
  if (!b.ok()) return Forgive(b.status(), c.ToString());
  auto result = device_.Allocate(bytes);
  if (!result.ok()) return Forgive(result.status(), c.ToString());
  const std::vector<int64_t> rows = SampleRows(shape);
  const Expected expected =
      ExpectedSpmm(shape, c.transposed() ? transposed_values_ : values_, rows, *b, c.k);
  std::vector<T> got(rows.size() * c.k);
  const auto error = [&]() -> absl::StatusOr<double> {
    absl::Status status;
    for (size_t i = 0; i < rows.size() && status.ok(); ++i) {
      status = device_.Copy(got.data() + i * c.k, result->data() + rows[i] * c.k * sizeof(T),
                            c.k * sizeof(T));
    }
    if (status.ok()) status = device_.Finish();
    if (!status.ok()) return status;
    return expected.ErrorOf(got);
  };
  const auto arguments = [&](const Layout& layout, const void* values) {
    return SpmmArguments{layout,
                         values,
                         {b->device_data(), shape.cols, c.k, c.k},
                         {result->mutable_data(), shape.rows, c.k, c.k}};
  };
  return RunKernels(SpmmKernels(), c, *result, bytes, ToleranceOf(c), arguments, error);
}

template <typename T>
absl::Status MatrixBench::RunSddmm(const Signature& c) {
  const Pattern& shape = matrix_.pattern;
  const size_t bytes = shape.nnz() * sizeof(T);
  const auto a = Operand<T>::Make(device_, shape.rows, c.k, 1000);
  if (!a.ok()) return Forgive(a.status(), c.ToString());
  const auto b = Operand<T>::Make(device_, shape.cols, c.k, 2000);
  if (!b.ok()) return Forgive(b.status(), c.ToString());
  auto result = device_.Allocate(bytes);
  if (!result.ok()) return Forgive(result.status(), c.ToString());
  const std::vector<int64_t> rows = SampleRows(shape);
  const Expected expected = ExpectedSddmm(shape, values_, rows, *a, *b, c.k);
  std::vector<T> got(expected.values.size());
  const auto error = [&]() -> absl::StatusOr<double> {
    absl::Status status;
    T* to = got.data();
    for (size_t i = 0; i < rows.size() && status.ok(); ++i) {
      const int64_t begin = shape.row_offsets[rows[i]], end = shape.row_offsets[rows[i] + 1];
      status = device_.Copy(to, result->data() + begin * sizeof(T), (end - begin) * sizeof(T));
      to += end - begin;
    }
    if (status.ok()) status = device_.Finish();
    if (!status.ok()) return status;
    return expected.ErrorOf(got);
  };
  const auto arguments = [&](const Layout& layout, const void* values) {
    return SddmmArguments{layout,
                          values,
                          {a->device_data(), shape.rows, c.k, c.k},
                          {b->device_data(), shape.cols, c.k, c.k},
                          result->mutable_data()};
  };
  return RunKernels(SddmmKernels(), c, *result, bytes, ToleranceOf(c), arguments, error);
}

template <typename Kernel, typename MakeArguments>
absl::Status MatrixBench::RunKernels(std::span<const Kernel> kernels, const Signature& c,
                                     Buffer& result, size_t result_bytes, double tolerance,
                                     const MakeArguments& arguments,
                                     const std::function<absl::StatusOr<double>()>& error) {
  const auto asked = [&](std::string_view name) {
    return settings_.kernels.empty() ||
           std::any_of(settings_.kernels.begin(), settings_.kernels.end(),
                       [&](const std::string& part) { return name.find(part) != name.npos; });
  };
  std::vector<Json> lines;
  for (size_t i = 0; i < layouts_.size(); ++i) {
    const Placed& placed = layouts_[i];
    if (c.operation == "spmm" && placed.host.transposed) continue;
    const Problem problem =
        SeenThrough(placed.host, {.operation = c.sddmm() ? Operation::kSddmm : Operation::kSpmm,
                                  .transposed = c.transposed(),
                                  .type = c.type,
                                  .k = c.k,
                                  .device = device_.kind(),
                                  .allow_tf32 = c.allow_tf32});
    for (const Kernel& kernel : kernels) {
      if (kernel.device != device_.kind() || kernel.layout_kind != placed.host.kind ||
          !asked(kernel.name) || !kernel.supports(problem, placed.device)) {
        continue;
      }
      const std::string what =
          fmt::format("{} by {} on {}", c.ToString(), kernel.name, placed.host.pipeline);
      if (schedule_.over()) {
        LeaveOut(what, "no time");
        continue;
      }
      absl::Status status = device_.Fill(result.mutable_data(), 0xff, result_bytes);
      if (!status.ok()) return status;
      const auto times = TimeKernel(kernel, problem, arguments(placed.device, slots_[i].data()));
      if (absl::IsUnavailable(times.status())) {
        return absl::UnavailableError(
            fmt::format("{} {}: {}", matrix_.name, what, std::string(times.status().message())));
      }
      if (!times.ok()) {
        LeaveOut(what, std::string(times.status().message()));
        continue;
      }
      const absl::StatusOr<double> off = error();
      if (!off.ok()) return off.status();
      lines.push_back(Line(c, placed, kernel.name, kernel.deterministic, *times, *off));
      if (*off > tolerance) {
        ++wrong_;
        lines.back()["wrong"] = true;
        std::fprintf(stderr, "WRONG: %s %s, error %g\n", matrix_.name.c_str(), what.c_str(), *off);
      }
    }
  }
  Print(c, lines);
  return absl::OkStatus();
}

template <typename Kernel, typename Arguments>
absl::StatusOr<std::vector<double>> MatrixBench::TimeKernel(const Kernel& kernel,
                                                            const Problem& problem,
                                                            const Arguments& arguments) {
  constexpr int kWarmUps = 2;
  constexpr size_t kLeastRounds = 3;
  const size_t bytes = kernel.workspace(problem, arguments.layout, omp_get_max_threads());
  absl::StatusOr<Buffer> workspace = device_.Allocate(bytes);
  if (!workspace.ok()) return workspace.status();
  Context context = device_.ContextWith({workspace->mutable_data(), bytes});
  std::shared_ptr<void> prepared;
  if (kernel.prepare != nullptr) {
    absl::StatusOr<std::shared_ptr<void>> made =
        kernel.prepare(context, problem, arguments, device_);
    if (!made.ok()) return made.status();
    prepared = *std::move(made);
    context.prepared = prepared.get();
  }
  std::vector<double> times;
  for (int round = 0; round < settings_.rounds + kWarmUps; ++round) {
    const absl::StatusOr<double> taken =
        device_.Milliseconds([&] { return kernel.run(context, problem, arguments); });
    if (!taken.ok()) return taken.status();
    if (round >= kWarmUps) times.push_back(*taken);
    if (times.size() >= kLeastRounds &&
        std::accumulate(times.begin(), times.end(), 0.0) > kMostMilliseconds) {
      break;
    }
  }
  std::sort(times.begin(), times.end());
  return times;
}

Json MatrixBench::Line(const Signature& c, const Placed& placed, std::string_view kernel,
                       bool deterministic, const std::vector<double>& times, double error) const {
  const Pattern& pattern = matrix_.pattern;
  const double ms = times[times.size() / 2];
  const double flops = 2.0 * static_cast<double>(pattern.nnz()) * static_cast<double>(c.k);
  const double roofline_ms = RooflineBytes(pattern, c) / settings_.copy_rate / 1e6;
  return {{"matrix", matrix_.name},
          {"rows", pattern.rows},
          {"cols", pattern.cols},
          {"nnz", pattern.nnz()},
          {"op", c.sddmm() ? "sddmm" : "spmm"},
          {"transposed", c.transposed()},
          {"type", c.TypeName()},
          {"k", c.k},
          {"layout", placed.host.pipeline},
          {"kernel", kernel},
          {"deterministic", deterministic},
          {"ms", ms},
          {"least_ms", times.front()},
          {"rounds", times.size()},
          {"gflops", flops / ms / 1e6},
          {"floor_ms", roofline_ms},
          {"floor_share", roofline_ms / ms},
          {"error", error},
          {"preparation_ms", placed.preparation_ms},
          {"notes", placed.notes},
          {"layout_bytes", placed.host.bytes()},
          {"copy_gbs", settings_.copy_rate},
          {"device", device_.name()}};
}

/// Ratios are to the vendor's best kernel on plain CSR, of the transpose for transposed products,
/// whatever the layout.
void MatrixBench::Print(const Signature& c, std::vector<Json>& lines) {
  double vendor = 0;
  const Json* best = nullptr;
  for (const Json& line : lines) {
    if (line.contains("wrong")) continue;
    const double ms = line["ms"];
    if (line["layout"] == (c.transposed() ? "transpose" : "csr") &&
        line["kernel"].get<std::string_view>().substr(0, kVendor.size()) == kVendor) {
      vendor = vendor == 0 ? ms : std::min(vendor, ms);
    }
    if (best == nullptr || ms < best->at("ms")) best = &line;
  }
  for (Json& line : lines) {
    if (vendor > 0) line["vs_cusparse"] = vendor / line["ms"].get<double>();
    std::printf("%s\n", line.dump().c_str());
  }
  std::fflush(stdout);
  if (best == nullptr) return;
  const double ms = best->at("ms"), share = best->at("floor_share");
  std::fprintf(stderr, "%s %s: %.4g ms by %s on %s, %.0f %% of the roofline's speed",
               matrix_.name.c_str(), c.ToString().c_str(), ms,
               best->at("kernel").get<std::string>().c_str(),
               best->at("layout").get<std::string>().c_str(), 100 * share);
  if (vendor > 0) std::fprintf(stderr, ", %.2f times as fast as cuSPARSE", vendor / ms);
  std::fprintf(stderr, "\n");
}

}  // namespace

Schedule::Schedule(std::optional<double> seconds)
    : end_(seconds ? Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(*seconds))
                   : Clock::time_point::max()) {}

absl::StatusOr<int> Measure(Device& device, const Settings& settings, Schedule& schedule,
                            const NamedPattern& matrix) {
  if (schedule.over()) {
    schedule.LeaveOut(fmt::format("{}: no time", matrix.name));
    return 0;
  }
  return MatrixBench(device, settings, schedule, matrix).Run();
}

}  // namespace sparsed::test
