// Where records of requests go: metrics, log, audit log, the status page.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/log/log_limit.h"
#include "server/security/caller.h"
#include "server/telemetry/audit_log.h"
#include "server/telemetry/live_requests.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/otlp_exporter.h"
#include "server/telemetry/request_feed.h"
#include "server/telemetry/slow_requests.h"
#include "server/telemetry/stage_record.h"

namespace sparsed::server {

/// Thread-safe.
class Telemetry {
 public:
  /// Logs how many requests were not logged.
  ~Telemetry();

  Metrics& metrics() { return metrics_; }
  /// Where to say who changed what; null: nowhere. Before the first request.
  void SetAudit(std::unique_ptr<AuditLog> audit) { audit_ = std::move(audit); }
  const AuditLog* audit() const { return audit_.get(); }
  /// Requests that take so long or longer are logged with all that is known of them; 0: none.
  /// Before the first request.
  void SetSlow(std::chrono::nanoseconds slow) { slow_ns_ = static_cast<uint64_t>(slow.count()); }
  /// Where spans go; null: nowhere. Before the first request.
  void SetExporter(std::unique_ptr<OtlpExporter> exporter) { exporter_ = std::move(exporter); }
  OtlpExporter::Counts spans() const {
    return exporter_ == nullptr ? OtlpExporter::Counts() : exporter_->counts();
  }
  /// `op` was refused before it began: of a known caller that is a request that failed. No `op`: a
  /// call that is part of another. `caller` is null if nobody knows who it was. `id`: what its
  /// caller was told that it is known by.
  /// `subject`: what it was about; empty: it had not said so.
  void Refused(std::optional<Op> op, const Caller* caller, std::string from, const std::string& id,
               const absl::Status& why, std::string subject = "");
  /// Whether that owner has a matrix of that name, and the tenant may not use it.
  using IsHidden =
      std::function<bool(std::string_view tenant, std::string_view owner, std::string_view name)>;
  /// For log and audit log, which tell of operators' requests that are answered with NOT_FOUND
  /// what is true. Before the first request.
  void SetHidden(IsHidden is_hidden) { is_hidden_ = std::move(is_hidden); }

  /// The record of a request that begins now. Of a subject or a status message that is too long
  /// for a name or a sentence, records keep the beginning.
  StageRecord Begin(Op op, const Caller& caller, std::string subject);
  /// The request ended as `record.status` says, now or after `record.total_ns`; once for each
  /// Begin.
  void End(StageRecord record);

  /// Requests that began and have not ended.
  int64_t in_flight() const { return in_flight_; }
  const SlowRequests& slow() const { return slow_; }
  const LiveRequests& live() const { return live_; }
  RequestFeed& feed() { return feed_; }

 private:
  static constexpr int kCodes = 17;  ///< of google.rpc
  /// Tenants share limits with those of the same hash by this.
  static constexpr size_t kTenants = 64;
  /// Of each code and group of tenants, lines in the log: a burst, and a second in the long run.
  struct CodeLimit : LogLimit {
    CodeLimit() : LogLimit(/*per_second=*/5, /*burst=*/20) {}
  };

  void LogEnd(const StageRecord& record);
  /// Whether it is, and was logged.
  bool LogSlow(const StageRecord& record);
  void Audit(const StageRecord& record);
  /// What log and audit log say that became of it.
  absl::Status WhatHappened(const StageRecord& record) const;

  Metrics metrics_;
  std::unique_ptr<AuditLog> audit_;
  IsHidden is_hidden_;
  std::array<std::array<CodeLimit, kTenants>, kCodes> limits_;
  std::array<CodeLimit, kOps> change_limits_;  ///< of what changed something
  CodeLimit slow_limit_;
  /// Of who is over a quota, and of who is not known or may not: neither hides the other.
  CodeLimit over_quota_limit_, denied_limit_;
  uint64_t slow_ns_ = 0;
  SlowRequests slow_;
  std::unique_ptr<OtlpExporter> exporter_;
  std::atomic<int64_t> in_flight_ = 0;
  LiveRequests live_;
  RequestFeed feed_;
};

}  // namespace sparsed::server
