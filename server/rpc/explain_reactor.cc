// Catalog.Explain: models of what products move, on a worker, for as long as somebody waits for
// them.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "engine/engine.h"
#include "engine/preparation/explain.h"
#include "engine/retry.h"
#include "server/rpc/convert.h"
#include "server/rpc/reactors.h"
#include "server/rpc/routes.h"
#include "server/rpc/unary.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {
namespace {

constexpr int64_t kMostColumns = 65536;
constexpr int64_t kMostCacheBytes = int64_t{1} << 40;
/// At once, of all callers: the workers are for others, too.
constexpr int kMostAtOnce = 2;

absl::StatusOr<engine::ExplainOptions> ToOptions(const v1::ExplainRequest& request) {
  engine::ExplainOptions options;
  if (request.k() < 0 || request.k() > kMostColumns) {
    return absl::InvalidArgumentError(
        fmt::format("k = {} is out of range [0, {}]", request.k(), kMostColumns));
  }
  if (request.cache_bytes() < 0 || request.cache_bytes() > kMostCacheBytes) {
    return absl::InvalidArgumentError(fmt::format("cache_bytes = {} is out of range [0, {}]",
                                                  request.cache_bytes(), kMostCacheBytes));
  }
  if (!request.device().empty()) {
    options.device = ParseDeviceId(request.device());
    if (!options.device.has_value()) {
      return absl::InvalidArgumentError(
          fmt::format("device \"{}\" is neither cpu nor a GPU such as cuda:0", request.device()));
    }
  }
  if (request.k() > 0) options.k = request.k();
  options.cache_bytes = request.cache_bytes();
  return options;
}

void Fill(const Movement& movement, v1::Movement& message) {
  message.set_flops(movement.flops);
  message.set_footprint_bytes(movement.footprint_bytes);
  message.set_partition_bytes(movement.partition_bytes);
  message.set_moved_bytes(movement.moved_bytes);
  message.set_operand_footprint_bytes(movement.operand_footprint_bytes);
  message.set_operand_moved_bytes(movement.operand_moved_bytes);
  message.set_result_nnz(movement.result_nnz);
  message.set_largest_row(movement.largest_row);
  message.set_estimate(movement.estimate);
}

void Fill(const engine::DistributionChoice& choice, v1::ExplainedOperation& message) {
  message.set_spread_ms(choice.spread_ms);
  for (const engine::DistributionEstimate& estimate : choice.estimates) {
    v1::ExplainedDistribution& distribution = *message.add_distributions();
    const bool whole = estimate.distribution == engine::Distribution::kWhole;
    distribution.set_distribution(ToProto(estimate.distribution));
    distribution.set_gpus(whole ? 1 : choice.gpus);
    distribution.set_exchanged_bytes(estimate.exchanged_bytes);
    distribution.set_estimated_ms(estimate.milliseconds);
    distribution.set_chosen(estimate.distribution == choice.best);
    if (!choice.tried) continue;
    if (whole) distribution.set_measured_ms(choice.tried->whole_ms);
    if (!whole && estimate.distribution == choice.tried->best) {
      distribution.set_measured_ms(choice.tried->best_ms);
    }
  }
}

void Fill(const TimeSpent& time, std::string_view matrix, v1::TransportTimes& message) {
  const auto mean_ns = [&time](double seconds) {
    return static_cast<uint64_t>(1e9 * seconds / time.requests);
  };
  v1::Timings& mean = *message.mutable_mean();
  mean.set_queue_ns(mean_ns(time[Phase::kQueue]));
  mean.set_queue_trials_ns(mean_ns(time.queue_trials));
  mean.set_queue_others_ns(mean_ns(time.queue_others));
  mean.set_receive_ns(mean_ns(time[Phase::kReceive]));
  mean.set_setup_ns(mean_ns(time[Phase::kSetup]));
  mean.set_to_device_ns(mean_ns(time[Phase::kToDevice]));
  mean.set_kernel_ns(mean_ns(time[Phase::kKernel]));
  mean.set_from_device_ns(mean_ns(time[Phase::kFromDevice]));
  mean.set_send_ns(mean_ns(time[Phase::kSend]));
  mean.set_total_ns(mean_ns(time.seconds));
  message.set_transport(std::string(TransportOf(time)));
  message.set_finding(Finding(time, matrix));
}

/// `use`: there were products.
void Fill(const MatrixUse& use, std::string_view matrix, v1::RequestTimes& message) {
  message.set_requests(static_cast<double>(use.products.size()));
  message.set_transposed(
      static_cast<double>(std::ranges::count(use.products, true, &MatrixUse::Product::transposed)));
  for (const MatrixUse::OfTransport& of : use.transports) {
    v1::TransportTimes& times = *message.add_transports();
    times.set_requests(static_cast<double>(of.products));
    Fill(of.time, matrix, times);
  }
  // Clients that know of one transport only.
  const v1::TransportTimes& first = message.transports(0);
  *message.mutable_mean() = first.mean();
  message.set_transport(first.transport());
  message.set_finding(first.finding());
}

void Fill(const engine::Explanation& explanation, v1::ExplainReply& reply) {
  reply.set_device(explanation.device);
  reply.set_cache_bytes(explanation.cache_bytes);
  reply.set_line_bytes(explanation.line_bytes);
  reply.set_workers(explanation.workers);
  reply.set_bytes_per_second(explanation.roofline.bytes_per_second);
  reply.set_flops_per_second(explanation.roofline.flops_per_second);
  reply.set_reordered_by(std::string(engine::kComparedOrder));
  reply.set_measured_while_busy(explanation.measured_while_busy);
  reply.set_calibrated_unix_ns(explanation.calibrated_unix_ns);
  reply.set_inner_cache_bytes(explanation.inner_cache_bytes);
  reply.set_cache_bytes_per_second(explanation.cache_bytes_per_second);
  for (const engine::ExplainedOperation& operation : explanation.operations) {
    v1::ExplainedOperation& message = *reply.add_operations();
    message.set_operation(operation.operation == Operation::kSpgemm ? v1::ProblemClass::SPGEMM
                                                                    : v1::ProblemClass::SPMM);
    message.set_k(operation.k);
    Fill(operation.stored, *message.mutable_stored());
    Fill(operation.reordered, *message.mutable_reordered());
    message.set_limit(std::string(engine::Name(operation.limit)));
    message.set_greatest_gain(operation.greatest_gain);
    message.set_known_gain(operation.known_gain);
    message.set_imbalance(operation.imbalance);
    message.set_measured_ms(operation.measured_ms);
    message.set_measured(operation.plan);
    message.set_roofline_share(operation.roofline.share);
    message.set_roof(std::string(engine::Name(operation.roofline.roof)));
    message.set_plan_k(operation.plan_k);
    message.set_trial_k(operation.trial_k);
    message.set_trial_ms(operation.trial_ms);
    message.set_order(operation.order);
    Fill(operation.served, *message.mutable_served());
    message.set_baseline_ms(operation.baseline_ms);
    message.set_reordered_ms(operation.reordered_ms);
    if (operation.busy_trials) ToProto(*operation.busy_trials, *message.mutable_busy_trials());
    message.set_cache_limit(std::string(engine::Name(operation.cache_limit)));
    if (operation.limit == engine::Limit::kCache) {
      Fill(operation.inner, *message.mutable_inner());
      Fill(operation.inner_reordered, *message.mutable_inner_reordered());
      Fill(operation.inner_served, *message.mutable_inner_served());
    }
    if (operation.distributions) Fill(*operation.distributions, message);
  }
}

class ExplainReactor final : public UnaryReactor {
 public:
  ExplainReactor(const ServiceContext& service, grpc::CallbackServerContext& context, Caller caller,
                 Role role, const v1::ExplainRequest& request, grpc::ByteBuffer& response,
                 std::atomic<int>& under_way)
      : UnaryReactor(Op::kExplain, service, context, std::move(caller), request.name(), response),
        role_(role),
        under_way_(under_way),
        counted_(++under_way_ <= kMostAtOnce) {}

