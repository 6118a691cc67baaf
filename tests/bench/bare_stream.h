// A gRPC stream that carries bytes and does nothing else: what any transport of ours is held
// against.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace sparsed::bench {

/// Serves until killed: reads messages until the client is done, then sends `reply_bytes` (from the
/// client's first 8 bytes) in messages of 2 MiB; or sends each message back. Returns 1 if the
/// address can't be had.
int ServeBareStreams(const std::string& address);

/// Milliseconds to stream `in` bytes to such a server and `out` bytes back.
double BareStreamMilliseconds(const std::string& address, int64_t in, int64_t out);

/// A stream to such a server that stays open.
class BareEcho {
 public:
  explicit BareEcho(const std::string& address);
  ~BareEcho();
  /// That a small message takes there and back.
  double Milliseconds();

 private:
  class Stream;
  std::unique_ptr<Stream> stream_;
};

}  // namespace sparsed::bench
