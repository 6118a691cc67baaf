#include "client/src/compute_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "client/src/convert.h"
#include "client/src/dense_call.h"
#include "client/src/exchange.h"

namespace sparsed {
inline namespace client {

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
  if (const std::shared_ptr<ComputeChannel> channel = this->channel()) channel->Cancel();
}

std::shared_ptr<ComputeChannel> ComputeSession::channel() const {
  const MutexLock lock(mutex_);
  return channel_;
}

void ComputeSession::WaitUntilClosed() {
  const MutexLock lock(mutex_);
  while (!closed_) closed_changed_.Wait(mutex_);
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
    std::optional<absl::Status> aborted;
    const std::shared_ptr<DenseCall> call = TakeEnded(id, &aborted);
    if (!call) return;
    if (aborted) return call->AttemptOver(*std::move(aborted));
    channel()->DropArrays(id);  // refused before it was all sent
    call->OnEnd(reply->end());
    return;
  }
  const std::shared_ptr<DenseCall> call = Find(id);
  if (!call) return;  // what was on its way when the request was cancelled
  absl::Status status;
  if (reply == nullptr) {
    status = call->OnChunk(std::get<wire::ChunkView>(frame));
  } else if (reply->has_begin()) {
    status = call->OnBegin(reply->begin());
  }
  if (!status.ok()) Abort(id, std::move(status));
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
    for (auto& [id, call] : in_flight_) sent.push_back({std::move(call), reason});
    for (auto& [id, aborted] : aborted_) {
      if (aborted.call) sent.push_back(std::move(aborted));
    }
    in_flight_.clear();
    aborted_.clear();
    unsent.swap(waiting_);
    closed_changed_.NotifyAll();
  }
  for (Aborted& one : sent) one.call->EndLost(std::move(one.status));
  for (const auto& call : unsent) call->AttemptOver(reason);
}

void ComputeSession::SendLocked(const std::shared_ptr<DenseCall>& call) {
  const uint64_t id = call->id();
  in_flight_.emplace(id, call);
  channel_->Send(call->message(), call->EncodeStart(id), id, call->LendOperands());
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
  const auto found = in_flight_.find(id);
  return found == in_flight_.end() ? nullptr : found->second;
}

std::shared_ptr<DenseCall> ComputeSession::TakeEnded(uint64_t id,
                                                     std::optional<absl::Status>* status) {
  const MutexLock lock(mutex_);
  std::shared_ptr<DenseCall> ended;
  if (auto node = in_flight_.extract(id)) {
    ended = std::move(node.mapped());
  } else if (auto aborted = aborted_.extract(id)) {
    ended = std::move(aborted.mapped().call);
    *status = std::move(aborted.mapped().status);
  }
  SendWaitingLocked();
  return ended;
}

void ComputeSession::Abort(uint64_t id, absl::Status status) {
  std::shared_ptr<DenseCall> call;
  bool waits = false;
  {
    const MutexLock lock(mutex_);
    auto node = in_flight_.extract(id);
    if (!node) return;
    call = std::move(node.mapped());
    waits = call->shares_memory();
    if (waits) call->Aborted();
    aborted_.emplace(id, waits ? Aborted{call, status} : Aborted{});
  }
  if (const std::shared_ptr<ComputeChannel> channel = this->channel()) {
    channel->DropArrays(id);
    v1::SpmmRequest cancel;  // the same field in every kind of request
    cancel.mutable_cancel()->set_request_id(id);
    channel->Send(wire::RingMessage::kSpmm, wire::Encode(cancel), id, {});
  }
  if (!waits) call->AttemptOver(std::move(status));
}

}  // namespace client
}  // namespace sparsed
