#include "server/security/caller.h"

#include <grp.h>
#include <pwd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>

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

std::optional<uint32_t> ToNumber(std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::optional<uint32_t> GroupOf(const std::string& name) {
  if (const auto number = ToNumber(name)) return number;
  std::vector<char> room(1 << 16);
  group entry = {};
  group* found = nullptr;
  if (getgrnam_r(name.c_str(), &entry, room.data(), room.size(), &found) != 0) return std::nullopt;
  return found == nullptr ? std::nullopt : std::optional<uint32_t>(found->gr_gid);
}

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
