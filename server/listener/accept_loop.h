// A thread that accepts connections and holds each until its first bytes have come.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/listener/descriptor.h"
#include "server/listener/listen_socket.h"

namespace sparsed::server {

/// What the first bytes of a connection are.
enum class Opening { kIncomplete, kComplete, kWrong };

/// Why a connection was closed before anybody served it.
enum class Refusal {
  kLimit,        ///< as many as may be open are
  kDescriptors,  ///< the process has no descriptor left
  kSilent,       ///< its first bytes did not come in time, or too many others waited for theirs
  kProtocol,     ///< its first bytes are none that are spoken here
};
std::string_view Name(Refusal refusal);
constexpr int kRefusals = 4;

/// Called by the loop's thread; none may block.
struct AcceptRules {
  /// Whether a new connection may wait at all.
  std::function<bool(int fd)> admit;
  /// Of what has come so far over `fd`, at most `opening_bytes`; it stays unread.
  std::function<Opening(int fd, std::string_view bytes)> opening;
  size_t opening_bytes = 0;
  /// Owns `fd`, which does not block, from now on.
  std::function<void(Descriptor fd)> take;
  std::function<void(Refusal)> refused;
  std::function<void()> every_second{};  ///< or oftener; may be empty
  /// Connections whose first bytes have not come; past it the oldest is closed.
  size_t max_waiting = 256;
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

/// Goes on whatever happens: without descriptors it closes what connects.
class AcceptLoop {
 public:
  static absl::StatusOr<std::unique_ptr<AcceptLoop>> Start(const std::vector<ListenSocket>& sockets,
                                                           AcceptRules rules);
  /// Ends the thread and closes what waits. The listening sockets are the caller's.
  ~AcceptLoop();

 private:
  class Thread;
  explicit AcceptLoop(std::unique_ptr<Thread> state);

  std::unique_ptr<Thread> state_;
  std::thread thread_;
};

}  // namespace sparsed::server