  void Start(absl::Status status, const v1::ExplainRequest& request) {
    if (status.ok()) status = Queue(request);
    if (!status.ok()) Conclude(std::move(status));
  }

  void OnCancel() override { stop_ = true; }
  void OnDrain() override {
    draining_ = true;
    stop_ = true;
  }

 private:
  absl::Status Queue(const v1::ExplainRequest& request) {
    if (absl::Status status = Join(); !status.ok()) return status;
    if (!counted_) {
      return engine::RetryLater(absl::ResourceExhaustedError(fmt::format(
          "{} matrices are being explained already, the most at once; retry later", kMostAtOnce)));
    }
    absl::StatusOr<engine::ExplainOptions> options = ToOptions(request);
    if (!options.ok()) return options.status();
    const auto matrix = FindToLookAt(service(), tenant(), role_, request.name());
    if (!matrix.ok()) return matrix.status();
    // Nobody but operators is told what other tenants do with it.
    const std::string& owner = (*matrix)->tenant();
    use_ = service().telemetry.live().UseOf(owner, (*matrix)->name(),
                                            role_ == Role::kOperator ? owner : tenant());
    if (request.k() == 0 && use_.k > 0) options->k = std::min(use_.k, kMostColumns);
    return service().workers.Run(tenant(), [this, options = *options, matrix = *matrix] {
      Conclude(Explain(*matrix, options));
    });
  }

