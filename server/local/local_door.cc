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
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "base/packet.h"
#include "engine/engine.h"
#include "engine/execution/device_queues.h"
#include "server/local/attached_caller.h"
#include "server/local/ring.h"
#include "server/rpc/convert.h"
#include "server/rpc/shared_regions.h"
#include "server/rpc/worker_pool.h"
#include "server/security/access.h"
#include "sparsed/v1/local.pb.h"

namespace sparsed::server {
namespace {

using Clock = std::chrono::steady_clock;

/// What the log calls it.
constexpr char kDoor[] = "local socket";
constexpr int kEvents = 64;
constexpr size_t kMostBytes = 4096;
/// Replies that wait for a connection to take them; who takes none is dropped.
constexpr size_t kMostUnsent = 1024;
/// Queues of one connection.
constexpr size_t kMostQueues = 64;
/// Where nothing can be done but to try again.
constexpr int kPauseMs = 10;
constexpr std::chrono::seconds kCollectEvery{1};
constexpr uint64_t kListening = 0, kWake = 1, kFirst = 2;

v1::LocalReply ReplyOf(const absl::Status& status) {
  v1::LocalReply reply;
  ToProto(status, *reply.mutable_status());
  return reply;
}

}  // namespace

class LocalDoor::Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(Options options, Access& access, engine::Engine& engine, WorkerPool& workers,
       WorkerPool& exporters, SharedRegions& regions, Rings& rings)
      : options_(std::move(options)),
        access_(access),
        engine_(engine),
        workers_(workers),
        exporters_(exporters),
        regions_(regions),
        rings_(rings) {}

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

  /// No region is given to the workers any more.
  void Stop() {
    const MutexLock lock(mutex_);
    stopping_ = true;
    Wake();
  }

  Counts counts() const { return {open_, turned_away_}; }

 private:
  struct Region {
    int64_t bytes = 0;
    /// Who wants to know that nothing uses it any more.
    std::vector<uint64_t> forgets;
  };
  /// Used by the loop's thread alone.
  struct Connection {
    Descriptor socket;
    std::shared_ptr<const PeerProcess> process;
    std::optional<Caller> caller;           ///< once it has asked for something; counts it
    std::map<std::string, Region> regions;  ///< until they are unmapped
    int64_t bytes = 0;                      ///< of all of them
    std::map<std::string, std::shared_ptr<engine::DeviceQueue>> queues;
    bool busy = false;  ///< a worker does what it asked for
    /// Null: it has not attached. A worker's while it is busy, but for what it counts.
    std::shared_ptr<AttachedCaller> attached;
    std::weak_ptr<Ring> ring;  ///< null: it has none, or one that has ended
    std::deque<Packet> unsent;
  };
  /// What a worker did for a connection.
  struct Done {
    v1::LocalReply reply;
    Descriptor file = {};  ///< goes along with it
    /// What else changes, if anything, before they are sent; null: the connection has gone.
    std::function<void(Connection*)> settle = nullptr;
  };
  /// For the loop's thread; with null if the connection has gone.
  struct Finished {
    uint64_t connection;
    std::function<void(Connection*)> settle;
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
    if (connections_.size() >= options_.max_connections) {
      ++turned_away_;
      const v1::LocalReply full = ReplyOf(absl::ResourceExhaustedError(fmt::format(
          "{} connections to the local socket are open, which is the most; each process has one, "
          "and one more for each matrix that it is attached to",
          connections_.size())));
      SendPacket(socket.fd(), {full.SerializeAsString(), Descriptor()});
      return;
    }
    std::shared_ptr<const PeerProcess> process = PeerProcessOf(socket.fd());
    if (process == nullptr) {
      ++turned_away_;
      return;
    }
    v1::LocalReply reply;
    reply.mutable_hello()->set_server_id(options_.server_id);
    const uint64_t id = next_++;
    const int fd = socket.fd();
    Connection& connection = connections_[id];
    connection.socket = std::move(socket);
    connection.process = std::move(process);
    ++open_;
    Watch(EPOLL_CTL_ADD, fd, EPOLLIN, id);
    Send(id, /*request_id=*/0, std::move(reply));
  }

  void Drop(uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    for (const auto& [region, bytes] : found->second.regions) regions_.Remove(region);
    for (const auto& [name, queue] : found->second.queues) CloseQueue(name, queue);
    Collect(found->second);
    Detach(std::move(found->second.attached));
    if (const auto ring = found->second.ring.lock()) ring->Leave();
    connections_.erase(found);
    --open_;
  }

