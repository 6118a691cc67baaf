#include "server/telemetry/in_flight.h"

#include <array>
#include <string>

namespace sparsed::server {
namespace {

using prometheus::MetricFamily;

void Add(MetricFamily& family, const std::pair<Op, Activity>& of, double value) {
  prometheus::ClientMetric metric;
  metric.label = {{"op", std::string(Name(of.first))}, {"activity", std::string(Name(of.second))}};
  metric.gauge.value = value;
  family.metric.push_back(std::move(metric));
}

}  // namespace

std::string_view Name(Activity activity) {
  constexpr std::array<std::string_view, 3> kNames = {"receiving", "working", "sending"};
  return kNames[static_cast<size_t>(activity)];
}

std::vector<MetricFamily> Families(const InFlightTable& table) {
  using prometheus::MetricType;
  MetricFamily count = {"sparsed_in_flight_requests",
                        "Streamed requests that are not at their end, by what they wait for",
                        MetricType::Gauge,
                        {}};
  MetricFamily bytes = {"sparsed_in_flight_bytes",
                        "Bytes of them that arrived, or that have yet to leave",
                        MetricType::Gauge,
                        {}};
  MetricFamily oldest = {"sparsed_in_flight_oldest_seconds",
                         "Time since the oldest of them began",
                         MetricType::Gauge,
                         {}};
  const auto now = StageRecord::Clock::now();
  for (const auto& [what, in_flight] : table) {
    Add(count, what, static_cast<double>(in_flight.count));
    Add(bytes, what, static_cast<double>(in_flight.bytes));
    Add(oldest, what, std::chrono::duration<double>(now - in_flight.oldest).count());
  }
  return {std::move(count), std::move(bytes), std::move(oldest)};
}

}  // namespace sparsed::server
