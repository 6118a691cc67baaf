#include "server/listener/socket_calls.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>

#include "server/hidden_function.h"

namespace sparsed::server {
namespace {

/// Zero before any constructor runs: some libraries close descriptors that early.
std::array<std::atomic<SocketWatcher*>, kWatchable> watchers;

SocketWatcher* WatcherOf(int fd) {
  if (fd < 0 || fd >= kWatchable) return nullptr;
  // gRPC learns of a descriptor after it is watched, and does not use it once it closes it.
  return watchers[static_cast<size_t>(fd)].load(std::memory_order_acquire);
}

/// Calls `part` with pieces of what the message holds until `bytes` are told; false if it says so.
template <typename Part>
bool ForEachPart(const msghdr& message, size_t bytes, const Part& part) {
  for (size_t i = 0; i < message.msg_iovlen && bytes > 0; ++i) {
    const size_t size = std::min(message.msg_iov[i].iov_len, bytes);
    bytes -= size;
    if (!part(std::string_view(static_cast<const char*>(message.msg_iov[i].iov_base), size))) {
      return false;
    }
  }
  return true;
}

/// Lets a message have room for no more than so many bytes as long as this lives.
class ShortMessage {
 public:
  ShortMessage(msghdr* message, size_t bytes) : message_(message), parts_(message->msg_iovlen) {
    if (parts_ == 0) return;
    size_ = message->msg_iov[0].iov_len;
    if (bytes == std::string_view::npos) return;
    message->msg_iovlen = 1;
    message->msg_iov[0].iov_len = std::min(size_, bytes);
  }
  ~ShortMessage() {
    message_->msg_iovlen = parts_;
    if (parts_ > 0) message_->msg_iov[0].iov_len = size_;
  }

 private:
  msghdr* const message_;
  const size_t parts_;
  size_t size_ = 0;
};

ssize_t Reset() {
  errno = ECONNRESET;
  return -1;
}

}  // namespace

void Watch(int fd, std::unique_ptr<SocketWatcher> watcher) {
  watchers[static_cast<size_t>(fd)].store(watcher.release(), std::memory_order_release);
}

}  // namespace sparsed::server

using sparsed::server::Hidden;
using sparsed::server::SocketWatcher;

extern "C" {

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static auto* const hidden = Hidden<decltype(recvmsg)>("recvmsg");
  SocketWatcher* const watcher = sparsed::server::WatcherOf(fd);
  if (watcher == nullptr || (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) {
    return hidden(fd, message, flags);
  }
  if (watcher->ended()) return sparsed::server::Reset();
  const size_t most = watcher->MayRead();
  if (most == 0) {
    errno = EAGAIN;
    return -1;
  }
  const sparsed::server::ShortMessage part(message, most);
  const ssize_t size = hidden(fd, message, flags);
  if (size <= 0) return size;
  const bool seen =
      sparsed::server::ForEachPart(*message, static_cast<size_t>(size),
                                   [watcher](auto part) { return watcher->OnReceived(part); });
  return seen ? size : sparsed::server::Reset();
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static auto* const hidden = Hidden<decltype(sendmsg)>("sendmsg");
  const ssize_t size = hidden(fd, message, flags);
  SocketWatcher* const watcher = size > 0 ? sparsed::server::WatcherOf(fd) : nullptr;
  if (watcher != nullptr) {
    const int error = errno;
    sparsed::server::ForEachPart(*message, static_cast<size_t>(size), [watcher](auto part) {
      watcher->OnSent(part);
      return true;
    });
    errno = error;
  }
  return size;
}

int getpeername(int fd, sockaddr* address, socklen_t* size) noexcept {
  static auto* const hidden = Hidden<decltype(getpeername)>("getpeername");
  const socklen_t room = *size;
  const int result = hidden(fd, address, size);
  SocketWatcher* const watcher = sparsed::server::WatcherOf(fd);
  if (result != 0 || watcher == nullptr || address->sa_family != AF_UNIX) return result;
  // An abstract name: a zero before it, and none behind it.
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  const size_t length = std::min(watcher->name().size(), sizeof(name.sun_path) - 1);
  std::memcpy(name.sun_path + 1, watcher->name().data(), length);
  const auto whole = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  std::memcpy(address, &name, std::min(whole, room));
  *size = whole;
  return result;
}

int epoll_ctl(int epoll, int operation, int fd, epoll_event* events) noexcept {
  static auto* const hidden = Hidden<decltype(epoll_ctl)>("epoll_ctl");
  SocketWatcher* const watcher =
      operation == EPOLL_CTL_ADD ? sparsed::server::WatcherOf(fd) : nullptr;
  if (watcher != nullptr) watcher->OnPolled(epoll, *events);
  return hidden(epoll, operation, fd, events);
}

int close(int fd) {
  static auto* const hidden = Hidden<decltype(close)>("close");
  if (fd >= 0 && fd < sparsed::server::kWatchable) {
    auto& slot = sparsed::server::watchers[static_cast<size_t>(fd)];
    if (slot.load(std::memory_order_relaxed) != nullptr) {
      delete slot.exchange(nullptr, std::memory_order_acq_rel);
    }
  }
  return hidden(fd);
}

}  // extern "C"
