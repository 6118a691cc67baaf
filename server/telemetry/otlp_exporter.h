// Spans of requests, sent to a collector of OpenTelemetry's by OTLP over HTTP, as JSON.
#pragma once

#include <prometheus/metric_family.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "server/config/otlp_endpoint.h"
#include "server/telemetry/stage_record.h"

namespace sparsed::server {

/// A span for a request and one for each phase that it had, on a thread of its own at the lowest
/// priority. What finds the queue full, or no collector, is dropped and counted. Nobody waits: a
/// request takes no lock that the thread, which may not run for long, could hold. Thread-safe.
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
    Ended* next = nullptr;  ///< the one that came before it
  };
  using Batch = std::vector<std::unique_ptr<Ended>>;
  class Connection;

  void Run();
  /// Moves what came since the last time to `taken_`, the oldest first.
  void Take();
  /// False if it could not be sent.
  bool Send(const Batch& requests);
  std::string Encode(const Batch& requests) const;

  const Options options_;
  const std::unique_ptr<Connection> connection_;
  std::atomic<int64_t> exported_ = 0, dropped_ = 0;
  std::atomic<size_t> waiting_ = 0;           ///< in both of these
  std::atomic<Ended*> newest_ = nullptr;      ///< a stack that requests push to
  std::deque<std::unique_ptr<Ended>> taken_;  ///< the thread's
  std::atomic<bool> closing_ = false;
  Mutex mutex_;  ///< not taken by requests
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  ///< the thread is about to
  bool failing_ = false;                        ///< and the log has it; the thread's
  std::thread thread_;                          ///< last
};

prometheus::MetricFamily SpanMetric(const OtlpExporter::Counts& counts);

}  // namespace sparsed::server
