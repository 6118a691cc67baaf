// A connection to the Unix socket of a server on this machine (proto/sparsed/v1/local.proto).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed {
inline namespace client {

/// Where it is: its path, and the id of the server that it must be of. An empty path: the server
/// has none.
struct LocalAddress {
  std::string path, server_id;
  std::string tenant{};  ///< that the server has the caller for; empty: it knows no tenants
  std::string token{};   ///< of the caller; empty: none
};

/// A thread of its own sends what is asked and reads what is answered, so that neither side's
/// socket fills up. Thread-safe. Belongs to the process that connected it: in a child (fork) it
/// is as if it had ended, and touches nothing of the parent's.
class LocalSocket {
 public:
  struct Reply {
    v1::LocalReply message;
    Descriptor file;  ///< that came with it; the receiver's
  };
  /// Called once, on the socket's thread, which it must not block. Errors: the reply's own status;
  /// UNAVAILABLE if the connection ended before the reply came; DEADLINE_EXCEEDED.
  using OnReply = std::function<void(absl::StatusOr<Reply> reply)>;
  using Clock = std::chrono::steady_clock;

  /// Blocks until the server has said who it is, some ten seconds at most, and until `deadline` if
  /// that is earlier (UNAVAILABLE). FAILED_PRECONDITION if there is no such socket
  /// here, or another server's; PERMISSION_DENIED if it is not this user's to open;
  /// or has him for another tenant there; UNAUTHENTICATED; RESOURCE_EXHAUSTED if the server has too
  /// many connections; UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Connect(
      const LocalAddress& address, Clock::time_point deadline = Clock::time_point::max());
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;
  /// Ends the connection: what was asked over it ends with UNAVAILABLE, before this returns unless
  /// it is the socket's thread that destroys it.
  ~LocalSocket();

  /// Asks and waits, at most two minutes: a GPU's driver pins what it is given. `file` goes along,
  /// stays the caller's, and -1 is none. Errors as OnReply's; where no reply comes, the connection
  /// ends. At `deadline`, if that is earlier, DEADLINE_EXCEEDED: then `on_late` gets what still
  /// comes. Not on the socket's thread.
  absl::StatusOr<Reply> Ask(v1::LocalRequest request, int file = -1,
                            Clock::time_point deadline = Clock::time_point::max(),
                            OnReply on_late = nullptr);
  /// Asks without waiting. `on_reply` may be null; at `deadline` it is called with
  /// DEADLINE_EXCEEDED, and what the server still answers is nobody's.
  void Send(v1::LocalRequest request, OnReply on_reply = nullptr,
            Clock::time_point deadline = Clock::time_point::max());
  /// Ends the connection, as the destructor does, without waiting.
  void End();
  /// Whether the connection still stands.
  bool Alive() const;

 private:
  class Loop;
  explicit LocalSocket(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}

  const std::shared_ptr<Loop> loop_;  ///< its thread's, too
};

}  // namespace client
}  // namespace sparsed
