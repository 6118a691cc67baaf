// The main job on real and generated matrices, in one process: upload, preparation, then each
// problem signature with the plan that the service chose by itself, alternating with Eigen (SpMM)
// or plain OpenMP loops (SDDMM) over the same data. A JSON line a measurement on standard output;
// medians, and ratios within the run.
//
//   bench_plans --threads=2 shared/data/*.mtx.gz --generated > results.jsonl
#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <Eigen/Sparse>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/generate.h"
#include "tests/matrix_market.h"

namespace sparsed {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int64_t kWidths[] = {32, 128, 512};
constexpr double kSecondsEach = 0.4;  ///< for one signature, both rivals together

struct Case {
  std::string name;
  test::Matrix matrix;
};

/// Waits for one call and keeps what it said of itself.
class Waiter final : public engine::ResultSink {
 public:
  void OnBegin(engine::CallBegin begin) override { plan_ = begin.plan; }
  void OnArray(uint32_t, uint64_t, Array) override {}
  void OnBlock(engine::ResultBlock) override {}
  void OnEnd(engine::CallEnd end) override {
    std::lock_guard lock(mutex_);
    end_ = std::move(end);
    ended_.notify_all();
  }
  engine::CallEnd Wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return end_.has_value(); });
    return *end_;
  }
  const std::string& plan() const { return plan_; }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::string plan_;
  std::optional<engine::CallEnd> end_;
};

void Require(const absl::Status& status) {
  if (!status.ok()) {
    std::cerr << status << "\n";
    std::exit(1);
  }
}

template <typename Receiver, typename T>
void Feed(Receiver& receiver, uint32_t array, const std::vector<T>& data) {
  absl::StatusOr<std::byte*> to = receiver.Claim(array, 0, data.size() * sizeof(T));
  Require(to.status());
  if (!data.empty()) std::memcpy(*to, data.data(), data.size() * sizeof(T));
}

std::vector<float> RandomFloats(int64_t count, uint64_t seed) {
  const std::vector<double> wide = test::RandomValues(count, seed);
  return {wide.begin(), wide.end()};
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// Milliseconds that each of two takes, run in turns so that noise meets both.
std::pair<double, double> Alternate(const std::function<double()>& ours,
                                    const std::function<double()>& rival) {
  ours();
  rival();
  std::vector<double> a, b;
  const auto begin = Clock::now();
  do {
    a.push_back(ours());
    b.push_back(rival());
  } while (a.size() < 3 ||
           std::chrono::duration<double>(Clock::now() - begin).count() < kSecondsEach);
  return {Median(a), Median(b)};
}

double Milliseconds(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// SDDMM as anyone would write it.
void PlainSddmm(const CsrView& s, const float* values, const float* a, const float* b, int64_t k,
                float* out) {
#pragma omp parallel for schedule(dynamic, 64)
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t p = s.row_offsets[row]; p < s.row_offsets[row + 1]; ++p) {
      const float* x = a + row * k;
      const float* y = b + static_cast<int64_t>(s.column_indices[p]) * k;
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t j = 0; j < k; ++j) dot += x[j] * y[j];
      out[p] = values[p] * dot;
    }
  }
}

class Bench {
 public:
  Bench(int threads, double trial_budget_ms) : threads_(threads) {
    engine::EngineOptions options;
    options.host_memory_bytes = int64_t{16} << 30;
    options.preparation_memory_bytes = int64_t{8} << 30;
    options.execution.threads_per_slot = threads;
    options.preparation.threads_per_worker = threads;
    options.preparation.trial_budget_ms = trial_budget_ms;
    absl::StatusOr<std::unique_ptr<engine::Engine>> engine =
        engine::Engine::Open(options, observer_);
    Require(engine.status());
    engine_ = *std::move(engine);
    omp_set_num_threads(threads);
    Eigen::setNbThreads(threads);
  }

  void Run(const Case& c) {
    const test::Pattern& pattern = c.matrix.pattern;
    const std::vector<float> values(c.matrix.values.begin(), c.matrix.values.end());
    const double preparation_seconds = Upload(c.name, pattern, values);
    for (const int64_t k : kWidths) {
      Hold("narrow", pattern.cols, k);
      Hold("tall", pattern.rows, k);
      Spmm(c.name, pattern, values, k, false, preparation_seconds);
      Spmm(c.name, pattern, values, k, true, preparation_seconds);
      Sddmm(c.name, pattern, values, k, preparation_seconds);
    }
    Require(engine_->catalog().Delete(kTenant, c.name));
  }

