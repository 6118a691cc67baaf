#include "server/rpc/live_streams.h"

namespace sparsed::server {

bool LiveStreams::Add(LiveStream* stream) {
  const std::lock_guard lock(mutex_);
  if (!draining_) streams_.insert(stream);
  return !draining_;
}

void LiveStreams::Remove(LiveStream* stream) {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

void LiveStreams::Drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  for (LiveStream* stream : streams_) stream->OnDrain();
}

void LiveStreams::MatrixChanged(const std::string& tenant, const std::string& name) {
  const std::lock_guard lock(mutex_);
  for (LiveStream* stream : streams_) stream->OnMatrixChanged(tenant, name);
}

absl::Status LiveStreams::TakesNew() const {
  const std::lock_guard lock(mutex_);
  return draining_ ? absl::UnavailableError("the server is shutting down") : absl::OkStatus();
}

}  // namespace sparsed::server
