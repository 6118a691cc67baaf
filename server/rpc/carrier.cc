#include "server/rpc/carrier.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "server/rpc/admit.h"
#include "server/rpc/client_wait.h"
#include "server/rpc/compute_stream.h"
#include "server/rpc/convert.h"
#include "server/rpc/shared_regions.h"
#include "sparsed/v1/compute.pb.h"

namespace sparsed::server {
namespace {

/// Without it the request can be sent again.
absl::Status NotKnown() {
  return absl::UnavailableError(
      "a carrier of the request is not known here: it was not opened, or has ended");
}

grpc::ByteBuffer EncodeName(const std::string& name) {
  v1::CarryReply reply;
  reply.set_carrier(name);
  return wire::Encode(reply);
}

}  // namespace

BytesBidiReactor* StartCarry(const ServiceContext& service, grpc::CallbackServerContext* context) {
  const absl::StatusOr<Caller> caller = Admit(service, *context);
  if (!caller.ok()) return new RefusedCall<BytesBidiReactor>(caller.status());
  return Carrier::Start(service, context, *caller);
}

BytesBidiReactor* Carrier::Start(const ServiceContext& service,
                                 grpc::CallbackServerContext* context, const Caller& caller) {
  auto carrier = std::make_shared<Carrier>(service, context, caller);
  carrier->self_ = carrier;
  carrier->Begin();
  return carrier.get();
}

Carrier::Carrier(const ServiceContext& service, grpc::CallbackServerContext* context,
                 const Caller& caller)
    : LiveStream(caller),
      service_(service),
      context_(*context),
      name_(SharedRegions::NewName()),
      held_(service.shares.Of(*context)) {}

void Carrier::Begin() {
  if (!service_.live_streams.Add(this)) {
    return End(absl::UnavailableError("the server is shutting down"));
  }
  service_.carriers.Add(shared_from_this());
  bool ended;  // as the server shuts down
  {
    const MutexLock lock(mutex_);
    ended = ended_;
    if (!ended) {
      writing_ = true;
      write_began_ = Patience::Clock::now();
      StartRead(&in_);
    }
  }
  if (ended) return service_.carriers.Remove(name_);
  StartWriting(EncodeName(name_));
}

absl::Status Carrier::Join(std::shared_ptr<ComputeStream> stream, bool* writing) {
  const MutexLock lock(mutex_);
  if (ended_) return NotKnown();
  if (stream_ != nullptr) {
    return absl::FailedPreconditionError("a carrier of the request belongs to another stream");
  }
  stream_ = std::move(stream);
  *writing = writing_;
  return absl::OkStatus();
}

absl::Status Carrier::Keep(wire::ChunkView chunk) {
  const MutexLock lock(mutex_);
  return KeepLocked(std::move(chunk));
}

absl::Status Carrier::KeepLocked(wire::ChunkView chunk) {
  if (ended_) return absl::OkStatus();
  if (absl::Status status = held_.GrowTo(static_cast<int64_t>(chunk.size)); !status.ok()) {
    return status;
  }
  waiting_ = std::move(chunk);
  waiting_since_ = Patience::Clock::now();
  return absl::OkStatus();
}

void Carrier::Resume() {
  wire::ChunkView chunk;
  {
    const MutexLock lock(mutex_);
    if (!waiting_.has_value()) return;
    chunk = *std::move(waiting_);
    waiting_.reset();
    held_.Clear();
  }
  Take(std::move(chunk));
}

void Carrier::OnReadDone(bool ok) {
  if (!ok) {
    if (context_.IsCancelled()) return End(WhyGone());
    {
      // Results may still leave by one that is a stream's.
      const MutexLock lock(mutex_);
      if (stream_ != nullptr) return;
    }
    return End(absl::OkStatus());
  }
  auto message = wire::Decode<v1::CarryRequest>(in_);
  in_.Clear();
  if (!message.ok()) return End(message.status());
  auto* const chunk = std::get_if<wire::ChunkView>(&*message);
  if (chunk == nullptr) return End(absl::InvalidArgumentError("a carrier's message has no chunk"));
  Take(std::move(*chunk));
}

void Carrier::Take(wire::ChunkView chunk) {
  std::shared_ptr<ComputeStream> stream;
  absl::Status kept;
  {
    const MutexLock lock(mutex_);
    stream = stream_;
    if (stream == nullptr) kept = KeepLocked(std::move(chunk));
  }
  if (!kept.ok()) return End(std::move(kept));
  if (stream == nullptr) return;
  const absl::StatusOr<bool> taken = stream->ReceiveFrom(*this, std::move(chunk));
  if (!taken.ok()) return End(taken.status());
  const MutexLock lock(mutex_);
  if (*taken && !ended_) StartRead(&in_);
}

void Carrier::Write(grpc::ByteBuffer bytes) {
  {
    const MutexLock lock(mutex_);
    if (ended_) return;
    writing_ = true;
    write_began_ = Patience::Clock::now();
  }
  StartWriting(std::move(bytes));
}

void Carrier::StartWriting(grpc::ByteBuffer bytes) {
  // Without the lock: that may fill the connection. Until it is done nobody finishes the call.
  out_.Swap(&bytes);
  StartWrite(&out_);
}

void Carrier::OnWriteDone(bool ok) {
  std::shared_ptr<ComputeStream> stream;
  grpc::ByteBuffer written;  // the last of a result, perhaps
  {
    const MutexLock lock(mutex_);
    written.Swap(&out_);
    writing_ = false;
    stream = stream_;
    FinishLocked();
  }
  if (!ok) return End(WhyGone());
  if (stream != nullptr) stream->CarrierReady(*this);
}

void Carrier::OnCancel() { End(WhyGone()); }

absl::Status Carrier::WhyGone() {
  const MutexLock lock(mutex_);
  return cancelled_.ok() ? absl::CancelledError("the client is gone") : cancelled_;
}

void Carrier::OnDrain() {
  {
    const MutexLock lock(mutex_);
    if (stream_ != nullptr) return;
  }
  End(absl::UnavailableError("the server is shutting down"));
}

void Carrier::OnTick(const Patience& patience) {
  absl::Status over;
  {
    const MutexLock lock(mutex_);
    if (finished_) return;
    if (writing_ && cancelled_.ok() && patience.IsOver(write_began_, patience.send)) {
      over = patience.NothingTaken("the reader of a carrier took nothing");
      cancelled_ = over;
      CancelCall(context_, over);
    } else if (waiting_.has_value() && patience.IsOver(waiting_since_, patience.receive)) {
      over = patience.NothingReceived(
          fmt::format("a chunk of request {} waited for its request", waiting_->request_id));
    }
  }
  if (!over.ok()) End(std::move(over));
}

void Carrier::End(absl::Status status) {
  std::shared_ptr<ComputeStream> stream;
  {
    const MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    status_ = status;
    stream = std::move(stream_);
    waiting_.reset();
    held_.Clear();
  }
  // The call is done afterwards, and with the last of them the server may be gone.
  service_.carriers.Remove(name_);
  {
    const MutexLock lock(mutex_);
    forgotten_ = true;
    FinishLocked();
  }
  if (stream != nullptr) stream->CarrierEnded(*this, status);
}

void Carrier::FinishLocked() {
  if (!forgotten_ || writing_ || finished_) return;
  finished_ = true;
  Finish(ToGrpc(status_));
}

void Carrier::OnDone() {
  service_.live_streams.Remove(this);
  const std::shared_ptr<Carrier> last = std::move(self_);
}

void Carriers::Add(std::shared_ptr<Carrier> carrier) {
  const MutexLock lock(mutex_);
  carriers_.emplace(carrier->name(), std::move(carrier));
}

void Carriers::Remove(const std::string& name) {
  std::shared_ptr<Carrier> last;  // goes without the lock
  const MutexLock lock(mutex_);
  const auto found = carriers_.find(name);
  if (found == carriers_.end()) return;
  last = std::move(found->second);
  carriers_.erase(found);
}

absl::StatusOr<std::shared_ptr<Carrier>> Carriers::Find(const std::string& tenant,
                                                        const std::string& name) const {
  const MutexLock lock(mutex_);
  const auto found = carriers_.find(name);
  if (found == carriers_.end() || found->second->tenant() != tenant) return NotKnown();
  return found->second;
}

}  // namespace sparsed::server
