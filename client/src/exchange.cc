#include "client/src/exchange.h"

#include <utility>

namespace sparsed {
inline namespace client {

std::shared_ptr<Stream> Exchange::stream() const {
  const MutexLock lock(mutex_);
  return stream_;
}

void Exchange::StartAttempt() {
  error_ = absl::OkStatus();
  const auto self = std::static_pointer_cast<Exchange>(shared_from_this());
  const std::shared_ptr<Stream> stream =
      Stream::Create(connection().stub(), method_, deadline(), connection().chunk_bytes(), self);
  {
    const MutexLock lock(mutex_);
    stream_ = stream;
  }
  Open(*stream);
  stream->Start();
}

void Exchange::StopAttempt() {
  if (const std::shared_ptr<Stream> stream = this->stream()) stream->Cancel();
}

Stream::Handler::Next Exchange::OnMessage(const grpc::ByteBuffer& bytes) {
  if (!error_.ok()) return Next::kRead;  // what still comes after the cancellation
  const std::shared_ptr<Stream> stream = this->stream();
  const absl::StatusOr<Next> next = OnReply(*stream, bytes);
  if (next.ok()) return *next;
  error_ = next.status();
  stream->Cancel();
  return Next::kRead;
}

void Exchange::OnClosed(const absl::Status& status) {
  std::shared_ptr<Stream> stream;
  {
    const MutexLock lock(mutex_);
    stream.swap(stream_);
  }
  if (stream->sending_closed()) SendingClosed();
  absl::Status end = error_;
  if (end.ok()) end = status.ok() ? Complete() : status;
  if (end.ok() && Continues()) return RunAttempt();
  AttemptEnded(std::move(end));
}

absl::Status ParseReply(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite& reply) {
  if (wire::Parse(bytes, reply).ok()) return absl::OkStatus();
  return absl::InternalError("the server's reply is malformed");
}

}  // namespace client
}  // namespace sparsed
