// How fairly tenants share a device, and what that costs: a line of JSON for each scenario.
// Operands and results lie in memory of the device that the callers share, so that worker slots do
// little but compute.
//
//   bench_fairness [--devices=cpu] [--seconds=10] [--threads=1] [--worker-slots=1]
//   [--only=SCENARIO]
//
// On a GPU (--devices=cuda:0) matrices are larger: a tiny product takes some microseconds there,
// one that fills it less than a millisecond, a huge one many.
//
//   alone      one tenant with a tiny SpMM at a time: its latency
//   beside     the same beside a tenant that has eight huge ones in flight
//   own        the same, all of them one tenant's
//   attention  on the CPU: beside a tenant that has two in flight of attention and its gradients
//   spgemm     on the CPU: beside one that has two large SpGEMMs, counted, then computed
//   equal      two tenants, tiny and huge, that always have work: their device seconds
//   weights    the same with weights 3 and 1
//   sixteen    sixteen tenants of mixed sizes: each one's part, and how busy the worker slots are
//   cost       multiplications a second of two tenants with huge ones, which take turns, over those
//              of one huge SpMM at a time, which nobody disturbs; five rounds of both, sorted
//   filling    on a GPU: a tenant whose short SpMMs fill it and one with huge ones, both always at
//              work: what each computes, as a part of what it does alone
//   trials     one tenant with a tiny SpMM at a time beside trials of a huge one: its latency, and
//              what a trial's run takes
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/catalog/catalog.h"
#include "engine/catalog/dense_catalog.h"
#include "engine/execution/executor.h"
#include "engine/execution/gpu_backend.h"
#include "engine/memory/budget.h"
#include "engine/memory/device.h"
#include "engine/observer.h"
#include "engine/preparation/trial.h"
#include "engine/store/store.h"
#include "kernels/bound_run.h"
#include "kernels/device_id.h"
#include "tests/generate.h"

namespace sparsed {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
using test::Pattern;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

int64_t ResidentBytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * 4096;
}

/// What is multiplied with what.
struct Product {
  enum class Kind : uint8_t { kSpmm, kAttention, kSpgemm };
  std::string matrix;
  int64_t rows = 0, nnz = 0, k = 0;
  Kind kind = Kind::kSpmm;
};

struct Service {
  Service(DeviceId on, int slots, int threads)
      : device(on),
        gpu(on.kind == DeviceKind::kCuda ? Open(on.ordinal) : nullptr),
        executor({.slots = slots, .threads_per_slot = threads}, catalog, dense, budget, observer,
                 gpu == nullptr ? std::vector<engine::Device*>()
                                : std::vector<engine::Device*>{gpu.get()}) {
    catalog.on_published = [](auto&&...) {};
    catalog.on_pattern_gone = [](const std::shared_ptr<engine::Pattern>&) {};
  }
  static std::unique_ptr<engine::Device> Open(int ordinal) {
    absl::StatusOr<std::unique_ptr<engine::Device>> gpu = engine::Device::Open(ordinal, {});
    Check(gpu.status());
    return *std::move(gpu);
  }
  /// Of the device, and written: what is touched for the first time later would look like growth.
  Buffer Shared(size_t bytes, float value) {
    absl::StatusOr<Buffer> made =
        gpu == nullptr ? HeapMemory().Allocate(bytes)
                       : gpu->budget().Source(engine::MemoryUse::kBuffers).Allocate(bytes);
    Check(made.status());
    if (gpu == nullptr) {
      std::fill_n(reinterpret_cast<float*>(made->mutable_data()), bytes / sizeof(float), value);
    } else {
      const std::vector<float> host(bytes / sizeof(float), value);
      Check(gpu->CopyIn(made->mutable_data(), host.data(), bytes));
    }
    return *std::move(made);
  }
  Product Upload(const std::string& tenant, const std::string& name, const Pattern& pattern,
                 int64_t k) {
    const auto array = [](const char* what, ElementType type, const void* data, int64_t length) {
      Array made = AllocateArray(HeapMemory(), what, type, length).value();
      std::memcpy(made.buffer.mutable_data(), data, made.bytes());
      return made;
    };
    const std::vector<float> ones(pattern.nnz(), 1);
    engine::UploadHeader header;
    header.tenant = tenant;
    header.name = name;
    header.rows = pattern.rows;
    header.cols = pattern.cols;
    header.nnz = pattern.nnz();
    header.type = ElementType::kF32;
    Check(catalog
              .Insert(header,
                      array("row_offsets", ElementType::kI64, pattern.row_offsets.data(),
                            pattern.rows + 1),
                      array("column_indices", ElementType::kI32, pattern.column_indices.data(),
                            pattern.nnz()),
                      array("values", ElementType::kF32, ones.data(), pattern.nnz()))
              .status());
    return {name, pattern.rows, pattern.nnz(), k};
  }

