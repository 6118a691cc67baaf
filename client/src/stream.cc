#include "client/src/stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "client/src/convert.h"
#include "proto/wire/chunk_codec.h"

namespace sparsed {
inline namespace client {

namespace {

/// A server's are shorter.
constexpr size_t kMostRequestId = 256;

/// What gRPC says of a connection that broke, in words for who reads its logs.
bool IsTransports(std::string_view message) {
  return message == "Socket closed" || message == "Connection reset by peer" ||
         message == "Broken pipe" || message.starts_with("recvmsg:") ||
         message.starts_with("sendmsg:");
}

grpc::ByteBuffer EncodeChunk(uint64_t request_id, const OutgoingArray& array, size_t offset,
                             size_t size) {
  if (array.shared) {
    v1::SharedMemory place;
    place.set_region(array.shared->region);
    place.set_offset(array.shared->offset + offset);
    return wire::EncodeSharedChunk(request_id, array.array, offset, std::move(place), size);
  }
  grpc::Slice data;
  if (array.bytes.contiguous()) {
    data = wire::Borrow(array.bytes.data() + offset, size, array.lease);
  } else {
    data = grpc::Slice(size);
    array.bytes.Read(offset, size,
                     reinterpret_cast<std::byte*>(const_cast<uint8_t*>(data.begin())));
  }
  return wire::EncodeChunk(request_id, array.array, offset, std::move(data));
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE &&
      IsTransports(status.error_message())) {
    return absl::UnavailableError("the server went away before the answer was complete (" +
                                  status.error_message() + ")");
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
      status.error_message() == "Deadline Exceeded") {  // gRPC's own words
    return absl::DeadlineExceededError("the call's deadline passed before its answer was complete");
  }
  v1::Status details;
  if (!details.ParseFromString(status.error_details())) details.Clear();
  details.set_code(status.error_code());
  details.set_message(status.error_message());
  return FromProto(details);
}

OutgoingArrays::OutgoingArrays(uint64_t request_id, std::vector<OutgoingArray> arrays,
                               bool shared_out)
    : request_id_(request_id), shared_out_(shared_out) {
  for (OutgoingArray& array : arrays) {
    if (array.bytes.size() > 0) arrays_.push_back(std::move(array));
  }
}

bool OutgoingArrays::empty() const {
  const MutexLock lock(mutex_);
  return arrays_.empty();
}

std::optional<OutgoingArrays::Chunk> OutgoingArrays::Next(size_t chunk_bytes) {
  const MutexLock lock(mutex_);
  if (arrays_.empty()) return std::nullopt;
  OutgoingArray& array = arrays_.front();
  const size_t offset = taken_;
  const size_t size = std::min(chunk_bytes, array.bytes.size() - offset);
  taken_ += size;
  if (taken_ < array.bytes.size()) return Chunk{array, offset, size};
  Chunk last{std::move(array), offset, size};
  arrays_.pop_front();
  taken_ = 0;
  return last;
}

std::shared_ptr<Stream> Stream::Create(grpc::GenericStub& stub, const std::string& method,
                                       std::chrono::system_clock::time_point deadline,
                                       size_t chunk_bytes, std::shared_ptr<Handler> handler,
                                       const std::string& token, const TraceHeaders& trace) {
  std::shared_ptr<Stream> stream(new Stream(chunk_bytes, std::move(handler)));
  stream->self_ = stream;
  stream->context_.set_deadline(deadline);
  if (!token.empty()) stream->context_.AddMetadata("authorization", "Bearer " + token);
  if (!trace.empty()) stream->context_.AddMetadata("traceparent", trace.parent);
  if (!trace.state.empty()) stream->context_.AddMetadata("tracestate", trace.state);
  stub.PrepareBidiStreamingCall(&stream->context_, method, grpc::StubOptions(), stream.get());
  return stream;
}

void Stream::Start() {
  AddHold();  // writes are started from anywhere, until the reading side has ended
  StartRead(&incoming_);
  StartCall();
}

bool Stream::Send(grpc::ByteBuffer message, uint64_t request_id,
                  std::vector<OutgoingArray> arrays) {
  return Send(std::move(message), std::make_shared<OutgoingArrays>(request_id, std::move(arrays)));
}

bool Stream::Send(grpc::ByteBuffer message, std::shared_ptr<OutgoingArrays> arrays) {
  const MutexLock lock(mutex_);
  if (!open_ || close_sending_) return false;
  messages_.push_back(std::move(message));
  if (arrays != nullptr && !arrays->empty()) arrays_.push_back(std::move(arrays));
  WriteNextLocked();
  return true;
}

bool Stream::SendArrays(uint64_t request_id, std::vector<OutgoingArray> arrays) {
  return SendArrays(std::make_shared<OutgoingArrays>(request_id, std::move(arrays)));
}

bool Stream::SendArrays(std::shared_ptr<OutgoingArrays> arrays) {
  const MutexLock lock(mutex_);
  if (!open_ || close_sending_) return false;
  if (arrays != nullptr && !arrays->empty()) arrays_.push_back(std::move(arrays));
  WriteNextLocked();
  return true;
}

void Stream::DropArrays(uint64_t request_id) {
  std::vector<std::shared_ptr<OutgoingArrays>> dropped;  // leases end without the lock
  const MutexLock lock(mutex_);
  for (auto it = arrays_.begin(); it != arrays_.end();) {
    if ((*it)->request_id() == request_id) {
      dropped.push_back(std::move(*it));
      it = arrays_.erase(it);
    } else {
      ++it;
    }
  }
}

void Stream::CloseSending() {
  const MutexLock lock(mutex_);
  close_sending_ = true;
  WriteNextLocked();
}

bool Stream::sending_closed() const {
  const MutexLock lock(mutex_);
  return sending_closed_;
}

void Stream::Resume() {
  const MutexLock lock(mutex_);
  if (paused_) {
    paused_ = false;
    StartRead(&incoming_);
  } else {
    resume_asked_ = true;
  }
}

void Stream::Cancel() {
  const MutexLock lock(mutex_);
  if (!open_) return;
  cancelled_ = true;
  context_.TryCancel();
  if (paused_) {  // only a read notices the end
    paused_ = false;
    StartRead(&incoming_);
  }
}

void Stream::OnReadDone(bool ok) {
  if (!ok) {
    std::deque<std::shared_ptr<OutgoingArrays>> dropped;  // leases end without the lock
    {
      const MutexLock lock(mutex_);
      open_ = false;
      messages_.clear();
      dropped.swap(arrays_);
    }
    RemoveHold();
    return;
  }
  grpc::ByteBuffer message;
  message.Swap(&incoming_);
  {
    const MutexLock lock(mutex_);
    resume_asked_ = false;
  }
  const Handler::Next next = handler_->OnMessage(message);
  const MutexLock lock(mutex_);
  if (next == Handler::Next::kRead || resume_asked_ || cancelled_) {
    StartRead(&incoming_);
  } else {
    paused_ = true;
  }
}

void Stream::OnWriteDone(bool ok) {
  grpc::ByteBuffer written;  // its lease ends without the lock
  size_t data = 0;
  {
    const MutexLock lock(mutex_);
    written.Swap(&outgoing_);
    data = std::exchange(outgoing_data_, 0);
    writing_ = false;
    if (ok) WriteNextLocked();
  }
  if (ok && data > 0) handler_->OnSent(data);
}

void Stream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<Handler> handler = std::move(handler_);
  std::string id;
  const auto& metadata = context_.GetServerTrailingMetadata();
  if (const auto found = metadata.find("x-request-id"); found != metadata.end()) {
    id.assign(found->second.data(), std::min(found->second.size(), kMostRequestId));
  }
  self_.reset();  // usually the last reference
  if (!id.empty()) handler->OnRequestId(id);
  handler->OnClosed(WithRequestId(FromGrpc(status), id));
}

void Stream::WriteNextLocked() {
  if (!open_ || writing_ || sending_closed_) return;
  grpc::WriteOptions options;
  if (!messages_.empty()) {
    outgoing_ = messages_.front();
    messages_.pop_front();
    // What others may take before it is this stream's turn does not follow for sure.
    const bool follows = !messages_.empty() || std::ranges::any_of(arrays_, [](const auto& a) {
      return !a->shared_out();
    });
    if (follows) options.set_buffer_hint();
  } else if (!TakeChunkLocked()) {
    if (close_sending_) {
      sending_closed_ = true;
      StartWritesDone();
    }
    return;
  }
  writing_ = true;
  StartWrite(&outgoing_, options);
}

bool Stream::TakeChunkLocked() {
  while (!arrays_.empty()) {
    std::shared_ptr<OutgoingArrays> arrays = std::move(arrays_.front());
    arrays_.pop_front();
    const std::optional<OutgoingArrays::Chunk> chunk = arrays->Next(chunk_bytes_);
    if (!chunk) continue;  // another stream took the last
    outgoing_data_ = chunk->size;
    outgoing_ = EncodeChunk(arrays->request_id(), chunk->array, chunk->offset, chunk->size);
    if (arrays != nullptr && !arrays->empty()) arrays_.push_back(std::move(arrays));
    return true;
  }
  return false;
}

}  // namespace client
}  // namespace sparsed
