// One tenant does what it can to another: floods the worker slots, fills memory, disk, queues and
// connections up to its quotas, leaves results unread, and tries the other's names.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "sparsed/client.h"
#include "tests/fault/attack.h"
#include "tests/fault/checked_product.h"
#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr auto kPatience = std::chrono::seconds(30);

/// Tokens "attacker-token" and "victim-token".
constexpr const char* kAccessFile = R"(tokens:
  - name: a
    sha256: ec2ae588d2312f09b26d6e2e04b75208902980b670270d9463134299ee7efebd
    tenant: attacker
    role: user
  - name: v
    sha256: d7fdeed493347204968d64681a56a60df95aa3916821f29300b9e104dcd37ec8
    tenant: victim
    role: user
tenants:
  attacker:
    quotas: {host_bytes: 256MiB, disk_bytes: 128MiB, matrices: 20, buffers: 20, connections: 16,
             streams: 40, requests: 24, queued: 16, preparations: 8}
)";

absl::StatusOr<Client> ConnectAs(const std::string& tenant, const std::string& address) {
  return Client::Connect(
      address, {.connect_timeout = kPatience, .max_attempts = 1, .token = tenant + "-token"});
}

/// Calls again and again, each checked; in a thread of its own.
class Victim {
 public:
  explicit Victim(const std::string& address) : address_(address), thread_([this] { Run(); }) {}
  ~Victim() { Stop(); }
  void Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }

  /// Of tiny products so far, which are forgotten.
  std::vector<double> TakeSeconds() {
    const std::lock_guard lock(mutex_);
    std::vector<double> seconds = std::exchange(seconds_, {});
    std::ranges::sort(seconds);
    return seconds;
  }
  /// Of these, now.
  size_t products() {
    const std::lock_guard lock(mutex_);
    return seconds_.size();
  }
  int64_t failed() const { return failed_; }
  int64_t kept() const { return kept_; }

 private:
  void Run() {
    const CheckedProduct tiny(100, 5, 1);
    const auto client = ConnectAs("victim", address_);
    if (!Worked("connect", client.status())) return;
    for (int64_t round = 0; !stopping_; ++round) {
      if (round % 50 == 0 && !Keep(tiny)) continue;
      std::vector<float> b(100 * 8), c(100 * 8, -1);
      tiny.FillB(b.data(), 8);
      const auto begin = Clock::now();
      const auto done = client->MatrixNamed("m").Spmm(DenseView(b.data(), 100, 8),
                                                      MutableDenseView(c.data(), 100, 8), {},
                                                      {.timeout = kPatience});
      const std::chrono::duration<double> took = Clock::now() - begin;
      if (!Worked("product", done.status())) continue;
      if (!tiny.Is(c.data(), 8)) Worked("product", absl::DataLossError("it is wrong"));
      {
        const std::lock_guard lock(mutex_);
        seconds_.push_back(took.count());
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
  }

  /// With a connection of its own: uploads, replaces, reads back, holds, deletes.
  bool Keep(const CheckedProduct& tiny) {
    const CallOptions limit{.timeout = kPatience};
    const auto client = ConnectAs("victim", address_);
    if (!Worked("connect", client.status())) return false;
    UploadOptions replace;
    replace.replace = true;
    const auto m = client->Upload("m", tiny.View(), replace, limit);
    if (!Worked("upload", m.status())) return false;
    if (!Worked("update", m->UpdateValues(std::span<const float>(tiny.values), {}, limit).status()))
      return false;
    const auto back = m->Download(limit);
    if (!Worked("download", back.status())) return false;
    if (std::get<std::vector<float>>(back->values) != tiny.values) {
      return Worked("download", absl::DataLossError("it is wrong"));
    }
    const auto held = client->PutZeros("b", ValueType::kF32, 100, 8, {}, limit);
    if (!Worked("put", held.status()) || !Worked("delete", held->Delete(limit))) return false;
    ++kept_;
    return true;
  }

  bool Worked(const char* what, const absl::Status& status) {
    if (status.ok()) return true;
    ++failed_;
    std::cout << "the victim's " << what << ": " << status << std::endl;
    std::this_thread::sleep_for(milliseconds(100));
    return false;
  }

  const std::string address_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> failed_ = 0, kept_ = 0;
  std::mutex mutex_;
  std::vector<double> seconds_;
  std::thread thread_;
};

/// All that one tenant does, each in a thread with a client of its own.
class Attacker {
 public:
  Attacker(const std::string& address, uint32_t seed) : address_(address), seed_(seed) {
    Begin([this](const Client& client) { Flood(client); });
    Begin([this](const Client& client) { FillMatrices(client); });
    Begin([this](const Client& client) { FillBuffers(client); });
    Begin([this](const Client& client) { Prepare(client); });
    Begin([this](const Client& client) { Pry(client); });
    Begin([this](const Client&) { Crowd(); });
    Begin([this](const Client& client) { ReadSlowly(client); });
    Begin([this](const Client& client) { Ask(client); });
  }
  ~Attacker() { Stop(); }
  void Stop() {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  /// Calls that were served, and those refused by each quota that their sentence names.
  std::map<std::string, int64_t> outcomes() {
    const std::lock_guard lock(mutex_);
    return outcomes_;
  }
  /// What it learnt or did of the other's.
  int64_t pried() const { return pried_; }

 private:
  void Begin(std::function<void(const Client&)> way) {
    threads_.emplace_back([this, way = std::move(way)] {
      while (!stopping_) {
        // Its own crowd may keep it out.
        const auto client = ConnectAs("attacker", address_);
        Count(client.status());
        if (client.ok()) way(*client);
        std::this_thread::sleep_for(milliseconds(20));
      }
    });
  }
  void Count(const absl::Status& status) {
    std::string outcome = status.ok() ? "served" : absl::StatusCodeToString(status.code());
    const std::string sentence(status.message());
    if (const size_t quota = sentence.find("(quota "); quota != std::string::npos) {
      outcome = sentence.substr(quota + 1, sentence.find(')', quota) - quota - 1);
    }
    const std::lock_guard lock(mutex_);
    ++outcomes_[outcome];
  }
  static CallOptions Soon() { return {.timeout = std::chrono::seconds(10)}; }

  /// Wide products, more than it may have in flight.
  void Flood(const Client& client) {
    const CheckedProduct large(40'000, 16, seed_);
    UploadOptions replace;
    replace.replace = true;
    const auto m = client.Upload("large", large.View(), replace, Soon());
    Count(m.status());
    if (!m.ok()) return;
    constexpr int64_t kK = 64;
    const std::vector<float> b(40'000 * kK, 1);
    std::vector<std::vector<float>> results(32, std::vector<float>(40'000 * kK));
    std::deque<Call<ComputeResult>> calls;
    for (size_t i = 0; !stopping_; ++i) {
      if (calls.size() == results.size()) {
        Count(calls.front().Wait().status());
        calls.pop_front();
      }
      std::vector<float>& c = results[i % results.size()];
      calls.push_back(m->SpmmAsync(DenseView(b.data(), 40'000, kK),
                                   MutableDenseView(c.data(), 40'000, kK), {}, Soon()));
    }
    for (auto& call : calls) Count(call.Wait().status());
  }
  void FillMatrices(const Client& client) {
    for (int i = 0; i < 40 && !stopping_; ++i) {
      const CheckedProduct sample(50'000, 8, seed_ + i);
      UploadOptions replace;
      replace.replace = true;
      Count(client.Upload(fmt::format("fill-{}", i), sample.View(), replace, Soon()).status());
    }
    for (int i = 0; i < 20; ++i)
      client.MatrixNamed(fmt::format("fill-{}", i)).Delete().IgnoreError();
  }
  void FillBuffers(const Client& client) {
    for (int i = 0; i < 40 && !stopping_; ++i) {
      const auto put =
          client.PutZeros(fmt::format("fill-{}", i), ValueType::kF32, 1 << 20, 4, {}, Soon());
      Count(put.status());
    }
  }
  void Prepare(const Client& client) {
    for (int i = 0; i < 30 && !stopping_; ++i) {
      PrepareOptions again{.again = true};
      for (const int64_t k : {1, 8, 64, 512}) {
        again.expected.push_back({.operation = Operation::kSpmm, .transposed = true, .k = k});
      }
      Count(client.MatrixNamed(fmt::format("fill-{}", i % 20)).Prepare(again, Soon()));
    }
  }
  /// With names of its own that are the other's, too, it has its own.
  void Pry(const Client& client) {
    const CheckedProduct own(60, 3, 7);
    UploadOptions replace;
    replace.replace = true;
    Count(client.Upload("m", own.View(), replace, Soon()).status());
    const Matrix theirs = client.MatrixNamed("victim~m");
    const std::vector<float> values(500, 1);
    std::vector<float> c(800);
    const absl::Status tried[] = {
        theirs.Info(Soon()).status(),
        theirs.Download(Soon()).status(),
        theirs.Delete(Soon()),
        theirs.UpdateValues(std::span<const float>(values), {}, Soon()).status(),
        theirs.Share({"attacker"}, Soon()).status(),
        theirs.Prepare({.again = true}, Soon()),
        theirs
            .Spmm(DenseView(c.data(), 100, 1), MutableDenseView(c.data() + 100, 100, 1), {}, Soon())
            .status(),
        theirs.SpgemmCollect(theirs, nullptr, Soon()).status(),
        client.ListMeasurements("victim~m", {}, Soon()).status(),
        client.DenseNamed("victim~b").Delete(Soon()),
    };
    for (const absl::Status& status : tried) {
      Count(status);
      if (status.ok()) ++pried_;
    }
    const auto listed = client.ListMatrices("", Soon());
    Count(listed.status());
    if (!listed.ok()) return;
    for (const MatrixInfo& info : *listed) {
      if (info.rows == 100) ++pried_;
    }
  }
  void Crowd() {
    std::vector<Client> crowd;
    for (int i = 0; i < 40 && !stopping_; ++i) {
      auto client = ConnectAs("attacker", address_);
      Count(client.status());
      if (client.ok()) crowd.push_back(*std::move(client));
    }
  }
  /// Leaves a large result unread until it is told to stop.
  void ReadSlowly(const Client& client) {
    const CheckedProduct sample(20'000, 20, seed_ + 99);
    UploadOptions replace;
    replace.replace = true;
    const auto m = client.Upload("slow", sample.View(), replace, Soon());
    Count(m.status());
    if (!m.ok()) return;
    const auto product = m->Spgemm(
        *m,
        [this](const RowBlock&) {
          for (int i = 0; i < 100 && !stopping_; ++i) std::this_thread::sleep_for(milliseconds(20));
          return stopping_ ? absl::CancelledError() : absl::OkStatus();
        },
        {}, Soon());
    Count(product.status());
  }
  void Ask(const Client& client) {
    for (int i = 0; i < 200 && !stopping_; ++i) Count(client.ListMatrices("", Soon()).status());
  }

  const std::string address_;
  const uint32_t seed_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> pried_ = 0;
  std::mutex mutex_;
  std::map<std::string, int64_t> outcomes_;
  std::vector<std::thread> threads_;
};

int64_t QuotasIn(const std::map<std::string, int64_t>& outcomes) {
  return std::ranges::count_if(
      outcomes, [](const auto& outcome) { return outcome.first.starts_with("quota "); });
}

double At(const std::vector<double>& sorted, double part) {
  return sorted.empty() ? 0 : sorted[static_cast<size_t>(part * (sorted.size() - 1))];
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  std::vector<std::string> flags = {"--host-memory=1GiB"};
  flags.insert(flags.end(), options.flags.begin(), options.flags.end());
  auto server = ServerUnderAttack::Start(flags, {.access_file = kAccessFile});
  if (!server.ok()) return server.status();
  const auto pause = std::chrono::duration<double>(std::max(options.seconds, 1.0));
  Victim victim((*server)->address());
  std::this_thread::sleep_for(std::min(pause, std::chrono::duration<double>(5)));
  const std::vector<double> alone = victim.TakeSeconds();
  std::map<std::string, int64_t> outcomes;
  int64_t pried = 0;
  {
    Attacker attacker((*server)->address(), options.seed);
    std::this_thread::sleep_for(pause);
    // A busy machine needs longer for everybody's first calls.
    const auto until = Clock::now() + std::chrono::seconds(60);
    while ((victim.products() < 20 || QuotasIn(attacker.outcomes()) < 2) && Clock::now() < until) {
      std::this_thread::sleep_for(milliseconds(100));
    }
    outcomes = attacker.outcomes();
    pried = attacker.pried();
    attacker.Stop();
  }
  const std::vector<double> beside = victim.TakeSeconds();
  victim.Stop();
  for (const auto& [outcome, count] : outcomes) std::cout << outcome << ": " << count << "\n";
  std::cout << fmt::format(
      "a tiny product alone: median {:.2f} ms, p99 {:.2f}; under attack: "
      "{:.2f} and {:.2f}, {} of them\n",
      1e3 * At(alone, 0.5), 1e3 * At(alone, 0.99), 1e3 * At(beside, 0.5), 1e3 * At(beside, 0.99),
      beside.size());
  bounds.True("the server lives", (*server)->Lives());
  bounds.AtMost("calls of the victim that failed", static_cast<double>(victim.failed()), 0, "");
  bounds.AtLeast("rounds of uploading, replacing and reading back",
                 static_cast<double>(victim.kept()), 1, "");
  bounds.AtLeast("its products", static_cast<double>(beside.size()), 20, "");
  bounds.AtMost("the slowest", At(beside, 1), 10, "s");
  bounds.AtMost("what the attacker learnt", static_cast<double>(pried), 0, "");
  bounds.AtLeast("calls of the attacker that were served", static_cast<double>(outcomes["served"]),
                 1, "");
  bounds.AtLeast("quotas that it met", static_cast<double>(QuotasIn(outcomes)), 2, "");
  bounds.MebibytesAtMost("peak resident",
                         static_cast<double>((*server)->peak_resident_bytes() / kMiB), 900);
  bounds.True("it ends in order", (*server)->End(SIGTERM) == 0);
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "One tenant against another of the same server: floods, fills what its quotas allow, "
      "prepares,\n"
      "crowds, reads slowly, and tries the other's names, all at once. The other's calls all work.",
      5, sparsed::test::Attack);
}
