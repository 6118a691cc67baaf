// How fairly tenants share the CPU's lanes, and what that costs: a line of JSON for each scenario.
// Operands and results lie in memory that the callers share, so that lanes do little but compute.
//
//   bench_fairness [--seconds=10] [--threads=1] [--lanes=1] [--only=SCENARIO]
//
//   alone      one tenant with a tiny SpMM at a time: its latency
//   beside     the same beside a tenant that has eight huge ones in flight
//   own        the same, all of them one tenant's
//   equal      two tenants, tiny and huge, that always have work: their device seconds
//   weights    the same with weights 3 and 1
//   sixteen    sixteen tenants of mixed sizes: each one's part, and how busy the lanes are
//   cost       multiplications a second of two tenants with huge ones, which take turns, over those
//              of one huge SpMM at a time, which nobody disturbs; five rounds of both, sorted
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
#include <string>
#include <thread>
#include <vector>

#include "engine/catalog/catalog.h"
#include "engine/catalog/dense_catalog.h"
#include "engine/execution/executor.h"
#include "engine/memory/budget.h"
#include "engine/observer.h"
#include "engine/store/store.h"
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
  std::string matrix;
  int64_t rows = 0, nnz = 0, k = 0;
};

struct Service {
  Service(int lanes, int threads)
      : executor({.lanes = lanes, .threads_per_lane = threads}, catalog, dense, budget, observer) {
    catalog.on_published = [](auto&&...) {};
    catalog.on_pattern_gone = [](const std::shared_ptr<engine::Pattern>&) {};
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

  std::unique_ptr<engine::Store> store = engine::MakeInMemoryStore();
  engine::Budget budget{int64_t{8} << 30, int64_t{1} << 30};
  engine::Catalog catalog{*store, budget};
  engine::DenseCatalog dense{*store, budget};
  engine::Observer observer;
  engine::Executor executor;
};

/// A tenant that always has so many requests in flight, until it is stopped.
class Client {
 public:
  Client(Service& service, std::string tenant, Product product, int depth)
      : service_(service), tenant_(std::move(tenant)), product_(std::move(product)) {
    const size_t bytes = static_cast<size_t>(product_.rows * product_.k) * sizeof(float);
    b_ = HeapMemory().Allocate(bytes).value();
    std::fill_n(reinterpret_cast<float*>(b_.mutable_data()), product_.rows * product_.k, 1.0F);
    for (int i = 0; i < depth; ++i) {
      results_.push_back(HeapMemory().Allocate(bytes).value());
      free_.push_back(i);
    }
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
    milliseconds_.clear();
    ended_ = 0;
  }
  Json Latencies() {
    const std::lock_guard lock(mutex_);
    std::vector<double> sorted = milliseconds_;
    if (sorted.empty()) return nullptr;
    std::ranges::sort(sorted);
    const auto at = [&](double part) {
      return sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
    };
    return {{"requests", sorted.size()},
            {"p50_ms", at(0.5)},
            {"p95_ms", at(0.95)},
            {"p99_ms", at(0.99)},
            {"max_ms", at(1)}};
  }

 private:
  class End final : public engine::ResultSink {
   public:
    End(Client& client, int slot) : client_(client), slot_(slot) {}
    void OnBegin(engine::CallBegin) override {}
    void OnArray(uint32_t, uint64_t, Array) override {}
    void OnBlock(engine::ResultBlock) override {}
    void OnEnd(engine::CallEnd end) override { client_.Ended(slot_, begun_, end.status); }

   private:
    Client& client_;
    const int slot_;
    const Clock::time_point begun_ = Clock::now();
  };

  void Ended(int slot, Clock::time_point begun, const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    ++ended_;
    if (!status.ok()) ++failed_;
    milliseconds_.push_back(
        std::chrono::duration<double, std::milli>(Clock::now() - begun).count());
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
      engine::SpmmSpec spec;
      spec.tenant = tenant_;
      spec.matrix = product_.matrix;
      spec.b.shape = engine::DenseShape{product_.rows, product_.k, product_.k, ElementType::kF32};
      spec.b.shared = b_;
      spec.result.shared = results_[slot];
      spec.result.shape = spec.b.shape;
      auto call = service_.executor.Begin(spec, std::make_shared<End>(*this, slot));
      Check(call.status());
      (*call)->Submit();
      lock.lock();
    }
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
  std::vector<double> milliseconds_;
  std::thread thread_;
};

struct Options {
  double seconds = 10;
  int lanes = 1, threads = 1;
  std::vector<std::string> only;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        service_(options.lanes, options.threads),
        tiny_(test::Uniform(8000, 8000, 16, 1)),
        huge_(test::Rmat(18, 12, 2)) {}

