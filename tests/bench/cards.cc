// Products of operands that lie over several GPUs, turn by turn with those on one of them: requests
// to the engine, without a wire. One line of JSON for each matrix and operation.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/catalog/catalog.h"
#include "engine/engine.h"
#include "engine/execution/distributions.h"

namespace sparsed::engine {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

struct Csr {
  int64_t rows = 0;
  std::vector<int64_t> row_offsets = {0};
  std::vector<int32_t> column_indices;
  int64_t nnz() const { return row_offsets.back(); }
  void EndRow() { row_offsets.push_back(static_cast<int64_t>(column_indices.size())); }
};

Csr Random(int64_t rows, int64_t row_nnz) {
  Csr s;
  s.rows = rows;
  std::mt19937_64 random(1);
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int32_t> columns;
    for (int64_t i = 0; i < row_nnz; ++i) {
      columns.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(rows)));
    }
    std::ranges::sort(columns);
    const auto same = std::ranges::unique(columns);
    columns.erase(same.begin(), same.end());
    s.column_indices.insert(s.column_indices.end(), columns.begin(), columns.end());
    s.EndRow();
  }
  return s;
}

/// Of a periodic grid; each point names those at these distances.
Csr Stencil(std::vector<int64_t> sides, const std::vector<std::vector<int64_t>>& distances) {
  Csr s;
  s.rows = 1;
  for (const int64_t side : sides) s.rows *= side;
  for (int64_t row = 0; row < s.rows; ++row) {
    std::vector<int32_t> columns;
    for (const std::vector<int64_t>& distance : distances) {
      int64_t rest = row, column = 0, stride = 1;
      for (size_t d = 0; d < sides.size(); ++d) {
        const int64_t at = (rest % sides[d] + distance[d] + sides[d]) % sides[d];
        column += at * stride;
        stride *= sides[d];
        rest /= sides[d];
      }
      columns.push_back(static_cast<int32_t>(column));
    }
    std::ranges::sort(columns);
    s.column_indices.insert(s.column_indices.end(), columns.begin(), columns.end());
    s.EndRow();
  }
  return s;
}

