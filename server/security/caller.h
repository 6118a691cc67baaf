// Who is calling.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sparsed::server {

struct CallOrigin;

/// The tenant of a server without an access file.
inline constexpr std::string_view kDefaultTenant = "default";
/// Whose requests those of other nodes count as.
inline constexpr std::string_view kClusterTenant = "cluster";

/// Each may do what the one before may.
enum class Role : uint8_t {
  kReadOnly,  ///< looks, computes, and changes nothing
  kUser,
  kOperator,  ///< also what concerns the whole server
};
/// "read-only", "user", "operator".
std::string_view Name(Role role);

/// A process at the other end of a Unix socket, as it was when it connected.
struct PeerProcess {
  uint32_t uid = 0;
  std::string user;              ///< its name, or the number if it has none
  std::vector<uint32_t> groups;  ///< its own first
};

/// PeerProcess of a connected Unix socket; null: it is none, or nothing is known. May ask the
/// system's user database.
std::shared_ptr<const PeerProcess> PeerProcessOf(int fd);

/// How somebody showed who he is: enough to ask the access file once more.
struct Identity {
  enum class Kind : uint8_t { kToken, kCertificate, kProcess } kind = Kind::kToken;
  std::string digest;             ///< of the token
  std::vector<std::string> uris;  ///< of the certificate
  std::string common_name;        ///< of the certificate
  std::shared_ptr<const PeerProcess> process;

  // Access'.
  mutable std::atomic<uint64_t> generation = 0;  ///< of the access file that knew it last
  mutable std::atomic<int64_t> expires = std::numeric_limits<int64_t>::max();  ///< Unix seconds
};

/// Made by Access alone, but for `counted`. A cheap value.
struct Caller {
  std::string tenant;
  Role role = Role::kReadOnly;
  std::string name;  ///< for people: "token training-1", "user alice", ...
  /// Null: the server asks nobody who he is, or it is a node of the cluster.
  std::shared_ptr<const Identity> identity;
  /// Counts his call in his tenant's quotas while a copy is there. Null before it is admitted.
  std::shared_ptr<const void> counted = nullptr;
  /// Of the call that he makes. Null before it is admitted.
  std::shared_ptr<const CallOrigin> origin = nullptr;
  bool node = false;  ///< he showed the cluster's token
};

}  // namespace sparsed::server
