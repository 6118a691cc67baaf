// The server, its devices, what it was told to do, and who asks for what.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "engine/execution/backend.h"
#include "server/config/command_line.h"
#include "server/page/sources.h"
#include "server/page/table.h"
#include "server/rpc/sentence.h"
#include "server/telemetry/fair_share.h"

namespace sparsed::server {
namespace {

using nlohmann::json;

/// In flight, at most.
constexpr size_t kMostInFlight = 50;

/// What is in use, and what may be; its uses sum up to `used`.
template <typename Budget>
json MemoryOf(const Budget& budget) {
  json uses = json::object();
  int64_t used = 0;
  for (int use = 0; use < engine::kMemoryUses; ++use) {
    const auto memory_use = static_cast<engine::MemoryUse>(use);
    const int64_t bytes = budget.used(memory_use);
    uses[std::string(engine::Name(memory_use))] = bytes;
    used += bytes;
  }
  return {{"used", used},
          {"limit", budget.limit()},
          {"peak", std::max(budget.peak(), used)},
          {"uses", std::move(uses)}};
}

json ConstantsOf(const engine::DeviceFacts& device) {
  json constants = json::object();
  for (const engine::ConstantField& field : engine::ConstantFields()) {
    const double value = device.constants.*field.value;
    if (value > 0) constants[std::string(field.name)] = value;
  }
  return constants;
}

json DevicesOf(engine::Engine& engine, const Config& config, bool all) {
  json devices = json::array();
  for (const engine::DeviceFacts& facts : engine.devices()) {
    json device = {{"name", facts.name},
                   {"found", facts.found},
                   {"description", facts.description},
                   {"threads", facts.threads},
                   {"unavailable", facts.unavailable}};
    const std::optional<DeviceId> id = ParseDeviceId(facts.name);
    const auto gpu = std::ranges::find_if(
        engine.gpus(), [&](const auto& opened) { return opened->name() == facts.name; });
    const bool cpu = id.has_value() && id->kind == DeviceKind::kCpu;
    if (all && id.has_value() && (cpu || gpu != engine.gpus().end())) {
      device["queue_depth"] = engine.executor().queue_depth(*id);
      device["busy_seconds"] = engine.executor().busy_seconds(*id);
      device["bytes_per_second"] =
          cpu ? engine.executor().backend(*id).bytes_per_second() : (*gpu)->bytes_per_second();
      device["constants"] = ConstantsOf(facts);
      device["calibrated"] =
          facts.calibration ? static_cast<double>(facts.calibration->measured_unix_ns) * 1e-9 : 0;
      device["memory"] = cpu ? MemoryOf(engine.budget()) : MemoryOf((*gpu)->budget());
      if (cpu) {
        device["memory"]["kept"] = engine.budget().kept();
        device["memory"]["reserved"] = config.wire_memory_bytes;
      }
      device["evictions"] =
          cpu ? engine.budget().evictions()->evictions() : (*gpu)->residency().evictions();
    }
    devices.push_back(std::move(device));
  }
  return devices;
}

json LiveOf(const LiveRequests& live, std::string_view tenant) {
  json ops = json::array(), points = json::array();
  for (int op = 0; op < kLiveOps; ++op) ops.push_back(LiveOpName(op));
  for (const LivePoint& point : live.Points(tenant)) {
    json row = json::array();
    for (const uint32_t requests : point.requests) row.push_back(requests);
    row.push_back(point.wrong);
    row.push_back(point.failed);
    row.push_back(point.p50);
    row.push_back(point.p99);
    points.push_back(std::move(row));
  }
  return {{"step_seconds", LiveRequests::kStep.count()},
          {"operations", std::move(ops)},
          {"points", std::move(points)}};
}

double UnixSeconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

/// Folders of the server are for operators.
json RequestJson(const EndedRequest& request, const Viewer& viewer) {
  const StageRecord& record = request.record;
  json phases = json::object();
  for (int phase = 0; phase < kPhases; ++phase) {
    const uint64_t ns = record.phase_ns[static_cast<size_t>(phase)];
    if (ns > 0) {
      phases[std::string(Name(static_cast<Phase>(phase)))] = static_cast<double>(ns) * 1e-9;
    }
  }
  // Parts of the queue phase.
  const json queue = {{"trials", 1e-9 * static_cast<double>(record.queue_trials_ns)},
                      {"others", 1e-9 * static_cast<double>(record.queue_others_ns)}};
  return {{"ended", UnixSeconds(request.ended)},
          {"queue", queue},
          {"op", Name(record.op)},
          {"tenant", record.tenant},
          {"matrix", record.subject},
          {"parameters", record.parameters},
          {"k", record.k},
          {"plan", record.plan},
          {"bytes_in", BytesIn(record)},
          {"bytes_out", BytesOut(record)},
          {"transport", TransportOf(record)},
          {"code", absl::StatusCodeToString(record.status.code())},
          {"message", viewer.all ? std::string(record.status.message())
                                 : ForClients(std::string(record.status.message()))},
          {"seconds", static_cast<double>(record.total_ns) * 1e-9},
          {"phases", std::move(phases)}};
}

/// Without those that only looked.
json RequestsJson(const std::vector<EndedRequest>& requests, const Viewer& viewer) {
  json list = json::array();
  for (const EndedRequest& request : requests) {
    const StageRecord& record = request.record;
    if (!IsStatusCall(record.op) || !record.status.ok())
      list.push_back(RequestJson(request, viewer));
  }
  return list;
}

/// The oldest first, each tenant with its share of the list.
json InFlightJson(const InFlightTable& table, const Viewer& viewer) {
  struct Listed {
    std::pair<Op, Activity> what;
    OldRequest request;
  };
  const auto older = [](const Listed& a, const Listed& b) {
    return a.request.begun < b.request.begun;
  };
  std::map<std::string_view, std::vector<Listed>> of_each;
  for (const auto& [what, in_flight] : table) {
    for (const auto& [tenant, requests] : in_flight.requests) {
      if (!MaySee(viewer, tenant)) continue;
      for (const OldRequest& request : requests) of_each[tenant].push_back({what, request});
    }
  }
  std::vector<std::vector<Listed>> lists;
  for (auto& [tenant, list] : of_each) {
    std::ranges::sort(list, older);
    lists.push_back(std::move(list));
  }
  const auto now = StageRecord::Clock::now();
  json answer = json::array();
  for (const auto& [what, request] : FairShare(std::move(lists), kMostInFlight, older)) {
    const std::chrono::duration<double> since = now - request.begun;
    answer.push_back({{"op", Name(what.first)},
                      {"activity", Name(what.second)},
                      {"tenant", request.tenant},
                      {"matrix", request.subject},
                      {"parameters", request.parameters},
                      {"k", request.k},
                      {"seconds", since.count()}});
  }
  return answer;
}

struct TenantRow {
  std::string name;
  double weight = 1, seconds = -1;  ///< of devices, since the start; below 0: not known apart
  int64_t host_bytes = 0, device_bytes = 0, matrices = 0, buffers = 0, requests = 0, refused = 0;
  int64_t host_limit = engine::kNoLimit;
};

/// Device seconds of those that have them apart, and of the rest together.
std::pair<std::map<std::string, double>, double> DeviceSeconds(const engine::Engine& engine,
                                                               const engine::Executor& executor) {
  std::vector<DeviceId> devices = {DeviceId{}};
  for (const auto& gpu : engine.gpus()) devices.push_back(gpu->id());
  std::map<std::string, double> by_tenant;
  double others = 0;
  for (const DeviceId device : devices) {
    const engine::TenantSeconds seconds = executor.tenant_seconds(device);
    for (const auto& [name, use] : seconds.named()) by_tenant[name] += use.seconds;
    others += seconds.others();
  }
  return {std::move(by_tenant), others};
}

TenantRow RowOf(const engine::Engine& engine, const engine::Tenant& tenant) {
  using engine::Quota;
  TenantRow row;
  row.name = tenant.name();
  row.weight = tenant.weight();
  row.host_bytes = engine.UseOf(tenant, Quota::kHostBytes);
  row.host_limit = tenant.limit(Quota::kHostBytes).hard;
  row.device_bytes = engine.UseOf(tenant, Quota::kDeviceBytes);
  row.matrices = engine.UseOf(tenant, Quota::kMatrices);
  row.buffers = engine.UseOf(tenant, Quota::kBuffers);
  row.requests = engine.UseOf(tenant, Quota::kRequests);
  for (int i = 0; i < engine::kQuotas; ++i) row.refused += tenant.refused(static_cast<Quota>(i));
  return row;
}

SortKey Number(auto number) { return {static_cast<double>(number)}; }

const PageTable<TenantRow>& Tenants() {
  using Row = TenantRow;
  static const PageTable<Row> table = {
      {{"name", [](const Row& row) { return SortKey{.text = row.name}; }},
       {"seconds",
        [](const Row& row) { return SortKey{.number = row.seconds, .known = row.seconds >= 0}; }},
       {"weight", [](const Row& row) { return Number(row.weight); }},
       {"host_bytes", [](const Row& row) { return Number(row.host_bytes); }},
       {"matrices", [](const Row& row) { return Number(row.matrices); }},
       {"buffers", [](const Row& row) { return Number(row.buffers); }},
       {"refused", [](const Row& row) { return Number(row.refused); }}},
      [](const Row& row) { return row.name; }};
  return table;
}

const PageTable<BufferRow>& Buffers() {
  using Row = BufferRow;
  static const PageTable<Row> table = {
      {{"name", [](const Row& row) { return SortKey{.text = row.name}; }},
       {"tenant", [](const Row& row) { return SortKey{.text = row.tenant}; }},
       {"bytes", [](const Row& row) { return Number(row.bytes); }},
       {"idle", [](const Row& row) { return Number(row.idle_seconds); }},
       {"version", [](const Row& row) { return Number(row.version); }}},
      [](const Row& row) { return row.name + '\n' + row.tenant; }};
  return table;
}

json BufferJson(const BufferRow& row) {
  return {{"tenant", row.tenant},
          {"name", row.name},
          {"owner", row.owner},
          {"rows", row.shape.rows},
          {"cols", row.shape.cols},
          {"type", Name(row.shape.type)},
          {"version", row.version},
          {"durable", row.durable},
          {"resident", row.resident},
          {"bytes", row.bytes},
          {"idle_seconds", row.idle_seconds},
          {"time_to_live_seconds", row.time_to_live_seconds},
          {"parts", row.parts}};
}

std::vector<BufferRow> MakeBufferTable(engine::DenseCatalog& dense) {
  std::vector<BufferRow> table;
  const auto now = dense.now();
  for (const auto& [tenant, totals] : dense.totals()) {
    for (const engine::HeldDenseLease& held : dense.List(tenant, "")) {
      const std::chrono::duration<double> idle = now - held->used->load();
      table.push_back(
          {.tenant = held->tenant,
           .name = held->name,
           .owner = held->owner,
           .shape = held->shape,
           .version = held->version,
           .durable = held->durable,
           .resident = held->elements->resident() ||
                       std::ranges::any_of(held->blocks,
                                           [](const engine::DenseBlock& block) {
                                             return block.elements->resident();
                                           }),
           .bytes = held->shape.elements() * static_cast<int64_t>(SizeOf(held->shape.type)),
           .idle_seconds = std::max(0.0, idle.count()),
           .time_to_live_seconds = std::chrono::duration<double>(held->time_to_live).count(),
           .parts = static_cast<int>(held->blocks.size())});
    }
  }
  return table;
}

}  // namespace

PageTables::PageTables(PageSources of)
    : sources(std::move(of)),
      matrices([this] {
        return MakeMatrixTable(sources.engine, sources.telemetry.live(), sources.shard_of);
      }),
      buffers([this] { return MakeBufferTable(sources.engine.dense()); }) {}

Answer StatusAnswer(PageTables& tables, const HttpRequest& request) {
  const absl::StatusOr<Query> query = Query::Parse(request.query, {});
  if (!query.ok()) return query.status();
  const PageSources& sources = tables.sources;
  engine::Engine& engine = sources.engine;
  const Viewer& viewer = request.viewer;
  const std::chrono::duration<double> uptime =
      std::chrono::steady_clock::now() - sources.started_steady;
  const std::string not_ready = sources.not_ready();
  json answer = {{"version", SPARSED_VERSION},
                 {"uptime_seconds", uptime.count()},
                 {"started", UnixSeconds(sources.started)},
                 {"ready", not_ready.empty()},
                 {"durable", !sources.config.in_memory()},
                 {"tenant", viewer.tenant},
                 {"all", viewer.all},
                 {"devices", DevicesOf(engine, sources.config, viewer.all)},
                 {"live", LiveOf(sources.telemetry.live(), viewer.all ? "" : viewer.tenant)}};
  if (viewer.all) {
    answer["not_ready"] = not_ready;
    answer["addresses"] = sources.addresses;
    answer["data_dir"] = sources.config.data_dir;
    if (sources.cluster) answer["cluster"] = sources.cluster();
    answer["totals"] = {{"matrices", tables.matrices.Get()->size()},
                        {"patterns", engine.catalog().patterns()},
                        {"buffers", engine.dense().size()},
                        {"preparations", engine.preparation().pending()},
                        {"requests_in_flight", engine.executor().in_flight()}};
  } else {
    const TenantRow row = RowOf(engine, engine.tenants().Of(viewer.tenant));
    answer["totals"] = {{"matrices", row.matrices},
                        {"buffers", row.buffers},
                        {"host_bytes", row.host_bytes},
                        {"requests_in_flight", row.requests}};
  }
  return answer;
}

Answer RequestsAnswer(PageTables& tables, const HttpRequest& request) {
  const absl::StatusOr<Query> query = Query::Parse(request.query, {});
  if (!query.ok()) return query.status();
  const Telemetry& telemetry = tables.sources.telemetry;
  const std::string tenant = request.viewer.all ? "" : request.viewer.tenant;
  // As `sparsectl slow` without --refused.
  std::vector<EndedRequest> slowest =
      telemetry.slow().List({.tenant = tenant.empty() ? nullptr : &tenant});
  std::erase_if(slowest, [](const EndedRequest& one) { return WasRefusedAtOnce(one.record); });
  return json{{"in_flight", InFlightJson(tables.sources.in_flight(), request.viewer)},
              {"slowest", RequestsJson(slowest, request.viewer)},
              {"slowest_of_seconds", std::chrono::seconds(SlowRequests::kKept).count()},
              {"recent", RequestsJson(telemetry.live().Recent(tenant), request.viewer)}};
}

Answer TenantsAnswer(PageTables& tables, const HttpRequest& request) {
  const absl::StatusOr<TableQuery> asked = Tenants().Parse(request.query);
  if (!asked.ok()) return asked.status();
  engine::Engine& engine = tables.sources.engine;
  const auto [seconds, others] = DeviceSeconds(engine, engine.executor());
  std::vector<TenantRow> all;
  double weights = 0, all_seconds = others;
  for (const auto& tenant : engine.tenants().All()) {
    TenantRow row = RowOf(engine, *tenant);
    const auto found = seconds.find(row.name);
    if (found != seconds.end()) {
      row.seconds = found->second;
      weights += row.weight;
      all_seconds += row.seconds;
    }
    all.push_back(std::move(row));
  }
  json answer = Tenants().Answer(
      asked->page, all, [&](const TenantRow& row) { return MaySee(request.viewer, row.name); },
      [&](const TenantRow& row) {
        json one = {{"name", row.name},
                    {"weight", row.weight},
                    {"host_bytes", row.host_bytes},
                    {"device_bytes", row.device_bytes},
                    {"matrices", row.matrices},
                    {"buffers", row.buffers},
                    {"requests", row.requests},
                    {"refused", row.refused}};
        if (row.host_limit != engine::kNoLimit) one["host_limit"] = row.host_limit;
        if (row.seconds < 0) return one;
        one["seconds"] = row.seconds;
        // Of the rest no tenant may conclude how many others there are, or what they use.
        if (request.viewer.all && all_seconds > 0) one["used_share"] = row.seconds / all_seconds;
        if (request.viewer.all && weights > 0) one["entitled_share"] = row.weight / weights;
        return one;
      });
  if (request.viewer.all) answer["other_seconds"] = others;
  return answer;
}

Answer BuffersAnswer(PageTables& tables, const HttpRequest& request) {
  const absl::StatusOr<TableQuery> asked = Buffers().Parse(request.query);
  if (!asked.ok()) return asked.status();
  const auto buffers = tables.buffers.Get();
  return Buffers().Answer(
      asked->page, *buffers,
      [&](const BufferRow& row) { return MaySee(request.viewer, row.tenant); }, BufferJson);
}

Answer ConfigurationAnswer(PageTables& tables, const HttpRequest& request) {
  const absl::StatusOr<Query> query = Query::Parse(request.query, {});
  if (!query.ok()) return query.status();
  if (!request.viewer.all) {
    return absl::PermissionDeniedError("the server's configuration is an operator's to see");
  }
  return json{{"yaml", ToYaml(tables.sources.config)}, {"units", UnitsOfSettings()}};
}

}  // namespace sparsed::server
