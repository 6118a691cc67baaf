// A stream on a connection of its own, for chunks of a compute session's requests.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "client/src/stream.h"

namespace sparsed {
inline namespace client {

class ComputeSession;

class Carrier final : public Stream::Handler {
 public:
  explicit Carrier(std::shared_ptr<ComputeSession> session) : session_(std::move(session)) {}

  // Guarded by the session's lock.
  std::string name;  ///< by the server; empty: it has not come yet
  std::shared_ptr<Stream> stream;

 private:
  Next OnMessage(const grpc::ByteBuffer& bytes) override;
  void OnClosed(const absl::Status& status) override;

  const std::shared_ptr<ComputeSession> session_;
};

}  // namespace client
}  // namespace sparsed
