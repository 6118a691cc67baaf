#include "client/src/local_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/packet.h"
#include "client/src/convert.h"

namespace sparsed {
inline namespace client {
namespace {

using Clock = LocalSocket::Clock;

constexpr size_t kMostBytes = 4096;
constexpr std::chrono::seconds kPatience{120};
constexpr std::chrono::seconds kHelloPatience{10};
constexpr int kPauseMs = 10;

absl::Status Ended() {
  return absl::UnavailableError("the connection to the server's local socket ended");
}

absl::Status Late() {
  return absl::DeadlineExceededError("the server's local socket gave no answer in time");
}

int MillisecondsUntil(Clock::time_point time) {
  if (time == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

absl::Status CannotOpen(const std::string& path, int error) {
  const std::string sentence = fmt::format("the server's local socket {} cannot be opened: {}",
                                           path, std::generic_category().message(error));
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(sentence);
  if (error == ENOENT || error == EPROTOTYPE) return absl::FailedPreconditionError(sentence);
  return absl::UnavailableError(sentence);
}

absl::StatusOr<LocalSocket::Reply> Parse(Packet packet) {
  LocalSocket::Reply reply{{}, std::move(packet.file)};
  if (packet.bytes.empty() || !reply.message.ParseFromString(packet.bytes)) return Ended();
  return reply;
}

}  // namespace

class LocalSocket::Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(Descriptor socket, Descriptor wake) : socket_(std::move(socket)), wake_(std::move(wake)) {}

  absl::Status Start() {
    try {
      std::thread([self = shared_from_this()] { self->Run(); }).detach();
    } catch (const std::system_error&) {
      return absl::UnavailableError("the operating system starts no more threads");
    }
    return absl::OkStatus();
  }

  /// In a child this object is a copy whose thread stayed with the parent, and so may its lock
  /// have.
  bool OfThisProcess() const { return getpid() == process_; }

  bool Alive() const {
    if (!OfThisProcess()) return false;
    const MutexLock lock(mutex_);
    return !ending_;
  }

  void Send(v1::LocalRequest request, Descriptor file, OnReply on_reply,
            Clock::time_point deadline) {
    if (OfThisProcess()) {
      const MutexLock lock(mutex_);
      if (!ending_) {
        const uint64_t id = next_id_++;
        request.set_request_id(id);
        unsent_.push_back({request.SerializeAsString(), std::move(file)});
        waiting_.emplace(id, Waiting{std::move(on_reply), deadline});
        Wake();
        return;
      }
    }
    if (on_reply) on_reply(Ended());
  }

  void End() {
    if (!OfThisProcess()) return;
    const MutexLock lock(mutex_);
    ending_ = true;
    Wake();
  }

  /// After End().
  void Join() {
    if (!OfThisProcess()) return;
    const MutexLock lock(mutex_);
    if (thread_ == std::this_thread::get_id()) return;
    while (!ended_) changed_.Wait(mutex_);
  }

 private:
  struct Waiting {
    OnReply on_reply;
    Clock::time_point deadline;
  };

  void Wake() const {
    const uint64_t one = 1;
    (void)!write(wake_.fd(), &one, sizeof(one));
  }

  void Run() {
    {
      const MutexLock lock(mutex_);
      thread_ = std::this_thread::get_id();
    }
    while (Turn()) {
    }
    std::map<uint64_t, Waiting> waiting;
    {
      const MutexLock lock(mutex_);
      ending_ = true;
      unsent_.clear();
      waiting.swap(waiting_);
    }
    // The server sees the end before anybody acts on it.
    shutdown(socket_.fd(), SHUT_RDWR);
    for (auto& [id, one] : waiting) {
      if (one.on_reply) std::exchange(one.on_reply, nullptr)(Ended());
    }
    const MutexLock lock(mutex_);
    ended_ = true;
    changed_.NotifyAll();
  }

  /// False at the end.
  bool Turn() {
    Clock::time_point next = Clock::time_point::max();
    std::vector<Waiting> late;
    bool unsent = false;
    {
      const MutexLock lock(mutex_);
      if (ending_) return false;
      const Clock::time_point now = Clock::now();
      for (auto it = waiting_.begin(); it != waiting_.end();) {
        if (it->second.deadline > now) {
          next = std::min(next, it->second.deadline);
          ++it;
        } else {
          late.push_back(std::move(it->second));
          it = waiting_.erase(it);
        }
      }
      unsent = !unsent_.empty();
    }
    for (const Waiting& one : late) {
      if (!one.on_reply) continue;
      one.on_reply(Late());
    }
    late.clear();
    std::array<pollfd, 2> ready = {pollfd{wake_.fd(), POLLIN, 0}, pollfd{socket_.fd(), POLLIN, 0}};
    if (unsent) ready[1].events |= POLLOUT;
    poll(ready.data(), ready.size(), MillisecondsUntil(next));
    uint64_t count = 0;
    if (ready[0].revents != 0) (void)!read(wake_.fd(), &count, sizeof(count));
    return SendSome() && ReadSome();
  }

  bool SendSome() {
    const MutexLock lock(mutex_);
    while (!unsent_.empty()) {
      switch (SendPacket(socket_.fd(), unsent_.front())) {
        case Sent::kYes:
          unsent_.pop_front();
          break;
        case Sent::kLater:
          return true;
        case Sent::kNever:
          return false;
      }
    }
    return true;
  }

  bool ReadSome() {
    while (std::optional<Packet> packet = ReceivePacket(socket_.fd(), kMostBytes)) {
      absl::StatusOr<Reply> reply = Parse(*std::move(packet));
      if (!reply.ok()) return false;
      OnReply on_reply;
      {
        const MutexLock lock(mutex_);
        auto node = waiting_.extract(reply->message.request_id());
        if (node) on_reply = std::move(node.mapped().on_reply);
      }
      if (!on_reply) continue;
      const absl::Status status = FromProto(reply->message.status());
      if (status.ok()) {
        on_reply(std::move(reply));
      } else {
        on_reply(status);
      }
    }
    return true;
  }

  const pid_t process_ = getpid();
  const Descriptor socket_, wake_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::thread::id thread_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;  ///< nothing is sent any more
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;   ///< everybody who waited was told
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::deque<Packet> unsent_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalSocket::Connect(const LocalAddress& address,
                                                                  Clock::time_point deadline) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (address.path.empty() || address.path.size() >= sizeof(name.sun_path)) {
    return absl::FailedPreconditionError("the server has no local socket (its --local-listen)");
  }
  std::memcpy(name.sun_path, address.path.data(), address.path.size());
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  Descriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!socket.open() || !wake.open()) {
    return absl::UnavailableError("there are no descriptors left");
  }
  deadline = std::min(deadline, Clock::now() + kHelloPatience);
  while (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    // EAGAIN: so many wait for the server to accept them.
    if (const int error = errno; error != EAGAIN || Clock::now() >= deadline) {
      return CannotOpen(address.path, error);
    }
    poll(nullptr, 0, kPauseMs);
  }
  const absl::Status silent = absl::UnavailableError(
      fmt::format("nobody speaks at the server's local socket {}", address.path));
  std::optional<Packet> packet;
  while (!(packet = ReceivePacket(socket.fd(), kMostBytes))) {
    if (Clock::now() >= deadline) return silent;
    pollfd ready = {socket.fd(), POLLIN, 0};
    poll(&ready, 1, MillisecondsUntil(deadline));
  }
  const absl::StatusOr<Reply> hello = Parse(*std::move(packet));
  if (!hello.ok()) return silent;
  if (absl::Status refused = FromProto(hello->message.status()); !refused.ok()) return refused;
  // A server of another machine may have a socket of the same name there.
  if (hello->message.hello().server_id() != address.server_id) {
    return absl::FailedPreconditionError(
        fmt::format("{} is the local socket of another server", address.path));
  }
  const auto loop = std::make_shared<Loop>(std::move(socket), std::move(wake));
  if (absl::Status status = loop->Start(); !status.ok()) return status;
  std::unique_ptr<LocalSocket> made(new LocalSocket(loop));
  if (!address.tenant.empty()) {
    v1::LocalRequest request;
    request.mutable_identify()->set_tenant(address.tenant);
    request.mutable_identify()->set_token(address.token);
    const absl::Status known = made->Ask(std::move(request), /*file=*/-1, deadline).status();
    if (!known.ok()) return known;
  }
  return made;
}

LocalSocket::~LocalSocket() {
  loop_->End();
  loop_->Join();
}

bool LocalSocket::Alive() const { return loop_->Alive(); }

void LocalSocket::Send(v1::LocalRequest request, OnReply on_reply, Clock::time_point deadline) {
  loop_->Send(std::move(request), Descriptor(), std::move(on_reply), deadline);
}

void LocalSocket::End() { loop_->End(); }

absl::StatusOr<LocalSocket::Reply> LocalSocket::Ask(v1::LocalRequest request, int file,
                                                    Clock::time_point deadline, OnReply on_late) {
  Descriptor sent;
  if (file >= 0) {
    // The caller may be told of the end while the thread still sends it.
    sent = Descriptor(fcntl(file, F_DUPFD_CLOEXEC, 0));
    if (!sent.open()) return absl::ResourceExhaustedError("there are no descriptors left");
  }
  struct Answer {
    Mutex mutex;
    CondVar changed;
    std::optional<absl::StatusOr<Reply>> reply ABSL_GUARDED_BY(mutex);
    bool late ABSL_GUARDED_BY(mutex) = false;  ///< nobody waits any more
  };
  const auto answer = std::make_shared<Answer>();
  const Clock::time_point last = Clock::now() + kPatience;
  loop_->Send(
      std::move(request), std::move(sent),
      // The loop is there while it calls.
      [answer, loop = loop_.get(), on_late = std::move(on_late)](absl::StatusOr<Reply> reply) {
        // What it would have given is unknown; the server takes it back with the connection.
        if (absl::IsDeadlineExceeded(reply.status())) loop->End();
        MutexLock lock(answer->mutex);
        if (answer->late) {
          lock.Unlock();
          if (on_late) on_late(std::move(reply));
          return;
        }
        answer->reply.emplace(std::move(reply));
        answer->changed.NotifyAll();
      },
      last);
  const MutexLock lock(answer->mutex);
  while (!answer->reply) {
    if (deadline >= last) {
      answer->changed.Wait(answer->mutex);
    } else if (!answer->changed.WaitUntil(answer->mutex, deadline) && !answer->reply) {
      answer->late = true;
      return Late();
    }
  }
  return *std::move(answer->reply);
}

}  // namespace client
}  // namespace sparsed