  /// By a worker: what it was given may be gigabytes, which nobody else has any more.
  void Detach(std::shared_ptr<AttachedCaller> attached) {
    if (attached == nullptr) return;
    const auto held = std::make_shared<std::shared_ptr<AttachedCaller>>(std::move(attached));
    const auto work = [held] { *held = nullptr; };
    if (!workers_.Run(work).ok()) work();  // without a worker it is done here
  }

  void WatchConnection(uint64_t id, const Connection& connection) {
    uint32_t events = 0;
    if (!connection.busy) events |= EPOLLIN;
    if (!connection.unsent.empty()) events |= EPOLLOUT;
    Watch(EPOLL_CTL_MOD, connection.socket.fd(), events, id);
  }

  void Send(uint64_t id, uint64_t request_id, v1::LocalReply reply, Descriptor file = {}) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    reply.set_request_id(request_id);
    found->second.unsent.push_back({reply.SerializeAsString(), std::move(file)});
    if (found->second.unsent.size() > kMostUnsent) {
      ++turned_away_;
      return Drop(id);
    }
    SendSome(id, found->second);
  }

  void SendSome(uint64_t id, Connection& connection) {
    bool full = false;
    while (!connection.unsent.empty() && !full) {
      switch (SendPacket(connection.socket.fd(), connection.unsent.front())) {
        case Sent::kYes:
          connection.unsent.pop_front();
          break;
        case Sent::kLater:
          full = true;
          break;
        case Sent::kNever:
          return Drop(id);
      }
    }
    WatchConnection(id, connection);
  }

  void Serve(uint64_t id, uint32_t events) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    if ((events & EPOLLOUT) != 0) {
      SendSome(id, found->second);
      if ((events & ~uint32_t{EPOLLOUT}) == 0 || !connections_.contains(id)) return;
    }
    if (found->second.busy) {
      if ((events & (EPOLLHUP | EPOLLERR)) != 0) Drop(id);
      return;
    }
    std::optional<Packet> packet = ReceivePacket(found->second.socket.fd(), kMostBytes);
    if (!packet) return;
    v1::LocalRequest request;
    if (packet->bytes.empty()) return Drop(id);
    if (!request.ParseFromString(packet->bytes)) {
      ++turned_away_;
      return Drop(id);
    }
    const uint64_t request_id = request.request_id();
    if (absl::Status known = Identify(request, found->second); !known.ok()) {
      return Send(id, request_id, ReplyOf(known));
    }
    switch (request.part_case()) {
      case v1::LocalRequest::kShare:
        return Share(id, found->second, request_id, std::move(packet->file));
      case v1::LocalRequest::kForget:
        return Forget(id, found->second, request_id, request.forget().region());
      case v1::LocalRequest::kAllocate:
        return Allocate(id, found->second, request_id, request.allocate());
      case v1::LocalRequest::kOpenCallerMemory:
        return OpenCallerMemory(id, found->second, request_id, request.open_caller_memory());
      case v1::LocalRequest::kOpenQueue:
        return OpenQueue(id, found->second, request_id, request.open_queue(),
                         std::move(packet->file));
      case v1::LocalRequest::kCloseQueue:
        return CloseQueue(id, found->second, request_id, request.close_queue().queue());
      case v1::LocalRequest::kAttach:
        return Attach(id, found->second, request_id, request.attach(), std::move(packet->file));
      case v1::LocalRequest::kExport:
      case v1::LocalRequest::kGet:
      case v1::LocalRequest::kRelease:
        return AskAttached(id, found->second, std::move(request));
      case v1::LocalRequest::kRing:
        return OpenRing(id, found->second, request_id, request.ring(), std::move(packet->file));
      case v1::LocalRequest::kIdentify:
        return Send(id, request_id, ReplyOf(absl::OkStatus()));
      case v1::LocalRequest::PART_NOT_SET:
        break;
    }
    Send(id, request_id,
         ReplyOf(absl::InvalidArgumentError("the request asks for nothing that is known")));
  }

  /// Who asks; by his process, if he did not say.
  absl::Status Identify(const v1::LocalRequest& request, Connection& connection) {
    if (connection.caller.has_value() && !request.has_identify()) {
      return access_.CheckAt(kDoor, *connection.caller);
    }
    Evidence evidence = {.token = {}, .private_way = true, .process = connection.process};
    const std::string& token = request.identify().token();
    if (!token.empty()) evidence.token = token;
    absl::StatusOr<Caller> caller = access_.IdentifyAt(kDoor, evidence);
    if (!caller.ok()) return caller.status();
    const std::string& tenant = request.identify().tenant();
    if (!tenant.empty() && tenant != caller->tenant) {
      return absl::PermissionDeniedError(fmt::format(
          "the {} is tenant {} at the local socket, and {} in its calls, which cannot use what is "
          "shared there",
          caller->name, caller->tenant, tenant));
    }
    connection.caller.reset();  // counts no more
    auto counted = engine_.tenants().Of(caller->tenant).Hold(engine::Quota::kConnections);
    if (!counted.ok()) return counted.status();
    caller->counted = *std::move(counted);
    connection.caller = *std::move(caller);
    return absl::OkStatus();
  }

  /// Lets a worker do it; the connection is not read until that is done.
  void LetWork(WorkerPool& workers, uint64_t id, Connection& connection, uint64_t request_id,
               std::function<Done()> work) {
    const absl::Status queued = workers.Run(
        connection.caller->tenant,
        [self = shared_from_this(), id, request_id, doing = std::move(work)] {
          const auto done = std::make_shared<Done>(doing());
          self->Finish({id, [loop = self.get(), id, request_id, done](Connection* connection) {
                          if (done->settle) done->settle(connection);
                          if (connection == nullptr) return;
                          connection->busy = false;
                          loop->Send(id, request_id, std::move(done->reply), std::move(done->file));
                        }});
        });
    if (!queued.ok()) return Send(id, request_id, ReplyOf(queued));
    connection.busy = true;
    WatchConnection(id, connection);
  }

  /// A worker's, or whose thread it is.
  void Finish(Finished finished) {
    {
      const MutexLock lock(mutex_);
      if (!stopping_) {
        finished_.push_back(std::move(finished));
        Wake();
        return;
      }
    }
    finished.settle(nullptr);
  }

  void Settle() {
    uint64_t count = 0;
    (void)!read(wake_.fd(), &count, sizeof(count));
    std::vector<Finished> all;
    {
      const MutexLock lock(mutex_);
      all.swap(finished_);
    }
    for (const Finished& one : all) {
      const auto found = connections_.find(one.connection);
      one.settle(found == connections_.end() ? nullptr : &found->second);
    }
  }

  void Share(uint64_t id, Connection& connection, uint64_t request_id, Descriptor file) {
    if (!file.open()) {
      return Send(id, request_id,
                  ReplyOf(absl::InvalidArgumentError(
                      "the packet has no descriptor of the memory to share")));
    }
    const engine::TenantHold counted = CountRegion(id, connection, request_id);
    if (counted == nullptr) return;
    LetWork(
        workers_, id, connection, request_id,
        [this, id, most = options_.max_bytes - connection.bytes, tenant = connection.caller->tenant,
         shared = std::make_shared<Descriptor>(std::move(file)),
         counted] { return Map(id, shared->fd(), most, tenant, counted); });
  }

  /// Of one more; null: there are too many, and it has been told so.
  engine::TenantHold CountRegion(uint64_t id, const Connection& connection, uint64_t request_id) {
    if (connection.regions.size() >= options_.max_regions) {
      Send(id, request_id,
           ReplyOf(absl::ResourceExhaustedError(
               fmt::format("{} regions are shared over this connection, at most {} may be; give "
                           "some back",
                           connection.regions.size(), options_.max_regions))));
      return nullptr;
    }
    auto counted = engine_.tenants().Of(connection.caller->tenant).Hold(engine::Quota::kRegions);
    if (counted.ok()) return *std::move(counted);
    Send(id, request_id, ReplyOf(counted.status()));
    return nullptr;
  }

  void Allocate(uint64_t id, Connection& connection, uint64_t request_id,
                const v1::AllocateMemory& request) {
    const engine::TenantHold counted = CountRegion(id, connection, request_id);
    if (counted == nullptr) return;
    const auto left = static_cast<uint64_t>(options_.max_bytes - connection.bytes);
    if (request.bytes() > left) {
      return Send(id, request_id,
                  ReplyOf(absl::ResourceExhaustedError(fmt::format(
                      "{} bytes are asked for, {} more may be shared over this connection "
                      "(--connection-memory); let go of some",
                      request.bytes(), left))));
    }
    LetWork(workers_, id, connection, request_id,
            [this, id, request, tenant = connection.caller->tenant, counted] {
              absl::StatusOr<engine::Engine::GpuMemory> memory =
                  engine_.AllocateShared(request.gpu(), request.bytes(), tenant);
              if (!memory.ok()) return Done{ReplyOf(memory.status())};
              const auto bytes = static_cast<int64_t>(memory->memory.size());
              Done done = GiveName(id, {std::move(memory->memory), memory->device, counted}, bytes);
              done.file = std::move(memory->file);
              return done;
            });
  }

  /// Nothing of the server's is taken for it but a name.
  void OpenCallerMemory(uint64_t id, Connection& connection, uint64_t request_id,
                        const v1::OpenCallerMemory& request) {
    if (!options_.trusts_caller_memory) {
      return Send(
          id, request_id,
          ReplyOf(absl::PermissionDeniedError(
              "this server does not use GPU memory that its callers allocated; its operator "
              "may let it (--trust-caller-gpu-memory)")));
    }
    const engine::TenantHold counted = CountRegion(id, connection, request_id);
    if (counted == nullptr) return;
    LetWork(workers_, id, connection, request_id, [this, id, request, counted] {
      absl::StatusOr<engine::Engine::GpuMemory> memory = engine_.OpenCallerMemory(
          request.gpu(), request.handle(), request.allocation(), request.bytes());
      if (!memory.ok()) return Done{ReplyOf(memory.status())};
      return GiveName(id, {std::move(memory->memory), memory->device, counted}, /*bytes=*/0);
    });
  }

  void OpenQueue(uint64_t id, Connection& connection, uint64_t request_id,
                 const v1::OpenQueue& request, Descriptor page) {
    if (connection.queues.size() >= kMostQueues) {
      return Send(id, request_id,
                  ReplyOf(absl::ResourceExhaustedError(fmt::format(
                      "{} queues are open over this connection, which is the most; close some",
                      connection.queues.size()))));
    }
    LetWork(workers_, id, connection, request_id,
            [this, request, tenant = connection.caller->tenant,
             page = std::make_shared<Descriptor>(std::move(page))] {
              absl::StatusOr<std::shared_ptr<engine::DeviceQueue>> queue =
                  engine_.OpenQueue(request.gpu(), page->fd(), tenant);
              Done done{ReplyOf(queue.status())};
              if (!queue.ok()) return done;
              const std::string name = SharedRegions::NewName();
              regions_.AddQueue(name, *queue);
              done.reply.set_queue(name);
              done.settle = [this, name, opened = *std::move(queue)](Connection* connection) {
                if (connection == nullptr) return CloseQueue(name, opened);
                connection->queues[name] = opened;
              };
              return done;
            });
  }

  void CloseQueue(uint64_t id, Connection& connection, uint64_t request_id,
                  const std::string& name) {
    auto queue = connection.queues.extract(name);
    if (queue.empty()) {
      return Send(id, request_id,
                  ReplyOf(absl::NotFoundError("this connection has opened no such queue")));
    }
    CloseQueue(name, queue.mapped());
    Send(id, request_id, ReplyOf(absl::OkStatus()));
  }

  /// By a worker, as it may wait for what has begun.
  void CloseQueue(const std::string& name, const std::shared_ptr<engine::DeviceQueue>& queue) {
    regions_.RemoveQueue(name);
    const auto close = [queue] { queue->Close(); };
    if (!workers_.Run(close).ok()) close();
  }

  /// A worker's.
  Done Map(uint64_t id, int file, int64_t most_bytes, const std::string& tenant,
           engine::TenantHold counted) {
    absl::StatusOr<Buffer> memory = engine_.Share(file, most_bytes, tenant);
    if (!memory.ok()) return {ReplyOf(memory.status())};
    const auto bytes = static_cast<int64_t>(memory->size());
    return GiveName(id, {*std::move(memory), DeviceId{}, std::move(counted)}, bytes);
  }

  /// A worker's: requests find it from now on. `bytes` of it count as the connection's.
  Done GiveName(uint64_t id, SharedRegion shared, int64_t bytes) {
    Done done{ReplyOf(absl::OkStatus())};
    const std::string region = SharedRegions::NewName();
    shared.memory = Watched(std::move(shared.memory), id, region);
    regions_.Add(region, std::move(shared));
    done.reply.set_region(region);
    done.settle = [this, region, bytes](Connection* connection) {
      if (connection == nullptr) return regions_.Remove(region);
      connection->regions[region].bytes = bytes;
      connection->bytes += bytes;
    };
    return done;
  }

  /// The same bytes; the loop is told when nothing uses them any more.
  Buffer Watched(Buffer memory, uint64_t id, const std::string& region) {
    std::byte* const data = memory.mutable_data();
    const size_t size = memory.size();
    const auto kept = std::make_shared<Buffer>(std::move(memory));
    return Buffer(
        std::shared_ptr<std::byte>(data, [self = shared_from_this(), id, region,
                                          kept](std::byte*) { self->LetGo(id, region, kept); }),
        size);
  }

  /// Of whoever used it last. A worker unmaps it: of gigabytes that takes a while.
  void LetGo(uint64_t id, const std::string& region, const std::shared_ptr<Buffer>& memory) {
    const auto unmap = [self = shared_from_this(), id, region, memory] {
      *memory = Buffer();
      self->Finish({id, [loop = self.get(), id, region](Connection* connection) {
                      if (connection != nullptr) loop->Unmapped(id, *connection, region);
                    }});
    };
    {
      const MutexLock lock(mutex_);
      if (!stopping_ && workers_.Run(unmap).ok()) return;
    }
    unmap();
  }

  void Unmapped(uint64_t id, Connection& connection, const std::string& region) {
    const auto node = connection.regions.extract(region);
    connection.bytes -= node.mapped().bytes;
    // Each may be its last, to who takes no replies.
    for (const uint64_t request_id : node.mapped().forgets) {
      Send(id, request_id, ReplyOf(absl::OkStatus()));
    }
  }

  /// Requests do not find it any more; the reply comes when none uses it any more.
  void Forget(uint64_t id, Connection& connection, uint64_t request_id, const std::string& region) {
    const auto found = connection.regions.find(region);
    if (found == connection.regions.end()) {
      return Send(id, request_id,
                  ReplyOf(absl::NotFoundError("this connection has shared no such memory")));
    }
    if (found->second.forgets.size() >= kMostUnsent) {
      return Send(id, request_id,
                  ReplyOf(absl::ResourceExhaustedError(fmt::format(
                      "{} requests to give this memory back wait already", kMostUnsent))));
    }
    found->second.forgets.push_back(request_id);
    regions_.Remove(region);
  }

  void Attach(uint64_t id, Connection& connection, uint64_t request_id,
              const v1::AttachMatrix& request, Descriptor usage) {
    if (connection.attached != nullptr) {
      return Send(id, request_id,
                  ReplyOf(absl::FailedPreconditionError(
                      "this connection is attached already; each matrix needs its own")));
    }
    LetWork(workers_, id, connection, request_id,
            [this, tenant = connection.caller->tenant, request,
             page = std::make_shared<Descriptor>(std::move(usage))] {
              return Attach(tenant, request, *page);
            });
  }

  /// A worker's.
  Done Attach(const std::string& tenant, const v1::AttachMatrix& request, const Descriptor& usage) {
    absl::StatusOr<std::shared_ptr<AttachedCaller>> attached =
        AttachedCaller::Attach(engine_, tenant, request, usage);
    if (!attached.ok()) return {ReplyOf(attached.status())};
    absl::StatusOr<Descriptor> sequence = (*attached)->Sequence();
    if (!sequence.ok()) return {ReplyOf(sequence.status())};
    Done done{ReplyOf(absl::OkStatus()), *std::move(sequence)};
    done.settle = [this, caller = *std::move(attached)](Connection* connection) mutable {
      if (connection == nullptr) return Detach(std::move(caller));
      connection->attached = std::move(caller);
    };
    return done;
  }

  /// What only those ask who have attached.
  void AskAttached(uint64_t id, Connection& connection, v1::LocalRequest request) {
    const uint64_t request_id = request.request_id();
    if (connection.attached == nullptr) {
      return Send(
          id, request_id,
          ReplyOf(absl::FailedPreconditionError("this connection is not attached to a matrix")));
    }
    LetWork(
        request.has_export_() ? exporters_ : workers_, id, connection, request_id,
        [caller = connection.attached, asked = std::move(request)] { return Ask(*caller, asked); });
  }

  /// A worker's.
  static Done Ask(AttachedCaller& caller, const v1::LocalRequest& request) {
    if (request.has_get()) {
      absl::StatusOr<Descriptor> file = caller.Get(request.get().id());
      if (!file.ok()) return {ReplyOf(file.status())};
      return {ReplyOf(absl::OkStatus()), *std::move(file)};
    }
    if (request.has_release()) return {ReplyOf(caller.Release(request.release().run()))};
    absl::StatusOr<v1::ExportedRun> run = caller.Export(request.export_());
    Done done{ReplyOf(run.status())};
    if (run.ok()) *done.reply.mutable_exported() = *std::move(run);
    return done;
  }

  void OpenRing(uint64_t id, Connection& connection, uint64_t request_id,
                const v1::OpenRing& request, Descriptor file) {
    if (!file.open()) {
      return Send(id, request_id,
                  ReplyOf(absl::InvalidArgumentError(
                      "the packet has no descriptor of the memory of the ring")));
    }
    if (const auto ring = connection.ring.lock(); ring != nullptr && !ring->ended()) {
      return Send(id, request_id,
                  ReplyOf(absl::FailedPreconditionError("this connection has a ring already")));
    }
    LetWork(workers_, id, connection, request_id,
            [this, caller = *connection.caller, request, most = options_.max_bytes,
             shared = std::make_shared<Descriptor>(std::move(file))] {
              return OpenRing(caller, request, shared->fd(), most);
            });
  }

  /// A worker's.
  Done OpenRing(Caller caller, const v1::OpenRing& request, int file, int64_t most_bytes) {
    auto counted = engine_.tenants().Of(caller.tenant).Hold(engine::Quota::kStreams);
    if (!counted.ok()) return {ReplyOf(counted.status())};
    caller.counted = *std::move(counted);
    absl::StatusOr<Buffer> memory = engine_.Share(file, most_bytes, caller.tenant);
    if (!memory.ok()) return {ReplyOf(memory.status())};
    absl::StatusOr<std::shared_ptr<Ring>> ring = rings_.Open(caller, request, *std::move(memory));
    if (!ring.ok()) return {ReplyOf(ring.status())};
    Done done{ReplyOf(absl::OkStatus())};
    done.settle = [opened = *std::move(ring)](Connection* connection) {
      if (connection == nullptr) return opened->Leave();
      connection->ring = opened;
    };
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
      for (auto& [id, connection] : connections_) Collect(connection);
      collect_at_ = now + kCollectEvery;
    }
    return static_cast<int>(
               std::chrono::duration_cast<std::chrono::milliseconds>(collect_at_ - now).count()) +
           1;
  }

  const Options options_;
  Access& access_;
  engine::Engine& engine_;
  WorkerPool& workers_;
  WorkerPool& exporters_;
  SharedRegions& regions_;
  Rings& rings_;
  Descriptor epoll_, wake_;
  int listening_ = -1;
  uint64_t next_ = kFirst;
  std::map<uint64_t, Connection> connections_;
  Clock::time_point collect_at_{};
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> open_ = 0, turned_away_ = 0;
  Mutex mutex_;
  std::vector<Finished> finished_ ABSL_GUARDED_BY(mutex_);
};

LocalDoor::LocalDoor(ListenSocket socket, std::shared_ptr<Loop> loop)
    : socket_(std::move(socket)),
      loop_(std::move(loop)),
      thread_([running = loop_] { running->Run(); }) {}

absl::StatusOr<std::unique_ptr<LocalDoor>> LocalDoor::Open(Options options, Access& access,
                                                           engine::Engine& engine,
                                                           WorkerPool& workers,
                                                           WorkerPool& exporters,
                                                           SharedRegions& regions, Rings& rings) {
  absl::StatusOr<ListenSocket> socket =
      ListenSocket::Open(options.address, options.file, SOCK_SEQPACKET);
  if (!socket.ok()) return socket.status();
  auto loop = std::make_shared<Loop>(std::move(options), access, engine, workers, exporters,
                                     regions, rings);
  if (absl::Status s = loop->Prepare(socket->sockets().front().fd()); !s.ok()) return s;
  return std::unique_ptr<LocalDoor>(new LocalDoor(*std::move(socket), std::move(loop)));
}

LocalDoor::~LocalDoor() {
  loop_->Stop();
  thread_.join();
}

LocalDoor::Counts LocalDoor::counts() const { return loop_->counts(); }

}  // namespace sparsed::server
