// Asks the server, as a client would, whether it is there.
//
// Nothing inside of a process says for sure that its front door works: gRPC may have given up a
// socket, a Unix socket's file may be gone, its threads may be stuck. So every few seconds a real
// connection is made to each address, and the health service asked over it.
#pragma once

#include <chrono>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace sparsed::server {

/// One try: connects to "host:port" or "unix:/path" and asks the health service there, whatever it
/// says. `about_to_connect` gets the name of our end (as FrontDoor::LetIn takes it). UNAVAILABLE,
/// with address and reason, if nothing answers in time. Over TCP with `tls`, whoever shakes hands
/// and speaks HTTP/2 is there, with any certificate.
absl::Status AskHealth(const std::string& address, std::chrono::milliseconds time,
                       const std::function<void(std::string)>& about_to_connect = {},
                       bool tls = false);

class SelfProbe {
 public:
  struct Options {
    std::vector<std::string> addresses;
    bool tls = false;  ///< over TCP
    std::chrono::milliseconds interval = std::chrono::seconds(5);
    std::chrono::milliseconds time = std::chrono::seconds(5);  ///< for one address to answer
    /// After failing for so long `give_up` is called, once; zero: never.
    std::chrono::milliseconds patience = std::chrono::seconds(60);
    std::function<void(std::string)> about_to_connect;
    /// After each round: OK, or what AskHealth said of the first address that did not answer.
    std::function<void(const absl::Status&)> told;
    std::function<void()> give_up;
  };

  /// Calls come from a thread of its own, the first one after an interval.
  explicit SelfProbe(Options options);
  /// Waits for a try that is under way.
  ~SelfProbe() = default;

 private:
  void Run(const std::stop_token& stop);
  absl::Status AskAll();

  const Options options_;
  std::jthread thread_;  ///< last
};

}  // namespace sparsed::server