Csr Named(const std::string& name) {
  if (name == "random") return Random(1'000'000, 16);
  if (name == "random-small") return Random(200'000, 32);
  if (name == "stencil-3d7") {
    return Stencil(
        {89, 89, 89},
        {{0, 0, 0}, {1, 0, 0}, {-1, 0, 0}, {0, 1, 0}, {0, -1, 0}, {0, 0, 1}, {0, 0, -1}});
  }
  if (name == "stencil-2d9") {
    std::vector<std::vector<int64_t>> all;
    for (const int64_t x : {-1, 0, 1}) {
      for (const int64_t y : {-1, 0, 1}) all.push_back({x, y});
    }
    return Stencil({1054, 1054}, all);
  }
  if (name == "grid-2d4") return Stencil({1613, 1613}, {{1, 0}, {-1, 0}, {0, 1}, {0, -1}});
  std::cerr << "there is no matrix " << name << "\n";
  std::exit(2);
}

class Waiter final : public ResultSink {
 public:
  void OnBegin(CallBegin begin) override { plan = std::move(begin.plan); }
  void OnArray(uint32_t, uint64_t, Array) override {}
  void OnBlock(ResultBlock) override {}
  void OnEnd(CallEnd of) override {
    end = std::move(of);
    ended.set_value();
  }
  std::string plan;
  CallEnd end;
  std::promise<void> ended;
};

template <typename Receiver, typename T>
absl::Status Feed(Receiver& to, uint32_t array, const std::vector<T>& data) {
  auto claimed = to.Claim(array, 0, data.size() * sizeof(T));
  if (!claimed.ok()) return claimed.status();
  std::memcpy(*claimed, data.data(), data.size() * sizeof(T));
  return absl::OkStatus();
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Options {
  int gpus = 2, runs = 8, steps = 10;
  int64_t k = 128;
  double preparation_seconds = 8;
  std::vector<std::string> matrices = {"random", "random-small", "stencil-3d7", "stencil-2d9",
                                       "grid-2d4"};
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    EngineOptions engine;
    engine.host_memory_bytes = engine.preparation_memory_bytes = int64_t{64} << 30;
    engine.gpu = DeviceOptions{};
    engine.gpu_ordinals.clear();
    for (int i = 0; i < options.gpus; ++i) engine.gpu_ordinals.push_back(i);
    engine.preparation.trial_budget_ms = 500;
    engine.preparation.seconds = options.preparation_seconds;
    engine.preparation.threads_per_worker = 8;
    absl::StatusOr<std::unique_ptr<Engine>> opened = Engine::Open(engine, observer_);
    Require(opened.status());
    engine_ = *std::move(opened);
    if (static_cast<int>(engine_->gpus().size()) < options.gpus) {
      std::cerr << "there are " << engine_->gpus().size() << " GPUs\n";
      std::exit(1);
    }
  }

  void Run(const std::string& name) {
    const Csr s = Named(name);
    UploadHeader header;
    header.tenant = "t";
    header.name = name;
    header.rows = header.cols = s.rows;
    header.nnz = s.nnz();
    header.values_are_ones = true;
    for (const int64_t k : {options_.k, options_.k / options_.gpus}) {
      for (const Operation operation : {Operation::kSpmm, Operation::kSddmm}) {
        header.expected.push_back(SignatureOf({operation, false, ElementType::kF32, k}));
      }
    }
    auto upload = engine_->catalog().BeginUpload(header);
    Require(upload.status());
    Require(Feed(**upload, Upload::kRowOffsets, s.row_offsets));
    Require(Feed(**upload, Upload::kColumnIndices, s.column_indices));
    absl::StatusOr<MatrixLease> matrix = (*upload)->Finish(8);
    Require(matrix.status());
    matrix_ = *matrix;
    while (engine_->preparation().pending() > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    for (const Decision& decision : matrix_->pattern()->trials().decisions()) {
      if (decision.pipeline.find(" over ") == std::string::npos) continue;
      std::cerr << name << ", " << ToString(decision.signature) << ", " << decision.pipeline << ": "
                << decision.reason << "\n";
    }
    const auto choice =
        ChooseDistribution(engine_->executor(), *matrix_, false, options_.k, nullptr);
    Require(choice.status());
    json line = {{"bench", "cards"},
                 {"matrix", name},
                 {"rows", s.rows},
                 {"nnz", s.nnz()},
                 {"k", options_.k},
                 {"gpus", options_.gpus},
                 {"steps", options_.steps},
                 {"spread_ms", choice->spread_ms},
                 {"chosen", Name(choice->best)}};
    for (const DistributionEstimate& estimate : choice->estimates) {
      line[fmt::format("estimate_{}_ms", Name(estimate.distribution))] = estimate.milliseconds;
    }
    Measure(s, line);
    std::cout << line.dump() << std::endl;
    matrix_.reset();
    for (const HeldDenseLease& held : engine_->dense().List("t", "")) {
      Require(engine_->dense().Delete("t", held->name));
    }
    Require(engine_->catalog().Delete("t", name));
  }

 private:
  struct Way {
    std::string name;
    std::function<absl::StatusOr<std::shared_ptr<Call>>(std::shared_ptr<ResultSink>)> begin;
    std::vector<double> total = {}, kernel = {};
    std::string plan = {};
  };

  void Put(const std::string& name, int64_t rows, int64_t cols, Distribution distribution,
           const std::vector<float>& data) {
    PutHeader header{"t", name, {rows, cols, cols, ElementType::kF32}, /*zeros=*/data.empty()};
    header.distribution = distribution;
    if (distribution == Distribution::kRows) header.rows_of = matrix_;
    auto put = engine_->dense().BeginPut(std::move(header));
    Require(put.status());
    if (!data.empty()) Require(Feed(**put, 0, data));
    Require((*put)->Finish().status());
  }

  void Measure(const Csr& s, json& line) {
    const int64_t k = options_.k;
    std::vector<float> b(static_cast<size_t>(s.rows * k));
    std::mt19937 random(5);
    for (float& x : b) x = static_cast<float>(static_cast<int>(random() % 9) - 4) / 4;
    std::vector<Way> ways;
    for (const char* const operation : {"spmm", "chain", "sddmm"}) {
      for (const Distribution lies :
           {Distribution::kWhole, Distribution::kColumns, Distribution::kRows}) {
        const std::string as(Name(lies));
        ways.push_back({fmt::format("{}_{}", operation, as), BeginOf(operation, as)});
      }
    }
    for (const Distribution lies :
         {Distribution::kWhole, Distribution::kColumns, Distribution::kRows}) {
      const std::string as(Name(lies));
      Put("b-" + as, s.rows, k, lies, b);
      Put("c-" + as, s.rows, k, Distribution::kWhole, {});
      Put("d-" + as, s.rows, k, Distribution::kWhole, {});
      Put("s-" + as, s.nnz(), 1, Distribution::kWhole, {});
    }
    // The first of a turn finds caches as the way before it has left them.
    constexpr int kTurn = 4;
    for (int run = 0; run < options_.runs + 2; ++run) {
      for (Way& way : ways) {
        for (int i = 0; i < kTurn; ++i) {
          const auto sink = std::make_shared<Waiter>();
          const auto began = Clock::now();
          auto call = way.begin(sink);
          Require(call.status());
          (*call)->Submit();
          sink->ended.get_future().wait();
          const std::chrono::duration<double, std::milli> took = Clock::now() - began;
          Require(sink->end.status);
          way.plan = sink->plan;
          if (run < 2 || i == 0) continue;
          way.total.push_back(took.count());
          way.kernel.push_back(1e-6 * static_cast<double>(sink->end.timings.kernel_ns));
        }
      }
    }
    for (const char* const result : {"c", "s"}) {
      std::vector<std::vector<float>> all;
      for (const char* const as : {"whole", "columns", "rows"}) {
        const auto held = engine_->dense().Find("t", fmt::format("{}-{}", result, as));
        const auto elements = (*held)->elements->Get();
        Require(elements.status());
        const auto values = elements->As<float>();
        all.emplace_back(values.begin(), values.end());
      }
      // Sums of so few multiples of a quarter are exact.
      if (all[0] != all[1] || all[0] != all[2]) {
        std::cerr << "there are other results than of whole operands\n";
        std::exit(1);
      }
    }
    std::map<std::string, const Way*> of;
    for (const Way& way : ways) {
      of[way.name] = &way;
      line[way.name + "_ms"] = Median(way.total);
      line[way.name + "_kernel_ms"] = Median(way.kernel);
      line[way.name + "_plan"] = way.plan;
      const Way& whole = *of[way.name.substr(0, way.name.find('_')) + "_whole"];
      line[way.name + "_gain"] = Median(whole.total) / Median(way.total);
      line[way.name + "_kernel_gain"] = Median(whole.kernel) / Median(way.kernel);
    }
  }

  std::function<absl::StatusOr<std::shared_ptr<Call>>(std::shared_ptr<ResultSink>)> BeginOf(
      const std::string& operation, const std::string& as) {
    const std::string name = matrix_->name();
    if (operation == "spmm") {
      SpmmSpec spec;
      spec.tenant = "t";
      spec.matrix = name;
      spec.b.held = "b-" + as;
      spec.result.held = "c-" + as;
      return [this, spec](std::shared_ptr<ResultSink> sink) {
        return engine_->executor().Begin(spec, std::move(sink));
      };
    }
    if (operation == "sddmm") {
      SddmmSpec spec;
      spec.tenant = "t";
      spec.matrix = name;
      spec.a.held = spec.b.held = "b-" + as;
      spec.result.held = "s-" + as;
      return [this, spec](std::shared_ptr<ResultSink> sink) {
        return engine_->executor().Begin(spec, std::move(sink));
      };
    }
    ChainSpec spec;
    spec.tenant = "t";
    spec.operands.resize(1);
    spec.operands[0].held = "b-" + as;
    for (int i = 0; i < options_.steps; ++i) {
      SpmmStep step;
      step.matrix = name;
      step.alpha = 0.01;
      step.b = static_cast<size_t>(i);
      spec.steps.emplace_back(step);
    }
    spec.results.resize(1);
    spec.results[0].value = static_cast<size_t>(options_.steps);
    spec.results[0].place.held = "d-" + as;
    return [this, spec](std::shared_ptr<ResultSink> sink) {
      return engine_->executor().Begin(spec, std::move(sink));
    };
  }

  const Options options_;
  Observer observer_;
  std::unique_ptr<Engine> engine_;
  MatrixLease matrix_;
};

}  // namespace
}  // namespace sparsed::engine

int main(int argc, char** argv) {
  sparsed::engine::Options options;
  CLI::App app("Products of operands that lie over several GPUs, and of whole ones");
  app.add_option("--gpus", options.gpus)->check(CLI::Range(2, 64));
  app.add_option("--runs", options.runs);
  app.add_option("--steps", options.steps, "Products of a chain");
  app.add_option("--k", options.k);
  app.add_option("--matrix", options.matrices);
  app.add_option("--preparation-seconds", options.preparation_seconds);
  CLI11_PARSE(app, argc, argv);
  sparsed::engine::Bench bench(options);
  for (const std::string& matrix : options.matrices) bench.Run(matrix);
  return 0;
}
