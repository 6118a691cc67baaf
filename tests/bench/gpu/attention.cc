// Attention along edges on the GPU: the fused kernels beside chains of the kernels that there are
// for each part, and reductions beside plain sums. A line of JSON a measurement on standard output.
//
//   bench_attention cora.mtx cnr-2000.mtx.gz > attention.jsonl
#include "kernels/attention.h"

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/kernel_table.h"
#include "kernels/pipeline.h"
#include "kernels/row_products.h"
#include "tests/bench/gpu/device.h"
#include "tests/matrix_market.h"

namespace sparsed::test {
namespace {

/// Heads, and columns of each.
struct Widths {
  int64_t heads, width;
  int64_t columns() const { return heads * width; }
};

/// How far results may be from those of the chain, in units of the largest: sums of exponentials in
/// another order, and what 16-bit chains round in between.
double ToleranceOf(ElementType type) { return type == ElementType::kF32 ? 2e-4 : 5e-2; }

ConstDense View(const Buffer& buffer, int64_t rows, int64_t cols) {
  return {buffer.data(), rows, cols, cols};
}
Dense MutableView(Buffer& buffer, int64_t rows, int64_t cols) {
  return {buffer.mutable_data(), rows, cols, cols};
}

class MatrixRun {
 public:
  MatrixRun(Device& device, std::string name, const Pattern& pattern, int rounds)
      : device_(device), name_(std::move(name)), pattern_(pattern), rounds_(rounds) {}

  absl::Status Open() {
    BuildContext context;
    context.threads = omp_get_max_threads();
    context.memory = &HeapMemory();
    for (auto [pipeline, to] : {std::pair("csr", &csr_), std::pair("transpose", &transposed_)}) {
      auto built = BuildLayout(ParsePipeline(pipeline).value(), pattern_.view(), context);
      if (!built.ok()) return built.status();
      auto uploaded = device_.Upload(built->layout);
      if (!uploaded.ok()) return uploaded.status();
      *to = *std::move(uploaded);
    }
    return absl::OkStatus();
  }

