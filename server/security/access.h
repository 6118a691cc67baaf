// The one place that turns what is known of a connection and a call into a caller.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/log/log_limit.h"
#include "server/security/access_file.h"
#include "server/security/caller.h"
#include "server/security/file_watch.h"

namespace sparsed::server {

/// What is known of who calls. Of several proofs a token counts before a certificate, and that
/// before the process.
struct Evidence {
  std::optional<std::string_view> token{};  ///< as it came, right or wrong
  bool private_way = false;                 ///< nobody in between reads it: TLS, or on this machine
  std::vector<std::string> uris{};          ///< of a certificate that was verified
  std::string common_name{};                ///< likewise
  std::shared_ptr<const PeerProcess> process{};  ///< at the other end of a Unix socket
};

/// What stands behind "Bearer " in an authorization header, or nothing that is a token.
std::string_view TokenIn(std::string_view header);

/// Why a call was refused.
enum class Denial : uint8_t {
  kMissing,      ///< neither a token nor anything else that the access file knows
  kUnknown,      ///< the token is none that the access file has, perhaps no more
  kExpired,      ///< the token has expired
  kUnencrypted,  ///< a token came in plain text from another machine
  kRole,         ///< the caller's role does not allow it
};
inline constexpr int kDenials = 5;
std::string_view Name(Denial denial);

/// Counts whom it refuses; that a call was refused is in the log with what else is known of the
/// call, or by IdentifyAt and CheckAt. Thread-safe. A thread reads the access file again when it
/// changes; one that is wrong is told in the log, and the one before stays in force.
class Access {
 public:
  /// Counters since the start.
  struct Counts {
    int64_t reloads = 0, failed_reloads = 0;
    std::array<int64_t, kDenials> denied{};
  };

  /// An empty path: everybody who gets here is the operator of the default tenant. Errors: those of
  /// ReadPrivateFile, and INVALID_ARGUMENT with path and line.
  static absl::StatusOr<std::unique_ptr<Access>> Open(std::string path);
  ~Access();

  /// Who shows this secret from now on is a node of the cluster, who may do what nodes do for any
  /// tenant. Before anybody calls.
  void TrustNodes(std::string_view token);
  /// PERMISSION_DENIED, counted, unless the caller is a node, or nobody is asked.
  absl::Status RequireNode(const Caller& caller);
  /// INVALID_ARGUMENT if nobody can come as that tenant, by the access file as it is.
  absl::Status CheckTenant(std::string_view tenant) const;
  /// Whether nobody is asked who he is.
  bool everybody() const { return path_.empty(); }
  /// UNAUTHENTICATED, counted.
  absl::StatusOr<Caller> Identify(const Evidence& evidence);
  /// Whether the caller still is who he was: UNAUTHENTICATED once his token has expired or the file
  /// says something else of him. Cheap unless the file has just changed.
  absl::Status Check(const Caller& caller);
  /// PERMISSION_DENIED, counted, unless he is `least` or more. `what` he wants to do,
  /// "delete a matrix".
  absl::Status Require(const Caller& caller, Role least, std::string_view what);

  /// As Identify and Check, of what no other line of the log tells: who is refused is in it, `from`
  /// where he came. `request_id`: of the call, if it has one.
  absl::StatusOr<Caller> IdentifyAt(std::string_view from, const Evidence& evidence);
  absl::Status CheckAt(std::string_view from, const Caller& caller,
                       std::string_view request_id = "");

  /// Calls `use` with the tenants of the file now, and each time that it was read again. Once.
  void OnTenants(std::function<void(const TenantTable& tenants)> use);

  Counts counts() const;

 private:
  bool IsNodesDigest(const std::string& digest) const;
  explicit Access(std::string path) : path_(std::move(path)) {}
  absl::Status Load();
  void Reload();
  void TellTenants();
  std::shared_ptr<const AccessFile> file() const;
  absl::Status Deny(Denial denial, absl::Status why);

  const std::string path_;
  std::string nodes_digest_;  ///< of the cluster's token; empty: there is none
  mutable Mutex mutex_;
  std::shared_ptr<const AccessFile> file_ ABSL_GUARDED_BY(mutex_);
  /// Of `file_`; grows before others can see the file.
  std::atomic<uint64_t> generation_ = 0;
  std::atomic<int64_t> reloads_ = 0, failed_reloads_ = 0;
  Mutex tenants_mutex_;  ///< so that an older table never comes after a newer one
  std::function<void(const TenantTable&)> use_tenants_ ABSL_GUARDED_BY(tenants_mutex_);
  std::array<std::atomic<int64_t>, kDenials> denied_{};
  LogLimit log_limit_{/*per_second=*/1, /*burst=*/20};
  std::optional<FileWatch> watch_;  ///< last
};

}  // namespace sparsed::server
