#include "client/src/compute_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "client/src/connection.h"
#include "client/src/convert.h"
#include "client/src/dense_call.h"
#include "client/src/exchange.h"

namespace sparsed {
inline namespace client {

ComputeSession::ComputeSession(Connection& connection, size_t max_in_flight, size_t carriers)
    : connection_(connection), max_in_flight_(max_in_flight), slots_(carriers) {}

bool ComputeSession::Add(const std::shared_ptr<DenseCall>& call) {
  const MutexLock lock(mutex_);
  if (closed_ || !violation_.ok()) return false;
  call->Joined(shared_from_this(), next_id_++);
  waiting_.push_back(call);
  SendWaitingLocked();
  return true;
}

void ComputeSession::Remove(const DenseCall& call, absl::Status status) {
  std::shared_ptr<DenseCall> unsent;
  {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&call](const auto& other) { return other.get() == &call; });
    if (found != waiting_.end()) {
      unsent = std::move(*found);
      waiting_.erase(found);
    }
  }
  if (unsent) {
    unsent->AttemptOver(std::move(status));
  } else {
    Abort(call.id(), std::move(status));
  }
}

void ComputeSession::AwaitEndNoLonger(const DenseCall& call) {
  Aborted aborted;
  {
    const MutexLock lock(mutex_);
    const auto found = aborted_.find(call.id());
    if (found == aborted_.end()) return;
    aborted.call.swap(found->second.call);
    aborted.status = found->second.status;
  }
  if (aborted.call) aborted.call->EndLost(std::move(aborted.status));
}

void ComputeSession::Break() {
  std::vector<std::shared_ptr<Stream>> carriers;
  std::shared_ptr<ComputeChannel> channel;
  {
    const MutexLock lock(mutex_);
    channel = channel_;
    carriers = CarryingLocked();
  }
  if (channel) channel->Cancel();
  for (const std::shared_ptr<Stream>& carrier : carriers) carrier->Cancel();
}

bool ComputeSession::closed() const {
  const MutexLock lock(mutex_);
  return closed_locked();
}

std::shared_ptr<ComputeChannel> ComputeSession::channel() const {
  const MutexLock lock(mutex_);
  return channel_;
}

void ComputeSession::WaitUntilClosed() {
  const MutexLock lock(mutex_);
  while (!closed_locked()) closed_changed_.Wait(mutex_);
}

Stream::Handler::Next ComputeSession::OnMessage(const grpc::ByteBuffer& bytes) {
  auto frame = DecodeReply<v1::ComputeReply>(bytes);
  if (!frame.ok()) {
    EndForViolation(frame.status());
  } else if (const std::optional<uint64_t> id = RequestIdOf(*frame)) {
    if (!WasSent(*id)) {
      EndForViolation(absl::InternalError(
          fmt::format("the server answered request {}, which was never sent", *id)));
    } else {
      OnReply(*id, *frame);
    }
  }
  return Next::kRead;
}

void ComputeSession::OnReply(uint64_t id, const wire::Frame<v1::ComputeReply>& frame) {
  const auto* reply = std::get_if<v1::ComputeReply>(&frame);
  if (reply != nullptr && reply->has_end()) {
    absl::Status status;
    const std::shared_ptr<DenseCall> call = TakeEnded(id, reply->end(), &status);
    if (!call) return;
    DropArrays(id);  // refused before it was all sent
    call->AttemptOver(std::move(status));
    return;
  }
  if (reply == nullptr) return OnChunk(id, std::get<wire::ChunkView>(frame), false);
  const std::shared_ptr<DenseCall> call = Find(id);
  if (!call || !reply->has_begin()) return;
  if (absl::Status status = call->OnBegin(reply->begin()); !status.ok()) {
    Abort(id, std::move(status));
  }
}

void ComputeSession::OnChunk(uint64_t id, const wire::ChunkView& chunk, bool carried) {
  const std::shared_ptr<DenseCall> call = Find(id);
  if (!call) return;  // what was on its way when the request was cancelled
  const absl::StatusOr<bool> complete = call->OnChunk(chunk, carried);
  if (!complete.ok()) {
    Abort(id, complete.status());
  } else if (*complete) {
    Arrived(id);
  }
}

void ComputeSession::OnCarried(Carrier& carrier, const grpc::ByteBuffer& bytes) {
  const auto frame = DecodeReply<v1::CarryReply>(bytes);
  if (!frame.ok()) return EndForViolation(frame.status());
  if (const auto* chunk = std::get_if<wire::ChunkView>(&*frame)) {
    if (WasSent(chunk->request_id)) return OnChunk(chunk->request_id, *chunk, true);
    return EndForViolation(absl::InternalError(
        fmt::format("the server answered request {}, which was never sent", chunk->request_id)));
  }
  const auto& reply = std::get<v1::CarryReply>(*frame);
  const MutexLock lock(mutex_);
  if (carrier.name.empty()) carrier.name = reply.carrier();
}

