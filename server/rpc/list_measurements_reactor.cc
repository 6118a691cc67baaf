// Catalog.ListMeasurements: pattern by pattern, in messages that any gRPC client takes.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/catalog/trial_log.h"
#include "engine/engine.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/admit.h"
#include "server/rpc/client_wait.h"
#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/reactors.h"
#include "server/rpc/routes.h"
#include "server/rpc/worker_pool.h"
#include "server/security/access.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {
namespace {

/// Measurements of a message.
constexpr size_t kMost = 1000;

class ListMeasurementsReactor final : public BytesWriteReactor, public LiveStream {
 public:
  ListMeasurementsReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
                          absl::Status status, const v1::ListMeasurementsRequest& request,
                          const Caller& caller)
      : LiveStream(caller),
        service_(service),
        context_(*context),
        density_maps_(request.density_maps()),
        past_(request.all()),
        record_(service.telemetry.Begin(Op::kListMeasurements, caller, request.name())) {
    if (!service_.live_streams.Add(this)) {
      status = absl::UnavailableError("the server is shutting down");
    }
    if (status.ok()) status = FindPatterns(request, caller);
    if (status.ok()) {
      WriteNext();
    } else {
      Conclude(std::move(status));
    }
  }

  void OnWriteDone(bool ok) override {
    if (absl::Status status = delivery_.End(ok); !status.ok()) return Conclude(std::move(status));
    WriteNext();
  }

  void OnTick(const Patience& patience) override { delivery_.Tick(patience, context_); }
  void OnDone() override {
    service_.live_streams.Remove(this);
    delete this;
  }

 private:
  absl::Status FindPatterns(const v1::ListMeasurementsRequest& request, const Caller& caller) {
    const auto add = [this](const engine::MatrixLease& matrix) {
      patterns_[matrix->pattern()->hash()] = matrix->pattern();
    };
    const std::string& name = request.name();
    if (request.all()) {
      if (!name.empty()) {
        return absl::InvalidArgumentError(
            "name: with `all` the measurements are not of one matrix");
      }
      absl::Status allowed =
          service_.access.Require(caller, Role::kOperator, "what was measured for all tenants");
      if (!allowed.ok()) return allowed;
      for (const auto& matrix : service_.engine.catalog().All()) add(matrix);
      return absl::OkStatus();
    }
    if (name.empty()) {
      for (const auto& matrix : service_.engine.catalog().List(record_.tenant, "")) add(matrix);
      return absl::OkStatus();
    }
    const auto matrix = FindMatrix(service_, record_.tenant, name);
    if (matrix.ok()) add(*matrix);
    return matrix.status();
  }

  /// One message at a time; `this` may be gone afterwards.
  void WriteNext() {
    if (sent_ < of_.measurements.size()) return Write();
    if (!patterns_.empty()) {
      const std::shared_ptr<engine::Pattern> pattern =
          patterns_.extract(patterns_.begin()).mapped();
      if (past_) sent_patterns_.insert(pattern->hash());
      return Begin({pattern->hash(), pattern->features(), pattern->trials().measurements()});
    }
    if (!past_) return Conclude(absl::OkStatus());
    absl::Status queued = service_.workers.Run(record_.tenant, [this] { ReadPast(); });
    if (!queued.ok()) Conclude(std::move(queued));
  }

  /// On a worker.
  void ReadPast() {
    auto past = service_.engine.ReadNextPast(of_.past ? of_.pattern_hash : "");
    // What is kept of one that has come back joins the others when it goes again.
    while (past.ok() && *past && sent_patterns_.contains((*past)->pattern_hash)) {
      past = service_.engine.ReadNextPast((*past)->pattern_hash);
    }
    if (!past.ok() || !*past) return Conclude(past.status());
    Begin(**std::move(past));
  }

  void Begin(engine::PatternMeasurements of) {
    of_ = std::move(of);
    sent_ = 0;
    Write();
  }

  void Write() {
    const size_t count = std::min(kMost, of_.measurements.size() - sent_);
    out_ = wire::Encode(
        ToPatternMeasurements(of_, std::span(of_.measurements).subspan(sent_, count),
                              density_maps_ && sent_ == 0, service_.engine.executor()));
    sent_ += count;
    delivery_.Begin(0, [this] { StartWrite(&out_); });
  }

  /// The terminal transition; `this` may be gone afterwards.
  void Conclude(absl::Status status) {
    record_.status = status;
    service_.telemetry.End(std::move(record_));
    EndCount();
    Finish(ToGrpc(status));
  }

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  const bool density_maps_;
  const bool past_;  ///< past patterns, too
  StageRecord record_;
  std::map<std::string, std::shared_ptr<engine::Pattern>> patterns_;  ///< by hash, to be sent
  std::set<std::string> sent_patterns_;                               ///< if past ones follow
  engine::PatternMeasurements of_;                                    ///< the one under way
  size_t sent_ = 0;                                                   ///< of its measurements
  grpc::ByteBuffer out_;
  Delivery delivery_;
};

}  // namespace

BytesWriteReactor* StartListMeasurements(const ServiceContext& service,
                                         grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer& bytes) {
  v1::ListMeasurementsRequest request;
  const absl::Status status = wire::ParseRequest(bytes, request);
  return ForCaller<BytesWriteReactor>(
      Op::kListMeasurements, service, *context, [&](const Caller& caller) {
        return new ListMeasurementsReactor(service, context, status, request, caller);
      });
}

}  // namespace sparsed::server
