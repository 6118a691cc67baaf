#include "server/rpc/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "engine/catalog/pattern_product.h"
#include "engine/execution/roofline.h"
#include "engine/memory/device.h"
#include "engine/retry.h"
#include "server/cluster/cluster.h"
#include "server/rpc/sentence.h"

namespace sparsed::server {
namespace {

constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

std::string Sentence(const absl::Status& status) {
  return ForClients({status.message().data(), status.message().size()});
}

absl::StatusOr<ProblemSignature> ToSignature(ElementType type, const v1::ProblemClass& message) {
  Problem problem;
  problem.type = type;
  problem.transposed = message.transposed();
  problem.k = message.k();
  switch (message.operation()) {
    case v1::ProblemClass::SPMM:
      problem.operation = Operation::kSpmm;
      break;
    case v1::ProblemClass::SDDMM:
      problem.operation = Operation::kSddmm;
      problem.transposed = false;
      break;
    case v1::ProblemClass::SPGEMM:
      problem.operation = Operation::kSpgemm;
      problem.transposed = false;
      problem.k = 0;
      if (IsHalf(type)) {
        return absl::InvalidArgumentError(fmt::format(
            "expected.operation = SPGEMM is for f32 and f64 matrices, this one is {}", Name(type)));
      }
      return SignatureOf(problem);
    default:
      return absl::InvalidArgumentError(
          fmt::format("expected.operation = {} is neither SPMM, SDDMM nor SPGEMM",
                      static_cast<int>(message.operation())));
  }
  if (problem.k < 1) {
    return absl::InvalidArgumentError(
        fmt::format("expected.k = {} is not a width, at least 1", problem.k));
  }
  ProblemSignature c = SignatureOf(problem);
  // Whether it makes a difference is known where the device is.
  c.allow_tf32 = message.allow_tf32();
  return c;
}

v1::ProblemClass::Operation ToProto(Operation operation) {
  switch (operation) {
    case Operation::kSpmm:
      return v1::ProblemClass::SPMM;
    case Operation::kSddmm:
      return v1::ProblemClass::SDDMM;
    case Operation::kSpgemm:
      return v1::ProblemClass::SPGEMM;
  }
  return v1::ProblemClass::OPERATION_UNSPECIFIED;
}

void ToProto(const ProblemSignature& c, v1::ProblemClass& message) {
  message.set_operation(ToProto(c.operation));
  message.set_transposed(c.transposed);
  message.set_k(c.k_bucket);
  message.set_allow_tf32(c.allow_tf32);
}

/// What was tried: a pipeline or, of SpGEMM, which product and what both factors are read from.
/// `tried`: a plan, a measurement or a decision.
void SetPipeline(const auto& tried, std::string_view left_hash, auto& message) {
  if (!tried.pair) {
    message.set_recipe(tried.pipeline);
    return;
  }
  const engine::PatternPair& pair = *tried.pair;
  message.set_recipe(FactorsText(pair, left_hash, tried.pipeline, tried.kernel));
  message.set_factors(FactorsText(pair, pair.right, tried.pipeline, tried.kernel));
  message.set_right_pattern_hash(pair.right);
  message.set_transpose_left(pair.transpose_left);
  message.set_transpose_right(pair.transpose_right);
}

void ToProto(const engine::Measurement& measured, std::string_view left_hash,
             const engine::Executor& executor, v1::Measurement& measurement) {
  ToProto(measured.signature, *measurement.mutable_problem_class());
  measurement.set_type(server::ToProto(measured.signature.type));
  SetPipeline(measured, left_hash, measurement);
  measurement.set_kernel(measured.kernel);
  measurement.set_device(measured.device);
  measurement.set_median_ms(measured.median_ms);
  measurement.set_gflops(measured.gflops);
  const engine::RooflinePosition position = engine::RooflineOf(measured, executor);
  measurement.set_floor_share(position.share);
  measurement.set_floor_ms(position.roofline_ms);
  measurement.set_roof(std::string(engine::Name(position.roof)));
  measurement.set_baseline_ms(measured.baseline_ms);
  measurement.set_preparation_ms(measured.preparation_ms);
  measurement.set_runs(measured.runs);
  measurement.set_k(measured.k);
  measurement.set_model(measured.model);
  measurement.set_censored(measured.censored);
}

void AddDensityMap(const Features& features, v1::Features& message) {
  const std::vector<int32_t> tiles = features.density_map.Tiles();
  message.mutable_density_map()->Add(tiles.begin(), tiles.end());
}

/// 0 of a time that is none.
int64_t UnixNs(std::chrono::steady_clock::time_point time) {
  if (time == std::chrono::steady_clock::time_point()) return 0;
  const std::chrono::nanoseconds ago = std::chrono::steady_clock::now() - time;
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch() - ago)
      .count();
}

/// `own`: for who has it, also what its requests made of the plans.
void AddPlansAndLayouts(const engine::Matrix& matrix, bool own, const engine::Executor& executor,
                        v1::MatrixInfo& info) {
  const engine::Pattern& pattern = *matrix.pattern();
  for (const auto& entry : pattern.Layouts()) {
    v1::LayoutInfo& layout = *info.add_layouts();
    const std::string& pipeline = entry.description->pipeline;
    layout.set_kind(entry.description->kind);
    layout.set_recipe(pipeline);
    layout.set_bytes(entry.description->bytes() + matrix.LayoutValueBytes(pipeline));
    layout.set_build_seconds(entry.build_seconds);
  }
  // Matrices of other types may share the pattern; their plans are not this one's.
  const bool alone = own && pattern.IsOnlyOf(matrix.tenant());
  const std::vector<engine::Measurement> measurements = pattern.trials().measurements();
  for (const auto& [active, per_second, in_use] : matrix.UsedPlans()) {
    v1::PlanInfo& plan = *info.add_plans();
    ToProto(active->plan.signature, *plan.mutable_problem_class());
    SetPipeline(active->plan, pattern.hash(), plan);
    plan.set_kernel(active->plan.kernel);
    plan.set_device(std::string(Name(active->plan.signature.device)));
    plan.set_baseline_ms(active->plan.baseline_ms);
    plan.set_plan_ms(active->plan.plan_ms);
    plan.set_reason(active->plan.reason);
    if (const auto busy = engine::FindBusyTrials(active->plan, measurements)) {
      server::ToProto(*busy, *plan.mutable_busy_trials());
    }
    if (!own) continue;
    // Others' preparations and requests are nobody's business.
    if (alone) plan.set_since_unix_ns(UnixNs(active->since));
    plan.set_requests_per_second(per_second);
    plan.set_in_use(in_use);
  }
  for (const engine::Measurement& measured : measurements) {
    if (measured.signature.type == matrix.type()) {
      ToProto(measured, pattern.hash(), executor, *info.add_measurements());
    }
  }
  for (const engine::Decision& decided : pattern.trials().decisions()) {
    if (decided.signature.type != matrix.type()) continue;
    v1::Decision& decision = *info.add_decisions();
    ToProto(decided.signature, *decision.mutable_problem_class());
    SetPipeline(decided, pattern.hash(), decision);
    if (!decided.kernel.empty()) {
      const std::string kernel = " / " + decided.kernel;
      decision.mutable_recipe()->append(kernel);
      if (decided.pair) decision.mutable_factors()->append(kernel);
    }
    decision.set_tried(decided.tried);
    decision.set_reason(ForClients(decided.reason));
  }
}

/// All but the density map.
void ToProto(const Features& features, v1::Features& message) {
  for (const FeatureField& field : kFeatureFields) {
    v1::Feature& value = *message.add_values();
    value.set_name(std::string(field.name));
    value.set_source(std::string(field.source));
    value.set_meaning(std::string(field.meaning));
    value.set_value(features.*field.value);
  }
  for (int i = 0; i < kDistanceBins; ++i) {
    v1::DistanceBin& bin = *message.add_distances();
    bin.set_least(DistanceBinBegin(i));
    bin.set_most(DistanceBinBegin(i + 1) - 1);
    bin.set_count(features.distance_histogram[i]);
  }
}

}  // namespace

