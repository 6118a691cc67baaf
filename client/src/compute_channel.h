// What carries the requests of a session.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <memory>

#include "proto/wire/ring.h"

namespace sparsed {
inline namespace client {

class OutgoingArrays;

/// A stream of gRPC's, or a ring; replies come to the session. Thread-safe; no method blocks.
class ComputeChannel {
 public:
  virtual ~ComputeChannel() = default;
  /// Sends a message, which is of that kind, and arrays, if there are any, behind it.
  virtual void Send(wire::RingMessage what, grpc::ByteBuffer message,
                    std::shared_ptr<OutgoingArrays> arrays) = 0;
  /// Forgets what is left of a request's arrays.
  virtual void DropArrays(uint64_t request_id) = 0;
  /// Ends it: the session's OnClosed comes.
  virtual void Cancel() = 0;
};

}  // namespace client
}  // namespace sparsed
