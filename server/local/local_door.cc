#include "server/local/local_door.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/engine.h"
#include "server/listener/descriptor.h"
#include "server/rpc/convert.h"
#include "server/rpc/shared_regions.h"
#include "server/rpc/worker_pool.h"
#include "server/security/tenant.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed::server {
namespace {

constexpr int kEvents = 64;
constexpr size_t kMostBytes = 4096;
/// Where nothing can be done but to try again.
constexpr int kPauseMs = 10;
constexpr uint64_t kListening = 0, kWake = 1, kFirst = 2;

/// A packet and the descriptor that came with it.
struct Packet {
  std::string bytes;
  Descriptor file;
};

/// None: there is none yet. An empty one: the other end is gone, or sent what is too long, or more
/// than one descriptor.
std::optional<Packet> Receive(int socket) {
  Packet packet;
  packet.bytes.resize(kMostBytes);
  iovec part = {packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  bool one = true;
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    // There is room for two of them, for alignment's sake; all that came are ours to close.
    const size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(at) + i * sizeof(int), sizeof(file));
      packet.file = Descriptor(file);
    }
    one = count <= 1;
  }
  const bool whole = size > 0 && one && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  packet.bytes.resize(whole ? static_cast<size_t>(size) : 0);
  return packet;
}

v1::LocalReply ReplyOf(const absl::Status& status) {
  v1::LocalReply reply;
  ToProto(status, *reply.mutable_status());
  return reply;
}

}  // namespace