void ComputeSession::OnCarrierClosed(const Carrier& carrier, const absl::Status& status) {
  const auto uses = [&carrier](const Sent& sent) {
    return std::ranges::any_of(sent.carriers,
                               [&](const auto& other) { return other.get() == &carrier; });
  };
  std::vector<uint64_t> failed;
  std::vector<std::shared_ptr<DenseCall>> lost;
  std::string why(status.ok() ? "the server closed it" : status.message());
  {
    const MutexLock lock(mutex_);
    for (Slot& slot : slots_) {
      if (slot.carrier.get() != &carrier) continue;
      slot.gave_up = carrier.name.empty();
      slot.carrier.reset();
    }
    for (const auto& [id, sent] : in_flight_) {
      if (uses(sent)) failed.push_back(id);
    }
    for (auto it = arriving_.begin(); it != arriving_.end();) {
      Sent& sent = it->second;
      if (!uses(sent)) {
        ++it;
        continue;
      }
      std::erase_if(sent.carriers, [&](const auto& other) { return other.get() == &carrier; });
      // One that the server closed well has brought what it was to bring.
      if (status.ok() && !sent.carriers.empty()) {
        ++it;
        continue;
      }
      lost.push_back(std::move(sent.call));
      it = arriving_.erase(it);
    }
  }
  const absl::Status broke = absl::UnavailableError(
      fmt::format("a connection that carried some of the request broke: {}", why));
  for (const uint64_t id : failed) Abort(id, broke);
  for (const std::shared_ptr<DenseCall>& call : lost) call->AttemptOver(broke);
  const MutexLock lock(mutex_);
  --open_carriers_;
  closed_changed_.NotifyAll();
}

void ComputeSession::Arrived(uint64_t id) {
  std::shared_ptr<DenseCall> call;
  {
    const MutexLock lock(mutex_);
    auto node = arriving_.extract(id);
    if (!node) return;
    call = std::move(node.mapped().call);
  }
  call->AttemptOver(absl::OkStatus());
}

std::vector<std::shared_ptr<Carrier>> ComputeSession::TakeCarriersLocked() {
  std::vector<std::shared_ptr<Carrier>> carriers;
  for (size_t i = 0; i < slots_.size(); ++i) {
    std::shared_ptr<Carrier>& carrier = slots_[i].carrier;
    if (carrier != nullptr) {
      if (!carrier->name.empty()) carriers.push_back(carrier);
    } else if (!slots_[i].gave_up) {
      carrier = std::make_shared<Carrier>(shared_from_this());
      carrier->stream = Stream::Create(connection_.carrier_stub(i), "/sparsed.v1.Compute/Carry",
                                       std::chrono::system_clock::time_point::max(),
                                       connection_.chunk_bytes(), carrier, connection_.Token());
      ++open_carriers_;
      carrier->stream->Start();
    }
  }
  return carriers;
}

void ComputeSession::DropArrays(uint64_t id) {
  std::vector<std::shared_ptr<Stream>> carriers;
  std::shared_ptr<ComputeChannel> channel;
  {
    const MutexLock lock(mutex_);
    channel = channel_;
    carriers = CarryingLocked();
  }
  if (channel) channel->DropArrays(id);
  for (const std::shared_ptr<Stream>& carrier : carriers) carrier->DropArrays(id);
}

std::vector<std::shared_ptr<Stream>> ComputeSession::CarryingLocked() const {
  std::vector<std::shared_ptr<Stream>> carriers;
  for (const Slot& slot : slots_) {
    if (slot.carrier) carriers.push_back(slot.carrier->stream);
  }
  return carriers;
}

void ComputeSession::EndForViolation(absl::Status status) {
  {
    const MutexLock lock(mutex_);
    if (violation_.ok()) violation_ = std::move(status);
  }
  Break();
}

