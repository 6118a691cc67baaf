#include "server/listen_address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace sparsed::server {
namespace {

class Socket {
 public:
  Socket(int family, int type) : fd_(socket(family, type | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

std::string Reason(int error) { return std::generic_category().message(error); }

absl::Status Refuse(const std::string& address, const std::string& reason) {
  return absl::FailedPreconditionError(fmt::format("cannot listen on {}: {}", address, reason));
}

absl::Status CheckUnix(const std::string& address, const std::string& path) {
  struct stat facts = {};
  if (stat(path.c_str(), &facts) != 0) {
    return errno == ENOENT ? absl::OkStatus() : Refuse(address, Reason(errno));
  }
  if (!S_ISSOCK(facts.st_mode)) return Refuse(address, "there is a file of that name");
  const Socket socket(AF_UNIX, SOCK_STREAM);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
  if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) {
    return Refuse(address, "another process serves there");
  }
  return absl::OkStatus();  // left behind by a server that is gone
}

absl::Status CheckTcp(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &list);
  if (error != 0) return Refuse(address, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(list, &freeaddrinfo);
  int reason = 0;
  for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
    const Socket socket(info->ai_family, info->ai_socktype);
    const int on = 1;
    setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(socket.fd(), info->ai_addr, info->ai_addrlen) == 0) return absl::OkStatus();
    reason = errno;
  }
  return Refuse(address, Reason(reason));
}

}  // namespace

absl::Status CheckListenAddress(const std::string& address) {
  constexpr std::string_view kUnix = "unix:";
  return address.starts_with(kUnix) ? CheckUnix(address, address.substr(kUnix.size()))
                                    : CheckTcp(address);
}

}  // namespace sparsed::server