  const DeviceId device;
  std::unique_ptr<engine::Store> store = engine::MakeInMemoryStore();
  engine::Budget budget{int64_t{16} << 30, int64_t{1} << 30};
  engine::Catalog catalog{*store, budget};
  engine::DenseCatalog dense{*store, budget};
  engine::Observer observer;
  const std::unique_ptr<engine::Device> gpu;  ///< null: it is the CPU
  engine::Executor executor;
};

/// A tenant that always has so many requests in flight, until it is stopped.
class Client {
 public:
  Client(Service& service, std::string tenant, Product product, int depth)
      : service_(service), tenant_(std::move(tenant)), product_(std::move(product)) {
    const size_t bytes = static_cast<size_t>(product_.rows * product_.k) * sizeof(float);
    b_ = service.Shared(bytes, 1);
    for (int i = 0; i < depth; ++i) {
      results_.push_back(service.Shared(bytes, 0));
      free_.push_back(i);
    }
    samples_.resize(kMostSamples);  // touched, as operands are
    samples_.clear();
    thread_ = std::thread([this] { Run(); });
  }
  ~Client() { Stop(); }
  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  const std::string& tenant() const { return tenant_; }
  int64_t ended() const { return ended_; }
  int64_t failed() const { return failed_; }
  double multiplications() const {
    return static_cast<double>(ended_) * static_cast<double>(product_.nnz * product_.k);
  }
  /// What was measured until now does not count.
  void Forget() {
    const std::lock_guard lock(mutex_);
    samples_.clear();
    ended_ = 0;
    longest_ = 0;
  }
  Json Latencies() {
    const std::lock_guard lock(mutex_);
    if (samples_.empty()) return nullptr;
    const auto at = [&](double Sample::*what, double part) {
      std::ranges::sort(samples_, {}, what);
      return samples_[static_cast<size_t>(part * static_cast<double>(samples_.size() - 1))].*what;
    };
    return {{"plan", plan_},
            {"requests", ended_.load()},
            {"queue_p50_ms", at(&Sample::queued, 0.5)},
            {"kernel_p50_ms", at(&Sample::computed, 0.5)},
            {"p50_ms", at(&Sample::all, 0.5)},
            {"p95_ms", at(&Sample::all, 0.95)},
            {"p99_ms", at(&Sample::all, 0.99)},
            {"max_ms", longest_}};
  }

 private:
  /// Milliseconds of a request.
  struct Sample {
    double all = 0, queued = 0, computed = 0;
  };
  static constexpr size_t kMostSamples = size_t{1} << 16;

  class End final : public engine::ResultSink {
   public:
    End(Client& client, int slot) : client_(client), slot_(slot) {}
    void OnBegin(engine::CallBegin begin) override { client_.Began(begin); }
    void OnArray(uint32_t, uint64_t, Array) override {}
    void OnBlock(engine::ResultBlock block) override {
      const std::shared_ptr<engine::Call> held = call.lock();
      if (held == nullptr) return;
      held->Release(static_cast<int64_t>(block.row_offsets.bytes() + block.column_indices.bytes() +
                                         block.values.bytes()));
    }
    void OnEnd(engine::CallEnd end) override { client_.Ended(slot_, begun_, end); }

    std::weak_ptr<engine::Call> call;

   private:
    Client& client_;
    const int slot_;
    const Clock::time_point begun_ = Clock::now();
  };

