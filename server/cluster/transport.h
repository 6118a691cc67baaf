// How rows of dense matrices go from node to node, for products with matrices in shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/array.h"

namespace sparsed::server {

class Peers;

/// Rows of one buffer that a node has.
struct RowsThere {
  std::string address;  ///< the node's
  std::string buffer;   ///< its name there
  std::vector<uint32_t> rows;
};
/// Rows of one tenant's buffers, which are parts of one matrix.
struct WantedRows {
  std::string tenant;
  uint64_t version = 0;  ///< of each part
  int64_t cols = 0;
  ElementType type = ElementType::kF32;
  std::vector<RowsThere> from;
};

/// Thread-safe.
class Transport {
 public:
  /// Bytes of the rows of `from[part]`, which come one after the other, without gaps: those from
  /// byte `offset` on.
  using Take = std::function<void(size_t part, uint64_t offset, std::span<const std::byte> bytes)>;

  /// Rows that are on their way. To destroy it is to give them up.
  class Fetch {
   public:
    virtual ~Fetch() = default;
    /// Hands on what comes, in this thread: all of it, if OK. UNAVAILABLE if a node is lost;
    /// FAILED_PRECONDITION if one has no such buffer, or another version; CANCELLED soon after
    /// `stopped` says so, which is asked often. Once.
    virtual absl::Status Finish(const Take& take, const std::function<bool()>& stopped) = 0;
  };

  virtual ~Transport() = default;
  virtual std::unique_ptr<Fetch> Begin(WantedRows wanted) = 0;
};

/// By chunks over gRPC, as copies go (Cluster.FetchRows).
std::unique_ptr<Transport> GrpcTransport(std::shared_ptr<Peers> peers);

}  // namespace sparsed::server
