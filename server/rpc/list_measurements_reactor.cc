// Catalog.ListMeasurements: pattern by pattern, in messages that any gRPC client takes.
#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/admit.h"
#include "server/rpc/client_wait.h"
#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/reactors.h"
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
        record_(service.telemetry.Begin(Op::kListMeasurements, caller, request.name())) {
    if (!service_.live_streams.Add(this)) {
      status = absl::UnavailableError("the server is shutting down");
    }
    if (status.ok()) status = FindPatterns(request.name());
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
  absl::Status FindPatterns(const std::string& name) {
    const auto add = [this](const engine::MatrixLease& matrix) {
      patterns_[matrix->pattern()->hash()] = matrix->pattern();
    };
    if (name.empty()) {
      for (const auto& matrix : service_.engine.catalog().List(record_.tenant, "")) add(matrix);
      return absl::OkStatus();
    }
    const auto matrix = service_.engine.catalog().Find(record_.tenant, name);
    if (matrix.ok()) add(*matrix);
    return matrix.status();
  }

  /// One message at a time; `this` may be gone afterwards.
  void WriteNext() {
    if (sent_ == measurements_.size()) {
      if (patterns_.empty()) return Conclude(absl::OkStatus());
      pattern_ = patterns_.extract(patterns_.begin()).mapped();
      measurements_ = pattern_->trials().measurements();
      sent_ = 0;
    }
    const size_t count = std::min(kMost, measurements_.size() - sent_);
    out_ = wire::Encode(ToPatternMeasurements(
        *pattern_, std::span(measurements_).subspan(sent_, count), service_.engine.executor()));
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
  StageRecord record_;
  std::map<std::string, std::shared_ptr<engine::Pattern>> patterns_;  ///< by hash, to be sent
  std::shared_ptr<engine::Pattern> pattern_;                          ///< under way
  std::vector<engine::Measurement> measurements_;                     ///< its own
  size_t sent_ = 0;                                                   ///< of them
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
