#include "server/listener/http2_guard.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace sparsed::server {
namespace {

// RFC 9113, sections 6 and 7.
enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kSettings = 4,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
constexpr uint8_t kEndStream = 1, kAck = 1, kPadded = 8;
constexpr size_t kFrameHeader = 9;
/// A compressed flag and four bytes of length come before each message.
constexpr int kMessagePrefix = 5;

}  // namespace

std::string_view Name(Fault fault) {
  constexpr std::array<std::string_view, kFaults> kNames = {"none",    "headers", "flood",
                                                            "streams", "memory",  "quota"};
  return kNames[static_cast<size_t>(fault)];
}

bool Http2Guard::Frames::TakeHeader(std::string_view* bytes) {
  const size_t take = std::min(kFrameHeader - static_cast<size_t>(header_bytes), bytes->size());
  std::memcpy(header + header_bytes, bytes->data(), take);
  bytes->remove_prefix(take);
  header_bytes += static_cast<int>(take);
  if (header_bytes < static_cast<int>(kFrameHeader)) return false;
  header_bytes = 0;
  payload_left = length();
  return true;
}

std::string_view Http2Guard::Frames::TakePayload(std::string_view* bytes) {
  const std::string_view taken = bytes->substr(0, payload_left);
  bytes->remove_prefix(taken.size());
  payload_left -= static_cast<uint32_t>(taken.size());
  return taken;
}

Fault Http2Guard::Received(std::string_view bytes, Clock::time_point now) {
  const size_t preface = std::min(preface_left_, bytes.size());
  preface_left_ -= preface;
  bytes.remove_prefix(preface);
  while (!bytes.empty()) {
    if (received_.payload_left > 0) {
      const std::string_view payload = received_.TakePayload(&bytes);
      if (data_ != nullptr) OnData(payload, now);
    } else if (received_.TakeHeader(&bytes)) {
      if (const Fault fault = OnFrame(now); fault != Fault::kNone) return fault;
    }
  }
  return Fault::kNone;
}

Fault Http2Guard::OnFrame(Clock::time_point now) {
  data_ = nullptr;
  switch (received_.type()) {
    case kData: {
      const auto found = streams_.find(received_.stream());
      // gRPC refuses padded data.
      if (found != streams_.end() && (received_.flags() & kPadded) == 0) data_ = &found->second;
      const bool empty = received_.length() == 0 && (received_.flags() & kEndStream) == 0;
      return empty ? OnIdleFrame(now) : Fault::kNone;
    }
    case kHeaders:
      block_bytes_ = 0;
      return OnHeaders();
    case kContinuation:
      // An empty one costs as much as its header.
      block_bytes_ += kFrameHeader + received_.length();
      return block_bytes_ > limits_.header_bytes ? Fault::kHeaders : Fault::kNone;
    case kWindowUpdate:  // as many as there are results to be read
      return Fault::kNone;
    case kResetStream:
      Close(received_.stream());
      return OnIdleFrame(now);
    case kSettings:
      acknowledged_ = acknowledged_ || (received_.flags() & kAck) != 0;
      return OnIdleFrame(now);
    case kGoAway:
      if (received_.length() > limits_.header_bytes) return Fault::kHeaders;
      return OnIdleFrame(now);
    default:
      return OnIdleFrame(now);
  }
}

Fault Http2Guard::OnHeaders() {
  block_bytes_ += received_.length();
  if (block_bytes_ > limits_.header_bytes) return Fault::kHeaders;
  const uint32_t stream = received_.stream();
  // Others open nothing: they end a stream, or gRPC ignores them.
  if (stream % 2 == 0 || stream <= last_stream_) return Fault::kNone;
  last_stream_ = stream;
  // Once the client knows the limit gRPC sees to it, and to those that it opened before.
  if (streams_.size() >= limits_.streams * (acknowledged_ ? 2 : 1)) return Fault::kStreams;
  streams_.emplace(stream, Stream{});
  return Fault::kNone;
}

Fault Http2Guard::OnIdleFrame(Clock::time_point now) {
  const std::chrono::duration<double> passed = now - refilled_;
  refilled_ = now;
  left_ = std::min(limits_.idle_frames, left_ + passed.count() * limits_.idle_frames_per_second);
  left_ -= 1;
  return left_ < 0 ? Fault::kFlood : Fault::kNone;
}

void Http2Guard::OnData(std::string_view payload, Clock::time_point now) {
  Stream& stream = *data_;
  while (!payload.empty()) {
    if (stream.message_left == 0) {
      const uint8_t byte = static_cast<uint8_t>(payload.front());
      payload.remove_prefix(1);
      if (stream.prefix_bytes++ > 0) stream.prefix = stream.prefix << 8 | byte;
      if (stream.prefix_bytes < kMessagePrefix) continue;
      stream.message_left = stream.prefix;
      stream.prefix = 0;
      stream.prefix_bytes = 0;
      stream.began = now;
      continue;
    }
    const size_t take = std::min<size_t>(stream.message_left, payload.size());
    payload.remove_prefix(take);
    stream.message_left -= static_cast<uint32_t>(take);
    stream.unfinished_bytes += static_cast<int64_t>(take);
    unfinished_bytes_ += static_cast<int64_t>(take);
    if (stream.message_left > 0) continue;
    unfinished_bytes_ -= stream.unfinished_bytes;
    stream.unfinished_bytes = 0;
  }
}

void Http2Guard::Sent(std::string_view bytes) {
  while (!bytes.empty()) {
    if (sent_.payload_left > 0) {
      sent_.TakePayload(&bytes);
    } else if (sent_.TakeHeader(&bytes)) {
      const uint8_t type = sent_.type();
      const bool answers = type == kData || type == kHeaders;
      // Some clients send a PING for every few frames that they get.
      if (answers) left_ = std::min(limits_.idle_frames, left_ + 1);
      const bool ends = answers && (sent_.flags() & kEndStream) != 0;
      if (ends || type == kResetStream) Close(sent_.stream());
    }
  }
}

void Http2Guard::Close(uint32_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  unfinished_bytes_ -= found->second.unfinished_bytes;
  if (data_ == &found->second) data_ = nullptr;
  streams_.erase(found);
}

Http2Guard::Clock::time_point Http2Guard::OldestUnfinished() const {
  Clock::time_point oldest = Clock::time_point::max();
  for (const auto& [id, stream] : streams_) {
    if (stream.unfinished_bytes > 0) oldest = std::min(oldest, stream.began);
  }
  return oldest;
}

}  // namespace sparsed::server
