#include "server/listener/listen_socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace sparsed::server {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr const char* kNoSocket = "there is a file of that name";
/// A peer that acknowledges nothing for so long is gone.
constexpr int kUserTimeoutMs = 20000;
/// How often a free port is looked for that is free in both families.
constexpr int kPortTries = 16;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

std::string Reason(int error) { return std::generic_category().message(error); }

absl::Status Refuse(const std::string& address, const std::string& reason) {
  return absl::FailedPreconditionError(fmt::format("cannot listen on {}: {}", address, reason));
}

Descriptor MakeSocket(int family, int type = SOCK_STREAM) {
  return Descriptor(socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool Serves(const sockaddr_un& name, int type) {
  const Descriptor client = MakeSocket(AF_UNIX, type);
  const int error =
      connect(client.fd(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 ? 0 : errno;
  // EAGAIN: its queue is full; EPROTOTYPE: it serves by sockets of another type
  return error == 0 || error == EAGAIN || error == EPROTOTYPE;
}

/// 0, or why not. `both_families`: an IPv6 socket takes IPv4's connections, too.
int Bind(const Descriptor& socket, const addrinfo& info, uint16_t port, bool both_families) {
  if (!socket.open()) return errno;
  const int on = 1, off = 0;
  const auto set = [&](int level, int option, const int& value) {
    setsockopt(socket.fd(), level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_REUSEADDR, on);
  // What is accepted inherits these.
  set(IPPROTO_TCP, TCP_NODELAY, on);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  if (info.ai_family == AF_INET6) set(IPPROTO_IPV6, IPV6_V6ONLY, both_families ? off : on);
  sockaddr_storage name = {};
  std::memcpy(&name, info.ai_addr, info.ai_addrlen);
  if (info.ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(name).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(name).sin_port = htons(port);
  }
  const bool bound =
      bind(socket.fd(), reinterpret_cast<const sockaddr*>(&name), info.ai_addrlen) == 0 &&
      listen(socket.fd(), SOMAXCONN) == 0;
  return bound ? 0 : errno;
}

uint16_t PortOf(const Descriptor& socket) {
  sockaddr_storage name = {};
  socklen_t size = sizeof(name);
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&name), &size);
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(name).sin_port);
}

/// Binds all that can be bound to one port. 0, or the error of the first that is taken or, if there
/// is none, of the last.
int BindAll(const addrinfo* list, uint16_t port, bool both_families,
            std::vector<Descriptor>* sockets) {
  int reason = 0;
  for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
    Descriptor socket = MakeSocket(info->ai_family);
    const int error = Bind(socket, *info, port, both_families);
    if (error == EADDRINUSE || error == EACCES) return error;
    if (error != 0) {
      reason = error;  // a family or an address that this machine does not have
      continue;
    }
    port = PortOf(socket);
    sockets->push_back(std::move(socket));
    if (both_families && info->ai_family == AF_INET6) break;
  }
  return sockets->empty() ? reason : 0;
}

absl::StatusOr<AddressList> Resolve(const std::string& address, bool wildcard) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(wildcard ? nullptr : host.c_str(), address.c_str() + colon + 1, &hints, &list);
  if (error != 0) return Refuse(address, gai_strerror(error));
  // IPv6 first: where it takes IPv4's connections as well, one socket is enough.
  addrinfo* v6 = nullptr;
  addrinfo** v6_end = &v6;
  addrinfo** rest = &list;
  while (wildcard && *rest != nullptr) {
    if ((*rest)->ai_family == AF_INET6) {
      *v6_end = *rest;
      *rest = (*rest)->ai_next;
      v6_end = &(*v6_end)->ai_next;
    } else {
      rest = &(*rest)->ai_next;
    }
  }
  *v6_end = list;
  return AddressList(v6, &freeaddrinfo);
}

bool IsWildcard(std::string_view host) { return host == "0.0.0.0" || host == "[::]"; }

bool IsLoopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

}  // namespace

absl::Status CheckAddress(const std::string& address) {
  if (!address.starts_with(kUnix)) {
    return Resolve(address, IsWildcard(address.substr(0, address.rfind(':')))).status();
  }
  struct stat facts = {};
  const bool there = stat(address.c_str() + kUnix.size(), &facts) == 0;
  return there && !S_ISSOCK(facts.st_mode) ? Refuse(address, kNoSocket) : absl::OkStatus();
}

