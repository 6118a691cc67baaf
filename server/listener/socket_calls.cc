#include "server/listener/socket_calls.h"

#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "server/hidden_function.h"

namespace sparsed::server {
namespace {

/// A socket that is watched.
struct Watched {
  std::shared_ptr<SocketWatcher> watcher;
  std::string client_random;  ///< of its ClientHello; empty: it is not encrypted
};

/// Zero before any constructor runs: some libraries close descriptors that early.
std::array<std::atomic<Watched*>, kWatchable> all_watched;

Watched* WatchedOf(int fd) {
  if (fd < 0 || fd >= kWatchable) return nullptr;
  // gRPC learns of a descriptor after it is watched, and does not use it once it closes it.
  return all_watched[static_cast<size_t>(fd)].load(std::memory_order_acquire);
}

/// Those that are encrypted, by their ClientHello's random. Never destroyed: descriptors are closed
/// until the very end.
struct EncryptedSockets {
  Mutex mutex;
  std::map<std::string, std::weak_ptr<SocketWatcher>> watchers ABSL_GUARDED_BY(mutex);
};
EncryptedSockets& Encrypted() {
  static auto* const encrypted = new EncryptedSockets;
  return *encrypted;
}

/// In the ClientHello that has come: behind the headers of record and handshake, and a version.
std::string ClientRandom(int fd) {
  constexpr size_t kAt = 11;
  std::array<char, kTlsOpeningBytes> opening;
  const ssize_t size = recv(fd, opening.data(), opening.size(), MSG_PEEK | MSG_DONTWAIT);
  if (size != static_cast<ssize_t>(opening.size())) return {};
  return {opening.data() + kAt, opening.size() - kAt};
}

/// Whose bytes a server's SSL has; null: nobody's who is watched. Found once, and kept with it. A
/// socket is not closed while its bytes are decrypted, so nobody is kept for longer than that.
std::shared_ptr<SocketWatcher> WatcherOf(SSL* ssl) {
  using Kept = std::weak_ptr<SocketWatcher>;
  static const int index = SSL_get_ex_new_index(
      0, nullptr, nullptr, nullptr, [](void*, void* kept, CRYPTO_EX_DATA*, int, long, void*) {
        delete static_cast<Kept*>(kept);
      });
  if (const auto* kept = static_cast<const Kept*>(SSL_get_ex_data(ssl, index))) return kept->lock();
  std::string random(kTlsOpeningBytes - 11, '\0');
  SSL_get_client_random(ssl, reinterpret_cast<unsigned char*>(random.data()), random.size());
  Kept found;
  {
    const MutexLock lock(Encrypted().mutex);
    const auto entry = Encrypted().watchers.find(random);
    if (entry != Encrypted().watchers.end()) found = entry->second;
  }
  SSL_set_ex_data(ssl, index, new Kept(found));
  return found.lock();
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

/// Its socket is about to be closed.
void EndWatch(Watched* watched) {
  if (watched == nullptr) return;
  if (!watched->client_random.empty()) {
    const MutexLock lock(Encrypted().mutex);
    Encrypted().watchers.erase(watched->client_random);
  }
  delete watched;
}

ssize_t Reset() {
  errno = ECONNRESET;
  return -1;
}

}  // namespace

bool Watch(int fd, std::shared_ptr<SocketWatcher> watcher, bool tls) {
  auto watched = std::make_unique<Watched>();
  if (tls) {
    watched->client_random = ClientRandom(fd);
    const MutexLock lock(Encrypted().mutex);
    if (watched->client_random.empty() ||
        !Encrypted().watchers.emplace(watched->client_random, watcher).second) {
      return false;
    }
  }
  watched->watcher = std::move(watcher);
  all_watched[static_cast<size_t>(fd)].store(watched.release(), std::memory_order_release);
  return true;
}

}  // namespace sparsed::server

using sparsed::server::Hidden;
using sparsed::server::SocketWatcher;
using sparsed::server::Watched;

extern "C" {

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static auto* const hidden = Hidden<decltype(recvmsg)>("recvmsg");
  Watched* const watched = sparsed::server::WatchedOf(fd);
  if (watched == nullptr || (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) {
    return hidden(fd, message, flags);
  }
  SocketWatcher* const watcher = watched->watcher.get();
  if (watcher->ended()) return sparsed::server::Reset();
  const size_t most = watcher->MayRead();
  if (most == 0) {
    errno = EAGAIN;
    return -1;
  }
  const sparsed::server::ShortMessage part(message, most);
  const ssize_t size = hidden(fd, message, flags);
  if (size <= 0 || !watched->client_random.empty()) return size;
  const bool seen =
      sparsed::server::ForEachPart(*message, static_cast<size_t>(size),
                                   [watcher](auto part) { return watcher->OnReceived(part); });
  return seen ? size : sparsed::server::Reset();
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static auto* const hidden = Hidden<decltype(sendmsg)>("sendmsg");
  const ssize_t size = hidden(fd, message, flags);
  Watched* const watched = size > 0 ? sparsed::server::WatchedOf(fd) : nullptr;
  if (watched != nullptr && watched->client_random.empty()) {
    SocketWatcher* const watcher = watched->watcher.get();
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
  Watched* const watched = sparsed::server::WatchedOf(fd);
  if (result != 0 || watched == nullptr || address->sa_family != AF_UNIX) return result;
  SocketWatcher* const watcher = watched->watcher.get();
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
  Watched* const watched = operation == EPOLL_CTL_ADD ? sparsed::server::WatchedOf(fd) : nullptr;
  if (watched != nullptr) watched->watcher->OnPolled(epoll, *events);
  return hidden(epoll, operation, fd, events);
}

int close(int fd) {
  static auto* const hidden = Hidden<decltype(close)>("close");
  if (fd >= 0 && fd < sparsed::server::kWatchable) {
    auto& slot = sparsed::server::all_watched[static_cast<size_t>(fd)];
    if (slot.load(std::memory_order_relaxed) != nullptr) {
      sparsed::server::EndWatch(slot.exchange(nullptr, std::memory_order_acq_rel));
    }
  }
  return hidden(fd);
}

int SSL_read(SSL* ssl, void* buffer, int size) {
  static auto* const hidden = Hidden<decltype(SSL_read)>("SSL_read");
  const int read = hidden(ssl, buffer, size);
  if (read <= 0 || SSL_is_server(ssl) == 0) return read;
  const std::shared_ptr<SocketWatcher> watcher = sparsed::server::WatcherOf(ssl);
  const std::string_view bytes(static_cast<const char*>(buffer), static_cast<size_t>(read));
  // What nobody watches is not served.
  return watcher != nullptr && !watcher->ended() && watcher->OnReceived(bytes) ? read : -1;
}

int SSL_write(SSL* ssl, const void* buffer, int size) {
  static auto* const hidden = Hidden<decltype(SSL_write)>("SSL_write");
  const int written = hidden(ssl, buffer, size);
  if (written <= 0 || SSL_is_server(ssl) == 0) return written;
  if (const auto watcher = sparsed::server::WatcherOf(ssl)) {
    watcher->OnSent({static_cast<const char*>(buffer), static_cast<size_t>(written)});
  }
  return written;
}

}  // extern "C"