  absl::Status Explain(const engine::Matrix& matrix, const engine::ExplainOptions& options) {
    BuildContext context;
    context.threads = service().threads_per_worker;
    context.memory = &service().engine.budget().Source(engine::MemoryUse::kPreparation);
    context.stop = &stop_;
    const absl::StatusOr<engine::Explanation> explanation =
        engine::Explain(matrix, options, service().engine.executor(), context);
    if (draining_) return absl::UnavailableError("the server is shutting down");
    if (!explanation.ok()) return explanation.status();
    Fill(*explanation, reply_);
    reply_.set_type(ToProto(matrix.type()));
    if (use_.products.empty()) return absl::OkStatus();
    Fill(use_, engine::ReferenceFor(tenant(), {matrix.tenant(), matrix.name()}),
         *reply_.mutable_requests());
    for (size_t i = 0; i < explanation->operations.size(); ++i) {
      const engine::ExplainedOperation& operation = explanation->operations[i];
      if (operation.operation != Operation::kSpmm) continue;
      reply_.mutable_operations(static_cast<int>(i))
          ->set_recent_kernel_ms(1e3 * use_.SpmmKernelSeconds(operation.k, operation.request_plan));
    }
    return absl::OkStatus();
  }

  /// `this` may be gone afterwards.
  void Conclude(absl::Status status) {
    --under_way_;  // before the caller hears of it and asks again
    End(std::move(status), reply_);
  }

  const Role role_;
  MatrixUse use_;  ///< the caller's tenant's, for operators the owner's
  v1::ExplainReply reply_;
  std::atomic<int>& under_way_;  ///< explanations
  const bool counted_;           ///< one of those that may run
  std::atomic<bool> stop_{false};
  std::atomic<bool> draining_{false};
};

}  // namespace

grpc::ServerUnaryReactor* StartExplain(const ServiceContext& service,
                                       grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer& bytes, grpc::ByteBuffer& response,
                                       std::atomic<int>& under_way) {
  absl::StatusOr<Caller> caller =
      Admit(Op::kExplain, service, *context, SubjectIn<v1::ExplainRequest>(bytes));
  if (!caller.ok()) return new RefusedCall<grpc::ServerUnaryReactor>(caller.status());
  v1::ExplainRequest request;
  absl::Status status = wire::ParseRequest(bytes, request);
  const Role role = caller->role;
  auto* const call =
      new ExplainReactor(service, *context, *std::move(caller), role, request, response, under_way);
  call->Start(std::move(status), request);
  return call;
}

}  // namespace sparsed::server
