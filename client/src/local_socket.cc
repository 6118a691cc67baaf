#include "client/src/local_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "client/src/convert.h"

namespace sparsed {
inline namespace client {
namespace {

constexpr size_t kMostReply = 4096;
/// For the server to map, and a GPU's driver to pin, what it was given, or to copy a layout.
constexpr time_t kPatienceSeconds = 120;

bool Send(int socket, const std::string& bytes, int file, int flags = 0) {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
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
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | flags);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

/// None: with MSG_DONTWAIT, there is none yet.
std::optional<absl::StatusOr<LocalSocket::Reply>> Receive(int socket, int flags = 0) {
  std::array<char, kMostReply> bytes;
  iovec part = {bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size = 0;
  do {
    size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == EAGAIN && flags != 0) return std::nullopt;
  LocalSocket::Reply reply;
  for (cmsghdr* at = size < 0 ? nullptr : CMSG_FIRSTHDR(&message); at != nullptr;
       at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    int file = -1;
    std::memcpy(&file, CMSG_DATA(at), sizeof(file));
    reply.file = Descriptor(file);
  }
  if (size <= 0 || !reply.message.ParseFromArray(bytes.data(), static_cast<int>(size))) {
    return absl::UnavailableError("the server's local socket gave no answer");
  }
  return reply;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalSocket::Connect(const LocalAddress& address) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (address.path.empty() || address.path.size() >= sizeof(name.sun_path)) {
    return absl::FailedPreconditionError("the server has no local socket (its --local-listen)");
  }
  std::memcpy(name.sun_path, address.path.data(), address.path.size());
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const timeval patience = {kPatienceSeconds, 0};
  if (!socket.open() ||
      setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) != 0) {
    return absl::UnavailableError("there are no descriptors left");
  }
  if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    const int error = errno;
    const std::string sentence = fmt::format("the server's local socket {} cannot be opened: {}",
                                             address.path, std::generic_category().message(error));
    if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(sentence);
    if (error == ENOENT || error == EPROTOTYPE) return absl::FailedPreconditionError(sentence);
    return absl::UnavailableError(sentence);
  }
  // A server of another machine may have a socket of the same name there.
  const std::optional<absl::StatusOr<Reply>> hello = Receive(socket.fd());
  if (!hello || !hello->ok()) {
    return absl::UnavailableError(
        fmt::format("the server's local socket {} says nothing", address.path));
  }
  if ((*hello)->message.hello().server_id() != address.server_id) {
    return absl::FailedPreconditionError(
        fmt::format("{} is the local socket of another server", address.path));
  }
  return std::unique_ptr<LocalSocket>(new LocalSocket(std::move(socket)));
}

absl::StatusOr<LocalSocket::Reply> LocalSocket::Ask(const v1::LocalRequest& request, int file) {
  absl::StatusOr<Reply> reply = absl::UnavailableError("the server's local socket took no request");
  if (socket_.open() && Send(socket_.fd(), request.SerializeAsString(), file)) {
    // Answers come in order.
    do {
      reply = *Receive(socket_.fd());
    } while (reply.ok() && unanswered_-- > 0);
    unanswered_ = 0;
  }
  if (!reply.ok()) {
    socket_ = Descriptor();
    return reply;
  }
  absl::Status status = FromProto(reply->message.status());
  if (!status.ok()) return status;
  return reply;
}

bool LocalSocket::Tell(const v1::LocalRequest& request) {
  if (!Alive() || !Send(socket_.fd(), request.SerializeAsString(), -1, MSG_DONTWAIT)) {
    socket_ = Descriptor();
    return false;
  }
  ++unanswered_;
  return true;
}

bool LocalSocket::Alive() {
  while (socket_.open()) {
    const std::optional<absl::StatusOr<Reply>> reply = Receive(socket_.fd(), MSG_DONTWAIT);
    if (!reply) return true;
    // Nothing comes that was not asked for.
    if (!reply->ok() || unanswered_-- <= 0) {
      unanswered_ = 0;
      socket_ = Descriptor();
    }
  }
  return false;
}

}  // namespace client
}  // namespace sparsed
