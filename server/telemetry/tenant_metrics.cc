#include "server/telemetry/tenant_metrics.h"

#include <map>
#include <string>
#include <utility>

#include "server/telemetry/sample.h"

namespace sparsed::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

/// Adds up what has the same labels: all that are "other".
class Family {
 public:
  Family(const char* name, const char* help, MetricType type) : family_{name, help, type, {}} {}
  void Add(std::vector<std::pair<std::string, std::string>> labels, int64_t value) {
    values_[std::move(labels)] += value;
  }
  MetricFamily Take() {
    for (const auto& [labels, value] : values_) {
      std::vector<ClientMetric::Label> named;
      for (const auto& [name, text] : labels) named.push_back({name, text});
      family_.metric.push_back(Sample(static_cast<double>(value), std::move(named)));
    }
    return std::move(family_);
  }

 private:
  MetricFamily family_;
  std::map<std::vector<std::pair<std::string, std::string>>, int64_t> values_;
};

}  // namespace

std::vector<MetricFamily> TenantMetrics(engine::Engine& engine, TenantLabels& labels) {
  Family used("sparsed_quota_used", "What a tenant has of what is limited", MetricType::Gauge);
  Family limits("sparsed_quota_limit",
                "What a tenant may have: past the soft limit the operator is warned, past the hard "
                "one is refused; none, and none of \"other\", if there is no limit",
                MetricType::Gauge);
  Family refused("sparsed_quota_refusals_total", "Refused for a tenant's quota",
                 MetricType::Counter);
  Family warned("sparsed_quota_warnings_total",
                "Times that what a tenant has went past its soft limit", MetricType::Counter);
  for (const auto& tenant : engine.tenants().All()) {
    const std::string label = labels.Of(tenant->name());
    const bool named = label == tenant->name();
    for (int i = 0; i < engine::kQuotas; ++i) {
      const auto quota = static_cast<engine::Quota>(i);
      const std::pair<std::string, std::string> of_tenant = {"tenant", label},
                                                of_quota = {"quota",
                                                            std::string(engine::Name(quota))};
      used.Add({of_quota, of_tenant}, engine.UseOf(*tenant, quota));
      if (tenant->refused(quota) > 0) refused.Add({of_quota, of_tenant}, tenant->refused(quota));
      if (tenant->warned(quota) > 0) warned.Add({of_quota, of_tenant}, tenant->warned(quota));
      const engine::QuotaLimit limit = tenant->limit(quota);
      if (named && limit.soft != engine::kNoLimit) {
        limits.Add({{"kind", "soft"}, of_quota, of_tenant}, limit.soft);
      }
      if (named && limit.hard != engine::kNoLimit) {
        limits.Add({{"kind", "hard"}, of_quota, of_tenant}, limit.hard);
      }
    }
  }
  std::vector<MetricFamily> families;
  for (Family* family : {&used, &limits, &refused, &warned}) families.push_back(family->Take());
  return families;
}

}  // namespace sparsed::server
