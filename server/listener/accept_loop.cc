#include "server/listener/accept_loop.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <string>

namespace sparsed::server {
namespace {

using Clock = std::chrono::steady_clock;

/// Of one socket, before others get their turn.
constexpr int kAcceptedAtOnce = 64;
constexpr int kEvents = 64;
/// Where nothing can be done but to try again.
constexpr int kPauseMs = 10;

}  // namespace

std::string_view Name(Refusal refusal) {
  constexpr std::array<std::string_view, kRefusals> kNames = {"limit", "descriptors", "silent",
                                                              "protocol"};
  return kNames[static_cast<size_t>(refusal)];
}

class AcceptLoop::Thread {
 public:
  explicit Thread(AcceptRules rules) : rules_(std::move(rules)), bytes_(rules_.opening_bytes, 0) {}

  absl::Status Prepare(const std::vector<ListenSocket>& sockets) {
    epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
    wake_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    Reserve();
    if (!epoll_.open() || !wake_.open() || !reserve_.open()) {
      return absl::ResourceExhaustedError("there are no descriptors left to listen with");
    }
    Watch(wake_.fd(), EPOLLIN, kWake);
    for (const ListenSocket& address : sockets) {
      for (const Descriptor& socket : address.sockets()) {
        Watch(socket.fd(), EPOLLIN, listening_.size());
        listening_.push_back(socket.fd());
      }
    }
    next_ = listening_.size();
    return absl::OkStatus();
  }

  void Run() {
    while (!stopping_) {
      std::array<epoll_event, kEvents> events;
      const int count = epoll_wait(epoll_.fd(), events.data(), kEvents, TimeLeft());
      for (int i = 0; i < count; ++i) {
        const uint64_t id = events[static_cast<size_t>(i)].data.u64;
        if (id == kWake) continue;
        if (id < listening_.size()) {
          Accept(listening_[id]);
        } else {
          Look(id);
        }
      }
      while (!waiting_.empty() && Clock::now() >= waiting_.begin()->second.until) DropOldest();
      if (rules_.every_second) rules_.every_second();
    }
  }

  void Stop() {
    stopping_ = true;
    const uint64_t one = 1;
    (void)!write(wake_.fd(), &one, sizeof(one));
  }

 private:
  static constexpr uint64_t kWake = ~uint64_t{0};

  struct Waiting {
    Descriptor fd;
    Clock::time_point until;
  };

  void Watch(int fd, uint32_t events, uint64_t id) {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = id;
    epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event);
  }

  /// Milliseconds until the oldest has waited too long, or a second is over.
  int TimeLeft() const {
    const int longest = rules_.every_second ? 1000 : -1;
    if (waiting_.empty()) return longest;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(waiting_.begin()->second.until - Clock::now());
    const int until_then = static_cast<int>(std::max<int64_t>(left.count(), 0));
    return rules_.every_second ? std::min(longest, until_then) : until_then;
  }

  void Reserve() { reserve_ = Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

  void Accept(int socket) {
    for (int i = 0; i < kAcceptedAtOnce; ++i) {
      Descriptor fd(accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd.open()) {
        Wait(std::move(fd));
        continue;
      }
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (!RefuseWithReserve(socket)) return;
        continue;
      }
      // A connection that ended again is not worth a word, and no error ends the listening.
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    }
  }

  /// Without a free descriptor a connection can be neither accepted nor refused, and the socket
  /// would be ready for ever: one that is kept for this is given up for a moment. False if there is
  /// nothing to do about it now.
  bool RefuseWithReserve(int socket) {
    reserve_ = Descriptor();
    bool accepted = false;
    {
      const Descriptor fd(accept4(socket, nullptr, nullptr, SOCK_CLOEXEC));
      accepted = fd.open();
    }
    Reserve();
    if (accepted) rules_.refused(Refusal::kDescriptors);
    // Somebody else took it, or the system has none, nor memory.
    if (!reserve_.open() || !accepted) poll(nullptr, 0, kPauseMs);
    return accepted;
  }

  void Wait(Descriptor fd) {
    if (!rules_.admit(fd.fd())) {
      rules_.refused(Refusal::kLimit);
      return;
    }
    if (waiting_.size() >= rules_.max_waiting) DropOldest();
    const uint64_t id = next_++;
    const int number = fd.fd();
    waiting_.emplace(id, Waiting{std::move(fd), Clock::now() + rules_.patience});
    // Told once for each arrival: what came stays unread, and would be told for ever.
    Watch(number, EPOLLIN | EPOLLRDHUP | EPOLLET, id);
  }

  void Look(uint64_t id) {
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return;  // it was dropped after its event came
    const int fd = found->second.fd.fd();
    const ssize_t size = recv(fd, bytes_.data(), bytes_.size(), MSG_PEEK | MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const Opening opening =
        size > 0 ? rules_.opening(fd, {bytes_.data(), static_cast<size_t>(size)}) : Opening::kWrong;
    if (opening == Opening::kIncomplete) return;
    epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, fd, nullptr);
    Descriptor taken = std::move(found->second.fd);
    waiting_.erase(found);
    if (opening == Opening::kComplete) {
      rules_.take(std::move(taken));
    } else {
      rules_.refused(size > 0 ? Refusal::kProtocol : Refusal::kSilent);
    }
  }

  void DropOldest() {
    waiting_.erase(waiting_.begin());
    rules_.refused(Refusal::kSilent);
  }

  const AcceptRules rules_;
  std::string bytes_;
  Descriptor epoll_, wake_, reserve_;
  std::vector<int> listening_;
  uint64_t next_ = 0;
  std::map<uint64_t, Waiting> waiting_;  // by number, so the oldest is first
  std::atomic<bool> stopping_ = false;
};

AcceptLoop::AcceptLoop(std::unique_ptr<Thread> state)
    : state_(std::move(state)), thread_([this] { state_->Run(); }) {}

AcceptLoop::~AcceptLoop() {
  state_->Stop();
  thread_.join();
}

absl::StatusOr<std::unique_ptr<AcceptLoop>> AcceptLoop::Start(
    const std::vector<ListenSocket>& sockets, AcceptRules rules) {
  auto state = std::make_unique<Thread>(std::move(rules));
  if (absl::Status status = state->Prepare(sockets); !status.ok()) return status;
  return std::unique_ptr<AcceptLoop>(new AcceptLoop(std::move(state)));
}

}  // namespace sparsed::server
