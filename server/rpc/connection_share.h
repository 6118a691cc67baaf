// What one client connection's requests, uploads and unread results hold together.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/array.h"

namespace grpc {
class ServerContextBase;
}

namespace sparsed::server {

/// Thread-safe.
class ConnectionShare : public std::enable_shared_from_this<ConnectionShare> {
 public:
  explicit ConnectionShare(int64_t limit) : limit_(limit) {}

  /// RESOURCE_EXHAUSTED, and nothing is taken, if that were more than the limit in all.
  absl::Status Take(int64_t bytes);
  void Give(int64_t bytes) { held_ -= bytes; }
  /// RESOURCE_EXHAUSTED if so much could never be held. `what` begins the sentence.
  absl::Status Check(std::string_view what, int64_t bytes) const;
  /// The same bytes, taken until their last copy is gone.
  absl::StatusOr<Buffer> Hold(Buffer buffer);

 private:
  const int64_t limit_;
  std::atomic<int64_t> held_ = 0;
};

/// A part of a share that grows; what it has is given back with it. Not thread-safe.
class ShareHold {
 public:
  explicit ShareHold(std::shared_ptr<ConnectionShare> share) : share_(std::move(share)) {}
  ~ShareHold() { Clear(); }
  ShareHold(const ShareHold&) = delete;
  ShareHold& operator=(const ShareHold&) = delete;

  absl::Status GrowTo(int64_t bytes);
  void Clear();
  ConnectionShare& share() { return *share_; }

 private:
  const std::shared_ptr<ConnectionShare> share_;
  int64_t held_ = 0;
};

/// The shares of all connections that hold something. Thread-safe.
class ConnectionShares {
 public:
  explicit ConnectionShares(int64_t limit_each) : limit_(limit_each) {}
  std::shared_ptr<ConnectionShare> Of(const grpc::ServerContextBase& context);

 private:
  struct Live {
    Mutex mutex;
    std::map<std::string, std::weak_ptr<ConnectionShare>> shares ABSL_GUARDED_BY(mutex);
  };
  const int64_t limit_;
  const std::shared_ptr<Live> live_ = std::make_shared<Live>();
};

}  // namespace sparsed::server
