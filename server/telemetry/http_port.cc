#include "server/telemetry/http_port.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <deque>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "base/mutex.h"
#include "server/listener/accept_loop.h"

namespace sparsed::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxHead = 8 << 10;
constexpr size_t kMaxWaiting = 128;
constexpr auto kPatience = std::chrono::seconds(5);
/// Threads that make pages, and requests that wait for one.
constexpr int kMakers = 2;
constexpr size_t kMaxQueued = 32;
constexpr int kNiceness = 5;
/// For a reply to be taken by its reader; most fit into the socket's buffer and wait for nobody.
constexpr auto kSendTime = std::chrono::seconds(5);
constexpr int kSendBuffer = 512 << 10;
/// Times 4 KiB.
constexpr int kMostDrained = 16;

Opening OpeningOf(int /*fd*/, std::string_view bytes) {
  if (bytes.find("\r\n\r\n") != std::string_view::npos) return Opening::kComplete;
  const bool method = bytes.front() >= 'A' && bytes.front() <= 'Z';
  return method && bytes.size() < kMaxHead ? Opening::kIncomplete : Opening::kWrong;
}

bool FromThisMachine(int fd) {
  sockaddr_storage name = {};
  socklen_t size = sizeof(name);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return false;
  if (name.ss_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(name).sin_addr.s_addr) >> 24 == 127;
  }
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(name).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

/// The value of a header, without spaces around it.
std::string HeaderIn(std::string_view head, std::string_view name) {
  for (size_t at = head.find("\r\n"); at != std::string_view::npos; at = head.find("\r\n", at)) {
    at += 2;
    const std::string_view line = head.substr(at, head.find("\r\n", at) - at);
    const size_t colon = line.find(':');
    if (colon != name.size() ||
        !absl::EqualsIgnoreCase(absl::string_view(line.data(), colon),
                                absl::string_view(name.data(), name.size())))
      continue;
    const absl::string_view value(line.data() + colon + 1, line.size() - colon - 1);
    return std::string(absl::StripAsciiWhitespace(value));
  }
  return {};
}

/// Of a head that has come completely.
std::optional<HttpRequest> ReadRequest(int fd) {
  std::string head(kMaxHead, '\0');
  const ssize_t size = recv(fd, head.data(), head.size(), MSG_DONTWAIT);
  if (size <= 0) return std::nullopt;
  head.resize(static_cast<size_t>(size));
  std::string_view line = std::string_view(head).substr(0, head.find("\r\n"));
  const size_t method = line.find(' ');
  if (method == std::string_view::npos) return std::nullopt;
  std::string_view target = line.substr(method + 1);
  target = target.substr(0, target.find(' '));
  const size_t query = target.find('?');
  const std::string_view headers = std::string_view(head).substr(0, head.find("\r\n\r\n"));
  HttpRequest request;
  request.method = line.substr(0, method);
  request.path = target.substr(0, query);
  if (query != std::string_view::npos) request.query = target.substr(query + 1);
  request.authorization = HeaderIn(headers, "authorization");
  request.host = HeaderIn(headers, "host");
  request.from_this_machine = FromThisMachine(fd);
  return request;
}

std::string_view Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

std::string Bytes(const HttpReply& reply, bool body) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
      "Cross-Origin-Resource-Policy: same-origin\r\n"
      "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
      "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
      "frame-ancestors 'none'\r\n"
      "{}Connection: close\r\n\r\n{}",
      reply.status, Reason(reply.status), reply.content_type, reply.body.size(),
      reply.status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
      body ? std::string_view(reply.body) : std::string_view());
}

/// Sends what the reader takes in time, then ends the connection.
void Send(const Descriptor& fd, std::string_view bytes, Clock::duration time) {
  const auto until = Clock::now() + time;
  while (!bytes.empty()) {
    const ssize_t sent = send(fd.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
      continue;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return;
    pollfd ready = {.fd = fd.fd(), .events = POLLOUT, .revents = 0};
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) == 0) return;
  }
  // Bytes that nobody has read would make the system throw the reply away; who sends without an
  // end is not worth it.
  std::array<char, 4096> rest;
  for (int i = 0; i < kMostDrained; ++i) {
    if (recv(fd.fd(), rest.data(), rest.size(), MSG_DONTWAIT) <= 0) break;
  }
}

}  // namespace

