// Machines that are network namespaces of this one, on a bridge of their own: their links can be
// cut one way, and slowed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsed::test {

/// Takes root, and `ip` and `tc` (Debian package iproute2). Not thread-safe.
class Network {
 public:
  /// The calling thread, and those that it starts from then on, are on the bridge, which reaches
  /// all machines. UNIMPLEMENTED where namespaces cannot be made.
  static absl::StatusOr<std::unique_ptr<Network>> Make(const std::vector<std::string>& machines);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  /// What runs in them goes on without a network.
  ~Network();

  /// Of a machine: "10.77.0.11".
  const std::string& AddressOf(const std::string& machine) const;
  /// What a command line begins with that runs there.
  std::vector<std::string> Within(const std::string& machine) const;
  /// What `from` sends to `to` is lost without a word, until Heal.
  absl::Status Cut(const std::string& from, const std::string& to);
  /// What it sends goes at so many bits a second, after up to half a second in a queue; until Heal.
  absl::Status Slow(const std::string& machine, int64_t bits_per_second);
  /// All links are whole again.
  absl::Status Heal();

 private:
  struct Machine {
    std::string name, name_space, address;
  };
  Network() = default;
  absl::Status MakeAll(const std::vector<std::string>& machines);
  const Machine& Find(const std::string& name) const;

  std::vector<Machine> machines_;
  std::vector<std::string> to_heal_;  ///< commands
};

}  // namespace sparsed::test
