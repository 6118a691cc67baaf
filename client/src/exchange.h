// A call on a gRPC stream of its own.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/src/remote_call.h"
#include "client/src/stream.h"
#include "proto/wire/chunk_codec.h"

namespace sparsed {
inline namespace client {

class Exchange : public RemoteCall, public Stream::Handler {
 protected:
  Exchange(Connection& connection, std::string method, const CallOptions& options, Repeat repeat)
      : RemoteCall(connection, options, repeat),
        method_(std::move(method)),
        trace_(TraceOf(options)) {}

  /// Sends what begins an attempt, and forgets what an earlier one brought.
  virtual void Open(Stream& stream) = 0;
  /// A reply; an error ends the call with it.
  virtual absl::StatusOr<Next> OnReply(Stream& stream, const grpc::ByteBuffer& bytes) = 0;
  /// The server ended the call well: is everything there?
  virtual absl::Status Complete() = 0;
  /// After that: does another exchange follow?
  virtual bool Continues() { return false; }

  /// Where its attempts let the server read memory that it shares; only asked of one that ended
  /// without the server's word.
  virtual std::vector<SharedMemory::Place> SharedPlaces() const { return {}; }

  /// Ends the call with `error`; from outside OnReply.
  void Fail(absl::Status error) { Cancel(std::move(error)); }
  /// Of the attempt under way.
  std::shared_ptr<Stream> stream() const;
  const TraceHeaders& trace() const { return trace_; }

 private:
  /// What is asked of matrices; the rest is about a server itself, or what it alone has.
  bool AnyNode() const final {
    return method_.starts_with("/sparsed.v1.Catalog/") ||
           method_.starts_with("/sparsed.v1.Compute/");
  }
  void StartAttempt() final;
  void StopAttempt() final;
  Next OnMessage(const grpc::ByteBuffer& bytes) final;
  void OnRequestId(const std::string& id) final;
  void OnClosed(const absl::Status& status) final;

  const std::string method_;
  const TraceHeaders trace_;
  mutable Mutex mutex_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_;  // found in a reply of this attempt; only touched by the reading side
};

/// Of those of `arrays` that lie in shared memory.
std::vector<SharedMemory::Place> PlacesOf(std::span<const OutgoingArray> arrays);

/// INTERNAL if the server's `bytes` are not such a message.
absl::Status ParseReply(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite& reply);

/// Likewise for envelopes with chunks.
template <typename Envelope>
absl::StatusOr<wire::Frame<Envelope>> DecodeReply(const grpc::ByteBuffer& bytes) {
  auto frame = wire::Decode<Envelope>(bytes);
  if (frame.ok()) return frame;
  return absl::InternalError("the server's reply is malformed");
}

/// One message there, one back.
template <typename Reply, typename T>
class UnaryCall final : public Exchange {
 public:
  using Convert = std::function<T(const Reply&)>;

  UnaryCall(Connection& connection, std::string method, const CallOptions& options, bool safe,
            const google::protobuf::MessageLite& request, Convert convert,
            std::shared_ptr<CallState<T>> state)
      : Exchange(connection, std::move(method), options, safe ? Repeat::kSafe : Repeat::kIfRefused),
        request_(wire::Encode(request)),
        convert_(std::move(convert)),
        state_(std::move(state)) {}

 private:
  void Open(Stream& stream) override {
    reply_.reset();
    stream.Send(request_);
    stream.CloseSending();
  }
  absl::StatusOr<Next> OnReply(Stream&, const grpc::ByteBuffer& bytes) override {
    if (absl::Status status = ParseReply(bytes, reply_.emplace()); !status.ok()) return status;
    return Next::kRead;
  }
  absl::Status Complete() override {
    return reply_ ? absl::OkStatus() : absl::InternalError("the server sent no reply");
  }
  void Deliver(absl::Status status) override {
    if constexpr (std::is_void_v<T>) {
      state_->Complete(std::move(status));
    } else if (status.ok()) {
      state_->Complete(convert_(*reply_));
    } else {
      state_->Complete(std::move(status));
    }
  }

  const grpc::ByteBuffer request_;
  const Convert convert_;
  const std::shared_ptr<CallState<T>> state_;
  std::optional<Reply> reply_;
};

template <typename Reply, typename T>
Call<T> LaunchUnary(const std::shared_ptr<Connection>& connection, const std::string& method,
                    const CallOptions& options, bool safe_to_repeat,
                    const google::protobuf::MessageLite& request,
                    std::function<T(const Reply&)> convert, InShards<T> in_shards = {}) {
  auto state = std::make_shared<CallState<T>>();
  auto call = std::make_shared<UnaryCall<Reply, T>>(*connection, method, options, safe_to_repeat,
                                                    request, std::move(convert), state);
  return Launch<T>(connection, call, std::move(state), std::move(in_shards));
}

/// The order of names in lists, which page tokens follow: of TENANT~NAME by tenant, then by name,
/// so that "a~x" comes before "a-b~a".
inline bool ComesBefore(std::string_view a, std::string_view b) {
  const auto tenant = [](std::string_view name) {
    const size_t mark = name.find('~');
    return mark == std::string_view::npos ? std::string_view() : name.substr(0, mark);
  };
  return std::pair(tenant(a), a) < std::pair(tenant(b), b);
}

/// A list that comes in pages.
template <typename Request, typename Reply, typename Item>
class ListCall final : public Exchange {
 public:
  using Elements = std::function<std::vector<Item>(const Reply&)>;

  ListCall(Connection& connection, std::string method, const CallOptions& options, Request request,
           Elements elements, std::shared_ptr<CallState<std::vector<Item>>> state)
      : Exchange(connection, std::move(method), options, Repeat::kSafe),
        request_(std::move(request)),
        elements_(std::move(elements)),
        state_(std::move(state)) {}

 private:
  void Open(Stream& stream) override {
    reply_.reset();
    stream.Send(wire::Encode(request_));
    stream.CloseSending();
  }
  absl::StatusOr<Next> OnReply(Stream&, const grpc::ByteBuffer& bytes) override {
    if (absl::Status status = ParseReply(bytes, reply_.emplace()); !status.ok()) return status;
    return Next::kRead;
  }
  absl::Status Complete() override {
    if (!reply_) return absl::InternalError("the server sent no reply");
    // Tokens ascend with the names, so that the list comes to an end; of older servers' shared
    // matrices as text.
    if (!reply_->next_page_token().empty() &&
        !ComesBefore(request_.page_token(), reply_->next_page_token()) &&
        reply_->next_page_token() <= request_.page_token()) {
      return absl::InternalError("the server's list goes in circles");
    }
    std::vector<Item> elements = elements_(*reply_);
    for (Item& item : elements) list_.push_back(std::move(item));
    return absl::OkStatus();
  }
  bool Continues() override {
    request_.set_page_token(reply_->next_page_token());
    MadeProgress();
    return !request_.page_token().empty();
  }
  void Deliver(absl::Status status) override {
    if (status.ok()) {
      state_->Complete(std::move(list_));
    } else {
      state_->Complete(std::move(status));
    }
  }

  Request request_;
  const Elements elements_;
  const std::shared_ptr<CallState<std::vector<Item>>> state_;
  std::optional<Reply> reply_;
  std::vector<Item> list_;
};

template <typename Request, typename Reply, typename Item>
Call<std::vector<Item>> LaunchList(const std::shared_ptr<Connection>& connection,
                                   const std::string& method, const CallOptions& options,
                                   Request request,
                                   std::function<std::vector<Item>(const Reply&)> elements) {
  auto state = std::make_shared<CallState<std::vector<Item>>>();
  auto call = std::make_shared<ListCall<Request, Reply, Item>>(
      *connection, method, options, std::move(request), std::move(elements), state);
  return Launch<std::vector<Item>>(connection, call, std::move(state));
}

}  // namespace client
}  // namespace sparsed
