#include "server/telemetry/access_metrics.h"

#include <string>
#include <utility>

#include "server/telemetry/sample.h"

namespace sparsed::server {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

}  // namespace

std::vector<MetricFamily> AccessMetrics(const Access::Counts& access,
                                        const std::optional<Certificates::Facts>& certificates,
                                        const std::optional<AuditLog::Counts>& audit) {
  MetricFamily denied = {"sparsed_calls_denied_total",
                         "Calls, requests and connections that were refused for who calls, by why",
                         MetricType::Counter,
                         {}};
  for (int i = 0; i < kDenials; ++i) {
    const auto denial = static_cast<Denial>(i);
    denied.metric.push_back(
        Sample(access.denied[static_cast<size_t>(i)], {{"reason", std::string(Name(denial))}}));
  }
  MetricFamily reloads = {
      "sparsed_reloads_total",
      "Times that changed files were read again, by what they are and whether "
      "they were of use",
      MetricType::Counter,
      {Sample(access.reloads, {{"file", "access"}, {"result", "ok"}}),
       Sample(access.failed_reloads, {{"file", "access"}, {"result", "failed"}})}};
  MetricFamily expiry = {"sparsed_certificate_expiry_timestamp_seconds",
                         "When the certificates in use expire, in Unix time",
                         MetricType::Gauge,
                         {}};
  MetricFamily entries = {"sparsed_audit_entries_total",
                          "Entries of the audit log, by what became of them",
                          MetricType::Counter,
                          {}};
  if (audit.has_value()) {
    entries.metric = {Sample(audit->written, {{"result", "written"}}),
                      Sample(audit->lost, {{"result", "lost"}})};
  }
  if (!certificates.has_value()) {
    return {std::move(denied), std::move(reloads), std::move(expiry), std::move(entries)};
  }
  reloads.metric.push_back(
      Sample(certificates->reloads, {{"file", "certificate"}, {"result", "ok"}}));
  reloads.metric.push_back(
      Sample(certificates->failed_reloads, {{"file", "certificate"}, {"result", "failed"}}));
  expiry.metric.push_back(Sample(certificates->expires, {{"certificate", "server"}}));
  if (certificates->client_ca_expires > 0) {
    expiry.metric.push_back(
        Sample(certificates->client_ca_expires, {{"certificate", "client_ca"}}));
  }
  return {std::move(denied), std::move(reloads), std::move(expiry), std::move(entries)};
}

}  // namespace sparsed::server
