// Catalog.Explain.
#include <utility>
#include <vector>

#include "client/src/convert.h"
#include "client/src/exchange.h"
#include "sparsed/client.h"
#include "sparsed/v1/catalog.pb.h"

namespace sparsed {
inline namespace client {
namespace {

Movement FromProto(const v1::Movement& movement) {
  return {.flops = movement.flops(),
          .footprint_bytes = movement.footprint_bytes(),
          .partition_bytes = movement.partition_bytes(),
          .moved_bytes = movement.moved_bytes(),
          .operand_footprint_bytes = movement.operand_footprint_bytes(),
          .operand_moved_bytes = movement.operand_moved_bytes(),
          .result_nnz = movement.result_nnz(),
          .largest_row = movement.largest_row(),
          .estimate = movement.estimate()};
}

Explanation FromProto(const v1::ExplainReply& reply) {
  Explanation explanation = {.device = reply.device(),
                             .cache_bytes = reply.cache_bytes(),
                             .line_bytes = reply.line_bytes(),
                             .workers = reply.workers(),
                             .bytes_per_second = reply.bytes_per_second(),
                             .flops_per_second = reply.flops_per_second(),
                             .operations = {},
                             .reordered_by = reply.reordered_by(),
                             .measured_while_busy = reply.measured_while_busy(),
                             .inner_cache_bytes = reply.inner_cache_bytes(),
                             .cache_bytes_per_second = reply.cache_bytes_per_second(),
                             .requests = {.requests = reply.requests().requests(),
                                          .mean = sparsed::FromProto(reply.requests().mean()),
                                          .transport = reply.requests().transport(),
                                          .finding = reply.requests().finding(),
                                          .transposed = reply.requests().transposed()}};
  for (const v1::TransportTimes& times : reply.requests().transports()) {
    explanation.requests.transports.push_back({.transport = times.transport(),
                                               .requests = times.requests(),
                                               .mean = sparsed::FromProto(times.mean()),
                                               .finding = times.finding()});
  }
  // Older servers have one mean of all.
  if (explanation.requests.transports.empty() && explanation.requests.requests > 0) {
    const RequestTimes& all = explanation.requests;
    explanation.requests.transports = {{.transport = all.transport,
                                        .requests = all.requests,
                                        .mean = all.mean,
                                        .finding = all.finding}};
  }
  if (reply.type() != v1::ELEMENT_TYPE_UNSPECIFIED) {
    explanation.type = sparsed::FromProto(reply.type());
  }
  if (reply.calibrated_unix_ns() > 0) {
    explanation.calibrated = sparsed::FromUnixNs(reply.calibrated_unix_ns());
  }
  for (const v1::ExplainedOperation& operation : reply.operations()) {
    std::vector<ExplainedDistribution> distributions;
    for (const v1::ExplainedDistribution& distribution : operation.distributions()) {
      distributions.push_back({.distribution = sparsed::FromProto(distribution.distribution()),
                               .gpus = distribution.gpus(),
                               .exchanged_bytes = distribution.exchanged_bytes(),
                               .estimated_ms = distribution.estimated_ms(),
                               .measured_ms = distribution.measured_ms(),
                               .chosen = distribution.chosen()});
    }
    explanation.operations.push_back(
        {.operation = operation.operation() == v1::ProblemClass::SPGEMM ? Operation::kSpgemm
                                                                        : Operation::kSpmm,
         .k = operation.k(),
         .stored = FromProto(operation.stored()),
         .reordered = FromProto(operation.reordered()),
         .limit = operation.limit(),
         .greatest_gain = operation.greatest_gain(),
         .known_gain = operation.known_gain(),
         .imbalance = operation.imbalance(),
         .measured_ms = operation.measured_ms(),
         .measured = operation.measured(),
         .roofline_share = operation.roofline_share(),
         .roof = operation.roof(),
         .plan_k = operation.plan_k(),
         .trial_k = operation.trial_k(),
         .trial_ms = operation.trial_ms(),
         .distributions = std::move(distributions),
         .spread_ms = operation.spread_ms(),
         .cache_limit = operation.cache_limit(),
         .inner = FromProto(operation.inner()),
         .inner_reordered = FromProto(operation.inner_reordered()),
         .order = operation.order(),
         .served = FromProto(operation.has_served() ? operation.served() : operation.stored()),
         .inner_served =
             FromProto(operation.has_inner_served() ? operation.inner_served() : operation.inner()),
         .baseline_ms = operation.baseline_ms(),
         .reordered_ms = operation.reordered_ms(),
         .recent_kernel_ms = operation.recent_kernel_ms()});
    if (operation.has_busy_trials()) {
      explanation.operations.back().busy_trials = sparsed::FromProto(operation.busy_trials());
    }
  }
  return explanation;
}

}  // namespace

absl::StatusOr<Explanation> Matrix::Explain(const ExplainOptions& explain,
                                            const CallOptions& options) const {
  return ExplainAsync(explain, options).Wait();
}

Call<Explanation> Matrix::ExplainAsync(const ExplainOptions& explain,
                                       const CallOptions& options) const {
  v1::ExplainRequest request;
  request.set_name(name_);
  request.set_k(explain.k);
  request.set_device(explain.device);
  request.set_cache_bytes(explain.cache_bytes);
  return LaunchUnary<v1::ExplainReply, Explanation>(
      RouteOf(connection_, name_), "/sparsed.v1.Catalog/Explain", options, true, request,
      [](const v1::ExplainReply& reply) { return FromProto(reply); });
}

}  // namespace client
}  // namespace sparsed
