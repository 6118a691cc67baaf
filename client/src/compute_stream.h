// The long-lived stream that carries one kind of compute request, many at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace sparsed {
inline namespace client {

class ComputeSession;
class Connection;
class DenseCall;

/// Opens the stream on first use, and again after it broke. Thread-safe.
class ComputeStream {
 public:
  ComputeStream(Connection& connection, std::string method)
      : connection_(connection), method_(std::move(method)) {}
  ComputeStream(const ComputeStream&) = delete;
  ComputeStream& operator=(const ComputeStream&) = delete;
  /// Ends the stream and waits until it is gone.
  ~ComputeStream();

  /// Sends an attempt of `call`; the session tells it what comes back.
  void Submit(const std::shared_ptr<DenseCall>& call);
  const std::string& method() const { return method_; }

 private:
  /// Null before the first.
  std::shared_ptr<ComputeSession> Last();

  Connection& connection_;
  const std::string method_;
  Mutex mutex_;
  /// The last may take requests; those before it have broken, and have yet to close.
  std::vector<std::shared_ptr<ComputeSession>> sessions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace client
}  // namespace sparsed
