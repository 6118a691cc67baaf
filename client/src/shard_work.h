// Calls to the shards of a matrix, put together to one call.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "sparsed/call.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

/// Whether it ended a call because its matrix is in shards.
bool IsInShards(const absl::Status& status);

/// Waits for calls on a thread of its own. Thread-safe.
class ShardWork : public std::enable_shared_from_this<ShardWork> {
 public:
  /// `options`: of the whole call; its timeout begins now.
  explicit ShardWork(const CallOptions& options, const ClientOptions& client);
  ~ShardWork();
  ShardWork(const ShardWork&) = delete;
  ShardWork& operator=(const ShardWork&) = delete;

  /// Runs `run` on a thread, and then what that returns. `failed` if there is no thread, or no
  /// memory. Once only.
  void Start(std::function<std::function<void()>(ShardWork&)> run,
             const std::function<void(absl::Status)>& failed);
  /// Calls that it waits for are cancelled soon.
  void Cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  /// For a call that is a part of it: with the time that is left.
  CallOptions options() const;
  /// The end of `call`, which is cancelled if this is.
  template <typename T>
  Result<T> Wait(Call<T>& call) {
    while (!call.WaitFor(kLook)) {
      if (cancelled_) call.Cancel();
    }
    return call.Wait();
  }
  /// Waits for so long, but no longer once it is cancelled or its time is over.
  void Pause(std::chrono::milliseconds time) const;

 private:
  static constexpr std::chrono::milliseconds kLook{20};

  const CallOptions options_;
  const std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::atomic<bool> cancelled_ = false;
  std::thread thread_;
};

}  // namespace client
}  // namespace sparsed
