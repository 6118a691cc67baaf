// The sockets that listen at an address.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/listener/descriptor.h"

namespace sparsed::server {

/// Who may open a Unix socket's file.
struct SocketFile {
  std::optional<mode_t> mode;  ///< nullopt: as the process' umask says
  std::optional<gid_t> group;  ///< nullopt: the process' own
};

/// Listens from Open on; what connects waits until somebody accepts it.
class ListenSocket {
 public:
  /// "host:port", "[v6 address]:port" or "unix:/path". Port 0 takes a free one, 0.0.0.0 and [::]
  /// are all addresses of both families, a name is all of its addresses. A Unix socket that nobody
  /// serves any more is replaced. FAILED_PRECONDITION, "cannot listen on ADDRESS: REASON", if
  /// somebody else listens there, the host is not ours or the path is no socket.
  /// `type` is a Unix socket's: SOCK_STREAM, or SOCK_SEQPACKET.
  static absl::StatusOr<ListenSocket> Open(const std::string& address, const SocketFile& file = {},
                                           int type = SOCK_STREAM);
  ListenSocket(ListenSocket&&) = default;
  ListenSocket& operator=(ListenSocket&&) = delete;
  /// Removes a Unix socket's file.
  ~ListenSocket();

  /// As asked for, with the port that was taken.
  const std::string& address() const { return address_; }
  /// Where this machine reaches it: by number instead of by name, at the loopback's address instead
  /// of at all.
  std::string own_address() const;
  /// One of each family; they do not block.
  const std::vector<Descriptor>& sockets() const { return sockets_; }

 private:
  ListenSocket() = default;
  absl::Status OpenUnix(const std::string& path, const SocketFile& file, int type);
  absl::Status OpenTcp();

  std::string address_;
  std::vector<Descriptor> sockets_;
  std::string path_;  ///< of a Unix socket
  uint64_t inode_ = 0;
};

/// FAILED_PRECONDITION, as of ListenSocket::Open, where an address can never be listened at,
/// whoever is there: nothing knows the host, or the path is no socket's. Takes nothing.
absl::Status CheckAddress(const std::string& address);

/// Whether only this machine reaches "host:port" (a loopback address) or "unix:/path".
bool StaysOnThisMachine(const std::string& address);

}  // namespace sparsed::server
