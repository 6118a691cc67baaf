// A local socket whose other end answers as the test says.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/packet.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed::test {

/// Serves one connection after the other.
class ScriptedDoor {
 public:
  /// Called with each request and the descriptor that came with it, on the door's thread; the
  /// packets it returns are sent.
  using Script = std::function<std::vector<Packet>(const v1::LocalRequest&, Descriptor file)>;

  explicit ScriptedDoor(Script script, std::string server_id = "the server")
      : script_(std::move(script)), server_id_(std::move(server_id)) {
    static std::atomic<int> number = 0;
    path_ = testing::TempDir() + "sparsed_door_" + std::to_string(getpid()) + "_" +
            std::to_string(number++);
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, path_.data(), path_.size());
    EXPECT_EQ(bind(listening_.fd(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
    EXPECT_EQ(listen(listening_.fd(), 8), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~ScriptedDoor() {
    stopping_ = true;
    thread_.join();
    unlink(path_.c_str());
  }

  const std::string& path() const { return path_; }
  /// Sends a packet over the present connection.
  void Send(const Packet& packet) {
    const std::lock_guard lock(mutex_);
    while (SendPacket(peer_.fd(), packet) == Sent::kLater) poll(nullptr, 0, 1);
  }
  /// Closes the present connection.
  void HangUp() {
    const std::lock_guard lock(mutex_);
    shutdown(peer_.fd(), SHUT_RDWR);
  }

  static Packet ReplyTo(const v1::LocalRequest& request, const std::string& region = "") {
    v1::LocalReply reply;
    reply.set_request_id(request.request_id());
    reply.mutable_status();
    reply.set_region(region);
    return {reply.SerializeAsString(), Descriptor()};
  }

 private:
  static bool Readable(int socket) {
    pollfd ready = {socket, POLLIN, 0};
    return poll(&ready, 1, 10) > 0;
  }

  void Run() {
    while (!stopping_) {
      if (!Readable(listening_.fd())) continue;
      {
        const std::lock_guard lock(mutex_);
        peer_ = Descriptor(accept4(listening_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      }
      v1::LocalReply hello;
      hello.mutable_hello()->set_server_id(server_id_);
      Send({hello.SerializeAsString(), Descriptor()});
      while (!stopping_) {
        if (!Readable(peer_.fd())) continue;
        auto packet = ReceivePacket(peer_.fd(), 4096);
        if (!packet) continue;
        v1::LocalRequest request;
        if (packet->bytes.empty() || !request.ParseFromString(packet->bytes)) break;
        for (const Packet& reply : script_(request, std::move(packet->file))) Send(reply);
      }
      const std::lock_guard lock(mutex_);
      Descriptor gone;
      gone = std::move(peer_);
    }
  }

  const Script script_;
  const std::string server_id_;
  std::string path_;
  const Descriptor listening_{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  std::mutex mutex_;  // guards whom peer_ is, and what is sent to it
  Descriptor peer_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace sparsed::test
