#include "server/rpc/compute_message.h"

#include <fmt/format.h>

#include <optional>

#include "engine/execution/fair_queue.h"
#include "server/cluster/shards.h"
#include "server/rpc/convert.h"
#include "sparsed/v1/compute.pb.h"

namespace sparsed::server {
namespace {

/// "operand b: the shared memory is ..."
absl::Status Of(const std::string& what, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", what, std::string(status.message())));
}

absl::StatusOr<engine::OperandSpec> ToOperand(std::string_view what, const v1::Operand& message,
                                              const SharedRegions& regions) {
  engine::OperandSpec operand;
  if (message.has_shape()) {
    auto shape = ToShape(fmt::format("{}.shape", what), message.shape());
    if (!shape.ok()) return shape.status();
    operand.shape = *shape;
  }
  switch (message.source_case()) {
    case v1::Operand::kStreamArray:
      operand.stream_array = message.stream_array();
      if (!operand.shape.has_value()) {
        return absl::InvalidArgumentError(
            fmt::format("operand {} comes in the stream, but its shape is missing", what));
      }
      return operand;
    case v1::Operand::kBuffer:
      if (message.buffer().empty()) break;
      operand.held = message.buffer();
      return operand;
    case v1::Operand::kShared: {
      if (!operand.shape.has_value()) {
        return absl::InvalidArgumentError(
            fmt::format("operand {} is in shared memory, but its shape is missing", what));
      }
      absl::StatusOr<SharedRegion> region =
          regions.Find(message.shared().region(), message.shared().offset());
      if (!region.ok()) return Of(fmt::format("operand {}", what), region.status());
      operand.shared = std::move(region->memory);
      operand.shared_on = region->device;
      return operand;
    }
    case v1::Operand::SOURCE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(fmt::format(
      "operand {} has neither a stream_array nor the name of a buffer nor shared memory", what));
}

absl::StatusOr<engine::ResultSpec> ToResult(const v1::Destination& message,
                                            const SharedRegions& regions) {
  engine::ResultSpec result;
  switch (message.place_case()) {
    case v1::Destination::kBuffer:
      if (message.buffer().empty()) {
        return absl::InvalidArgumentError("the destination's buffer has no name");
      }
      result.held = message.buffer();
      if (message.version() != 0 && !ParseShardBuffer(message.buffer()).has_value()) {
        return absl::InvalidArgumentError(
            "the destination's version is for parts of buffers of matrices in shards");
      }
      result.version = message.version();
      return result;
    case v1::Destination::kShared: {
      const v1::SharedMemory& place = message.shared().memory();
      auto shape = ToShape("the destination's shape", message.shared().shape());
      if (!shape.ok()) return shape.status();
      result.shape = *shape;
      absl::StatusOr<SharedRegion> region = regions.Find(place.region(), place.offset());
      if (!region.ok()) return Of("the destination", region.status());
      result.shared = std::move(region->memory);
      result.shared_on = region->device;
      return result;
    }
    case v1::Destination::kStream:
    case v1::Destination::PLACE_NOT_SET:
      break;
  }
  return result;
}

/// S's values, if the request brings its own.
template <typename Start>
absl::StatusOr<std::optional<engine::OperandSpec>> ToValues(const Start& start,
                                                            const SharedRegions& regions) {
  if (!start.has_values()) return std::nullopt;
  return ToOperand("values", start.values(), regions);
}

/// What every request has: whose it is, its priority and its time.
template <typename Start, typename Spec>
absl::Status SetCommon(const std::string& tenant, const Start& start, Spec& spec) {
  if (start.priority() >= engine::FairEntry::kPriorities) {
    return absl::InvalidArgumentError(fmt::format(
        "priority is {}, expected 0 to {}", start.priority(), engine::FairEntry::kPriorities - 1));
  }
  spec.tenant = tenant;
  spec.priority = static_cast<int>(start.priority());
  spec.timeout_ns = start.timeout_ns();
  return absl::OkStatus();
}

absl::StatusOr<ComputeSpec> ToSpec(const std::string& tenant, const SharedRegions& regions,
                                   const v1::SpmmStart& start) {
  engine::SpmmSpec spec;
  if (absl::Status status = SetCommon(tenant, start, spec); !status.ok()) return status;
  spec.matrix = start.matrix();
  spec.transpose = start.transpose();
  spec.alpha = start.has_alpha() ? start.alpha() : 1;
  spec.beta = start.beta();
  spec.result_leading_dimension = start.result_leading_dimension();
  spec.allow_tf32 = start.allow_tf32();
  auto b = ToOperand("b", start.b(), regions);
  if (!b.ok()) return b.status();
  spec.b = *std::move(b);
  if (spec.beta != 0) {
    auto accumulate = ToOperand("accumulate", start.accumulate(), regions);
    if (!accumulate.ok()) return accumulate.status();
    spec.accumulate = *std::move(accumulate);
  }
  auto values = ToValues(start, regions);
  if (!values.ok()) return values.status();
  spec.values = *std::move(values);
  auto result = ToResult(start.result(), regions);
  if (!result.ok()) return result.status();
  spec.result = *std::move(result);
  auto queue = regions.FindQueue(start.queue());
  if (!queue.ok()) return queue.status();
  spec.queue = *std::move(queue);
  return spec;
}

absl::StatusOr<ComputeSpec> ToSpec(const std::string& tenant, const SharedRegions& regions,
                                   const v1::SddmmStart& start) {
  engine::SddmmSpec spec;
  if (absl::Status status = SetCommon(tenant, start, spec); !status.ok()) return status;
  spec.matrix = start.matrix();
  spec.unscaled = start.unscaled();
  auto a = ToOperand("a", start.a(), regions);
  if (!a.ok()) return a.status();
  spec.a = *std::move(a);
  auto b = ToOperand("b", start.b(), regions);
  if (!b.ok()) return b.status();
  spec.b = *std::move(b);
  auto values = ToValues(start, regions);
  if (!values.ok()) return values.status();
  spec.values = *std::move(values);
  auto result = ToResult(start.result(), regions);
  if (!result.ok()) return result.status();
  spec.result = *std::move(result);
  auto queue = regions.FindQueue(start.queue());
  if (!queue.ok()) return queue.status();
  spec.queue = *std::move(queue);
  return spec;
}

absl::StatusOr<Semiring> ToSemiring(v1::Semiring semiring) {
  switch (semiring) {
    case v1::SEMIRING_UNSPECIFIED:
    case v1::SEMIRING_SUM_PRODUCT:
      return Semiring::kSumProduct;
    case v1::SEMIRING_BOOLEAN:
      return Semiring::kBoolean;
    case v1::SEMIRING_MIN_PLUS:
      return Semiring::kMinPlus;
    case v1::SEMIRING_PLUS_PAIR:
      return Semiring::kPlusPair;
    default:
      return absl::InvalidArgumentError(fmt::format(
          "semiring {} is unknown; there are 1 (sum-product), 2 (boolean), 3 (min-plus) and 4 "
          "(plus-pair)",
          static_cast<int>(semiring)));
  }
}

absl::StatusOr<ComputeSpec> ToSpec(const std::string& tenant, const SharedRegions& /*regions*/,
                                   const v1::SpgemmStart& start) {
  engine::SpgemmSpec spec;
  if (absl::Status status = SetCommon(tenant, start, spec); !status.ok()) return status;
  spec.left = start.left();
  spec.right = start.right();
  spec.keep_as = start.keep_as();
  spec.replace = start.replace();
  spec.count_first = start.count_first();
  spec.transpose_left = start.transpose_left();
  spec.transpose_right = start.transpose_right();
  spec.mask = start.mask();
  const absl::StatusOr<Semiring> semiring = ToSemiring(start.semiring());
  if (!semiring.ok()) return semiring.status();
  spec.semiring = *semiring;
  return spec;
}

engine::ChainStep ToStep(const v1::SpmmStep& message) {
  engine::SpmmStep step;
  step.matrix = message.matrix();
  step.transpose = message.transpose();
  step.alpha = message.has_alpha() ? message.alpha() : 1;
  step.beta = message.beta();
  step.b = message.b();
  if (message.has_accumulate()) step.accumulate = message.accumulate();
  if (message.has_values()) step.values = message.values();
  step.allow_tf32 = message.allow_tf32();
  return step;
}

engine::ChainStep ToStep(const v1::SddmmStep& message) {
  engine::SddmmStep step;
  step.matrix = message.matrix();
  step.unscaled = message.unscaled();
  step.a = message.a();
  step.b = message.b();
  if (message.has_values()) step.values = message.values();
  step.heads = std::max<int64_t>(message.heads(), 1);
  return step;
}

absl::StatusOr<Reduction> ToReduction(v1::Reduction reduction) {
  switch (reduction) {
    case v1::REDUCTION_MEAN:
      return Reduction::kMean;
    case v1::REDUCTION_MAX:
      return Reduction::kMax;
    case v1::REDUCTION_MIN:
      return Reduction::kMin;
    default:
      return absl::InvalidArgumentError(
          fmt::format("reduction {} is unknown; there are 1 (mean), 2 (max) and 3 (min)",
                      static_cast<int>(reduction)));
  }
}

absl::StatusOr<engine::ChainStep> ToStep(const v1::ReduceStep& message) {
  engine::ReduceStep step;
  step.matrix = message.matrix();
  step.transpose = message.transpose();
  const absl::StatusOr<Reduction> reduction = ToReduction(message.reduction());
  if (!reduction.ok()) return reduction.status();
  step.reduction = *reduction;
  step.b = message.b();
  if (message.has_values()) step.values = message.values();
  step.unscaled = message.unscaled();
  step.arguments = message.arguments();
  return step;
}

engine::ChainStep ToStep(const v1::ScaleStep& message) {
  engine::ScaleStep step;
  step.matrix = message.matrix();
  if (message.has_value()) step.value = message.value();
  if (message.has_rows()) step.rows = message.rows();
  if (message.has_cols()) step.cols = message.cols();
  return step;
}

engine::ChainStep ToStep(const v1::TotalStep& message) {
  engine::TotalStep step;
  step.matrix = message.matrix();
  step.transpose = message.transpose();
  if (message.has_value()) step.value = message.value();
  return step;
}

engine::ChainStep ToStep(const v1::SumStep& message) {
  engine::SumStep step;
  for (const v1::SumTerm& term : message.terms()) {
    step.terms.push_back({term.value(), term.has_factor() ? term.factor() : 1});
  }
  return step;
}

engine::ChainStep ToStep(const v1::SoftmaxStep& message) {
  engine::SoftmaxStep step;
  step.matrix = message.matrix();
  step.scale = message.has_scale() ? message.scale() : 1;
  step.value = message.value();
  if (message.has_gradient()) step.gradient = message.gradient();
  return step;
}

absl::StatusOr<engine::AttentionScores> ToScores(const v1::AttentionScores& message) {
  engine::AttentionScores scores;
  switch (message.kind()) {
    case v1::SCORE_KIND_DOT:
      scores.kind = EdgeScores::Kind::kDot;
      break;
    case v1::SCORE_KIND_SUM:
      scores.kind = EdgeScores::Kind::kSum;
      break;
    case v1::SCORE_KIND_GATV2:
      scores.kind = EdgeScores::Kind::kGatv2;
      break;
    default:
      return absl::InvalidArgumentError(
          fmt::format("score kind {} is unknown; there are 1 (dot), 2 (sum) and 3 (GATv2)",
                      static_cast<int>(message.kind())));
  }
  scores.heads = std::max<int64_t>(message.heads(), 1);
  scores.left = message.left();
  scores.right = message.right();
  if (message.has_scale()) scores.scale = message.scale();
  if (message.has_slope()) scores.slope = message.slope();
  if (message.has_bias()) scores.bias = message.bias();
  if (message.has_att()) scores.att = message.att();
  return scores;
}

absl::StatusOr<engine::ChainStep> ToStep(const v1::AttentionStep& message) {
  const absl::StatusOr<engine::AttentionScores> scores = ToScores(message.scores());
  if (!scores.ok()) return scores.status();
  return engine::AttentionStep{
      .matrix = message.matrix(), .scores = *scores, .values = message.values()};
}

absl::StatusOr<engine::ChainStep> ToStep(const v1::AttentionGradientStep& message) {
  const absl::StatusOr<engine::AttentionScores> scores = ToScores(message.scores());
  if (!scores.ok()) return scores.status();
  return engine::AttentionGradientStep{.matrix = message.matrix(),
                                       .scores = *scores,
                                       .values = message.values(),
                                       .result = message.result(),
                                       .log_sums = message.log_sums(),
                                       .gradient = message.gradient(),
                                       .of_left = message.of_left(),
                                       .of_right = message.of_right(),
                                       .of_values = message.of_values(),
                                       .of_bias = message.of_bias(),
                                       .of_att = message.of_att()};
}

absl::StatusOr<engine::ChainStep> ToStep(const v1::ChainStep& message) {
  switch (message.operation_case()) {
    case v1::ChainStep::kSpmm:
      return ToStep(message.spmm());
    case v1::ChainStep::kSddmm:
      return ToStep(message.sddmm());
    case v1::ChainStep::kSum:
      return ToStep(message.sum());
    case v1::ChainStep::kSoftmax:
      return ToStep(message.softmax());
    case v1::ChainStep::kReduce:
      return ToStep(message.reduce());
    case v1::ChainStep::kScale:
      return ToStep(message.scale());
    case v1::ChainStep::kTotal:
      return ToStep(message.total());
    case v1::ChainStep::kAttention:
      return ToStep(message.attention());
    case v1::ChainStep::kAttentionGradient:
      return ToStep(message.attention_gradient());
    case v1::ChainStep::OPERATION_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("it has no operation, or one that this server does not know");
}

/// The engine refuses them, too, but when they were looked up one by one.
absl::Status CheckSize(std::string_view what, int size, size_t most) {
  if (static_cast<size_t>(size) <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("a chain has at most {} {}, not {}", most, what, size));
}

absl::StatusOr<ComputeSpec> ToSpec(const std::string& tenant, const SharedRegions& regions,
                                   const v1::ChainStart& start) {
  using Spec = engine::ChainSpec;
  absl::Status status = CheckSize("operands", start.operands_size(), Spec::kMostOperands);
  if (status.ok()) status = CheckSize("steps", start.steps_size(), Spec::kMostSteps);
  if (status.ok()) status = CheckSize("results", start.results_size(), Spec::kMostResults);
  if (!status.ok()) return status;
  if (!start.queue().empty()) {
    return absl::UnimplementedError(
        "a chain runs in no queue; send it without one when its operands are there");
  }
  Spec spec;
  if (status = SetCommon(tenant, start, spec); !status.ok()) return status;
  for (const v1::Operand& message : start.operands()) {
    auto operand = ToOperand(fmt::to_string(spec.operands.size()), message, regions);
    if (!operand.ok()) return operand.status();
    spec.operands.push_back(*std::move(operand));
  }
  for (const v1::ChainStep& message : start.steps()) {
    auto step = ToStep(message);
    if (!step.ok()) return Of(fmt::format("step {}", spec.steps.size()), step.status());
    spec.steps.push_back(*std::move(step));
  }
  for (const v1::ChainResult& message : start.results()) {
    auto place = ToResult(message.place(), regions);
    if (!place.ok()) return Of(fmt::format("result {}", spec.results.size()), place.status());
    std::optional<engine::DenseShape> shape;
    if (message.has_shape()) {
      auto expected = ToShape(fmt::format("result {}", spec.results.size()), message.shape());
      if (!expected.ok()) return expected.status();
      shape = *expected;
    }
    spec.results.push_back(
        {message.value(), *std::move(place), message.leading_dimension(), shape});
  }
  return spec;
}

const std::string& Subject(const v1::SpmmStart& start) { return start.matrix(); }
const std::string& Subject(const v1::SddmmStart& start) { return start.matrix(); }
const std::string& Subject(const v1::SpgemmStart& start) { return start.left(); }
const std::string& Subject(const v1::ChainStart& start) {
  static const std::string none;
  for (const v1::ChainStep& step : start.steps()) {
    if (step.has_spmm()) return step.spmm().matrix();
    if (step.has_sddmm()) return step.sddmm().matrix();
    if (step.has_softmax()) return step.softmax().matrix();
    if (step.has_reduce()) return step.reduce().matrix();
    if (step.has_scale()) return step.scale().matrix();
    if (step.has_total()) return step.total().matrix();
    if (step.has_attention()) return step.attention().matrix();
    if (step.has_attention_gradient()) return step.attention_gradient().matrix();
  }
  return none;
}

template <typename Start>
std::vector<std::string> CarriersOf(const Start& start) {
  return {start.carriers().begin(), start.carriers().end()};
}
std::vector<std::string> CarriersOf(const v1::SpgemmStart& /*start*/) { return {}; }

template <typename Start>
std::optional<TraceContext> TraceOf(const Start& start) {
  if (!start.has_trace()) return std::nullopt;
  return ParseTraceContext(start.trace().traceparent(), start.trace().tracestate());
}

template <typename Request>
absl::StatusOr<ComputeMessage> Decode(const std::string& tenant, const SharedRegions& regions,
                                      const grpc::ByteBuffer& bytes) {
  auto frame = wire::Decode<Request>(bytes);
  if (!frame.ok()) return frame.status();
  if (auto* chunk = std::get_if<wire::ChunkView>(&*frame)) return std::move(*chunk);
  const Request& request = std::get<Request>(*frame);
  switch (request.part_case()) {
    case Request::kStart:
      return ComputeStart{request.start().request_id(), Subject(request.start()),
                          ToSpec(tenant, regions, request.start()), CarriersOf(request.start()),
                          TraceOf(request.start())};
    case Request::kCancel:
      return ComputeCancel{request.cancel().request_id()};
    default:
      return absl::InvalidArgumentError("a message is neither start, cancel nor chunk");
  }
}

}  // namespace

absl::StatusOr<ComputeMessage> DecodeComputeMessage(Op op, const std::string& tenant,
                                                    const SharedRegions& regions,
                                                    const grpc::ByteBuffer& bytes) {
  switch (op) {
    case Op::kSpmm:
      return Decode<v1::SpmmRequest>(tenant, regions, bytes);
    case Op::kSddmm:
      return Decode<v1::SddmmRequest>(tenant, regions, bytes);
    case Op::kChain:
      return Decode<v1::ChainRequest>(tenant, regions, bytes);
    default:
      return Decode<v1::SpgemmRequest>(tenant, regions, bytes);
  }
}

}  // namespace sparsed::server
