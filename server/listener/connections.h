// The connections that gRPC serves: how many, what each is called, and what their bytes may cost.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/listener/accept_loop.h"
#include "server/listener/http2_guard.h"
#include "server/security/caller.h"

namespace sparsed::server {

/// The bytes of a socket's own name or, if `peer`, of its other end's.
std::string SocketName(int fd, bool peer);

struct ConnectionCounts {
  int64_t open = 0;
  int64_t unfinished_bytes = 0;  ///< of messages whose end has not come
  int64_t held = 0;              ///< that are not read from until others' bytes are freed
  std::array<int64_t, kRefusals> refused{};
  std::array<int64_t, kFaults> ended{};  ///< by us
};

/// Thread-safe. Outlives its connections by itself.
class Connections : public std::enable_shared_from_this<Connections> {
 public:
  /// Messages whose end has not come may take `max_unfinished_bytes` together; past it the
  /// connection whose message began first is ended, then the next. Those that send what they began
  /// are never the first. What an ended one sent is counted until gRPC has freed it, and closed its
  /// descriptor: until then, but for two seconds at most, nothing more is read of others'
  /// unfinished messages, and only the first bytes of new ones.
  Connections(const GuardLimits& limits, int64_t max_unfinished_bytes)
      : limits_(limits), max_unfinished_bytes_(max_unfinished_bytes) {}

  /// Counts and watches `fd` until it is closed. A Unix socket's other end is called
  /// "connection-N" from now on, as gRPC has it "unix-abstract:connection-N".
  /// `tls`: its bytes are watched as they are decrypted. False, and not watched, if its
  /// ClientHello, which has come, is another connection's.
  bool Add(int fd, bool tls = false);
  /// The process at the other end of the Unix socket that gRPC calls so; null: there is none now.
  std::shared_ptr<const PeerProcess> ProcessOf(const std::string& peer) const;
  /// Keeps what `hold` makes with the connection that gRPC calls so, for as long as it is open:
  /// once for each `who`. An error of `hold`'s, and a second later the connection is ended unless
  /// somebody else is served over it; OK if it has ended.
  absl::Status Keep(const std::string& peer, const std::string& who,
                    const std::function<absl::StatusOr<std::shared_ptr<const void>>()>& hold);
  void CountRefusal(Refusal refusal) { ++refused_[static_cast<size_t>(refusal)]; }

  /// Where there is room again, or who waits has waited for long enough. For who calls it now and
  /// then: nothing may happen otherwise.
  void WakeHeld();
  /// Likewise: ends those that were refused a second ago and that nobody is served over.
  void EndUnwelcome();

  int64_t open() const { return open_; }
  ConnectionCounts counts() const;

 private:
  class Connection;
  /// The bytes of connections that ended lately are in the way of others.
  bool Full() const;
  /// Wakes the connection when there is room again; false if there is now.
  bool Hold(Connection* connection);
  void Wake(Connection* connection);
  void EndOldest();
  void CountEnd(Fault fault, const std::string& name);

  const GuardLimits limits_;
  const int64_t max_unfinished_bytes_;
  std::atomic<int64_t> open_ = 0;
  std::atomic<int64_t> unfinished_bytes_ = 0;
  std::atomic<int64_t> ending_bytes_ = 0;  ///< of these, those of connections that have ended
  std::atomic<Http2Guard::Clock::time_point> full_until_ = Http2Guard::Clock::time_point::min();
  std::array<std::atomic<int64_t>, kRefusals> refused_{};
  std::array<std::atomic<int64_t>, kFaults> ended_{};
  std::atomic<int64_t> next_name_ = 1;
  Mutex mutex_;  // before a connection's own
  std::set<Connection*> connections_ ABSL_GUARDED_BY(mutex_);
  std::set<Connection*> held_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> held_count_ = 0;
  /// What is known of an open one.
  struct Known {
    Connection* connection = nullptr;
    std::shared_ptr<const PeerProcess> process;
    std::map<std::string, std::shared_ptr<const void>> kept;
    /// It was refused then.
    std::optional<Http2Guard::Clock::time_point> unwelcome;
  };
  mutable Mutex known_mutex_;
  std::unordered_map<std::string, Known> known_
      ABSL_GUARDED_BY(known_mutex_);       ///< by what gRPC calls it
  std::atomic<int64_t> silent_until_ = 0;  ///< in the log, by the steady clock
};

}  // namespace sparsed::server
