// Clients of a cluster that upload, replace, update, rename, delete and read the same few matrices
// through any node, while nodes are killed, frozen and cut off, links are cut one way or slowed,
// and etcd is killed and frozen: whatever they saw could have happened one call after the other,
// and nothing that was acknowledged is lost.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/attack.h"
#include "tests/fault/nodes/network.h"
#include "tests/fault/nodes/nodes_client.h"
#include "tests/fault/nodes/nodes_model.h"
#include "tests/fault/nodes/program.h"

namespace sparsed::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kPairs = 3;
constexpr int kClients = 6;
constexpr int kReplicas = 2;
constexpr int kStaleness = 4;  ///< seconds, of --cluster-staleness
/// By which a read may be older than it was asked for: the staleness, and the time that its answer
/// takes.
constexpr std::chrono::nanoseconds kOld = std::chrono::seconds(kStaleness) + milliseconds(500);
/// In which a cluster is whole again after a failure.
constexpr std::chrono::seconds kWhole(60);
/// Of a search for an order: seconds. It takes thousands where there is one.
constexpr size_t kMostSteps = 300'000;
constexpr char kEtcd[] = "etcd";

struct Tally {
  int64_t rounds = 0, calls = 0, unknown = 0, refused = 0, changed = 0;
  double slowest_whole = 0;                 ///< seconds
  std::map<std::string, int64_t> failures;  ///< by kind
};

class Campaign {
 public:
  Campaign(const AttackOptions& options, std::string folder, std::vector<std::string> nodes,
           Network& network)
      : options_(options), folder_(std::move(folder)), network_(network), random_(options.seed) {
    shared_.nodes = std::move(nodes);
    for (const std::string& node : shared_.nodes) {
      shared_.addresses.push_back(network_.AddressOf(node) + ":7470");
      programs_.push_back(std::make_unique<Program>());
    }
    shared_.pairs = kPairs;
    states_.assign(kPairs, NodesModel::State());
  }

  absl::Status Begin() {
    if (absl::Status status = StartEtcd(); !status.ok()) return status;
    for (size_t node = 0; node < shared_.nodes.size(); ++node) {
      if (absl::Status status = StartNode(node); !status.ok()) return status;
    }
    return AwaitWhole();
  }

  /// Clients for some seconds, and one failure; when that is over, all names are read by all nodes.
  /// INTERNAL if what was seen cannot be.
  absl::Status Round() {
    ++tally_.rounds;
    shared_.ending = false;
    std::vector<std::unique_ptr<NodesClient>> clients;
    std::vector<absl::Status> ends(kClients);
    std::vector<std::thread> threads;
    for (int i = 0; i < kClients; ++i) {
      clients.push_back(std::make_unique<NodesClient>(shared_, i, random_()));
      threads.emplace_back([&ends, i, client = clients.back().get()] {
        ends[static_cast<size_t>(i)] = client->Run();
      });
    }
    Rest(200, 1500);
    absl::Status failed = Fail();
    Rest(500, 2500);
    shared_.ending = true;
    for (std::thread& thread : threads) thread.join();
    if (!failed.ok()) return failed;
    for (const absl::Status& end : ends) {
      if (!end.ok()) return end;
    }
    if (absl::Status status = AwaitWhole(); !status.ok()) return status;
    // What was under way when clients gave it up has come to its end.
    std::this_thread::sleep_for(std::chrono::seconds(2));
    if (absl::Status status = AwaitWhole(); !status.ok()) return status;
    const int64_t quiet = NowNs();
    clients.push_back(std::make_unique<NodesClient>(shared_, kClients, random_()));
    if (absl::Status status = clients.back()->ReadAll(); !status.ok()) return status;
    return Judge(clients, quiet);
  }

