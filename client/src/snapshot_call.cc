// Admin.SaveSnapshot.
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "client/src/admin_calls.h"
#include "client/src/exchange.h"
#include "sparsed/v1/admin.pb.h"

namespace sparsed {
inline namespace client {
namespace {

/// Replies that wait for the callback while the next one arrives.
constexpr int kMostQueued = 2;

class SaveSnapshotCall final : public Exchange {
 public:
  SaveSnapshotCall(Connection& connection, const CallOptions& options, SnapshotCallback on_bytes,
                   std::shared_ptr<CallState<void>> state)
      : Exchange(connection, "/sparsed.v1.Admin/SaveSnapshot", options, Repeat::kSafe),
        on_bytes_(std::move(on_bytes)),
        state_(std::move(state)) {}

 private:
  void Open(Stream& stream) override {
    stream.Send(wire::Encode(v1::SaveSnapshotRequest()));
    stream.CloseSending();
  }

  absl::StatusOr<Next> OnReply(Stream& stream, const grpc::ByteBuffer& bytes) override {
    auto reply = std::make_shared<v1::SaveSnapshotReply>();
    if (absl::Status status = ParseReply(bytes, *reply); !status.ok()) return status;
    // Another attempt would be of another moment.
    MustNotRepeat();
    if (reply->expected_bytes() > 0) expected_ = reply->expected_bytes();
    ++queued_;
    state_->Post([call = shared_from_this(), this, stream = stream.shared_from_this(), reply,
                  expected = expected_] {
      const absl::Status answer = state_->Overruled()
                                      ? absl::OkStatus()
                                      : on_bytes_({.data = reply->data(), .expected = expected});
      --queued_;
      if (answer.ok()) {
        stream->Resume();
      } else {
        state_->Overrule(answer);
        Cancel(answer);
      }
    });
    return queued_ < kMostQueued ? Next::kRead : Next::kPause;
  }

  absl::Status Complete() override { return absl::OkStatus(); }
  void Deliver(absl::Status status) override { state_->Complete(std::move(status)); }

  const SnapshotCallback on_bytes_;
  const std::shared_ptr<CallState<void>> state_;
  std::atomic<int> queued_ = 0;
  int64_t expected_ = 0;
};

}  // namespace

Call<void> SaveSnapshot(const std::shared_ptr<Connection>& connection, SnapshotCallback on_bytes,
                        const CallOptions& options) {
  auto state = std::make_shared<CallState<void>>();
  auto call = std::make_shared<SaveSnapshotCall>(*connection, options, std::move(on_bytes), state);
  return Launch<void>(connection, call, std::move(state));
}

}  // namespace client
}  // namespace sparsed
