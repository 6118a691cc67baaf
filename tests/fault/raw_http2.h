// An HTTP/2 client that does as it is told, also what no client should do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/listener/descriptor.h"

namespace sparsed::test {

/// A TCP connection to "IPV4:PORT" that does not block; closed if nobody took it.
Descriptor ConnectTo(const std::string& address);

// Frame types and flags of RFC 9113.
enum FrameType : uint8_t {
  kDataFrame = 0,
  kHeadersFrame = 1,
  kResetFrame = 3,
  kSettingsFrame = 4,
  kPingFrame = 6,
  kWindowFrame = 8,
  kContinuationFrame = 9,
};
constexpr uint8_t kEndStreamFlag = 1, kEndHeadersFlag = 4, kAckFlag = 1;

std::string Http2Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload);
/// The preface, SETTINGS, and the acknowledgement of the server's.
std::string Http2Opening();
/// The header fields of a gRPC call of "/package.Service/Method".
std::string CallHeaders(const std::string& method);

/// The beginning of a field whose value is longer than anything that is ever sent.
std::string EndlessField();

class RawHttp2 {
 public:
  /// Connects and sends Http2Opening().
  explicit RawHttp2(const std::string& address);

  /// False once the server has closed the connection.
  bool open() const { return fd_.open(); }
  /// Sends all of it, reading meanwhile; waits no longer than `seconds`. False if it could not.
  bool Send(std::string_view bytes, double seconds = 10);
  /// Reads what has come, and keeps count of the windows.
  void Read();
  /// Sends as much of `bytes` as the windows of stream 1 and the socket allow, and removes it.
  void SendData(std::string_view* bytes);
  /// Streams that the server has ended or reset.
  int ended() const { return ended_; }

 private:
  void OnFrame(std::string_view payload);

  Descriptor fd_;
  std::string received_, replies_;
  int64_t connection_window_ = 65535;
  int64_t stream_window_ = 65535;
  int64_t initial_window_ = 65535;
  int ended_ = 0;
};

}  // namespace sparsed::test
