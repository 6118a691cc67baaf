#include "server/local/ring.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "proto/wire/chunk_codec.h"
#include "proto/wire/ring.h"
#include "server/rpc/compute_stream.h"
#include "server/rpc/connection_share.h"
#include "server/rpc/convert.h"
#include "server/rpc/service.h"
#include "server/telemetry/call_origin.h"

namespace sparsed::server {
namespace {

using Clock = std::chrono::steady_clock;
using wire::RingBell;
using wire::RingMessage;

/// Who sleeps looks again after so long: a caller that writes where it should not may keep it from
/// being woken.
constexpr std::chrono::seconds kLongestSleep{1};

std::optional<Op> OpOf(RingMessage what) {
  switch (what) {
    case RingMessage::kSpmm:
      return Op::kSpmm;
    case RingMessage::kSddmm:
      return Op::kSddmm;
    case RingMessage::kChain:
      return Op::kChain;
    default:
      return std::nullopt;
  }
}

/// An `end` of more than `most` bytes, without what it can be understood without.
grpc::ByteBuffer Shortened(const grpc::ByteBuffer& message, size_t most) {
  constexpr size_t kMostSentence = 256;
  v1::ComputeReply reply;
  if (!wire::Parse(message, reply).ok()) reply.Clear();
  v1::End& end = *reply.mutable_end();
  end.clear_steps();
  std::string& sentence = *end.mutable_status()->mutable_message();
  if (sentence.size() > kMostSentence) {
    size_t size = kMostSentence;
    while (size > 0 && (static_cast<unsigned char>(sentence[size]) & 0xC0) == 0x80) --size;
    sentence.resize(size);
  }
  if (reply.ByteSizeLong() > most && end.has_begin()) end.mutable_begin()->clear_plan();
  if (reply.ByteSizeLong() > most) end.mutable_status()->clear_details();
  return wire::Encode(reply);
}

/// Between its stream and the memory.
class ComputeRing final : public Ring, public ComputeTransport {
 public:
  ComputeRing(const ServiceContext& service, const Caller& caller, wire::RingSize size,
              Buffer memory)
      : spin_(std::chrono::microseconds(service.config.ring_spin_microseconds)),
        memory_(std::move(memory)),
        ring_(memory_.mutable_data(), size),
        requests_(ring_.RequestConsumer()),
        replies_(ring_.ReplyProducer()),
        // Of its arrays, which it has not, nothing counts.
        stream_(std::make_shared<ComputeStream>(service, caller,
                                                std::make_shared<ConnectionShare>(0), *this)) {
    stream_->Begin();
  }
  ~ComputeRing() override { stream_->OnDone(); }

  /// On its thread: until the stream is finished, and nobody else uses this any more.
  void Run() {
    Clock::time_point last = Clock::now();
    while (!ended_) {
      if (left_ || ring_.left()) {
        Part();
      } else if (TakeOne()) {
        last = Clock::now();
      } else if (spin_.count() == 0 || Clock::now() - last >= spin_) {
        Sleep();
      } else {
        wire::Relax();
      }
    }
    finished_->wait(false);
  }

  // The connection's.

  void Leave() override {
    left_ = true;
    ring_.request_bell.Wake();
  }
  bool ended() const override { return ended_; }

 private:
  // The stream's.

  void Read() override {
    reading_ = true;
    ring_.request_bell.Ring();
  }
  /// There is room: no more requests are taken than there are slots for replies.
  bool Write(const grpc::ByteBuffer* message, bool /*more*/) override {
    const size_t most = ring_.size().message_bytes();
    replies_.Put(RingMessage::kReply,
                 message->Length() <= most ? *message : Shortened(*message, most));
    ring_.reply_bell.Ring();
    // Whom the caller wakes may still have counted it as unanswered.
    ++answered_;
    ring_.request_bell.Ring(RingBell::kTaken);
    return true;
  }
  void Finish(const absl::Status& status) override {
    const auto finished = finished_;
    v1::Status message;
    ToProto(status, message);
    // First: its caller may ask for another as soon as it sees the end.
    ended_ = true;
    ring_.End(message);
    ring_.request_bell.Wake();
    // From here on it may be gone.
    *finished = true;
    finished->notify_all();
  }
  void Cancel(const absl::Status& /*status*/) override {}  // nothing is being written for long
  bool IsCancelled() const override { return parted_; }
  bool is_ring() const override { return true; }
  bool idle() const override { return !requests_.Ready(); }

  /// The stream ends once its requests have: nobody is there to get replies.
  void Part() {
    if (!parted_.exchange(true)) {
      reading_ = false;
      stream_->OnReadsDone();
    } else {
      Sleep();
    }
  }

