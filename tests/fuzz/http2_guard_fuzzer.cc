// Any bytes of a connection are counted the same however they are cut, and never more is open or
// unfinished than the bytes can mean.
#include <chrono>
#include <vector>

#include "server/listener/http2_guard.h"
#include "tests/fuzz/check.h"

namespace sparsed::server {
namespace {

using fuzz::Check;

constexpr GuardLimits kLimits{
    .header_bytes = 300, .streams = 4, .idle_frames = 10, .idle_frames_per_second = 1};

/// Who sent what, in order.
struct Piece {
  bool by_client;
  std::string_view bytes;
};

void CheckBounds(const Http2Guard& guard) {
  Check(guard.unfinished_bytes() >= 0);
  Check((guard.unfinished_bytes() == 0) ==
        (guard.OldestUnfinished() == Http2Guard::Clock::time_point::max()));
}

/// Every piece in parts of `part` bytes.
Fault Feed(Http2Guard& guard, const std::vector<Piece>& pieces, size_t part) {
  const auto now = Http2Guard::Clock::time_point(std::chrono::hours(1));
  for (const Piece& piece : pieces) {
    for (size_t at = 0; at < piece.bytes.size(); at += part) {
      const std::string_view bytes = piece.bytes.substr(at, part);
      if (!piece.by_client) {
        guard.Sent(bytes);
        continue;
      }
      if (const Fault fault = guard.Received(bytes, now); fault != Fault::kNone) return fault;
      CheckBounds(guard);
    }
  }
  return Fault::kNone;
}

}  // namespace
}  // namespace sparsed::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparsed::server;  // NOLINT(google-build-using-namespace)
  sparsed::fuzz::Input input(data, size);
  const size_t part = 1 + input.Number<uint8_t>();
  std::vector<Piece> pieces = {{true, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}};
  while (!input.empty()) {
    const auto head = input.Number<uint8_t>();
    pieces.push_back({(head & 1) == 0, input.Bytes(head / 2)});
  }
  Http2Guard whole(kLimits), parts(kLimits);
  const Fault fault = Feed(whole, pieces, size + 100);
  sparsed::fuzz::Check(Feed(parts, pieces, part) == fault);
  if (fault == Fault::kNone) {
    sparsed::fuzz::Check(whole.unfinished_bytes() == parts.unfinished_bytes());
    sparsed::fuzz::Check(whole.streams() == parts.streams());
  }
  return 0;
}
