#include "server/local/local_door.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "server/local/attached_caller.h"
#include "server/rpc/convert.h"
#include "server/rpc/shared_regions.h"
#include "server/rpc/worker_pool.h"
#include "server/security/tenant.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kEvents = 64;
constexpr size_t kMostBytes = 4096;
/// Where nothing can be done but to try again.
constexpr int kPauseMs = 10;
/// Answers that a connection has not taken.
constexpr size_t kMostUnsent = 64;
constexpr std::chrono::seconds kCollectEvery{1};
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

/// None: there is no room for it now. False: the other end is gone. `file` goes along; -1: none.
std::optional<bool> Transmit(int socket, std::string bytes, int file) {
  iovec part = {bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (file >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0 && errno == EAGAIN) return std::nullopt;
  return sent == static_cast<ssize_t>(bytes.size());
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
      const int count = epoll_wait(epoll_.fd(), events.data(), kEvents, Patience());
      for (int i = 0; i < count && !stopping_; ++i) {
        const epoll_event& event = events[static_cast<size_t>(i)];
        if (event.data.u64 == kListening) {
          Accept();
        } else if (event.data.u64 == kWake) {
          Settle();
        } else {
          Serve(event.data.u64, event.events);
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
  /// A reply, and the descriptor that goes with it.
  struct Answer {
    v1::LocalReply reply;
    Descriptor file = {};
  };
  /// What a worker did for a connection.
  struct Done {
    Answer answer;
    std::string region = {};  ///< what it shared
    int64_t bytes = 0;
    std::shared_ptr<AttachedCaller> attached = nullptr;  ///< it has attached
  };
  /// Used by the loop's thread alone.
  struct Connection {
    Descriptor socket;
    std::string tenant;
    std::map<std::string, int64_t> regions;  ///< their bytes
    int64_t bytes = 0;                       ///< of all of them
    bool busy = false;                       ///< a worker does what it asked for
    /// Null: it has not. A worker's while it is busy.
    std::shared_ptr<AttachedCaller> attached;
    std::deque<Answer> unsent;  ///< that its socket had no room for
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
    Connection& connection = found->second;
    if (!connection.busy) Collect(connection);
    LetGo(std::move(connection.regions), std::move(connection.attached));
    connections_.erase(found);
    --open_;
  }

  /// By a worker: gigabytes are not unmapped at once.
  void LetGo(std::map<std::string, int64_t> regions, std::shared_ptr<AttachedCaller> attached) {
    if (regions.empty() && attached == nullptr) return;
    auto work = [self = shared_from_this(), regions = std::move(regions),
                 attached = std::move(attached)]() mutable {
      for (const auto& [region, bytes] : regions) self->regions_.Remove(region);
      attached = nullptr;
    };
    // Without a worker it is done here; `work` is unchanged then.
    if (!workers_.Run(work).ok()) work();
  }

  void Send(uint64_t id, Answer answer) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    // Who asks and takes no answers is dropped.
    if (found->second.unsent.size() >= kMostUnsent) return Drop(id);
    found->second.unsent.push_back(std::move(answer));
    Flush(id);
  }
  void Send(uint64_t id, v1::LocalReply reply) { Send(id, Answer{std::move(reply)}); }

  /// Sends what the socket takes.
  void Flush(uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    Connection& connection = found->second;
    while (!connection.unsent.empty()) {
      const Answer& next = connection.unsent.front();
      const std::optional<bool> sent =
          Transmit(connection.socket.fd(), next.reply.SerializeAsString(), next.file.fd());
      if (!sent) break;
      if (!*sent) return Drop(id);
      connection.unsent.pop_front();
    }
    WatchFor(id, connection);
  }

  void WatchFor(uint64_t id, const Connection& connection) {
    const uint32_t reads = connection.busy ? uint32_t{0} : EPOLLIN;
    const uint32_t writes = connection.unsent.empty() ? 0U : EPOLLOUT;
    Watch(EPOLL_CTL_MOD, connection.socket.fd(), reads | writes, id);
  }

  void Serve(uint64_t id, uint32_t events) {
    if ((events & EPOLLOUT) != 0) Flush(id);
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    if (found->second.busy) {
      if ((events & (EPOLLHUP | EPOLLERR)) != 0) Drop(id);
      return;
    }
    if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
    std::optional<Packet> packet = Receive(found->second.socket.fd());
    if (!packet) return;
    v1::LocalRequest request;
    if (packet->bytes.empty()) return Drop(id);
    if (!request.ParseFromString(packet->bytes)) {
      ++turned_away_;
      return Drop(id);
    }
    Connection& connection = found->second;
    switch (request.part_case()) {
      case v1::LocalRequest::kShare:
        return Share(id, connection, std::move(packet->file));
      case v1::LocalRequest::kForget:
        return Forget(id, connection, request.forget().region());
      case v1::LocalRequest::kAttach:
        return Attach(id, connection, request.attach(), std::move(packet->file));
      case v1::LocalRequest::kExport:
      case v1::LocalRequest::kGet:
      case v1::LocalRequest::kRelease:
        return AskAttached(id, connection, std::move(request));
      case v1::LocalRequest::PART_NOT_SET:
        break;
    }
    Send(id, ReplyOf(absl::InvalidArgumentError("the request asks for nothing that is known")));
  }

  /// `work` is done by a worker; until then nothing more is read from the connection. False: there
  /// was none, and that is answered.
  bool Begin(uint64_t id, Connection& connection, std::function<Done()> work) {
    const absl::Status queued =
        workers_.Run([self = shared_from_this(), id, work = std::move(work)] {
          Done done = work();
          const MutexLock lock(self->mutex_);
          self->done_.emplace_back(id, std::move(done));
          self->Wake();
        });
    if (!queued.ok()) {
      Send(id, ReplyOf(queued));
      return false;
    }
    connection.busy = true;
    WatchFor(id, connection);
    return true;
  }

  /// Answers those that workers have done something for.
  void Settle() {
    uint64_t count = 0;
    (void)!read(wake_.fd(), &count, sizeof(count));
    std::vector<std::pair<uint64_t, Done>> all;
    {
      const MutexLock lock(mutex_);
      all.swap(done_);
    }
    for (auto& [id, done] : all) {
      std::map<std::string, int64_t> regions;
      if (!done.region.empty()) regions.emplace(done.region, done.bytes);
      const auto found = connections_.find(id);
      if (found == connections_.end()) {
        LetGo(std::move(regions), std::move(done.attached));
        continue;
      }
      Connection& connection = found->second;
      connection.busy = false;
      connection.regions.merge(regions);
      connection.bytes += done.bytes;
      if (done.attached != nullptr) connection.attached = std::move(done.attached);
      Send(id, std::move(done.answer));
    }
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
    Begin(id, connection,
          [this, tenant = connection.tenant, most = options_.max_bytes - connection.bytes,
           shared = std::make_shared<Descriptor>(std::move(file))] {
            absl::StatusOr<Buffer> memory = engine_.Share(shared->fd(), tenant, most);
            Done done{{ReplyOf(memory.status())}};
            if (!memory.ok()) return done;
            done.bytes = static_cast<int64_t>(memory->size());
            done.region = regions_.Add(*std::move(memory));
            done.answer.reply.set_region(done.region);
            return done;
          });
  }

  void Forget(uint64_t id, Connection& connection, const std::string& region) {
    const auto found = connection.regions.find(region);
    if (found == connection.regions.end()) {
      return Send(id, ReplyOf(absl::NotFoundError("this connection has shared no such memory")));
    }
    const bool begun = Begin(id, connection, [this, region, bytes = found->second] {
      regions_.Remove(region);
      Done done{{ReplyOf(absl::OkStatus())}};
      done.bytes = -bytes;
      return done;
    });
    if (begun) connection.regions.erase(found);
  }

  void Attach(uint64_t id, Connection& connection, const v1::AttachMatrix& request,
              Descriptor usage) {
    if (connection.attached != nullptr) {
      return Send(id, ReplyOf(absl::FailedPreconditionError(
                          "this connection is attached already; each matrix needs its own")));
    }
    Begin(id, connection,
          [this, tenant = connection.tenant, request,
           page = std::make_shared<Descriptor>(std::move(usage))] {
            absl::StatusOr<std::unique_ptr<AttachedCaller>> attached =
                AttachedCaller::Attach(engine_, tenant, request, *page);
            if (!attached.ok()) return Done{{ReplyOf(attached.status())}};
            absl::StatusOr<Descriptor> sequence = (*attached)->Sequence();
            if (!sequence.ok()) return Done{{ReplyOf(sequence.status())}};
            Done done{{ReplyOf(absl::OkStatus()), *std::move(sequence)}};
            *done.answer.reply.mutable_attached() = (*attached)->matrix();
            done.attached = *std::move(attached);
            return done;
          });
  }

  /// What only those ask who have attached.
  void AskAttached(uint64_t id, Connection& connection, v1::LocalRequest request) {
    if (connection.attached == nullptr) {
      return Send(
          id,
          ReplyOf(absl::FailedPreconditionError("this connection is not attached to a matrix")));
    }
    Begin(id, connection, [caller = connection.attached, asked = std::move(request)] {
      return Ask(*caller, asked);
    });
  }

  static Done Ask(AttachedCaller& caller, const v1::LocalRequest& request) {
    if (request.has_get()) {
      absl::StatusOr<Descriptor> file = caller.Get(request.get().id());
      if (!file.ok()) return {{ReplyOf(file.status())}};
      return {{ReplyOf(absl::OkStatus()), *std::move(file)}};
    }
    if (request.has_release()) return {{ReplyOf(caller.Release(request.release().run()))}};
    absl::StatusOr<v1::ExportedRun> run = caller.Export(request.export_().problem());
    Done done{{ReplyOf(run.status())}};
    if (run.ok()) *done.answer.reply.mutable_exported() = *std::move(run);
    return done;
  }

  void Collect(Connection& connection) {
    if (connection.attached != nullptr) connection.attached->Collect(options_.on_runs);
  }

  /// Milliseconds until callers are to be asked what they ran; -1: there are none.
  int Patience() {
    if (std::ranges::none_of(connections_,
                             [](const auto& entry) { return entry.second.attached != nullptr; })) {
      return -1;
    }
    const Clock::time_point now = Clock::now();
    if (now >= collect_at_) {
      for (auto& [id, connection] : connections_) {
        if (!connection.busy) Collect(connection);
      }
      collect_at_ = now + kCollectEvery;
    }
    return static_cast<int>(
               std::chrono::duration_cast<std::chrono::milliseconds>(collect_at_ - now).count()) +
           1;
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
  Clock::time_point collect_at_;
  Mutex mutex_;
  std::vector<std::pair<uint64_t, Done>> done_ ABSL_GUARDED_BY(mutex_);
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