void ToProto(const engine::BusyTrials& trials, v1::BusyTrials& message) {
  message.set_least_baseline_ms(trials.least_baseline_ms);
  message.set_most_baseline_ms(trials.most_baseline_ms);
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  v1::Status message;
  ToProto(status, message);
  return {static_cast<grpc::StatusCode>(status.code()), message.message(),
          message.details().empty() ? std::string() : message.SerializeAsString()};
}

void ToProto(const absl::Status& status, v1::Status& message) {
  message.set_code(static_cast<int>(status.code()));
  message.set_message(Sentence(status));
  for (const char* const url : {kRedirectUrl, kInShardsUrl}) {
    const auto where = status.GetPayload(url);
    if (!where) continue;
    google::protobuf::Any& detail = *message.add_details();
    detail.set_type_url(url);
    detail.set_value(std::string(*where));
  }
  const auto delay = engine::RetryDelay(status);
  if (!delay) return;
  const auto seconds = std::chrono::floor<std::chrono::seconds>(*delay);
  v1::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(seconds.count());
  retry.mutable_retry_delay()->set_nanos(
      static_cast<int32_t>(std::chrono::nanoseconds(*delay - seconds).count()));
  google::protobuf::Any& detail = *message.add_details();
  detail.set_type_url(kRetryInfoUrl);
  detail.set_value(retry.SerializeAsString());
}

