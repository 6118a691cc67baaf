// Spans of requests, sent to a collector of OpenTelemetry's by OTLP over HTTP, as JSON.
#pragma once

#include <prometheus/metric_family.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "server/config/otlp_endpoint.h"
#include "server/telemetry/stage_record.h"

namespace sparsed::server {

/// A span for a request and one for each phase that it had, on a thread of its own at the lowest
/// priority. What finds the queue full, or no collector, is dropped and counted; nobody waits.
/// Thread-safe.
class OtlpExporter {
 public:
  struct Options {
    OtlpEndpoint endpoint;
    std::string instance;        ///< of this run of the server
    size_t most_waiting = 2048;  ///< requests
    /// What waits is sent together after so long.
    std::chrono::milliseconds interval{500};
    /// After a failure nothing is sent for so long.
    std::chrono::milliseconds pause{2000};
    /// For the collector to accept a connection, and for each step of an exchange.
    std::chrono::milliseconds patience{2000};
  };
  /// Of spans.
  struct Counts {
    int64_t exported = 0, dropped = 0;
  };

  explicit OtlpExporter(Options options);
  /// Sends what waits if the collector was there the last time, for as long as its patience.
  ~OtlpExporter();
  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

  /// A request that ended just now. One whose caller does not record its trace is left out.
  void Add(const StageRecord& record);
  Counts counts() const { return {exported_, dropped_}; }

 private:
  struct Ended {
    std::chrono::system_clock::time_point at;
    StageRecord record;
  };
  class Connection;

  void Run();
  /// False if it could not be sent.
  bool Send(const std::vector<Ended>& requests);
  std::string Encode(const std::vector<Ended>& requests) const;

  const Options options_;
  const std::unique_ptr<Connection> connection_;
  std::atomic<int64_t> exported_ = 0, dropped_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Ended> waiting_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  ///< the thread is about to
  bool failing_ = false;                        ///< and the log has it; the thread's
  std::thread thread_;                          ///< last
};

prometheus::MetricFamily SpanMetric(const OtlpExporter::Counts& counts);

}  // namespace sparsed::server
