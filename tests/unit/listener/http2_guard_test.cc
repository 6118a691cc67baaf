// What the guard makes of frames, right and wrong, however they are cut.
#include "server/listener/http2_guard.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/fault/raw_http2.h"

namespace sparsed::server {
namespace {

using test::Http2Frame;
using Clock = Http2Guard::Clock;

std::string Headers(uint32_t stream, std::string_view block = "fields") {
  return Http2Frame(test::kHeadersFrame, test::kEndHeadersFlag, stream, block);
}
std::string Data(uint32_t stream, std::string_view payload, uint8_t flags = 0) {
  return Http2Frame(test::kDataFrame, flags, stream, payload);
}
std::string Reset(uint32_t stream) {
  return Http2Frame(test::kResetFrame, 0, stream, std::string(4, '\0'));
}
/// As gRPC begins a message.
std::string Prefix(uint32_t bytes) {
  std::string prefix(1, '\0');
  for (const int shift : {24, 16, 8, 0}) prefix += static_cast<char>(bytes >> shift);
  return prefix;
}

class Http2GuardTest : public testing::Test {
 protected:
  Fault Receive(std::string_view bytes) { return guard_.Received(bytes, now_); }

  Clock::time_point now_ = Clock::now();
  GuardLimits limits_;
  Http2Guard guard_{limits_};
};

TEST_F(Http2GuardTest, CountsMessagesWhoseEndHasNotCome) {
  EXPECT_EQ(Receive(test::Http2Opening() + Headers(1) + Headers(3)), Fault::kNone);
  EXPECT_EQ(guard_.streams(), 2u);
  EXPECT_EQ(guard_.OldestUnfinished(), Clock::time_point::max());
  EXPECT_EQ(Receive(Data(1, Prefix(1000) + std::string(400, 'x'))), Fault::kNone);
  EXPECT_EQ(guard_.unfinished_bytes(), 400);
  const Clock::time_point first = now_;
  now_ += std::chrono::seconds(1);
  EXPECT_EQ(Receive(Data(3, Prefix(10) + "12345")), Fault::kNone);
  EXPECT_EQ(guard_.unfinished_bytes(), 405);
  EXPECT_EQ(guard_.OldestUnfinished(), first);
  // The end of the first, a whole one, and the beginning of the next one's prefix.
  EXPECT_EQ(Receive(Data(1, std::string(600, 'x') + Prefix(3) + "abc" + "\0")), Fault::kNone);
  EXPECT_EQ(guard_.unfinished_bytes(), 5);
  EXPECT_EQ(guard_.OldestUnfinished(), now_);
  EXPECT_EQ(Receive(Reset(3)), Fault::kNone);
  EXPECT_EQ(guard_.unfinished_bytes(), 0);
  EXPECT_EQ(guard_.streams(), 1u);
}

TEST_F(Http2GuardTest, ForgetsWhatTheServerEnds) {
  Receive(test::Http2Opening() + Headers(1) + Headers(3) + Headers(5));
  for (const uint32_t stream : {1u, 3u, 5u}) Receive(Data(stream, Prefix(100) + "0123456789"));
  EXPECT_EQ(guard_.unfinished_bytes(), 30);
  guard_.Sent(Http2Frame(test::kSettingsFrame, 0, 0, "") + Headers(1));  // goes on
  EXPECT_EQ(guard_.unfinished_bytes(), 30);
  guard_.Sent(
      Http2Frame(test::kHeadersFrame, test::kEndHeadersFlag | test::kEndStreamFlag, 1, "ok"));
  EXPECT_EQ(guard_.unfinished_bytes(), 20);
  guard_.Sent(Reset(3));
  guard_.Sent(Data(5, "last", test::kEndStreamFlag));
  EXPECT_EQ(guard_.unfinished_bytes(), 0);
  EXPECT_EQ(guard_.streams(), 0u);
  // What was on its way is not counted.
  EXPECT_EQ(Receive(Data(1, std::string(50, 'x'))), Fault::kNone);
  EXPECT_EQ(guard_.unfinished_bytes(), 0);
}

TEST_F(Http2GuardTest, CutsDoNotMatter) {
  std::string bytes = test::Http2Opening();
  for (uint32_t i = 0; i < 50; ++i) {
    bytes += Headers(2 * i + 1) + Data(2 * i + 1, Prefix(300) + std::string(100 + i, 'm')) +
             Http2Frame(test::kWindowFrame, 0, 0, std::string(4, '\1'));
  }
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    Http2Guard guard(limits_);
    for (std::string_view rest = bytes; !rest.empty();) {
      const size_t size = std::min<size_t>(rest.size(), 1 + random() % (round == 0 ? 1 : 40));
      ASSERT_EQ(guard.Received(rest.substr(0, size), now_), Fault::kNone);
      rest.remove_prefix(size);
    }
    EXPECT_EQ(guard.streams(), 50u);
    EXPECT_EQ(guard.unfinished_bytes(), 50 * 100 + 49 * 50 / 2);
  }
}

TEST_F(Http2GuardTest, BlocksOfHeaderFieldsEnd) {
  const std::string part(16384, 'h');
  EXPECT_EQ(Receive(test::Http2Opening() + Http2Frame(test::kHeadersFrame, 0, 1, part)),
            Fault::kNone);
  Fault fault = Fault::kNone;
  int parts = 0;
  for (; fault == Fault::kNone && parts < 100; ++parts) {
    fault = Receive(Http2Frame(test::kContinuationFrame, 0, 1, part));
  }
  EXPECT_EQ(fault, Fault::kHeaders);
  EXPECT_EQ(parts, 3);  // 64 KiB are full with the third and its header

  Http2Guard empty(limits_);
  fault = empty.Received(test::Http2Opening() + Http2Frame(test::kHeadersFrame, 0, 1, ""), now_);
  for (int i = 0; fault == Fault::kNone && i < 100000; ++i) {
    fault = empty.Received(Http2Frame(test::kContinuationFrame, 0, 1, ""), now_);
  }
  EXPECT_EQ(fault, Fault::kHeaders);
  Http2Guard large(limits_);
  EXPECT_EQ(large.Received(test::Http2Opening() + Headers(1, std::string(70000, 'h')), now_),
            Fault::kHeaders);
}

TEST_F(Http2GuardTest, FloodsEndAndARightPaceDoesNot) {
  ASSERT_EQ(Receive(test::Http2Opening()), Fault::kNone);
  uint32_t stream = 1;
  const auto reset_one = [&] {
    stream += 2;
    return Receive(Headers(stream) + Reset(stream));
  };
  for (int i = 0; i < 5000; ++i) {
    now_ += std::chrono::milliseconds(10);
    ASSERT_EQ(reset_one(), Fault::kNone);
  }
  int more = 0;
  while (more < 5000 && reset_one() == Fault::kNone) ++more;
  EXPECT_NEAR(more, limits_.idle_frames, 5);

  for (const uint8_t type : {test::kPingFrame, test::kSettingsFrame, test::kDataFrame}) {
    Http2Guard guard(limits_);
    Fault fault = guard.Received(test::Http2Opening(), now_);
    for (int i = 0; fault == Fault::kNone && i < 5000; ++i) {
      fault = guard.Received(Http2Frame(type, 0, 0, ""), now_);
    }
    EXPECT_EQ(fault, Fault::kFlood) << int{type};
  }
}

TEST_F(Http2GuardTest, WhoGetsDataMayAskForItsPace) {
  ASSERT_EQ(Receive(test::Http2Opening() + Headers(1)), Fault::kNone);
  for (int i = 0; i < 20000; ++i) {
    guard_.Sent(Data(1, "a part of a result"));
    ASSERT_EQ(Receive(Http2Frame(test::kPingFrame, 0, 0, "12345678")), Fault::kNone) << i;
  }
}

TEST_F(Http2GuardTest, StreamsAreBoundedBeforeTheSettingsAreKnown) {
  const std::string opening =
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Http2Frame(test::kSettingsFrame, 0, 0, "");
  ASSERT_EQ(Receive(opening), Fault::kNone);
  Fault fault = Fault::kNone;
  uint32_t streams = 0;
  for (; fault == Fault::kNone && streams < 10000; ++streams) {
    fault = Receive(Headers(2 * streams + 1));
  }
  EXPECT_EQ(fault, Fault::kStreams);
  EXPECT_EQ(streams, limits_.streams + 1);
}

TEST_F(Http2GuardTest, AnyBytesAreSurvived) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Http2Guard guard(limits_);
    std::string bytes(2000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % (round % 2 == 0 ? 256 : 12));
    (void)guard.Received(bytes, now_);
    guard.Sent(bytes);
    EXPECT_GE(guard.unfinished_bytes(), 0);
  }
}

}  // namespace
}  // namespace sparsed::server
