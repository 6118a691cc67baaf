// What requests did lately, for the status page: all of it bounded, and counted as they end.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "server/telemetry/latencies.h"
#include "server/telemetry/slow_requests.h"
#include "server/telemetry/stage_record.h"
#include "server/telemetry/time_spent.h"

namespace sparsed::server {

/// What is counted apart: the four that compute, and the rest.
inline constexpr int kLiveOps = 5;
std::string_view LiveOpName(int live_op);

/// What ended within a few seconds.
struct LivePoint {
  std::array<uint32_t, kLiveOps> requests{};
  /// Of them, that failed for what the caller did, and for what the server did.
  uint32_t wrong = 0, failed = 0;
  double p50 = 0, p99 = 0;  ///< seconds, of those that compute; 0: none did
};

/// What one tenant did with a matrix in the last minutes; with one that is uploaded anew or
/// renamed, since then.
struct MatrixUse {
  struct Product {
    Op op = Op::kSpmm;
    bool transposed = false;  ///< SpMM with the transposed matrix
    int64_t k = 0;            ///< columns of the dense operand; 0: it had none
    bool joined = false;      ///< it ran as one with others, whose kernel's time is that of all
    std::string plan;         ///< "<pipeline> / <kernel>"
    TimeSpent time;
  };

  double per_second = 0;
  double p50 = 0, p99 = 0;  ///< seconds; 0: not used lately
  /// The last ones, however long ago: LiveRequests::kLast at most, the oldest first.
  std::vector<Product> products{};
  /// Of those of them that came by one transport.
  struct OfTransport {
    size_t products = 0;
    TimeSpent time;  ///< of those in the middle by their duration (MiddleOf)
  };
  /// The transport of most of them first, of as many that of the latest.
  std::vector<OfTransport> transports{};
  int64_t k = 0;  ///< columns of the dense operand of most of them; 0: none had one

  /// Of those that are SpMM with the matrix as it is, K columns and this plan, the median of their
  /// kernels' seconds; 0: there is none.
  double SpmmKernelSeconds(int64_t columns, std::string_view plan) const;
};

/// Each tenant's apart, so that nobody's requests push another's out. Of more tenants than there
/// are places, those whose last request is longest ago leave theirs. Thread-safe. Status calls that
/// succeed are not counted.
class LiveRequests {
 public:
  using Clock = StageRecord::Clock;

  static constexpr std::chrono::seconds kStep{2};  ///< of a LivePoint
  static constexpr int64_t kPoints = 150;
  /// Of each tenant; and that Recent lists at most.
  static constexpr size_t kRecent = 50;
  static constexpr size_t kTenants = 128;
  /// Products with a matrix whose times are known one by one.
  static constexpr size_t kLast = 8;
  /// Uses that are known, each a tenant's of a matrix. Of more, the owner of most matrices loses
  /// those of the one that was not used for longest.
  static constexpr size_t kUses = 16384;
  /// Tenants besides its owner whose use of a matrix is known. Of more, who did not use it for
  /// longest is forgotten.
  static constexpr size_t kSharers = 4;

  /// It ended `now`.
  void End(StageRecord record, Clock::time_point now = Clock::now());

  /// Oldest first; the last one is what ends now. Of all tenants if `tenant` is empty.
  std::vector<LivePoint> Points(std::string_view tenant,
                                Clock::time_point now = Clock::now()) const;
  /// What the tenant `by` did with the owner's matrix; if `by` is empty, rate and latencies of all
  /// who use it, without products. The rate halves in half a minute without requests; latencies
  /// weigh half after a minute.
  MatrixUse UseOf(std::string_view owner, std::string_view matrix, std::string_view by,
                  Clock::time_point now = Clock::now()) const;
  /// Newest first. Of all tenants if `tenant` is empty, each with its share of the list.
  std::vector<EndedRequest> Recent(std::string_view tenant = "") const;

 private:
  struct Slot {
    int64_t step = -1;  ///< since the start
    LivePoint point;
    Latencies<uint32_t> latencies;
  };
  using Slots = std::array<Slot, kPoints>;
  struct Use {
    std::string by;
    double per_second = 0;
    Latencies<float> latencies;
    std::vector<MatrixUse::Product> last;  ///< as MatrixUse::products
    Clock::time_point used;                ///< the last time, and when per_second was true
    Clock::time_point halved;              ///< when latencies lost weight
    void Pass(Clock::time_point now);      ///< what time does to them
    void Add(const StageRecord& record, Clock::time_point now);
  };
  struct OfTenant {
    Slots slots;
    std::deque<EndedRequest> recent;
    Clock::time_point last;
  };
  using OfMatrix = std::vector<Use>;  ///< of each tenant one
  /// Matrices of one owner.
  struct OfOwner {
    std::list<std::pair<std::string, OfMatrix>> by_use;  ///< the last used first
    std::unordered_map<std::string_view, decltype(by_use)::iterator> by_name;
  };

  int64_t StepOf(Clock::time_point now) const { return (now - started_) / kStep; }
  void Count(Slots& slots, const StageRecord& record, Clock::time_point now) const;
  void CountMatrix(const StageRecord& record, Clock::time_point now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  OfTenant& TenantLocked(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The tenant's of that matrix, which is there from now on.
  Use& UseLocked(OfMatrix& matrix, std::string_view owner, const std::string& by,
                 Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetLocked(std::string_view owner, std::string_view name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// The one not used for longest, of who has most.
  void ForgetMatrixLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock::time_point started_ = Clock::now();
  mutable Mutex mutex_;
  Slots all_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<OfTenant>, std::less<>> tenants_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, OfOwner, std::less<>> owners_ ABSL_GUARDED_BY(mutex_);
  size_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sparsed::server
