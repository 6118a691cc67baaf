// A channel to one server, what the server allows, and the streams that carry SpMM and SDDMM.
#pragma once

#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/src/compute_stream.h"
#include "client/src/credentials.h"
#include "client/src/nodes.h"
#include "client/src/ring.h"
#include "client/src/shared_memory.h"
#include "client/src/stream.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

/// What gRPC says where nobody listens, in our words; any other status as it is.
absl::Status Worded(absl::Status status, const std::string& address, const std::string& gateway);

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// UNAVAILABLE, with the address, if no server answers.
  static absl::StatusOr<std::shared_ptr<Connection>> Open(const std::string& address,
                                                          const ClientOptions& options);
  /// Likewise to another node of the cluster that `home` is a node of.
  static absl::StatusOr<std::shared_ptr<Connection>> OpenNode(const std::string& address,
                                                              const ClientOptions& options,
                                                              Connection& home);
  /// Waits until the streams are gone; not to be called on gRPC's threads.
  ~Connection() = default;

  const std::string& address() const { return address_; }
  const ClientOptions& options() const { return options_; }
  uint32_t PriorityOf(const CallOptions& call) const {
    return std::max(call.priority, options_.priority);
  }
  /// For the next call; empty: none.
  std::string Token() const { return credentials_->Token(); }
  grpc::GenericStub& stub() { return stub_; }
  /// Connections besides that, for large operands and results (ClientOptions::streams); each is
  /// made when it is first asked for. `i` is below carriers().
  size_t carriers() const { return carriers_; }
  grpc::GenericStub& carrier_stub(size_t i);
  size_t chunk_bytes() const { return chunk_bytes_; }
  int max_requests_per_stream() const { return max_requests_per_stream_; }

  /// Where the server's local socket is now. Asks the server, for at most the connect timeout;
  /// UNAVAILABLE, DEADLINE_EXCEEDED.
  absl::StatusOr<LocalAddress> FindLocalAddress(std::chrono::steady_clock::time_point deadline =
                                                    std::chrono::steady_clock::time_point::max());
  const std::shared_ptr<SharedMemory>& shared_memory() const { return shared_memory_; }
  /// Without a lease; what lies in shared memory is found there. May block.
  OutgoingArray Outgoing(uint32_t index, const StridedBytes& bytes) const {
    return {.array = index,
            .bytes = bytes,
            .shared = bytes.contiguous() ? shared_memory_->Find(bytes.data(), bytes.size(), 1)
                                         : std::nullopt,
            .lease = nullptr};
  }
  /// The client's, of all its connections.
  Nodes& nodes() { return home_->nodes_; }
  ComputeStream& spmm() { return spmm_; }
  ComputeStream& sddmm() { return sddmm_; }
  ComputeStream& chain() { return chain_; }
  ComputeRing& ring() { return ring_; }

 private:
  /// `home`: null for this one itself.
  Connection(const std::string& address, const ClientOptions& options,
             std::shared_ptr<Credentials> credentials, Connection* home);
  static absl::StatusOr<std::shared_ptr<Connection>> Open(const std::string& address,
                                                          const ClientOptions& options,
                                                          Connection* home);

  const std::string address_;
  const ClientOptions options_;
  const std::shared_ptr<Credentials> credentials_;
  grpc::GenericStub stub_;
  const size_t carriers_;
  Mutex mutex_;
  std::vector<std::unique_ptr<grpc::GenericStub>> carrier_stubs_ ABSL_GUARDED_BY(mutex_);
  // Written once, in Open().
  size_t chunk_bytes_ = 0;
  int max_requests_per_stream_ = 1;
  std::shared_ptr<SharedMemory> shared_memory_;
  Connection* const home_;
  Nodes nodes_;  ///< of home
  ComputeStream spmm_;
  ComputeStream sddmm_;
  ComputeStream chain_;
  ComputeRing ring_;
};

}  // namespace client
}  // namespace sparsed
