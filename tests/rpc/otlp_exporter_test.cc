// Spans on their way to a collector: nobody waits for it, and what it does not get is counted.
#include "server/telemetry/otlp_exporter.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace sparsed::server {
namespace {

constexpr size_t kMostWaiting = 500;

/// Listens; answers each request of a connection with 200 if it `answers`, else never.
class Collector {
 public:
  explicit Collector(bool answers) : answers_(answers) {
    socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(socket_, 8), 0);
    socklen_t length = sizeof(address);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~Collector() {
    shutdown(socket_, SHUT_RDWR);
    thread_.join();
    close(socket_);
  }
  OtlpExporter::Options options() const {
    OtlpExporter::Options options;
    options.endpoint = *ParseOtlpEndpoint(fmt::format("http://127.0.0.1:{}", port_));
    options.most_waiting = kMostWaiting;
    options.interval = std::chrono::milliseconds(20);
    options.pause = std::chrono::milliseconds(20);
    options.patience = std::chrono::milliseconds(300);
    return options;
  }

 private:
  void Run() {
    for (int client = 0; (client = accept(socket_, nullptr, nullptr)) >= 0;) {
      std::string text;
      for (std::vector<char> bytes(1 << 16);;) {
        const ssize_t got = recv(client, bytes.data(), bytes.size(), 0);
        if (got <= 0) break;
        text.append(bytes.data(), static_cast<size_t>(got));
        const size_t head = text.find("\r\n\r\n");
        const size_t at = text.find("Content-Length: ");
        if (!answers_ || head == text.npos || at == text.npos) continue;
        const size_t size = head + 4 + std::stoul(text.substr(at + 16));
        if (text.size() < size) continue;
        text.erase(0, size);
        const std::string reply = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        send(client, reply.data(), reply.size(), MSG_NOSIGNAL);
      }
      close(client);
    }
  }

  const bool answers_;
  int socket_ = -1, port_ = 0;
  std::thread thread_;
};

StageRecord Traced() {
  StageRecord record;
  record.trace = {.trace_id = std::string(32, 'a'), .parent_id = "", .state = "", .sampled = true};
  record.total_ns = 1000;
  return record;
}

TEST(OtlpExporter, EverySpanIsSentOrCounted) {
  constexpr int kThreads = 4, kRequests = 2000;
  Collector collector(/*answers=*/true);
  OtlpExporter exporter(collector.options());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int request = 0; request < kRequests; ++request) exporter.Add(Traced());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto all = [&] { return exporter.counts().exported + exporter.counts().dropped; };
  for (int i = 0; i < 1000 && all() < kThreads * kRequests; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(all(), kThreads * kRequests);
  EXPECT_GT(exporter.counts().exported, 0);
  // The queue is free again.
  const int64_t before = exporter.counts().exported;
  exporter.Add(Traced());
  for (int i = 0; i < 1000 && exporter.counts().exported == before; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(exporter.counts().exported, before + 1);
}

TEST(OtlpExporter, ACollectorThatNeverAnswersKeepsABoundedNumberWaiting) {
  constexpr int kRequests = 5000;
  Collector collector(/*answers=*/false);
  OtlpExporter exporter(collector.options());
  for (int i = 0; i < kRequests; ++i) exporter.Add(Traced());
  EXPECT_EQ(exporter.counts().exported, 0);
  EXPECT_GE(exporter.counts().dropped, kRequests - static_cast<int>(kMostWaiting));
}

TEST(OtlpExporter, WhatIsNotTracedIsLeftOut) {
  Collector collector(/*answers=*/true);
  OtlpExporter exporter(collector.options());
  exporter.Add(StageRecord());
  StageRecord record = Traced();
  record.trace.sampled = false;
  exporter.Add(record);
  EXPECT_EQ(exporter.counts().exported + exporter.counts().dropped, 0);
}

}  // namespace
}  // namespace sparsed::server