  /// Whether one more request's reply could be put beside those of all that were taken.
  absl::StatusOr<bool> HasRoom() const {
    // First: what is answered meanwhile counts twice, and not never.
    const uint64_t unanswered = begun_ - answered_;
    const absl::StatusOr<uint32_t> untaken = replies_.Untaken();
    if (!untaken.ok()) return untaken.status();
    return unanswered + *untaken < ring_.size().slots;
  }

  /// False: there is nothing to take, or no room for its reply.
  bool TakeOne() {
    if (!reading_ || !requests_.Ready()) return false;
    const absl::StatusOr<bool> room = HasRoom();
    if (!room.ok()) return Violated(room.status());
    if (!*room) return false;
    absl::StatusOr<std::optional<wire::RingConsumer::Taken>> taken = requests_.Take();
    if (!taken.ok()) return Violated(taken.status());
    if (!taken->has_value()) return false;
    const std::optional<Op> op = OpOf((*taken)->what);
    if (!op.has_value()) {
      return Violated(absl::InvalidArgumentError(
          fmt::format("a message in the ring is of kind {}; there are 1 (of Spmm), 2 (of Sddmm) "
                      "and 3 (of Chain)",
                      static_cast<uint32_t>((*taken)->what))));
    }
    reading_ = false;
    ++begun_;
    if (!stream_->OnMessage(*op, std::move((*taken)->bytes))) --begun_;
    return true;
  }

  bool Violated(const absl::Status& status) {
    reading_ = false;
    stream_->OnReadsDone(status);
    return true;
  }

  void Sleep() {
    const bool full = reading_ && requests_.Ready();
    const uint32_t heard = ring_.request_bell.Listen(full ? RingBell::kTaken : RingBell::kPut);
    if (ended_) return;
    if (!parted_) {
      if (left_ || ring_.left()) return;
      if (reading_ && requests_.Ready() && (!full || HasRoom().value_or(true))) return;
    }
    ring_.request_bell.Wait(heard, kLongestSleep);
  }

  const std::chrono::microseconds spin_;
  Buffer memory_;
  wire::RingMemory ring_;
  wire::RingConsumer requests_;
  wire::RingProducer replies_;          ///< whose stream's turn it is to write
  uint64_t begun_ = 0;                  ///< requests, ever; the thread's
  std::atomic<uint64_t> answered_ = 0;  ///< of them
  std::atomic<bool> reading_ = false;   ///< the stream waits for a message
  std::atomic<bool> left_ = false;      ///< the connection has gone
  std::atomic<bool> parted_ = false;    ///< the stream knows that nobody is there
  std::atomic<bool> ended_ = false;     ///< the stream is finished
  /// ... and has let go of this; waited for.
  const std::shared_ptr<std::atomic<bool>> finished_ = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<ComputeStream> stream_;
};

}  // namespace

Rings::~Rings() {
  const MutexLock lock(mutex_);
  while (count_ > 0) ended_.Wait(mutex_);
}

absl::StatusOr<std::shared_ptr<Ring>> Rings::Open(const Caller& caller, const v1::OpenRing& request,
                                                  Buffer memory) {
  const wire::RingSize size = {request.slots(), request.slot_bytes()};
  if (absl::Status status = size.Check(); !status.ok()) return status;
  if (memory.size() != size.file_bytes()) {
    return absl::InvalidArgumentError(
        fmt::format("the memory file of a ring of {} slots of {} bytes has {} bytes, not {}",
                    size.slots, size.slot_bytes, size.file_bytes(), memory.size()));
  }
  {
    const MutexLock lock(mutex_);
    if (count_ >= service_.config.max_rings) {
      return absl::ResourceExhaustedError(fmt::format(
          "{} rings are open, at most {} may be (--max-rings); requests can use a stream", count_,
          service_.config.max_rings));
    }
    ++count_;
  }
  Caller of_ring = caller;
  of_ring.origin = std::make_shared<CallOrigin>(CallOrigin{NewRequestId()});
  auto ring = std::make_shared<ComputeRing>(service_, of_ring, size, std::move(memory));
  const auto end = [this] {
    const MutexLock lock(mutex_);
    --count_;
    ended_.NotifyAll();
  };
  try {
    std::thread([ring, end]() mutable {
      ring->Run();
      ring = nullptr;
      end();
    }).detach();
  } catch (const std::system_error&) {
    end();
    return absl::ResourceExhaustedError("the operating system starts no more threads");
  }
  return ring;
}

int64_t Rings::count() const {
  const MutexLock lock(mutex_);
  return count_;
}

}  // namespace sparsed::server
