#include "client/src/ring.h"

#include <algorithm>

#include "client/src/compute_session.h"
#include "client/src/connection.h"
#include "client/src/convert.h"
#include "client/src/dense_call.h"

namespace sparsed {
inline namespace client {
namespace {

using wire::RingBell;

/// For chains of a few steps, too.
constexpr wire::RingSize kSize = {.slots = 64, .slot_bytes = 4096};
/// After a server had none to give.
constexpr std::chrono::seconds kPause{5};
/// After which who waits looks whether the server is still there.
constexpr std::chrono::milliseconds kLongestSleep{100};
/// ... while messages wait for room.
constexpr std::chrono::milliseconds kShortSleep{1};

}  // namespace

absl::StatusOr<std::shared_ptr<Ring>> Ring::Open(std::shared_ptr<LocalSocket> socket,
                                                 std::chrono::microseconds spin) {
  absl::StatusOr<std::unique_ptr<SharedBlock>> block = SharedBlock::Make(kSize.file_bytes());
  if (!block.ok()) return block.status();
  v1::LocalRequest request;
  request.mutable_ring()->set_slots(kSize.slots);
  request.mutable_ring()->set_slot_bytes(kSize.slot_bytes);
  const absl::StatusOr<LocalSocket::Reply> reply =
      socket->Ask(std::move(request), (*block)->file());
  if (!reply.ok()) return reply.status();
  return std::shared_ptr<Ring>(new Ring(std::move(socket), *std::move(block), kSize, spin));
}

Ring::Ring(std::shared_ptr<LocalSocket> socket, std::unique_ptr<SharedBlock> block,
           wire::RingSize size, std::chrono::microseconds spin)
    : spin_(spin),
      socket_(std::move(socket)),
      block_(std::move(block)),
      ring_(block_->data(), size),
      requests_(ring_.RequestProducer()),
      replies_(ring_.ReplyConsumer()) {}

Ring::~Ring() {
  // A child's memory is its parent's.
  if (OfThisProcess()) ring_.Leave();
}

void Ring::Start(std::shared_ptr<Stream::Handler> session) {
  const MutexLock lock(read_mutex_);
  session_ = std::move(session);
}

void Ring::Send(wire::RingMessage what, grpc::ByteBuffer message,
                std::shared_ptr<OutgoingArrays> /*arrays*/) {
  if (!OfThisProcess()) return;
  const MutexLock lock(send_mutex_);
  waiting_.emplace_back(what, std::move(message));
  PutWaiting();
}

void Ring::PutWaiting() {
  bool put = false;
  while (!waiting_.empty()) {
    // What a server says that cannot be ends the ring when its replies are read.
    if (requests_.Untaken().value_or(ring_.size().slots) >= ring_.size().slots) break;
    requests_.Put(waiting_.front().first, waiting_.front().second);
    waiting_.pop_front();
    put = true;
  }
  if (put) ring_.request_bell.Ring(RingBell::kPut);
}

void Ring::Cancel() {
  cancelled_ = true;
  Wake();
}

void Ring::Wake() {
  // Who reads looks again anyway.
  if (reader_.load() != std::this_thread::get_id() && OfThisProcess()) ring_.reply_bell.Wake();
}

void Ring::End(const absl::Status& status) {
  ended_ = true;
  ring_.Leave();
  if (const std::shared_ptr<Stream::Handler> session = std::move(session_)) {
    session->OnClosed(status);
  }
}

void Ring::Read() {
  const std::thread::id self = std::this_thread::get_id();
  if (!OfThisProcess() || reader_.load() == self) return;
  const MutexLock lock(read_mutex_);
  if (ended_) return;
  reader_ = self;
  // Before the replies: none comes after it.
  const std::optional<v1::Status> end = ring_.Ended();
  bool taken = false;
  absl::Status status;
  while (true) {
    absl::StatusOr<std::optional<wire::RingConsumer::Taken>> reply = replies_.Take();
    if (!reply.ok()) status = absl::InternalError(reply.status().message());
    if (!reply.ok() || !reply->has_value()) break;
    taken = true;
    session_->OnMessage((*reply)->bytes);
  }
  if (taken) ring_.request_bell.Ring(RingBell::kTaken);
  if (!status.ok()) {
    End(status);
  } else if (cancelled_) {
    End(absl::CancelledError("the ring was ended"));
  } else if (end.has_value()) {
    End(FromProto(*end));
  } else if (!taken && !socket_->Alive()) {
    End(absl::UnavailableError("the connection to the server's local socket ended"));
  }
  reader_ = std::thread::id();
  const MutexLock sending(send_mutex_);
  PutWaiting();
}

void Ring::ReadUntil(std::optional<Clock::time_point> end, const std::function<bool()>& done) {
  const Clock::time_point spin_until = Clock::now() + spin_;
  for (bool first = true; !ended_; first = false) {
    // Looked at before the lock is taken, for which others may wait, too.
    if (first || replies_.Ready()) Read();
    if (done()) return;
    const Clock::time_point now = Clock::now();
    if (end && now >= *end) return;
    if (now < spin_until) {
      wire::Relax();
      continue;
    }
    // What was there before is read, and what comes later rings.
    const uint32_t heard = ring_.reply_bell.Listen();
    Read();
    if (done() || ended_) return;
    std::chrono::nanoseconds most = kLongestSleep;
    {
      const MutexLock lock(send_mutex_);
      if (!waiting_.empty()) most = kShortSleep;
    }
    if (end) most = std::min<std::chrono::nanoseconds>(most, *end - now);
    ring_.reply_bell.Wait(heard, most);
  }
}

bool Ring::Usable() {
  if (ended_ || !OfThisProcess()) return false;
  if (!ring_.Ended().has_value() && socket_->Alive()) return true;
  Read();
  if (!ended_) Read();  // what was there came first
  return false;
}

ComputeRing::~ComputeRing() {
  if (opened_.ring == nullptr) return;
  opened_.ring->Cancel();
  opened_.ring->Read();
}

ComputeRing::Opened ComputeRing::Current() {
  Opened opened;
  {
    const MutexLock lock(mutex_);
    opened = opened_;
  }
  // Calls end without the lock.
  if (opened.ring != nullptr && opened.ring->Usable()) return opened;
  {
    const MutexLock lock(mutex_);
    if (opening_ || opened.ring != opened_.ring || Ring::Clock::now() < not_before_) return {};
    opening_ = true;
  }
  opened = {};
  absl::StatusOr<std::shared_ptr<LocalSocket>> socket = connection_.shared_memory()->Socket();
  if (socket.ok()) {
    absl::StatusOr<std::shared_ptr<Ring>> ring =
        Ring::Open(*std::move(socket), connection_.options().ring_spin);
    if (ring.ok()) {
      opened.ring = *std::move(ring);
      opened.session = std::make_shared<ComputeSession>(
          connection_,
          std::min<size_t>(static_cast<size_t>(connection_.max_requests_per_stream()),
                           // Room for a cancellation.
                           opened.ring->slots() - 1),
          /*carriers=*/0);
      opened.session->Use(opened.ring);
      opened.ring->Start(opened.session);
    }
  }
  const MutexLock lock(mutex_);
  opening_ = false;
  if (opened.ring == nullptr) not_before_ = Ring::Clock::now() + kPause;
  opened_ = opened;
  return opened;
}

bool ComputeRing::Submit(const std::shared_ptr<DenseCall>& call) {
  if (!connection_.options().ring) return false;
  const Opened opened = Current();
  if (opened.ring == nullptr || call->message_bytes() > opened.ring->message_bytes()) return false;
  call->Through(opened.ring);
  if (opened.session->Add(call)) return true;
  call->Through(nullptr);
  return false;
}

}  // namespace client
}  // namespace sparsed