  void Began(const engine::CallBegin& begin) {
    const std::lock_guard lock(mutex_);
    plan_ = begin.plan;
  }
  void Ended(int slot, Clock::time_point begun, const engine::CallEnd& end) {
    const std::lock_guard lock(mutex_);
    ++ended_;
    if (!end.status.ok()) ++failed_;
    const Sample sample = {
        .all = std::chrono::duration<double, std::milli>(Clock::now() - begun).count(),
        .queued = 1e-6 * static_cast<double>(end.timings.queue_ns),
        .computed = 1e-6 * static_cast<double>(end.timings.kernel_ns)};
    longest_ = std::max(longest_, sample.all);
    if (samples_.size() < kMostSamples) {
      samples_.push_back(sample);
    } else if (const uint64_t place = random_() % static_cast<uint64_t>(ended_.load());
               place < kMostSamples) {
      samples_[place] = sample;  // Vitter's algorithm R: each is kept with the same probability
    }
    free_.push_back(slot);
    changed_.notify_all();
  }

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ ? free_.size() == results_.size() : !free_.empty(); });
      if (stop_) return;
      const int slot = free_.back();
      free_.pop_back();
      lock.unlock();
      const auto end = std::make_shared<End>(*this, slot);
      auto call = Begin(slot, end);
      Check(call.status());
      end->call = *call;
      (*call)->Submit();
      lock.lock();
    }
  }
  absl::StatusOr<std::shared_ptr<engine::Call>> Begin(int slot, const std::shared_ptr<End>& end) {
    switch (product_.kind) {
      case Product::Kind::kSpmm: {
        engine::SpmmSpec spec;
        spec.tenant = tenant_;
        spec.matrix = product_.matrix;
        spec.b = Operand();
        spec.result = Result(slot);
        return service_.executor.Begin(spec, end);
      }
      case Product::Kind::kAttention: {
        engine::ChainSpec spec;
        spec.tenant = tenant_;
        spec.operands.assign(3, Operand());
        const engine::AttentionScores scores{.heads = 4, .left = 0, .right = 1};
        spec.steps = {engine::AttentionStep{product_.matrix, scores, /*values=*/2},
                      engine::AttentionGradientStep{.matrix = product_.matrix,
                                                    .scores = scores,
                                                    .values = 2,
                                                    .result = 3,
                                                    .log_sums = 4,
                                                    .gradient = 0,
                                                    .of_left = true,
                                                    .of_right = true,
                                                    .of_values = true}};
        spec.results = {{.value = 5, .place = Result(slot)}};
        return service_.executor.Begin(spec, end);
      }
      case Product::Kind::kSpgemm: {
        engine::SpgemmSpec spec;
        spec.tenant = tenant_;
        spec.left = spec.right = product_.matrix;
        spec.count_first = true;
        return service_.executor.Begin(spec, end);
      }
    }
    return absl::InternalError("no such kind");
  }
  engine::DenseShape Shape() const {
    return {product_.rows, product_.k, product_.k, ElementType::kF32};
  }
  engine::OperandSpec Operand() const {
    engine::OperandSpec operand;
    operand.shape = Shape();
    operand.shared = b_;
    operand.shared_on = service_.device;
    return operand;
  }
  engine::ResultSpec Result(int slot) const {
    engine::ResultSpec result;
    result.shared = results_[slot];
    result.shared_on = service_.device;
    result.shape = Shape();
    return result;
  }

  Service& service_;
  const std::string tenant_;
  const Product product_;
  Buffer b_;
  std::vector<Buffer> results_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> free_;
  bool stop_ = false;
  std::atomic<int64_t> ended_ = 0, failed_ = 0;
  std::string plan_;             ///< of the last request
  std::vector<Sample> samples_;  ///< of those that ended, at most kMostSamples
  double longest_ = 0;           ///< milliseconds, of all
  std::mt19937_64 random_;
  std::thread thread_;
};

struct Options {
  DeviceId device;
  double seconds = 10;
  int slots = 1, threads = 1;
  std::vector<std::string> only;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        on_gpu_(options.device.kind == DeviceKind::kCuda),
        service_(options.device, options.slots, options.threads),
        tiny_(test::Uniform(8000, 8000, 16, 1)),
        huge_(on_gpu_ ? test::Rmat(19, 16, 2) : test::Rmat(18, 12, 2)) {}

