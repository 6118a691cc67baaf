#include "client/src/compute_session.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "client/src/dense_call.h"

namespace sparsed {
inline namespace client {

bool ComputeSession::Add(const std::shared_ptr<DenseCall>& call) {
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    id = next_id_++;
    call->Joined(shared_from_this(), id);
    if (in_flight_.size() >= max_in_flight_) {
      waiting_.push_back(call);
      return true;
    }
    in_flight_.emplace(id, call);
  }
  Send(id, *call);
  return true;
}

void ComputeSession::Remove(const DenseCall& call, absl::Status status) {
  std::shared_ptr<DenseCall> unsent;
  {
    const std::lock_guard lock(mutex_);
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

void ComputeSession::WaitUntilClosed() {
  std::unique_lock lock(mutex_);
  closed_changed_.wait(lock, [this] { return closed_; });
}

Stream::Handler::Next ComputeSession::OnMessage(const grpc::ByteBuffer& bytes) {
  auto frame = wire::Decode<v1::ComputeReply>(bytes);
  if (!frame.ok()) {
    stream_->Cancel();  // nothing that follows can be trusted
  } else if (const auto* chunk = std::get_if<wire::ChunkView>(&*frame)) {
    if (const std::shared_ptr<DenseCall> call = Find(chunk->request_id)) {
      const absl::Status status = call->OnChunk(*chunk);
      if (!status.ok()) Abort(chunk->request_id, status);
    }
  } else {
    OnControl(std::get<v1::ComputeReply>(*frame));
  }
  return Next::kRead;
}

void ComputeSession::OnControl(const v1::ComputeReply& reply) {
  if (reply.has_begin()) {
    if (const std::shared_ptr<DenseCall> call = Find(reply.begin().request_id())) {
      const absl::Status status = call->OnBegin(reply.begin());
      if (!status.ok()) Abort(reply.begin().request_id(), status);
    }
  } else if (reply.has_end()) {
    if (const std::shared_ptr<DenseCall> call = Take(reply.end().request_id())) {
      stream_->DropArrays(reply.end().request_id());  // refused before it was all sent
      call->OnEnd(reply.end());
    }
  }
}

void ComputeSession::OnClosed(const absl::Status& status) {
  std::vector<std::shared_ptr<DenseCall>> calls;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (auto& [id, call] : in_flight_) calls.push_back(std::move(call));
    for (auto& call : waiting_) calls.push_back(std::move(call));
    in_flight_.clear();
    waiting_.clear();
    closed_changed_.notify_all();
  }
  for (const auto& call : calls) {
    // A stream that the server ended well, or that we ended, says nothing about this request.
    call->AttemptOver(status.ok() || absl::IsCancelled(status)
                          ? absl::UnavailableError("the stream ended before the request did")
                          : status);
  }
}

void ComputeSession::Send(uint64_t id, DenseCall& call) {
  stream_->Send(call.EncodeStart(id), id, call.LendOperands());
}

std::shared_ptr<DenseCall> ComputeSession::Find(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = in_flight_.find(id);
  return found == in_flight_.end() ? nullptr : found->second;
}

std::shared_ptr<DenseCall> ComputeSession::Take(uint64_t id) {
  std::shared_ptr<DenseCall> taken;
  std::shared_ptr<DenseCall> next;
  {
    const std::lock_guard lock(mutex_);
    const auto found = in_flight_.find(id);
    if (found == in_flight_.end()) return nullptr;
    taken = std::move(found->second);
    in_flight_.erase(found);
    if (!waiting_.empty()) {
      next = std::move(waiting_.front());
      waiting_.pop_front();
      in_flight_.emplace(next->id(), next);
    }
  }
  if (next) Send(next->id(), *next);
  return taken;
}

void ComputeSession::Abort(uint64_t id, absl::Status status) {
  const std::shared_ptr<DenseCall> call = Take(id);
  if (!call) return;
  stream_->DropArrays(id);
  v1::SpmmRequest cancel;  // the same field in every kind of request
  cancel.mutable_cancel()->set_request_id(id);
  stream_->Send(wire::Encode(cancel));
  call->AttemptOver(std::move(status));
}

}  // namespace client
}  // namespace sparsed
