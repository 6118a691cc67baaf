// What a connection's bytes would make gRPC keep, found out from its frames' headers alone.
//
// gRPC 1.51 bounds neither a block of header fields that never ends (it keeps what it cannot read
// yet), nor how often a stream is opened and reset, nor, over all streams, the bytes of messages
// that never end. Nothing of a payload is copied or looked at, but for the five bytes before each
// message that say how long it is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace sparsed::server {

/// Why a connection is ended.
enum class Fault {
  kNone,
  kHeaders,  ///< a block of header fields, or another frame that holds no data, is too large
  kFlood,    ///< frames that cost work and carry nothing, too many of them
  kStreams,  ///< more streams at once than it was told that it may open
  kMemory,   ///< messages that do not end take too much memory (see Connections)
  kQuota,    ///< its tenant has as many as it may have
};
constexpr int kFaults = 6;
std::string_view Name(Fault fault);

struct GuardLimits {
  uint32_t header_bytes = 64 << 10;  ///< of a block of header fields, and of a GOAWAY
  size_t streams = 256;              ///< open at once, and told to the client so
  /// RST_STREAM, SETTINGS, PING and other frames without data: so many at once, and then so many a
  /// second and as many as the server sent frames with data or header fields.
  double idle_frames = 1000;
  double idle_frames_per_second = 100;
};

/// One connection's. Not thread-safe.
class Http2Guard {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Http2Guard(const GuardLimits& limits) : limits_(limits), left_(limits.idle_frames) {}

  /// The client's next bytes, in order. After a fault the connection must be ended.
  Fault Received(std::string_view bytes, Clock::time_point now);
  /// The server's next bytes, in order.
  void Sent(std::string_view bytes);

  /// Of messages whose end has not come.
  int64_t unfinished_bytes() const { return unfinished_bytes_; }
  /// When the oldest of them began; time_point::max() if there is none.
  Clock::time_point OldestUnfinished() const;
  size_t streams() const { return streams_.size(); }

 private:
  /// Cuts bytes into frames.
  struct Frames {
    unsigned char header[9];
    int header_bytes = 0;  ///< that have come
    uint32_t payload_left = 0;

    uint32_t length() const { return uint32_t{header[0]} << 16 | header[1] << 8 | header[2]; }
    uint8_t type() const { return header[3]; }
    uint8_t flags() const { return header[4]; }
    uint32_t stream() const {
      return uint32_t{header[5] & 0x7Fu} << 24 | header[6] << 16 | header[7] << 8 | header[8];
    }
    /// Takes from `bytes`; true if a header is complete now.
    bool TakeHeader(std::string_view* bytes);
    std::string_view TakePayload(std::string_view* bytes);
  };
  struct Stream {
    Clock::time_point began;  ///< its message
    uint32_t prefix = 0;      ///< of the message's length, what has come
    int prefix_bytes = 0;
    uint32_t message_left = 0;
    int64_t unfinished_bytes = 0;
  };

  Fault OnFrame(Clock::time_point now);
  Fault OnHeaders();
  Fault OnIdleFrame(Clock::time_point now);
  void OnData(std::string_view payload, Clock::time_point now);
  void Close(uint32_t stream);

  const GuardLimits limits_;
  size_t preface_left_ = 24;
  Frames received_, sent_;
  uint64_t block_bytes_ = 0;  ///< of the block of header fields that is coming
  uint32_t last_stream_ = 0;
  bool acknowledged_ = false;  ///< the client knows our settings, and gRPC sees to them
  std::unordered_map<uint32_t, Stream> streams_;
  Stream* data_ = nullptr;  ///< that the present DATA frame belongs to
  int64_t unfinished_bytes_ = 0;
  double left_;  ///< of idle frames
  Clock::time_point refilled_{};
};

}  // namespace sparsed::server
