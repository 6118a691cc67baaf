// The client's end of a server's local socket, and what calls make of it that share memory.
#include "client/src/local_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>

#include "client/src/shared_memory.h"
#include "sparsed/client.h"
#include "sparsed/v1/compute.pb.h"
#include "tests/unit/client/eventually.h"
#include "tests/unit/client/scripted_door.h"
#include "tests/unit/client/scripted_server.h"

namespace sparsed::test {
namespace {

using Requests = std::vector<v1::LocalRequest>;

/// What was asked, to be answered later.
class Asked {
 public:
  void Add(const v1::LocalRequest& request) {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  Requests get() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  bool Comes(size_t count) const {
    return Eventually([&] { return get().size() >= count; });
  }

 private:
  mutable std::mutex mutex_;
  Requests requests_;
};

v1::LocalRequest Forget(const std::string& region) {
  v1::LocalRequest request;
  request.mutable_forget()->set_region(region);
  return request;
}

TEST(LocalSocket, ConnectsToItsServerAlone) {
  for (const std::string& path : {std::string("/nowhere"), std::string(200, 'x'), std::string()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(LocalSocket::Connect({path, "the server"}).status()));
  }
  ScriptedDoor door([](const auto&, Descriptor) { return std::vector<Packet>(); });
  EXPECT_TRUE(absl::IsFailedPrecondition(LocalSocket::Connect({door.path(), "another"}).status()));
  const auto socket = LocalSocket::Connect({door.path(), "the server"});
  ASSERT_TRUE(socket.ok()) << socket.status();
  EXPECT_TRUE((*socket)->Alive());
  door.HangUp();
  EXPECT_TRUE(Eventually([&] { return !(*socket)->Alive(); }));
  EXPECT_TRUE(absl::IsUnavailable((*socket)->Ask(Forget("x")).status()));
}

TEST(LocalSocket, DescriptorsComeAndGo) {
  ScriptedDoor door([](const v1::LocalRequest& request, Descriptor file) {
    struct stat facts = {};
    if (fstat(file.fd(), &facts) != 0) facts.st_size = -1;
    std::vector<Packet> replies;
    replies.push_back(ScriptedDoor::ReplyTo(request, std::to_string(facts.st_size)));
    replies.back().file = std::move(file);
    return replies;
  });
  const auto socket = LocalSocket::Connect({door.path(), "the server"});
  ASSERT_TRUE(socket.ok()) << socket.status();
  const Descriptor file(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.fd(), 100), 0);
  const auto reply = (*socket)->Ask(Forget("x"), file.fd());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->message.region(), "100");
  struct stat facts = {};
  ASSERT_EQ(fstat(reply->file.fd(), &facts), 0);
  EXPECT_EQ(facts.st_size, 100);
  const auto without = (*socket)->Ask(Forget("x"));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE(without->file.open());
}

TEST(LocalSocket, RepliesComeInAnyOrder) {
  Requests held;
  // Every two requests are answered the last one first.
  ScriptedDoor door([&](const v1::LocalRequest& request, Descriptor) {
    std::vector<Packet> replies;
    held.push_back(request);
    if (held.size() < 2) return replies;
    for (auto one = held.rbegin(); one != held.rend(); ++one) {
      replies.push_back(ScriptedDoor::ReplyTo(*one, one->forget().region()));
    }
    held.clear();
    return replies;
  });
  const auto socket = LocalSocket::Connect({door.path(), "the server"});
  ASSERT_TRUE(socket.ok()) << socket.status();
  std::vector<std::thread> threads;
  for (const std::string name : {"one", "other"}) {
    threads.emplace_back([&, name] {
      for (int round = 0; round < 200; ++round) {
        const auto reply = (*socket)->Ask(Forget(name));
        ASSERT_TRUE(reply.ok()) << reply.status();
        EXPECT_EQ(reply->message.region(), name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LocalSocket, SendsMoreThanASocketTakesWithoutWaiting) {
  std::mutex gate;
  std::unique_lock closed(gate);
  ScriptedDoor door([&](const v1::LocalRequest& request, Descriptor) {
    const std::lock_guard open(gate);
    std::vector<Packet> replies;
    replies.push_back(ScriptedDoor::ReplyTo(request));
    return replies;
  });
  const auto socket = LocalSocket::Connect({door.path(), "the server"});
  ASSERT_TRUE(socket.ok()) << socket.status();
  constexpr int kCount = 2000;
  std::atomic<int> answered = 0;
  for (int i = 0; i < kCount; ++i) {
    (*socket)->Send(Forget("x"), [&](const absl::StatusOr<LocalSocket::Reply>& reply) {
      if (reply.ok()) ++answered;
    });
  }
  EXPECT_TRUE((*socket)->Alive());
  closed.unlock();
  EXPECT_TRUE(Eventually([&] { return answered == kCount; })) << answered;
}

TEST(LocalSocket, EveryRequestEndsOnce) {
  ScriptedDoor door([](const auto&, Descriptor) { return std::vector<Packet>(); });
  auto socket = LocalSocket::Connect({door.path(), "the server"});
  ASSERT_TRUE(socket.ok()) << socket.status();
  std::mutex mutex;
  std::multiset<absl::StatusCode> codes;
  const auto note = [&](const absl::StatusOr<LocalSocket::Reply>& reply) {
    const std::lock_guard lock(mutex);
    codes.insert(reply.status().code());
  };
  const auto now = LocalSocket::Clock::now();
  (*socket)->Send(Forget("x"), note, now);
  EXPECT_TRUE(Eventually([&] {
    const std::lock_guard lock(mutex);
    return codes.count(absl::StatusCode::kDeadlineExceeded) == 1;
  }));
  EXPECT_TRUE((*socket)->Alive());
  for (int i = 0; i < 10; ++i) (*socket)->Send(Forget("x"), note);
  socket->reset();
  EXPECT_EQ(codes.count(absl::StatusCode::kUnavailable), 10u);
}

TEST(LocalSocket, IsNotAChilds) {
  Asked asked;
  ScriptedDoor door([&](const v1::LocalRequest& request, Descriptor) {
    asked.Add(request);
    std::vector<Packet> replies;
    replies.push_back(ScriptedDoor::ReplyTo(request, "region"));
    return replies;
  });
  auto memory = std::make_shared<SharedMemory>([&] {
    return LocalAddress{door.path(), "the server"};
  });
  auto block = memory->Allocate(4096);
  ASSERT_TRUE(block.ok()) << block.status();
  auto place = memory->Find((*block)->data(), 4096);
  ASSERT_TRUE(place.has_value());
  const std::shared_ptr<LocalSocket> parents = place->socket;
  place.reset();
  const pid_t child = fork();
  if (child == 0) {
    const bool silent = !parents->Alive() &&
                        absl::IsUnavailable(parents->Ask(Forget("x")).status()) &&
                        !memory->Find((*block)->data(), 4096).has_value();
    (*block)->data()[0] = std::byte{7};
    block->reset();
    memory.reset();
    _exit(silent ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ((*block)->data()[0], std::byte{7}) << "its pages are the parent's";
  EXPECT_TRUE(parents->Alive());
  EXPECT_EQ(memory->Find((*block)->data(), 4096)->region, "region");
  EXPECT_EQ(asked.get().size(), 1u) << "the block was shared once, and not forgotten";
}

TEST(SharedMemory, ASlowBlockKeepsNoOtherWaiting) {
  std::mutex mutex;
  std::optional<v1::LocalRequest> slow;
  int shares = 0;
  ScriptedDoor door([&](const v1::LocalRequest& request, Descriptor) {
    std::vector<Packet> replies;
    const std::lock_guard lock(mutex);
    if (++shares == 2) {
      slow = request;
    } else {
      replies.push_back(ScriptedDoor::ReplyTo(request, "region"));
    }
    return replies;
  });
  const auto memory = std::make_shared<SharedMemory>([&] {
    return LocalAddress{door.path(), "the server"};
  });
  const auto one = memory->Allocate(4096), other = memory->Allocate(4096);
  ASSERT_TRUE(one.ok() && other.ok());
  ASSERT_TRUE(memory->Find((*one)->data(), 64).has_value());
  std::vector<std::thread> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.emplace_back([&] {
      const auto place = memory->Find((*other)->data(), 64);
      ASSERT_TRUE(place.has_value());
      EXPECT_EQ(place->region, "late");
    });
  }
  ASSERT_TRUE(Eventually([&] {
    const std::lock_guard lock(mutex);
    return slow.has_value();
  }));
  EXPECT_EQ(memory->Find((*one)->data(), 64)->region, "region");
  door.Send(ScriptedDoor::ReplyTo(*slow, "late"));
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(shares, 2) << "three wanted it, one asked";
}

TEST(SharedMemory, ARefusedBlockIsNotOfferedWithEachCall) {
  std::atomic<int> asked = 0;
  ScriptedDoor door([&](const v1::LocalRequest& request, Descriptor) {
    ++asked;
    v1::LocalReply reply;
    reply.set_request_id(request.request_id());
    reply.mutable_status()->set_code(8);
    std::vector<Packet> replies;
    replies.push_back({reply.SerializeAsString(), Descriptor()});
    return replies;
  });
  const auto memory = std::make_shared<SharedMemory>([&] {
    return LocalAddress{door.path(), "the server"};
  });
  const auto block = memory->Allocate(4096), other = memory->Allocate(4096);
  ASSERT_TRUE(block.ok() && other.ok());
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(memory->Find((*block)->data(), 64).has_value());
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(memory->Find((*other)->data(), 64).has_value());
  EXPECT_EQ(asked, 2) << "each block is asked for";
}

TEST(SharedMemory, OfMoreBytesThanTheMachineHasIsRefused) {
  const absl::Status refused = SharedBlock::Make(size_t{1} << 46).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
}

TEST(SharedMemory, HasItsPagesFromTheStart) {
  const auto block = SharedBlock::Make(size_t{4} << 20);
  ASSERT_TRUE(block.ok()) << block.status();
  struct stat facts = {};
  ASSERT_EQ(fstat((*block)->file(), &facts), 0);
  EXPECT_EQ(facts.st_blocks * 512, 4 << 20);
}

/// A server whose streams end as the test says, and whose local socket answers `forget` when the
/// test does.
class LostEnds : public testing::Test {
 protected:
  void Start(Answer spmm) {
    v1::ServerInfo info;
    info.set_max_chunk_bytes(1 << 20);
    info.set_max_requests_per_stream(4);
    info.set_local_socket(door_.path());
    info.set_server_id("the server");
    server_ = std::make_unique<ScriptedServer>(
        Answers{{"/sparsed.v1.Admin/GetServerInfo", {.replies = {wire::Encode(info)}}},
                {"/sparsed.v1.Compute/Spmm", spmm},
                {"/sparsed.v1.Buffers/Put", spmm}});
    client_ = *Client::Connect(server_->address(), {.max_attempts = 1});
    b_ = *client_->AllocateShared(8, 16);
    c_ = *client_->AllocateShared(8, 16);
  }
  Call<ComputeResult> Multiply(const CallOptions& options = {}) {
    return client_->MatrixNamed("m").SpmmAsync(b_->ConstView(), c_->View(), {}, options);
  }
  /// Of a call that was not given its memory back while `forget` was not answered.
  template <typename T>
  void ExpectWaits(Call<T>& call, size_t regions) {
    ASSERT_TRUE(forgets_.Comes(regions));
    EXPECT_FALSE(call.WaitFor(std::chrono::milliseconds(100)));
    const Requests asked = forgets_.get();
    for (size_t i = 0; i < asked.size(); ++i) {
      EXPECT_FALSE(call.Done());
      door_.Send(ScriptedDoor::ReplyTo(asked[i]));
    }
  }

  Asked forgets_;
  std::atomic<int> shares_ = 0;
  ScriptedDoor door_{[this](const v1::LocalRequest& request, Descriptor) {
    std::vector<Packet> replies;
    if (request.has_forget()) {
      forgets_.Add(request);
    } else {
      replies.push_back(ScriptedDoor::ReplyTo(request, std::to_string(++shares_)));
    }
    return replies;
  }};
  std::unique_ptr<ScriptedServer> server_;
  std::optional<Client> client_;
  std::optional<SharedMatrix> b_, c_;
};

TEST_F(LostEnds, ABrokenStreamGivesMemoryBackWhenTheServerForgotIt) {
  Start({.end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken")});
  Call<ComputeResult> call = Multiply();
  ExpectWaits(call, 2);
  EXPECT_TRUE(absl::IsUnavailable(call.Wait().status()));
  EXPECT_EQ(shares_, 2);
  // The next call shares them anew.
  Call<ComputeResult> next = Multiply();
  ASSERT_TRUE(forgets_.Comes(4));
  EXPECT_EQ(shares_, 4);
  std::set<std::string> regions;
  for (const v1::LocalRequest& request : forgets_.get()) {
    regions.insert(request.forget().region());
    door_.Send(ScriptedDoor::ReplyTo(request));
  }
  EXPECT_EQ(regions, (std::set<std::string>{"1", "2", "3", "4"}));
  EXPECT_TRUE(absl::IsUnavailable(next.Wait().status()));
}

TEST_F(LostEnds, ACancelledCallWaitsForTheServersEnd) {
  Start({.end = std::nullopt});
  Call<ComputeResult> call = Multiply();
  EXPECT_TRUE(Eventually([&] { return server_->calls("/sparsed.v1.Compute/Spmm") == 1; }));
  call.Cancel();
  EXPECT_FALSE(call.WaitFor(std::chrono::milliseconds(1500))) << "longer than other memory is lent";
  EXPECT_TRUE(forgets_.get().empty()) << "the stream is still there";
  server_.reset();
  ExpectWaits(call, 2);
  EXPECT_TRUE(absl::IsCancelled(call.Wait().status()));
}

TEST_F(LostEnds, ADeadlineDoesToo) {
  Start({.end = std::nullopt});
  Call<ComputeResult> call = Multiply({.timeout = std::chrono::milliseconds(500)});
  EXPECT_FALSE(call.WaitFor(std::chrono::milliseconds(2000)));
  server_.reset();
  ExpectWaits(call, 2);
  EXPECT_TRUE(absl::IsDeadlineExceeded(call.Wait().status()));
}

TEST_F(LostEnds, TheSocketsEndIsTheServers) {
  Start({.end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken")});
  Call<ComputeResult> call = Multiply();
  ASSERT_TRUE(forgets_.Comes(2));
  EXPECT_FALSE(call.WaitFor(std::chrono::milliseconds(100)));
  door_.HangUp();
  EXPECT_TRUE(absl::IsUnavailable(call.Wait().status()));
}

TEST_F(LostEnds, ACancelledUploadWaitsUntilNobodyReadsIt) {
  Start({.end = std::nullopt});
  Call<DenseMatrix> call = client_->PutDenseAsync("d", b_->ConstView());
  EXPECT_TRUE(Eventually([&] { return server_->calls("/sparsed.v1.Buffers/Put") == 1; }));
  call.Cancel();
  ExpectWaits(call, 1);
  EXPECT_TRUE(absl::IsCancelled(call.Wait().status()));
}

TEST_F(LostEnds, TheNextAttemptIsStreamed) {
  // Another run of the server would not know the first attempt's memory.
  Start({.end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken")});
  client_ = *Client::Connect(server_->address(), {.max_attempts = 3});
  b_ = *client_->AllocateShared(8, 16);
  c_ = *client_->AllocateShared(8, 16);
  Call<ComputeResult> call = Multiply();
  ASSERT_TRUE(forgets_.Comes(2));
  EXPECT_EQ(server_->calls("/sparsed.v1.Compute/Spmm"), 1) << "not before that memory is free";
  for (const v1::LocalRequest& request : forgets_.get()) {
    door_.Send(ScriptedDoor::ReplyTo(request));
  }
  EXPECT_TRUE(absl::IsUnavailable(call.Wait().status()));
  const std::vector<grpc::ByteBuffer> messages =
      server_->first_messages("/sparsed.v1.Compute/Spmm");
  ASSERT_EQ(messages.size(), 3u);
  for (size_t i = 0; i < messages.size(); ++i) {
    v1::SpmmRequest request;
    ASSERT_TRUE(wire::Parse(messages[i], request).ok());
    EXPECT_EQ(request.start().b().has_shared(), i == 0);
    EXPECT_EQ(request.start().result().has_shared(), i == 0);
  }
  EXPECT_EQ(shares_, 2) << "shared once";
}

}  // namespace
}  // namespace sparsed::test