void ToProto(const StageRecord& record, v1::Timings& message) {
  message.set_queue_ns(record[Phase::kQueue]);
  message.set_queue_trials_ns(record.queue_trials_ns);
  message.set_queue_others_ns(record.queue_others_ns);
  message.set_receive_ns(record[Phase::kReceive]);
  message.set_setup_ns(record[Phase::kSetup]);
  message.set_to_device_ns(record[Phase::kToDevice]);
  message.set_kernel_ns(record[Phase::kKernel]);
  message.set_from_device_ns(record[Phase::kFromDevice]);
  message.set_send_ns(record[Phase::kSend]);
  message.set_total_ns(record.total_ns);
  message.set_request_id(record.id);
}

v1::SlowRequest ToSlowRequest(const EndedRequest& request) {
  const StageRecord& record = request.record;
  v1::SlowRequest message;
  message.set_request_id(record.id);
  message.set_ended_unix_ns(std::chrono::nanoseconds(request.ended.time_since_epoch()).count());
  message.set_tenant(record.tenant);
  message.set_caller(record.caller);
  message.set_operation(std::string(Name(record.op)));
  // Names that were refused may be anything.
  message.set_subject(ForClients(record.subject));
  message.set_code(absl::StatusCodeToString(record.status.code()));
  message.set_message(ForClients(std::string(record.status.message())));
  ToProto(record, *message.mutable_timings());
  message.set_plan(record.plan);
  message.set_k(record.k);
  message.set_parameters(ForClients(record.parameters));
  message.set_transport(std::string(TransportOf(record)));
  message.set_bytes_in(BytesIn(record));
  message.set_bytes_out(BytesOut(record));
  message.set_trace_id(record.trace.trace_id);
  return message;
}

absl::StatusOr<ElementType> ToElementType(std::string_view what, v1::ElementType type) {
  switch (type) {
    case v1::ELEMENT_TYPE_I32:
      return ElementType::kI32;
    case v1::ELEMENT_TYPE_I64:
      return ElementType::kI64;
    case v1::ELEMENT_TYPE_F32:
      return ElementType::kF32;
    case v1::ELEMENT_TYPE_F64:
      return ElementType::kF64;
    case v1::ELEMENT_TYPE_F16:
      return ElementType::kF16;
    case v1::ELEMENT_TYPE_BF16:
      return ElementType::kBF16;
    default:
      return absl::InvalidArgumentError(
          fmt::format("{} = {} is not an element type", what, static_cast<int>(type)));
  }
}

v1::ElementType ToProto(ElementType type) { return static_cast<v1::ElementType>(type); }

absl::StatusOr<engine::DenseShape> ToShape(std::string_view what, const v1::DenseShape& shape) {
  absl::StatusOr<ElementType> type = ToElementType(fmt::format("{}.type", what), shape.type());
  if (!type.ok()) return type.status();
  const int64_t leading = shape.leading_dimension() == 0 ? shape.cols() : shape.leading_dimension();
  return engine::DenseShape{shape.rows(), shape.cols(), leading, *type};
}

void ToProto(const engine::DenseShape& shape, v1::DenseShape& message) {
  message.set_rows(shape.rows);
  message.set_cols(shape.cols);
  message.set_leading_dimension(shape.leading_dimension);
  message.set_type(ToProto(shape.type));
}

