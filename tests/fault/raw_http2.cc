#include "tests/fault/raw_http2.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

namespace sparsed::test {
namespace {

constexpr size_t kFrameHeader = 9;
constexpr size_t kLargestFrame = 16384;

uint32_t Number(std::string_view bytes) {
  uint32_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

/// A field that is not to be remembered, without compression.
std::string Field(std::string_view name, std::string_view value) {
  std::string field(1, '\0');
  for (const std::string_view text : {name, value}) {
    field += static_cast<char>(text.size());
    field += text;
  }
  return field;
}

}  // namespace

Descriptor ConnectTo(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int error =
      connect(fd.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 ? 0 : errno;
  if (error == 0) return fd;
  pollfd ready = {.fd = fd.fd(), .events = POLLOUT, .revents = 0};
  const bool taken = error == EINPROGRESS && poll(&ready, 1, 10'000) == 1 &&
                     (ready.revents & (POLLERR | POLLHUP)) == 0;
  return taken ? std::move(fd) : Descriptor();
}

std::string Http2Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  const auto size = static_cast<uint32_t>(payload.size());
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(size >> shift);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  frame += payload;
  return frame;
}

std::string Http2Opening() {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Http2Frame(kSettingsFrame, 0, 0, "") +
         Http2Frame(kSettingsFrame, kAckFlag, 0, "");
}

std::string CallHeaders(const std::string& method) {
  return Field(":method", "POST") + Field(":scheme", "http") + Field(":path", method) +
         Field(":authority", "localhost") + Field("te", "trailers") +
         Field("content-type", "application/grpc");
}

std::string EndlessField() { return std::string("\0\1a\x7f\xff\xff\xff\xff\7", 9); }

RawHttp2::RawHttp2(const std::string& address) : fd_(ConnectTo(address)) {
  if (fd_.open()) Send(Http2Opening());
}

bool RawHttp2::Send(std::string_view bytes, double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (fd_.open() && !bytes.empty() && std::chrono::steady_clock::now() < until) {
    const ssize_t sent = send(fd_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
      continue;
    }
    if (errno != EAGAIN && errno != EINTR) fd_ = Descriptor();
    if (!fd_.open()) return false;
    pollfd ready = {.fd = fd_.fd(), .events = POLLIN | POLLOUT, .revents = 0};
    poll(&ready, 1, 100);
    Read();
  }
  return fd_.open() && bytes.empty();
}

void RawHttp2::Read() {
  std::array<char, 1 << 14> piece;
  while (fd_.open()) {
    const ssize_t size = recv(fd_.fd(), piece.data(), piece.size(), 0);
    if (size <= 0) {
      if (size == 0 || (errno != EAGAIN && errno != EINTR)) fd_ = Descriptor();
      break;
    }
    received_.append(piece.data(), static_cast<size_t>(size));
  }
  size_t at = 0;
  while (received_.size() - at >= kFrameHeader) {
    const std::string_view rest = std::string_view(received_).substr(at);
    const size_t whole = kFrameHeader + Number(rest.substr(0, 3));
    if (rest.size() < whole) break;
    OnFrame(rest.substr(0, whole));
    at += whole;
  }
  received_.erase(0, at);
  if (const std::string replies = std::move(replies_); !replies.empty()) {
    (void)!send(fd_.fd(), replies.data(), replies.size(), MSG_NOSIGNAL);
  }
}

void RawHttp2::OnFrame(std::string_view frame) {
  const auto type = static_cast<uint8_t>(frame[3]);
  const bool ack = (static_cast<uint8_t>(frame[4]) & kAckFlag) != 0;
  const bool carries = type == kDataFrame || type == kHeadersFrame;
  if (type == kResetFrame || (carries && (static_cast<uint8_t>(frame[4]) & kEndStreamFlag) != 0)) {
    ++ended_;
  }
  const uint32_t stream = Number(frame.substr(5, 4));
  std::string_view payload = frame.substr(kFrameHeader);
  if (type == kWindowFrame) (stream == 0 ? connection_window_ : stream_window_) += Number(payload);
  if (type == kPingFrame && !ack) replies_ += Http2Frame(kPingFrame, kAckFlag, 0, payload);
  if (type != kSettingsFrame || ack) return;
  for (; payload.size() >= 6; payload.remove_prefix(6)) {
    constexpr uint32_t kInitialWindow = 4;
    if (Number(payload.substr(0, 2)) != kInitialWindow) continue;
    const auto window = static_cast<int64_t>(Number(payload.substr(2, 4)));
    stream_window_ += window - initial_window_;
    initial_window_ = window;
  }
  replies_ += Http2Frame(kSettingsFrame, kAckFlag, 0, "");
}

void RawHttp2::SendData(std::string_view* bytes) {
  Read();
  while (fd_.open() && !bytes->empty()) {
    const auto window = std::min(connection_window_, stream_window_);
    const size_t size =
        std::min({bytes->size(), static_cast<size_t>(std::max<int64_t>(window, 0)), kLargestFrame});
    if (size == 0) return;
    if (!Send(Http2Frame(kDataFrame, 0, 1, bytes->substr(0, size)), 1)) return;
    bytes->remove_prefix(size);
    connection_window_ -= static_cast<int64_t>(size);
    stream_window_ -= static_cast<int64_t>(size);
  }
}

}  // namespace sparsed::test
