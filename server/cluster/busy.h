// Who changes a matrix of a cluster, or copies it: one at a time.
#pragma once

#include <utility>

#include "server/cluster/cluster.h"

namespace sparsed::server {

/// Holds a matrix while it exists.
class Cluster::Busy {
 public:
  struct IfFree {};
  /// Waits for it, unless the node stops: see held().
  Busy(Cluster& cluster, engine::NameKey key) : cluster_(cluster), key_(std::move(key)) {
    const MutexLock lock(cluster_.mutex_);
    while (!cluster_.stopping_) {
      held_ = cluster_.busy_.insert(key_).second;
      if (held_) return;
      cluster_.changed_.Wait(cluster_.mutex_);
    }
  }
  /// Does not: see held().
  Busy(Cluster& cluster, engine::NameKey key, IfFree) : cluster_(cluster), key_(std::move(key)) {
    const MutexLock lock(cluster_.mutex_);
    held_ = cluster_.busy_.insert(key_).second;
  }
  ~Busy() {
    if (!held_) return;
    const MutexLock lock(cluster_.mutex_);
    cluster_.busy_.erase(key_);
    cluster_.changing_.erase(key_);
    cluster_.changed_.NotifyAll();
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  bool held() const { return held_; }
  /// It is about to be another here: whoever has what was acknowledged serves it until the cluster
  /// has the new one.
  void Hide() {
    const MutexLock lock(cluster_.mutex_);
    const auto known = cluster_.known_.matrices.find(key_);
    if (known != cluster_.known_.matrices.end() && known->second.copies.size() > 1) {
      cluster_.changing_.insert(key_);
    }
  }

 private:
  Cluster& cluster_;
  const engine::NameKey key_;
  bool held_ = false;
};

}  // namespace sparsed::server
