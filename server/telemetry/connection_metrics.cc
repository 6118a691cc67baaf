#include "server/telemetry/connection_metrics.h"

#include <string>

#include "server/telemetry/sample.h"

namespace sparsed::server {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily Gauge(const char* name, const char* help, int64_t value) {
  return {name, help, MetricType::Gauge, {Sample(static_cast<double>(value))}};
}

}  // namespace

std::vector<MetricFamily> LocalMetrics(int64_t connections, int64_t refused, int64_t regions,
                                       int64_t queues, int64_t attachments, int64_t rings) {
  MetricFamily turned_away =
      Gauge("sparsed_local_connections_refused_total",
            "Connections to the local socket that were turned away", refused);
  turned_away.type = MetricType::Counter;
  return {Gauge("sparsed_local_connections", "Processes at the local socket", connections),
          Gauge("sparsed_shared_regions", "Pieces of memory that processes share", regions),
          Gauge("sparsed_queues", "Callers' streams that requests run in the order of", queues),
          Gauge("sparsed_attachments", "Callers that run products themselves, by matrix once",
                attachments),
          Gauge("sparsed_rings", "Rings that requests come through, each with a thread", rings),
          std::move(turned_away)};
}

std::vector<MetricFamily> ConnectionMetrics(const ConnectionCounts& counts, int64_t max_connections,
                                            bool reachable) {
  MetricFamily refused = {"sparsed_connections_refused_total",
                          "Connections that were closed before anybody served them, by why",
                          MetricType::Counter,
                          {}};
  for (int i = 0; i < kRefusals; ++i) {
    const auto refusal = static_cast<Refusal>(i);
    refused.metric.push_back(
        Sample(counts.refused[static_cast<size_t>(i)], {{"reason", std::string(Name(refusal))}}));
  }
  MetricFamily ended = {"sparsed_connections_ended_total",
                        "Connections that were ended for what they sent, by why",
                        MetricType::Counter,
                        {}};
  for (int i = 1; i < kFaults; ++i) {
    const auto fault = static_cast<Fault>(i);
    ended.metric.push_back(
        Sample(counts.ended[static_cast<size_t>(i)], {{"reason", std::string(Name(fault))}}));
  }
  return {
      Gauge("sparsed_connections", "Open connections of clients", counts.open),
      Gauge("sparsed_connections_limit", "Connections that may be open", max_connections),
      Gauge("sparsed_unfinished_message_bytes",
            "Bytes of messages whose end has not come, over all connections",
            counts.unfinished_bytes),
      Gauge("sparsed_connections_held",
            "Connections that are not read from until the bytes of others are freed", counts.held),
      Gauge("sparsed_reachable",
            "1 if the server answered itself at all of its addresses the last time, else 0",
            reachable ? 1 : 0),
      std::move(refused),
      std::move(ended)};
}

}  // namespace sparsed::server
