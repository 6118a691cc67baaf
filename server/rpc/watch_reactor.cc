// Catalog.Watch: the state of a preparation, now and at each change.
#include <deque>
#include <optional>

#include "base/mutex.h"
#include "engine/engine.h"
#include "proto/wire/chunk_codec.h"
#include "server/rpc/admit.h"
#include "server/rpc/client_wait.h"
#include "server/rpc/convert.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/reactors.h"
#include "server/rpc/routes.h"
#include "server/rpc/sentence.h"
#include "server/telemetry/telemetry.h"

namespace sparsed::server {
namespace {

/// What a slow reader may be behind; beyond it the newest replaces the one before.
constexpr size_t kMaxBehind = 256;

class WatchReactor final : public BytesWriteReactor, public LiveStream {
 public:
  WatchReactor(const ServiceContext& service, grpc::CallbackServerContext* context,
               const absl::Status& readable, const v1::WatchRequest& request, const Caller& caller)
      : LiveStream(caller),
        service_(service),
        context_(*context),
        name_(request.name()),
        follow_(request.follow()),
        record_(service.telemetry.Begin(Op::kWatch, caller, request.name())),
        tenant_(record_.tenant) {
    if (!service_.live_streams.Add(this)) {
      End(absl::UnavailableError("the server is shutting down"));
    } else if (!readable.ok()) {
      End(readable);
    } else {
      Observe();
    }
  }

  void OnWriteDone(bool ok) override {
    const absl::Status delivered = delivery_.End(ok);
    GoOn([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      writing_ = false;
      if (!ok && !end_.has_value()) end_ = delivered;
      if (!ok) waiting_.clear();
    });
  }

  void OnCancel() override { End(absl::CancelledError("the watcher is gone")); }
  void OnRefused(const absl::Status& why) override { End(why); }
  void OnDrain() override { End(absl::UnavailableError("the server is shutting down")); }
  void OnTick(const Patience& patience) override { delivery_.Tick(patience, context_); }
  void OnMatrixChanged(const std::string& tenant, const std::string& name) override {
    if (engine::Named(tenant_, name_) == engine::NameKey(tenant, name)) Observe();
  }

  void OnDone() override {
    service_.live_streams.Remove(this);
    {
      const MutexLock observing(observe_mutex_);
      if (pattern_ != nullptr) pattern_->progress().Unwatch(watcher_);
    }
    delete this;
  }

 private:
  /// Watches the pattern that the name stands for now.
  void Observe() {
    const MutexLock observing(observe_mutex_);
    const auto matrix = FindMatrix(service_, tenant_, name_);
    if (!matrix.ok()) return End(matrix.status());
    if ((*matrix)->pattern() == pattern_) return;
    if (pattern_ != nullptr) pattern_->progress().Unwatch(watcher_);
    pattern_ = (*matrix)->pattern();
    watcher_ = pattern_->progress().Watch(
        [this](const engine::PreparationStatus& status) { OnStatus(status); });
  }

  void OnStatus(const engine::PreparationStatus& status) {
    v1::WatchReply reply;
    reply.set_state(ToProto(status.state));
    reply.set_stage(status.stage);
    reply.set_done(status.done);
    reply.set_total(status.total);
    reply.set_message(ForClients(status.message));
    const bool last = !follow_ && (status.state == engine::PreparationState::kReady ||
                                   status.state == engine::PreparationState::kFailed);
    GoOn([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (end_.has_value()) return;
      if (waiting_.size() >= kMaxBehind) waiting_.pop_back();
      waiting_.push_back(std::move(reply));
      if (last) end_ = absl::OkStatus();
    });
  }

  /// Ends it after what is waiting; the first reason stays.
  void End(absl::Status status) {
    GoOn([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (!end_.has_value()) end_ = std::move(status);
    });
  }

  /// The next reply, or the terminal transition.
  enum class Next { kNothing, kWrite, kFinish };
  Next TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return Next::kNothing;
    if (!waiting_.empty()) {
      out_ = wire::Encode(waiting_.front());
      waiting_.pop_front();
      writing_ = true;
      return Next::kWrite;
    }
    if (!end_.has_value()) return Next::kNothing;
    finished_ = true;
    record_.status = *end_;
    return Next::kFinish;
  }

  /// After `change`, which is made under the lock, does what is next. Where that is nothing, `this`
  /// may be gone at once.
  template <typename Change>
  void GoOn(const Change& change) {
    Next next = Next::kNothing;
    {
      const MutexLock lock(mutex_);
      change();
      next = TakeNext();
    }
    if (next == Next::kNothing) return;
    if (next == Next::kWrite) return delivery_.Begin(0, [this] { StartWrite(&out_); });
    const absl::Status status = record_.status;
    service_.telemetry.End(std::move(record_));
    EndCount();
    Finish(ToGrpc(status));
  }

  const ServiceContext& service_;
  grpc::CallbackServerContext& context_;
  const std::string name_;
  const bool follow_;
  StageRecord record_;
  const std::string tenant_;

  Mutex observe_mutex_;  ///< taken before the pattern's locks and mutex_
  std::shared_ptr<engine::Pattern> pattern_ ABSL_GUARDED_BY(observe_mutex_);
  int64_t watcher_ ABSL_GUARDED_BY(observe_mutex_) = 0;

  Mutex mutex_;
  std::deque<v1::WatchReply> waiting_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ByteBuffer out_;  ///< while writing_, of who writes
  Delivery delivery_;
};

}  // namespace

BytesWriteReactor* StartWatch(const ServiceContext& service, grpc::CallbackServerContext* context,
                              const grpc::ByteBuffer& bytes) {
  v1::WatchRequest request;
  const absl::Status readable = wire::ParseRequest(bytes, request);
  return ForCaller<BytesWriteReactor>(
      Op::kWatch, service, *context,
      [&](const Caller& caller) {
        return new WatchReactor(service, context, readable, request, caller);
      },
      [&] { return request.name(); });
}

}  // namespace sparsed::server
