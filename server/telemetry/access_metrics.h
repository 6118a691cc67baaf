// Refused calls, files that were read again, and how long certificates last.
#pragma once

#include <prometheus/metric_family.h>

#include <optional>
#include <vector>

#include "server/security/access.h"
#include "server/security/certificates.h"
#include "server/telemetry/audit_log.h"

namespace sparsed::server {

/// `certificates`: nullopt without TLS.
std::vector<prometheus::MetricFamily> AccessMetrics(
    const Access::Counts& access, const std::optional<Certificates::Facts>& certificates,
    const std::optional<AuditLog::Counts>& audit);

}  // namespace sparsed::server