  void RunAll() {
    const std::pair<const char*, Json (Bench::*)()> scenarios[] = {
        {"alone", &Bench::Alone}, {"beside", &Bench::Beside},   {"own", &Bench::Own},
        {"equal", &Bench::Equal}, {"weights", &Bench::Weights}, {"sixteen", &Bench::Sixteen},
        {"cost", &Bench::Cost}};
    for (const auto& [name, run] : scenarios) {
      if (!options_.only.empty() && !std::ranges::count(options_.only, name)) continue;
      Json line = {{"scenario", name}, {"lanes", options_.lanes}, {"threads", options_.threads}};
      line.update((this->*run)());
      std::printf("%s\n", line.dump().c_str());
      std::fflush(stdout);
    }
  }

 private:
  static constexpr int64_t kTinyWidth = 8, kHugeWidth = 128, kCostWidth = 32;

  Product Tiny(const std::string& tenant) {
    return service_.Upload(tenant, "tiny." + std::to_string(++uploads_), tiny_, kTinyWidth);
  }
  Product Huge(const std::string& tenant) {
    return service_.Upload(tenant, "huge." + std::to_string(++uploads_), huge_, kHugeWidth);
  }
  std::map<std::string, double> Seconds() {
    std::map<std::string, double> seconds;
    const engine::TenantSeconds all = service_.executor.tenant_seconds(DeviceId{});
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
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.seconds));
    std::map<std::string, double> used = Seconds();
    *wall = std::chrono::duration<double>(Clock::now() - begun).count();
    for (auto& [tenant, seconds] : used) {
      const auto found = before.find(tenant);
      if (found != before.end()) seconds -= found->second;
    }
    return used;
  }

  Json Alone() {
    Client tiny(service_, "alone", Tiny("alone"), 1);
    double wall = 0;
    Measure({&tiny}, &wall);
    return {{"tiny", tiny.Latencies()}};
  }
  Json Besides(const std::string& of_huge) {
    Client tiny(service_, "of tiny", Tiny("of tiny"), 1);
    Client huge(service_, of_huge, Huge(of_huge), 8);
    double wall = 0;
    Measure({&tiny, &huge}, &wall);
    return {{"tiny", tiny.Latencies()}, {"huge", huge.Latencies()}};
  }
  Json Beside() { return Besides("of huge"); }
  Json Own() { return Besides("of tiny"); }
  Json Shares(const std::string& one, const std::string& other) {
    Client tiny(service_, one, Tiny(one), 64);
    Client huge(service_, other, Huge(other), 4);
    double wall = 0;
    const auto used = Measure({&tiny, &huge}, &wall);
    return {{"tiny_device_seconds", used.at(one)},
            {"huge_device_seconds", used.at(other)},
            {"tiny_over_huge", used.at(one) / used.at(other)},
            {"busy", (used.at(one) + used.at(other)) / wall / options_.lanes},
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
    for (const Client* const client : all) {
      const double seconds = used.at(client->tenant());
      sum += seconds;
      least = std::min(least, seconds);
      most = std::max(most, seconds);
      failed += client->failed();
      ended += client->ended();
    }
    return {{"seconds", wall},
            {"requests", ended},
            {"failed", failed},
            {"busy", sum / wall / options_.lanes},
            {"least_of_share", least / (sum / 16)},
            {"most_of_share", most / (sum / 16)},
            {"resident_mib_settled", resident_settled_ >> 20},
            {"resident_mib_after", resident_after >> 20}};
  }
  /// Multiplications of requests that ended, for each second of lanes' time and of the process's.
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
      return service_.Upload(tenant, "huge." + std::to_string(++uploads_), huge_, kCostWidth);
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
    return {{"cut_over_uncut_by_device_seconds", device},
            {"cut_over_uncut_by_processor_seconds", processor}};
  }

  const Options options_;
  Service service_;
  const Pattern tiny_, huge_;
  int uploads_ = 0;
  int64_t resident_settled_ = 0;
};

}  // namespace
}  // namespace sparsed

int main(int argc, char** argv) {
  sparsed::Options options;
  CLI::App app("How fairly tenants share lanes of the CPU, and what that costs");
  app.add_option("--seconds", options.seconds, "of each scenario, after a fifth more to settle");
  app.add_option("--lanes", options.lanes);
  app.add_option("--threads", options.threads, "of each lane");
  app.add_option("--only", options.only, "scenarios; may be repeated");
  CLI11_PARSE(app, argc, argv);
  sparsed::Bench(options).RunAll();
  return 0;
}
