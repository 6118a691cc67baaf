// Chains against the same products one by one, on any server.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "sparsed/chain.h"
#include "sparsed/client.h"

namespace sparsed::test {

/// Memory of a device.
class DeviceBytes {
 public:
  virtual ~DeviceBytes() = default;
  virtual void* data() = 0;
  /// All of it, from the host and back.
  virtual void Write(const void* from) = 0;
  virtual void Read(void* to) = 0;
};

/// Who runs chains: the server, unless it says otherwise.
class ChainRunner {
 public:
  explicit ChainRunner(Client client) : client_(std::move(client)) {}
  virtual ~ChainRunner() = default;

  const Client& client() const { return client_; }
  virtual absl::StatusOr<ComputeResult> Run(const std::vector<Matrix>& /*of*/, const Chain& chain) {
    return client_.Run(chain);
  }
  /// In this process: chains are of one matrix, on operands that are not held.
  virtual bool here() const { return false; }
  /// Where operands and results are then; null: in the host's memory.
  virtual std::unique_ptr<DeviceBytes> Allocate(size_t /*bytes*/) { return nullptr; }

 private:
  Client client_;
};

/// Runs chains of all kinds, types and transports on a server that has nothing yet, and expects
/// what plain sums over the nonzeros give.
void CheckChains(ChainRunner& runner);
inline void CheckChains(const Client& client) {
  ChainRunner runner(client);
  CheckChains(runner);
}

}  // namespace sparsed::test
