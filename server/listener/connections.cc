#include "server/listener/connections.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "server/listener/socket_calls.h"
#include "server/log/log.h"

namespace sparsed::server {

std::string SocketName(int fd, bool peer) {
  sockaddr_storage name = {};
  socklen_t size = sizeof(name);
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  if ((peer ? getpeername(fd, address, &size) : getsockname(fd, address, &size)) != 0) return {};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(name);
  if (name.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    // What a socket of both families calls an end that calls itself by its IPv4 address.
    sockaddr_in v4 = {};
    v4.sin_family = AF_INET;
    v4.sin_port = v6.sin6_port;
    std::memcpy(&v4.sin_addr, &v6.sin6_addr.s6_addr[12], sizeof(v4.sin_addr));
    return {reinterpret_cast<const char*>(&v4), sizeof(v4)};
  }
  return {reinterpret_cast<const char*>(&name), std::min<size_t>(size, sizeof(name))};
}

namespace {

/// Attackers write no logs: one line in so long.
constexpr auto kLogInterval = std::chrono::seconds(10);
/// Read at once of a connection that begins a message while others' bytes are in the way: enough
/// for requests that carry no arrays.
constexpr size_t kFirstBytes = 16 << 10;
/// A connection closes when the last of its calls is done, which may take long in a kernel.
constexpr auto kLongestHold = std::chrono::seconds(2);

/// What gRPC calls the other end of a TCP socket; empty for another.
std::string TcpPeer(int fd) {
  const std::string name = SocketName(fd, /*peer=*/true);
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (name.size() >= sizeof(sockaddr_in) &&
      reinterpret_cast<const sockaddr*>(name.data())->sa_family == AF_INET) {
    sockaddr_in v4 = {};
    std::memcpy(&v4, name.data(), sizeof(v4));
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return fmt::format("ipv4:{}:{}", text.data(), ntohs(v4.sin_port));
  }
  if (name.size() >= sizeof(sockaddr_in6) &&
      reinterpret_cast<const sockaddr*>(name.data())->sa_family == AF_INET6) {
    sockaddr_in6 v6 = {};
    std::memcpy(&v6, name.data(), sizeof(v6));
    inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    return fmt::format("ipv6:%5B{}%5D:{}", text.data(), ntohs(v6.sin6_port));
  }
  return {};
}

}  // namespace

class Connections::Connection final : public SocketWatcher {
 public:
  Connection(std::shared_ptr<Connections> all, int fd, std::string name)
      : all_(std::move(all)), fd_(fd), name_(std::move(name)), guard_(all_->limits_) {
    ++all_->open_;
    auto process = PeerProcessOf(fd);
    peer_ = process != nullptr ? "unix-abstract:" + name_ : TcpPeer(fd);
    {
      const MutexLock lock(all_->known_mutex_);
      all_->known_[peer_] = {this, std::move(process), {}, std::nullopt};
    }
    const MutexLock lock(all_->mutex_);
    all_->connections_.insert(this);
  }

  ~Connection() override {
    {
      const MutexLock lock(all_->mutex_);
      const MutexLock own(mutex_);  // other threads counted
      all_->connections_.erase(this);
      all_->held_count_ -= all_->held_.erase(this);
      // In this order, for who counts those that have not ended.
      all_->unfinished_bytes_ -= counted_;
      if (ended_) all_->ending_bytes_ -= counted_;
    }
    Known gone;  // lets go of what it kept without the lock
    {
      const MutexLock lock(all_->known_mutex_);
      const auto known = all_->known_.find(peer_);
      // A client may use its address and port again, or for another address of ours.
      if (known != all_->known_.end() && known->second.connection == this) {
        gone = std::move(known->second);
        all_->known_.erase(known);
      }
    }
    --all_->open_;
    all_->WakeHeld();
  }

  void OnPolled(int epoll, const epoll_event& events) override {
    epoll_ = epoll;
    events_ = events;
  }

  size_t MayRead() override {
    if (!all_->Full()) return std::string_view::npos;
    bool unfinished = false;
    {
      const MutexLock lock(mutex_);
      unfinished = counted_ > 0;
    }
    if (!unfinished || epoll_ < 0) return kFirstBytes;  // without an epoll nobody could wake it
    return all_->Hold(this) ? 0 : std::string_view::npos;
  }

  /// As if bytes had just come. Under the mutex of all.
  void Wake() { epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_, &events_); }

  bool OnReceived(std::string_view bytes) override {
    int64_t change = 0;
    {
      const MutexLock lock(mutex_);
      if (ended_) return false;
      const Fault fault = guard_.Received(bytes, Http2Guard::Clock::now());
      if (fault != Fault::kNone) {
        End(fault);
        return false;
      }
      change = Count(guard_.unfinished_bytes());
    }
    if (change > 0) all_->EndOldest();
    if (change < 0) all_->WakeHeld();
    return !ended_;
  }

  void OnSent(std::string_view bytes) override {
    int64_t change = 0;
    bool done = false;
    {
      const MutexLock lock(mutex_);
      if (ended_) return;
      guard_.Sent(bytes);
      change = Count(guard_.unfinished_bytes());
      done = counted_ == 0;
    }
    if (change >= 0) return;
    if (done) all_->Wake(this);
    all_->WakeHeld();
  }

  bool ended() const override { return ended_; }
  const std::string& name() const override { return name_; }

