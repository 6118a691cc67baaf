// Packets over a Unix socket of type SOCK_SEQPACKET, each with a descriptor or without one.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "base/descriptor.h"

namespace sparsed {

struct Packet {
  std::string bytes;
  Descriptor file;
};

enum class Sent { kYes, kLater, kNever };

/// Without blocking. kLater: the socket is full; kNever: the other end is gone,
/// or there is no memory.
inline Sent SendPacket(int socket, const Packet& packet) {
  iovec part = {const_cast<char*>(packet.bytes.data()), packet.bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  if (packet.file.open()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int file = packet.file.fd();
    std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  }
  const ssize_t sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(packet.bytes.size())) return Sent::kYes;
  return sent < 0 && (errno == EAGAIN || errno == EINTR) ? Sent::kLater : Sent::kNever;
}

/// Without blocking. None: there is none yet. An empty one: the other end is gone, or sent more
/// than `most` bytes, or more than one descriptor.
inline std::optional<Packet> ReceivePacket(int socket, size_t most) {
  Packet packet;
  packet.bytes.resize(most);
  iovec part = {packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  bool one = true;
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    // There is room for two of them, for alignment's sake; all that came are ours to close.
    const size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int file = -1;
      std::memcpy(&file, CMSG_DATA(at) + i * sizeof(int), sizeof(file));
      packet.file = Descriptor(file);
    }
    one = count <= 1;
  }
  const bool whole = size > 0 && one && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  packet.bytes.resize(whole ? static_cast<size_t>(size) : 0);
  return packet;
}

}  // namespace sparsed
