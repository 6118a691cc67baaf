// Every system call of the server that may fail does so once: the n-th of each kind, for every n
// that there is from the start to the end. The server answers, or does not start and says why; it
// goes on, and nothing that it acknowledged is lost.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/attack.h"
#include "tests/fault/calls/failing_calls.h"
#include "tests/fault/calls/visitor.h"
#include "tests/fault/server_under_attack.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongestEnd = std::chrono::seconds(30);
constexpr int kStuck = 1000;  ///< in the place of an exit status
constexpr int64_t kOld = 7;   ///< the matrix that is there before

struct Fault {
  CallKind kind;
  int error;
};
constexpr Fault kFaults[] = {{kAccept4, EMFILE},
                             {kAccept4, ENOMEM},
                             {kBind, ENOMEM},
                             {kListen, EADDRINUSE},
                             {kSocket, EMFILE},
                             {kSocketpair, EMFILE},
                             {kPipe, EMFILE},
                             {kEventfd, EMFILE},
                             {kEpoll, EMFILE},
                             {kMemfdCreate, EMFILE},
                             {kMemfdCreate, ENOMEM},
                             {kMmap, ENOMEM},
                             {kMmapFile, ENOMEM},
                             {kOpen, EMFILE},
                             {kOpen, EIO},
                             {kOpendir, EMFILE},
                             {kPread, EIO},
                             {kPwrite, ENOSPC},
                             {kPwrite, EIO},
                             {kRead, EIO},
                             {kWrite, ENOSPC},
                             {kFsync, EIO},
                             {kFsync, ENOSPC},
                             {kRename, EIO},
                             {kRename, ENOSPC},
                             {kFtruncate, ENOSPC},
                             {kUnlink, EIO},
                             {kMkdir, ENOSPC},
                             {kPosixFallocate, ENOSPC},
                             {kStatvfs, EIO}};

struct Place {
  Fault fault;
  int64_t number;
};
std::string ToString(const Place& place) {
  return fmt::format("{} {} {}", kCallNames[place.fault.kind], place.number,
                     strerrorname_np(place.fault.error));
}

/// What broke, by the bound that it broke.
struct Findings {
  int64_t signals = 0;
  int64_t silent_ends = 0;  ///< without a sentence, or while it served
  int64_t mistakes = 0;
  int64_t not_back = 0;
  int64_t lost = 0;
};

class Campaign {
 public:
  static absl::StatusOr<std::unique_ptr<Campaign>> Prepare(const AttackOptions& options) {
    std::string folder = std::filesystem::temp_directory_path() / "sparsed_calls_XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, folder);
    std::unique_ptr<Campaign> campaign(new Campaign(options, folder));
    if (absl::Status status = campaign->MapOrders(); !status.ok()) return status;
    if (absl::Status status = campaign->MakeOld(); !status.ok()) return status;
    return campaign;
  }
  ~Campaign() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  /// Every place that there is, as a run without failures counts them.
  absl::StatusOr<std::vector<Place>> FindPlaces() {
    if (absl::Status status = Try({{kAccept4, 0}, 0}); !status.ok()) return status;
    std::vector<Place> places;
    for (const Fault& fault : kFaults) {
      for (int64_t n = 1; n <= counts_[fault.kind]; ++n) places.push_back({fault, n});
    }
    return places;
  }

  absl::Status Try(const Place& place);

  const Findings& findings() const { return findings_; }
  int64_t failed() const { return failed_; }

 private:
  Campaign(const AttackOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)) {}

  absl::Status MapOrders();
  absl::Status MakeOld();
  std::vector<std::string> Flags() const {
    std::vector<std::string> flags = {"--listen=unix:" + folder_ + "/server",
                                      "--local-listen=unix:" + folder_ + "/local",
                                      "--data-dir=" + folder_ + "/data",
                                      "--host-memory=1GiB",
                                      "--shutdown-grace=5",
                                      "--threads=2"};
    flags.insert(flags.end(), options_.flags.begin(), options_.flags.end());
    return flags;
  }
  void Say(const Place& place, const std::string& what) const {
    std::cout << ToString(place) << ": " << what << std::endl;
  }
  /// As ServerUnderAttack::End(SIGTERM), or kStuck.
  static int EndInOrder(ServerUnderAttack& server);
  /// What the server did while it was told to fail; false if it is gone before it should be.
  bool Serve(const Place& place, ServerUnderAttack& server, Visitor& visitor);
  void JudgeEnd(const Place& place, int how, bool served_alone);

  const AttackOptions& options_;
  const std::string folder_;
  FailingCalls* orders_ = nullptr;
  int64_t counts_[kCallKinds] = {};
  Findings findings_;
  int64_t failed_ = 0;
};

absl::Status Campaign::MapOrders() {
  const std::string path = folder_ + "/orders";
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(FailingCalls)) != 0) {
    return absl::ErrnoToStatus(errno, path);
  }
  void* const mapped =
      mmap(nullptr, sizeof(FailingCalls), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return absl::ErrnoToStatus(errno, path);
  orders_ = static_cast<FailingCalls*>(mapped);
  return absl::OkStatus();
}

absl::Status Campaign::MakeOld() {
  auto server = ServerUnderAttack::Start(Flags());
  if (!server.ok()) return server.status();
  if (absl::Status status = Visitor::PutOld((*server)->address(), kOld); !status.ok()) {
    return status;
  }
  if (EndInOrder(**server) != 0) return absl::InternalError("no orderly end without failures");
  std::filesystem::rename(folder_ + "/data", folder_ + "/old");
  return absl::OkStatus();
}

