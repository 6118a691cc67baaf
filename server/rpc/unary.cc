#include "server/rpc/unary.h"

#include "server/rpc/convert.h"

namespace sparsed::server {
namespace {

/// What is sent within that time is nobody's concern.
constexpr std::chrono::seconds kUsualTime(1);

}  // namespace

UnaryReactor::UnaryReactor(Op op, const ServiceContext& service,
                           grpc::CallbackServerContext& context, Caller caller, std::string subject,
                           grpc::ByteBuffer& response)
    : LiveStream(caller),
      service_(service),
      context_(context),
      response_(response),
      hold_(service.shares.Of(context)),
      op_(op),
      record_(service.telemetry.Begin(op, caller, std::move(subject))) {}

absl::Status UnaryReactor::Join() {
  if (service_.live_streams.Add(this)) return absl::OkStatus();
  return absl::UnavailableError("the server is shutting down");
}

void UnaryReactor::End(absl::Status status, const google::protobuf::MessageLite& reply) {
  if (status.ok()) {
    response_ = wire::Encode(reply);
    status = hold_.GrowTo(static_cast<int64_t>(response_.Length()));
  }
  record_.status = status;
  service_.telemetry.End(std::move(record_));
  sending_ = status.ok() ? static_cast<int64_t>(response_.Length()) : 0;
  EndCount();
  delivery_.Begin(0, [this, end = ToGrpc(status)] { Finish(end); });
}

void UnaryReactor::OnTick(const Patience& patience) { delivery_.Tick(patience, context_); }

void UnaryReactor::Count(InFlightTable& table) {
  if (sending_ == 0 || StageRecord::Clock::now() - begun_ < kUsualTime) return;
  table[{op_, Activity::kSending}].Add(sending_, begun_);
}

void UnaryReactor::OnDone() {
  delivery_.End(/*ok=*/true).IgnoreError();
  service_.live_streams.Remove(this);
  delete this;
}

}  // namespace sparsed::server
