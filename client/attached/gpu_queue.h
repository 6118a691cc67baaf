// A stream of this process's that requests of the server's run in the order of (OpenQueue in
// proto/sparsed/v1/local.proto).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/src/local_socket.h"
#include "client/src/shared_memory.h"

namespace sparsed {
inline namespace client {

/// Thread-safe but where it says otherwise.
class GpuQueue {
 public:
  /// Asks the server. Errors as OpenQueue's; UNIMPLEMENTED where the GPU's driver does not do it.
  static absl::StatusOr<std::shared_ptr<GpuQueue>> Open(int gpu, const std::string& uuid,
                                                        std::shared_ptr<LocalSocket> socket);
  /// Waits until the stream has passed all that was queued in it.
  ~GpuQueue();
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;

  /// Held from Begin to End, by who queues a request.
  Mutex& mutex() { return mutex_; }
  /// Waits while too many have not ended, then says what the next request is to name as its place
  /// (SpmmStart.queue), having queued in `stream` that it may begin. ABORTED if an earlier one did
  /// not come to its end.
  absl::StatusOr<std::string> Begin(void* stream);
  /// The server has taken the request: from here on the stream waits for its end.
  absl::Status End(void* stream);

  /// Looks whether the server is there; without it the stream goes on.
  void Look();
  /// OK, or ABORTED: what the stream waits, or waited, for did not come to its end.
  absl::Status status();
  bool alive() const { return socket_->Alive(); }
  /// The stream waits for nothing.
  bool idle() const;

 private:
  /// Requests that were taken and have not ended.
  int32_t Left() const;
  class Page;
  GpuQueue(int gpu, std::shared_ptr<LocalSocket> socket, std::unique_ptr<Page> page,
           std::string name);

  const int gpu_;
  const std::shared_ptr<LocalSocket> socket_;
  const std::unique_ptr<Page> page_;
  const std::string name_;
  Mutex mutex_;
  /// The last number that was given, and the last that the stream waits for.
  std::atomic<uint32_t> given_ = 0, taken_ = 0;
  std::atomic<bool> cut_off_ = false;
};

}  // namespace client
}  // namespace sparsed