bool StaysOnThisMachine(const std::string& address) {
  if (address.starts_with(kUnix)) return true;
  if (IsWildcard(address.substr(0, address.rfind(':')))) return false;
  const auto list = Resolve(address, /*wildcard=*/false);
  if (!list.ok()) return false;
  for (const addrinfo* info = list->get(); info != nullptr; info = info->ai_next) {
    if (!IsLoopback(*info->ai_addr)) return false;
  }
  return true;
}

absl::StatusOr<ListenSocket> ListenSocket::Open(const std::string& address, const SocketFile& file,
                                                int type) {
  ListenSocket made;
  made.address_ = address;
  const absl::Status status = address.starts_with(kUnix)
                                  ? made.OpenUnix(address.substr(kUnix.size()), file, type)
                                  : made.OpenTcp();
  if (!status.ok()) return status;
  return made;
}

ListenSocket::~ListenSocket() {
  struct stat facts = {};
  if (path_.empty() || sockets_.empty() || stat(path_.c_str(), &facts) != 0) return;
  if (facts.st_ino == inode_) unlink(path_.c_str());  // not one that replaced it
}

std::string ListenSocket::own_address() const {
  if (!path_.empty()) return address_;
  sockaddr_storage name = {};
  socklen_t size = sizeof(name);
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  getsockname(sockets_.front().fd(), address, &size);
  const uint16_t port = PortOf(sockets_.front());
  if (IsWildcard(address_.substr(0, address_.rfind(':')))) {
    int v6_only = 0;
    socklen_t option = sizeof(v6_only);
    if (name.ss_family == AF_INET6) {
      getsockopt(sockets_.front().fd(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, &option);
    }
    return fmt::format("{}:{}", v6_only != 0 ? "[::1]" : "127.0.0.1", port);
  }
  std::array<char, NI_MAXHOST> host = {};
  if (getnameinfo(address, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return address_;
  }
  const bool v6 = name.ss_family == AF_INET6;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host.data(), v6 ? "]" : "", port);
}

absl::Status ListenSocket::OpenUnix(const std::string& path, const SocketFile& file, int type) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
  struct stat facts = {};
  if (stat(path.c_str(), &facts) == 0) {
    if (!S_ISSOCK(facts.st_mode)) return Refuse(address_, kNoSocket);
    if (Serves(name, type)) return Refuse(address_, "another process serves there");
    unlink(path.c_str());  // left behind by a server that is gone
  } else if (errno != ENOENT) {
    return Refuse(address_, Reason(errno));
  }
  Descriptor socket = MakeSocket(AF_UNIX, type);
  if (!socket.open() ||
      bind(socket.fd(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0 ||
      stat(path.c_str(), &facts) != 0) {
    return Refuse(address_, Reason(errno));
  }
  path_ = path;
  inode_ = facts.st_ino;
  // Before it listens, so that nobody gets in sooner.
  const bool grouped =
      !file.group.has_value() || chown(path.c_str(), static_cast<uid_t>(-1), *file.group) == 0;
  if (!grouped || (file.mode.has_value() && chmod(path.c_str(), *file.mode) != 0)) {
    const int error = errno;
    unlink(path.c_str());
    return Refuse(address_,
                  fmt::format("{} cannot be set: {}",
                              grouped ? "its mode (--socket-mode)" : "its group (--socket-group)",
                              Reason(error)));
  }
  if (listen(socket.fd(), SOMAXCONN) != 0) return Refuse(address_, Reason(errno));
  sockets_.push_back(std::move(socket));
  return absl::OkStatus();
}

absl::Status ListenSocket::OpenTcp() {
  const size_t colon = address_.rfind(':');
  const std::string host = address_.substr(0, colon);
  const auto port = static_cast<uint16_t>(std::stoi(address_.substr(colon + 1)));
  const bool wildcard = IsWildcard(host);
  const auto list = Resolve(address_, wildcard);
  if (!list.ok()) return list.status();
  int error = 0;
  for (int i = 0; i < (port == 0 ? kPortTries : 1); ++i) {
    sockets_.clear();
    error = BindAll(list->get(), port, wildcard, &sockets_);
    if (error == 0) break;
  }
  if (error != 0) return Refuse(address_, Reason(error));
  address_ = fmt::format("{}:{}", host, PortOf(sockets_.front()));
  return absl::OkStatus();
}

}  // namespace sparsed::server
