// Which connections are read from, and which are ended, when messages do not end.
#include "server/listener/connections.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/raw_http2.h"

namespace sparsed::server {
namespace {

constexpr int64_t kMost = 100'000;

/// The beginning of a call with a message of `length` bytes, of which `sent` come.
std::string Message(uint32_t length, size_t sent) {
  std::string data(1, '\0');
  for (const int shift : {24, 16, 8, 0}) data += static_cast<char>(length >> shift);
  data.append(sent, 'x');
  return test::Http2Opening() +
         test::Http2Frame(test::kHeadersFrame, test::kEndHeadersFlag, 1, "fields") +
         test::Http2Frame(test::kDataFrame, 0, 1, data);
}
std::string More(size_t bytes) {
  return test::Http2Frame(test::kDataFrame, 0, 1, std::string(bytes, 'x'));
}

class ConnectionsTest : public testing::Test {
 protected:
  /// A client's socket and the server's, which is watched and in the epoll.
  struct Pair {
    int client = -1;
    int server = -1;
  };

  Pair Connect() {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
    connections_->Add(sockets[1]);
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLET;
    event.data.fd = sockets[1];
    EXPECT_EQ(epoll_ctl(epoll_, EPOLL_CTL_ADD, sockets[1], &event), 0);
    pairs_.push_back({sockets[0], sockets[1]});
    return pairs_.back();
  }
  void Send(const Pair& pair, const std::string& bytes) {
    ASSERT_EQ(send(pair.client, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  /// As gRPC reads, with two parts. -errno if it fails.
  ssize_t Read(const Pair& pair) {
    std::vector<char> first(1 << 19), second(1 << 19);
    iovec parts[] = {{first.data(), first.size()}, {second.data(), second.size()}};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t size = recvmsg(pair.server, &message, 0);
    EXPECT_EQ(message.msg_iovlen, 2u);
    EXPECT_EQ(parts[0].iov_len, first.size());
    return size < 0 ? -errno : size;
  }
  using Clock = std::chrono::steady_clock;
  /// What begins afterwards begins later.
  static void AwaitTick() {
    for (const auto before = Clock::now(); Clock::now() == before;) {
    }
  }
  /// The descriptors that became ready since the last call.
  std::vector<int> Ready() {
    epoll_event events[16];
    const int count = epoll_wait(epoll_, events, 16, 0);
    std::vector<int> ready;
    for (int i = 0; i < count; ++i) ready.push_back(events[i].data.fd);
    return ready;
  }
  void Close(Pair& pair) {
    close(pair.server);
    close(pair.client);
    std::erase_if(pairs_, [&](const Pair& other) { return other.server == pair.server; });
  }

  ConnectionsTest() : epoll_(epoll_create1(0)) {}
  ~ConnectionsTest() override {
    while (!pairs_.empty()) {
      Pair last = pairs_.back();
      Close(last);
    }
    close(epoll_);
    EXPECT_EQ(connections_->open(), 0);
    EXPECT_EQ(connections_->counts().unfinished_bytes, 0);
    EXPECT_EQ(connections_->counts().held, 0);
  }

  const std::shared_ptr<Connections> connections_ =
      std::make_shared<Connections>(GuardLimits{}, kMost);
  const int epoll_;
  std::vector<Pair> pairs_;
};

TEST_F(ConnectionsTest, NothingMoreIsReadUntilWhatWasEndedIsFreed) {
  Pair oldest = Connect(), held = Connect(), fresh = Connect(), large = Connect();
  Send(oldest, Message(200'000, 60'000));
  EXPECT_GT(Read(oldest), 60'000);
  AwaitTick();
  Send(held, Message(200'000, 60'000));
  EXPECT_GT(Read(held), 60'000);
  EXPECT_EQ(Read(oldest), -ECONNRESET) << "120,000 bytes were too many";
  EXPECT_EQ(connections_->counts().ended[static_cast<size_t>(Fault::kMemory)], 1);
  EXPECT_EQ(connections_->counts().unfinished_bytes, 120'000) << "gRPC has them still";

  const std::string more = More(10'000);
  Send(held, more);
  Ready();
  EXPECT_EQ(Read(held), -EAGAIN);
  EXPECT_EQ(Read(held), -EAGAIN) << "asked twice";
  EXPECT_EQ(connections_->counts().held, 1);
  // A short message has its place, of a long one the beginning.
  const std::string whole = Message(100, 100);
  Send(fresh, whole);
  EXPECT_EQ(Read(fresh), static_cast<ssize_t>(whole.size()));
  Send(large, Message(150'000, 100'000));
  EXPECT_EQ(Read(large), 16 << 10);
  EXPECT_EQ(Read(large), -EAGAIN);
  EXPECT_EQ(connections_->counts().held, 2);
  Ready();
  EXPECT_TRUE(Ready().empty());

  Close(oldest);
  EXPECT_EQ(connections_->counts().held, 0);
  std::vector<int> ready = Ready();
  std::sort(ready.begin(), ready.end());
  EXPECT_EQ(ready, (std::vector<int>{held.server, large.server})) << "as if bytes had come";
  EXPECT_EQ(Read(held), static_cast<ssize_t>(more.size()));
}

TEST_F(ConnectionsTest, WhatIsNotFreedHoldsOthersForTwoSecondsOnly) {
  Pair oldest = Connect(), held = Connect(), done = Connect();
  const auto begin = Clock::now();
  Send(done, Message(200'000, 10));
  Read(done);
  AwaitTick();
  Send(oldest, Message(200'000, 60'000));
  Read(oldest);
  AwaitTick();
  Send(held, Message(200'000, 60'000));
  Read(held);
  // The one with ten bytes began first and was ended, which was not enough.
  EXPECT_EQ(connections_->counts().ended[static_cast<size_t>(Fault::kMemory)], 2);
  EXPECT_EQ(Read(held), -EAGAIN);
  connections_->WakeHeld();
  EXPECT_EQ(connections_->counts().held, 1);
  Send(held, More(10'000));
  Ready();
  while (connections_->counts().held > 0 && Clock::now() < begin + std::chrono::minutes(1)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    connections_->WakeHeld();
  }
  EXPECT_EQ(connections_->counts().held, 0);
  EXPECT_GE(Clock::now() - begin, std::chrono::seconds(2));
  EXPECT_EQ(Ready(), std::vector<int>{held.server});
  EXPECT_GT(Read(held), 10'000);
}

TEST_F(ConnectionsTest, AConnectionWhoseMessageIsGivenUpIsRead) {
  Pair oldest = Connect(), held = Connect();
  Send(oldest, Message(200'000, 60'000));
  Read(oldest);
  AwaitTick();
  Send(held, Message(200'000, 60'000));
  Read(held);
  EXPECT_EQ(Read(held), -EAGAIN);
  Send(held, More(10'000));
  Ready();
  // The server ends the stream.
  const std::string reset = test::Http2Frame(test::kResetFrame, 0, 1, std::string(4, '\0'));
  iovec part = {const_cast<char*>(reset.data()), reset.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ASSERT_EQ(sendmsg(held.server, &message, 0), static_cast<ssize_t>(reset.size()));
  EXPECT_EQ(connections_->counts().held, 0);
  EXPECT_EQ(Ready(), std::vector<int>{held.server});
  EXPECT_GT(Read(held), 10'000);
}

TEST_F(ConnectionsTest, TheEndOfAHeldConnectionWakesNobody) {
  Pair oldest = Connect(), held = Connect();
  Send(oldest, Message(200'000, 90'000));
  Read(oldest);
  AwaitTick();
  Send(held, Message(200'000, 90'000));
  Read(held);
  EXPECT_EQ(Read(held), -EAGAIN);
  Close(held);
  EXPECT_EQ(connections_->counts().held, 0);
  EXPECT_EQ(connections_->counts().unfinished_bytes, 90'000);
  Close(oldest);
}

}  // namespace
}  // namespace sparsed::server
