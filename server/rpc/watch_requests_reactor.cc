// Admin.WatchRequests: records of requests as they end, for whoever wants to run them again.
#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>

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

/// Records that a slow reader may be behind; those beyond are counted and left out.
constexpr size_t kMostWaiting = 10'000;
/// Of a reply: some 300 bytes each.
constexpr size_t kMostOfReply = 500;

class WatchRequestsReactor final : public BytesWriteReactor,
                                   public LiveStream,
                                   public RequestFeed::Listener {
 public:
  WatchRequestsReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
                       absl::Status status, bool all, const Caller& caller)
      : LiveStream(caller),
        service_(service),
        context_(*context),
        all_(all),
        tenant_(caller.tenant),
        record_(service.telemetry.Begin(Op::kWatchRequests, caller, "")) {
    if (!service_.live_streams.Add(this)) {
      status = absl::UnavailableError("the server is shutting down");
    }
    if (status.ok() && all) {
      status = service.access.Require(caller, Role::kOperator, "the requests of all tenants");
    }
    if (!status.ok()) {
      End(std::move(status));
      return;
    }
    // Whoever waits for it knows from then on that nothing is missed.
    {
      const MutexLock lock(mutex_);
      begun_ = true;
    }
    service_.telemetry.feed().Add(this);
    Proceed();
  }

  void OnRequest(const EndedRequest& request) override {
    if (!all_ && request.record.tenant != tenant_) return;
    {
      const MutexLock lock(mutex_);
      if (waiting_.size() >= kMostWaiting) {
        ++left_out_;
        return;
      }
      waiting_.push_back(request);
    }
    Proceed();
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
    delete this;
  }

 private:
  void End(absl::Status status) {
    {
      const MutexLock lock(mutex_);
      if (!end_.has_value()) end_ = std::move(status);
    }
    Proceed();
  }

  /// Begins the next write, or ends the call; nothing while a write is under way.
  void Proceed() {
    std::deque<EndedRequest> requests;
    v1::WatchRequestsReply reply;
    std::optional<absl::Status> end;
    {
      const MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (end_.has_value()) {
        finished_ = true;
        end = end_;
      } else if (!begun_ && waiting_.empty() && left_out_ == 0) {
        return;
      } else {
        begun_ = false;
        writing_ = true;
        const size_t count = std::min(waiting_.size(), kMostOfReply);
        std::move(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count),
                  std::back_inserter(requests));
        waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
        reply.set_left_out(std::exchange(left_out_, 0));
      }
    }
    if (end.has_value()) {
      record_.status = *end;
      service_.telemetry.End(std::move(record_));
      Finish(ToGrpc(*end));
      return;
    }
    for (const EndedRequest& request : requests) *reply.add_requests() = ToSlowRequest(request);
    out_ = wire::Encode(reply);
    delivery_.Begin(0, [this] { StartWrite(&out_); });
  }

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  const bool all_;
  const std::string tenant_;
  StageRecord record_;
  Mutex mutex_;
  std::deque<EndedRequest> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
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
        return new WatchRequestsReactor(service, context, status, request.all(), caller);
      });
}

}  // namespace sparsed::server
