// The slowest requests of the last hour, for whoever asks why something is slow.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "server/telemetry/stage_record.h"

namespace sparsed::server {

/// A request that ended.
struct EndedRequest {
  std::chrono::system_clock::time_point ended;
  StageRecord record;
};

/// Whether the server would not do what was asked, and said so within a millisecond: that is not
/// slow. What ran out of time, was given up or went wrong is none such.
bool WasRefusedAtOnce(const StageRecord& record);

/// Which requests are asked for.
struct SlowFilter {
  const std::string* tenant = nullptr;  ///< null: of all, each with its share of the list
  std::optional<Op> op = {};            ///< none: of all that are not SlowRequests::Apart
  /// The matrix or buffer, as its tenant says it or with the tenant, "TENANT~NAME"; empty: any.
  std::string subject = {};
};

/// Each tenant's own, so that nobody's slow requests hide another's, and the slowest of each
/// operation unless it was quick. What a slower one took the place of is not remembered.
/// Thread-safe.
class SlowRequests {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMostOfTenant = 32;  ///< and as many that are listed by request alone
  /// Of an operation, that others' do not push out, however slow: its slowest, if that took so
  /// long.
  static constexpr size_t kOfOperation = 1;
  static constexpr std::chrono::nanoseconds kWorthAPlace = std::chrono::milliseconds(1);
  /// Of more, those whose last request is longest ago are forgotten.
  static constexpr size_t kMostTenants = 64;
  static constexpr size_t kMostListed = 100;
  static constexpr std::chrono::hours kKept{1};

  /// Whether a request of that kind belongs among them: one that waits for events, or takes long by
  /// what it is, does not.
  static bool Counts(Op op);
  /// Whether they are listed only by who asks for that operation: status calls and explain, so that
  /// who looks for what is slow does not push it out.
  static bool Apart(Op op);

  void Add(const StageRecord& record, Clock::time_point now = Clock::now());
  /// The slowest first, at most kMostListed.
  std::vector<EndedRequest> List(const SlowFilter& filter,
                                 Clock::time_point now = Clock::now()) const;
  /// How many there are of other tenants than `filter.tenant`, which is not null.
  size_t CountOfOthers(const SlowFilter& filter, Clock::time_point now = Clock::now()) const;

 private:
  struct Kept {
    Clock::time_point at;
    EndedRequest request;
  };
  struct OfTenant {
    std::vector<Kept> listed, apart;
    Clock::time_point last;
  };
  /// Those of one tenant that are asked for, in no order; until `of` changes.
  static std::vector<const EndedRequest*> Wanted(const OfTenant& of, const SlowFilter& filter,
                                                 Clock::time_point now);
  /// Makes room for `record` where there is none; false: it is faster than all that could go.
  static bool MakeRoom(const StageRecord& record, Clock::time_point now, std::vector<Kept>& kept);
  void ForgetOneLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, OfTenant, std::less<>> tenants_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sparsed::server