  /// All programs are killed at once, and come back: what was acknowledged is on disks.
  absl::Status PowerCut() {
    for (const auto& program : programs_) program->Signal(SIGKILL);
    etcd_.End(SIGKILL);
    for (const auto& program : programs_) program->End(SIGKILL);
    if (absl::Status status = Begin(); !status.ok()) return status;
    const int64_t quiet = NowNs();
    std::vector<std::unique_ptr<NodesClient>> clients;
    clients.push_back(std::make_unique<NodesClient>(shared_, kClients, random_()));
    if (absl::Status status = clients.back()->ReadAll(); !status.ok()) return status;
    return Judge(clients, quiet);
  }

  const Tally& tally() const { return tally_; }
  void ShowLogs() const {
    for (const std::string& node : shared_.nodes) {
      std::ifstream file(folder_ + "/" + node + ".log");
      std::string line;
      std::vector<std::string> lines;
      while (std::getline(file, line)) lines.push_back(line);
      std::cout << "--- " << node << "\n";
      for (size_t i = lines.size() - std::min<size_t>(lines.size(), 150); i < lines.size(); ++i) {
        std::cout << lines[i] << "\n";
      }
    }
    std::cout.flush();
  }

 private:
  void Rest(int64_t least, int64_t most) {
    std::this_thread::sleep_for(
        milliseconds(std::uniform_int_distribution<int64_t>(least, most)(random_)));
  }

  absl::Status StartEtcd() {
    const std::string address = network_.AddressOf(kEtcd);
    const std::string client = fmt::format("http://{}:2379", address),
                      peer = fmt::format("http://{}:2380", address);
    std::vector<std::string> words = network_.Within(kEtcd);
    for (const std::string& word : {std::string("etcd"), std::string("--name=test"),
                                    fmt::format("--data-dir={}/etcd", folder_),
                                    fmt::format("--listen-client-urls={}", client),
                                    fmt::format("--advertise-client-urls={}", client),
                                    fmt::format("--listen-peer-urls={}", peer),
                                    fmt::format("--initial-advertise-peer-urls={}", peer),
                                    fmt::format("--initial-cluster=test={}", peer)}) {
      words.push_back(word);
    }
    return etcd_.Start(words, folder_ + "/etcd.log");
  }

  absl::Status StartNode(size_t node) {
    const std::string& name = shared_.nodes[node];
    std::vector<std::string> words = network_.Within(name);
    const char* const program = std::getenv("SPARSED_PROGRAM");
    for (const std::string& word :
         {std::string(program == nullptr ? SPARSED_PROGRAM : program),
          "--listen=" + shared_.addresses[node], "--advertise=" + shared_.addresses[node],
          "--node=" + name, fmt::format("--etcd={}:2379", network_.AddressOf(kEtcd)),
          fmt::format("--replicas={}", kReplicas), fmt::format("--data-dir={}/{}", folder_, name),
          fmt::format("--cluster-staleness={}", kStaleness), std::string("--local-listen=off"),
          std::string("--insecure"), std::string("--devices=cpu"),
          std::string("--host-memory=512MiB"), std::string("--threads=1"),
          std::string("--preparation-workers=0"), std::string("--metrics-listen=127.0.0.1:0"),
          std::string("--log-format=json"), std::string("--shutdown-grace=5")}) {
      words.push_back(word);
    }
    words.insert(words.end(), options_.flags.begin(), options_.flags.end());
    return programs_[node]->Start(words, fmt::format("{}/{}.log", folder_, name));
  }

  size_t AnyNode() { return random_() % shared_.nodes.size(); }