absl::StatusOr<std::vector<ProblemSignature>> ToSignatures(
    ElementType type, const google::protobuf::RepeatedPtrField<v1::ProblemClass>& expected) {
  std::set<ProblemSignature> signatures;  // there are few, however long the list
  for (const v1::ProblemClass& message : expected) {
    const absl::StatusOr<ProblemSignature> c = ToSignature(type, message);
    if (!c.ok()) return c.status();
    signatures.insert(*c);
  }
  return std::vector(signatures.begin(), signatures.end());
}

absl::StatusOr<engine::UploadHeader> ToUploadHeader(std::string tenant,
                                                    const v1::UploadHeader& header) {
  engine::UploadHeader result;
  result.tenant = std::move(tenant);
  result.name = header.name();
  result.rows = header.rows();
  result.cols = header.cols();
  result.nnz = header.nnz();
  const absl::StatusOr<ElementType> type = ToElementType("type", header.type());
  if (!type.ok()) return type.status();
  result.type = *type;
  const absl::StatusOr<ElementType> offsets =
      ToElementType("row_offsets_type", header.row_offsets_type());
  if (!offsets.ok()) return offsets.status();
  result.row_offsets_type = *offsets;
  result.replace = header.replace();
  result.sort = header.sort();
  result.sum_duplicates = header.sum_duplicates();
  result.values_are_ones = header.values_are_ones();
  result.pattern_hash = header.pattern_hash();
  result.time_to_live = std::chrono::nanoseconds(header.time_to_live_ns());
  absl::StatusOr<std::vector<ProblemSignature>> expected =
      ToSignatures(result.type, header.expected());
  if (!expected.ok()) return expected.status();
  result.expected = *std::move(expected);
  return result;
}

absl::StatusOr<engine::UpdateHeader> ToUpdateHeader(std::string tenant,
                                                    const v1::UpdateValuesHeader& header) {
  const absl::StatusOr<ElementType> type = ToElementType("type", header.type());
  if (!type.ok()) return type.status();
  return engine::UpdateHeader{std::move(tenant), header.name(), *type, header.durable(),
                              header.if_version()};
}

absl::StatusOr<engine::PutHeader> ToPutHeader(std::string tenant,
                                              const v1::PutBufferHeader& header) {
  absl::StatusOr<engine::DenseShape> shape = ToShape("shape", header.shape());
  if (!shape.ok()) return shape.status();
  if (!v1::Distribution_IsValid(header.distribution())) {
    return absl::InvalidArgumentError(
        fmt::format("distribution {} of buffer '{}' is none that this server knows, 0 (whole), 1 "
                    "(columns), 2 (rows) or 3 (auto)",
                    static_cast<int>(header.distribution()), header.name()));
  }
  return engine::PutHeader{
      std::move(tenant),
      header.name(),
      *shape,
      header.zeros(),
      header.durable(),
      header.owner(),
      std::chrono::nanoseconds(header.time_to_live_ns()),
      header.distribution() == v1::DISTRIBUTION_COLUMNS ? engine::Distribution::kColumns
      : header.distribution() == v1::DISTRIBUTION_ROWS  ? engine::Distribution::kRows
      : header.distribution() == v1::DISTRIBUTION_AUTO  ? engine::Distribution::kAuto
                                                        : engine::Distribution::kWhole,
      /*rows_of=*/nullptr,
      header.version()};
}

v1::MatrixState ToProto(engine::PreparationState state) {
  switch (state) {
    case engine::PreparationState::kQueued:
      return v1::MATRIX_STATE_QUEUED;
    case engine::PreparationState::kPreparing:
      return v1::MATRIX_STATE_PREPARING;
    case engine::PreparationState::kReady:
      return v1::MATRIX_STATE_READY;
    case engine::PreparationState::kFailed:
      return v1::MATRIX_STATE_FAILED;
  }
  return v1::MATRIX_STATE_UNSPECIFIED;
}

