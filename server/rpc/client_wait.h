// Waiting for the client, on either half of a stream, without waiting for ever.
#pragma once

#include <grpcpp/server_context.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "server/rpc/live_streams.h"

namespace sparsed::server {

/// Ends the call as `status` says even if its client takes nothing: what is being written is
/// dropped. Its reactor hears of it as of any cancellation, and has yet to Finish.
void CancelCall(grpc::CallbackServerContext& context, const absl::Status& status);

/// The receiving half: the next message is awaited, and then the stream may be ended for its
/// silence, or one is being handled. Thread-safe. gRPC's callbacks do not run inside of a call that
/// begins an operation, so that begins under the lock.
class Reception {
 public:
  /// The message before brought `bytes`; `start_read` asks for the next one.
  template <typename StartRead>
  void Await(uint64_t bytes, const StartRead& start_read) {
    const MutexLock lock(mutex_);
    bytes_ += bytes;
    // Messages without a byte are silence, too.
    if (bytes > 0) last_byte_ = Patience::Clock::now();
    awaiting_ = true;
    start_read();
  }
  /// It came, or its failure did. False: the stream was ended meanwhile.
  bool Take();
  /// True, once, if nothing came for too long: whoever is told ends the stream.
  bool GivesUp(const Patience& patience);
  uint64_t bytes() const;

 private:
  mutable Mutex mutex_;
  bool awaiting_ ABSL_GUARDED_BY(mutex_) = false;
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Patience::Clock::time_point last_byte_ ABSL_GUARDED_BY(mutex_) = Patience::Clock::now();
};

/// The sending half: a write is outstanding, or none. Thread-safe.
class Delivery {
 public:
  /// `start_write` begins a write, after which `bytes_left` remain.
  template <typename StartWrite>
  void Begin(int64_t bytes_left, const StartWrite& start_write) {
    const MutexLock lock(mutex_);
    writing_ = true;
    since_ = Patience::Clock::now();
    bytes_left_ = bytes_left;
    start_write();
  }
  /// The write is done, or the call, if it was its last: then whoever began it has let go of this.
  /// CANCELLED, or why it was given up, unless it was `ok`.
  absl::Status End(bool ok);
  /// Cancels the call if its client took nothing for too long.
  void Tick(const Patience& patience, grpc::CallbackServerContext& context);
  int64_t bytes_left() const;

 private:
  mutable Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  Patience::Clock::time_point since_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_left_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status given_up_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::server
