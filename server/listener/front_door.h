// Where clients come in: listens, accepts, bounds, and hands connections to gRPC.
//
// Each open connection has a name of its own, which CallbackServerContext::peer() says in every
// call on it: "ipv4:HOST:PORT" or "ipv6:%5BHOST%5D:PORT" of the client's end, or, over a Unix
// socket, "unix-abstract:connection-N" with an N that is never used again. What is kept for a
// connection may be kept under that name.
#pragma once

#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/listener/accept_loop.h"
#include "server/listener/connections.h"
#include "server/listener/listen_socket.h"

namespace sparsed::server {

using ConnectionAcceptor = grpc::experimental::ExternalConnectionAcceptor;

class FrontDoor {
 public:
  struct Options {
    std::vector<std::string> addresses;
    SocketFile socket_file = {};
    bool tls = false;  ///< over TCP; a Unix socket never has it
    int64_t max_connections = 1024;
    size_t max_waiting = 128;  ///< connections that have not said what they speak
    GuardLimits guard;
    int64_t max_unfinished_bytes = 0;  ///< of messages, over all connections
  };

  /// Takes the addresses; what connects waits until Serve. Errors as ListenSocket::Open's.
  static absl::StatusOr<std::unique_ptr<FrontDoor>> Open(Options options);
  ~FrontDoor();

  /// gRPC, which the acceptors belong to, is running. `tls` is null unless Options::tls.
  absl::Status Serve(std::unique_ptr<ConnectionAcceptor> plain,
                     std::unique_ptr<ConnectionAcceptor> tls = nullptr);
  /// Takes no further connection. Before gRPC is shut down.
  void Close();

  /// As asked for, with the ports that were taken for port 0.
  std::vector<std::string> addresses() const;
  /// Where this machine reaches them (ListenSocket::own_address).
  std::vector<std::string> own_addresses() const;
  int64_t max_connections() const { return options_.max_connections; }
  /// Of a call over a Unix socket, by what it has as peer(); null: it is not known.
  std::shared_ptr<const PeerProcess> ProcessOf(const std::string& peer) const {
    return connections_->ProcessOf(peer);
  }
  /// See Connections::Keep.
  absl::Status Keep(const std::string& peer, const std::string& who,
                    const std::function<absl::StatusOr<std::shared_ptr<const void>>()>& hold) {
    return connections_->Keep(peer, who, hold);
  }
  ConnectionCounts counts() const { return connections_->counts(); }
  /// A connection from this end is let in even if there are as many as may be. `name` as
  /// getsockname has it, without trailing zeros; empty for none.
  void LetIn(std::string name);

 private:
  explicit FrontDoor(Options options);
  bool Admit(int fd);
  bool IsTls(int fd) const;
  void Take(Descriptor fd);

  const Options options_;
  const std::shared_ptr<Connections> connections_;
  std::vector<ListenSocket> sockets_;
  std::unique_ptr<ConnectionAcceptor> plain_, tls_;
  Mutex mutex_;
  std::string let_in_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<AcceptLoop> loop_;
};

}  // namespace sparsed::server