v1::MatrixInfo ToMatrixInfo(const engine::Matrix& matrix, std::string_view tenant,
                            const engine::Executor& executor) {
  const engine::Pattern& pattern = *matrix.pattern();
  const engine::PreparationStatus status = pattern.progress().status();
  v1::MatrixInfo info;
  info.set_name(engine::ReferenceFor(tenant, {matrix.tenant(), matrix.name()}));
  info.set_owner(matrix.tenant());
  if (const engine::MatrixKeep& keep = matrix.keep(); keep.time_to_live.count() > 0) {
    info.set_time_to_live_ns(keep.time_to_live.count());
    const auto idle = std::chrono::steady_clock::now() - keep.used->load();
    info.set_idle_ns(std::max<int64_t>(0, std::chrono::nanoseconds(idle).count()));
  }
  info.set_rows(pattern.rows());
  info.set_cols(pattern.cols());
  info.set_nnz(pattern.nnz());
  info.set_type(ToProto(matrix.type()));
  info.set_pattern_hash(pattern.hash());
  info.set_version(matrix.version());
  info.set_state(ToProto(status.state));
  info.set_detail(ForClients(status.detail));
  info.set_preparation_seconds(status.seconds);
  info.set_created_unix_ns(matrix.created_unix_ns());
  info.set_durable(matrix.durable());
  info.set_csr_bytes((pattern.rows() + 1) * static_cast<int64_t>(sizeof(int64_t)) +
                     pattern.nnz() * static_cast<int64_t>(sizeof(int32_t) + SizeOf(matrix.type())));
  AddPlansAndLayouts(matrix, /*own=*/tenant == matrix.tenant(), executor, info);
  return info;
}

void AddFeatures(const engine::Matrix& matrix, v1::MatrixInfo& info) {
  const std::shared_ptr<const Features> features = matrix.pattern()->features();
  if (features == nullptr) return;
  ToProto(*features, *info.mutable_features());
  AddDensityMap(*features, *info.mutable_features());
}

v1::PatternMeasurements ToPatternMeasurements(const engine::PatternMeasurements& of,
                                              std::span<const engine::Measurement> measurements,
                                              bool density_map, const engine::Executor& executor) {
  v1::PatternMeasurements message;
  message.set_pattern_hash(of.pattern_hash);
  message.set_past(of.past);
  if (of.features != nullptr) {
    ToProto(*of.features, *message.mutable_features());
    if (density_map) AddDensityMap(*of.features, *message.mutable_features());
  }
  for (const engine::Measurement& measured : measurements) {
    ToProto(measured, of.pattern_hash, executor, *message.add_measurements());
  }
  return message;
}

v1::ModelInfo ToModelInfo(const engine::ModelFacts& model) {
  v1::ModelInfo info;
  info.set_name(model.name);
  info.set_device(model.device);
  info.set_device_model(model.device_model);
  info.set_created(model.created);
  info.set_patterns(model.patterns);
  info.set_own(model.own);
  info.set_used(model.used);
  info.set_watched(model.watched);
  info.set_held_out_share(model.held_out_share);
  info.set_problem(model.problem);
  return info;
}

v1::Distribution ToProto(engine::Distribution distribution) {
  switch (distribution) {
    case engine::Distribution::kWhole:
      return v1::DISTRIBUTION_WHOLE;
    case engine::Distribution::kColumns:
      return v1::DISTRIBUTION_COLUMNS;
    case engine::Distribution::kRows:
      return v1::DISTRIBUTION_ROWS;
    case engine::Distribution::kAuto:
      return v1::DISTRIBUTION_AUTO;
  }
  return v1::DISTRIBUTION_WHOLE;
}

v1::BufferInfo ToBufferInfo(const engine::HeldDense& held, engine::DenseClock::time_point now) {
  v1::BufferInfo info;
  info.set_name(held.name);
  ToProto(held.shape, *info.mutable_shape());
  info.set_bytes(held.shape.elements() * static_cast<int64_t>(SizeOf(held.shape.type)));
  info.set_durable(held.durable);
  info.set_version(held.version);
  info.set_tenant(held.tenant);
  info.set_owner(held.owner);
  info.set_time_to_live_ns(std::chrono::nanoseconds(held.time_to_live).count());
  // Others may have used it since `now`.
  info.set_idle_ns(std::max<int64_t>(0, std::chrono::nanoseconds(now - held.used->load()).count()));
  if (!held.blocks.empty()) {
    info.set_distribution(ToProto(held.distribution()));
    info.set_parts(static_cast<int32_t>(held.blocks.size()));
  }
  return info;
}

void AddArrayHeader(std::string_view name, ElementType type, int64_t length,
                    google::protobuf::RepeatedPtrField<v1::ArrayHeader>& headers) {
  v1::ArrayHeader& header = *headers.Add();
  header.set_name(std::string(name));
  header.set_type(ToProto(type));
  header.set_length(length);
}

}  // namespace sparsed::server
