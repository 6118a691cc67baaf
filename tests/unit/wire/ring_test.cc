// The two ends of a ring, on threads of one process.
#include "proto/wire/ring.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace sparsed::wire {
namespace {

constexpr RingSize kSize = {.slots = 4, .slot_bytes = 1024};

grpc::ByteBuffer BytesOf(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string TextOf(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  EXPECT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

std::string Message(uint32_t number) {
  return std::to_string(number) + std::string(number % kSize.message_bytes() / 2, 'x');
}

class RingTest : public testing::Test {
 protected:
  uint32_t& Word(size_t offset) { return reinterpret_cast<uint32_t*>(words_.data())[offset / 4]; }

  std::vector<uint64_t> words_ = std::vector<uint64_t>(kSize.file_bytes() / sizeof(uint64_t));
  RingMemory ring_{reinterpret_cast<std::byte*>(words_.data()), kSize};
};

TEST_F(RingTest, MessagesGoRoundAndWakeWhoSleeps) {
  constexpr uint32_t kMessages = 20'000;
  std::thread server([this] {
    RingConsumer requests = ring_.RequestConsumer();
    RingProducer replies = ring_.ReplyProducer();
    for (uint32_t number = 0; number < kMessages;) {
      const uint32_t heard = ring_.request_bell.Listen();
      auto taken = requests.Take();
      ASSERT_TRUE(taken.ok()) << taken.status();
      if (!taken->has_value()) {
        ring_.request_bell.Wait(heard, std::chrono::seconds(30));
        continue;
      }
      ASSERT_EQ((*taken)->what, RingMessage::kChain);
      // The caller has one reply untaken for each slot at most.
      replies.Put(RingMessage::kReply, (*taken)->bytes);
      ring_.reply_bell.Ring();
      ++number;
    }
  });
  RingProducer requests = ring_.RequestProducer();
  RingConsumer replies = ring_.ReplyConsumer();
  uint32_t put = 0;
  for (uint32_t taken = 0; taken < kMessages;) {
    while (put < kMessages && put - taken < kSize.slots) {
      ASSERT_LT(*requests.Untaken(), kSize.slots);
      requests.Put(RingMessage::kChain, BytesOf(Message(put++)));
      ring_.request_bell.Ring();
    }
    const uint32_t heard = ring_.reply_bell.Listen();
    const auto reply = replies.Take();
    ASSERT_TRUE(reply.ok()) << reply.status();
    if (reply->has_value()) {
      ASSERT_EQ(TextOf((*reply)->bytes), Message(taken++));
    } else {
      ring_.reply_bell.Wait(heard, std::chrono::seconds(30));
    }
  }
  server.join();
}

TEST_F(RingTest, CountsThatCannotBeAreErrors) {
  RingConsumer consumer = ring_.RequestConsumer();
  RingProducer producer = ring_.RequestProducer();
  EXPECT_FALSE(consumer.Ready());
  EXPECT_FALSE(consumer.Take()->has_value());
  for (const uint32_t put : {kSize.slots + 1, 0x80000000u, ~0u}) {
    Word(64) = put;
    EXPECT_TRUE(consumer.Ready());
    EXPECT_EQ(consumer.Take().status().code(), absl::StatusCode::kInvalidArgument) << put;
  }
  Word(128) = 1;
  EXPECT_EQ(producer.Untaken().status().code(), absl::StatusCode::kInvalidArgument);
  Word(128) = 0;
  EXPECT_EQ(*producer.Untaken(), 0u);
  producer.Put(RingMessage::kSpmm, BytesOf("1"));
  EXPECT_EQ(*producer.Untaken(), 1u);
  Word(RingSize::kHeaderBytes) = kSize.message_bytes() + 1;
  EXPECT_EQ(consumer.Take().status().code(), absl::StatusCode::kInvalidArgument);
  Word(RingSize::kHeaderBytes) = kSize.message_bytes();
  EXPECT_EQ((*consumer.Take())->bytes.Length(), kSize.message_bytes());
  EXPECT_EQ(*producer.Untaken(), 0u);
}

TEST_F(RingTest, SaysWhyItEnded) {
  EXPECT_FALSE(ring_.Ended().has_value());
  const uint32_t heard = ring_.reply_bell.Listen();
  v1::Status status;
  status.set_code(3);
  status.set_message("a sentence");
  ring_.End(status);
  ring_.reply_bell.Wait(heard, std::chrono::hours(1));  // it rang meanwhile
  EXPECT_EQ(ring_.Ended()->message(), "a sentence");
  Word(4) = ~0u;
  EXPECT_TRUE(ring_.Ended().has_value()) << "whatever it says";
  status.set_message(std::string(5000, 'x'));
  ring_.End(status);
  EXPECT_EQ(ring_.Ended()->code(), 3) << "without the sentence";
  EXPECT_FALSE(ring_.left());
  ring_.Leave();
  EXPECT_TRUE(ring_.left());
}

}  // namespace
}  // namespace sparsed::wire