  void RunAll() {
    const std::pair<const char*, Json (Bench::*)()> scenarios[] = {
        {"alone", &Bench::Alone},         {"beside", &Bench::Beside},   {"own", &Bench::Own},
        {"attention", &Bench::Attention}, {"spgemm", &Bench::Spgemm},   {"equal", &Bench::Equal},
        {"weights", &Bench::Weights},     {"sixteen", &Bench::Sixteen}, {"cost", &Bench::Cost},
        {"filling", &Bench::Filling},     {"trials", &Bench::Trials}};
    for (const auto& [name, run] : scenarios) {
      if (!options_.only.empty() && !std::ranges::count(options_.only, name)) continue;
      if (run == &Bench::Filling && !on_gpu_) continue;
      if ((run == &Bench::Attention || run == &Bench::Spgemm) && on_gpu_) continue;
      Json line = {{"scenario", name}, {"device", Name(options_.device)}};
      if (on_gpu_) {
        line["card"] = service_.gpu->info().name;
      } else {
        line["lanes"] = options_.slots;
        line["threads"] = options_.threads;
      }
      line.update((this->*run)());
      std::printf("%s\n", line.dump().c_str());
      std::fflush(stdout);
    }
  }

 private:
  static constexpr int64_t kTinyWidth = 8, kFillingWidth = 64;
  int64_t huge_width() const { return on_gpu_ ? 256 : 128; }
  int64_t cost_width() const { return on_gpu_ ? 256 : 32; }

