// Streams that may live long: told when the server shuts down, when a matrix's name means something
// else, and now and then to look whether their clients still take part.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "server/config/config.h"
#include "server/security/caller.h"
#include "server/telemetry/in_flight.h"

namespace sparsed::server {

class Access;

/// For how long a client may keep a stream waiting.
struct Patience {
  using Clock = std::chrono::steady_clock;

  Clock::time_point now;
  std::chrono::duration<double> receive;  ///< for its next bytes
  std::chrono::duration<double> send;     ///< for it to take what is being written
  bool draining = false;

  bool IsOver(Clock::time_point since, std::chrono::duration<double> limit) const {
    return now - since > limit;
  }
  /// Why a stream ends that waited too long: "WHAT for 30 s (--receive-idle)", or that the server
  /// shuts down.
  absl::Status NothingReceived(std::string_view what) const;
  absl::Status NothingTaken(std::string_view what) const;
};

/// None of these blocks, or calls back into LiveStreams.
class LiveStream {
 public:
  /// `caller`: whose it is; nullopt: nobody is asked.
  explicit LiveStream(std::optional<Caller> caller)
      : counted_(caller ? std::exchange(caller->counted, nullptr) : nullptr),
        caller_(std::move(caller)) {}
  virtual ~LiveStream() = default;
  const std::optional<Caller>& caller() const { return caller_; }

  /// Its caller is not any more who he was: end, as `why` says. May come again.
  virtual void OnRefused(const absl::Status& /*why*/) {}
  /// The server shuts down: take nothing new and end as soon as nothing is in flight.
  virtual void OnDrain() {}
  /// Several times in the shorter patience: end what waited longer.
  virtual void OnTick(const Patience& /*patience*/) {}
  /// A matrix of this name was uploaded, replaced or deleted.
  virtual void OnMatrixChanged(const std::string& /*tenant*/, const std::string& /*name*/) {}
  /// Adds what is in flight on it.
  virtual void Count(InFlightTable& /*table*/) {}

 protected:
  /// From now on it does not count in its caller's quotas: called before its end can leave, so that
  /// who has but one request may send the next as soon as he knows.
  void EndCount() { counted_.reset(); }

 private:
  friend class LiveStreams;

  std::shared_ptr<const void> counted_;
  const std::optional<Caller> caller_;
  absl::Status refused_;  ///< LiveStreams': why its caller is not who he was
};

/// Thread-safe. The lock is held while streams are told, so a stream that removed itself is not
/// told any more. One thread ticks.
class LiveStreams {
 public:
  LiveStreams(const Config& config, Access& access);
  ~LiveStreams();

  /// False, and not added, if the server is shutting down already.
  bool Add(LiveStream* stream);
  void Remove(LiveStream* stream);
  /// From now on a second of silence is too long, and what has not begun does not begin.
  void Drain();
  void MatrixChanged(const std::string& tenant, const std::string& name);
  InFlightTable InFlight() const;

 private:
  void Run();
  void TickLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::chrono::duration<double> receive_, send_;
  Access& access_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::set<LiveStream*> streams_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  ///< last
};

}  // namespace sparsed::server
