// The whole server: engine, gRPC services, HTTP port, wired together here and nowhere else.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/config.h"

namespace sparsed::engine {
class Engine;
}

namespace sparsed::server {

class Server {
 public:
  /// Opens the engine, then serves at all of the configuration's addresses. FAILED_PRECONDITION if
  /// one of them is taken.
  /// `give_up` is called, once and by a thread of the server's, when it could not be reached by
  /// itself for so long that the process should end (Config::give_up_seconds).
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config,
                                                       std::function<void()> give_up = {});
  /// Cancels what is in flight.
  ~Server();

  /// Says NOT_SERVING, takes nothing new, and returns when nothing is in flight or `grace` is over.
  void Drain(std::chrono::duration<double> grace);

  /// As configured, with the ports that were taken for port 0.
  const std::vector<std::string>& addresses() const;
  /// Empty: off.
  const std::string& metrics_address() const;
  engine::Engine& engine();

  class Impl;

 private:
  explicit Server(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsed::server
