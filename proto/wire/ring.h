// A ring: requests and replies in memory that a caller and the server both map, as the comment on
// OpenRing (sparsed/v1/local.proto) lays it out.
//
// Each side keeps what it counts itself, and takes the other's counts for what they are worth: a
// message is copied before it is looked at, and a count that cannot be is an error.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparsed/v1/types.pb.h"

namespace sparsed::wire {

/// What a message is.
enum class RingMessage : uint32_t { kReply = 0, kSpmm = 1, kSddmm = 2, kChain = 3 };

struct RingSize {
  static constexpr uint32_t kHeaderBytes = 4096, kSlotHeaderBytes = 8;

  uint32_t slots = 0, slot_bytes = 0;

  /// INVALID_ARGUMENT.
  absl::Status Check() const;
  size_t file_bytes() const { return kHeaderBytes + size_t{2} * slots * slot_bytes; }
  size_t message_bytes() const { return slot_bytes - kSlotHeaderBytes; }  ///< the most
};

/// What puts one side to sleep, and what the other wakes it by: two words.
class RingBell {
 public:
  /// Why who sleeps is woken.
  enum Reason : uint32_t { kPut = 1, kTaken = 2 };

  explicit RingBell(uint32_t* words) : words_(words) {}

  /// Who is to sleep says so, looks once more whether there is need, and gives Wait what this
  /// returned. Several threads of one side may.
  uint32_t Listen(Reason reason = kPut);
  /// Until it rings after Listen; or for so long, or less.
  void Wait(uint32_t heard, std::chrono::nanoseconds most);
  /// By the other side, after what `reason` says: wakes who sleeps for that.
  void Ring(Reason reason = kPut);
  /// By either side: all who wait look again.
  void Wake();

 private:
  std::atomic_ref<uint32_t> sleeps() const { return std::atomic_ref(words_[0]); }
  std::atomic_ref<uint32_t> changes() const { return std::atomic_ref(words_[1]); }

  uint32_t* const words_;
};

/// The end of one direction that puts messages in. One thread at a time, but for Untaken.
class RingProducer {
 public:
  RingProducer(std::byte* counts, std::byte* slots, RingSize size);

  /// How many were put and not taken; INVALID_ARGUMENT if what the other side says cannot be.
  absl::StatusOr<uint32_t> Untaken() const;
  /// Needs fewer untaken ones than slots, and a message that fits.
  void Put(RingMessage what, const grpc::ByteBuffer& message);

 private:
  const std::atomic_ref<uint32_t> put_, taken_;
  std::byte* const slots_;
  const RingSize size_;
  std::atomic<uint32_t> count_ = 0;  ///< put, ever
};

/// The other end. One thread at a time, but for Ready.
class RingConsumer {
 public:
  struct Taken {
    RingMessage what;
    grpc::ByteBuffer bytes;  ///< a copy
  };

  RingConsumer(std::byte* counts, std::byte* slots, RingSize size);

  /// Whether there is something to take, or an error.
  bool Ready() const { return put_.load() != count_.load(std::memory_order_relaxed); }
  /// None: there is no message. INVALID_ARGUMENT if what the other side says cannot be.
  absl::StatusOr<std::optional<Taken>> Take();

 private:
  const std::atomic_ref<uint32_t> put_, taken_;
  std::byte* const slots_;
  const RingSize size_;
  std::atomic<uint32_t> count_ = 0;  ///< taken, ever
};

/// Both directions of a ring and what else is in its header. The memory is its owner's.
class RingMemory {
 public:
  /// `memory`: size.file_bytes() of it, mapped.
  RingMemory(std::byte* memory, RingSize size)
      : request_bell(WordsAt(memory + 192)),
        reply_bell(WordsAt(memory + 384)),
        memory_(memory),
        size_(size),
        ended_(WordsAt(memory)[0]),
        status_bytes_(WordsAt(memory)[1]),
        left_(WordsAt(memory)[2]) {}

  const RingSize& size() const { return size_; }
  RingProducer RequestProducer() const { return {memory_ + 64, RequestSlots(), size_}; }
  RingConsumer RequestConsumer() const { return {memory_ + 64, RequestSlots(), size_}; }
  RingProducer ReplyProducer() const { return {memory_ + 256, ReplySlots(), size_}; }
  RingConsumer ReplyConsumer() const { return {memory_ + 256, ReplySlots(), size_}; }

  /// By the server, once: nothing is taken or put any more.
  void End(const v1::Status& status);
  /// For the caller: why it ended; none: it has not.
  std::optional<v1::Status> Ended() const;
  /// By the caller.
  void Leave();
  bool left() const { return left_.load() != 0; }

  RingBell request_bell;  ///< the server sleeps by it
  RingBell reply_bell;    ///< the caller does

 private:
  static uint32_t* WordsAt(std::byte* at) { return reinterpret_cast<uint32_t*>(at); }
  std::byte* RequestSlots() const { return memory_ + RingSize::kHeaderBytes; }
  std::byte* ReplySlots() const {
    return RequestSlots() + static_cast<size_t>(size_.slots) * size_.slot_bytes;
  }

  std::byte* const memory_;
  const RingSize size_;
  const std::atomic_ref<uint32_t> ended_, status_bytes_, left_;
};

/// Between two looks of who spins.
inline void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace sparsed::wire