void ComputeSession::OnClosed(const absl::Status& status) {
  std::shared_ptr<ComputeChannel> ended;
  std::vector<std::shared_ptr<Stream>> carriers;
  std::vector<Aborted> sent;
  std::deque<std::shared_ptr<DenseCall>> unsent;
  absl::Status reason;
  {
    const MutexLock lock(mutex_);
    closed_ = true;
    ended.swap(channel_);
    if (!violation_.ok()) {
      reason = violation_;
    } else if (status.ok() || absl::IsCancelled(status)) {
      // A stream that the server ended well, or that we ended, says nothing about the requests.
      reason = absl::UnavailableError("the stream ended before the request did");
    } else {
      reason = status;
    }
    for (auto& [id, request] : in_flight_) sent.push_back({std::move(request.call), reason});
    for (auto& [id, aborted] : aborted_) {
      if (aborted.call) sent.push_back(std::move(aborted));
    }
    in_flight_.clear();
    aborted_.clear();
    unsent.swap(waiting_);
    // The server ends them after what they have yet to bring.
    for (const Slot& slot : slots_) {
      if (slot.carrier && arriving_.empty()) carriers.push_back(slot.carrier->stream);
    }
    closed_changed_.NotifyAll();
  }
  for (const std::shared_ptr<Stream>& carrier : carriers) carrier->Cancel();
  for (Aborted& one : sent) one.call->EndLost(std::move(one.status));
  for (const auto& call : unsent) call->AttemptOver(reason);
}

void ComputeSession::SendLocked(const std::shared_ptr<DenseCall>& call) {
  const uint64_t id = call->id();
  Sent& sent = in_flight_[id];
  sent.call = call;
  if (call->large()) sent.carriers = TakeCarriersLocked();
  std::vector<std::string> names;
  for (const std::shared_ptr<Carrier>& carrier : sent.carriers) names.push_back(carrier->name);
  const auto arrays = std::make_shared<OutgoingArrays>(id, call->LendOperands(),
                                                       /*shared_out=*/!sent.carriers.empty());
  channel_->Send(call->message(), call->EncodeStart(id, names), arrays);
  for (const std::shared_ptr<Carrier>& carrier : sent.carriers) carrier->stream->SendArrays(arrays);
}

void ComputeSession::SendWaitingLocked() {
  while (!waiting_.empty() && in_flight_.size() + aborted_.size() < max_in_flight_) {
    SendLocked(waiting_.front());
    waiting_.pop_front();
  }
}

bool ComputeSession::WasSent(uint64_t id) const {
  const MutexLock lock(mutex_);
  return id != 0 && id < next_id_;
}

std::shared_ptr<DenseCall> ComputeSession::Find(uint64_t id) const {
  const MutexLock lock(mutex_);
  if (const auto found = in_flight_.find(id); found != in_flight_.end()) return found->second.call;
  const auto found = arriving_.find(id);
  return found == arriving_.end() ? nullptr : found->second.call;
}

std::shared_ptr<DenseCall> ComputeSession::TakeEnded(uint64_t id, const v1::End& end,
                                                     absl::Status* status) {
  // The server may know that a carrier has ended before this side does: whatever is sent again is
  // to go by others.
  std::vector<std::shared_ptr<Carrier>> given_up;
  MutexLock lock(mutex_);
  std::shared_ptr<DenseCall> ended;
  if (auto node = in_flight_.extract(id)) {
    if (absl::IsUnavailable(FromProto(end.status()))) {
      given_up = node.mapped().carriers;
      for (Slot& slot : slots_) {
        if (std::ranges::count(given_up, slot.carrier) > 0) slot.carrier.reset();
      }
    }
    // Under the lock: what completes it looks for it among those that arrive.
    if (std::optional<absl::Status> over = node.mapped().call->OnEnd(end)) {
      ended = std::move(node.mapped().call);
      *status = *std::move(over);
    } else {
      arriving_.insert(std::move(node));
    }
  } else if (auto aborted = aborted_.extract(id)) {
    ended = std::move(aborted.mapped().call);
    *status = std::move(aborted.mapped().status);
  }
  SendWaitingLocked();
  lock.Unlock();
  for (const std::shared_ptr<Carrier>& carrier : given_up) carrier->stream->Cancel();
  return ended;
}

void ComputeSession::Abort(uint64_t id, absl::Status status) {
  std::shared_ptr<DenseCall> call;
  bool waits = false;
  {
    const MutexLock lock(mutex_);
    auto node = in_flight_.extract(id);
    const bool in_flight = !node.empty();
    if (!in_flight) node = arriving_.extract(id);
    if (!node) return;
    call = std::move(node.mapped().call);
    waits = in_flight && call->shares_memory();
    if (waits) call->Aborted();
    if (in_flight) aborted_.emplace(id, waits ? Aborted{call, status} : Aborted{});
  }
  DropArrays(id);
  if (const std::shared_ptr<ComputeChannel> channel = this->channel()) {
    v1::SpmmRequest cancel;  // the same field in every kind of request
    cancel.mutable_cancel()->set_request_id(id);
    channel->Send(wire::RingMessage::kSpmm, wire::Encode(cancel), nullptr);
  }
  if (!waits) call->AttemptOver(std::move(status));
}

}  // namespace client
}  // namespace sparsed
