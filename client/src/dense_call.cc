#include "client/src/dense_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "client/src/compute_session.h"
#include "client/src/convert.h"
#include "client/src/ring.h"

namespace sparsed {
inline namespace client {

namespace {

/// Below that, another stream brings less than it costs.
constexpr size_t kLargeBytes = size_t{4} << 20;

}  // namespace

Transport DenseRequest::transport() const {
  if (carries_arrays()) return Transport::kStream;
  if (shared.empty()) return Transport::kHeld;
  const bool on_gpu = std::ranges::all_of(
      shared, [](const SharedMemory::Place& place) { return place.block->on_gpu(); });
  return on_gpu ? Transport::kSharedDevice : Transport::kSharedHost;
}

void DenseCall::StartAttempt() {
  // Here nobody copies into the results of the attempt before.
  // Another node maps no memory that is shared with the first.
  const bool elsewhere = &connection() != first_connection_;
  if ((memory_lost_.exchange(false) || elsewhere) && streamed_) request_ = &*streamed_;
  {
    const MutexLock lock(mutex_);
    receiving_ = true;
    begun_ = carried_ = ended_ = false;
    received_.clear();
    for (const DenseRequest::Result& result : request().results) {
      received_.emplace_back(result.bytes.size());
    }
    result_ = {};
    result_.transport = request().transport();
  }
  EnforceDeadline();
  const auto self = std::static_pointer_cast<DenseCall>(shared_from_this());
  // Others come after a pause anyway, and where a ring had no answer the server has more to say.
  const bool by_ring = std::exchange(first_attempt_, false) && !request().carries_arrays();
  if (!by_ring || !connection().ring().Submit(self)) stream().Submit(self);
}

void DenseCall::StopAttempt() {
  // Its end may be there.
  if (const std::shared_ptr<Ring> ring = this->ring()) ring->Read();
  const std::shared_ptr<ComputeSession> session = this->session();
  if (session) session->Remove(*this, absl::CancelledError("the call was cancelled"));
}

void DenseCall::BreakTransport() {
  if (const std::shared_ptr<ComputeSession> session = this->session()) session->Break();
}

void DenseCall::EndOverdue() {
  if (const std::shared_ptr<Ring> ring = this->ring()) ring->Read();
  if (const std::shared_ptr<ComputeSession> session = this->session()) {
    session->AwaitEndNoLonger(*this);
  }
}

void DenseCall::Joined(std::shared_ptr<ComputeSession> session, uint64_t id) {
  const MutexLock lock(mutex_);
  session_ = std::move(session);
  id_ = id;
}

uint64_t DenseCall::id() const {
  const MutexLock lock(mutex_);
  return id_;
}

std::shared_ptr<Ring> DenseCall::ring() const {
  const MutexLock lock(mutex_);
  return ring_;
}

void DenseCall::Through(std::shared_ptr<Ring> ring) {
  const MutexLock lock(mutex_);
  ring_ = std::move(ring);
  on_ring_ = ring_ != nullptr;
  result_.transport = on_ring_ ? Transport::kRing : request().transport();
}

void DenseCall::Await(std::optional<std::chrono::steady_clock::time_point> end) {
  if (const std::shared_ptr<Ring> ring = this->ring()) {
    ring->ReadUntil(end, [this] { return !on_ring_; });
  }
  const auto spin_until = std::chrono::steady_clock::now() + connection().options().ring_spin;
  const auto until = end ? std::min(*end, spin_until) : spin_until;
  while (!delivered_ && std::chrono::steady_clock::now() < until) wire::Relax();
}

std::shared_ptr<ComputeSession> DenseCall::session() const {
  const MutexLock lock(mutex_);
  return session_;
}

bool DenseCall::large() const {
  const auto is_large = [](const StridedBytes& bytes) { return bytes.size() >= kLargeBytes; };
  return std::ranges::any_of(request().operands, is_large) ||
         std::ranges::any_of(request().results, is_large, &DenseRequest::Result::bytes);
}

grpc::ByteBuffer DenseCall::EncodeStart(uint64_t id, const std::vector<std::string>& carriers) {
  {
    const MutexLock lock(mutex_);
    carried_ = !carriers.empty();
  }
  uint64_t timeout_ns = 0;
  if (has_deadline()) {
    const std::chrono::nanoseconds left = deadline() - std::chrono::system_clock::now();
    timeout_ns = static_cast<uint64_t>(std::max<int64_t>(1, left.count()));
  }
  return request().encode_start(id, timeout_ns, priority_, carriers, trace_);
}

std::vector<OutgoingArray> DenseCall::LendOperands() {
  std::vector<OutgoingArray> arrays;
  for (uint32_t i = 0; i < request().operands.size(); ++i) {
    arrays.push_back({.array = i, .bytes = request().operands[i], .shared = {}, .lease = Lease()});
  }
  return arrays;
}

void DenseCall::EndLost(absl::Status status) {
  if (!shares_memory()) return AttemptOver(std::move(status));
  const std::vector<SharedMemory::Place>& places = request().shared;
  // Another run of the server knows no memory that was shared with an earlier one.
  memory_lost_ = true;
  connection().shared_memory()->GiveUp(
      places, [self = std::static_pointer_cast<DenseCall>(shared_from_this()),
               status = std::move(status)] { self->AttemptOver(status); });
}

absl::Status DenseCall::OnBegin(const v1::Begin& begin) {
  const MutexLock lock(mutex_);
  const std::vector<DenseRequest::Result>& results = request().results;
  if (begun_ || static_cast<size_t>(begin.arrays_size()) != results.size()) {
    return absl::InternalError("the server announced a result that makes no sense");
  }
  begun_ = true;
  result_.plan = begin.plan();
  if (results.empty()) return absl::OkStatus();
  if (request().result_rows >= 0 &&
      (begin.rows() != request().result_rows || begin.cols() != request().result_cols)) {
    return absl::InvalidArgumentError(fmt::format("the result is {} x {}, the destination {} x {}",
                                                  begin.rows(), begin.cols(), request().result_rows,
                                                  request().result_cols));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const v1::ArrayHeader& array = begin.arrays(static_cast<int>(i));
    const size_t elements = results[i].bytes.size() / SizeOf(results[i].type);
    if (array.length() >= 0 && static_cast<size_t>(array.length()) == elements &&
        array.type() == ToProto(results[i].type)) {
      continue;
    }
    return absl::InvalidArgumentError(
        fmt::format("the result has {} elements of type {}, the destination {} of type {}",
                    array.length(), v1::ElementType_Name(array.type()), elements,
                    v1::ElementType_Name(ToProto(results[i].type))));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> DenseCall::OnChunk(const wire::ChunkView& chunk, bool carried) {
  {
    const MutexLock lock(mutex_);
    if (!receiving_) return false;  // cancelled: the memory is the caller's again
    // Carriers may be faster than the stream.
    if (!(carried ? carried_ : begun_) || chunk.array >= received_.size() ||
        !received_[chunk.array].Add(chunk.offset, chunk.size)) {
      return absl::InternalError(
          fmt::format("the server sent {} bytes at {} of array {}, outside of the result or twice",
                      chunk.size, chunk.offset, chunk.array));
    }
    ++copying_;
  }
  size_t offset = chunk.offset;
  for (const grpc::Slice& slice : chunk.data) {
    request().results[chunk.array].bytes.Write(offset, slice.size(),
                                               reinterpret_cast<const std::byte*>(slice.begin()));
    offset += slice.size();
  }
  std::optional<absl::Status> over;
  {
    const MutexLock lock(mutex_);
    if (--copying_ > 0) return false;
    if (!over_) return ended_ && CompleteLocked();
    over = std::exchange(over_, std::nullopt);
  }
  AttemptEnded(*std::move(over));
  return false;
}

bool DenseCall::CompleteLocked() const {
  return copying_ == 0 && std::ranges::all_of(received_, &Coverage::complete);
}

std::optional<absl::Status> DenseCall::OnEnd(const v1::End& end) {
  const std::string& id_there = end.timings().request_id();
  absl::Status status = WithRequestId(FromProto(end.status()), id_there);
  if (status.ok() && end.has_begin()) status = OnBegin(end.begin());
  if (const auto& told = connection().options().on_request; told && !id_there.empty()) {
    told(stream().method(), id_there);
  }
  const MutexLock lock(mutex_);
  result_.request_id = id_there;
  result_.timings = FromProto(end.timings());
  result_.version = end.version();
  for (const v1::StepReport& step : end.steps()) {
    result_.steps.push_back({step.plan(), std::chrono::nanoseconds(step.duration_ns())});
  }
  result_.batch = std::max<int64_t>(1, end.batch());  // a server may not say
  if (!status.ok()) return status;
  if (!begun_) return absl::InternalError("the server ended the request before it began");
  ended_ = true;
  if (CompleteLocked()) return absl::OkStatus();
  if (carried_) return std::nullopt;
  const auto missing = std::ranges::find_if_not(received_, &Coverage::complete);
  return absl::InternalError(fmt::format("the server sent {} of {} bytes of the result",
                                         missing->covered(), missing->size()));
}

void DenseCall::AttemptOver(absl::Status status) {
  std::shared_ptr<Ring> ring;
  {
    const MutexLock lock(mutex_);
    receiving_ = false;
    if (copying_ > 0) {
      over_ = std::move(status);
      return;
    }
    ring.swap(ring_);
    on_ring_ = false;
  }
  if (ring) ring->Wake();
  AttemptEnded(std::move(status));
}

void DenseCall::Deliver(absl::Status status) {
  if (status.ok()) {
    ComputeResult result;
    {
      const MutexLock lock(mutex_);
      result = std::move(result_);
    }
    state_->Complete(std::move(result));
  } else {
    state_->Complete(std::move(status));
  }
  delivered_ = true;
}

}  // namespace client
}  // namespace sparsed
