// Admin.WatchRequests: records of requests as they end, for whoever wants to run them again.
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/admit.h"
#include "server/rpc/client_wait.h"
#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/reactors.h"
#include "server/security/access.h"
#include "server/telemetry/request_feed.h"
#include "server/telemetry/telemetry.h"
#include "sparsed/v1/admin.pb.h"

namespace sparsed::server {
namespace {

/// Records of a reply: on the wire some 300 bytes each.
constexpr size_t kMostOfReply = 500;

class WatchRequestsReactor final : public BytesWriteReactor,
                                   public LiveStream,
                                   public RequestFeed::Listener,
                                   public std::enable_shared_from_this<WatchRequestsReactor> {
 public:
  WatchRequestsReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
                       const Caller& caller)
      : LiveStream(caller),
        service_(service),
        context_(*context),
        record_(service.telemetry.Begin(Op::kWatchRequests, caller, "")) {}

  /// Once, after which it lives until OnDone; `status`: of the request.
  void Begin(absl::Status status, bool all, const Caller& caller) {
    self_ = shared_from_this();
    if (!service_.live_streams.Add(this)) {
      status = absl::UnavailableError("the server is shutting down");
    }
    if (status.ok() && all) {
      status = service_.access.Require(caller, Role::kOperator, "the requests of all tenants");
    }
    if (status.ok()) {
      const MutexLock lock(mutex_);
      begun_ = true;
    }
    // Whoever waits for the first reply knows from then on that nothing is missed.
    if (status.ok()) status = service_.telemetry.feed().Add(self_, caller.tenant, all);
    if (!status.ok()) {
      End(std::move(status));
      return;
    }
    Proceed();
  }

  bool Take(const std::shared_ptr<const EndedRequest>& request) override {
    const MutexLock lock(mutex_);
    if (end_.has_value()) return false;
    waiting_.Add(request);
    return !writing_;
  }

  void OnWriteDone(bool ok) override {
    const absl::Status delivered = delivery_.End(ok);
    {
      const MutexLock lock(mutex_);
      writing_ = false;
      if (!ok && !end_.has_value()) end_ = delivered;
    }
    Proceed();
  }
  void OnCancel() override { End(absl::CancelledError("the watcher is gone")); }
  void OnRefused(const absl::Status& why) override { End(why); }
  void OnDrain() override { End(absl::UnavailableError("the server is shutting down")); }
  void OnTick(const Patience& patience) override { delivery_.Tick(patience, context_); }
  void OnDone() override {
    service_.telemetry.feed().Remove(this);
    service_.live_streams.Remove(this);
    self_.reset();  // the last of it, unless the feed calls Proceed just now
  }

  /// Begins the next write, or ends the call; nothing while a write is under way.
  void Proceed() override {
    std::vector<std::shared_ptr<const EndedRequest>> requests;
    v1::WatchRequestsReply reply;
    std::optional<absl::Status> end;
    {
      const MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (end_.has_value()) {
        finished_ = true;
        end = end_;
      } else if (!begun_ && waiting_.empty()) {
        return;
      } else {
        begun_ = false;
        writing_ = true;
        int64_t left_out = 0;
        std::tie(requests, left_out) = waiting_.Take(kMostOfReply);
        reply.set_left_out(left_out);
      }
    }
    if (end.has_value()) {
      record_.status = *end;
      service_.telemetry.End(std::move(record_));
      EndCount();
      Finish(ToGrpc(*end));
      return;
    }
    for (const auto& request : requests) *reply.add_requests() = ToSlowRequest(*request);
    out_ = wire::Encode(reply);
    delivery_.Begin(0, [this] { StartWrite(&out_); });
  }

 private:
  void End(absl::Status status) {
    {
      const MutexLock lock(mutex_);
      if (!end_.has_value()) end_ = std::move(status);
    }
    Proceed();
  }

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  StageRecord record_;
  std::shared_ptr<WatchRequestsReactor> self_;  ///< until OnDone
  Mutex mutex_;
  WaitingRequests waiting_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;  ///< and its reader does not know
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ByteBuffer out_;  ///< while writing_, of who writes
  Delivery delivery_;
};

}  // namespace

BytesWriteReactor* StartWatchRequests(const ServiceContext& service,
                                      grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer& bytes) {
  v1::WatchRequestsRequest request;
  const absl::Status status = wire::ParseRequest(bytes, request);
  return ForCaller<BytesWriteReactor>(
      Op::kWatchRequests, service, *context, [&](const Caller& caller) {
        const auto reactor = std::make_shared<WatchRequestsReactor>(service, context, caller);
        reactor->Begin(status, request.all(), caller);
        return reactor.get();
      });
}

}  // namespace sparsed::server
