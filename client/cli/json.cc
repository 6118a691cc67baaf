#include "client/cli/json.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/cli/matrix_file.h"

namespace sparsed::cli {
namespace {

Json ToJson(const ProblemSignature& c) {
  return {{"operation", Name(c.operation)},
          {"transposed", c.transposed},
          {"k", c.k},
          {"allow_tf32", c.allow_tf32}};
}

int64_t UnixNs(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

Json ToJson(const Movement& m) {
  return {{"flops", m.flops},
          {"footprint_bytes", m.footprint_bytes},
          {"partition_bytes", m.partition_bytes},
          {"moved_bytes", m.moved_bytes},
          {"operand_footprint_bytes", m.operand_footprint_bytes},
          {"operand_moved_bytes", m.operand_moved_bytes},
          {"result_nnz", m.result_nnz},
          {"largest_row", m.largest_row},
          {"intensity", Intensity(m.flops, m.moved_bytes)},
          {"estimate", m.estimate}};
}

}  // namespace

double Intensity(double flops, double bytes) { return bytes > 0 ? flops / bytes : 0; }

double RooflineGflops(const Explanation& e, double flops, double bytes) {
  return 1e-9 * std::min(e.flops_per_second, Intensity(flops, bytes) * e.bytes_per_second);
}

Json ToJson(const Timings& t) {
  return {{"queue", t.queue.count()},
          {"receive", t.receive.count()},
          {"setup", t.setup.count()},
          {"to_device", t.to_device.count()},
          {"kernel", t.kernel.count()},
          {"from_device", t.from_device.count()},
          {"send", t.send.count()},
          {"total", t.total.count()},
          {"queue_trials", t.queue_trials.count()},
          {"queue_others", t.queue_others.count()}};
}

namespace {

/// What of a measurement tables and data sets call by the same names.
Json CommonOf(const Measurement& m) {
  return {{"type", Name(m.type)},
          {"kernel", m.kernel},
          {"device", m.device},
          {"k", m.k},
          {"median_ms", m.median_ms},
          {"preparation_ms", m.preparation_ms},
          {"gflops", m.gflops},
          {"roof", m.roof},
          {"runs", m.runs},
          {"model", m.model},
          {"censored", m.censored},
          {"factors", m.factors},
          {"right_pattern_hash", m.right_pattern_hash},
          {"transpose_left", m.transpose_left},
          {"transpose_right", m.transpose_right}};
}

/// Of a sparse product, which one it is. `of`: a plan or a decision.
void AddProduct(const auto& of, Json& json) {
  if (of.right_pattern_hash.empty()) return;
  json["right_pattern_hash"] = of.right_pattern_hash;
  json["transpose_left"] = of.transpose_left;
  json["transpose_right"] = of.transpose_right;
  json["factors"] = of.factors;
}

Json ToJson(const std::optional<BusyTrials>& trials) {
  if (!trials) return nullptr;
  return {{"least_baseline_ms", trials->least_baseline_ms},
          {"most_baseline_ms", trials->most_baseline_ms}};
}

/// By the names of columns that data sets of measurements have (docs/preparation.md).
Json RowOf(const Measurement& m) {
  Json row = CommonOf(m);
  row["class"] = ToJson(m.signature);
  row["recipe"] = m.pipeline;
  row["csr_ms"] = m.baseline_ms;
  row["floor_ms"] = m.roofline_ms;
  row["floor_share"] = m.roofline_share;
  return row;
}

}  // namespace

Json ToJson(const Measurement& m) {
  Json json = CommonOf(m);
  json["signature"] = ToJson(m.signature);
  json["pipeline"] = m.pipeline;
  json["baseline_ms"] = m.baseline_ms;
  json["roofline_ms"] = m.roofline_ms;
  json["roofline_share"] = m.roofline_share;
  return json;
}

Json ToJson(const MatrixInfo& info) {
  Json json = {{"name", info.name},
               {"rows", info.rows},
               {"cols", info.cols},
               {"nnz", info.nnz},
               {"type", Name(info.type)},
               {"pattern_hash", info.pattern_hash},
               {"version", info.version},
               {"state", Name(info.state)},
               {"detail", info.detail},
               {"durable", info.durable},
               {"owner", info.owner},
               {"time_to_live_ns", info.time_to_live.count()},
               {"idle_ns", info.idle.count()},
               {"shares", Json::array()},
               {"nodes", info.nodes},
               {"nodes_gone", info.nodes_gone},
               {"replicas", info.replicas},
               {"copies_missing", info.copies_missing},
               {"csr_bytes", info.csr_bytes},
               {"created_unix_ns", UnixNs(info.created)},
               {"preparation_seconds", info.preparation_seconds},
               {"plans", Json::array()},
               {"layouts", Json::array()},
               {"measurements", Json::array()},
               {"decisions", Json::array()}};
  for (const ShardInfo& shard : info.shards) {
    json["shards"].push_back({{"matrix", shard.matrix},
                              {"rows", shard.rows},
                              {"cols", shard.cols},
                              {"nnz", shard.nnz},
                              {"nodes", shard.nodes}});
    if (shard.row_numbers.empty()) json["shards"].back()["first_row"] = shard.first_row;
  }
  for (const MatrixShare& share : info.shares) {
    json["shares"].push_back({{"with", share.with}, {"write", share.write}});
  }
  for (const PlanInfo& plan : info.plans) {
    json["plans"].push_back({{"signature", ToJson(plan.signature)},
                             {"pipeline", plan.pipeline},
                             {"kernel", plan.kernel},
                             {"device", plan.device},
                             {"baseline_ms", plan.baseline_ms},
                             {"plan_ms", plan.plan_ms},
                             {"reason", plan.reason},
                             {"since_unix_ns", UnixNs(plan.since)},
                             {"requests_per_second", plan.requests_per_second},
                             {"in_use", plan.in_use},
                             {"busy_trials", ToJson(plan.busy_trials)}});
    AddProduct(plan, json["plans"].back());
  }
  for (const LayoutInfo& layout : info.layouts) {
    json["layouts"].push_back({{"kind", layout.kind},
                               {"pipeline", layout.pipeline},
                               {"bytes", layout.bytes},
                               {"build_seconds", layout.build_seconds}});
  }
  for (const Measurement& m : info.measurements) json["measurements"].push_back(ToJson(m));
  for (const Decision& decision : info.decisions) {
    json["decisions"].push_back({{"signature", ToJson(decision.signature)},
                                 {"pipeline", decision.pipeline},
                                 {"tried", decision.tried},
                                 {"reason", decision.reason}});
    AddProduct(decision, json["decisions"].back());
  }
  return json;
}

Json ToJson(const DenseInfo& info) {
  return {{"name", info.name},
          {"rows", info.rows},
          {"cols", info.cols},
          {"leading_dimension", info.leading_dimension},
          {"type", Name(info.type)},
          {"bytes", info.bytes},
          {"durable", info.durable},
          {"version", info.version},
          {"tenant", info.tenant},
          {"owner", info.owner},
          {"time_to_live_ns",
           info.time_to_live.has_value() ? Json(info.time_to_live->count()) : Json()},
          {"idle_ns", info.idle.count()},
          {"distribution", Name(info.distribution)},
          {"parts", info.parts},
          {"shards", info.shards}};
}

Json ToJson(const std::vector<MatrixInfo>& infos) {
  Json json = Json::array();
  for (const MatrixInfo& info : infos) json.push_back(ToJson(info));
  return json;
}

Json ToJson(const std::vector<DenseInfo>& infos) {
  Json json = Json::array();
  for (const DenseInfo& info : infos) json.push_back(ToJson(info));
  return json;
}

Json ToJson(const DeviceInfo& device) {
  return {{"name", device.name},
          {"description", device.description},
          {"threads", device.threads},
          {"unavailable", device.unavailable},
          {"constants", device.constants},
          {"calibrated_unix_ns", device.calibrated ? UnixNs(*device.calibrated) : 0}};
}

Json ToJson(const ServerInfo& info) {
  Json json = {{"version", info.version},
               {"devices", Json::array()},
               {"max_chunk_bytes", info.max_chunk_bytes},
               {"host_memory_limit_bytes", info.host_memory_limit_bytes},
               {"durable", info.durable},
               {"max_requests_per_stream", info.max_requests_per_stream},
               {"metrics_address", info.metrics_address},
               {"local_socket", info.local_socket},
               {"tenant", info.tenant},
               {"role", info.role},
               {"node", info.node},
               {"node_addresses", info.node_addresses},
               {"started_unix_ns", UnixNs(info.started)}};
  for (const DeviceInfo& device : info.devices) json["devices"].push_back(ToJson(device));
  return json;
}

Json ToJson(const sparsed::Stats& stats) {
  Json json = {{"uptime_seconds", stats.uptime_seconds},
               {"device_busy_seconds", stats.device_busy_seconds},
               {"matrices", stats.matrices},
               {"patterns", stats.patterns},
               {"buffers", stats.dense_matrices},
               {"requests_in_flight", stats.requests_in_flight},
               {"preparations_pending", stats.preparations_pending},
               {"memory_bytes", stats.memory_bytes},
               {"in_flight", Json::array()},
               {"devices", Json::array()},
               {"requests", Json::array()}};
  for (const RequestsInFlight& requests : stats.in_flight) {
    json["in_flight"].push_back({{"operation", requests.operation},
                                 {"activity", requests.activity},
                                 {"count", requests.count},
                                 {"bytes", requests.bytes},
                                 {"oldest_seconds", requests.oldest_seconds}});
  }
  for (const DeviceUse& device : stats.devices) {
    json["devices"].push_back({{"name", device.name},
                               {"busy_seconds", device.busy_seconds},
                               {"waiting", device.waiting},
                               {"memory_bytes", device.memory_bytes},
                               {"memory_limit_bytes", device.memory_limit_bytes},
                               {"memory_peak_bytes", device.memory_peak_bytes},
                               {"memory_kept_bytes", device.memory_kept_bytes},
                               {"memory_reserved_bytes", device.memory_reserved_bytes},
                               {"tenant_seconds", device.tenant_seconds}});
  }
  for (const RequestCount& request : stats.requests) {
    json["requests"].push_back({{"operation", request.operation},
                                {"code", request.code},
                                {"count", request.count},
                                {"status_call", request.status_call}});
  }
  return json;
}

Json ToJson(const MatrixFeatures& features) {
  constexpr size_t kSide = MatrixFeatures::kDensityMapSide;
  Json json = {{"features", Json::object()},
               {"distance_histogram", Json::array()},
               {"density_map", Json::array()}};
  for (const Feature& feature : features.values) json["features"][feature.name] = feature.value;
  for (const DistanceBin& bin : features.distances) {
    json["distance_histogram"].push_back(
        {{"least", bin.least}, {"most", bin.most}, {"count", bin.count}});
  }
  for (size_t begin = 0; begin + kSide <= features.density_map.size(); begin += kSide) {
    const auto row = features.density_map.begin() + static_cast<int64_t>(begin);
    json["density_map"].push_back(std::vector<int32_t>(row, row + kSide));
  }
  return json;
}

Json ToJson(const PatternMeasurements& pattern) {
  Json json = {{"pattern_hash", pattern.pattern_hash}, {"past", pattern.past}};
  json.update(ToJson(pattern.features));
  Json& measurements = json["measurements"] = Json::array();
  for (const Measurement& m : pattern.measurements) measurements.push_back(RowOf(m));
  return json;
}

Json ToJson(const std::vector<PatternMeasurements>& patterns) {
  Json json = Json::array();
  for (const PatternMeasurements& pattern : patterns) json.push_back(ToJson(pattern));
  return json;
}

Json ToJson(const std::string& name, const Explanation& e) {
  Json transports = Json::array();
  for (const TransportTimes& times : e.requests.transports) {
    transports.push_back({{"transport", times.transport},
                          {"requests", times.requests},
                          {"mean_ns", ToJson(times.mean)},
                          {"finding", times.finding}});
  }
  Json json = {{"name", name},
               {"type", e.type ? Json(Name(*e.type)) : Json(nullptr)},
               {"device", e.device},
               {"cache_bytes", e.cache_bytes},
               {"line_bytes", e.line_bytes},
               {"workers", e.workers},
               {"bytes_per_second", e.bytes_per_second},
               {"flops_per_second", e.flops_per_second},
               {"reordered_by", e.reordered_by},
               {"measured_while_busy", e.measured_while_busy},
               {"calibrated_unix_ns", e.calibrated ? UnixNs(*e.calibrated) : 0},
               {"inner_cache_bytes", e.inner_cache_bytes},
               {"cache_bytes_per_second", e.cache_bytes_per_second},
               {"requests",
                {{"requests", e.requests.requests},
                 {"mean_ns", ToJson(e.requests.mean)},
                 {"transport", e.requests.transport},
                 {"finding", e.requests.finding},
                 {"transposed", e.requests.transposed},
                 {"transports", std::move(transports)}}},
               {"operations", Json::array()}};
  for (const ExplainedOperation& o : e.operations) {
    Json distributions = Json::array();
    for (const ExplainedDistribution& d : o.distributions) {
      distributions.push_back({{"distribution", Name(d.distribution)},
                               {"gpus", d.gpus},
                               {"exchanged_bytes", d.exchanged_bytes},
                               {"estimated_ms", d.estimated_ms},
                               {"measured_ms", d.measured_ms},
                               {"chosen", d.chosen}});
    }
    json["operations"].push_back(
        {{"operation", o.operation == Operation::kSpgemm ? "spgemm" : "spmm"},
         {"k", o.k},
         {"limit", o.limit},
         {"greatest_gain", o.greatest_gain},
         {"known_gain", o.known_gain},
         {"imbalance", o.imbalance},
         {"greatest_intensity", Intensity(o.stored.flops, o.stored.footprint_bytes)},
         {"roofline_gflops", RooflineGflops(e, o.served.flops, o.served.moved_bytes)},
         {"measured_ms", o.measured_ms},
         {"measured", o.measured},
         {"roofline_share", o.roofline_share},
         {"roof", o.roof},
         {"plan_k", o.plan_k},
         {"trial_k", o.trial_k},
         {"trial_ms", o.trial_ms},
         {"stored", ToJson(o.stored)},
         {"reordered", ToJson(o.reordered)},
         {"distributions", std::move(distributions)},
         {"spread_ms", o.spread_ms},
         {"cache_limit", o.cache_limit},
         {"inner", ToJson(o.inner)},
         {"inner_reordered", ToJson(o.inner_reordered)},
         {"order", o.order},
         {"served", ToJson(o.served)},
         {"inner_served", ToJson(o.inner_served)},
         {"baseline_ms", o.baseline_ms},
         {"reordered_ms", o.reordered_ms},
         {"recent_kernel_ms", o.recent_kernel_ms},
         {"busy_trials", ToJson(o.busy_trials)}});
  }
  return json;
}

Json ToJson(const MatrixFile& file) {
  return {{"format", Name(file.format)},   {"compression", file.compression},
          {"duplicates", file.duplicates}, {"nan", file.nan},
          {"infinite", file.infinite},     {"notes", Sentences(file)}};
}

}  // namespace sparsed::cli