class HttpPort::Impl {
 public:
  Impl(Pages pages, Pages probes, Gate gate)
      : pages_(std::move(pages)), probes_(std::move(probes)), gate_(std::move(gate)) {}

  ~Impl() {
    loop_.reset();
    {
      const MutexLock lock(mutex_);
      closing_ = true;
    }
    changed_.NotifyAll();
    for (std::thread& maker : makers_) maker.join();
  }

  absl::Status Listen(const std::string& address) {
    auto socket = ListenSocket::Open(address);
    if (!socket.ok()) return socket.status();
    sockets_.push_back(*std::move(socket));
    for (int i = 0; i < kMakers; ++i) makers_.emplace_back([this] { MakePages(); });
    AcceptRules rules;
    rules.admit = [](int /*fd*/) { return true; };
    rules.opening = OpeningOf;
    rules.opening_bytes = kMaxHead;
    rules.take = [this](Descriptor fd) { Take(std::move(fd)); };
    rules.refused = [](Refusal /*refusal*/) {};
    rules.max_waiting = kMaxWaiting;
    rules.patience = kPatience;
    auto loop = AcceptLoop::Start(sockets_, std::move(rules));
    if (!loop.ok()) return loop.status();
    loop_ = *std::move(loop);
    return absl::OkStatus();
  }

  const std::string& address() const { return sockets_.front().address(); }

 private:
  struct Job {
    Descriptor fd;
    const Page* page;
    HttpRequest request;
  };

  /// On the accepting thread.
  void Take(Descriptor fd) {
    std::optional<HttpRequest> request = ReadRequest(fd.fd());
    if (!request.has_value()) return;
    const bool body = request->method != "HEAD";
    const auto reply = [&](const HttpReply& made) {
      Send(fd, Bytes(made, body), Clock::duration::zero());
    };
    if (request->method != "GET" && request->method != "HEAD") {
      return reply({.status = 405, .body = "only GET and HEAD\n"});
    }
    if (const auto probe = probes_.find(request->path); probe != probes_.end()) {
      return reply(probe->second(*request));
    }
    const auto page = pages_.find(request->path);
    if (page == pages_.end()) return reply({.status = 404, .body = "no such page\n"});
    if (gate_) {
      if (const std::optional<HttpReply> refused = gate_(*request)) return reply(*refused);
    }
    {
      const MutexLock lock(mutex_);
      if (jobs_.size() < kMaxQueued) {
        jobs_.push_back({std::move(fd), &page->second, *std::move(request)});
        changed_.NotifyOne();
        return;
      }
    }
    reply({.status = 503, .body = "too many ask at once\n"});
  }

  void MakePages() {
    // Pages give way to requests. On Linux a thread has a niceness of its own.
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness);
    MutexLock lock(mutex_);
    while (true) {
      while (!closing_ && jobs_.empty()) changed_.Wait(mutex_);
      if (closing_) return;
      const Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.Unlock();
      setsockopt(job.fd.fd(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
      Send(job.fd, Bytes((*job.page)(job.request), job.request.method != "HEAD"), kSendTime);
      lock.Lock();
    }
  }

  const Pages pages_, probes_;
  const Gate gate_;
  std::vector<ListenSocket> sockets_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> makers_;
  std::unique_ptr<AcceptLoop> loop_;
};

HttpPort::HttpPort(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpPort::~HttpPort() = default;
const std::string& HttpPort::address() const { return impl_->address(); }

absl::StatusOr<std::unique_ptr<HttpPort>> HttpPort::Start(const std::string& address, Pages pages,
                                                          Pages probes, Gate gate) {
  std::unique_ptr<HttpPort> http(
      new HttpPort(std::make_unique<Impl>(std::move(pages), std::move(probes), std::move(gate))));
  if (absl::Status status = http->impl_->Listen(address); !status.ok()) return status;
  return http;
}

}  // namespace sparsed::server
