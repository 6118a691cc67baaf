// The nodes of a cluster, as one client knows them, and which of them serves which matrix.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace sparsed {
inline namespace client {

class Connection;
class ShardedMatrix;

/// Of the connection that the client was made with, its home; connections to other nodes are made
/// when they are first needed, and stay as long as home does. Thread-safe.
class Nodes {
 public:
  using Connected = std::function<void(absl::StatusOr<Connection*>)>;

  explicit Nodes(Connection& home) : home_(home) {}
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;
  /// Waits for connections that are being made.
  ~Nodes();

  /// Where nodes are, as a server says; what is no HOST:PORT is left out.
  void Learn(const std::vector<std::string>& addresses);
  /// Whether there is more than one to ask.
  bool several() const;
  /// Whether the server is a node of a cluster.
  bool in_cluster() const;
  /// The addresses that a redirect names; further calls for its matrix go to the first. None: the
  /// status is no redirect.
  std::optional<std::vector<std::string>> Follow(const absl::Status& status);
  /// What calls for that matrix go to: home, unless a redirect said otherwise.
  Connection& Of(const std::string& matrix);
  /// They are on the same nodes: calls for `matrix` go to where those for `other` do.
  void RouteLike(const std::string& matrix, const std::string& other);
  /// That node does not answer: calls go to home, or to whom that redirects to.
  void Forget(const Connection& lost);
  /// What is known of a matrix in shards; null: nothing.
  std::shared_ptr<ShardedMatrix> FindSharded(const std::string& matrix) const;
  void LearnSharded(const std::string& matrix, std::shared_ptr<ShardedMatrix> sharded);
  void ForgetSharded(const std::string& matrix);
  /// The address to ask after that one, in turn.
  std::string After(const std::string& address) const;
  /// Calls `connected` with the first that answers, or why the last did not: at once, or on a
  /// thread of its own, which all have in common that ask for the same addresses meanwhile.
  /// FAILED_PRECONDITION for an address that a server may not name: HOST:PORT is what it may.
  void Connect(std::vector<std::string> addresses, Connected connected);

 private:
  struct Opening {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done = std::make_shared<std::atomic<bool>>(false);
  };

  void OpenOneOf(const std::vector<std::string>& addresses);
  Connection* FindLocked(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Connection*> Open(const std::string& address);

  Connection& home_;
  mutable Mutex mutex_;
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::shared_ptr<Connection>> open_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::string> routes_ ABSL_GUARDED_BY(mutex_);  ///< of matrices
  std::unordered_map<std::string, std::shared_ptr<ShardedMatrix>> sharded_ ABSL_GUARDED_BY(mutex_);
  std::list<Opening> openings_ ABSL_GUARDED_BY(mutex_);
  /// Who waits for a connection to one of these.
  std::map<std::vector<std::string>, std::vector<Connected>> waiting_ ABSL_GUARDED_BY(mutex_);
};

/// `connection`, or the one to the node that serves the matrix; keeps both.
std::shared_ptr<Connection> RouteOf(const std::shared_ptr<Connection>& connection,
                                    const std::string& matrix);

}  // namespace client
}  // namespace sparsed
