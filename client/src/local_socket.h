// The server's socket for processes of its machine (proto/sparsed/v1/local.proto).
#pragma once

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
};

/// A connection to it. Used by one thread at a time.
class LocalSocket {
 public:
  /// FAILED_PRECONDITION if there is no such socket here, or another server's; PERMISSION_DENIED if
  /// it is not this user's to open; UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Connect(const LocalAddress& address);

  struct Reply {
    v1::LocalReply message;
    Descriptor file;  ///< that came with it, if one did
  };
  /// Waits for the server's answer, which may take a while: it maps memory, or copies it. `file`
  /// goes along; -1: none. UNAVAILABLE once the connection is of no use; else what the server said.
  absl::StatusOr<Reply> Ask(const v1::LocalRequest& request, int file = -1);
  /// The same without waiting: the answer is dropped when it comes. False: it was not sent, and
  /// the connection is of no use.
  bool Tell(const v1::LocalRequest& request);
  /// Whether the server is at the other end. Does not wait.
  bool Alive();

 private:
  explicit LocalSocket(Descriptor socket) : socket_(std::move(socket)) {}

  Descriptor socket_;  ///< closed: of no use
  int unanswered_ = 0;
};

}  // namespace client
}  // namespace sparsed
