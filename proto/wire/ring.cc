#include "proto/wire/ring.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <ctime>
#include <string>

namespace sparsed::wire {
namespace {

constexpr size_t kStatusOffset = 1024;
constexpr size_t kStatusBytes = RingSize::kHeaderBytes - kStatusOffset;
/// In a slot: its message's bytes, and what it is.
constexpr size_t kBytesWord = 0, kWhatWord = 1;
/// Of the words of a direction, how many were taken.
constexpr size_t kTakenOffset = 64;

static_assert(std::atomic_ref<uint32_t>::is_always_lock_free, "two processes share it");

uint32_t* WordsOf(std::byte* at) { return reinterpret_cast<uint32_t*>(at); }

}  // namespace

absl::Status RingSize::Check() const {
  if (std::has_single_bit(slots) && slots >= 2 && slots <= 256 && slot_bytes % 64 == 0 &&
      slot_bytes >= 1024 && slot_bytes <= 65536) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format(
      "a ring of {} slots of {} bytes: slots are a power of two from 2 to 256, and of a multiple "
      "of 64 bytes from 1024 to 65536",
      slots, slot_bytes));
}

// Who listens writes `sleeps` and then reads what he waits for; who brings it writes that and then
// reads `sleeps`. All of it is sequentially consistent, so that one of them sees the other.

uint32_t RingBell::Listen(Reason reason) {
  const uint32_t heard = changes().load();
  sleeps().store(reason);
  return heard;
}

void RingBell::Wait(uint32_t heard, std::chrono::nanoseconds most) {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t left = std::max<int64_t>(most.count(), 0);
  const timespec time = {left / kSecond, left % kSecond};
  syscall(SYS_futex, words_ + 1, FUTEX_WAIT, heard, &time, nullptr, 0);
}

void RingBell::Ring(Reason reason) {
  if (sleeps().load() != reason) return;
  sleeps().store(0);
  Wake();
}

void RingBell::Wake() {
  changes().fetch_add(1);
  syscall(SYS_futex, words_ + 1, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

RingProducer::RingProducer(std::byte* counts, std::byte* slots, RingSize size)
    : put_(*WordsOf(counts)), taken_(*WordsOf(counts + kTakenOffset)), slots_(slots), size_(size) {}

absl::StatusOr<uint32_t> RingProducer::Untaken() const {
  // Meanwhile more may be put in, by another thread, and taken out.
  const uint32_t before = count_.load();
  const uint32_t taken = taken_.load();
  const uint32_t after = count_.load();
  const auto left = static_cast<int32_t>(after - taken);
  if (left >= 0 && after - taken <= size_.slots + (after - before)) {
    return static_cast<uint32_t>(std::max(static_cast<int32_t>(before - taken), 0));
  }
  return absl::InvalidArgumentError(
      fmt::format("{} messages were taken out of the ring, but {} were put in", taken, after));
}

void RingProducer::Put(RingMessage what, const grpc::ByteBuffer& message) {
  const uint32_t count = count_.load(std::memory_order_relaxed);
  std::byte* const slot = slots_ + static_cast<size_t>(count % size_.slots) * size_.slot_bytes;
  WordsOf(slot)[kBytesWord] = static_cast<uint32_t>(message.Length());
  WordsOf(slot)[kWhatWord] = static_cast<uint32_t>(what);
  std::byte* to = slot + RingSize::kSlotHeaderBytes;
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) slices.clear();
  for (const grpc::Slice& slice : slices) {
    std::memcpy(to, slice.begin(), slice.size());
    to += slice.size();
  }
  count_.store(count + 1);
  put_.store(count + 1);
}

RingConsumer::RingConsumer(std::byte* counts, std::byte* slots, RingSize size)
    : put_(*WordsOf(counts)), taken_(*WordsOf(counts + kTakenOffset)), slots_(slots), size_(size) {}

absl::StatusOr<std::optional<RingConsumer::Taken>> RingConsumer::Take() {
  const uint32_t count = count_.load(std::memory_order_relaxed);
  const uint32_t put = put_.load();
  if (put == count) return std::nullopt;
  if (put - count > size_.slots) {
    return absl::InvalidArgumentError(
        fmt::format("the ring of {} slots has messages up to {}, of which {} were taken",
                    size_.slots, put, count));
  }
  std::byte* const slot = slots_ + static_cast<size_t>(count % size_.slots) * size_.slot_bytes;
  // Once each: the other side may write at any time.
  const uint32_t bytes = std::atomic_ref(WordsOf(slot)[kBytesWord]).load(std::memory_order_relaxed);
  const uint32_t what = std::atomic_ref(WordsOf(slot)[kWhatWord]).load(std::memory_order_relaxed);
  if (bytes > size_.message_bytes()) {
    return absl::InvalidArgumentError(
        fmt::format("a message of {} bytes in a slot of the ring, which has room for {}", bytes,
                    size_.message_bytes()));
  }
  grpc::Slice copy(slot + RingSize::kSlotHeaderBytes, bytes);
  count_.store(count + 1, std::memory_order_relaxed);
  taken_.store(count + 1);
  return Taken{static_cast<RingMessage>(what), grpc::ByteBuffer(&copy, 1)};
}

void RingMemory::End(const v1::Status& status) {
  std::string bytes = status.SerializeAsString();
  if (bytes.size() > kStatusBytes) {
    v1::Status code;
    code.set_code(status.code());
    bytes = code.SerializeAsString();
  }
  std::memcpy(memory_ + kStatusOffset, bytes.data(), bytes.size());
  status_bytes_.store(static_cast<uint32_t>(bytes.size()));
  ended_.store(1);
  reply_bell.Wake();
}

std::optional<v1::Status> RingMemory::Ended() const {
  if (ended_.load() == 0) return std::nullopt;
  v1::Status status;
  const size_t bytes = std::min<size_t>(status_bytes_.load(), kStatusBytes);
  const std::string copy(reinterpret_cast<const char*>(memory_ + kStatusOffset), bytes);
  if (!status.ParseFromString(copy)) status.Clear();
  return status;
}

void RingMemory::Leave() {
  left_.store(1);
  request_bell.Wake();
}

}  // namespace sparsed::wire