  Product Tiny(const std::string& tenant) {
    return service_.Upload(tenant, "tiny." + std::to_string(++uploads_), tiny_, kTinyWidth);
  }
  Product Huge(const std::string& tenant) {
    return service_.Upload(tenant, "huge." + std::to_string(++uploads_), huge_, huge_width());
  }
  std::map<std::string, double> Seconds() {
    std::map<std::string, double> seconds;
    const engine::TenantSeconds all = service_.executor.tenant_seconds(options_.device);
    for (const auto& [tenant, use] : all.named()) {
      seconds[tenant] = use.seconds;
    }
    return seconds;
  }
  /// Lets them run, first for a while that does not count; device seconds of each meanwhile.
  std::map<std::string, double> Measure(const std::vector<Client*>& clients, double* wall) {
    std::this_thread::sleep_for(std::chrono::duration<double>(0.2 * options_.seconds));
    for (Client* const client : clients) client->Forget();
    resident_settled_ = ResidentBytes();
    const auto begun = Clock::now();
    const std::map<std::string, double> before = Seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(0.5 * options_.seconds));
    resident_middle_ = ResidentBytes();
    std::this_thread::sleep_for(std::chrono::duration<double>(0.5 * options_.seconds));
    std::map<std::string, double> used = Seconds();
    *wall = std::chrono::duration<double>(Clock::now() - begun).count();
    for (auto& [tenant, seconds] : used) {
      const auto found = before.find(tenant);
      if (found != before.end()) seconds -= found->second;
    }
    return used;
  }

  /// Worker slots of a GPU share its time.
  double Busy(double seconds, double wall) const {
    return seconds / wall / (on_gpu_ ? 1 : options_.slots);
  }

  Json Alone() {
    Client tiny(service_, "alone", Tiny("alone"), 1);
    double wall = 0;
    Measure({&tiny}, &wall);
    return {{"tiny", tiny.Latencies()}};
  }
  Json Besides(const std::string& of_huge, const Product& product, int depth) {
    Client tiny(service_, "of tiny", Tiny("of tiny"), 1);
    Client huge(service_, of_huge, product, depth);
    double wall = 0;
    Measure({&tiny, &huge}, &wall);
    return {{"tiny", tiny.Latencies()}, {"huge", huge.Latencies()}};
  }
  Json Beside() { return Besides("of huge", Huge("of huge"), 8); }
  Json Own() { return Besides("of tiny", Huge("of tiny"), 8); }
  Json Attention() {
    Product product = Huge("of attention");
    product.kind = Product::Kind::kAttention;
    return Besides("of attention", product, 2);
  }
  Json Spgemm() {
    constexpr int64_t kRows = 200'000, kOfRow = 24;
    Product product =
        service_.Upload("of spgemm", "factor", test::Uniform(kRows, kRows, kOfRow, 5), /*k=*/1);
    product.kind = Product::Kind::kSpgemm;
    return Besides("of spgemm", product, 2);
  }
  Json Shares(const std::string& one, const std::string& other) {
    Client tiny(service_, one, Tiny(one), 64);
    Client huge(service_, other, Huge(other), 4);
    double wall = 0;
    const auto used = Measure({&tiny, &huge}, &wall);
    return {{"tiny_device_seconds", used.at(one)},
            {"huge_device_seconds", used.at(other)},
            {"tiny_over_huge", used.at(one) / used.at(other)},
            {"busy", Busy(used.at(one) + used.at(other), wall)},
            {"failed", tiny.failed() + huge.failed()}};
  }
  Json Equal() { return Shares("equal tiny", "equal huge"); }
  Json Weights() {
    service_.executor.SetWeights({{{"weight 3", 3}}});
    return Shares("weight 3", "weight 1");
  }
  Json Sixteen() {
    std::vector<std::unique_ptr<Client>> clients;
    std::vector<Client*> all;
    const Pattern middle = test::Rmat(14, 12, 3);
    for (int i = 0; i < 16; ++i) {
      const std::string tenant = "sixteen " + std::to_string(i);
      const Product product = i % 3 == 0 ? Tiny(tenant)
                              : i % 3 == 1
                                  ? service_.Upload(tenant, "middle", middle, int64_t{16} << i % 4)
                                  : service_.Upload(tenant, "huge", huge_, int64_t{16} << i % 4);
      clients.push_back(
          std::make_unique<Client>(service_, tenant, product, i % 3 == 0 ? 64 : 2 + i % 5));
      all.push_back(clients.back().get());
    }
    double wall = 0;
    const auto used = Measure(all, &wall);
    const int64_t resident_after = ResidentBytes();
    double sum = 0, least = 1e9, most = 0;
    int64_t failed = 0, ended = 0;
    std::vector<double> each;
    for (const Client* const client : all) {
      const double seconds = used.at(client->tenant());
      each.push_back(seconds);
      sum += seconds;
      least = std::min(least, seconds);
      most = std::max(most, seconds);
      failed += client->failed();
      ended += client->ended();
    }
    for (double& seconds : each) seconds /= sum / 16;
    return {{"seconds", wall},
            {"requests", ended},
            {"failed", failed},
            {"busy", Busy(sum, wall)},
            {"least_of_share", least / (sum / 16)},
            {"most_of_share", most / (sum / 16)},
            {"shares", each},
            {"resident_mib_settled", resident_settled_ >> 20},
            {"resident_mib_middle", resident_middle_ >> 20},
            {"resident_mib_after", resident_after >> 20}};
  }
  /// Multiplications of requests that ended, for each second of worker slots' time and of the
  /// process's.
  struct Rate {
    double device = 0, processor = 0;
  };
  Rate RateOf(const std::vector<Client*>& clients) {
    const std::clock_t before = std::clock();
    double wall = 0, seconds = 0, multiplications = 0;
    const auto used = Measure(clients, &wall);
    const double processor =
        static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC / 1.2;  // settling, too
    for (const Client* const client : clients) {
      seconds += used.at(client->tenant());
      multiplications += client->multiplications();
    }
    return {multiplications / seconds, multiplications / processor};
  }
  Json Cost() {
    const auto huge = [&](const std::string& tenant) {
      return service_.Upload(tenant, "huge." + std::to_string(++uploads_), huge_, cost_width());
    };
    const Product alone = huge("uncut"), one = huge("cut 1"), other = huge("cut 2");
    std::vector<double> device, processor;
    for (int round = 0; round < 5; ++round) {
      Rate uncut, cut;
      {
        Client client(service_, "uncut", alone, 1);
        uncut = RateOf({&client});
      }
      {
        Client first(service_, "cut 1", one, 1), second(service_, "cut 2", other, 1);
        cut = RateOf({&first, &second});
      }
      device.push_back(cut.device / uncut.device);
      processor.push_back(cut.processor / uncut.processor);
    }
    std::ranges::sort(device);
    std::ranges::sort(processor);
    Json line = {{"cut_over_uncut_by_device_seconds", device}};
    if (!on_gpu_) line["cut_over_uncut_by_processor_seconds"] = processor;
    return line;
  }
  Json Filling() {
    const Pattern pattern = test::Rmat(16, 16, 4);
    const Product filling = service_.Upload("of filling", "filling", pattern, kFillingWidth);
    const Product huge = Huge("of huge");
    const auto rates = [&](bool with_filling, bool with_huge) {
      std::unique_ptr<Client> of_filling, of_huge;
      std::vector<Client*> clients;
      if (with_filling) {
        of_filling = std::make_unique<Client>(service_, "of filling", filling, 64);
        clients.push_back(of_filling.get());
      }
      if (with_huge) {
        of_huge = std::make_unique<Client>(service_, "of huge", huge, 4);
        clients.push_back(of_huge.get());
      }
      double wall = 0;
      auto used = Measure(clients, &wall);
      std::vector<double> rates;
      for (const Client* const client : clients) rates.push_back(client->multiplications() / wall);
      return std::pair(rates, used);
    };
    const double filling_alone = rates(true, false).first[0];
    const double huge_alone = rates(false, true).first[0];
    auto [both, used] = rates(true, true);
    return {{"filling_of_alone", both[0] / filling_alone},
            {"huge_of_alone", both[1] / huge_alone},
            {"filling_device_seconds", used["of filling"]},
            {"huge_device_seconds", used["of huge"]}};
  }
  Json Trials() {
    const Product huge = Huge("of trials");
    const Product tiny = Tiny("of tiny");
    const auto matrix = service_.catalog.Find("of trials", huge.matrix);
    Check(matrix.status());
    engine::Backend& backend = service_.executor.backend(options_.device);
    const ProblemSignature c = {.operation = Operation::kSpmm,
                                .type = ElementType::kF32,
                                .k_bucket = static_cast<int32_t>(huge.k),
                                .device = options_.device.kind};
    std::atomic<bool> stop = false;
    auto trial =
        engine::Trial::Begin(c, huge.rows, huge.rows, huge.nnz, backend, service_.executor, &stop);
    Check(trial.status());
    const auto csr = (*matrix)->pattern()->Csr();
    Check(csr.status());
    auto values = backend.ValuesFor(**matrix, **csr, HeapMemory(), options_.threads);
    Check(values.status());
    const auto kernels = LayoutKernels(Operation::kSpmm);
    const auto kernel = std::ranges::find_if(
        kernels, [&](const LayoutKernel& k) { return k.Serves(ProblemOf(c), **csr); });
    (*trial)->set_baseline({*csr, *std::move(values), std::string(kernel->name())});
    std::atomic<double> run_ms = 0;
    std::thread trials([&] {
      while (!stop) {
        const auto times = (*trial)->BaselineAlone(100);
        if (!stop) Check(times.status());
        if (times.ok()) run_ms = times->median;
      }
    });
    Json line;
    {
      Client client(service_, "of tiny", tiny, 1);
      double wall = 0;
      Measure({&client}, &wall);
      line = {{"tiny", client.Latencies()}, {"trial_run_ms", run_ms.load()}};
    }
    stop = true;
    trials.join();
    return line;
  }

  const Options options_;
  const bool on_gpu_;
  Service service_;
  const Pattern tiny_, huge_;
  int uploads_ = 0;
  int64_t resident_settled_ = 0, resident_middle_ = 0;
};

}  // namespace
}  // namespace sparsed

int main(int argc, char** argv) {
  sparsed::Options options;
  CLI::App app("How fairly tenants share a device, and what that costs");
  std::string device = "cpu";
  app.add_option("--devices", device, "cpu, or a GPU: cuda:0");
  app.add_option("--seconds", options.seconds, "of each scenario, after a fifth more to settle");
  app.add_option("--worker-slots,--lanes", options.slots);
  app.add_option("--threads", options.threads, "of each of the CPU's");
  app.add_option("--only", options.only, "scenarios; may be repeated");
  CLI11_PARSE(app, argc, argv);
  const std::optional<sparsed::DeviceId> id = sparsed::ParseDeviceId(device);
  if (!id) {
    std::fprintf(stderr, "--devices: '%s' is neither cpu nor cuda:N\n", device.c_str());
    return 1;
  }
  options.device = *id;
  sparsed::Bench(options).RunAll();
  return 0;
}
