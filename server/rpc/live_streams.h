// Streams that may live long: told when the server shuts down, or when a matrix's name means
// something else.
#pragma once

#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"

namespace sparsed::server {

class LiveStream {
 public:
  virtual ~LiveStream() = default;
  /// The server shuts down: take nothing new and end as soon as nothing is in flight.
  virtual void OnDrain() = 0;
  /// A matrix of this name was uploaded, replaced or deleted.
  virtual void OnMatrixChanged(const std::string& /*tenant*/, const std::string& /*name*/) {}
};

/// Thread-safe. The lock is held while streams are told, so a stream that removed itself is not
/// told any more.
class LiveStreams {
 public:
  /// False, and not added, if the server is shutting down already.
  bool Add(LiveStream* stream);
  void Remove(LiveStream* stream);
  void Drain();
  void MatrixChanged(const std::string& tenant, const std::string& name);
  /// UNAVAILABLE once the server shuts down. Asked where a call begins that may take its time; what
  /// is answered from memory at once goes on.
  absl::Status TakesNew() const;

 private:
  mutable std::mutex mutex_;
  std::set<LiveStream*> streams_;
  bool draining_ = false;
};

}  // namespace sparsed::server
