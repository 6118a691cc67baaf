// Tenants: what each may use, and what it uses now. Checked where the thing is made.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace sparsed::engine {

/// What is limited.
enum class Quota : uint8_t {
  kDiskBytes,          ///< of arrays that survive a restart
  kHostBytes,          ///< of host memory that it pays for
  kDeviceBytes,        ///< of the memory of each GPU that it pays for
  kMatrices,           ///< sparse ones
  kBuffers,            ///< buffers
  kRegions,            ///< of shared memory
  kConnections,        ///< to gRPC and to the local socket
  kStreams,            ///< compute streams, carriers, rings, watches
  kRequests,           ///< in flight: computations, and all calls but those streams
  kQueued,             ///< computations that wait for the device or are computed
  kPreparations,       ///< that wait or are under way
  kRequestsPerSecond,  ///< a rate: what is counted is what began within the last second
};
inline constexpr int kQuotas = 12;
/// As the access file has them: "disk_bytes", "host_bytes", ...
std::string_view Name(Quota quota);

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct QuotaLimit {
  int64_t soft = kNoLimit;  ///< past it the operator is warned
  int64_t hard = kNoLimit;  ///< past it is refused
};

/// What one tenant may use.
struct TenantLimits {
  double weight = 1;  ///< of its share of the devices' time
  std::array<QuotaLimit, kQuotas> limits;

  const QuotaLimit& of(Quota quota) const { return limits[static_cast<size_t>(quota)]; }
  QuotaLimit& of(Quota quota) { return limits[static_cast<size_t>(quota)]; }
};

/// Counts until its last copy is gone.
using TenantHold = std::shared_ptr<const void>;

/// One of them. Thread-safe, without locks.
class Tenant : public std::enable_shared_from_this<Tenant> {
 public:
  explicit Tenant(std::string_view name) : name_(name) {}
  Tenant(const Tenant&) = delete;
  Tenant& operator=(const Tenant&) = delete;

  const std::string& name() const { return name_; }

  /// Counts `amount` more. RESOURCE_EXHAUSTED, and nothing is counted, if that and what is used is
  /// more than the hard limit; the sentence names tenant, quota, use and limit, and there is a
  /// RetryDelay where waiting helps. What has the place of `instead_of` that goes soon needs only
  /// the difference.
  absl::Status Take(Quota quota, int64_t amount = 1, int64_t instead_of = 0);
  /// As Take, by who may try again and says how it ended: CountRefusal.
  absl::Status TryToTake(Quota quota, int64_t amount = 1, int64_t instead_of = 0);
  void CountRefusal(Quota quota) { ++count(quota).refused; }
  /// As Take, until the last copy of what it returns is gone.
  absl::StatusOr<TenantHold> Hold(Quota quota, int64_t amount = 1, int64_t instead_of = 0);
  /// As Hold of kRequests, for a status call (one that only tells what the server knows): it needs
  /// the room that a request needs, but neither used() nor the soft limit counts it.
  absl::StatusOr<TenantHold> HoldStatusCall();
  /// Counts what is there already, whatever the limit.
  TenantHold HoldAnyway(Quota quota, int64_t amount = 1);
  /// As Take, and counts nothing: for what is yet to come.
  absl::Status Check(Quota quota, int64_t amount = 1, int64_t instead_of = 0);
  void Give(Quota quota, int64_t amount = 1) { count(quota).used -= amount; }
  /// Of a quota that somebody else counts, who asks under a lock: as Take of so much that is used.
  absl::Status CheckUse(Quota quota, int64_t used, int64_t amount);

  using Clock = std::chrono::steady_clock;
  /// One request begins. RESOURCE_EXHAUSTED with the RetryDelay after which it may, if more would
  /// have begun within a second than kRequestsPerSecond allows.
  absl::Status TakeRequest(Clock::time_point now = Clock::now());
  /// Likewise of status calls, and of streams for requests to come: counted apart, so that a
  /// product of a client that first looks what it multiplies with is one request.
  absl::Status TakeStatusCall(Clock::time_point now = Clock::now());
  /// Likewise of streams that only carry a request's bytes, over further connections.
  absl::Status TakeCarrier(Clock::time_point now = Clock::now());
  /// That may begin for each request that may: of carriers as many as one may have.
  static constexpr int64_t kStatusCalls = 4, kCarriers = 16;

  /// Of kRequests without status calls.
  int64_t used(Quota quota) const;
  QuotaLimit limit(Quota quota) const;
  double weight() const { return weight_; }
  bool above_soft(Quota quota) const { return used(quota) > limit(quota).soft; }
  /// Since the start: refused for the quota, and times that its use went past the soft limit.
  int64_t refused(Quota quota) const { return count(quota).refused; }
  int64_t warned(Quota quota) const { return count(quota).warned; }
  void SetLimits(const TenantLimits& limits);

 private:
  struct Count {
    std::atomic<int64_t> used = 0, soft = kNoLimit, hard = kNoLimit, refused = 0, warned = 0;
  };
  Count& count(Quota quota) { return counts_[static_cast<size_t>(quota)]; }
  const Count& count(Quota quota) const { return counts_[static_cast<size_t>(quota)]; }
  /// What it is refused with.
  absl::Status Beyond(Quota quota, int64_t used, int64_t amount) const;
  absl::Status Refused(Quota quota, int64_t used, int64_t amount);
  /// As Take with the hard limit alone; `used`: what was before. `more`: what needs room.
  absl::Status CountBelowHard(Quota quota, int64_t amount, int64_t more, int64_t& used);
  /// What is counted apart from requests in `begun`, `each` for every one of them; `did`: what
  /// did so, "opened 16 carriers".
  absl::Status TakeApart(std::atomic<int64_t>& begun, int64_t each, std::string_view did,
                         Clock::time_point now);

  const std::string name_;
  std::array<Count, kQuotas> counts_;
  std::atomic<double> weight_ = 1;
  /// When what began so far would all have begun at the limit's rate, in the clock's nanoseconds.
  std::atomic<int64_t> begun_hard_ = 0, begun_soft_ = 0, begun_status_calls_ = 0,
                       begun_carriers_ = 0;
  std::atomic<int64_t> status_calls_ = 0;  ///< of those that count as kRequests
};

/// All of them. Thread-safe.
class Tenants {
 public:
  /// Of that name; made the first time, and there as long as this: tenants are few. Takes a lock.
  Tenant& Of(std::string_view name);
  /// Of those named, and of all others. What is used past a limit stays, and nothing is added.
  void SetLimits(std::map<std::string, TenantLimits, std::less<>> named, TenantLimits others);
  /// Who ever did something, or has limits of his own, by name.
  std::vector<std::shared_ptr<Tenant>> All() const;

 private:
  const TenantLimits& LimitsOf(std::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Tenant>, std::less<>> tenants_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, TenantLimits, std::less<>> named_ ABSL_GUARDED_BY(mutex_);
  TenantLimits others_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::engine
