// The door for processes of this machine: a Unix socket over which they share memory with the
// server (proto/sparsed/v1/local.proto).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "server/listener/listen_socket.h"
#include "server/telemetry/attached_runs.h"

namespace sparsed::engine {
class Engine;
}

namespace sparsed::server {

class Access;
class Rings;
class SharedRegions;
class WorkerPool;

/// A thread that reads what they say, and never blocks; memory is mapped and let go by `workers`,
/// and copied for those who attached by `exporters`, of whom many may wait for one copy. Who comes
/// in is up to the permissions of the socket's file, and who he is to the access file.
class LocalDoor {
 public:
  struct Options {
    std::string address;  ///< "unix:/path"
    SocketFile file = {};
    std::string server_id;         ///< for the greeting
    size_t max_connections = 256;  ///< past it, who comes is told so, and turned away
    size_t max_regions = 1024;     ///< of one connection
    int64_t max_bytes = 0;         ///< of all regions of one connection
    /// Whether memory that callers allocated on a GPU themselves is used where it is.
    bool trusts_caller_memory = false;
    /// Gets what callers ran themselves, about once a second; on the door's thread.
    std::function<void(const AttachedRuns&)> on_runs = [](const AttachedRuns&) {};
  };
  struct Counts {
    int64_t connections = 0;
    int64_t turned_away = 0;  ///< since the start, for the limit or for what they said
  };

  /// All but the options outlive it. Errors as ListenSocket::Open's.
  static absl::StatusOr<std::unique_ptr<LocalDoor>> Open(Options options, Access& access,
                                                         engine::Engine& engine,
                                                         WorkerPool& workers, WorkerPool& exporters,
                                                         SharedRegions& regions, Rings& rings);
  /// Forgets what was shared; what is being mapped is forgotten once it is.
  ~LocalDoor();

  Counts counts() const;

 private:
  class Loop;
  LocalDoor(ListenSocket socket, std::shared_ptr<Loop> loop);

  const ListenSocket socket_;
  const std::shared_ptr<Loop> loop_;  ///< workers hold it, too
  std::thread thread_;
};

}  // namespace sparsed::server