int Campaign::EndInOrder(ServerUnderAttack& server) {
  if (!server.Lives()) return server.End(SIGTERM);
  kill(server.pid(), SIGTERM);
  const auto deadline = Clock::now() + kLongestEnd;
  while (server.Lives()) {
    if (Clock::now() > deadline) {
      server.End(SIGKILL);
      return kStuck;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return server.End(SIGTERM);
}

bool Campaign::Serve(const Place& place, ServerUnderAttack& server, Visitor& visitor) {
  const std::vector<absl::Status> failed = visitor.Visit(server.address());
  const bool failed_before = orders_->failed > 0;
  if (!server.Lives()) return false;
  // What fails once is over.
  std::vector<absl::Status> again;
  if (failed_before) again = visitor.Visit(server.address());
  for (const absl::Status& status : again) Say(place, "afterwards " + status.ToString());
  findings_.not_back += again.empty() ? 0 : 1;
  if (!failed_before) {
    for (const absl::Status& status : failed) {
      Say(place, "before anything failed: " + status.ToString());
      ++findings_.mistakes;
    }
  }
  return server.Lives();
}

void Campaign::JudgeEnd(const Place& place, int how, bool right) {
  if (how == kStuck) {
    Say(place, fmt::format("no end within {} s", kLongestEnd.count()));
    ++findings_.silent_ends;
  } else if (how < 0) {
    Say(place, fmt::format("ended by signal {}", -how));
    ++findings_.signals;
  } else if (!right) {
    Say(place, fmt::format("ended with {}", how));
    ++findings_.silent_ends;
  }
}

absl::Status Campaign::Try(const Place& place) {
  std::filesystem::remove_all(folder_ + "/data");
  std::filesystem::copy(folder_ + "/old", folder_ + "/data",
                        std::filesystem::copy_options::recursive);
  new (orders_) FailingCalls{};
  orders_->kind = place.fault.kind;
  orders_->error = place.fault.error;
  orders_->at = place.number;
  Known known = {{"old", {kOld}}};
  Visitor visitor(known);
  {
    auto server = ServerUnderAttack::Start(
        Flags(), {.environment = {fmt::format("{}={}/orders", kFailingCallsVariable, folder_),
                                  "LD_PRELOAD=" SPARSED_FAILING_CALLS_LIBRARY}});
    if (server.ok()) {
      const bool lives = Serve(place, **server, visitor);
      const bool ending = orders_->failed == 0;
      const int how = EndInOrder(**server);
      JudgeEnd(place, how, lives && (how == 0 || ending));
      if (how != 0) std::cout << (*server)->log() << std::endl;
    } else if (!absl::IsFailedPrecondition(server.status())) {
      Say(place, std::string(server.status().message()));
      ++findings_.silent_ends;
    } else if (server.status().message().find("\"not started\"") == std::string::npos) {
      Say(place, std::string(server.status().message()));
      ++(server.status().message().find("ended with -") != std::string::npos
             ? findings_.signals
             : findings_.silent_ends);
    }
  }
  for (int kind = 0; kind < kCallKinds; ++kind) counts_[kind] = orders_->counts[kind];
  failed_ += orders_->failed;
  for (const std::string& mistake : visitor.mistakes()) Say(place, mistake);
  findings_.mistakes += static_cast<int64_t>(visitor.mistakes().size());

  auto server = ServerUnderAttack::Start(Flags());
  if (!server.ok()) {
    Say(place, "no start afterwards: " + server.status().ToString());
    ++findings_.lost;
    return absl::OkStatus();
  }
  for (const absl::Status& wrong : visitor.CheckStored((*server)->address())) {
    Say(place, "after the next start " + wrong.ToString());
    ++findings_.lost;
  }
  (*server)->End(SIGKILL);
  return absl::OkStatus();
}

absl::Status Attack(const AttackOptions& options, Bounds& bounds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return absl::UnimplementedError("sanitizers make these calls themselves");
#endif
  const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
  auto campaign = Campaign::Prepare(options);
  if (!campaign.ok()) return campaign.status();
  auto places = (*campaign)->FindPlaces();
  if (!places.ok()) return places.status();
  std::shuffle(places->begin(), places->end(), std::mt19937(options.seed));
  int64_t tried = 0;
  for (const Place& place : *places) {
    if (tried > 0 && Clock::now() > end) break;
    if (absl::Status status = (*campaign)->Try(place); !status.ok()) return status;
    ++tried;
  }
  const Findings& findings = (*campaign)->findings();
  std::cout << tried << " of " << places->size() << " places were tried" << std::endl;
  bounds.AtLeast("calls that failed", static_cast<double>((*campaign)->failed()), 1, "");
  bounds.AtMost("ends by a signal", static_cast<double>(findings.signals), 0, "");
  bounds.AtMost("ends without a reason, or none", static_cast<double>(findings.silent_ends), 0, "");
  bounds.AtMost("wrong results, and calls without an answer",
                static_cast<double>(findings.mistakes), 0, "");
  bounds.AtMost("servers that did not serve everything again",
                static_cast<double>(findings.not_back), 0, "");
  bounds.AtMost("lost", static_cast<double>(findings.lost), 0, "");
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsed::test

int main(int argc, char** argv) {
  return sparsed::test::AttackMain(
      argc, argv,
      "One system call of the server fails, another each time: accept, open, pwrite, mmap and "
      "others, "
      "with EMFILE, ENOSPC, EIO or ENOMEM, from\nits start to its end. It answers every client or "
      "says "
      "why it does not start, serves everything again afterwards, and has everything\nthat it "
      "acknowledged when it starts again. With enough --seconds (half an hour) every call fails "
      "once.",
      20, sparsed::test::Attack);
}
