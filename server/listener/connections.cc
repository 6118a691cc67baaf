#include "server/listener/connections.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "server/listener/socket_calls.h"
#include "server/log/log.h"

namespace sparsed::server {
namespace {

/// Attackers write no logs: one line in so long.
constexpr auto kLogInterval = std::chrono::seconds(10);
/// Read at once of a connection that begins a message while others' bytes are in the way: enough
/// for requests that carry no arrays.
constexpr size_t kFirstBytes = 16 << 10;
/// A connection closes when the last of its calls is done, which may take long in a kernel.
constexpr auto kLongestHold = std::chrono::seconds(2);

}  // namespace

class Connections::Connection final : public SocketWatcher {
 public:
  Connection(std::shared_ptr<Connections> all, int fd, std::string name)
      : all_(std::move(all)), fd_(fd), name_(std::move(name)), guard_(all_->limits_) {
    ++all_->open_;
    if (auto process = PeerProcessOf(fd)) {
      const MutexLock lock(all_->processes_mutex_);
      all_->processes_.emplace(name_, std::move(process));
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
    {
      const MutexLock lock(all_->processes_mutex_);
      all_->processes_.erase(name_);
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
  void EndForMemory() {
    const MutexLock lock(mutex_);
    End(Fault::kMemory);
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
  int epoll_ = -1;  ///< that tells gRPC of the descriptor
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

std::shared_ptr<const PeerProcess> Connections::ProcessOf(const std::string& name) const {
  const MutexLock lock(processes_mutex_);
  const auto found = processes_.find(name);
  return found == processes_.end() ? nullptr : found->second;
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
    oldest->EndForMemory();
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
