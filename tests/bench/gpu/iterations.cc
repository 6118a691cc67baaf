#include "tests/bench/gpu/iterations.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/formats/row_segments.h"
#include "kernels/kernel_table.h"
#include "kernels/pipeline.h"
#include "tests/bench/gpu/builds.h"
#include "tests/bench/gpu/expected.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr int kTrialRounds = 5;
constexpr int kIterations = 4;             ///< of both products, one behind the other, in a timing
constexpr double kMostMilliseconds = 200;  ///< for the turns of one way, if 3 took that long

/// A layout on the device, and milliseconds to bring it there from CSR on the host.
struct Placed {
  Layout layout;
  Buffer values;  ///< of the type at hand
  std::string pipeline;
  double build_ms = 0;
  double there_ms = 0;  ///< from CSR on the device, where the device can; else 0
  Layout host;
};

/// One of an iteration's products and the kernel that it is left to.
struct Product {
  const Placed* placed = nullptr;
  const SpmmKernel* kernel = nullptr;
  Problem problem;
  Buffer workspace;
  size_t workspace_bytes = 0;
  std::shared_ptr<void> prepared;
  double ms = 0;  ///< median of single calls
};

struct Way {
  std::string name;
  Product plain, transposed;
  std::vector<double> times;  ///< milliseconds of an iteration
  bool wrong = false;

  double ms() {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
};

/// B, C and D of one type and width.
struct Operands {
  const void* b = nullptr;
  Buffer c, d;
  int64_t rows = 0, cols = 0, k = 0;
  size_t d_bytes = 0;
};

class Iterations {
 public:
  Iterations(Device& device, const Settings& settings, Schedule& schedule,
             const NamedPattern& matrix)
      : device_(device),
        settings_(settings),
        schedule_(schedule),
        matrix_(matrix),
        values_(RandomValues(matrix.pattern.nnz(), 3)) {}

  absl::StatusOr<int> Run() {
    std::vector<std::string> pipelines = {"csr", "transpose", "row_segments(force)"};
    pipelines.insert(pipelines.end(), settings_.pipelines.begin(), settings_.pipelines.end());
    for (const std::string& pipeline : pipelines) {
      if (absl::Status status = Place(pipeline); !status.ok()) return status;
    }
    for (const std::string& type : settings_.types) {
      const absl::Status status =
          type == "f64"   ? RunType<double>()
          : type == "f32" ? RunType<float>()
                          : absl::InvalidArgumentError("iterations are measured in f32 and f64");
      if (!status.ok()) return status;
    }
    return wrong_;
  }

 private:
  void LeaveOut(const std::string& what, const absl::Status& why) {
    schedule_.LeaveOut(fmt::format("{} {}: {}", matrix_.name, what, std::string(why.message())));
  }
  static double MillisecondsSince(Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  }

