#include "client/cli/top_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/report.h"

namespace sparsed::cli {
namespace {

struct Requests {
  int64_t total = 0, failed = 0;
};

/// Without status calls that succeeded.
std::map<std::string, Requests> ByOperation(const sparsed::Stats& stats) {
  std::map<std::string, Requests> by_operation;
  for (const RequestCount& count : stats.requests) {
    if (count.status_call && count.code == "OK") continue;
    Requests& of = by_operation[count.operation];
    of.total += count.count;
    if (IsFailure(count)) of.failed += count.count;
  }
  return by_operation;
}

int64_t QuotaOf(const TenantInfo& tenant, std::string_view name) {
  for (const QuotaInfo& quota : tenant.quotas) {
    if (quota.quota == name) return quota.used;
  }
  return 0;
}

/// Of all devices together.
std::map<std::string, double> TenantSeconds(const sparsed::Stats& stats) {
  std::map<std::string, double> seconds;
  for (const DeviceUse& device : stats.devices) {
    for (const auto& [tenant, of] : device.tenant_seconds) seconds[tenant] += of;
  }
  return seconds;
}

/// Counters that went back belong to a server that began anew.
double Rate(double now, double before, double seconds) {
  return seconds > 0 ? std::max(0.0, now - before) / seconds : 0;
}

Json OperationsOf(const sparsed::Stats& before, const sparsed::Stats& now, double seconds) {
  std::map<std::string, Requests> old = ByOperation(before);
  std::map<std::string, std::vector<RequestsInFlight>> in_flight;
  for (const RequestsInFlight& requests : now.in_flight) {
    if (requests.status_call) continue;
    in_flight[requests.operation].push_back(requests);
  }
  std::map<std::string, Requests> operations = ByOperation(now);
  for (const auto& [operation, requests] : in_flight) operations.try_emplace(operation);
  Json json = Json::array();
  for (const auto& [operation, requests] : operations) {
    Json of = {{"operation", operation},
               {"per_second", Rate(static_cast<double>(requests.total),
                                   static_cast<double>(old[operation].total), seconds)},
               {"failed_per_second", Rate(static_cast<double>(requests.failed),
                                          static_cast<double>(old[operation].failed), seconds)},
               {"total", requests.total},
               {"failed", requests.failed},
               {"in_flight", 0},
               {"oldest_seconds", 0.0},
               {"waits_for", ""}};
    for (const RequestsInFlight& some : in_flight[operation]) {
      of["in_flight"] = of["in_flight"].get<int64_t>() + some.count;
      if (some.oldest_seconds < of["oldest_seconds"].get<double>()) continue;
      of["oldest_seconds"] = some.oldest_seconds;
      of["waits_for"] = WaitsFor(some.activity);
    }
    json.push_back(std::move(of));
  }
  // The busiest first: what has no room is left out.
  const auto busy = [](const Json& of) {
    return std::pair(of["per_second"].get<double>(), of["total"].get<int64_t>());
  };
  std::stable_sort(json.begin(), json.end(),
                   [&](const Json& a, const Json& b) { return busy(a) > busy(b); });
  return json;
}

Json DevicesOf(const sparsed::Stats& before, const sparsed::Stats& now, double seconds) {
  Json json = Json::array();
  for (const DeviceUse& device : now.devices) {
    double old = 0;
    for (const DeviceUse& was : before.devices) {
      if (was.name == device.name) old = was.busy_seconds;
    }
    json.push_back({{"name", device.name},
                    {"busy", Rate(device.busy_seconds, old, seconds)},
                    {"waiting", device.waiting},
                    {"memory_bytes", device.memory_bytes},
                    {"memory_limit_bytes", device.memory_limit_bytes},
                    {"memory_peak_bytes", device.memory_peak_bytes},
                    {"memory_kept_bytes", device.memory_kept_bytes},
                    {"memory_reserved_bytes", device.memory_reserved_bytes}});
  }
  return json;
}

Json TenantsOf(const Look& before, const Look& now, double seconds) {
  const std::map<std::string, double> used = TenantSeconds(now.stats);
  std::map<std::string, double> old = TenantSeconds(before.stats);
  double total = 0;
  std::map<std::string, double> rates;
  for (const auto& [tenant, of] : used) {
    total += rates[tenant] = Rate(of, old[tenant], seconds);
  }
  Json json = Json::array();
  for (const TenantInfo& tenant : now.tenants) {
    json.push_back({{"name", tenant.name},
                    {"weight", tenant.weight},
                    {"device_share", total > 0 ? rates[tenant.name] / total : 0.0},
                    {"device_seconds", used.contains(tenant.name) ? used.at(tenant.name) : 0.0},
                    {"requests", QuotaOf(tenant, "requests")},
                    {"queued", QuotaOf(tenant, "queued")},
                    {"matrices", QuotaOf(tenant, "matrices")},
                    {"host_bytes", QuotaOf(tenant, "host_bytes")},
                    {"device_bytes", QuotaOf(tenant, "device_bytes")}});
  }
  std::stable_sort(json.begin(), json.end(), [](const Json& a, const Json& b) {
    return a["device_share"].get<double>() > b["device_share"].get<double>();
  });
  return json;
}

/// Of each table, by the array that it is of.
const std::map<std::string, std::vector<Listing::Column>>& Columns() {
  static const auto* const columns = new std::map<std::string, std::vector<Listing::Column>>{
      {"devices",
       {{"DEVICE", "name"},
        {"BUSY SLOTS", "busy"},
        {"WAITING", "waiting"},
        {"MEMORY IN USE", "memory_bytes"},
        {"OF", "memory_limit_bytes"},
        {"KEPT", "memory_kept_bytes"},
        {"SET ASIDE", "memory_reserved_bytes"}}},
      {"operations",
       {{"OPERATION", "operation"},
        {"PER SECOND", "per_second"},
        {"FAILED", "failed_per_second"},
        {"TOTAL", "total"},
        {"IN FLIGHT", "in_flight"},
        {"OLDEST", "oldest_seconds"},
        {"WAITS FOR", "waits_for"}}},
      {"tenants",
       {{"TENANT", "name"},
        {"WEIGHT", "weight"},
        {"DEVICE TIME", "device_share"},
        {"REQUESTS", "requests"},
        {"QUEUED", "queued"},
        {"MATRICES", "matrices"},
        {"HOST MEMORY", "host_bytes"}}}};
  return *columns;
}

std::vector<std::string> TitlesOf(const std::string& table) {
  std::vector<std::string> titles;
  for (const Listing::Column& column : Columns().at(table)) titles.push_back(column.title);
  return titles;
}

std::string Percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

constexpr int kHeadingLines = 2;

/// Of `room` each gets what it wants, or as much as the others that want more: at least two, a row
/// and how many more there are.
std::vector<int> Shares(const std::vector<int>& wanted, int room) {
  std::vector<int> shares;
  for (const int lines : wanted) shares.push_back(std::min(lines, 2));
  int left = room - std::accumulate(shares.begin(), shares.end(), 0);
  for (bool given = true; given && left > 0;) {
    given = false;
    for (size_t i = 0; i < wanted.size() && left > 0; ++i) {
      if (shares[i] == wanted[i]) continue;
      ++shares[i];
      --left;
      given = true;
    }
  }
  return shares;
}

/// The first `rows` lines below the header, the last of which may say how many more there are.
std::string Shortened(const std::string& table, int rows, int of) {
  if (rows >= of) return table;
  size_t end = table.find('\n');
  for (int row = 1; row < rows; ++row) end = table.find('\n', end + 1);
  return fmt::format("{}\nand {} more\n", table.substr(0, end), of - rows + 1);
}

/// Those that have rows, in at most so many lines; 0 or fewer: any number.
std::string TablesText(std::vector<Table> tables, int lines) {
  std::vector<std::string> texts;
  std::vector<int> rows;
  for (Table& table : tables) {
    if (table.empty()) continue;
    table.KeepToLines();
    texts.push_back(table.Text());
    rows.push_back(static_cast<int>(std::ranges::count(texts.back(), '\n')) - 1);
  }
  // Each has a header, and an empty line before it.
  const std::vector<int> shares =
      lines > 0 ? Shares(rows, lines - 2 * static_cast<int>(rows.size())) : rows;
  std::string text;
  for (size_t i = 0; i < texts.size(); ++i) {
    text += fmt::format("\n{}", Shortened(texts[i], shares[i], rows[i]));
  }
  return text;
}

}  // namespace

Json TopJson(const ServerInfo& server, const Look* before, const Look& now) {
  const Look none;
  const Look& old = before == nullptr ? none : *before;
  const double seconds = now.stats.uptime_seconds - old.stats.uptime_seconds;
  return {{"version", server.version},
          {"uptime_seconds", now.stats.uptime_seconds},
          {"seconds", std::max(0.0, seconds)},
          {"matrices", now.stats.matrices},
          {"patterns", now.stats.patterns},
          {"buffers", now.stats.dense_matrices},
          {"preparations_pending", now.stats.preparations_pending},
          {"requests_in_flight", now.stats.requests_in_flight},
          {"operations", OperationsOf(old.stats, now.stats, seconds)},
          {"devices", DevicesOf(old.stats, now.stats, seconds)},
          {"tenants", TenantsOf(old, now, seconds)},
          {"memory_bytes", UsesOf(now.stats)}};
}

std::vector<Listing::Column> TopColumns() {
  std::vector<Listing::Column> all;
  for (const char* const table : {"operations", "tenants", "devices"}) {
    const std::vector<Listing::Column>& columns = Columns().at(table);
    all.insert(all.end(), columns.begin(), columns.end());
  }
  return all;
}

void SortTop(std::string_view by, Json& page) {
  for (const auto& [table, columns] : Columns()) {
    const std::string key = SortKey(by, columns);
    if (key.empty()) continue;
    std::stable_sort(page[table].begin(), page[table].end(), [&](const Json& a, const Json& b) {
      return SortsBefore(a, b, key, by.starts_with('-'));
    });
  }
}

std::string TopText(const Json& page, int lines) {
  const auto uptime = std::chrono::duration<double>(page["uptime_seconds"].get<double>());
  // Of the operations below, as of the same moment and without status calls.
  int64_t in_flight = 0;
  for (const Json& of : page["operations"]) in_flight += of["in_flight"].get<int64_t>();
  const std::string heading = fmt::format(
      "sparsed {}, up {}; {} of {}, {}\n"
      "{} in flight, {}; rates of the last {:.1f} s\n",
      page["version"].get<std::string>(),
      Duration(std::chrono::duration_cast<std::chrono::nanoseconds>(uptime)),
      Counted(page["matrices"], "matrix", "matrices"), Counted(page["patterns"], "pattern"),
      Counted(page["buffers"], "buffer"), Counted(in_flight, "request"),
      Counted(page["preparations_pending"], "preparation"), page["seconds"].get<double>());

  Table devices(TitlesOf("devices"), {"KEPT", "SET ASIDE"});
  for (const Json& device : page["devices"]) {
    devices.Add({device["name"], fmt::format("{:.2f}", device["busy"].get<double>()),
                 Count(device["waiting"]), Bytes(device["memory_bytes"]),
                 Bytes(device["memory_limit_bytes"]), Bytes(device["memory_kept_bytes"]),
                 Bytes(device["memory_reserved_bytes"])});
  }

  Table operations(TitlesOf("operations"));
  for (const Json& of : page["operations"]) {
    const double oldest = of["oldest_seconds"];
    operations.Add({of["operation"], fmt::format("{:.1f}", of["per_second"].get<double>()),
                    fmt::format("{:.1f}", of["failed_per_second"].get<double>()),
                    Count(of["total"]), Count(of["in_flight"]),
                    oldest > 0 ? fmt::format("{:.1f} s", oldest) : "", of["waits_for"]});
  }

  Table tenants(TitlesOf("tenants"));
  for (const Json& tenant : page["tenants"]) {
    tenants.Add({tenant["name"], fmt::format("{}", tenant["weight"].get<double>()),
                 Percent(tenant["device_share"]), Count(tenant["requests"]),
                 Count(tenant["queued"]), Count(tenant["matrices"]), Bytes(tenant["host_bytes"])});
  }

  Table memory({"HOST MEMORY FOR", "BYTES"});
  for (const auto& [use, bytes] : page["memory_bytes"].items()) {
    if (bytes.get<int64_t>() > 0) memory.Add({use, Bytes(bytes)});
  }
  return heading + TablesText({devices, operations, tenants, memory}, lines - kHeadingLines);
}

}  // namespace sparsed::cli