  absl::Status Run(ElementType type, Widths widths) {
    type_ = type;
    widths_ = widths;
    failed_ = absl::OkStatus();
    rows_ = pattern_.rows;
    cols_ = pattern_.cols;
    nnz_ = pattern_.nnz();
    const int64_t l = widths.columns(), h = widths.heads;
    Buffer q = Random(rows_ * l, 1), k = Random(cols_ * l, 2), v = Random(cols_ * l, 3),
           dy = Random(rows_ * l, 4), left = Random(rows_ * h, 5), right = Random(cols_ * h, 6),
           ones = Random(nnz_, 7);
    Buffer scores = New(nnz_ * h), weights = New(nnz_ * h), slots = New(nnz_ * h),
           y = New(rows_ * l), other = New(rows_ * l);
    Buffer log_sums = New(rows_ * h * 2);
    if (!failed_.ok()) return failed_;
    const double scale = 1 / std::sqrt(static_cast<double>(widths.width));
    const bool one = h == 1;

    // Forward.
    EdgeAttention attention{csr_};
    attention.scores.heads = h;
    attention.scores.scale = scale;
    attention.scores.left = View(q, rows_, l);
    attention.scores.right = View(k, cols_, l);
    attention.values = View(v, cols_, l);
    attention.out = MutableView(y, rows_, l);
    attention.log_sums = MutableView(log_sums, rows_, h);
    const auto chain_forward = [&] {
      Sddmm(View(q, rows_, l), View(k, cols_, l), scores);
      Softmax(scale, scores, weights);
      Spmm(false, View(weights, nnz_, h), View(v, cols_, l), MutableView(other, rows_, l), slots);
    };
    Report("attention forward", "chain", chain_forward);
    Report("attention forward", "fused", [&] { Compute(attention); });
    Compare("attention forward", y, other, rows_ * l);

    // Backward.
    Buffer dq = New(rows_ * l), dk = New(cols_ * l), dv = New(cols_ * l), dq2 = New(rows_ * l),
           dk2 = New(cols_ * l), dv2 = New(cols_ * l), dp = New(nnz_ * h);
    if (!failed_.ok()) return failed_;
    EdgeAttentionGradient gradient{csr_, transposed_};
    gradient.scores = attention.scores;
    gradient.values = attention.values;
    gradient.out = View(y, rows_, l);
    gradient.log_sums = View(log_sums, rows_, h);
    gradient.gradient = View(dy, rows_, l);
    gradient.left = MutableView(dq, rows_, l);
    gradient.right = MutableView(dk, cols_, l);
    gradient.values_gradient = MutableView(dv, cols_, l);
    const auto chain_backward = [&] {
      Spmm(true, View(weights, nnz_, h), View(dy, rows_, l), MutableView(dv2, cols_, l), slots);
      Sddmm(View(dy, rows_, l), View(v, cols_, l), dp);
      SoftmaxGradient(scale, weights, dp, scores);
      Spmm(false, View(scores, nnz_, h), View(k, cols_, l), MutableView(dq2, rows_, l), slots);
      Spmm(true, View(scores, nnz_, h), View(q, rows_, l), MutableView(dk2, cols_, l), slots);
    };
    Report("attention backward", "chain", chain_backward);
    // Of what AttentionGradientStep is given, which has no weights.
    Report("attention backward", "chain of scores", [&] {
      Sddmm(View(q, rows_, l), View(k, cols_, l), scores);
      Softmax(scale, scores, weights);
      chain_backward();
    });
    Report("attention backward", "fused", [&] { Compute(gradient); });
    Compare("attention dq", dq, dq2, rows_ * l);
    Compare("attention dk", dk, dk2, cols_ * l);
    Compare("attention dv", dv, dv2, cols_ * l);

    // GAT.
    Buffer d_left = New(rows_ * h), d_right = New(cols_ * h);
    if (!failed_.ok()) return failed_;
    EdgeAttention gat = attention;
    gat.scores.kind = EdgeScores::Kind::kSum;
    gat.scores.left = View(left, rows_, h);
    gat.scores.right = View(right, cols_, h);
    Report("gat forward", "fused", [&] { Compute(gat); });
    EdgeAttentionGradient gat_gradient = gradient;
    gat_gradient.scores = gat.scores;
    gat_gradient.left = MutableView(d_left, rows_, h);
    gat_gradient.right = MutableView(d_right, cols_, h);
    Report("gat backward", "fused", [&] { Compute(gat_gradient); });

    // GATv2, of which `right` is what is summed up, too. No kernels but these make its scores: the
    // chain of dot products above gathers the same rows for less arithmetic.
    Buffer att = Random(l, 8), d_att = New(l);
    if (!failed_.ok()) return failed_;
    EdgeAttention gatv2 = attention;
    gatv2.scores.kind = EdgeScores::Kind::kGatv2;
    gatv2.scores.att = View(att, 1, l);
    gatv2.values = gatv2.scores.right;
    Report("gatv2 forward", "fused", [&] { Compute(gatv2); });
    EdgeAttentionGradient gatv2_gradient = gradient;
    gatv2_gradient.scores = gatv2.scores;
    gatv2_gradient.values = gatv2.values;
    gatv2_gradient.att = MutableView(d_att, 1, l);
    Report("gatv2 backward", "fused", [&] { Compute(gatv2_gradient); });

    if (one)
      Reductions(View(v, cols_, l), MutableView(other, rows_, l), View(ones, nnz_, 1), slots);
    return failed_;
  }

 private:
  void Keep(const absl::Status& status) {
    if (failed_.ok()) failed_ = status;
  }
  Buffer New(int64_t elements) {
    auto buffer = device_.Allocate(static_cast<size_t>(elements) * 4 + 64);
    Keep(buffer.status());
    return buffer.ok() ? *std::move(buffer) : Buffer();
  }
  Buffer Random(int64_t elements, uint64_t seed) {
    const std::vector<double> numbers = RandomValues(elements, seed);
    return VisitFloat(type_, [&]<typename T>(T) {
      std::vector<T> narrow(numbers.size());
      for (size_t i = 0; i < numbers.size(); ++i) narrow[i] = T(static_cast<float>(numbers[i]));
      auto buffer = device_.Upload(narrow.data(), narrow.size() * sizeof(T));
      Keep(buffer.status());
      return buffer.ok() ? *std::move(buffer) : Buffer();
    });
  }
  cuda::Stream& stream() {
    stream_ = cuda::Stream::Of(device_.ContextWith({}).stream);
    return *stream_;
  }