  absl::Status Place(const std::string& text) {
    const absl::StatusOr<Pipeline> pipeline = ParsePipeline(text);
    if (!pipeline.ok()) return pipeline.status();
    BuildContext context;
    context.threads = omp_get_max_threads();
    context.memory = &HeapMemory();
    Placed placed;
    // The second time, the heap has the memory.
    for (int round = 0; round < 2; ++round) {
      const auto begin = Clock::now();
      absl::StatusOr<BuiltLayout> built = BuildLayout(*pipeline, matrix_.pattern.view(), context);
      if (!built.ok()) return built.status();
      if (built->skipped) {
        LeaveOut(text, absl::FailedPreconditionError(built->notes));
        return absl::OkStatus();
      }
      absl::StatusOr<Layout> there = device_.Upload(built->layout);
      if (absl::IsResourceExhausted(there.status())) {
        LeaveOut(text, there.status());
        return absl::OkStatus();
      }
      if (!there.ok()) return there.status();
      placed.layout = *std::move(there);
      placed.build_ms = text == "csr" ? 0 : MillisecondsSince(begin);
      placed.host = std::move(built->layout);
      if (placed.build_ms > kMostMilliseconds) break;
    }
    placed.pipeline = placed.host.pipeline;
    if (placed.host.kind == kRowSegments && device_.kind() == DeviceKind::kCuda) {
      const absl::StatusOr<double> there = RowSegmentsOnDevice(matrix_, placed.host, kTrialRounds);
      if (!there.ok()) return there.status();
      placed.there_ms = *there;
    }
    layouts_.push_back(std::move(placed));
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status RunType() {
    std::vector<T> rounded;
    for (const double value : values_) rounded.push_back(Stored<T>(value));
    for (Placed& placed : layouts_) {
      std::vector<T> slots(placed.host.value_slots);
      PlaceValues(placed.host, ElementTypeOf<T>(), rounded.data(), slots.data(),
                  omp_get_max_threads());
      absl::StatusOr<Buffer> uploaded = device_.Upload(slots.data(), slots.size() * sizeof(T));
      if (!uploaded.ok()) return uploaded.status();
      placed.values = *std::move(uploaded);
    }
    for (const int64_t k : settings_.widths) {
      const std::string what = fmt::format("{} K={}", Name(ElementTypeOf<T>()), k);
      if (schedule_.over()) {
        LeaveOut(what, absl::DeadlineExceededError("no time"));
        continue;
      }
      const absl::Status status = RunWidth<T>(k);
      if (absl::IsResourceExhausted(status)) {
        LeaveOut(what, status);
      } else if (!status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status RunWidth(int64_t k) {
    const int64_t rows = matrix_.pattern.rows, cols = matrix_.pattern.cols;
    const auto b = Operand<T>::Make(device_, cols, k, 0);
    if (!b.ok()) return b.status();
    absl::StatusOr<Buffer> c = device_.Allocate(rows * k * sizeof(T));
    if (!c.ok()) return c.status();
    absl::StatusOr<Buffer> d = device_.Allocate(cols * k * sizeof(T));
    if (!d.ok()) return d.status();
    const Operands operands = {b->device_data(),    *std::move(c), *std::move(d), rows, cols, k,
                               cols * k * sizeof(T)};
    std::vector<Way> ways;
    for (const std::string name : {"csr", "row_segments", "two_layouts"}) {
      const auto plain = Fastest(name, false, ElementTypeOf<T>(), operands);
      if (!plain.ok()) return plain.status();
      const auto transposed = Fastest(name, true, ElementTypeOf<T>(), operands);
      if (!transposed.ok()) return transposed.status();
      if (plain->kernel == nullptr || transposed->kernel == nullptr) continue;
      ways.push_back({name, *plain, *transposed, {}, false});
    }
    // Turn by turn, so that none has a better time than the others.
    for (int turn = 0; turn <= settings_.rounds; ++turn) {
      for (Way& way : ways) {
        const absl::StatusOr<double> ms = device_.Milliseconds([&] {
          absl::Status status;
          for (int i = 0; i < kIterations && status.ok(); ++i) {
            status = Multiply(way.plain, operands);
            if (status.ok()) status = Multiply(way.transposed, operands);
          }
          return status;
        });
        if (!ms.ok()) return ms.status();
        if (turn == 0) {
          if (absl::Status status = Compare<T>(way, operands); !status.ok()) return status;
        } else {
          way.times.push_back(*ms / kIterations);
        }
      }
      if (turn >= 3 && turn * kIterations * ways.front().times.front() > kMostMilliseconds) break;
    }
    reference_.clear();
    for (Way& way : ways) Print(way, ElementTypeOf<T>(), k);
    return absl::OkStatus();
  }

  /// The kernel that was the fastest in a few calls; none if none can.
  absl::StatusOr<Product> Fastest(const std::string& way, bool transposed, ElementType type,
                                  const Operands& operands) {
    Product best;
    for (const Placed& placed : layouts_) {
      const bool segments = placed.host.kind == kRowSegments;
      if (way == "csr" ? placed.pipeline != "csr" : way == "row_segments" ? !segments : segments) {
        continue;
      }
      if (way == "two_layouts" && placed.host.transposed != transposed) continue;
      for (const SpmmKernel& kernel : SpmmKernels()) {
        Product product;
        product.placed = &placed;
        product.kernel = &kernel;
        product.problem = SeenThrough(placed.host, {.operation = Operation::kSpmm,
                                                    .transposed = transposed,
                                                    .type = type,
                                                    .k = operands.k,
                                                    .device = device_.kind()});
        if (kernel.device != device_.kind() || kernel.layout_kind != placed.host.kind ||
            !kernel.supports(product.problem, placed.layout)) {
          continue;
        }
        absl::Status status = Ready(product, operands);
        if (status.ok()) {
          const auto ms =
              device_.MedianMilliseconds(kTrialRounds, [&] { return Multiply(product, operands); });
          status = ms.status();
          if (ms.ok()) product.ms = *ms;
        }
        if (absl::IsUnavailable(status)) return status;
        if (!status.ok()) {
          LeaveOut(fmt::format("{} on {}", kernel.name, placed.pipeline), status);
          continue;
        }
        if (best.kernel == nullptr || product.ms < best.ms) best = std::move(product);
      }
    }
    return best;
  }

  /// What its runs need besides operands.
  absl::Status Ready(Product& product, const Operands& operands) {
    product.workspace_bytes =
        product.kernel->workspace(product.problem, product.placed->layout, omp_get_max_threads());
    absl::StatusOr<Buffer> workspace = device_.Allocate(product.workspace_bytes);
    if (!workspace.ok()) return workspace.status();
    product.workspace = *std::move(workspace);
    if (product.kernel->prepare == nullptr) return absl::OkStatus();
    auto prepared = product.kernel->prepare(ContextOf(product), product.problem,
                                            ArgumentsOf(product, operands), device_);
    if (!prepared.ok()) return prepared.status();
    product.prepared = *std::move(prepared);
    return absl::OkStatus();
  }

  Context ContextOf(const Product& product) {
    auto* const workspace = const_cast<std::byte*>(product.workspace.data());
    Context context = device_.ContextWith({workspace, product.workspace_bytes});
    context.prepared = product.prepared.get();
    return context;
  }

  /// Of S^T * C where S's layout is seen as transposed, or S^T's as it is; else of S * B.
  SpmmArguments ArgumentsOf(const Product& product, const Operands& o) const {
    const Placed& placed = *product.placed;
    auto* const c = const_cast<std::byte*>(o.c.data());
    auto* const d = const_cast<std::byte*>(o.d.data());
    if (product.problem.transposed != placed.host.transposed) {
      return {placed.layout, placed.values.data(), {c, o.rows, o.k, o.k}, {d, o.cols, o.k, o.k}};
    }
    return {placed.layout, placed.values.data(), {o.b, o.cols, o.k, o.k}, {c, o.rows, o.k, o.k}};
  }

  absl::Status Multiply(const Product& product, const Operands& operands) {
    return product.kernel->run(ContextOf(product), product.problem, ArgumentsOf(product, operands));
  }

  /// Holds D against the first way's: relative to its largest element, since sums of random terms
  /// cancel.
  template <typename T>
  absl::Status Compare(Way& way, const Operands& operands) {
    std::vector<T> got(operands.d_bytes / sizeof(T));
    absl::Status status = device_.Copy(got.data(), operands.d.data(), operands.d_bytes);
    if (status.ok()) status = device_.Finish();
    if (!status.ok()) return status;
    if (reference_.empty()) {
      reference_.assign(got.begin(), got.end());
      return absl::OkStatus();
    }
    double largest = 0, off = 0;
#pragma omp parallel for reduction(max : largest, off)
    for (size_t i = 0; i < got.size(); ++i) {
      largest = std::max(largest, std::abs(reference_[i]));
      const double error = std::abs(got[i] - reference_[i]);
      off = std::max(off, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
    }
    way.wrong = off > largest * (sizeof(T) == sizeof(float) ? 1e-4 : 1e-12);
    wrong_ += way.wrong ? 1 : 0;
    return absl::OkStatus();
  }

  void Print(Way& way, ElementType type, int64_t k) {
    const Placed &plain = *way.plain.placed, &transposed = *way.transposed.placed;
    const bool two = &plain != &transposed;
    const auto bytes = [&](const Placed& placed) {
      return placed.host.bytes() + placed.host.value_slots * static_cast<int64_t>(SizeOf(type));
    };
    Json line = {{"matrix", matrix_.name},
                 {"rows", matrix_.pattern.rows},
                 {"cols", matrix_.pattern.cols},
                 {"nnz", matrix_.pattern.nnz()},
                 {"op", "iteration"},
                 {"type", Name(type)},
                 {"k", k},
                 {"way", way.name},
                 {"ms", way.ms()},
                 {"rounds", way.times.size()},
                 {"plain_layout", plain.pipeline},
                 {"plain_kernel", way.plain.kernel->name},
                 {"plain_ms", way.plain.ms},
                 {"transposed_layout", transposed.pipeline},
                 {"transposed_kernel", way.transposed.kernel->name},
                 {"transposed_ms", way.transposed.ms},
                 {"build_ms", plain.build_ms + (two ? transposed.build_ms : 0)},
                 {"layout_bytes", bytes(plain) + (two ? bytes(transposed) : 0)},
                 {"threads", omp_get_max_threads()},
                 {"device", device_.name()}};
    if (way.name == "row_segments") line["device_build_ms"] = plain.there_ms;
    if (way.wrong) line["wrong"] = true;
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
    std::fprintf(stderr, "%s %s K=%lld by %s: %.4g ms%s\n", matrix_.name.c_str(),
                 std::string(Name(type)).c_str(), static_cast<long long>(k), way.name.c_str(),
                 way.ms(), way.wrong ? ", WRONG" : "");
  }

  Device& device_;
  const Settings& settings_;
  Schedule& schedule_;
  const NamedPattern& matrix_;
  const std::vector<double> values_;
  std::vector<Placed> layouts_;
  std::vector<double> reference_;  ///< D of the first way
  int wrong_ = 0;
};

}  // namespace

absl::StatusOr<int> MeasureIterations(Device& device, const Settings& settings, Schedule& schedule,
                                      const NamedPattern& matrix) {
  return Iterations(device, settings, schedule, matrix).Run();
}

}  // namespace sparsed::test