 private:
  static constexpr const char* kTenant = "bench";

  /// Uploads and waits for the preparation; its seconds.
  double Upload(const std::string& name, const test::Pattern& pattern,
                const std::vector<float>& values) {
    engine::UploadHeader header;
    header.tenant = kTenant;
    header.name = name;
    header.rows = pattern.rows;
    header.cols = pattern.cols;
    header.nnz = pattern.nnz();
    for (const int64_t k : kWidths) {
      header.expected.push_back(SignatureOf({Operation::kSpmm, false, ElementType::kF32, k}));
      header.expected.push_back(SignatureOf({Operation::kSpmm, true, ElementType::kF32, k}));
      header.expected.push_back(SignatureOf({Operation::kSddmm, false, ElementType::kF32, k}));
    }
    auto upload = engine_->catalog().BeginUpload(header);
    Require(upload.status());
    Feed(**upload, engine::Upload::kRowOffsets, pattern.row_offsets);
    Feed(**upload, engine::Upload::kColumnIndices, pattern.column_indices);
    Feed(**upload, engine::Upload::kValues, values);
    auto matrix = (*upload)->Finish(threads_);
    Require(matrix.status());
    while (true) {
      const engine::PreparationStatus status = (*matrix)->pattern()->progress().status();
      if (status.state == engine::PreparationState::kReady ||
          status.state == engine::PreparationState::kFailed) {
        return status.seconds;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  void Hold(const std::string& name, int64_t rows, int64_t k) {
    auto put =
        engine_->dense().BeginPut({kTenant, name, {rows, k, k, ElementType::kF32}, false, false});
    Require(put.status());
    Feed(**put, 0, RandomFloats(rows * k, k));
    Require((*put)->Finish().status());
  }

  /// Kernel milliseconds of one call.
  template <typename Spec>
  double Call(const Spec& spec, std::string* plan) {
    auto waiter = std::make_shared<Waiter>();
    auto call = engine_->executor().Begin(spec, waiter);
    Require(call.status());
    (*call)->Submit();
    const engine::CallEnd end = waiter->Wait();
    Require(end.status);
    *plan = waiter->plan();
    return static_cast<double>(end.timings.kernel_ns) * 1e-6;
  }

  /// Milliseconds of plain CSR as the trial measured them, 0 if the signature was not tried.
  double Baseline(const std::string& name, const Problem& problem) {
    auto matrix = engine_->catalog().Find(kTenant, name);
    Require(matrix.status());
    const auto found = (*matrix)->pattern()->plans().Find(SignatureOf(problem));
    return found.plan != nullptr ? found.plan->plan.baseline_ms : 0;
  }

  void Print(const std::string& name, const test::Pattern& pattern, const Problem& problem,
             const std::string& plan, double ours, const char* rival, double theirs,
             double preparation_seconds) {
    const double flops = 2.0 * static_cast<double>(pattern.nnz()) * static_cast<double>(problem.k);
    std::cout << json{{"matrix", name},
                      {"rows", pattern.rows},
                      {"cols", pattern.cols},
                      {"nnz", pattern.nnz()},
                      {"op", Name(problem.operation)},
                      {"transposed", problem.transposed},
                      {"k", problem.k},
                      {"type", "f32"},
                      {"threads", threads_},
                      {"plan", plan},
                      {"plan_ms", ours},
                      {"baseline_ms", Baseline(name, problem)},
                      {"rival", rival},
                      {"rival_ms", theirs},
                      {"ratio", theirs / ours},
                      {"gflops", flops / ours * 1e-6},
                      {"preparation_s", preparation_seconds}}
              << std::endl;
  }

  void Spmm(const std::string& name, const test::Pattern& pattern, const std::vector<float>& values,
            int64_t k, bool transpose, double preparation_seconds) {
    using Sparse = Eigen::SparseMatrix<float, Eigen::RowMajor, int32_t>;
    using DenseMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const std::vector<int32_t> offsets(pattern.row_offsets.begin(), pattern.row_offsets.end());
    const Eigen::Map<const Sparse> plain(pattern.rows, pattern.cols, pattern.nnz(), offsets.data(),
                                         pattern.column_indices.data(), values.data());
    // The transposed product is given Eigen's best case: a transposed copy made beforehand.
    const Sparse s = transpose ? Sparse(plain.transpose()) : Sparse(plain);
    const int64_t in = transpose ? pattern.rows : pattern.cols;
    const std::vector<float> elements = RandomFloats(in * k, k);
    const Eigen::Map<const DenseMatrix> b(elements.data(), in, k);
    DenseMatrix c(s.rows(), k);

    engine::SpmmSpec spec;
    spec.tenant = kTenant;
    spec.matrix = name;
    spec.transpose = transpose;
    spec.b.held = transpose ? "tall" : "narrow";
    std::string plan;
    const auto [ours, theirs] =
        Alternate([&] { return Call(spec, &plan); },
                  [&] { return Milliseconds([&] { c.noalias() = s * b; }); });
    Print(name, pattern, {Operation::kSpmm, transpose, ElementType::kF32, k}, plan, ours, "eigen",
          theirs, preparation_seconds);
  }

  void Sddmm(const std::string& name, const test::Pattern& pattern,
             const std::vector<float>& values, int64_t k, double preparation_seconds) {
    const std::vector<float> a = RandomFloats(pattern.rows * k, k),
                             b = RandomFloats(pattern.cols * k, k);
    std::vector<float> out(values.size());
    engine::SddmmSpec spec;
    spec.tenant = kTenant;
    spec.matrix = name;
    spec.a.held = "tall";
    spec.b.held = "narrow";
    std::string plan;
    const auto [ours, theirs] =
        Alternate([&] { return Call(spec, &plan); },
                  [&] {
                    return Milliseconds([&] {
                      PlainSddmm(pattern.view(), values.data(), a.data(), b.data(), k, out.data());
                    });
                  });
    Print(name, pattern, {Operation::kSddmm, false, ElementType::kF32, k}, plan, ours,
          "plain loops", theirs, preparation_seconds);
  }

  const int threads_;
  engine::Observer observer_;
  std::unique_ptr<engine::Engine> engine_;
};

test::Matrix WithValues(test::Pattern pattern) {
  test::Matrix matrix{std::move(pattern), {}};
  matrix.values = test::RandomValues(matrix.pattern.nnz(), 1);
  return matrix;
}

int Main(int argc, char** argv) {
  CLI::App app{
      "Measures the plans that the service chooses by itself, beside Eigen and plain loops"};
  std::vector<std::string> files;
  int threads = 2;
  bool generated = false;
  int64_t least_nnz = 100000;
  double trial_budget_ms = 2000;
  app.add_option("files", files, "Matrix Market files, plain or .gz");
  app.add_option("--threads", threads, "OpenMP threads of both sides");
  app.add_option("--least-nnz", least_nnz, "Leave smaller matrices out");
  app.add_option("--trial-budget-ms", trial_budget_ms,
                 "Milliseconds that the trials of a signature may take");
  app.add_flag("--generated", generated, "Also the band, stencil, uniform and R-MAT matrices");
  CLI11_PARSE(app, argc, argv);

  Bench bench(threads, trial_budget_ms);
  for (const std::string& file : files) {
    std::optional<test::Matrix> matrix = test::ReadMatrixMarket(file);
    if (!matrix.has_value() || matrix->pattern.nnz() < least_nnz) continue;
    std::string name = std::filesystem::path(file).filename().string();
    bench.Run({name.substr(0, name.find(".mtx")), *std::move(matrix)});
  }
  if (generated) {
    bench.Run({"band", WithValues(test::Band(200000, 15))});
    bench.Run({"stencil", WithValues(test::Stencil(1024, 1024))});
    bench.Run({"uniform", WithValues(test::Uniform(100000, 100000, 16, 1))});
    bench.Run({"rmat16", WithValues(test::Rmat(16, 8, 1))});
  }
  return 0;
}

}  // namespace
}  // namespace sparsed

int main(int argc, char** argv) { return sparsed::Main(argc, argv); }
