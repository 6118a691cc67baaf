#include "client/src/exchange.h"

#include <utility>

namespace sparsed {
inline namespace client {

namespace {

/// Whether the stream ended so that the server may not know it yet, and still handle what it got.
bool MayStillRead(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsUnavailable(status);
}

}  // namespace

std::shared_ptr<Stream> Exchange::stream() const {
  const MutexLock lock(mutex_);
  return stream_;
}

void Exchange::StartAttempt() {
  error_ = absl::OkStatus();
  const auto self = std::static_pointer_cast<Exchange>(shared_from_this());
  const std::shared_ptr<Stream> stream =
      Stream::Create(connection().stub(), method_, deadline(), connection().chunk_bytes(), self,
                     connection().Token(), trace_);
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

void Exchange::OnRequestId(const std::string& id) {
  if (connection().options().on_request) connection().options().on_request(method_, id);
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
  std::vector<SharedMemory::Place> places;
  if (MayStillRead(status)) places = SharedPlaces();
  if (places.empty()) return AttemptEnded(std::move(end));
  connection().shared_memory()->GiveUp(
      places, [self = std::static_pointer_cast<Exchange>(shared_from_this()),
               end = std::move(end)] { self->AttemptEnded(end); });
}

std::vector<SharedMemory::Place> PlacesOf(std::span<const OutgoingArray> arrays) {
  std::vector<SharedMemory::Place> places;
  for (const OutgoingArray& array : arrays) {
    if (array.shared) places.push_back(*array.shared);
  }
  return places;
}

absl::Status ParseReply(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite& reply) {
  if (wire::Parse(bytes, reply).ok()) return absl::OkStatus();
  return absl::InternalError("the server's reply is malformed");
}

}  // namespace client
}  // namespace sparsed
