// Requests that are not at their end: how many, what they hold, since when.
#pragma once

#include <prometheus/metric_family.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/telemetry/stage_record.h"

namespace sparsed::server {

/// What a request waits for: bytes of its client, a worker slot or a disk, or its client to take
/// the result.
enum class Activity : uint8_t { kReceiving, kWorking, kSending };
/// "receiving", "working", "sending".
std::string_view Name(Activity activity);

/// One of them.
struct OldRequest {
  StageRecord::Clock::time_point begun;
  std::string tenant, subject, parameters;
  int64_t k = 0;
};

struct InFlight {
  static constexpr size_t kOldest = 10;  ///< of each tenant

  int64_t count = 0;
  int64_t bytes = 0;  ///< that arrived, or that have yet to leave
  StageRecord::Clock::time_point oldest = StageRecord::Clock::time_point::max();  ///< its start

  void Add(int64_t more_bytes, StageRecord::Clock::time_point begun) {
    ++count;
    bytes += more_bytes;
    oldest = std::min(oldest, begun);
  }
  /// Likewise, and keeps what it is if it is among its tenant's oldest.
  void Add(int64_t more_bytes, const StageRecord& record) {
    Add(more_bytes, record.begun);
    std::vector<OldRequest>& of_tenant = requests[record.tenant];
    const auto younger = std::ranges::find_if(
        of_tenant, [&](const OldRequest& request) { return record.begun < request.begun; });
    if (younger == of_tenant.end() && of_tenant.size() == kOldest) return;
    of_tenant.insert(younger,
                     {record.begun, record.tenant, record.subject, record.parameters, record.k});
    if (of_tenant.size() > kOldest) of_tenant.pop_back();
  }
  /// By tenant, the oldest first, of those that say what they are.
  std::map<std::string, std::vector<OldRequest>, std::less<>> requests{};
};
using InFlightTable = std::map<std::pair<Op, Activity>, InFlight>;
/// As gauges, labelled by operation and activity; of what is in flight now alone.
std::vector<prometheus::MetricFamily> Families(const InFlightTable& table);

}  // namespace sparsed::server
