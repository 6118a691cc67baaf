// Admin.WatchRequests.
#include <memory>
#include <utility>
#include <vector>

#include "client/src/admin_calls.h"
#include "client/src/convert.h"
#include "client/src/exchange.h"
#include "sparsed/v1/admin.pb.h"

namespace sparsed {
inline namespace client {
namespace {

class WatchRequestsCall final : public Exchange {
 public:
  WatchRequestsCall(Connection& connection, const CallOptions& options, bool all,
                    RequestsCallback on_requests, std::shared_ptr<CallState<void>> state)
      : Exchange(connection, "/sparsed.v1.Admin/WatchRequests", options, Repeat::kSafe),
        on_requests_(std::move(on_requests)),
        state_(std::move(state)) {
    request_.set_all(all);
  }

 private:
  void Open(Stream& stream) override {
    stream.Send(wire::Encode(request_));
    stream.CloseSending();
  }

  absl::StatusOr<Next> OnReply(Stream& stream, const grpc::ByteBuffer& bytes) override {
    v1::WatchRequestsReply reply;
    if (absl::Status status = ParseReply(bytes, reply); !status.ok()) return status;
    // Another attempt would miss what ends meanwhile.
    MustNotRepeat();
    std::vector<SlowRequest> requests;
    for (const v1::SlowRequest& request : reply.requests()) requests.push_back(FromProto(request));
    state_->Post([call = shared_from_this(), this, stream = stream.shared_from_this(),
                  requests = std::move(requests), left_out = reply.left_out()] {
      on_requests_(requests, left_out);
      stream->Resume();
    });
    return Next::kPause;
  }

  absl::Status Complete() override {
    return absl::InternalError("the server stopped telling of requests");
  }
  void Deliver(absl::Status status) override { state_->Complete(std::move(status)); }

  v1::WatchRequestsRequest request_;
  const RequestsCallback on_requests_;
  const std::shared_ptr<CallState<void>> state_;
};

}  // namespace

Call<void> WatchRequests(const std::shared_ptr<Connection>& connection, bool all,
                         RequestsCallback on_requests, const CallOptions& options) {
  auto state = std::make_shared<CallState<void>>();
  auto call =
      std::make_shared<WatchRequestsCall>(*connection, options, all, std::move(on_requests), state);
  return Launch<void>(connection, call, std::move(state));
}

}  // namespace client
}  // namespace sparsed