  Context With(size_t workspace) {
    if (workspace > workspace_.size()) {
      auto grown = device_.Allocate(workspace);
      Keep(grown.status());
      if (grown.ok()) workspace_ = *std::move(grown);
    }
    return device_.ContextWith({static_cast<std::byte*>(workspace_.mutable_data()), workspace});
  }
  void Compute(const EdgeAttention& attention) {
    Keep(cuda::ComputeEdgeAttention(With(cuda::EdgeAttentionWorkspace(attention, type_)), attention,
                                    type_));
  }
  void Compute(const EdgeAttentionGradient& gradient) {
    Keep(cuda::ComputeEdgeAttentionGradient(With(cuda::EdgeAttentionWorkspace(gradient, type_)),
                                            gradient, type_));
  }
  void Softmax(double scale, const Buffer& from, Buffer& to) {
    Keep(cuda::RowSoftmax(stream(), ViewCsr(csr_).row_offsets, type_, scale,
                          View(from, nnz_, widths_.heads), MutableView(to, nnz_, widths_.heads)));
  }
  void SoftmaxGradient(double scale, const Buffer& y, const Buffer& dy, Buffer& to) {
    Keep(cuda::RowSoftmaxGradient(stream(), ViewCsr(csr_).row_offsets, type_, scale,
                                  View(y, nnz_, widths_.heads), View(dy, nnz_, widths_.heads),
                                  MutableView(to, nnz_, widths_.heads)));
  }
  void Rows(const RowProducts& products) {
    Keep(cuda::ComputeRowProducts(With(cuda::RowProductsWorkspace(products, type_)), products,
                                  type_));
  }

  Problem ProblemOf(Operation operation, int64_t k) const {
    return {.operation = operation, .type = type_, .k = k, .device = DeviceKind::kCuda};
  }
  void Sddmm(const ConstDense& a, const ConstDense& b, Buffer& out) {
    if (widths_.heads > 1) {
      HeadDots dots{csr_};
      dots.a = a;
      dots.b = b;
      dots.out = MutableView(out, nnz_, widths_.heads);
      return Keep(cuda::ComputeHeadDots(device_.ContextWith({}), dots, type_));
    }
    const Problem problem = ProblemOf(Operation::kSddmm, a.cols);
    const SddmmArguments arguments = {csr_, nullptr, a, b, out.mutable_data()};
    RunBest(SddmmKernels(), "sddmm", csr_, problem, arguments);
  }
  /// `values` in the order of S's CSR.
  void Spmm(bool transposed, const ConstDense& values, const ConstDense& b, const Dense& c,
            Buffer& slots, Reduction reduction = Reduction::kSum) {
    const Layout& layout = transposed ? transposed_ : csr_;
    if (widths_.heads > 1) {
      RowProducts products{layout};
      products.values = values;
      products.b = b;
      products.c = c;
      return Rows(products);
    }
    const void* placed = values.data;
    if (transposed) {
      Keep(cuda::PlaceValues(stream(), layout, type_, values.data, slots.mutable_data()));
      placed = slots.data();
    }
    const Problem problem = ProblemOf(Operation::kSpmm, b.cols);
    const SpmmArguments arguments = {layout, placed, b, c, 1, 0, reduction};
    RunBest(SpmmKernels(), transposed ? "spmm^T" : "spmm", layout, problem, arguments);
  }
  /// By the kernel for plain CSR that was fastest the first time.
  template <typename Kernels, typename Arguments>
  void RunBest(const Kernels& kernels, const std::string& what, const Layout& layout,
               const Problem& problem, const Arguments& arguments) {
    const std::string key = fmt::format("{} {} {}", what, problem.k, static_cast<int>(type_));
    auto best = best_.find(key);
    if (best == best_.end()) {
      double least = INFINITY;
      best = best_.emplace(key, "").first;
      for (const auto& kernel : kernels) {
        if (kernel.device != DeviceKind::kCuda || kernel.layout_kind != "csr" ||
            kernel.from_library || !kernel.supports(problem, layout)) {
          continue;
        }
        const size_t workspace = kernel.workspace(problem, layout, 1);
        const auto ms = device_.MedianMilliseconds(
            5, [&] { return kernel.run(With(workspace), problem, arguments); });
        if (ms.ok() && *ms < least) {
          least = *ms;
          best->second = std::string(kernel.name);
        }
      }
    }
    for (const auto& kernel : kernels) {
      if (kernel.name != best->second) continue;
      return Keep(kernel.run(With(kernel.workspace(problem, layout, 1)), problem, arguments));
    }
    Keep(absl::InternalError("no kernel for " + key));
  }

