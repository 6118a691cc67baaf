#include "server/security/tenant_table.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>

#include "base/byte_size.h"
#include "server/security/yaml_reader.h"

namespace sparsed::server {
namespace {

using engine::kNoLimit;
using engine::Quota;
using engine::QuotaLimit;

constexpr const char* kOthers = "*";
constexpr double kLeastWeight = 0.001, kMostWeight = 1000;
/// Of bytes: 4 EiB.
constexpr int64_t kMost = int64_t{1} << 62;

bool IsBytes(Quota quota) {
  return quota == Quota::kDiskBytes || quota == Quota::kHostBytes || quota == Quota::kDeviceBytes;
}

int64_t ReadAmount(const YAML::Node& node, Quota quota) {
  const std::string text = TextOf(node, engine::Name(quota));
  if (text == "none") return kNoLimit;
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const std::string_view rest(stop, static_cast<size_t>(end - stop));
  const std::optional<int64_t> unit =
      IsBytes(quota) ? UnitBytes(rest)
                     : (rest.empty() ? std::optional<int64_t>(1) : std::optional<int64_t>());
  int64_t amount = 0;
  if (error != std::errc() || !unit.has_value() || number < 0 ||
      __builtin_mul_overflow(number, *unit, &amount) || amount > kMost) {
    Refuse(node, fmt::format("{} is '{}', expected {}, or none", engine::Name(quota), text,
                             IsBytes(quota) ? "a number of bytes such as 8GiB"
                                            : "a whole number of 0 or more"));
  }
  return amount;
}

QuotaLimit ReadLimit(const YAML::Node& node, Quota quota) {
  if (!node.IsMap()) return {.soft = kNoLimit, .hard = ReadAmount(node, quota)};
  CheckKeys(node, {"soft", "hard"});
  QuotaLimit limit;
  if (const YAML::Node soft = node["soft"]) limit.soft = ReadAmount(soft, quota);
  if (const YAML::Node hard = node["hard"]) limit.hard = ReadAmount(hard, quota);
  if (limit.soft != kNoLimit && limit.soft > limit.hard) {
    Refuse(node, fmt::format("{} has a soft limit of {} above its hard limit of {}",
                             engine::Name(quota), limit.soft, limit.hard));
  }
  return limit;
}

void ReadQuotas(const YAML::Node& node, engine::TenantLimits& limits) {
  if (!node.IsMap()) Refuse(node, "quotas is no map from names to limits");
  std::set<std::string> seen;
  for (const auto& pair : node) {
    const std::string name = TextOf(pair.first, "a quota's name");
    if (!seen.insert(name).second) Refuse(pair.first, fmt::format("quota '{}' again", name));
    std::optional<Quota> quota;
    std::string names;
    for (int i = 0; i < engine::kQuotas; ++i) {
      const auto known = static_cast<Quota>(i);
      if (name == engine::Name(known)) quota = known;
      names += (i == 0 ? "" : ", ") + std::string(engine::Name(known));
    }
    if (!quota.has_value()) {
      Refuse(pair.first, fmt::format("unknown quota '{}'; there are {}", name, names));
    }
    limits.of(*quota) = ReadLimit(pair.second, *quota);
  }
}

double ReadWeight(const YAML::Node& node) {
  const std::string text = TextOf(node, "weight");
  double weight = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, weight);
  if (error != std::errc() || stop != end || !(weight >= kLeastWeight && weight <= kMostWeight)) {
    Refuse(node, fmt::format("weight is '{}', expected a number from {} to {}", text, kLeastWeight,
                             kMostWeight));
  }
  return weight;
}

void ReadTenant(const YAML::Node& node, std::string_view name, engine::TenantLimits& limits) {
  if (node.IsNull()) return;
  if (!node.IsMap()) Refuse(node, fmt::format("tenant '{}' is no map of weight and quotas", name));
  CheckKeys(node, {"weight", "quotas"});
  if (const YAML::Node weight = node["weight"]) limits.weight = ReadWeight(weight);
  const YAML::Node quotas = node["quotas"];
  if (quotas && !quotas.IsNull()) ReadQuotas(quotas, limits);
}

}  // namespace

TenantTable ReadTenants(const YAML::Node& node) {
  if (!node.IsMap()) Refuse(node, "tenants is no map from names to what they may use");
  TenantTable table;
  std::set<std::string> seen;
  for (const auto& pair : node) {
    const std::string name = TextOf(pair.first, "a tenant's name");
    if (!seen.insert(name).second) Refuse(pair.first, fmt::format("tenant '{}' again", name));
    if (name != kOthers) CheckTenant(pair.first, name);
    if (name == kOthers) ReadTenant(pair.second, name, table.others);
  }
  for (const auto& pair : node) {
    const std::string& name = pair.first.Scalar();
    if (name == kOthers) continue;
    engine::TenantLimits& limits = table.named[name] = table.others;
    ReadTenant(pair.second, name, limits);
  }
  return table;
}

}  // namespace sparsed::server