class LocalDoor::Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(Options options, engine::Engine& engine, WorkerPool& workers, SharedRegions& regions)
      : options_(std::move(options)), engine_(engine), workers_(workers), regions_(regions) {}

  absl::Status Prepare(int listening) {
    epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
    wake_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!epoll_.open() || !wake_.open()) {
      return absl::ResourceExhaustedError("there are no descriptors left to listen with");
    }
    listening_ = listening;
    Watch(EPOLL_CTL_ADD, listening, EPOLLIN, kListening);
    Watch(EPOLL_CTL_ADD, wake_.fd(), EPOLLIN, kWake);
    return absl::OkStatus();
  }

  void Run() {
    while (!stopping_) {
      std::array<epoll_event, kEvents> events;
      const int count = epoll_wait(epoll_.fd(), events.data(), kEvents, -1);
      for (int i = 0; i < count && !stopping_; ++i) {
        const epoll_event& event = events[static_cast<size_t>(i)];
        if (event.data.u64 == kListening) {
          Accept();
        } else if (event.data.u64 == kWake) {
          Settle();
        } else {
          Serve(event.data.u64, (event.events & (EPOLLHUP | EPOLLERR)) != 0);
        }
      }
    }
    while (!connections_.empty()) Drop(connections_.begin()->first);
    Settle();  // for nobody
  }

  void Stop() {
    stopping_ = true;
    Wake();
  }

  Counts counts() const { return {open_, turned_away_}; }

 private:
  /// Used by the loop's thread alone.
  struct Connection {
    Descriptor socket;
    std::string tenant;
    std::map<std::string, int64_t> regions;  ///< their bytes
    int64_t bytes = 0;                       ///< of all of them
    bool busy = false;                       ///< a worker maps what it shared
  };
  /// What a worker did for a connection.
  struct Mapped {
    uint64_t connection;
    absl::Status status;
    std::string region;  ///< its name, if that is OK
    int64_t bytes;
  };

  void Watch(int operation, int fd, uint32_t events, uint64_t id) {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = id;
    epoll_ctl(epoll_.fd(), operation, fd, &event);
  }

  void Wake() {
    const uint64_t one = 1;
    (void)!write(wake_.fd(), &one, sizeof(one));
  }

  void Accept() {
    Descriptor socket(accept4(listening_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.open()) {
      // Without descriptors the listening socket stays ready: no need to look at it all the time.
      if (errno != EAGAIN) poll(nullptr, 0, kPauseMs);
      return;
    }
    ucred peer = {};
    socklen_t size = sizeof(peer);
    if (connections_.size() >= options_.max_connections ||
        getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
      ++turned_away_;
      return;
    }
    v1::LocalReply reply;
    reply.mutable_hello()->set_server_id(options_.server_id);
    const uint64_t id = next_++;
    const int fd = socket.fd();
    Connection& connection = connections_[id];
    connection.socket = std::move(socket);
    connection.tenant = TenantOf(peer);
    ++open_;
    Watch(EPOLL_CTL_ADD, fd, EPOLLIN, id);
    Send(id, reply);
  }

  void Drop(uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    for (const auto& [region, bytes] : found->second.regions) regions_.Remove(region);
    connections_.erase(found);
    --open_;
  }

  /// Who takes no answers is dropped.
  void Send(uint64_t id, const v1::LocalReply& reply) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    const std::string bytes = reply.SerializeAsString();
    const ssize_t sent =
        send(found->second.socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(bytes.size())) Drop(id);
  }

  void Serve(uint64_t id, bool ended) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    if (found->second.busy) {
      if (ended) Drop(id);
      return;
    }
    std::optional<Packet> packet = Receive(found->second.socket.fd());
    if (!packet) return;
    v1::LocalRequest request;
    if (packet->bytes.empty()) return Drop(id);
    if (!request.ParseFromString(packet->bytes)) {
      ++turned_away_;
      return Drop(id);
    }
    switch (request.part_case()) {
      case v1::LocalRequest::kShare:
        return Share(id, found->second, std::move(packet->file));
      case v1::LocalRequest::kForget:
        return Forget(id, found->second, request.forget().region());
      case v1::LocalRequest::PART_NOT_SET:
        break;
    }
    Send(id, ReplyOf(absl::InvalidArgumentError("a request is neither share nor forget")));
  }

  void Share(uint64_t id, Connection& connection, Descriptor file) {
    if (!file.open()) {
      return Send(id, ReplyOf(absl::InvalidArgumentError(
                          "the packet has no descriptor of the memory to share")));
    }
    if (connection.regions.size() >= options_.max_regions) {
      return Send(id, ReplyOf(absl::ResourceExhaustedError(
                          fmt::format("{} regions are shared over this connection, at most {} may "
                                      "be; forget some",
                                      connection.regions.size(), options_.max_regions))));
    }
    struct stat facts = {};
    fstat(file.fd(), &facts);
    if (facts.st_size > options_.max_bytes - connection.bytes) {
      return Send(id, ReplyOf(absl::ResourceExhaustedError(fmt::format(
                          "{} bytes are shared over this connection, with {} more they would be "
                          "beyond the {} of --connection-memory; forget some",
                          connection.bytes, facts.st_size, options_.max_bytes))));
    }
    const absl::Status queued =
        workers_.Run([self = shared_from_this(), id, tenant = connection.tenant,
                      shared = std::make_shared<Descriptor>(std::move(file))] {
          self->Map(id, shared->fd(), tenant);
        });
    if (!queued.ok()) return Send(id, ReplyOf(queued));
    connection.busy = true;
    Watch(EPOLL_CTL_MOD, connection.socket.fd(), 0, id);
  }

  /// A worker's.
  void Map(uint64_t id, int file, const std::string& tenant) {
    absl::StatusOr<Buffer> memory = engine_.Share(file, tenant);
    Mapped mapped = {id, memory.status(), {}, 0};
    if (memory.ok()) {
      mapped.bytes = static_cast<int64_t>(memory->size());
      mapped.region = regions_.Add(*std::move(memory));
    }
    const MutexLock lock(mutex_);
    if (stopping_) {
      regions_.Remove(mapped.region);
      return;
    }
    mapped_.push_back(std::move(mapped));
    Wake();
  }

  /// Answers those that workers have done something for.
  void Settle() {
    uint64_t count = 0;
    (void)!read(wake_.fd(), &count, sizeof(count));
    std::vector<Mapped> mapped;
    {
      const MutexLock lock(mutex_);
      mapped.swap(mapped_);
    }
    for (const Mapped& one : mapped) {
      const auto found = connections_.find(one.connection);
      if (found == connections_.end()) {
        regions_.Remove(one.region);
        continue;
      }
      found->second.busy = false;
      Watch(EPOLL_CTL_MOD, found->second.socket.fd(), EPOLLIN, one.connection);
      v1::LocalReply reply = ReplyOf(one.status);
      if (one.status.ok()) {
        reply.set_region(one.region);
        found->second.regions.emplace(one.region, one.bytes);
        found->second.bytes += one.bytes;
      }
      Send(one.connection, reply);
    }
  }

  void Forget(uint64_t id, Connection& connection, const std::string& region) {
    const auto found = connection.regions.find(region);
    if (found == connection.regions.end()) {
      return Send(id, ReplyOf(absl::NotFoundError("this connection has shared no such memory")));
    }
    connection.bytes -= found->second;
    connection.regions.erase(found);
    regions_.Remove(region);
    Send(id, ReplyOf(absl::OkStatus()));
  }

  const Options options_;
  engine::Engine& engine_;
  WorkerPool& workers_;
  SharedRegions& regions_;
  Descriptor epoll_, wake_;
  int listening_ = -1;
  uint64_t next_ = kFirst;
  std::map<uint64_t, Connection> connections_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> open_ = 0, turned_away_ = 0;
  Mutex mutex_;
  std::vector<Mapped> mapped_ ABSL_GUARDED_BY(mutex_);
};

LocalDoor::LocalDoor(ListenSocket socket, std::shared_ptr<Loop> loop)
    : socket_(std::move(socket)),
      loop_(std::move(loop)),
      thread_([running = loop_] { running->Run(); }) {}

absl::StatusOr<std::unique_ptr<LocalDoor>> LocalDoor::Open(Options options, engine::Engine& engine,
                                                           WorkerPool& workers,
                                                           SharedRegions& regions) {
  absl::StatusOr<ListenSocket> socket = ListenSocket::Open(options.address, SOCK_SEQPACKET);
  if (!socket.ok()) return socket.status();
  auto loop = std::make_shared<Loop>(std::move(options), engine, workers, regions);
  if (absl::Status s = loop->Prepare(socket->sockets().front().fd()); !s.ok()) return s;
  return std::unique_ptr<LocalDoor>(new LocalDoor(*std::move(socket), std::move(loop)));
}

LocalDoor::~LocalDoor() {
  loop_->Stop();
  thread_.join();
}

LocalDoor::Counts LocalDoor::counts() const { return loop_->counts(); }

}  // namespace sparsed::server
