#include "client/src/convert.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/strings/cord.h"
#include "sparsed/client.h"

namespace sparsed {
inline namespace client {

std::chrono::system_clock::time_point FromUnixNs(int64_t ns) {
  return std::chrono::system_clock::time_point(std::chrono::nanoseconds(ns));
}

namespace {

MatrixState FromProto(v1::MatrixState state) {
  switch (state) {
    case v1::MATRIX_STATE_QUEUED:
      return MatrixState::kQueued;
    case v1::MATRIX_STATE_PREPARING:
      return MatrixState::kPreparing;
    case v1::MATRIX_STATE_READY:
      return MatrixState::kReady;
    case v1::MATRIX_STATE_FAILED:
      return MatrixState::kFailed;
    default:
      return MatrixState::kUnknown;
  }
}

ProblemSignature FromProto(const v1::ProblemClass& c) {
  return {static_cast<Operation>(c.operation()), c.transposed(), c.k(), c.allow_tf32()};
}

/// Of a sparse product, which one it is. `of`: a plan or a decision.
void SetProduct(const auto& proto, auto& of) {
  of.right_pattern_hash = proto.right_pattern_hash();
  of.transpose_left = proto.transpose_left();
  of.transpose_right = proto.transpose_right();
  of.factors = proto.factors();
}

}  // namespace

v1::ElementType ToProto(ValueType type) {
  switch (type) {
    case ValueType::kF32:
      return v1::ELEMENT_TYPE_F32;
    case ValueType::kF64:
      return v1::ELEMENT_TYPE_F64;
    case ValueType::kF16:
      return v1::ELEMENT_TYPE_F16;
    case ValueType::kBF16:
      return v1::ELEMENT_TYPE_BF16;
    case ValueType::kI64:
      return v1::ELEMENT_TYPE_I64;
  }
  return v1::ELEMENT_TYPE_UNSPECIFIED;
}

ValueType FromProto(v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_F64:
      return ValueType::kF64;
    case v1::ELEMENT_TYPE_F16:
      return ValueType::kF16;
    case v1::ELEMENT_TYPE_BF16:
      return ValueType::kBF16;
    default:
      return ValueType::kF32;
  }
}

v1::ProblemClass ToProto(const ProblemSignature& signature) {
  v1::ProblemClass proto;
  proto.set_operation(static_cast<v1::ProblemClass::Operation>(signature.operation));
  proto.set_transposed(signature.transposed);
  proto.set_k(signature.k);
  proto.set_allow_tf32(signature.allow_tf32);
  return proto;
}

absl::Status FromProto(const v1::Status& proto) {
  absl::Status status(static_cast<absl::StatusCode>(proto.code()), proto.message());
  for (const google::protobuf::Any& detail : proto.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

std::optional<std::chrono::milliseconds> RetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload("type.googleapis.com/google.rpc.RetryInfo");
  v1::RetryInfo retry;
  if (!payload || !retry.ParseFromString(std::string(*payload))) return std::nullopt;
  constexpr int64_t kMostSeconds = 366 * 86400;
  const google::protobuf::Duration& delay = retry.retry_delay();
  return std::chrono::seconds(std::clamp<int64_t>(delay.seconds(), 0, kMostSeconds)) +
         std::chrono::milliseconds(std::clamp(delay.nanos(), 0, 999'999'999) / 1'000'000);
}

absl::Status WithRequestId(absl::Status status, std::string_view id) {
  if (!status.ok() && !id.empty())
    status.SetPayload(kRequestIdPayload, absl::Cord(std::string(id)));
  return status;
}

std::optional<std::string> RequestId(const absl::Status& status) {
  const auto payload = status.GetPayload(kRequestIdPayload);
  if (!payload) return std::nullopt;
  return std::string(*payload);
}

Timings FromProto(const v1::Timings& t) {
  const auto ns = [](uint64_t count) { return std::chrono::nanoseconds(count); };
  return {.queue = ns(t.queue_ns()),
          .receive = ns(t.receive_ns()),
          .to_device = ns(t.to_device_ns()),
          .kernel = ns(t.kernel_ns()),
          .from_device = ns(t.from_device_ns()),
          .send = ns(t.send_ns()),
          .total = ns(t.total_ns()),
          .setup = ns(t.setup_ns()),
          .queue_trials = ns(t.queue_trials_ns()),
          .queue_others = ns(t.queue_others_ns())};
}

BusyTrials FromProto(const v1::BusyTrials& trials) {
  return {trials.least_baseline_ms(), trials.most_baseline_ms()};
}

Measurement FromProto(const v1::Measurement& m) {
  return {.signature = FromProto(m.problem_class()),
          .pipeline = m.recipe(),
          .kernel = m.kernel(),
          .device = m.device(),
          .median_ms = m.median_ms(),
          .gflops = m.gflops(),
          .runs = m.runs(),
          .k = m.k(),
          .roofline_share = m.floor_share(),
          .roofline_ms = m.floor_ms(),
          .baseline_ms = m.baseline_ms(),
          .preparation_ms = m.preparation_ms(),
          .type = FromProto(m.type()),
          .model = m.model(),
          .roof = m.roof(),
          .censored = m.censored(),
          .right_pattern_hash = m.right_pattern_hash(),
          .transpose_left = m.transpose_left(),
          .transpose_right = m.transpose_right(),
          .factors = m.factors()};
}

PatternMeasurements FromProto(const v1::PatternMeasurements& proto) {
  PatternMeasurements pattern{proto.pattern_hash(), FromProto(proto.features()), {}, proto.past()};
  for (const v1::Measurement& m : proto.measurements()) {
    pattern.measurements.push_back(FromProto(m));
  }
  return pattern;
}

std::vector<MatrixShare> FromProto(
    const google::protobuf::RepeatedPtrField<v1::MatrixShare>& proto) {
  std::vector<MatrixShare> shares;
  for (const v1::MatrixShare& share : proto) shares.push_back({share.with(), share.write()});
  return shares;
}

QuotaInfo FromProto(const v1::QuotaInfo& proto) {
  QuotaInfo quota;
  quota.quota = proto.quota();
  quota.used = proto.used();
  if (proto.has_soft_limit()) quota.soft_limit = proto.soft_limit();
  if (proto.has_hard_limit()) quota.hard_limit = proto.hard_limit();
  quota.refused = proto.refused();
  quota.warned = proto.warned();
  return quota;
}

TenantInfo FromProto(const v1::TenantInfo& proto) {
  TenantInfo info{proto.name(), proto.weight(), {}};
  for (const v1::QuotaInfo& quota : proto.quotas()) info.quotas.push_back(FromProto(quota));
  return info;
}

SlowRequest FromProto(const v1::SlowRequest& proto) {
  return {.request_id = proto.request_id(),
          .ended = FromUnixNs(proto.ended_unix_ns()),
          .tenant = proto.tenant(),
          .caller = proto.caller(),
          .operation = proto.operation(),
          .subject = proto.subject(),
          .code = proto.code(),
          .message = proto.message(),
          .timings = FromProto(proto.timings()),
          .plan = proto.plan(),
          .k = proto.k(),
          .parameters = proto.parameters(),
          .transport = proto.transport(),
          .bytes_in = proto.bytes_in(),
          .bytes_out = proto.bytes_out(),
          .trace_id = proto.trace_id()};
}

MatrixInfo FromProto(const v1::MatrixInfo& proto) {
  MatrixInfo info{.name = proto.name(),
                  .rows = proto.rows(),
                  .cols = proto.cols(),
                  .nnz = proto.nnz(),
                  .type = FromProto(proto.type()),
                  .pattern_hash = proto.pattern_hash(),
                  .version = proto.version(),
                  .state = FromProto(proto.state()),
                  .detail = proto.detail(),
                  .layouts = {},
                  .plans = {},
                  .measurements = {},
                  .preparation_seconds = proto.preparation_seconds(),
                  .created = FromUnixNs(proto.created_unix_ns()),
                  .durable = proto.durable(),
                  .csr_bytes = proto.csr_bytes(),
                  .decisions = {},
                  .owner = proto.owner(),
                  .time_to_live = std::chrono::nanoseconds(proto.time_to_live_ns()),
                  .idle = std::chrono::nanoseconds(proto.idle_ns()),
                  .shares = FromProto(proto.shares()),
                  .nodes = {proto.nodes().begin(), proto.nodes().end()},
                  .copies_missing = proto.copies_missing(),
                  .shards = {},
                  .nodes_gone = {proto.nodes_gone().begin(), proto.nodes_gone().end()},
                  .replicas = proto.replicas()};
  for (const v1::Shard& shard : proto.shards()) {
    info.shards.push_back({.matrix = shard.matrix(),
                           .columns = shard.columns(),
                           .row_numbers = shard.row_numbers(),
                           .first_row = shard.first_row(),
                           .rows = shard.rows(),
                           .cols = shard.cols(),
                           .nnz = shard.nnz(),
                           .nodes = {shard.nodes().begin(), shard.nodes().end()}});
  }
  for (const v1::LayoutInfo& layout : proto.layouts()) {
    info.layouts.push_back(
        {layout.kind(), layout.recipe(), layout.bytes(), layout.build_seconds()});
  }
  for (const v1::PlanInfo& plan : proto.plans()) {
    info.plans.push_back({FromProto(plan.problem_class()), plan.recipe(), plan.kernel(),
                          plan.device(), plan.baseline_ms(), plan.plan_ms(), plan.reason(),
                          FromUnixNs(plan.since_unix_ns()), plan.requests_per_second(),
                          plan.in_use()});
    if (plan.has_busy_trials()) info.plans.back().busy_trials = FromProto(plan.busy_trials());
    SetProduct(plan, info.plans.back());
  }
  for (const v1::Measurement& m : proto.measurements()) {
    info.measurements.push_back(FromProto(m));
  }
  for (const v1::Decision& d : proto.decisions()) {
    info.decisions.push_back({FromProto(d.problem_class()), d.recipe(), d.tried(), d.reason()});
    SetProduct(d, info.decisions.back());
  }
  return info;
}

MatrixFeatures FromProto(const v1::Features& proto) {
  MatrixFeatures features;
  for (const v1::Feature& f : proto.values()) {
    features.values.push_back({f.name(), f.source(), f.meaning(), f.value()});
  }
  for (const v1::DistanceBin& bin : proto.distances()) {
    features.distances.push_back({bin.least(), bin.most(), bin.count()});
  }
  features.density_map.assign(proto.density_map().begin(), proto.density_map().end());
  return features;
}

Progress FromProto(const v1::WatchReply& reply) {
  return {FromProto(reply.state()), reply.stage(), reply.done(), reply.total(), reply.message()};
}

Distribution FromProto(v1::Distribution distribution) {
  return distribution == v1::DISTRIBUTION_COLUMNS ? Distribution::kColumns
         : distribution == v1::DISTRIBUTION_ROWS  ? Distribution::kRows
                                                  : Distribution::kWhole;
}

DenseInfo FromProto(const v1::BufferInfo& proto) {
  const v1::DenseShape& shape = proto.shape();
  std::optional<std::chrono::nanoseconds> time_to_live;
  if (proto.time_to_live_ns() > 0) {
    time_to_live = std::chrono::nanoseconds(proto.time_to_live_ns());
  }
  return {.name = proto.name(),
          .rows = shape.rows(),
          .cols = shape.cols(),
          .leading_dimension =
              shape.leading_dimension() == 0 ? shape.cols() : shape.leading_dimension(),
          .type = FromProto(shape.type()),
          .bytes = proto.bytes(),
          .durable = proto.durable(),
          .version = proto.version(),
          .tenant = proto.tenant(),
          .owner = proto.owner(),
          .time_to_live = time_to_live,
          .idle = std::chrono::nanoseconds(proto.idle_ns()),
          .distribution = FromProto(proto.distribution()),
          .parts = proto.parts()};
}

DeviceInfo FromProto(const v1::DeviceInfo& proto) {
  DeviceInfo device{.name = proto.name(),
                    .description = proto.description(),
                    .threads = proto.threads(),
                    .unavailable = proto.unavailable(),
                    .constants = {proto.constants().begin(), proto.constants().end()},
                    .calibrated = {}};
  if (proto.calibrated_unix_ns() != 0) device.calibrated = FromUnixNs(proto.calibrated_unix_ns());
  return device;
}

ServerInfo FromProto(const v1::ServerInfo& proto) {
  ServerInfo info{.version = proto.version(),
                  .devices = {},
                  .max_chunk_bytes = proto.max_chunk_bytes(),
                  .host_memory_limit_bytes = proto.host_memory_limit_bytes(),
                  .durable = proto.durable(),
                  .started = FromUnixNs(proto.started_unix_ns()),
                  .max_requests_per_stream = proto.max_requests_per_stream(),
                  .metrics_address = proto.metrics_address(),
                  .local_socket = proto.local_socket(),
                  .server_id = proto.server_id(),
                  .tenant = proto.tenant(),
                  .role = proto.role(),
                  .node = proto.node(),
                  .node_addresses = {proto.node_addresses().begin(), proto.node_addresses().end()}};
  for (const v1::DeviceInfo& device : proto.devices()) {
    info.devices.push_back(FromProto(device));
  }
  return info;
}

Stats FromProto(const v1::Stats& proto) {
  Stats stats{.requests = {},
              .matrices = proto.matrices(),
              .patterns = proto.patterns(),
              .dense_matrices = proto.buffers(),
              .memory_bytes = {proto.memory_bytes().begin(), proto.memory_bytes().end()},
              .requests_in_flight = proto.requests_in_flight(),
              .preparations_pending = proto.preparations_pending(),
              .uptime_seconds = proto.uptime_seconds(),
              .device_busy_seconds = proto.device_busy_seconds(),
              .in_flight = {},
              .devices = {}};
  for (const v1::RequestCount& count : proto.requests()) {
    stats.requests.push_back({count.operation(), count.code(), count.count(), count.status_call()});
  }
  for (const v1::RequestsInFlight& requests : proto.in_flight()) {
    stats.in_flight.push_back({requests.operation(), requests.activity(), requests.count(),
                               requests.bytes(), requests.oldest_seconds(),
                               requests.status_call()});
  }
  for (const v1::DeviceUse& device : proto.devices()) {
    stats.devices.push_back({device.name(),
                             device.busy_seconds(),
                             device.waiting(),
                             device.memory_bytes(),
                             device.memory_limit_bytes(),
                             {device.tenant_seconds().begin(), device.tenant_seconds().end()},
                             device.memory_peak_bytes(),
                             device.memory_kept_bytes(),
                             device.memory_reserved_bytes()});
  }
  return stats;
}

std::optional<uint64_t> RequestIdOf(const wire::Frame<v1::ComputeReply>& frame) {
  if (const auto* chunk = std::get_if<wire::ChunkView>(&frame)) return chunk->request_id;
  const auto& reply = std::get<v1::ComputeReply>(frame);
  switch (reply.part_case()) {
    case v1::ComputeReply::kBegin:
      return reply.begin().request_id();
    case v1::ComputeReply::kEnd:
      return reply.end().request_id();
    case v1::ComputeReply::kBlock:
      return reply.block().request_id();
    default:
      return std::nullopt;
  }
}

}  // namespace client
}  // namespace sparsed
