// Clients that upload, replace, update, delete and read the same few matrices at the same time, of
// a server that is killed now and then: whatever they saw could have happened one call after the
// other.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/attack.h"
#include "tests/fault/history/catalog_model.h"
#include "tests/fault/history/recording_client.h"
#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

using std::chrono::milliseconds;

constexpr int kNames = 3;
constexpr int kKillsInARound = 3;
constexpr int kGraceSeconds = 10;
constexpr int64_t kMostRoundsForOneRun = 20;
constexpr milliseconds kShortestLife(150), kLongestLife(900);

/// What was seen in all rounds.
struct Tally {
  int64_t rounds = 0;
  int64_t kills = 0;
  int64_t wrong_exits = 0;  ///< of orderly ends
  double slowest_end = 0;   ///< seconds
  int64_t attached_runs = 0;
  int64_t calls = 0;
  int64_t unknown = 0;
};

class Campaign {
 public:
  Campaign(const AttackOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)), random_(options.seed) {
    for (int i = 0; i < kNames; ++i) {
      shared_.names.push_back(fmt::format("matrix-{}", i));
      states_[shared_.names.back()] = {CatalogModel::State()};
    }
  }

  /// Some clients for a while; in every second round the server is killed beneath them, and nobody
  /// is attached, for what an attached caller has mapped outlives a server. INTERNAL if what was
  /// seen cannot be.
  absl::Status Round() {
    const bool kills = ++tally_.rounds % 2 == 0;
    const std::vector<Way> ways = kills ? std::vector{Way::kStream, Way::kStream, Way::kStream,
                                                      Way::kShared, Way::kShared, Way::kRing}
                                        : std::vector{Way::kStream, Way::kStream,   Way::kShared,
                                                      Way::kRing,   Way::kAttached, Way::kAttached};
    if (absl::Status status = Start(); !status.ok()) return status;
    shared_.ending = false;
    std::vector<absl::Status> ends(ways.size());
    std::vector<std::map<std::string, CatalogHistory>> histories(ways.size());
    std::vector<std::thread> clients;
    for (size_t i = 0; i < ways.size(); ++i) {
      clients.emplace_back([&, i, seed = random_()] {
        ends[i] = RecordingClient::Run(shared_, static_cast<int>(i), ways[i],
                                       static_cast<uint32_t>(seed), histories[i]);
      });
    }
    absl::Status driven;
    for (int i = 0; i < kKillsInARound && driven.ok(); ++i) {
      std::this_thread::sleep_for(milliseconds(std::uniform_int_distribution<int64_t>(
          kShortestLife.count(), kLongestLife.count())(random_)));
      if (kills) {
        End(random_() % 3 == 0 ? SIGTERM : SIGKILL);
        driven = Start();
      }
    }
    // With calls under way.
    if (driven.ok()) End(kills ? SIGKILL : SIGTERM);
    shared_.ending = true;
    for (std::thread& client : clients) client.join();
    if (!driven.ok()) return driven;
    tally_.attached_runs = shared_.attached_runs;
    for (const absl::Status& end : ends) {
      if (!end.ok()) return end;
    }
    return Judge(histories);
  }

  const Tally& tally() const { return tally_; }

 private:
  absl::Status Start() {
    std::vector<std::string> flags = {"--listen=unix:" + folder_ + "/server",
                                      "--local-listen=unix:" + folder_ + "/local",
                                      "--data-dir=" + folder_ + "/data", "--host-memory=1GiB",
                                      fmt::format("--shutdown-grace={}", kGraceSeconds)};
    flags.insert(flags.end(), options_.flags.begin(), options_.flags.end());
    auto server = ServerUnderAttack::Start(flags);
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    shared_.address = server_->address();
    shared_.serving = true;
    return absl::OkStatus();
  }

  void End(int signal) {
    CatalogEvent crash;
    crash.client = -1;
    crash.operation = {.call = CatalogModel::Call::kCrash, .outcome = CatalogModel::Outcome::kOk};
    crash.invoked = NowNanoseconds();
    // Calls are under way; none begins that cannot end.
    shared_.serving = false;
    const int how = server_->End(signal);
    crash.returned = NowNanoseconds();
    tally_.slowest_end =
        std::max(tally_.slowest_end, static_cast<double>(crash.returned - crash.invoked) * 1e-9);
    crashes_.push_back(crash);
    ++tally_.kills;
    if (how != (signal == SIGKILL ? -SIGKILL : 0)) {
      std::cout << "the server ended with " << how << " of signal " << signal << std::endl;
      ++tally_.wrong_exits;
    }
  }

  /// When the last server that may have been at work on a call which failed at `moment` was dead.
  int64_t DeadAfter(int64_t moment) const {
    for (const CatalogEvent& crash : crashes_) {
      if (crash.returned >= moment) return crash.returned;
    }
    return crashes_.back().returned;
  }

  absl::Status Judge(const std::vector<std::map<std::string, CatalogHistory>>& histories) {
    for (const std::string& name : shared_.names) {
      CatalogHistory history = crashes_;
      for (const auto& of_client : histories) {
        const auto seen = of_client.find(name);
        if (seen != of_client.end()) {
          history.insert(history.end(), seen->second.begin(), seen->second.end());
        }
      }
      tally_.calls += static_cast<int64_t>(history.size() - crashes_.size());
      for (CatalogEvent& event : history) {
        if (!event.may_be_lost) continue;
        event.returned = DeadAfter(event.returned);
        ++tally_.unknown;
      }
      auto verdict = CatalogCheck::Check(states_[name], std::move(history));
      if (verdict.after.empty()) {
        return absl::InternalError(
            fmt::format("round {}, {}: {}", tally_.rounds, name, ToString(verdict)));
      }
      states_[name] = std::move(verdict.after);
    }
    crashes_.clear();
    return absl::OkStatus();
  }

  const AttackOptions& options_;
  const std::string folder_;
  std::mt19937 random_;
  Shared shared_;
  std::unique_ptr<ServerUnderAttack> server_;
  std::map<std::string, std::set<CatalogModel::State>> states_;  ///< that each name may be in
  CatalogHistory crashes_;                                       ///< of this round
  Tally tally_;
};

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
  std::string folder = std::filesystem::temp_directory_path() / "sparsed_catalog_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, folder);
  Campaign campaign(options, folder);
  absl::Status status;
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  const auto goes_on = [&] {
    const Tally& so_far = campaign.tally();
    // On a busy machine a first round may be over before anybody has attached.
    return so_far.rounds % 2 != 0 || std::chrono::steady_clock::now() < end ||
           (so_far.attached_runs == 0 && so_far.rounds < kMostRoundsForOneRun);
  };
  do {
    status = campaign.Round();
  } while (status.ok() && goes_on());
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  const Tally& tally = campaign.tally();
  bounds.AtLeast("rounds", static_cast<double>(tally.rounds), 2, "");
  bounds.AtLeast("ends of the server", static_cast<double>(tally.kills), kKillsInARound, "");
  bounds.AtMost("ends that went wrong", static_cast<double>(tally.wrong_exits), 0, "");
  bounds.AtMost("the slowest end", tally.slowest_end, kGraceSeconds, "s");
  bounds.AtLeast("products that ran attached", static_cast<double>(tally.attached_runs), 1, "");
  bounds.AtLeast("calls that were put in order", static_cast<double>(tally.calls), 20, "");
  bounds.AtMost("of these without an answer", static_cast<double>(tally.unknown),
                static_cast<double>(tally.calls) / 4, "");
  if (absl::IsInternal(status)) std::cout << status.message() << std::endl;
  bounds.True("some order explains what was seen", !absl::IsInternal(status));
  return absl::IsInternal(status) ? absl::OkStatus() : status;
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "Six clients upload, replace, update, delete and read three matrices at once: by streams, "
      "shared memory, rings and attached; in every\nsecond round the server is killed or stopped "
      "beneath them and starts again. Whatever they saw could have happened one call after\nthe "
      "other, each while it lasted; what was stored outlives every end.",
      10, sparsed::test::Attack);
}
