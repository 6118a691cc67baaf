#include "server/telemetry/metrics.h"

#include <fmt/format.h>

#include "engine/catalog/catalog.h"
#include "engine/catalog/dense_catalog.h"
#include "server/log/log.h"
#include "server/security/caller.h"

namespace sparsed::server {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using prometheus::Registry;

/// 50 us to about a minute, each twice the one before.
const Histogram::BucketBoundaries kRequestBuckets = {
    50e-6,  100e-6, 200e-6, 400e-6, 800e-6, 1.6e-3, 3.2e-3, 6.4e-3, 12.8e-3, 25.6e-3, 51.2e-3,
    0.1024, 0.2048, 0.4096, 0.8192, 1.6384, 3.2768, 6.5536, 13.107, 26.214,  60};
/// 1 ms to about an hour, each four times the one before.
const Histogram::BucketBoundaries kPreparationBuckets = {1e-3,  4e-3,  16e-3, 64e-3, 0.256, 1.024,
                                                         4.096, 16.38, 65.54, 262.1, 1049,  3600};
/// Requests: as many as there are columns, at most.
const Histogram::BucketBoundaries kBatchBuckets = {2, 4, 8, 16, 32, 64, 128, 256};
/// Of the best speed that was measured.
const Histogram::BucketBoundaries kShareBuckets = {0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1};

Family<Counter>& CounterFamily(Registry& registry, const char* name, const char* help) {
  return BuildCounter().Name(name).Help(help).Register(registry);
}
Family<prometheus::Gauge>& GaugeFamily(Registry& registry, const char* name, const char* help) {
  return BuildGauge().Name(name).Help(help).Register(registry);
}
Family<Histogram>& HistogramFamily(Registry& registry, const char* name, const char* help) {
  return BuildHistogram().Name(name).Help(help).Register(registry);
}
/// Of a series by operation.
prometheus::Labels LabelsOf(Op op) {
  return {{"op", std::string(Name(op))}, {"kind", std::string(KindOf(op))}};
}
double Seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace

Metrics::Metrics()
    : requests_(CounterFamily(
          registry_, "sparsed_requests_total",
          "Requests that ended, by operation and its kind, tenant and google.rpc code")),
      errors_(CounterFamily(registry_, "sparsed_request_errors_total",
                            "Requests that failed, by whose doing it was: the caller's, for want "
                            "of room or time, or the server's")),
      in_flight_family_(GaugeFamily(registry_, "sparsed_requests_in_flight",
                                    "Requests that began and have not ended")),
      request_seconds_family_(HistogramFamily(registry_, "sparsed_request_seconds",
                                              "Time from a request's start to its last byte")),
      phase_seconds_family_(
          HistogramFamily(registry_, "sparsed_request_phase_seconds",
                          "Time that requests spent in a phase, of those that had it")),
      kernel_seconds_(HistogramFamily(registry_, "sparsed_kernel_seconds",
                                      "Time that requests spent in a kernel")),
      kernel_flops_(CounterFamily(registry_, "sparsed_kernel_flops_total",
                                  "Useful floating point operations done for requests")),
      kernel_roofline_seconds_(CounterFamily(
          registry_, "sparsed_kernel_floor_seconds_total",
          "Memory-bound minimum of the kernel runs: the time to move each byte once, at the "
          "device's measured memory rate")),
      batch_requests_(HistogramFamily(registry_, "sparsed_batch_requests",
                                      "Requests that ran as one multiplication, by device")),
      distributed_requests_(CounterFamily(
          registry_, "sparsed_distributed_requests_total",
          "Requests that several GPUs computed, each its columns or rows, by how many they were")),
      attached_calls_(CounterFamily(registry_, "sparsed_attached_calls_total",
                                    "Products and chains that attached callers ran themselves")),
      attached_seconds_(
          CounterFamily(registry_, "sparsed_attached_kernel_seconds_total",
                        "Time that attached callers spent in kernels, as they say themselves")),
      preparation_seconds_(HistogramFamily(registry_, "sparsed_preparation_seconds",
                                           "Time that a preparation spent in a stage")),
      trial_wait_seconds_(HistogramFamily(
          registry_, "sparsed_trial_wait_seconds",
          "Time that one run of a trial waited for a worker slot of the device, by device")),
      layout_build_seconds_(
          HistogramFamily(registry_, "sparsed_layout_build_seconds",
                          "Time to build a layout, by its kind and the device that built it")),
      preparations_ended_(CounterFamily(registry_, "sparsed_preparations_ended_total",
                                        "Preparations that ended, by how")),
      pipelines_(CounterFamily(
          registry_, "sparsed_recipes_total",
          "Transform pipelines that autotuning considered for a problem signature, by what became "
          "of them")),
      model_choices_(CounterFamily(
          registry_, "sparsed_model_choices_total",
          "Problem signatures for which a model's first choice was judged by what was measured")),
      model_choice_share_(HistogramFamily(
          registry_, "sparsed_model_choice_share",
          "Share of the best speed that was measured which a model's first choice had")),
      snapshot_time_(
          GaugeFamily(registry_, "sparsed_last_snapshot_timestamp_seconds",
                      "Unix time at which the last snapshot since the start ended well")),
      snapshot_bytes_(
          GaugeFamily(registry_, "sparsed_last_snapshot_bytes", "Bytes of that snapshot")) {
  auto& transfers = CounterFamily(registry_, "sparsed_transfer_bytes_total",
                                  "Array bytes moved for requests, by path");
  stream_in_ = &transfers.Add({{"path", "stream"}, {"direction", "in"}});
  stream_out_ = &transfers.Add({{"path", "stream"}, {"direction", "out"}});
  held_in_ = &transfers.Add({{"path", "held"}, {"direction", "in"}});
  held_out_ = &transfers.Add({{"path", "held"}, {"direction", "out"}});
  shared_in_ = &transfers.Add({{"path", "shared_host"}, {"direction", "in"}});
  shared_out_ = &transfers.Add({{"path", "shared_host"}, {"direction", "out"}});
  ring_in_ = &transfers.Add({{"path", "ring"}, {"direction", "in"}});
  ring_out_ = &transfers.Add({{"path", "ring"}, {"direction", "out"}});
  gpu_in_ = &transfers.Add({{"path", "shared_device"}, {"direction", "in"}});
  gpu_out_ = &transfers.Add({{"path", "shared_device"}, {"direction", "out"}});
  attached_in_ = &transfers.Add({{"path", "attached"}, {"direction", "in"}});
  attached_out_ = &transfers.Add({{"path", "attached"}, {"direction", "out"}});
  auto& carried = CounterFamily(registry_, "sparsed_carried_bytes_total",
                                "Array bytes of the path stream that carriers moved");
  carried_in_ = &carried.Add({{"direction", "in"}});
  carried_out_ = &carried.Add({{"direction", "out"}});
  // There from the start, so that rates begin with the first of them.
  for (const char* const operation : {"spmm", "sddmm", "chain"}) {
    OnAttached({.tenant = kDefaultTenant, .operation = operation});
  }
  batch_requests_.Add({{"device", "cpu"}}, kBatchBuckets);
  distributed_requests_.Add({{"gpus", "2"}});
  moved_by_host_ = &CounterFamily(registry_, "sparsed_distributed_host_bytes_total",
                                  "Bytes of distributed buffers that were put together on the "
                                  "host, or cut there, for what is not computed where they lie")
                        .Add({});
  damages_ =
      &CounterFamily(registry_, "sparsed_damages_total", "Stored arrays that failed their checksum")
           .Add({});
  ring_requests_ = &CounterFamily(registry_, "sparsed_ring_requests_total",
                                  "Requests that came through a ring and ended")
                        .Add({});
  for (const char* state : {"ready", "failed", "cancelled"}) {
    preparations_ended_.Add({{"state", state}});
  }
  for (const char* outcome : {"tried", "ruled_out", "no_memory", "no_time"}) {
    pipelines_.Add({{"outcome", outcome}});
  }
}

prometheus::Gauge& Metrics::InFlight(Op op) {
  return in_flight_[static_cast<size_t>(op)].Get(
      [&] { return &in_flight_family_.Add(LabelsOf(op)); });
}

prometheus::Histogram& Metrics::RequestSeconds(Op op) {
  return request_seconds_[static_cast<size_t>(op)].Get(
      [&] { return &request_seconds_family_.Add(LabelsOf(op), kRequestBuckets); });
}

prometheus::Histogram& Metrics::PhaseSeconds(Op op, size_t phase) {
  return phase_seconds_[static_cast<size_t>(op)][phase].Get([&] {
    prometheus::Labels labels = LabelsOf(op);
    labels.emplace("phase", Name(static_cast<Phase>(phase)));
    return &phase_seconds_family_.Add(labels, kRequestBuckets);
  });
}

void Metrics::CountEnd(Op op, const std::string& tenant, const absl::Status& status) {
  prometheus::Labels labels = LabelsOf(op);
  labels.emplace("tenant", tenant_labels_.Of(tenant));
  const ErrorCause cause = CauseOf(status);
  if (cause != ErrorCause::kNone) {
    prometheus::Labels of_error = labels;
    of_error.emplace("cause", Name(cause));
    errors_.Add(of_error).Increment();
  }
  labels.emplace("code", CodeOf(status));
  requests_.Add(labels).Increment();
}

void Metrics::End(const StageRecord& record) {
  InFlight(record.op).Decrement();
  CountEnd(record.op, record.tenant, record.status);
  RequestSeconds(record.op).Observe(Seconds(record.total_ns));
  for (size_t phase = 0; phase < kPhases; ++phase) {
    if (record.phase_ns[phase] > 0) {
      PhaseSeconds(record.op, phase).Observe(Seconds(record.phase_ns[phase]));
    }
  }
  stream_in_->Increment(static_cast<double>(record.stream_bytes_in));
  stream_out_->Increment(static_cast<double>(record.stream_bytes_out));
  carried_in_->Increment(static_cast<double>(record.carried_bytes_in));
  carried_out_->Increment(static_cast<double>(record.carried_bytes_out));
  held_in_->Increment(static_cast<double>(record.held_bytes_in));
  held_out_->Increment(static_cast<double>(record.held_bytes_out));
  (record.ring ? ring_in_ : shared_in_)->Increment(static_cast<double>(record.shared_bytes_in));
  (record.ring ? ring_out_ : shared_out_)->Increment(static_cast<double>(record.shared_bytes_out));
  gpu_in_->Increment(static_cast<double>(record.gpu_bytes_in));
  gpu_out_->Increment(static_cast<double>(record.gpu_bytes_out));
  if (record.ring) ring_requests_->Increment();
}

Metrics::OfKernel& Metrics::KernelMetrics(const engine::KernelRun& run) {
  auto key = std::make_tuple(run.operation, std::string(run.kernel), std::string(run.device));
  const MutexLock lock(kernels_mutex_);
  const auto found = kernels_.find(key);
  if (found != kernels_.end()) return found->second;
  const prometheus::Labels labels = {{"op", std::string(sparsed::Name(run.operation))},
                                     {"kernel", std::string(run.kernel)},
                                     {"device", std::string(run.device)}};
  const OfKernel made = {&kernel_seconds_.Add(labels, kRequestBuckets), &kernel_flops_.Add(labels),
                         &kernel_roofline_seconds_.Add(labels)};
  return kernels_.emplace(std::move(key), made).first->second;
}

void Metrics::OnAttached(const AttachedRuns& runs) {
  const prometheus::Labels labels = {{"op", std::string(runs.operation)},
                                     {"tenant", tenant_labels_.Of(runs.tenant)},
                                     {"device", sparsed::Name(runs.device)}};
  attached_calls_.Add(labels).Increment(static_cast<double>(runs.calls));
  attached_seconds_.Add(labels).Increment(runs.seconds);
  attached_in_->Increment(static_cast<double>(runs.bytes_in));
  attached_out_->Increment(static_cast<double>(runs.bytes_out));
}

void Metrics::OnKernelRun(const engine::KernelRun& run) {
  const OfKernel& kernel = KernelMetrics(run);
  kernel.seconds->Observe(run.seconds);
  kernel.flops->Increment(run.flops);
  kernel.roofline_seconds->Increment(run.roofline_seconds);
}

void Metrics::OnBatch(std::string_view device, int64_t requests) {
  batch_requests_.Add({{"device", std::string(device)}}, kBatchBuckets)
      .Observe(static_cast<double>(requests));
}

void Metrics::OnMovedByHost(int64_t bytes) {
  moved_by_host_->Increment(static_cast<double>(bytes));
}

void Metrics::OnDistributed(int64_t parts) {
  distributed_requests_.Add({{"gpus", std::to_string(parts)}}).Increment();
}

void Metrics::OnPreparationStage(std::string_view stage, double seconds) {
  preparation_seconds_.Add({{"stage", std::string(stage)}}, kPreparationBuckets).Observe(seconds);
}

void Metrics::OnTrialWait(std::string_view device, double seconds) {
  trial_wait_seconds_.Add({{"device", std::string(device)}}, kPreparationBuckets).Observe(seconds);
}

void Metrics::OnLayoutBuilt(std::string_view kind, std::string_view device, double seconds) {
  layout_build_seconds_
      .Add({{"kind", std::string(kind)}, {"device", std::string(device)}}, kPreparationBuckets)
      .Observe(seconds);
}

void Metrics::OnPipeline(std::string_view outcome) {
  pipelines_.Add({{"outcome", std::string(outcome)}}).Increment();
}

void Metrics::OnModelChoice(std::string_view model, std::string_view role, double share) {
  const prometheus::Labels labels = {{"model", std::string(model)}, {"role", std::string(role)}};
  const MutexLock lock(model_series_);
  model_choices_.Add(labels).Increment();
  model_choice_share_.Add(labels, kShareBuckets).Observe(share);
}

void Metrics::OnModelRemoved(std::string_view model) {
  const MutexLock lock(model_series_);
  for (const char* role : {"used", "watched"}) {
    const prometheus::Labels labels = {{"model", std::string(model)}, {"role", role}};
    if (!model_choices_.Has(labels)) continue;
    model_choices_.Remove(&model_choices_.Add(labels));
    model_choice_share_.Remove(&model_choice_share_.Add(labels, kShareBuckets));
  }
}

void Metrics::OnModelProblem(std::string_view sentence) {
  Log(LogLevel::kWarn, "model not used", {{"message", std::string(sentence)}});
}

void Metrics::OnCalibrated(std::string_view device, std::string_view sentence) {
  Log(LogLevel::kInfo, "calibrated",
      {{"device", std::string(device)}, {"message", std::string(sentence)}});
}

void Metrics::OnCalibrationProblem(std::string_view sentence) {
  Log(LogLevel::kWarn, "not calibrated", {{"message", std::string(sentence)}});
}

void Metrics::OnPreparationEnd(std::string_view state) {
  preparations_ended_.Add({{"state", std::string(state)}}).Increment();
}

void Metrics::OnPreparationReport(const engine::PreparationReport& report) {
  const bool failed = report.state == "failed";
  // A start may bring back thousands.
  const LogLevel level = failed              ? LogLevel::kWarn
                         : !report.asked_for ? LogLevel::kDebug
                                             : LogLevel::kInfo;
  if (!LogEnabled(level)) return;
  const std::optional<int64_t> not_logged = (failed ? failure_log_ : preparation_log_).Admit();
  if (!not_logged.has_value()) return;
  std::vector<Field> fields = {
      {"pattern", report.pattern},         {"seconds", report.seconds},
      {"matrix", report.requester.matrix}, {"tenant", report.requester.tenant},
      {"caller", report.requester.caller}, {"request_id", report.requester.request_id},
      {"message", report.sentence}};
  if (*not_logged > 0) fields.push_back({"not_logged", *not_logged});
  Log(level, fmt::format("preparation {}", report.state), fields);
}

void Metrics::OnSnapshot(int64_t bytes) {
  snapshot_time_.Add({}).SetToCurrentTime();
  snapshot_bytes_.Add({}).Set(static_cast<double>(bytes));
}

void Metrics::OnDamage(std::string_view sentence) {
  damages_->Increment();
  Log(LogLevel::kError, "damage", {{"message", std::string(sentence)}});
}

void Metrics::OnDeviceLost(std::string_view sentence) {
  Log(LogLevel::kError, "device lost", {{"message", std::string(sentence)}});
  if (device_lost) device_lost();
}

void Metrics::OnStore(const absl::Status& status) {
  if (status.ok()) {
    Log(LogLevel::kInfo, "data directory is back");
  } else {
    Log(LogLevel::kError, "data directory lost", {{"message", std::string(status.message())}});
  }
  if (store_changed) store_changed(status.ok());
}

void Metrics::OnDenseExpired(const engine::DenseExpiry& expiry) {
  const std::optional<int64_t> not_logged = expiry_log_.Admit();
  if (!not_logged.has_value()) return;
  const engine::HeldDense& held = *expiry.held;
  std::vector<Field> fields = {{"tenant", held.tenant},
                               {"name", held.name},
                               {"owner", held.owner},
                               {"bytes", engine::QuotaBytes(held.shape, held.halo)}};
  if (*not_logged > 0) fields.push_back({"not_logged", *not_logged});
  if (expiry.status.ok()) {
    Log(LogLevel::kInfo, "buffer expired", fields);
  } else {
    fields.push_back({"message", std::string(expiry.status.message())});
    Log(LogLevel::kWarn, "buffer could not expire", fields);
  }
}

void Metrics::OnMatrixExpired(const engine::MatrixExpiry& expiry) {
  const engine::Matrix& matrix = *expiry.matrix;
  if (expiry.status.ok() && matrix_expired) matrix_expired(matrix.tenant(), matrix.name());
  const std::optional<int64_t> not_logged = expiry_log_.Admit();
  if (!not_logged.has_value()) return;
  std::vector<Field> fields = {{"tenant", matrix.tenant()}, {"name", matrix.name()}};
  if (*not_logged > 0) fields.push_back({"not_logged", *not_logged});
  if (!expiry.status.ok()) fields.push_back({"message", std::string(expiry.status.message())});
  Log(expiry.status.ok() ? LogLevel::kInfo : LogLevel::kWarn,
      expiry.status.ok() ? "matrix expired" : "matrix could not expire", fields);
}

void Metrics::OnSoftLimit(const engine::Tenant& tenant, engine::Quota quota, int64_t times) {
  const std::optional<int64_t> not_logged = soft_log_.Admit();
  if (!not_logged.has_value()) return;
  std::vector<Field> fields = {{"tenant", tenant.name()},
                               {"quota", std::string(engine::Name(quota))},
                               {"used", tenant.used(quota)},
                               {"soft_limit", tenant.limit(quota).soft},
                               {"times", times}};
  if (*not_logged > 0) fields.push_back({"not_logged", *not_logged});
  Log(LogLevel::kWarn, "a tenant went past a soft limit", fields);
}

std::vector<RequestCount> Metrics::RequestCounts() const {
  std::map<std::pair<std::string, std::string>, int64_t> counts;  // over all tenants
  for (const prometheus::MetricFamily& family : requests_.Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::string op, code;
      for (const auto& label : metric.label) {
        if (label.name == "op") op = label.value;
        if (label.name == "code") code = label.value;
      }
      counts[{op, code}] += static_cast<int64_t>(metric.counter.value);
    }
  }
  std::vector<RequestCount> result;
  result.reserve(counts.size());
  for (const auto& [key, count] : counts) {
    const std::optional<Op> op = ParseOp(key.first);
    result.push_back({key.first, key.second, count, op && IsStatusCall(*op)});
  }
  return result;
}

}  // namespace sparsed::server