  void Reductions(const ConstDense& b, const Dense& c, const ConstDense& values, Buffer& slots) {
    Report("sum", "kernel", [&] { Spmm(false, values, b, c, slots); });
    Report("sum of S^T", "values of the request", [&] {
      RowProducts products{transposed_};
      products.values = values;
      products.b = {b.data, std::min(rows_, b.rows), b.cols, b.cols};
      products.c = {c.data, cols_, c.cols, c.cols};
      if (rows_ == cols_) Rows(products);
    });
    // By the kernel that was the fastest for the sum.
    for (const Reduction reduction : {Reduction::kMean, Reduction::kMax}) {
      Report(std::string(Name(reduction)), "kernel",
             [&] { Spmm(false, values, b, c, slots, reduction); });
      Report(std::string(Name(reduction)) + " of ones", "kernel",
             [&] { Spmm(false, {}, b, c, slots, reduction); });
    }
    Buffer which = New(2 * c.rows * c.cols);
    RowProducts products{csr_};
    products.reduction = Reduction::kMax;
    products.values = values;
    products.values_by_slot = true;
    products.b = b;
    products.c = c;
    products.arguments = MutableView(which, c.rows, c.cols);
    Report("max and which", "row products", [&] { Rows(products); });
  }

  void Report(const std::string& what, const std::string& how, const std::function<void()>& run) {
    if (!failed_.ok()) return;
    run();
    const auto ms = device_.MedianMilliseconds(rounds_, [&] {
      run();
      return failed_;
    });
    Keep(ms.status());
    if (!failed_.ok()) {
      failed_ =
          absl::InternalError(fmt::format("{}, {}: {}", what, how, std::string(failed_.message())));
      return;
    }
    const nlohmann::ordered_json line = {{"matrix", name_},
                                         {"rows", rows_},
                                         {"nnz", nnz_},
                                         {"type", Name(type_)},
                                         {"heads", widths_.heads},
                                         {"width", widths_.width},
                                         {"what", what},
                                         {"how", how},
                                         {"ms", *ms},
                                         {"device", device_.name()}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }

  void Compare(const std::string& what, const Buffer& got, const Buffer& expected,
               int64_t elements) {
    if (!failed_.ok()) return;
    VisitFloat(type_, [&]<typename T>(T) {
      std::vector<T> a(elements), b(elements);
      Keep(device_.Copy(a.data(), got.data(), a.size() * sizeof(T)));
      Keep(device_.Copy(b.data(), expected.data(), b.size() * sizeof(T)));
      Keep(device_.Finish());
      double most = 0, error = 0;
      for (int64_t i = 0; i < elements; ++i) {
        const double x = static_cast<float>(a[i]), y = static_cast<float>(b[i]);
        most = std::max(most, std::abs(y));
        const double difference = std::abs(x - y);
        error = difference <= error ? error : difference;  // a NaN stays
      }
      if (!(error <= ToleranceOf(type_) * most)) {
        Keep(absl::InternalError(fmt::format("{}: off by {} of at most {}", what, error, most)));
      }
    });
  }

  Device& device_;
  const std::string name_;
  const Pattern& pattern_;
  const int rounds_;
  Layout csr_, transposed_;
  ElementType type_ = ElementType::kF32;
  Widths widths_ = {};
  int64_t rows_ = 0, cols_ = 0, nnz_ = 0;
  absl::Status failed_;
  Buffer workspace_;
  std::optional<cuda::Stream> stream_;
  std::map<std::string, std::string> best_;
};

int Main(int argc, char** argv) {
  CLI::App app("Times attention along edges on the GPU");
  std::vector<std::string> files;
  int rounds = 21;
  app.add_option("files", files, "Matrix Market files")->required();
  app.add_option("--rounds", rounds, "of which the median is taken")->capture_default_str();
  bool halves = true;
  app.add_flag("--halves,!--no-halves", halves, "f16 as well as f32")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto device = Device::Open(DeviceKind::kCuda);
  if (!device.ok()) {
    fmt::print(stderr, "{}\n", std::string(device.status().message()));
    return 1;
  }
  int failed = 0;
  for (const std::string& file : files) {
    const auto matrix = ReadMatrixMarket(file);
    if (!matrix) {
      fmt::print(stderr, "{}: not read\n", file);
      return 1;
    }
    const std::string name = std::filesystem::path(file).filename().string();
    MatrixRun run(**device, name.substr(0, name.find('.')), matrix->pattern, rounds);
    absl::Status status = run.Open();
    for (const ElementType type : {ElementType::kF32, ElementType::kF16}) {
      if (!halves && type == ElementType::kF16) continue;
      for (const Widths widths : {Widths{1, 64}, Widths{1, 128}, Widths{4, 32}}) {
        if (status.ok()) status = run.Run(type, widths);
        if (status.ok()) continue;
        fmt::print(stderr, "{}, {}, {} x {}: {}\n", name, Name(type), widths.heads, widths.width,
                   std::string(status.message()));
        ++failed;
        status = absl::OkStatus();
      }
    }
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) { return sparsed::test::Main(argc, argv); }
