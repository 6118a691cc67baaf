// Copies of matrices, from one node to another.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "sparsed/v1/cluster.grpc.pb.h"

namespace sparsed::server {

/// The other nodes, as this one calls them. Thread-safe.
class Peers {
 public:
  struct Options {
    bool tls = false;
    std::string authorities;       ///< PEM, who vouches for nodes; empty: the system's
    std::string certificate, key;  ///< PEM, shown to nodes that ask for one; empty: none
    /// The cluster's, shown over TLS alone; empty: nodes ask nobody who he is.
    std::string token;
    /// A copy takes as long as it takes, but is given up when nothing of it came for so long. Its
    /// source may have to read it from a disk first.
    std::chrono::milliseconds patience = std::chrono::minutes(10);
  };

  explicit Peers(Options options);

  /// A call to another node while it exists: Cancel() ends it.
  class Calling {
   public:
    explicit Calling(Peers& peers);
    ~Calling();
    Calling(const Calling&) = delete;
    Calling& operator=(const Calling&) = delete;
    grpc::ClientContext& context() { return context_; }

   private:
    Peers& peers_;
    grpc::ClientContext context_;
  };
  std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address);

  /// Ends calls that are under way, and those that come.
  void Cancel();

  /// Has the node at `address` copy a matrix, and waits until that is done, or has ended there; one
  /// that vanished is noticed within half a minute.
  absl::StatusOr<v1::CopyHereReply> CopyHere(const std::string& address,
                                             const v1::CopyHereRequest& request);
  /// Copies the matrix from a node into `engine`, durably. Arrays of a pattern that is here already
  /// do not travel. Of Fetch's errors and those of an upload; CANCELLED once `stop` is true;
  /// DEADLINE_EXCEEDED when nothing came for Options::patience.
  absl::StatusOr<v1::CopyHereReply> Fetch(const v1::CopyHereRequest& request,
                                          engine::Engine& engine, int threads,
                                          const std::atomic<bool>& stop);

 private:
  absl::StatusOr<v1::CopyHereReply> FetchOnce(const v1::CopyHereRequest& request, bool values_only,
                                              bool* pattern_missing, engine::Engine& engine,
                                              int threads, const std::atomic<bool>& stop);

  const Options options_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> calling_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::server