  Http2Guard::Clock::time_point OldestUnfinished() {
    const MutexLock lock(mutex_);
    return ended_ ? Http2Guard::Clock::time_point::max() : guard_.OldestUnfinished();
  }
  void EndFor(Fault fault) {
    const MutexLock lock(mutex_);
    End(fault);
  }

 private:
  void End(Fault fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ended_.exchange(true)) return;
    all_->ending_bytes_ += counted_;
    all_->full_until_ = Http2Guard::Clock::now() + kLongestHold;
    shutdown(fd_, SHUT_RDWR);  // it is open as long as this lives
    all_->CountEnd(fault, name_);
  }
  int64_t Count(int64_t unfinished_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t change = unfinished_bytes - counted_;
    counted_ = unfinished_bytes;
    all_->unfinished_bytes_ += change;
    return change;
  }

  const std::shared_ptr<Connections> all_;
  const int fd_;
  const std::string name_;
  std::string peer_;  ///< as gRPC has it
  int epoll_ = -1;    ///< that tells gRPC of the descriptor
  epoll_event events_ = {};
  std::atomic<bool> ended_ = false;
  Mutex mutex_;
  Http2Guard guard_ ABSL_GUARDED_BY(mutex_);
  int64_t counted_ ABSL_GUARDED_BY(mutex_) = 0;
};

bool Connections::Add(int fd, bool tls) {
  return Watch(fd,
               std::make_shared<Connection>(shared_from_this(), fd,
                                            fmt::format("connection-{}", next_name_++)),
               tls);
}

std::shared_ptr<const PeerProcess> Connections::ProcessOf(const std::string& peer) const {
  const MutexLock lock(known_mutex_);
  const auto found = known_.find(peer);
  return found == known_.end() ? nullptr : found->second.process;
}

absl::Status Connections::Keep(
    const std::string& peer, const std::string& who,
    const std::function<absl::StatusOr<std::shared_ptr<const void>>()>& hold) {
  const MutexLock lock(known_mutex_);
  const auto found = known_.find(peer);
  if (found == known_.end() || found->second.kept.contains(who)) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<const void>> held = hold();
  Known& known = found->second;
  if (!held.ok()) {
    // Later, so that the client hears why.
    if (!known.unwelcome.has_value()) known.unwelcome = Http2Guard::Clock::now();
    return held.status();
  }
  known.unwelcome.reset();
  known.kept.emplace(who, *std::move(held));
  return absl::OkStatus();
}

void Connections::EndUnwelcome() {
  const auto before = Http2Guard::Clock::now() - std::chrono::seconds(1);
  const MutexLock lock(known_mutex_);
  for (const auto& [peer, known] : known_) {
    if (known.kept.empty() && known.unwelcome.has_value() && *known.unwelcome <= before) {
      known.connection->EndFor(Fault::kQuota);
    }
  }
}

bool Connections::Full() const {
  return ending_bytes_ > 0 && unfinished_bytes_ > max_unfinished_bytes_ &&
         Http2Guard::Clock::now() < full_until_.load();
}

bool Connections::Hold(Connection* connection) {
  const MutexLock lock(mutex_);
  // Said before it looks again, so that whoever makes room after that wakes it.
  held_count_ += held_.insert(connection).second ? 1 : 0;
  if (Full()) return true;
  held_count_ -= held_.erase(connection);
  return false;
}

void Connections::Wake(Connection* connection) {
  if (held_count_ == 0) return;
  const MutexLock lock(mutex_);
  if (held_.erase(connection) == 0) return;
  --held_count_;
  connection->Wake();
}

void Connections::WakeHeld() {
  if (held_count_ == 0 || Full()) return;
  const MutexLock lock(mutex_);
  for (Connection* connection : held_) connection->Wake();
  held_.clear();
  held_count_ = 0;
}

void Connections::EndOldest() {
  const auto too_many = [this] {
    return unfinished_bytes_ - ending_bytes_ > max_unfinished_bytes_;
  };
  if (!too_many()) return;
  const MutexLock lock(mutex_);
  while (too_many()) {
    Connection* oldest = nullptr;
    auto began = Http2Guard::Clock::time_point::max();
    for (Connection* connection : connections_) {
      const auto candidate = connection->OldestUnfinished();
      if (candidate < began) {
        began = candidate;
        oldest = connection;
      }
    }
    if (oldest == nullptr) return;
    oldest->EndFor(Fault::kMemory);
  }
}

void Connections::CountEnd(Fault fault, const std::string& name) {
  ++ended_[static_cast<size_t>(fault)];
  const int64_t now = Http2Guard::Clock::now().time_since_epoch().count();
  int64_t until = silent_until_;
  const int64_t next =
      now + std::chrono::duration_cast<Http2Guard::Clock::duration>(kLogInterval).count();
  if (now < until || !silent_until_.compare_exchange_strong(until, next)) return;
  Log(LogLevel::kWarn, "connection ended",
      {{"reason", std::string(Name(fault))}, {"connection", name}});
}

ConnectionCounts Connections::counts() const {
  ConnectionCounts counts;
  counts.open = open_;
  counts.unfinished_bytes = unfinished_bytes_;
  counts.held = static_cast<int64_t>(held_count_);
  for (size_t i = 0; i < refused_.size(); ++i) counts.refused[i] = refused_[i];
  for (size_t i = 0; i < ended_.size(); ++i) counts.ended[i] = ended_[i];
  return counts;
}

}  // namespace sparsed::server
