// Rings of processes of this machine: streams of Compute requests whose messages travel in shared
// memory (OpenRing of proto/sparsed/v1/local.proto).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/array.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed::server {

struct Caller;
struct ServiceContext;

/// A ring of one connection. It has a thread, which takes its requests and keeps it until its end;
/// worker slots put their replies.
class Ring {
 public:
  virtual ~Ring() = default;
  /// Its connection has gone: requests in flight end. Does not wait for that.
  virtual void Leave() = 0;
  /// Nothing is taken or put any more.
  virtual bool ended() const = 0;
};

/// All of them. Thread-safe.
class Rings {
 public:
  /// `service` outlives it.
  explicit Rings(const ServiceContext& service) : service_(service) {}
  /// Waits for the threads of rings, all of which were told to leave.
  ~Rings();

  /// `memory`: the caller's file, mapped. Errors as of OpenRing.
  absl::StatusOr<std::shared_ptr<Ring>> Open(const Caller& caller, const v1::OpenRing& request,
                                             Buffer memory);
  /// Their threads.
  int64_t count() const;

 private:
  const ServiceContext& service_;
  mutable Mutex mutex_;
  CondVar ended_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sparsed::server
