// share, quota, tenants.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "client/cli/commands.h"

namespace sparsed::cli {
namespace {

/// As the wire has "all".
constexpr const char* kEverybody = "*";

std::string TextOf(const QuotaInfo& quota, int64_t amount) {
  return quota.quota.ends_with("_bytes") ? Bytes(amount) : Count(amount);
}

std::string TextOf(const QuotaInfo& quota, const std::optional<int64_t>& limit) {
  return limit.has_value() ? TextOf(quota, *limit) : "none";
}

Json ToJson(const TenantInfo& tenant) {
  Json json = {{"name", tenant.name}, {"weight", tenant.weight}, {"quotas", Json::object()}};
  for (const QuotaInfo& quota : tenant.quotas) {
    Json& of = json["quotas"][quota.quota];
    of = {{"used", quota.used}, {"refused", quota.refused}, {"warned", quota.warned}};
    if (quota.soft_limit.has_value()) of["soft_limit"] = *quota.soft_limit;
    if (quota.hard_limit.has_value()) of["hard_limit"] = *quota.hard_limit;
  }
  return json;
}

}  // namespace

absl::StatusOr<Report> Share(const Client& client, const ShareArguments& arguments) {
  const Matrix matrix = client.MatrixNamed(arguments.name);
  const std::string with = arguments.with == "all" ? kEverybody : arguments.with;
  const absl::StatusOr<std::vector<MatrixShare>> shares =
      arguments.revoke ? matrix.Unshare(with) : matrix.Share({with, arguments.write});
  if (!shares.ok()) return shares.status();
  Report report{{{"name", arguments.name}, {"shares", Json::array()}}, ""};
  Table table({"WITH", "MAY"});
  for (const MatrixShare& share : *shares) {
    report.json["shares"].push_back({{"with", share.with}, {"write", share.write}});
    table.Add({share.with == kEverybody ? "all" : share.with, share.write ? "write" : "read"});
  }
  report.text =
      table.empty() ? fmt::format("{} is shared with nobody\n", arguments.name) : table.Text();
  return report;
}

absl::StatusOr<Report> Quota(const Client& client) {
  const absl::StatusOr<std::vector<TenantInfo>> tenants = client.ListTenants();
  if (!tenants.ok()) return tenants.status();
  Report report{Json::object(), ""};
  for (const TenantInfo& tenant : *tenants) {
    report.json = ToJson(tenant);
    report.text = fmt::format("tenant {}, weight {}\n", tenant.name, tenant.weight);
    Table table({"QUOTA", "USED", "SOFT LIMIT", "HARD LIMIT", "REFUSED"});
    for (const QuotaInfo& quota : tenant.quotas) {
      table.Add({quota.quota, TextOf(quota, quota.used), TextOf(quota, quota.soft_limit),
                 TextOf(quota, quota.hard_limit), Count(quota.refused)});
    }
    report.text += table.Text();
  }
  return report;
}

std::vector<Listing::Column> TenantColumns() {
  return {{"TENANT", "tenant"},  {"WEIGHT", "weight"},         {"QUOTA", "quota"},
          {"USED", "used"},      {"SOFT LIMIT", "soft_limit"}, {"HARD LIMIT", "hard_limit"},
          {"REFUSED", "refused"}};
}

absl::StatusOr<Report> Tenants(const Client& client) {
  const absl::StatusOr<std::vector<TenantInfo>> tenants = client.ListTenants(/*all=*/true);
  if (!tenants.ok()) return tenants.status();
  Listing listing("tenants", "no tenant uses anything", TenantColumns());
  listing.Whole("of");
  for (const TenantInfo& tenant : *tenants) {
    const Json of = ToJson(tenant);
    bool shown = false;
    for (const QuotaInfo& quota : tenant.quotas) {
      // What there is nothing to say of is left out.
      const bool limited = quota.soft_limit.has_value() || quota.hard_limit.has_value();
      if (quota.used == 0 && quota.refused == 0 && !limited) continue;
      Json line = of["quotas"][quota.quota];
      line.update(
          {{"tenant", tenant.name}, {"weight", tenant.weight}, {"quota", quota.quota}, {"of", of}});
      listing.Add(std::move(line), {tenant.name, fmt::format("{}", tenant.weight), quota.quota,
                                    TextOf(quota, quota.used), TextOf(quota, quota.soft_limit),
                                    TextOf(quota, quota.hard_limit), Count(quota.refused)});
      shown = true;
    }
    if (!shown) {
      listing.Add({{"tenant", tenant.name}, {"weight", tenant.weight}, {"of", of}}, {});
    }
  }
  return Report::Of(std::move(listing));
}

}  // namespace sparsed::cli
