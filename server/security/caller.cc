#include "server/security/caller.h"

#include <pwd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

namespace sparsed::server {
namespace {

constexpr size_t kMostGroups = 65536;  // Linux' own limit

std::string UserName(uid_t uid) {
  std::array<char, 4096> room;
  passwd entry = {};
  passwd* found = nullptr;
  const bool known =
      getpwuid_r(uid, &entry, room.data(), room.size(), &found) == 0 && found != nullptr;
  return known ? std::string(found->pw_name) : std::to_string(uid);
}

}  // namespace

std::string_view Name(Role role) {
  constexpr std::array<std::string_view, 3> kNames = {"read-only", "user", "operator"};
  return kNames[static_cast<size_t>(role)];
}

std::shared_ptr<const PeerProcess> PeerProcessOf(int fd) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX) {
    return nullptr;
  }
  ucred peer = {};
  size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return nullptr;
  auto process = std::make_shared<PeerProcess>();
  process->uid = peer.uid;
  process->user = UserName(peer.uid);
  process->groups.resize(64);
  size = static_cast<socklen_t>(process->groups.size() * sizeof(gid_t));
  int failed = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, process->groups.data(), &size);
  if (failed != 0 && size <= kMostGroups * sizeof(gid_t)) {  // it says how many there are
    process->groups.resize(size / sizeof(gid_t));
    failed = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, process->groups.data(), &size);
  }
  process->groups.resize(failed == 0 ? size / sizeof(gid_t) : 0);
  process->groups.insert(process->groups.begin(), peer.gid);
  return process;
}

}  // namespace sparsed::server