  /// One failure, from its beginning to its end.
  absl::Status Fail() {
    const size_t node = AnyNode();
    const size_t other = (node + 1 + random_() % (shared_.nodes.size() - 1)) % shared_.nodes.size();
    const std::string &name = shared_.nodes[node], &name2 = shared_.nodes[other];
    Program& program = *programs_[node];
    const auto note = [&](const std::string& kind, const std::string& what) {
      ++tally_.failures[kind];
      std::cout << fmt::format("round {}: {}: {}", tally_.rounds, kind, what) << std::endl;
    };
    const bool both = random_() % 2 == 0;
    absl::Status status;
    switch (random_() % 10) {
      case 0:
        note("a node is killed", name);
        program.End(SIGKILL);
        Rest(200, 8000);
        return StartNode(node);
      case 1:
        note("a node ends and starts", name);
        program.End(SIGTERM);
        Rest(0, 4000);
        return StartNode(node);
      case 2:
        note("a node is killed and starts at once", name);
        program.End(SIGKILL);
        return StartNode(node);
      case 3:
        note("a node freezes", name);
        program.Signal(SIGSTOP);
        Rest(500, 9000);
        program.Signal(SIGCONT);
        return absl::OkStatus();
      case 4:
        note(both ? "two nodes are cut off from each other" : "a link between nodes is cut one way",
             name + " to " + name2);
        status = network_.Cut(name, name2);
        if (both) status.Update(network_.Cut(name2, name));
        break;
      case 5:
        note(both ? "a node is cut off from etcd" : "the link from a node to etcd is cut", name);
        status = network_.Cut(name, kEtcd);
        if (both) status.Update(network_.Cut(kEtcd, name));
        break;
      case 6:
        note("the link from etcd to a node is cut", name);
        status = network_.Cut(kEtcd, name);
        break;
      case 7:
        note("a node's link is slow", name);
        status = network_.Slow(name, 300'000);
        break;
      case 8:
        note("etcd is killed", "");
        etcd_.End(SIGKILL);
        Rest(0, 6000);
        return StartEtcd();
      default:
        note("a node is cut off from all others", name);
        for (const std::string& one : shared_.nodes) {
          if (one == name) continue;
          status.Update(network_.Cut(name, one));
          status.Update(network_.Cut(one, name));
        }
        status.Update(network_.Cut(name, kEtcd));
        status.Update(network_.Cut(kEtcd, name));
        break;
    }
    if (!status.ok()) return status;
    Rest(500, 9000);
    return network_.Heal();
  }

  /// Empty, or what it lacks.
  std::string Lacks() {
    for (size_t node = 0; node < shared_.nodes.size(); ++node) {
      const std::string& name = shared_.nodes[node];
      if (!programs_[node]->Lives()) {
        // Where etcd does not answer in time a start ends; whoever manages services starts it
        // again.
        constexpr int kNotStarted = 1;
        const int code = programs_[node]->exit_code();
        if (code != kNotStarted) return fmt::format("{} has ended, exit code {}", name, code);
        const absl::Status started = StartNode(node);
        return started.ok() ? name + " was started once more" : started.ToString();
      }
      ClientOptions options;
      options.connect_timeout = milliseconds(1000);
      options.default_timeout = std::chrono::seconds(2);
      const auto client = Client::Connect(shared_.addresses[node], options);
      if (!client.ok()) return fmt::format("{}: {}", name, client.status().ToString());
      const auto cluster = client->ListNodes();
      if (!cluster.ok()) return fmt::format("{}: {}", name, cluster.status().ToString());
      if (!cluster->problem.empty()) return fmt::format("{}: {}", name, cluster->problem);
      for (const ClusterNode& one : cluster->nodes) {
        if (!one.alive) return fmt::format("{} says that {} is gone", name, one.name);
      }
      if (cluster->nodes.size() != shared_.nodes.size()) {
        return fmt::format("{} knows {} nodes", name, cluster->nodes.size());
      }
      const auto matrices = client->ListMatrices();
      if (!matrices.ok()) return fmt::format("{}: {}", name, matrices.status().ToString());
      for (const MatrixInfo& matrix : *matrices) {
        if (matrix.copies_missing != 0 || matrix.nodes.size() < kReplicas) {
          return fmt::format("{} says that {} is on {}", name, matrix.name,
                             fmt::join(matrix.nodes, ", "));
        }
      }
    }
    return "";
  }

  absl::Status AwaitWhole() {
    const auto begun = steady_clock::now();
    while (true) {
      const std::string lacks = Lacks();
      const Seconds took = steady_clock::now() - begun;
      tally_.slowest_whole = std::max(tally_.slowest_whole, took.count());
      if (lacks.empty()) return absl::OkStatus();
      if (took > kWhole) {
        return absl::InternalError(fmt::format("round {}: not whole after {:.0f} s: {}",
                                               tally_.rounds, took.count(), lacks));
      }
      std::this_thread::sleep_for(milliseconds(200));
    }
  }

  /// `quiet`: from when on nothing changed.
  absl::Status Judge(const std::vector<std::unique_ptr<NodesClient>>& clients, int64_t quiet) {
    tally_.refused = shared_.refused;
    tally_.changed = shared_.changed;
    for (size_t pair = 0; pair < kPairs; ++pair) {
      NodesHistory history;
      for (const auto& client : clients) {
        const NodesHistory& seen = client->histories()[pair];
        history.insert(history.end(), seen.begin(), seen.end());
      }
      tally_.calls += static_cast<int64_t>(history.size());
      // What was seen of a value happened before that.
      std::map<int64_t, int64_t> seen_by;
      for (const NodesEvent& event : history) {
        const NodesModel::Operation& of = event.operation;
        const bool sees =
            of.call == NodesModel::Call::kRead || of.call == NodesModel::Call::kProduct;
        if (!sees || of.outcome != NodesModel::Outcome::kOk) continue;
        const auto seen = seen_by.emplace(of.value, event.returned).first;
        seen->second = std::min(seen->second, event.returned);
      }
      NodesHistory without;  // those that nobody saw anything of
      for (NodesEvent& event : history) {
        if (event.may_be_lost) {
          ++tally_.unknown;
          event.returned = quiet;
          const NodesModel::Operation& of = event.operation;
          const bool makes =
              of.call == NodesModel::Call::kUpload || of.call == NodesModel::Call::kUpdate;
          const auto seen = seen_by.find(of.value);
          if (makes && seen == seen_by.end()) continue;
          if (makes) {
            event.may_be_lost = false;
            event.returned = std::min(quiet, seen->second);
          }
        } else if (NodesModel::IsLook(event.operation) && event.invoked < quiet) {
          // A node may answer a read by what it heard of etcd that long ago; not a change.
          event.invoked -= kOld.count();
        }
        without.push_back(event);
      }
      // An order without them is one; else they may have had a part in it.
      auto after = NodesCheck::FindOne({states_[pair]}, without, kMostSteps);
      if (!after) after = NodesCheck::FindOne({states_[pair]}, history, kMostSteps);
      if (!after) {
        WriteDown(history, clients, static_cast<int>(pair));
        std::cout << "before it: " << ToString(states_[pair]) << std::endl;
        NodesCheck::Verdict verdict;
        verdict.before = {states_[pair]};
        verdict.failing = NodesCheck::FindFailing(verdict.before, std::move(history));
        return absl::InternalError(
            fmt::format("round {}, pair {}: {}", tally_.rounds, pair, ToString(verdict)));
      }
      // All names were read at the end: orders differ in no more than which versions are used up.
      const std::array<uint64_t, 2> before = states_[pair].used;
      const std::array<uint64_t, 2> seen = NodesModel::SeenVersions(without);
      states_[pair] = *std::move(after);
      for (size_t name : {0, 1}) states_[pair].used[name] = std::max(before[name], seen[name]);
    }
    return absl::OkStatus();
  }

  /// For people: calls by their ends, and those that were refused.
  void WriteDown(const NodesHistory& history,
                 const std::vector<std::unique_ptr<NodesClient>>& clients, int pair) const {
    std::multimap<int64_t, std::string> lines;
    const int64_t begin = history.front().returned;
    for (const NodesEvent& event : history) {
      lines.emplace(event.returned, ToString(event, begin));
    }
    for (const auto& client : clients) {
      for (const auto& refusal : client->refusals()) {
        if (refusal.pair != pair) continue;
        lines.emplace(refusal.event.returned,
                      ToString(refusal.event, begin) + ": " + refusal.status.ToString());
      }
    }
    std::ofstream file(folder_ + "/history");
    for (const auto& [time, line] : lines) file << line << "\n";
  }

  const AttackOptions& options_;
  const std::string folder_;
  Network& network_;
  std::mt19937 random_;
  SharedNodes shared_;
  Program etcd_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<NodesModel::State> states_;  ///< of each pair
  Tally tally_;
};

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  if (std::system("command -v etcd > /dev/null") != 0) {
    return absl::UnimplementedError("etcd is not installed (Debian package etcd-server)");
  }
  // Longer runs are of three to five.
  const size_t count = options.seconds < 60 ? 3 : 3 + options.seed % 3;
  std::vector<std::string> nodes, machines = {kEtcd};
  for (size_t i = 0; i < count; ++i) nodes.push_back(fmt::format("n{}", i + 1));
  machines.insert(machines.end(), nodes.begin(), nodes.end());
  auto network = Network::Make(machines);
  if (!network.ok()) return network.status();
  std::string folder = std::filesystem::temp_directory_path() / "sparsed_nodes_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, folder);
  std::cout << count << " nodes" << std::endl;
  absl::Status status;
  {
    Campaign campaign(options, folder, nodes, **network);
    status = campaign.Begin();
    const auto end = steady_clock::now() + Seconds(options.seconds);
    while (status.ok()) {
      status = campaign.Round();
      if (steady_clock::now() >= end) break;
    }
    if (status.ok()) status = campaign.PowerCut();
    if (!status.ok()) campaign.ShowLogs();
    const Tally& tally = campaign.tally();
    for (const auto& [kind, times] : tally.failures) std::cout << kind << ": " << times << "\n";
    std::cout << "calls that were refused, or that nobody could answer in time: " << tally.refused
              << std::endl;
    bounds.AtLeast("rounds", static_cast<double>(tally.rounds), 1, "");
    bounds.AtLeast("calls that were put in order", static_cast<double>(tally.calls), 20, "");
    bounds.AtLeast("changes that were acknowledged, a round",
                   static_cast<double>(tally.changed) / static_cast<double>(tally.rounds), 5, "");
    // A cluster that refuses everything does nothing wrong.
    bounds.AtMost("calls that were refused, of all",
                  static_cast<double>(tally.refused) /
                      static_cast<double>(std::max<int64_t>(tally.refused + tally.calls, 1)),
                  0.8, "");
    bounds.AtMost("of these without an answer", static_cast<double>(tally.unknown),
                  static_cast<double>(tally.calls) / 4, "");
    bounds.AtMost("the slowest time until all is whole again", tally.slowest_whole,
                  static_cast<double>(kWhole.count()), "s");
  }
  if (absl::IsInternal(status)) {
    std::cout << status.message() << "\nlogs, and calls in their order: " << folder << std::endl;
  } else if (status.ok()) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
  bounds.True("some order explains what was seen, and nothing is lost", !absl::IsInternal(status));
  return absl::IsInternal(status) ? absl::OkStatus() : status;
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "Six clients upload, replace, update, rename, delete and read six matrices through any of "
      "three to five nodes with two replicas, each in a network\nnamespace of its own (it takes "
      "root). In each round one thing fails: a node is killed, ended or frozen, links between "
      "nodes "
      "and to etcd are cut one\nway or both or slowed, etcd is killed. Whatever clients saw could "
      "have "
      "happened one call after the other, reads up to the nodes' --cluster-staleness earlier; at "
      "the end of each "
      "round "
      "all nodes show the same, and nothing\nacknowledged is lost.",
      15, sparsed::test::Attack);
}
